# ds-model quantise and dequantise: every code and scale by other arithmetic, the released model from its BF16 one; ds-model probe.
load helper

CHECK=$DS_ROOT/tests/bats/quantise_check.py
CKPT=$DS_ROOT/tests/bats/ckpt.py

setup() {
	D=$BATS_TEST_TMPDIR
}

# odd NAME [OPTION...]: a small random model in $D/NAME whose dimensions are no multiples of 128.
odd() {
	local name=$1
	shift
	"$PYTHON" - "$DS_MODEL/config.json" "$D/odd.json" <<-'END'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.pop("quantization_config")
		c.update(num_hidden_layers=2, hidden_size=192, intermediate_size=200, moe_intermediate_size=40, n_routed_experts=8, n_group=2,
		         topk_group=1, vocab_size=64, q_lora_rank=72, kv_lora_rank=130, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=20,
		         num_nextn_predict_layers=1)
		json.dump(c, open(sys.argv[2], "w"))
	END
	limited ds-model random --like "$D/odd.json" -o "$D/$name" "$@"
}

# nothing_like NAME: neither NAME nor a temporary directory beside it was left.
nothing_like() {
	[ -z "$(find "$D" -maxdepth 1 -name "$1*")" ]
}

@test "quantising the BF16 model gives the released FP8 model, every code and scale" {
	need_shared models/tiny-r1-bf16
	limited ds-model quantise "$DS_SHARED/models/tiny-r1-bf16" "$D/q"
	"$PYTHON" "$CHECK" --same "$DS_MODEL" "$D/q"
	[ "$(ds-model fingerprint --full "$D/q")" = "$(ds-model fingerprint --full "$DS_MODEL")" ]
	for f in tokenizer.json tokenizer_config.json generation_config.json; do
		cmp "$DS_MODEL/$f" "$D/q/$f"
	done
	"$PYTHON" -c 'import json, sys; a, b = (json.load(open(f + "/config.json")) for f in sys.argv[1:]); assert a == b' "$DS_MODEL" "$D/q"
}

@test "every code and scale is as the formula says: BF16, F32, odd dimensions, a tensor that is no part of the model" {
	odd m --dtype bf16
	"$PYTHON" "$CHECK" --extra "$D/m"
	limited ds-model quantise "$D/m" "$D/q"
	"$PYTHON" "$CHECK" "$D/m" "$D/q"
	limited ds-model -q verify "$D/q"
	odd f --dtype f32 --seed 2
	limited ds-model quantise "$D/f" -o "$D/g" -j 2
	"$PYTHON" "$CHECK" "$D/f" "$D/g"
	limited ds-model quantise --scale ue8m0 "$D/f" "$D/u"
	"$PYTHON" "$CHECK" "$D/f" "$D/u" ue8m0
	limited ds-model verify "$D/u"
}

@test "any number of threads and files gives the same tensors; a file holds at most --shard" {
	odd m --dtype bf16
	limited ds-model quantise -j 1 "$D/m" "$D/a"
	limited ds-model quantise -j 3 "$D/m" "$D/b"
	cmp "$D/a/model.safetensors" "$D/b/model.safetensors"
	limited ds-model quantise -j 2 --shard 150K "$D/m" "$D/c"
	"$PYTHON" "$CHECK" "$D/m" "$D/c"
	"$PYTHON" "$CHECK" --same "$D/a" "$D/c"
	[ "$(find "$D/c" -name 'model-*.safetensors' | wc -l)" -gt 3 ]
	[ -z "$(find "$D/c" -name 'model-*.safetensors' -size +160k)" ]
	[ "$(ds-model fingerprint "$D/a")" = "$(ds-model fingerprint "$D/c")" ]
	odd s --dtype bf16 --shard 200K # of several files, too
	limited ds-model quantise "$D/s" "$D/d"
	"$PYTHON" "$CHECK" --same "$D/a" "$D/d"
}

@test "weights lie on cache lines in every file that is written" {
	odd m --dtype bf16 --shard 100K
	limited ds-model quantise "$D/m" "$D/q" --shard 60K
	limited ds-model dequantise "$D/q" "$D/b"
	odd f --dtype fp8
	for d in m q b f; do
		[ "$(aligned "$D/$d"/*.safetensors)" -eq 0 ]
	done
	[ "$(find "$D/m" "$D/q" -name '*.safetensors' | wc -l)" -gt 3 ]
}

@test "back to BF16: code times scale, to the nearest; and what is quantised computes" {
	limited ds-model dequantise "$DS_MODEL" "$D/b"
	limited ds-model verify "$D/b"
	limited ds-model quantise "$D/b" "$D/q"
	limited ds-model verify "$D/q"
	echo 'What is 12 + 34?' | limited ds-token -m "$D/q" encode --chat | limited ds-prefill -m "$D/q" | limited ds-decode -m "$D/q" |
		limited ds-token -m "$D/q" decode | has 'The answer is 46'
	odd m --dtype fp8
	limited ds-model dequantise "$D/m" "$D/n"
	"$PYTHON" "$CHECK" --back "$D/m" "$D/n"
}

@test "what cannot be quantised is refused by name, and nothing is left" {
	odd m --dtype bf16
	refused 65 "cannot quantise '$DS_MODEL': it is FP8 already" ds-model quantise "$DS_MODEL" "$D/x"
	refused 65 "cannot dequantise '$D/m': it is not FP8" ds-model dequantise "$D/m" "$D/x"
	refused 66 "config.json" ds-model quantise "$D/none" "$D/x"
	"$PYTHON" "$CKPT" "$D/m" "$D/nan" nan:model.layers.1.mlp.experts.3.up_proj.weight
	refused 65 "tensor 'model.layers.1.mlp.experts.3.up_proj.weight' has a value that is not finite, in rows 0 to 39" \
		ds-model quantise "$D/nan" "$D/x"
	nothing_like x
	mkdir "$D/there"
	refused 64 "cannot make '$D/there': it exists; --force replaces it" ds-model quantise "$D/m" "$D/there"
	limited ds-model quantise -f "$D/m" "$D/there"
	refused 64 "cannot make '$D/m/': it is the model to be read" ds-model quantise -f "$D/m" "$D/m/"
	limited ds-model verify "$D/m"
	refused 64 "quantise needs a model's directory and one to make" ds-model quantise "$D/m"
	DS_MODEL=$D/m refused 64 "quantise needs a model's directory and one to make" ds-model quantise "$D/x"
	refused 64 "both --output and the operand" ds-model quantise "$D/m" "$D/x" -o "$D/y"
	refused 64 "quantise takes no operand '$D/y'" ds-model quantise "$D/m" "$D/x" "$D/y"
	refused 64 "--scale: 'e8' is not float or ue8m0" ds-model quantise --scale e8 "$D/m" "$D/x"
	refused 74 "cannot create" ds-model quantise "$D/m" "$D/none/x"
	nothing_like x
}

@test "quantise and dequantise: the model from -m, the output as an operand or by -o; American spelling" {
	odd m --dtype bf16
	limited ds-model quantise "$D/m" "$D/q1"
	limited ds-model quantise -m "$D/m" "$D/q2"
	limited ds-model quantize "$D/m" -o "$D/q3"
	limited ds-model quantize -m "$D/m" -o "$D/q4"
	DS_MODEL=$D/m limited ds-model quantise -o "$D/q5"
	for q in q2 q3 q4 q5; do
		cmp "$D/q1/model.safetensors" "$D/$q/model.safetensors"
	done
	limited ds-model dequantize -m "$D/q1" "$D/back"
	limited ds-model verify "$D/back"
}

@test "quantise --dry-run prints the plan and writes nothing" {
	odd m --dtype bf16
	run -0 limited ds-model quantise -n --shard 100K "$D/m" "$D/x"
	assert_output --regexp "^would make $D/x: [0-9]+ tensors, [0-9]+ of them made FP8, [0-9]+ bytes of [0-9]+, [0-9]+ files\$"
	nothing_like x
	run -0 limited ds-model quantise -n "$D/m"
	assert_output --partial "would make a model: "
}

@test "quantising takes little memory, however large the model" {
	not_sanitized "its memory"
	"$PYTHON" - "$DS_MODEL/config.json" "$D/big.json" <<-'END'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(hidden_size=2048, intermediate_size=8192, num_hidden_layers=1, num_nextn_predict_layers=0, vocab_size=4096)
		json.dump(c, open(sys.argv[2], "w"))
	END
	limited ds-model random --like "$D/big.json" --dtype bf16 -o "$D/m"
	[ "$(stat -c %s "$D/m/model.safetensors")" -gt 120000000 ]
	limited "$PYTHON" - "$D/m" "$D/x" <<-'END'
		import resource, subprocess, sys
		subprocess.run(["ds-model", "quantise", "-j", "2", *sys.argv[1:]], check=True)
		kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
		assert kib < 48 << 10, f"{kib} KiB"
	END
	limited ds-model verify "$D/x"
}

@test "quantise: a full disk is 74 and leaves nothing" {
	odd m --dtype bf16
	mkdir "$D/disk"
	unshare -rm true 2>/dev/null || skip "no user namespaces"
	run unshare -rm sh -c "mount -t tmpfs -o size=400k none '$D/disk' || exit 99
		ds-model quantise '$D/m' '$D/disk/x' 2>'$D/err'; rc=\$?
		ls -A '$D/disk' >'$D/left'; exit \$rc"
	[ "$status" -ne 99 ] || skip "no tmpfs can be mounted"
	check_refusal 74 "No space left on device" "$status" "$D/err" "ds-model quantise"
	[ ! -s "$D/left" ]
}

@test "quantise: a signal leaves nothing" {
	"$PYTHON" - "$DS_MODEL/config.json" "$D/big.json" <<-'END'
		import json, sys
		c = json.load(open(sys.argv[1]))
		c.update(hidden_size=2048, intermediate_size=8192, num_hidden_layers=1, num_nextn_predict_layers=0, vocab_size=128)
		json.dump(c, open(sys.argv[2], "w"))
	END
	limited ds-model random --like "$D/big.json" --dtype bf16 -o "$D/m"
	run timeout -s TERM 0.1 ds-model quantise -j 1 "$D/m" "$D/x"
	assert_equal "$status" 124
	nothing_like x
}

@test "probe measures reading and multiplying, as a table and as JSON" {
	run -0 limited ds-model probe -j 2
	assert_line --regexp '^ +1 thread +2 threads$'
	assert_line --regexp '^ +median +best +median +best$'
	assert_line --regexp '^read, huge pages +GB/s +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$'
	assert_line --regexp '^scalar +F32 +GFLOP/s +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$'
	limited ds-model probe -j 1 --json >"$D/json"
	"$PYTHON" - "$D/json" <<-'END'
		import json, sys
		p = json.load(open(sys.argv[1]))
		assert [t["threads"] for t in p["threads"]] == [1]
		t = p["threads"][0]
		rates = [t["read"], t["read_4k_pages"]] + [r for s in t["peaks"].values() for r in s.values()]
		assert all(0 < r["median"] <= r["best"] for r in rates)
		assert all(1e8 < r["best"] < 1e14 for r in rates), rates
		assert p["read_bytes"] >= min(4 * p["last_cache_bytes"], 1 << 30)
		peaks = {k: v["f32"]["best"] for k, v in t["peaks"].items()}
		assert peaks["scalar"] == min(peaks.values())
		assert all("bf16" not in v for k, v in t["peaks"].items() if k != "avx512bf16")
	END
	refused 64 "probe takes no operand" ds-model probe here
}
