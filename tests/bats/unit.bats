# Expert-parallel units: many ranks, one answer, to the bit.  What is compared is what one process answers to the same requests.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
UNIT=$DS_ROOT/tests/bats/unit.py
if [ -n "$DS_SANITIZE" ]; then MANY=8; else MANY=64; fi

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY") | "$PYTHON" "$DSF" requests >all
	unit want all want
	[ "$(grep -c ' done ' want)" -eq "$MANY" ]
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{all,want} .
}

teardown() {
	end_background
}

# unit COMMAND...: tests/bats/unit.py
unit() {
	timeout -k 5 600 "$PYTHON" "$UNIT" "$@"
}

@test "worlds of 2, 3, 4, 8 and 16, redundant experts, micro-batches, shm and tcp: the same answers" {
	unit many all want
}

@test "the same with the scalar kernels, with MTP" {
	not_sanitized 'takes minutes'
	head -n 12 <(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix 12) | "$PYTHON" "$DSF" requests >few
	DS_KERNELS=scalar unit want few scalar.want
	DS_KERNELS=scalar unit same few scalar.want --world 3 -- --redundant 8
	DS_KERNELS=scalar unit same few scalar.want --world 2 --over tcp -- --micro-batches 1
	unit same all want --world 3 -- --mtp 2 --mtp-always --redundant 8
	unit same all want --world 4 --over tcp -- --mtp 1
}

@test "golden configurations: BF16 and FP8, softmax and sigmoid, group-limited: the same answers" {
	local name model
	for name in v3-tiny-fp8 v3-tiny v2lite-tiny v2-group-tiny v3-norope-tiny; do
		model=$(golden "$name")
		(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$((MANY / 2))" --plain) | "$PYTHON" "$UNIT" fit "$model" | "$PYTHON" "$DSF" requests >"$name"
		unit want "$name" "$name.want" --model "$model"
		unit same "$name" "$name.want" --model "$model" --world 3 -- --redundant 8
		unit same "$name" "$name.want" --model "$model" --world 8 --over tcp -- --redundant 32 --micro-batches 1
	done
}

@test "float32 arithmetic" {
	unit want all f32.want -- --arith float32
	unit same all f32.want --world 3 -- --arith float32 --redundant 5
}

@test "ds-prefill: the same KV and first tokens to the byte" {
	unit want all kv.want --program ds-prefill -- --mtp
	unit same all kv.want --program ds-prefill --world 4 -- --mtp --redundant 8
	unit same all kv.want --program ds-prefill --world 3 --over tcp -- --mtp --micro-batches 1 --chunk 64
}

@test "a batch that is larger than what is sent at once goes in rounds" {
	unit same all want --world 3 -- --dispatch-tokens 7
	unit same all want --world 2 --over tcp -- --dispatch-tokens 1 --max-batch 8
}

# The fault: a rank without tokens is not there, and all others wait for it.
@test "ranks with --input none, ranks whose input is empty, one that has everything" {
	unit same all want --world 4 --none 1 -- --redundant 8
	unit same all want --world 4 --none 0,2 --idle 3
	unit same all want --world 3 --none 1,2 --over tcp
	unit same all want --world 4 --idle 0,1,2
	unit same all want --world 1
}

@test "a slow link changes nothing but time" {
	unit same all want --world 2 -- --link-delay 200us --link-rate 100M
	unit same all want --world 2 --over tcp -- --link-delay 200us --link-rate 100M
}

@test "--dump and --trace in a unit: the same tensors; a span file for each rank" {
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix 9) >lines
	for r in 0 1; do
		awk -v r="$r" 'NR % 2 == r' lines | "$PYTHON" "$DSF" requests >"in.$r"
		limited ds-decode -m "$DS_MODEL" -j 1 -o "alone.$r" --dump '*' --dump-to "dump.alone.$r" "in.$r"
	done
	background ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank 0 --world 2 -i in.%r -o out.%r --dump '*' --dump-to dump.%r --trace trace.%r
	limited ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank 1 --world 2 -i in.%r -o out.%r --dump '*' --dump-to dump.%r --trace trace.%r
	wait "$BG"
	for r in 0 1; do
		limited ds-frame diff --tol 0 "dump.alone.$r" "dump.$r"
		"$PYTHON" -c '
import json, sys
spans = [e for e in json.load(open(sys.argv[1])) if e.get("ph") == "X"]
assert spans and all(e["pid"] == int(sys.argv[2]) for e in spans)
names = {e["name"] for e in spans}
assert {"DISPATCH", "COMBINE", "MLP", "ATTN-0"} <= names, names
' "trace.$r" "$r"
	done
}

@test "other than the others: model, world, number, rows at once, redundant experts: refused, the rank and both values named" {
	local other
	other=$(golden v3-tiny-fp8)
	pair() { # CODE TEXT OPTIONS-OF-RANK-1...: rank 0 waits, rank 1 comes; both say TEXT
		local code=$1 text=$2 first got=0
		shift 2
		rm -f u
		background ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank 0 --world 2 --input none --unit-timeout 20s
		first=$BG
		refused "$code" "$text" "$@" --unit unix:u --input none
		wait "$first" || got=$?
		check_refusal "$code" "$text" "$got" "$BG_ERR" 'the first'
	}
	pair 76 model ds-decode -m "$other" -j 1 --rank 1 --world 2
	pair 78 'for 2 ranks, rank 1 for 3' ds-decode -m "$DS_MODEL" -j 1 --rank 1 --world 3
	pair 78 'two ranks have the number 0' ds-decode -m "$DS_MODEL" -j 1 --rank 0 --world 2
	pair 76 dispatch-tokens ds-decode -m "$DS_MODEL" -j 1 --rank 1 --world 2 --dispatch-tokens 100
	pair 76 redundant ds-decode -m "$DS_MODEL" -j 1 --rank 1 --world 2 --redundant 4
	pair 76 transport ds-decode -m "$DS_MODEL" -j 1 --rank 1 --world 2 --transport tcp
	pair 76 role ds-prefill -m "$DS_MODEL" -j 1 --rank 1 --world 2
}

@test "options that make no unit are refused: no number, shared memory between ranks that meet at a TCP address" {
	refused 64 'use --rank N and --world N' ds-decode -m "$DS_MODEL" --unit unix:u --input none
	refused 64 'use --unit unix:PATH, or --transport tcp' ds-decode -m "$DS_MODEL" --unit tcp:127.0.0.1:0 --transport shm \
		--rank 0 --world 2 --input none
	limited ds-decode -m "$DS_MODEL" --unit unix:u --world 1 --input none -o out.%r # -o because all are given it
	[ ! -e out.0 ]
}

@test "ranks that meet at a unix socket share the CPUs, where nobody has bound them to some" {
	local cpus want first
	cpus=$(nproc)
	want=$cpus
	[ "$cpus" -lt "$(getconf _NPROCESSORS_ONLN)" ] || want=$((cpus > 2 ? cpus / 2 : 1))
	background ds-decode -v -m "$DS_MODEL" --unit unix:u --rank 0 --world 2 --input none
	first=$BG
	limited ds-decode -v -m "$DS_MODEL" --unit unix:u --rank 1 --world 2 --input none 2>said
	wait "$first"
	grep -Eq "kernels [a-z0-9]+, $want threads?," said
	grep -Eq "kernels [a-z0-9]+, $want threads?," "$BG_ERR"
}

@test "a rank that does not come is named after --unit-timeout" {
	local began first
	began=$(date +%s)
	background ds-decode -m "$DS_MODEL" --unit unix:u --rank 2 --world 4 --input none --unit-timeout 2s
	first=$BG
	refused 69 'rank' ds-decode -m "$DS_MODEL" --unit unix:u --rank 0 --world 4 --input none --unit-timeout 1s
	grep -q '1' "$BATS_TEST_TMPDIR"/err.*
	run -69 wait "$first"
	grep -Eq '1.*3|1 and 3|1, 3' "$BATS_TEST_TMPDIR"/err.*
	[ $(($(date +%s) - began)) -lt 10 ]
}

# The fault: "nobody to meet there: ", and no word of what is there instead.
@test "an address that something else holds: said after --unit-timeout" {
	local how
	for how in 'c.close()' 'c.send(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)' 'pass'; do
		rm -f u
		background "$PYTHON" -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind("u")
s.listen(50)
kept = []
while True:
    c, _ = s.accept()
    kept.append(c)
    try:
        exec(sys.argv[1])
    except OSError:
        pass' "$how"
		wait_socket u
		refused 69 'who is there does not answer as a rank does' ds-decode -m "$DS_MODEL" --unit unix:u --rank 1 --world 2 --input none --unit-timeout 1s
		kill "$BG"
	done
}

@test "a model without experts is refused; one whose layers have none, though it says how many, is not" {
	"$PYTHON" -c '
import json, sys
c = json.load(open(sys.argv[1]))
c.update(first_k_dense_replace=3, num_nextn_predict_layers=0, max_position_embeddings=1024)
json.dump(c, open("dense.json", "w"))
c.update(n_routed_experts=None, num_experts_per_tok=None)
json.dump(c, open("none.json", "w"))' "$DS_MODEL/config.json"
	ds-model random --like none.json -o none
	refused 78 "'none' has no experts" ds-decode -m none --unit unix:u --rank 0 --world 2 --input none
	ds-model random --like dense.json --tokenizer "$DS_MODEL" -o dense
	unit want all dense.want --model dense
	unit same all dense.want --model dense --world 2
}

@test "a TCP address beyond loopback needs --insecure" {
	refused 78 --insecure ds-decode -m "$DS_MODEL" --unit tcp:0.0.0.0:0 --rank 0 --world 1 --input none
}

@test "two units at once" {
	unit same all want --world 3 3>&- &
	one=$!
	unit same all want --world 4 --over tcp 3>&- &
	two=$!
	wait "$one"
	wait "$two"
}

@test "58 layers of 256 experts, 32 ranks with 9 each" {
	not_sanitized 'takes minutes'
	"$PYTHON" - <<-'END' >config.json
		import json
		print(json.dumps({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 128, "intermediate_size": 128,
		    "moe_intermediate_size": 128, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
		    "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 61, "first_k_dense_replace": 3, "moe_layer_freq": 1,
		    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc",
		    "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5, "vocab_size": 256, "max_position_embeddings": 1024,
		    "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
		    "num_nextn_predict_layers": 0, "torch_dtype": "bfloat16"}))
	END
	ds-model random --like config.json -o wide
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix 32 --plain) | "$PYTHON" "$UNIT" fit wide |
		"$PYTHON" -c '
import json, sys
for line in sys.stdin:
    r = json.loads(line)
    r["ids"], r["max_tokens"] = r["ids"][:20], min(r["max_tokens"], 6)
    print(json.dumps(r))' | "$PYTHON" "$DSF" requests >some
	unit want some some.want --model wide
	unit same some some.want --model wide --world 32 --limit 200 -- --redundant 32 --kv-memory 16M
}
