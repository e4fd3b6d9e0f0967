# Units of services: each rank serves clients of its own; idle ones; loads counted; plans taken while requests run; a rank that is lost.
load helper
load talk


setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	RANKS=() PIDS=()
}

teardown() {
	end_background
}

# serve_unit WORLD [OPTION...]: ranks that serve at d.R; their processes in PIDS (RANKS: what to wait for), their stderr in said.R.
serve_unit() {
	local world=$1 r
	shift
	for ((r = 0; r < world; r++)); do
		background sh -c 'exec "$@" 2>"said.$0"' "$r" ds-decode -v -m "$DS_MODEL" -j 1 --unit unix:u --rank "$r" --world "$world" -l unix:d.%r "$@"
		RANKS[r]=$BG
	done
	for ((r = 0; r < world; r++)); do
		wait_socket "d.$r"
		PIDS[r]=$(pgrep -P "${RANKS[r]}" ds-decode)
	done
}

end_unit() {
	kill -TERM "${RANKS[@]}"
	for r in "${RANKS[@]}"; do
		wait "$r"
	done
}

# question N
question() {
	echo "What is $1 + 977?" | ds-token -m "$DS_MODEL" encode --chat --max-tokens "${2:-60}"
}



# ticks PID: of CPU, user and system, so far.
ticks() {
	awk '{ print $14 + $15 }' "/proc/$1/stat"
}

@test "clients of every rank are answered as one process answers them; draining ranks leave one after the other" {
	serve_unit 3
	for r in 0 1 2; do
		echo "What is 34$r + 977?" | ds-token -m "$DS_MODEL" encode --chat -c "unix:d.$r" | ds-token -m "$DS_MODEL" decode >"got.$r" 3>&- &
		clients[r]=$!
	done
	for r in 0 1 2; do
		wait "${clients[r]}"
		echo "What is 34$r + 977?" | ds-token -m "$DS_MODEL" encode --chat | ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode >want
		cmp want "got.$r"
	done
	for r in 0 1 2; do # who is left goes on
		kill -TERM "${RANKS[r]}"
		wait "${RANKS[r]}"
		[ "$r" -eq 2 ] && continue
		echo "What is 342 + 977?" | ds-token -m "$DS_MODEL" encode --chat -c unix:d.2 | limited ds-token -m "$DS_MODEL" decode | cmp want -
	done
	run ! grep -h 'has gone; ' said.*
}

# The fault: the others' first step was waited for by a rank that slept without having said so.
@test "a request to a unit that has done nothing yet is answered at once" {
	local i
	for i in 1 2 3 4 5; do
		serve_unit 2 --transport "$([ $((i % 2)) -eq 0 ] && echo shm || echo tcp)"
		sleep 0.3
		echo "What is 5 + 977?" | timeout 5 ds-token -m "$DS_MODEL" encode --chat --max-tokens 3 -c unix:d.0 >answer
		end_unit
		rm d.* 2>/dev/null || true
	done
}

@test "a unit without requests uses no CPU" {
	serve_unit 4 --redundant 8
	sleep 1
	for pid in "${PIDS[@]}"; do
		before[pid]=$(ticks "$pid")
	done
	sleep 5
	for pid in "${PIDS[@]}"; do
		[ $(($(ticks "$pid") - before[pid])) -le 1 ] # of 10 ms, in 5 s
	done
	end_unit
}

@test "a long prompt of one rank does not hold up another's answer for longer than a chunk" {
	serve_unit 2 --chunk 64
	talk '
a, b = Talk("d.0"), Talk("d.1")
b.ask("short", prompt(20, 1), 40)
t = [time.monotonic()]
a.ask("long", prompt(3000, 2), 4)
gaps = []
for kind, _, meta in b.frames():
    t.append(time.monotonic())
    if kind == 6:
        break
b.end()
a.answer("long")
took = time.monotonic() - t[0]
worst = max(y - x for x, y in zip(t, t[1:]))
print(f"worst gap {worst * 1000:.0f} ms, the long one {took * 1000:.0f} ms")
assert worst < took / 5, (worst, took)'
	end_unit
}

# The fault: a client that waits for ever for a rank that is no more.
@test "the client of a rank that is killed gets what was generated, and 69; the others' clients get all" {
	local r got
	serve_unit 3 --redundant 8 --link-delay 1ms # or it would be over before we came to it
	for r in 0 1 2; do
		background sh -c 'echo "What is 34$0 + 977?" | exec ds-token -m "$DS_MODEL" encode --chat --ignore-eos --max-tokens 300 -c "unix:d.$0" >"out.$0"' "$r"
		clients[r]=$BG
	done
	until [ "$(wc -c <out.1)" -gt 5000 ]; do
		sleep 0.05
	done
	kill -KILL "${PIDS[1]}"
	for r in 0 1 2; do
		got=0
		wait "${clients[r]}" || got=$?
		echo "What is 34$r + 977?" | ds-token -m "$DS_MODEL" encode --chat --ignore-eos --max-tokens 300 | ds-decode -m "$DS_MODEL" |
			ds-token -m "$DS_MODEL" decode >"want.$r"
		if [ "$r" -eq 1 ]; then
			[ "$got" -eq 69 ]
			run -69 limited ds-token -m "$DS_MODEL" decode out.1
			[ "${#output}" -gt 40 ]
		else
			[ "$got" -eq 0 ]
			ds-token -m "$DS_MODEL" decode "out.$r" | cmp "want.$r" -
			grep -q 'unit: rank 1 has gone.*; 2 ranks go on, .* ms' "said.$r"
		fi
	done
	kill -TERM "${RANKS[0]}" "${RANKS[2]}"
	wait "${RANKS[0]}"
	wait "${RANKS[2]}"
}

# ---- signals in the middle of a step ----

# ask_long: a client of rank 0, $CLIENT, that is answered into the file `answer` for long.
ask_long() {
	rm -f answer
	background sh -c 'echo "1 + 1" | exec ds-token -m "$DS_MODEL" encode --ignore-eos --max-tokens 4000 -c unix:d.0 >answer'
	CLIENT=$BG
}

# answered BYTES
answered() {
	until [ -e answer ] && [ "$(wc -c <answer)" -gt "$1" ]; do
		sleep 0.05
	done
}

# signalled SIGNAL MS: rank 0 ends with 75 within that time, its client is told that it has gone.
signalled() {
	local got=0 began took
	began=$(date +%s%N)
	kill "-$1" "${PIDS[0]}"
	wait "${RANKS[0]}" || got=$?
	took=$((($(date +%s%N) - began) / 1000000))
	echo "rank 0: $got after $took ms" >&2
	[ "$got" -eq 75 ]
	[ "$took" -lt "$2" ]
	got=0
	wait "$CLIENT" || got=$?
	[ "$got" -eq 69 ]
}

# go_on: the stopped rank 1 serves without rank 0.
go_on() {
	kill -CONT "${PIDS[1]}"
	echo '1 + 1' | timeout 20 ds-token -m "$DS_MODEL" encode --max-tokens 3 -c unix:d.1 | ds-token -m "$DS_MODEL" decode
	kill -TERM "${PIDS[1]}"
	wait "${RANKS[1]}"
}

# The fault: signals were seen to between steps only, and a step waits for the rank that is stopped.
@test "a rank that waits for one that is stopped ends seconds after --drain-timeout" {
	local signal
	for signal in TERM INT; do
		serve_unit 2 --peer-timeout 50s --drain-timeout 1s --dump final --dump-to dump.%r
		ask_long
		answered 5000
		compgen -G 'dump.0*.tmp'
		kill -STOP "${PIDS[1]}"
		sleep 0.2
		signalled "$signal" 10000
		[ "$(tail -n 1 said.0)" = 'ds-decode: stopped: a step did not end within --drain-timeout' ]
		run ! compgen -G 'dump.0*' # what is not complete goes
		go_on
		rm dump.1
	done
}

@test "a second signal ends a rank that waits for one that is stopped; twins are one signal" {
	serve_unit 2 --peer-timeout 50s --drain-timeout 50s --log-format json
	ask_long
	answered 5000
	kill -STOP "${PIDS[1]}"
	kill -TERM "${PIDS[0]}"
	kill -INT "${PIDS[0]}"
	sleep 2
	kill -0 "${PIDS[0]}"
	signalled INT 8000
	tail -n 1 said.0 | jq -e '.level == "error" and .message == "stopped by a second signal, in the middle of a step"'
	go_on
}

@test "draining where every step takes seconds ends seconds after --drain-timeout" {
	serve_unit 2 --link-delay 3s --drain-timeout 1s --micro-batches 1 --peer-timeout 50s
	ask_long
	answered 0 # a hello
	sleep 1
	signalled TERM 10000
	[ "$(tail -n 1 said.0)" = 'ds-decode: stopped: a step did not end within --drain-timeout' ]
	kill -KILL "${PIDS[1]}"
}

@test "a rank that is a filter dies of a signal at once, wherever it is" {
	local r status=0
	echo '1 + 1' | ds-token -m "$DS_MODEL" encode --ignore-eos --max-tokens 4000 >long
	for r in 0 1; do
		background ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank "$r" --world 2 --peer-timeout 50s -i long -o out.%r
		RANKS[r]=$BG
	done
	until compgen -G 'out.0*' && compgen -G 'out.1*'; do
		sleep 0.05
	done
	for r in 0 1; do
		PIDS[r]=$(pgrep -P "${RANKS[r]}" ds-decode)
	done
	kill -STOP "${PIDS[1]}"
	sleep 0.2
	kill -TERM "${PIDS[0]}"
	wait "${RANKS[0]}" || status=$?
	[ "$status" -eq 143 ]
	run ! compgen -G 'out.0*'
	kill -KILL "${PIDS[1]}"
}

# ---- loads and plans ----

@test "load frames count every token of every expert, once; over all ranks as many as were computed" {
	local r p
	(cd "$DS_ROOT" && "$PYTHON" tests/bats/answers.py mix 24) >lines
	for r in 0 1 2; do
		awk -v r="$r" 'NR % 3 == r' lines | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >"in.$r"
	done
	for micro in 1 2; do
		pids=
		for r in 0 1 2; do
			background ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank "$r" --world 3 -i in.%r -o out.%r -f --redundant 4 --loads-to loads.%r \
				--load-interval 50ms --micro-batches "$micro" --dispatch-tokens 100
			pids="$pids $BG"
		done
		for p in $pids; do
			wait "$p"
		done
		# tiny-r1: four experts a token, two layers with experts
		"$PYTHON" "$DS_ROOT/tests/bats/unit.py" loads 4 out.0 out.1 out.2 -- loads.0 loads.1 loads.2 >told
		read -r frames _ <told
		[ "$frames" -gt 3 ] # more than the last ones
		[ "$(sed 's/.* //' told)" -gt 1000 ] # bytes between any two
	done
	ds-frame check loads.0
}

@test "--loads: the frames stand in the output, which ds-token reads as ever" {
	for r in 0 1; do
		question "$r" >"in.$r"
	done
	background ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank 0 --world 2 -i in.%r -o out.%r --loads --load-interval 1ms
	limited ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank 1 --world 2 -i in.%r -o out.%r --loads --load-interval 1ms
	wait "$BG"
	[ "$("$PYTHON" "$DS_ROOT/tests/bats/dsf.py" types out.0 | grep -c '^load$')" -ge 2 ]
	[ "$("$PYTHON" "$DS_ROOT/tests/bats/dsf.py" types out.0 | tail -n 2 | head -n 1)" = load ]
	"$PYTHON" "$DS_ROOT/tests/bats/unit.py" loads 4 out.0 out.1 -- out.0 out.1
	ds-token -m "$DS_MODEL" decode out.0 >said
	question 0 | limited ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode | cmp - said
	refused 64 'use --loads-to' ds-decode -m "$DS_MODEL" --unit unix:u --world 1 -l unix:d --loads
	refused 64 'use --loads-to' ds-decode -m "$DS_MODEL" --unit unix:u --world 1 --input none --loads
}

@test "plans that come in at any rank while requests run: the same answers, and the pause is told" {
	(cd "$DS_ROOT" && "$PYTHON" tests/bats/answers.py mix 32 --long) | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >all
	"$PYTHON" "$DS_ROOT/tests/bats/unit.py" want all want
	for shape in '--world 2' '--world 3 --over tcp' '--world 4'; do
		# shellcheck disable=SC2086 # a list
		"$PYTHON" "$DS_ROOT/tests/bats/unit.py" same all want --plans 6 $shape -- --redundant 8
	done
}

@test "a plan for another model or world is refused by name, and nothing of it is left" {
	serve_unit 2
	talk '
import random
import unit
for number, world, model in ((1, 3, "'"$DS_MODEL"'"), (2, 2, "'"$(golden v3-tiny-fp8)"'")):
    t = Talk("d.0")
    f = unit.plan(random.Random(1), number, model, world)
    t.w.write(f[0], 0, f[4], f[5])
    t.f.flush()
    told = [meta for kind, _, meta in t.frames() if kind == 7]
    assert told and told[0]["code"] == 76, told
t = Talk("d.1")
f = unit.plan(random.Random(1), 3, "'"$DS_MODEL"'", 2)
t.w.write(f[0], 0, f[4], f[5])
t.ask("a", prompt(30), 50)
tokens, meta = t.answer("a")
assert len(tokens[0]) == 50
for number in (3, 1): # not later than what is in effect
    f = unit.plan(random.Random(2), number, "'"$DS_MODEL"'", 2)
    t.w.write(f[0], 0, f[4], f[5])
t.ask("b", prompt(30), 50)
assert t.answer("b")[0] == tokens'
	grep -q 'plan 3 is in effect; steps paused for [0-9.]* ms' said.1
	[ "$(grep -c 'plan 3 is in effect; ' said.0)" -eq 1 ]
	grep -q "plan 3 is left out: plan 3 is in effect; give a later plan a greater number" said.1
	grep -q "plan 1 is left out: plan 3 is in effect; give a later plan a greater number" said.1
	for r in 0 1; do
		kill -USR1 "${PIDS[r]}"
		until grep -q '"unit":' "said.$r"; do sleep 0.05; done
		sed -n 's/^{"requests"/&/p' "said.$r" | jq -e --argjson r "$r" '.unit | .rank == $r and .world == 2 and .transport == "shm" and
			.members == [0, 1] and .epoch == 1 and .plan == 3 and .losses == 0 and .joins == 0' >/dev/null
	done
	end_unit
}
