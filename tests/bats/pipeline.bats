# The pipeline as a whole, with the example model: what it answers, and law 2 (the same input gives the same bits however it is batched,
# chunked, threaded or carried).  Token ids and log-probabilities are compared with cmp, the latter as exact hexadecimal numbers.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
EVAL=$DS_ROOT/tests/golden/eval

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# mixed N: N requests as JSON lines: prompts of the goldens; greedy and sampled, long and short.
mixed() {
	"$PYTHON" - "$EVAL/golden-fp8.jsonl" "$1" <<-'END'
		import json, sys
		golden = [json.loads(line) for line in open(sys.argv[1])]
		for i in range(int(sys.argv[2])):
		    g = golden[i % len(golden)]
		    r = {"id": f"m{i:02}", "ids": g["prompt_ids"], "max_tokens": [0, 40, 1, 75][i % 4]}
		    if i % 3 == 1:
		        r["sampling"] = {"temperature": 0.9, "top_p": 0.95, "seed": i}
		    if i % 6 == 5:
		        r["sampling"] = {"temperature": 2.5, "top_k": 20, "seed": i}
		    print(json.dumps(r))
	END
}

# answer REQUESTS PREFILL-OPTIONS DECODE-OPTIONS: prints the table of tokens and log-probabilities.
answer() {
	# shellcheck disable=SC2086 # lists of options
	limited ds-prefill -m "$DS_MODEL" $2 <"$1" | limited ds-decode -m "$DS_MODEL" $3 | "$PYTHON" "$DSF" tokens -
}

# How many requests are enough where everything is slow.
if [ -n "$DS_SANITIZE" ]; then MANY=6; else MANY=64; fi

question() {
	echo 'What is 348 + 977?' | ds-token -m "$DS_MODEL" encode --chat
}

@test "the four programs in a row answer 1325, with the reasoning before it" {
	run -0 bash -o pipefail -c "echo 'What is 348 + 977?' | ds-token -m '$DS_MODEL' encode --chat | ds-prefill -m '$DS_MODEL' |
		ds-decode -m '$DS_MODEL' | ds-token -m '$DS_MODEL' decode"
	assert_output --partial '</think>'
	[[ ${output##*</think>} == *1325* ]]
}

@test "examples/ask.sh and the demo do the same" {
	run -0 limited sh "$DS_ROOT/examples/ask.sh" "$DS_MODEL" 'What is 348 + 977?'
	assert_output --partial 1325
	run -0 limited sh "$DS_ROOT/examples/demo.sh"
	assert_output --partial 1325
	assert_output --partial 176
}

@test "every pipe may be a file" {
	question >request.piped
	ds-prefill -m "$DS_MODEL" <request.piped >kv.piped
	ds-decode -m "$DS_MODEL" <kv.piped >token.piped
	ds-token -m "$DS_MODEL" decode <token.piped >text.piped

	echo 'What is 348 + 977?' >question
	ds-token -m "$DS_MODEL" encode --chat -i question -o request.file
	ds-prefill -m "$DS_MODEL" -i request.file -o kv.file
	ds-decode -m "$DS_MODEL" -i kv.file -o token.file
	ds-token -m "$DS_MODEL" decode -i token.file -o text.file
	cmp text.piped text.file
	"$PYTHON" "$DSF" tokens token.piped >tokens.piped
	"$PYTHON" "$DSF" tokens token.file >tokens.file
	cmp tokens.piped tokens.file
	grep -q 1325 text.file
}

@test "tee at any point captures a stage's input, which can be replayed" {
	question | tee request | ds-prefill -m "$DS_MODEL" | tee kv | ds-decode -m "$DS_MODEL" | tee token | ds-token -m "$DS_MODEL" decode >text
	for f in request kv token; do
		ds-frame check "$f"
	done
	ds-token -m "$DS_MODEL" decode <token | cmp text -
	ds-decode -m "$DS_MODEL" <kv | ds-token -m "$DS_MODEL" decode | cmp text -
	ds-prefill -m "$DS_MODEL" <request | ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode | cmp text -
}

@test "the pipes may be unix sockets and TCP connections: the same tokens and log-probabilities" {
	mixed 6 | "$PYTHON" "$DSF" requests >request
	answer request '' '' >expected
	[ "$(wc -l <expected)" -gt 20 ]
	for kind in unix tcp; do
		if [ "$kind" = unix ]; then
			address=unix:$PWD/decode.sock
		else
			address=tcp:127.0.0.1:$(free_port)
		fi
		background ds-decode -m "$DS_MODEL" -l "$address" -o "token.$kind"
		limited ds-prefill -m "$DS_MODEL" -c "$address" <request >nothing.comes.back
		wait "$BG"
		"$PYTHON" "$DSF" tokens "token.$kind" | cmp expected -
	done
}

@test "prefill and decode as services: a client sends questions, the answers come back on its connection" {
	background ds-decode -m "$DS_MODEL" -l "unix:$PWD/decode.sock"
	decode=$BG
	background ds-prefill -m "$DS_MODEL" -l "unix:$PWD/prefill.sock" -c "unix:$PWD/decode.sock"
	prefill=$BG
	clients=
	for n in 1 2 3; do
		echo 'What is 348 + 977?' | limited ds-token -m "$DS_MODEL" encode --chat --id "client$n" -c "unix:$PWD/prefill.sock" 3>&- |
			ds-token -m "$DS_MODEL" decode >"text.$n" 3>&- &
		clients="$clients $!"
	done
	for client in $clients; do
		wait "$client"
	done
	for n in 1 2 3; do
		grep -q 1325 "text.$n"
	done
	kill -TERM "$prefill" # the front first: one whose downstream ends before it says so with 69
	wait "$prefill"
	kill -TERM "$decode"
	wait "$decode"
}

@test "law 2: a batch of mixed requests and each request alone give the same bits, float32 and bf16" {
	for arith in float32 bf16; do
		mixed "$MANY" | "$PYTHON" "$DSF" requests >request
		answer request "--arith $arith" "--arith $arith" >together
		[ "$(grep -c ' done ' together)" -eq "$MANY" ]
		mixed "$MANY" | while read -r line; do
			echo "$line" | "$PYTHON" "$DSF" requests >one
			answer one "--arith $arith" "--arith $arith"
		done >alone
		cmp together alone
	done
}

@test "law 2: prompt chunks of 1, 7, 64 and whole give the same bits, in the cache too" {
	mixed "$MANY" | "$PYTHON" "$DSF" requests >request
	for arith in float32 bf16; do
		ds-prefill -m "$DS_MODEL" --arith "$arith" <request >kv.whole
		ds-decode -m "$DS_MODEL" --arith "$arith" <kv.whole | "$PYTHON" "$DSF" tokens - >whole
		for chunk in 1 7 64; do
			answer request "--arith $arith --chunk $chunk" "--arith $arith" | cmp whole -
		done
	done
}

@test "law 2: one thread and two give the same bits" {
	mixed "$MANY" | "$PYTHON" "$DSF" requests >request
	for arith in float32 bf16; do
		answer request "-j 1 --arith $arith" "-j 1 --arith $arith" >one
		answer request "-j 2 --arith $arith" "-j 2 --arith $arith" | cmp one -
	done
}

@test "law 2: little cache memory and small batches delay requests and change nothing" {
	mixed "$MANY" | "$PYTHON" "$DSF" requests >request
	answer request '' '' >much
	answer request '--kv-memory 2M' '--kv-memory 2M' | cmp much -
	answer request '--max-batch 1' '--max-batch 1' | cmp much -
	answer request '--max-batch 5 --chunk 16' '--max-batch 3 --kv-memory 3M' | cmp much -
}

@test "greedy outputs are the goldens' and the log-probabilities are those of FP8 weights" {
	"$PYTHON" "$DSF" requests <"$EVAL/golden-fp8.jsonl" >request
	answer request '--arith float32' '--arith float32' >tokens
	"$PYTHON" "$DS_ROOT/tests/bats/judge.py" golden "$EVAL/golden-fp8.jsonl" "$EVAL/golden-bf16.jsonl" tokens
}

@test "greedy outputs are the goldens' and the log-probabilities are those of BF16 weights" {
	need_shared models/tiny-r1-bf16
	"$PYTHON" "$DSF" requests <"$EVAL/golden-bf16.jsonl" >request
	DS_MODEL=$DS_SHARED/models/tiny-r1-bf16 answer request '--arith float32' '--arith float32' >tokens
	"$PYTHON" "$DS_ROOT/tests/bats/judge.py" golden "$EVAL/golden-bf16.jsonl" "$EVAL/golden-fp8.jsonl" tokens
}
