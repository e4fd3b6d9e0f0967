#!/usr/bin/env bats
# ds-model: info, verify, fingerprint, random.

# shellcheck disable=SC2154 # stderr is set by run --separate-stderr
load helper

setup() {
	D=$BATS_TEST_TMPDIR
	LIKE=$DS_ROOT/tests/golden/v3-tiny-fp8
}

# small NAME [OPTION...]: a random model of two layers in $D/NAME.
small() {
	local name=$1
	shift
	limited ds-model random --like "$LIKE" --layers 2 -o "$D/$name" "$@"
}

# nothing_like NAME: neither NAME nor a temporary directory beside it was left.
nothing_like() {
	[ -z "$(find "$D" -maxdepth 1 -name "$1*")" ]
}

@test "info prints what the model is" {
	run -0 limited ds-model info "$DS_MODEL"
	assert_line --regexp '^architecture +deepseek_v3$'
	assert_line --regexp '^parameters +8186432 \(8.19 M\), active 2419264 \(2.42 M\), MTP 3638816$'
	assert_line --regexp '^KV cache +960 bytes a token \(BF16\)$'
	assert_line --regexp '^experts +32 of which 4, 1 shared, 8 groups of which 4, sigmoid, noaux_tc, width 128$'
	run -0 limited env DS_MODEL="$DS_MODEL" ds-model info
	assert_line --regexp '^fingerprint +[0-9a-f]{32}$'
}

@test "info --json is one JSON object" {
	limited ds-model info --json "$DS_MODEL" >"$D/info"
	[ "$(wc -l <"$D/info")" -eq 1 ]
	"$PYTHON" - "$D/info" <<-'END'
		import json, sys
		i = json.load(open(sys.argv[1]))
		assert i["parameters"] == 8186432 and i["tensors"] == 671 and i["kv_bytes_per_token"] == 960 and i["experts"] == 32, i
		assert i["bytes"] == sum(i["bytes_by_dtype"].values()), i
	END
}

@test "verify accepts a good model and warns of tensors that it does not use" {
	run -0 --separate-stderr limited ds-model verify "$DS_MODEL"
	assert_output "$DS_MODEL: ok, 671 tensors, 13560888 bytes, all finite"
	assert_equal "$stderr" ""
	small m
	"$PYTHON" - "$D/m/model.safetensors" <<-'END'
		import json, struct, sys
		b = open(sys.argv[1], "rb").read()
		n = struct.unpack("<Q", b[:8])[0]
		h = json.loads(b[8:8 + n])
		end = len(b) - 8 - n
		h["model.layers.0.rotary_emb.inv_freq"] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
		t = json.dumps(h).encode()
		open(sys.argv[1], "wb").write(struct.pack("<Q", len(t)) + t + b[8 + n:] + b"\0" * 4)
	END
	run -0 --separate-stderr limited ds-model verify "$D/m"
	assert_equal "$stderr" "ds-model: warning: '$D/m/model.safetensors': tensor 'model.layers.0.rotary_emb.inv_freq' is not part of the model"
	run -0 --separate-stderr limited ds-model verify -q "$D/m"
	assert_equal "$stderr" ""
}

@test "an option of another sub-command is refused, however this one is spelt" {
	refused 64 "'info' does not take --seed, which is for 'random'" ds-model info --seed 1 "$DS_MODEL"
	refused 64 "'verify' does not take --json" ds-model --json verify "$DS_MODEL"
	refused 64 "'fingerprint' does not take --threads" ds-model fingerprint -j 2 "$DS_MODEL"
	refused 64 "'probe' does not take --output" ds-model probe -o "$D/x"
	refused 64 "'random' does not take --model" ds-model random -m "$DS_MODEL" --like "$DS_MODEL" -n
	refused 64 "'quantise' does not take --full" ds-model quantize --full "$DS_MODEL" "$D/x"
	refused 64 "'dequantise' does not take --scale" ds-model dequantize --scale ue8m0 "$DS_MODEL" "$D/x"
	DS_THREADS=1 DS_MODEL="$DS_MODEL" run -0 limited ds-model info
}

@test "verify refuses NaN values and NaN scales by name" {
	small m
	"$PYTHON" - "$D/m/model.safetensors" "$D" <<-'END'
		import json, os, struct, sys
		b = bytearray(open(sys.argv[1], "rb").read())
		n = struct.unpack("<Q", b[:8])[0]
		h = json.loads(b[8:8 + n])
		def spoil(name, bytes_, out):
		    c = bytearray(b)
		    at = 8 + n + h[name]["data_offsets"][0]
		    c[at:at + len(bytes_)] = bytes_
		    open(os.path.join(sys.argv[2], out), "wb").write(c)
		spoil("model.layers.1.mlp.experts.3.up_proj.weight", b"\x7f", "value")
		spoil("model.layers.1.mlp.experts.3.up_proj.weight_scale_inv", struct.pack("<f", float("nan")), "scale")
	END
	cp "$D/value" "$D/m/model.safetensors"
	refused 65 "tensor 'model.layers.1.mlp.experts.3.up_proj.weight' has a value that is not finite" ds-model verify "$D/m"
	cp "$D/scale" "$D/m/model.safetensors"
	refused 65 "up_proj.weight_scale_inv' has a scale that is not finite, at [0,0]" ds-model verify "$D/m"
	refused 65 "up_proj.weight_scale_inv' has a scale that is not finite, at [0,0]" ds-model info "$D/m"
}

@test "what cannot be opened is 66, what is damaged 65" {
	refused 66 "cannot open '$D/none/config.json': No such file or directory" ds-model info "$D/none"
	mkdir "$D/empty"
	refused 66 "cannot open '$D/empty/config.json'" ds-model verify "$D/empty"
	cp "$LIKE/config.json" "$D/empty"
	refused 66 "it has neither 'model.safetensors' nor 'model.safetensors.index.json'" ds-model verify "$D/empty"
	small m --shard 1M
	last=$(find "$D/m" -name 'model-*.safetensors' | sort | tail -n 1)
	truncate -s -1 "$last"
	refused 65 "$last': tensor 'model" ds-model verify "$D/m"
	refused 65 "lies beyond the end of the file (truncated?)" ds-model verify "$D/m"
	rm "$last"
	refused 66 "cannot open '$last': No such file" ds-model verify "$D/m"
	sed -i 's/"scoring_func": "sigmoid"/"scoring_func": "tanh"/' "$D/m/config.json"
	refused 65 'scoring_func is "tanh", want "softmax" or "sigmoid"' ds-model verify "$D/m"
	sed -i '/"scoring_func"/d' "$D/m/config.json"
	refused 65 "scoring_func is missing" ds-model verify "$D/m"
}

@test "a hostile name shows no control characters and stays one line" {
	refused 66 "cannot open 'a?b?[31m/config.json'" ds-model info "$(printf 'a\nb\033[31m')"
}

@test "fingerprint tells models apart, and not by their files" {
	small a --seed 5
	small b --seed 5 --shard 600K
	small c --seed 6
	[ "$(find "$D/b" -name '*.safetensors' | wc -l)" -gt 1 ]
	a=$(ds-model fingerprint "$D/a")
	[ "$a" = "$(ds-model fingerprint "$D/b")" ]
	[ "$a" != "$(ds-model fingerprint "$D/c")" ]
	[ "$(ds-model fingerprint --full "$D/a")" = "$(ds-model fingerprint --full "$D/b")" ]
	[ "$(ds-model fingerprint --full "$D/a")" != "$(ds-model fingerprint --full "$D/c")" ]
	sed -i 's/"rope_theta": 10000/"rope_theta": 10001/' "$D/b/config.json"
	[ "$a" != "$(ds-model fingerprint "$D/b")" ]
}

@test "random: the same seed gives the same bytes, each type verifies" {
	for t in bf16 fp8 f32; do
		small "$t" --dtype $t --seed 3
		small "$t.again" --dtype $t --seed 3
		diff -r "$D/$t" "$D/$t.again"
		run -0 limited ds-model verify "$D/$t"
	done
	grep -q '"quant_method":"fp8"' "$D/fp8/config.json"
	run ! grep -q quantization_config "$D/bf16/config.json"
	grep -q '"torch_dtype": "float32"' "$D/f32/config.json"
}

@test "random: from a file, of another variant, with a tokenizer" {
	limited ds-model random --like tests/golden/v2lite-tiny/config.json --layers 2 --tokenizer "$DS_MODEL" -o "$D/m"
	cmp "$DS_MODEL/tokenizer.json" "$D/m/tokenizer.json"
	cmp "$DS_MODEL/tokenizer_config.json" "$D/m/tokenizer_config.json"
	run -0 limited ds-model info "$D/m"
	assert_line --regexp '^experts +32 of which 6, 2 shared, 1 groups of which 1, softmax, greedy'
	refused 66 "cannot open '$D/none/tokenizer.json'" ds-model random --like "$LIKE" --tokenizer "$D/none" -o "$D/x"
	nothing_like x
}

@test "random --dry-run prints the plan and writes nothing" {
	run -0 limited ds-model random -n --like "$LIKE" --shard 10M -o "$D/x"
	assert_output "would make $D/x: 27931648 parameters (6841920 MTP) in 1651 tensors, 28402768 bytes, 3 files, F8_E4M3"
	nothing_like x
}

@test "random never overwrites without --force, and then only a model" {
	small m --seed 1
	refused 64 "cannot make '$D/m': it exists; --force replaces it" ds-model random --like "$LIKE" --layers 2 -o "$D/m"
	old=$(ds-model fingerprint "$D/m")
	small m --seed 2 --force
	[ "$old" != "$(ds-model fingerprint "$D/m")" ]
	mkdir "$D/home"
	echo precious >"$D/home/file"
	refused 64 "'file' in it is no part of a model" ds-model random --like "$LIKE" --layers 2 -f -o "$D/home"
	[ "$(cat "$D/home/file")" = precious ]
	echo text >"$D/text"
	refused 64 "it is there and no directory" ds-model random --like "$LIKE" --layers 2 -f -o "$D/text"
}

@test "random: a full disk is 74 and leaves nothing" {
	mkdir "$D/disk"
	unshare -rm true 2>/dev/null || skip "no user namespaces"
	run unshare -rm sh -c "mount -t tmpfs -o size=1m none '$D/disk' || exit 99
		ds-model random --like '$LIKE' --layers 2 -o '$D/disk/m' 2>'$D/err'; rc=\$?
		ls -A '$D/disk' >'$D/left'; exit \$rc"
	[ "$status" -ne 99 ] || skip "no tmpfs can be mounted"
	check_refusal 74 "No space left on device" "$status" "$D/err" "ds-model random"
	[ ! -s "$D/left" ]
}

@test "random: a signal leaves nothing" {
	"$PYTHON" - "$LIKE/config.json" "$D/big.json" <<-'END'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(num_hidden_layers=200, vocab_size=200000)
		json.dump(c, open(sys.argv[2], "w"))
	END
	for signal in TERM HUP; do
		run env --default-signal=HUP timeout -s "$signal" 0.3 ds-model random --like "$D/big.json" --dtype f32 -o "$D/m"
		assert_equal "$status" 124
		nothing_like m
	done
}

@test "no memory is one line and 71" {
	not_sanitized "ulimit -v"
	small m --dtype f32
	run bash -c "ulimit -v 40000; exec ds-model info '$D/m' 2>'$D/err'"
	check_refusal 71 "Cannot allocate memory" "$status" "$D/err" "ds-model info"
}

@test "usage errors are 64, and the answer must reach stdout" {
	refused 64 "what to do is missing" ds-model
	refused 64 "'inform' is not info, verify, fingerprint, quantise, dequantise, random or probe" ds-model inform "$DS_MODEL"
	refused 64 "info takes no operand '$DS_MODEL'" ds-model info "$DS_MODEL" "$DS_MODEL"
	refused 64 "info needs a model's directory" env -u DS_MODEL ds-model info
	refused 64 "random needs --like and --output" ds-model random --like "$LIKE"
	refused 64 "--dtype: 'int4' is not bf16, fp8 or f32" ds-model random --like "$LIKE" -o "$D/x" --dtype int4
	refused 64 "" ds-model random --like "$LIKE" -o "$D/x" --layers 0
	refused 64 "" ds-model info --frobnicate
	run bash -c "ds-model info '$DS_MODEL' >/dev/full 2>'$D/err'"
	check_refusal 74 "cannot write to stdout" "$status" "$D/err" "ds-model info >/dev/full"
	run bash -c "ds-model info '$DS_MODEL' >&- 2>'$D/err'"
	check_refusal 74 "cannot write to stdout" "$status" "$D/err" "ds-model info >&-"
}

@test "--help and --version" {
	run -0 ds-model --help
	assert_line --partial "usage: ds-model"
	run -0 ds-model --version
	assert_line --partial "ds-model"
}
