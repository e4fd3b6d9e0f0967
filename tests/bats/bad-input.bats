# Bad input of every kind that a user can give to any program: the exit code, and exactly one line on stderr that names the thing.
# Never a crash, never a hang, never silent success.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
CKPT=$DS_ROOT/tests/bats/ckpt.py
Q_A=model.layers.1.self_attn.q_a_proj.weight

setup_file() {
	load helper
	cd "$BATS_FILE_TMPDIR" || return 1
	printf '%s\n' '{"id": "a", "ids": [0, 1020, 494, 223, 21, 314, 223, 20, 16, 1021, 1022, 201], "max_tokens": 5}' |
		"$PYTHON" "$DSF" requests >request
	ds-prefill -m "$DS_MODEL" <request >kv
	ds-decode -m "$DS_MODEL" <kv >token
}

setup() {
	cd "$BATS_FILE_TMPDIR" || return 1
}

# checkpoint EDIT...: a copy of the example model with something wrong, in ./ckpt of the test's own directory.
checkpoint() {
	BAD=$BATS_TEST_TMPDIR/ckpt
	rm -rf "$BAD"
	"$PYTHON" "$CKPT" "$DS_MODEL" "$BAD" "$@"
}

# Every program that opens a checkpoint's weights refuses this one.
weights_refused() {
	refused 65 "$1" ds-model info "$BAD" </dev/null && refused 65 "$1" ds-model verify "$BAD" </dev/null &&
		refused 65 "$1" ds-prefill -m "$BAD" <request && refused 65 "$1" ds-decode -m "$BAD" <kv
}

@test "missing file: 66 and its name, for models, inputs and captures" {
	for p in ds-prefill ds-decode; do
		refused 66 /no/such/model "$p" -m /no/such/model <request
		refused 66 /no/such/frames "$p" -m "$DS_MODEL" -i /no/such/frames
	done
	refused 66 /no/such/model ds-token -m /no/such/model encode <<<'x'
	refused 66 /no/such/text ds-token -m "$DS_MODEL" encode -i /no/such/text
	refused 66 /no/such/frames ds-token -m "$DS_MODEL" decode -i /no/such/frames
	for c in info verify fingerprint; do
		refused 66 /no/such/model ds-model "$c" /no/such/model
	done
	for c in dump check; do
		refused 66 /no/such/frames ds-frame "$c" /no/such/frames
	done
	refused 66 /no/such/config ds-model random --like /no/such/config -o "$BATS_TEST_TMPDIR/random"
}

@test "a model without its config, its index, a shard, or its tokenizer: 66 and the file's name" {
	for f in config.json model-00002-of-00002.safetensors; do
		checkpoint
		rm "$BAD/$f"
		refused 66 "$f" ds-model info "$BAD"
		refused 66 "$f" ds-prefill -m "$BAD" <request
	done
	checkpoint
	rm "$BAD/tokenizer.json"
	refused 66 tokenizer.json ds-token -m "$BAD" encode <<<'x'
}

@test "no model given: 64" {
	refused 64 model env -u DS_MODEL ds-prefill <request
	refused 64 model env -u DS_MODEL ds-decode <kv
	refused 64 model env -u DS_MODEL ds-token encode <<<'x'
	refused 64 '' env -u DS_MODEL ds-model info
}

@test "a truncated shard: 65 and the shard's name" {
	checkpoint truncate:model-00002-of-00002.safetensors:1
	weights_refused model-00002-of-00002.safetensors
	checkpoint truncate:model-00001-of-00002.safetensors:6839390
	weights_refused model-00001-of-00002.safetensors
}

@test "a missing tensor, a wrong shape, a wrong type, data beyond the file: 65 and the tensor's name" {
	for edit in drop:$Q_A shape:$Q_A:256,128 shape:$Q_A:128,255 dtype:$Q_A:F16 dtype:$Q_A:NONSENSE offset:$Q_A:99999999; do
		checkpoint "$edit"
		weights_refused "$Q_A"
	done
}

@test "a missing scale is refused by name" {
	checkpoint "drop:${Q_A}_scale_inv"
	weights_refused "${Q_A}_scale_inv"
}

@test "a scale that is not a number: 65 and its name" {
	checkpoint "nan:${Q_A}_scale_inv"
	refused 65 "${Q_A}_scale_inv" ds-model verify "$BAD"
	refused 65 '' ds-prefill -m "$BAD" <request
}

@test "weights of several types where the engine takes one: 65 and both names" {
	local e=model.layers.1.mlp.experts
	checkpoint "bf16:$e.3.up_proj.weight"
	weights_refused "tensor '$e.3.up_proj.weight' is BF16, but '$e.3.gate_proj.weight' is F8_E4M3"
	checkpoint "bf16:$e.0."
	weights_refused "tensor '$e.1.gate_proj.weight' is F8_E4M3, but '$e.0.gate_proj.weight' is BF16"
	checkpoint "bf16:$e.5.down_proj.weight"
	weights_refused "tensor '$e.5.down_proj.weight' is BF16, but '$e.0.down_proj.weight' is F8_E4M3"
	checkpoint bf16:shared_experts.gate_proj.weight
	weights_refused "shared_experts.up_proj.weight' is F8_E4M3, but"
	checkpoint bf16:mlp.experts
	limited ds-model verify "$BAD"
	limited ds-prefill -m "$BAD" <request | limited ds-decode -m "$BAD" | "$PYTHON" "$DSF" tokens - | has ' done '
}

@test "a scale that the index does not list: 65 and its name" {
	checkpoint "unlist:${Q_A}_scale_inv"
	weights_refused "'${Q_A}_scale_inv' is missing"
}

@test "a FIFO or a directory in place of a model's file: 66 and its name, and no wait for a writer" {
	local f
	for f in tokenizer.json tokenizer_config.json chat_template.jinja config.json; do
		for make in mkfifo mkdir; do
			checkpoint
			rm -f "$BAD/$f"
			"$make" "$BAD/$f"
			refused 66 "$f': not a regular file" ds-token -m "$BAD" encode --chat <<<'x'
			refused 66 "$f': not a regular file" ds-token -m "$BAD" decode <token
		done
	done
}

@test "values of config.json that change the mathematics are refused by name where they are unknown or missing" {
	for edit in 'scoring_func:"tanh"' 'scoring_func' 'topk_method:"other"' 'rope_scaling:{"type":"linear","factor":2}' \
		'hidden_size:"big"' 'num_hidden_layers:-1' 'n_routed_experts:1e30' 'quantization_config:{"quant_method":"int4"}' \
		'hidden_act:"gelu"'; do
		checkpoint "config:$edit"
		weights_refused "${edit%%:*}" || {
			echo "edit: $edit" >&2
			return 1
		}
	done
}

@test "a request of another vocabulary: 76 with both values" {
	"$PYTHON" "$DSF" set request hello vocab 999 >"$BATS_TEST_TMPDIR/other"
	refused 76 999 ds-prefill -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/other"
	refused 76 1024 ds-prefill -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/other"
}

@test "another model's KV: 76 with both fingerprints" {
	"$PYTHON" "$DSF" set kv hello model '"00112233445566778899aabbccddeeff"' >"$BATS_TEST_TMPDIR/other"
	refused 76 00112233445566778899aabbccddeeff ds-decode -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/other"
	refused 76 "$(ds-model fingerprint "$DS_MODEL" | grep -oE '[0-9a-f]{32}' | head -n 1)" ds-decode -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/other" || true
	other=$(golden v3-tiny)
	refused 76 '' ds-decode -m "$other" <kv
}

@test "KV of another arithmetic: 76" {
	ds-prefill -m "$DS_MODEL" --arith float32 <request >"$BATS_TEST_TMPDIR/kv"
	refused 76 '' ds-decode -m "$DS_MODEL" --arith bf16 <"$BATS_TEST_TMPDIR/kv"
}

# one_error CODE TEXT STREAM: a request that cannot be served is answered with an error frame, the stream ends properly, and the filter's
# exit code says so.
one_error() {
	local status=0
	limited ds-prefill -m "$DS_MODEL" <"$3" >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" || status=$?
	check_refusal "$1" "$2" "$status" "$BATS_TEST_TMPDIR/err" "ds-prefill <$3"
	"$PYTHON" "$DSF" tokens "$BATS_TEST_TMPDIR/out" | grep -F "error $1" | has -F -- "$2"
}

@test "a token id out of range: 65 and the id; other requests are answered" {
	printf '%s\n' '{"id": "good", "ids": [0, 1020]}' '{"id": "bad", "ids": [0, 1024, 5]}' '{"id": "fine", "ids": [0, 1020], "max_tokens": 3}' |
		"$PYTHON" "$DSF" requests >"$BATS_TEST_TMPDIR/in"
	one_error 65 1024 "$BATS_TEST_TMPDIR/in"
	[ "$("$PYTHON" "$DSF" types "$BATS_TEST_TMPDIR/out" | grep -c prefilled)" -eq 2 ]
}

@test "a prompt longer than the context: 65 and its length" {
	"$PYTHON" -c 'import json; print(json.dumps({"id": "long", "ids": [223] * 4097}))' | "$PYTHON" "$DSF" requests >"$BATS_TEST_TMPDIR/in"
	one_error 65 4097 "$BATS_TEST_TMPDIR/in"
}

@test "a sampling field that is out of range: 65 and its name" {
	for setting in min_p:1.1 min_p:-0.1 repetition_penalty:0 presence_penalty:2.1 frequency_penalty:-3 top_logprobs:21 logit_bias:1 \
		'logit_bias:[[5,101]]' 'logit_bias:[[5,1],[5,2]]' 'logit_bias:[[1024,1]]' top_p:0 temperature:-1 temperature:'"hot"' top_k:-3; do
		"$PYTHON" "$DSF" set request request "sampling.${setting%%:*}" "${setting#*:}" >"$BATS_TEST_TMPDIR/in"
		one_error 65 "${setting%%:*}" "$BATS_TEST_TMPDIR/in"
	done
}

@test "a newer major version: 76; a newer minor one is read" {
	"$PYTHON" "$DSF" major request >"$BATS_TEST_TMPDIR/in"
	refused 76 "version '2'" ds-prefill -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/in"
	refused 76 "version '2'" ds-frame check "$BATS_TEST_TMPDIR/in"
	refused 76 "version '2'" ds-frame dump "$BATS_TEST_TMPDIR/in"
	"$PYTHON" "$DSF" set request hello minor 9 >"$BATS_TEST_TMPDIR/in"
	ds-prefill -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/in" | ds-decode -m "$DS_MODEL" | "$PYTHON" "$DSF" tokens - | has ' done '
	"$PYTHON" "$DSF" set request hello some_new_key '{"of": "ours"}' >"$BATS_TEST_TMPDIR/in"
	ds-prefill -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/in" >/dev/null
}

@test "bytes that are no frames, and no bytes at all: 65" {
	for p in ds-prefill ds-decode "ds-token decode"; do
		# shellcheck disable=SC2086 # program and sub-command
		set -- $p
		refused 65 '' "$1" -m "$DS_MODEL" "${@:2}" <"$DS_MODEL/config.json"
		refused 65 '' "$1" -m "$DS_MODEL" "${@:2}" </dev/null
	done
	for c in dump check; do
		refused 65 '' ds-frame "$c" "$DS_MODEL/config.json"
		refused 65 '' ds-frame "$c" /dev/null
	done
}

@test "input cut short: 65 from every stage, for cuts all over the stream" {
	local size at
	for pair in 'request ds-prefill' 'kv ds-decode' 'token ds-token'; do
		f=${pair% *} p=${pair#* }
		size=$(stat -c %s "$f")
		for at in 1 43 44 45 $((size / 3)) $((size / 2)) $((size - 65)) $((size - 1)); do
			head -c "$at" "$f" >"$BATS_TEST_TMPDIR/cut"
			if [ "$p" = ds-token ]; then
				refused 65 '' ds-token -m "$DS_MODEL" decode <"$BATS_TEST_TMPDIR/cut"
			else
				refused 65 '' "$p" -m "$DS_MODEL" <"$BATS_TEST_TMPDIR/cut"
			fi
		done
	done
}

@test "tokens given to decode, KV given to prefill, requests given to ds-token decode: 65 and what was wrong" {
	refused 65 "ds-decode: '<stdin>': frame 1: a 'token' frame has no place" ds-decode -m "$DS_MODEL" <token
	refused 65 "ds-prefill: '<stdin>': frame 1: a 'token' frame has no place" ds-prefill -m "$DS_MODEL" <token
	refused 65 '' ds-prefill -m "$DS_MODEL" <kv
	refused 65 '' ds-token -m "$DS_MODEL" decode <request
}

@test "text that is no UTF-8: 65 and where" {
	printf 'abc\377' >"$BATS_TEST_TMPDIR/text"
	refused 65 3 ds-token -m "$DS_MODEL" encode <"$BATS_TEST_TMPDIR/text"
}

@test "no memory: 71 and one line" {
	not_sanitized 'the sanitizer needs address space'
	local kb
	for p in ds-prefill ds-decode; do
		if [ "$p" = ds-prefill ]; then in=request; else in=kv; fi
		for kb in 20000 24000 30000; do
			status=0
			(
				ulimit -v "$kb"
				exec timeout 20 "$p" -j 1 -m "$DS_MODEL" <"$in" >/dev/null 2>"$BATS_TEST_TMPDIR/err"
			) || status=$?
			# Enough for this much after all, or too little even for the loader.
			[ "$status" -ne 0 ] && [ "$status" -ne 127 ] || continue
			check_refusal 71 '' "$status" "$BATS_TEST_TMPDIR/err" "$p with $kb KB"
			seen=1
		done
	done
	[ "$seen" = 1 ]
	refused 71 'memory' ds-prefill -m "$DS_MODEL" --kv-memory 8000T <request
}

# Where each program writes data to stdout: closed, or on a full disk.
writers() {
	"$@" 74 ds-token -m "$DS_MODEL" encode -i "$DS_MODEL/config.json"
	"$@" 74 ds-prefill -m "$DS_MODEL" -i request
	"$@" 74 ds-decode -m "$DS_MODEL" -i kv
	"$@" 74 ds-token -m "$DS_MODEL" decode -i token
	"$@" 74 ds-frame dump token
	"$@" 74 ds-model info "$DS_MODEL"
	"$@" 74 ds-model fingerprint "$DS_MODEL"
}

@test "a closed stdout: 74" {
	closed() { local code=$1; shift; refused "$code" '' sh -c 'exec "$@" >&-' - "$@"; }
	writers closed
}

@test "a full disk: 74" {
	full() { local code=$1; shift; refused "$code" '' sh -c 'exec "$@" >/dev/full' - "$@"; }
	writers full
	refused 74 '' ds-frame check -o /dev/full token || refused 64 '' ds-frame check -o /dev/full token
}

@test "a reader that went away: SIGPIPE or 141, and nothing is said" {
	gone() {
		local status
		shift
		status=$( (
			set +e +o pipefail
			{ timeout 20 "$@" 2>"$BATS_TEST_TMPDIR/err"; echo $? >"$BATS_TEST_TMPDIR/status"; } | true
			cat "$BATS_TEST_TMPDIR/status"
		))
		# A short answer may have been written before the reader went.
		[ "$status" = 0 ] || [ "$status" = 141 ] || { echo "$*: $status" >&2; return 1; }
	}
	writers gone
}

@test "frames are not written to a terminal: 64, unless forced" {
	need_program script
	local status=0
	script -qec "ds-prefill -m '$DS_MODEL' -i request 2>'$BATS_TEST_TMPDIR/err'" /dev/null >"$BATS_TEST_TMPDIR/tty" </dev/null || status=$?
	check_refusal 64 terminal "$status" "$BATS_TEST_TMPDIR/err" 'ds-prefill on a terminal'
	status=0
	script -qec "ds-token -m '$DS_MODEL' encode -i '$DS_MODEL/config.json' 2>'$BATS_TEST_TMPDIR/err'" /dev/null >"$BATS_TEST_TMPDIR/tty" </dev/null || status=$?
	check_refusal 64 terminal "$status" "$BATS_TEST_TMPDIR/err" 'ds-token on a terminal'
	script -qec "ds-prefill -f -m '$DS_MODEL' -i request" /dev/null >"$BATS_TEST_TMPDIR/tty" </dev/null
	grep -qa DSF1 "$BATS_TEST_TMPDIR/tty"
	script -qec "ds-token -m '$DS_MODEL' decode -i token" /dev/null >"$BATS_TEST_TMPDIR/tty" </dev/null
	script -qec "ds-frame dump token" /dev/null </dev/null | has hello
}

@test "an output file is there when it is complete, and not when it is not" {
	head -c 300 request >"$BATS_TEST_TMPDIR/cut"
	refused 65 '' ds-prefill -m "$DS_MODEL" -i "$BATS_TEST_TMPDIR/cut" -o "$BATS_TEST_TMPDIR/out"
	[ ! -e "$BATS_TEST_TMPDIR/out" ]
	ds-prefill -m "$DS_MODEL" -i request -o "$BATS_TEST_TMPDIR/out"
	ds-frame check "$BATS_TEST_TMPDIR/out"
	[ "$(find "$BATS_TEST_TMPDIR" -name '*out*' ! -name refused.out)" = "$BATS_TEST_TMPDIR/out" ]
	refused 74 /no/such/dir/out ds-prefill -m "$DS_MODEL" -i request -o /no/such/dir/out
}

@test "an address that is wrong: 64; nobody there: 69" {
	refused 64 nonsense ds-prefill -m "$DS_MODEL" -c nonsense <request
	refused 64 nonsense ds-decode -m "$DS_MODEL" -l nonsense
	refused 69 "$BATS_TEST_TMPDIR/nobody" ds-prefill -q -m "$DS_MODEL" --peer-timeout 1s -c "unix:$BATS_TEST_TMPDIR/nobody" <request
}

@test "a TCP address beyond loopback needs the operator's word: 78" {
	refused 78 0.0.0.0 ds-decode -m "$DS_MODEL" -l tcp:0.0.0.0:0
}

@test "an instruction set that does not exist: 78 and its name" {
	DS_KERNELS=quantum refused 78 quantum ds-prefill -m "$DS_MODEL" <request
}
