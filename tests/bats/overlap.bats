# Two micro-batches: the published orders, seen in the traces of real runs over a slow network; and they change no bit.
load helper

CHECK=$DS_ROOT/tests/bats/overlap_check.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	for i in $(seq 12); do echo "What is $((i * 37)) + $((i * 19))?"; done >questions
	ds-token -m "$DS_MODEL" encode --chat --lines --max-tokens 12 questions >requests
}

teardown() {
	end_background
}

# both PROGRAM [OPTION...]: two ranks of a unit, each with the requests; traces trace.0, trace.1, output out.0, out.1.
both() {
	local r pids=()
	for r in 0 1; do
		background "$@" -m "$DS_MODEL" -j 1 --unit unix:unit --rank "$r" --world 2 --link-delay 3ms --trace "trace.$r" -i requests -o "out.$r"
		pids+=("$BG")
	done
	for r in "${pids[@]}"; do wait "$r"; done
}

@test "decode: SHARED + ATTN-0 under DISPATCH, ATTN-1 under COMBINE, the same answers" {
	both ds-decode --micro-batches 2
	ds-decode -m "$DS_MODEL" -o alone requests
	for r in 0 1; do
		ds-frame diff alone "out.$r"
		read -r layers hidden < <("$PYTHON" "$CHECK" decode "trace.$r")
		echo "rank $r: $layers layers, $hidden hidden"
		[ "$layers" -ge 8 ]
	done
}

@test "prefill: ATTN and SHARED of one micro-batch under DISPATCH of the other, the same KV" {
	both ds-prefill --micro-batches 2 --no-prefix-cache
	ds-prefill -m "$DS_MODEL" --no-prefix-cache -o alone requests
	for r in 0 1; do
		ds-frame diff alone "out.$r"
		read -r layers hidden < <("$PYTHON" "$CHECK" prefill "trace.$r")
		echo "rank $r: $layers layers, $hidden hidden"
		[ "$layers" -ge 1 ]
	done
}

@test "one micro-batch: no stage belongs to one of two" {
	both ds-decode --micro-batches 1
	run -1 grep -q micro_batch\":1 trace.0
	grep -q '"tid":2000,"name":"COMBINE"' trace.0
	run -1 grep -q '"tid":2001' trace.0
}
