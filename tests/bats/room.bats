# KV that arrives while there is no room: its senders wait, memory stays within limits, nothing stands still, and all answers are those of
# each request alone.
load helper
load talk

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
CLIENTS=$DS_ROOT/tests/bats/kv_clients.py
MANY=30
export LIMIT=120

# in/rN: one request of 20 blocks each, as ds-prefill hands it over; alone: their answers; requests: without KV.
setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	mkdir in
	for i in $(seq $MANY); do
		echo "{\"id\": \"r$i\", \"ids\": [$("$PYTHON" -c "print(*((7 * t + 13 * $i) % 1000 + 3 for t in range(1270)), sep=', ')")], \"max_tokens\": $((20 + i)), \"ignore_eos\": true, \"n\": $((i % 3 + 1)), \"sampling\": {\"temperature\": 1.0, \"seed\": $i}}"
	done | "$PYTHON" "$DSF" requests >requests
	limited ds-prefill -m "$DS_MODEL" requests >kv
	limited ds-decode -m "$DS_MODEL" kv | "$PYTHON" "$ANSWERS" table --no-hits - >alone
	"$PYTHON" "$CLIENTS" split kv in
	rm kv
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{requests,in,alone} .
	mkdir out
}

teardown() {
	end_background
}

clients() {
	limited "$PYTHON" "$CLIENTS" "$@"
}

# answers FILE...: of these streams, as in `alone`
answers() {
	for f; do
		"$PYTHON" "$ANSWERS" table --no-hits "$f"
	done
}

# some NAME...: their part of `alone`
some() {
	for r; do
		grep "^$r " alone
	done
}

# small KB: the service's memory grew by less since `before`
small() {
	local now
	now=$("$PYTHON" "$CLIENTS" growth "$PID")
	echo "peak $now kB, $before before" >&2
	[ $((now - before)) -lt "$1" ]
}

# All of it is 37 MB; the pool is 2.4 MB.
@test "requests with KV through a small pool, each on its connection: memory is bounded, answers are those of each alone" {
	not_sanitized 'its memory is another'
	for options in '--max-batch 64' '--max-batch 3'; do
		rm -rf d.sock out
		mkdir out
		# shellcheck disable=SC2086 # a list
		serve --kv-memory $((40 * BLOCK)) $options
		clients mixed warm in/r1
		before=$("$PYTHON" "$CLIENTS" growth "$PID")
		clients all in out
		small 20000
		# shellcheck disable=SC2046 # names
		answers $(printf 'out/r%d ' $(seq $MANY)) >got
		# shellcheck disable=SC2046 # names
		some $(printf 'r%d ' $(seq $MANY)) | cmp got -
		stop
	done
}

@test "the same from one ds-prefill" {
	not_sanitized 'its memory is another'
	serve --kv-memory $((40 * BLOCK))
	clients mixed warm in/r1
	before=$("$PYTHON" "$CLIENTS" growth "$PID")
	limited ds-prefill -m "$DS_MODEL" -c unix:d.sock requests >all
	small 20000
	answers all | cmp - alone
	stop
	limited ds-prefill -m "$DS_MODEL" requests | limited ds-decode -m "$DS_MODEL" --kv-memory $((22 * BLOCK)) >all
	answers all | cmp - alone
}

@test "KV of two requests in turns on one connection, beside others" {
	serve --kv-memory $((35 * BLOCK)) # and as much of ordinary memory: room for all
	clients mixed out/mixed in/r1 in/r2 3>&- &
	other=$!
	clients mixed out/r3 in/r3
	wait $other
	answers out/mixed | sort >got
	some r1 r2 | sort | diff got - >&2
	answers out/r3 >got
	some r3 | cmp got -
	stop
}

# Six of 20 blocks in turns, a pool of 22: they cannot all be held.  Some are told so, the others are answered; nothing stands still.
@test "KV of many requests in turns on one connection: what cannot be held fails, retryable, the others are answered" {
	serve --kv-memory $((22 * BLOCK))
	clients mixed out/mixed in/r1 in/r2 in/r3 in/r4 in/r5 in/r6
	"$PYTHON" - "$DS_ROOT/tests/bats" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		import dsf
		ends = {}
		for kind, _, stream, _, meta, _ in dsf.read_frames("out/mixed"):
		    if kind in (6, 7):
		        assert meta["id"] not in ends
		        ends[meta["id"]] = (kind, meta.get("code"), meta.get("retryable"))
		assert sorted(ends) == ["r%d" % i for i in range(1, 7)], ends
		good = [i for i, e in ends.items() if e[0] == 6]
		assert good and set(e for e in ends.values() if e[0] == 7) == {(7, 75, True)}, ends
		open("good", "w").write(" ".join(sorted(good)))
	END
	# shellcheck disable=SC2046 # names
	some $(cat good) >want
	answers out/mixed | grep -v ' error ' | cmp - want
	clients mixed out/r7 in/r7
	answers out/r7 >got
	some r7 | cmp got -
	stop
}

@test "a client that breaks off is named in one line, with what became of its requests" {
	serve --peer-timeout 1s
	limited "$PYTHON" - "$DS_ROOT/tests/bats" <<-'END'
		import sys, time
		sys.path.insert(0, sys.argv[1])
		from talk import Talk
		def part(name, *asked):
		    t = Talk("d.sock")
		    for a in asked:
		        t.ask(a, [5] * 9, 3000)
		    for kind, *_ in t.frames() if asked else []:
		        if kind == 5:
		            break
		    return t
		def cut(t):  # in the middle of a head
		    t.f.write(b"\x9a\xa4DSF1")
		    t.f.flush()
		    t.s.shutdown(1)
		    for _ in t.frames():
		        pass
		cut(part(1))
		cut(part(2, "a", "b"))
		t = part(3, "c")
		t.f.close()
		t.s.close()
		time.sleep(1)
		t = Talk("d.sock")
		t.ask("last", [7] * 9, 3)
		assert len(t.answer("last")[0][0]) == 3
		t.end()
	END
	run grep -c . "$BG_ERR"
	cat "$BG_ERR" >&2
	[ "$output" -eq 3 ]
	grep -q "^ds-decode: 'unix:d.sock client 1': frame 1, .*truncated: input ends within a frame's head$" "$BG_ERR"
	grep -q "^ds-decode: 'unix:d.sock client 2': frame 3, .*truncated: input ends within a frame's head; 2 requests of it are dropped$" "$BG_ERR"
	# A connection that is closed shows when it is read or when it is written to, whichever comes first.
	grep -qE "^ds-decode: 'unix:d.sock client 3'( has gone:|: frame .*truncated: input ends after .*;) 1 request of it is dropped$" \
		"$BG_ERR"
	kill -TERM "$SERVICE"
	wait "$SERVICE" || [ $? -eq 65 ]
}

@test "clients killed in the middle of their KV leave nothing behind, those that wait for room go on" {
	serve --kv-memory $((22 * BLOCK))
	cut=
	for share in 0.3 0.9 0.5 0.99; do
		for i in 8 9 10; do
			limited "$PYTHON" "$CLIENTS" cut in/r$i $share >/dev/null 2>&1 3>&- &
			cut="$cut $!"
		done
	done
	mkdir few
	cp in/r1 in/r2 in/r3 few
	clients all few out
	for i in $cut; do
		wait "$i" || [ $? -eq 137 ]
	done
	answers out/r1 out/r2 out/r3 >got
	some r1 r2 r3 | cmp got -
	kill -USR1 "$PID"
	for _ in $(seq 100); do
		grep -q kv_blocks_outside "$BG_ERR" && break
		sleep 0.05
	done
	grep kv_blocks_outside "$BG_ERR" | "$PYTHON" -c '
import json, sys
s = json.loads(sys.stdin.readlines()[-1])
assert [s[k] for k in ("requests", "arriving", "parked", "kv_blocks_used", "kv_blocks_outside", "unread")] == [0] * 6, s
'
	stop
}

# Three requests have come in part, take all the room and are silent; nothing runs.
@test "who waits for room hears every few seconds that the service lives, though nothing goes on" {
	serve --kv-memory $((22 * BLOCK))
	limited "$PYTHON" - "$DS_ROOT/tests/bats" 3>&- <<-'END' &
		import sys, time
		sys.path.insert(0, sys.argv[1])
		import kv_clients
		data = [open("in/r%d" % i, "rb").read() for i in (1, 2, 3)]
		parts = [kv_clients.connect() for _ in data]
		for s, d in zip(parts, data):
		    s.sendall(d[:1000000])
		open("held", "w")
		time.sleep(11)
		for s, d in zip(parts, data):
		    s.sendall(d[1000000:])
		for s in parts:
		    s.settimeout(60)
		    while s.recv(1 << 16):
		        pass
	END
	parts=$!
	for _ in $(seq 200); do
		[ ! -e held ] || break
		sleep 0.05
	done
	clients mixed out/r4 in/r4 3>&- &
	other=$!
	"$PYTHON" - "$DS_ROOT/tests/bats" requests >r5 <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		import dsf
		out = dsf.Writer(sys.stdout.buffer)
		for kind, flags, stream, _, meta, payload in dsf.read_frames(sys.argv[2]):
		    if kind == 15:
		        out.end()
		    elif kind == 1 or meta["id"] == "r5":
		        out.write(kind, stream, meta, payload, flags)
	END
	limited ds-prefill -m "$DS_MODEL" --peer-timeout 5s -c unix:d.sock r5 -o out/r5
	wait $other
	wait $parts
	answers out/r4 out/r5 >got
	some r4 r5 | cmp got -
	[ "$("$PYTHON" "$DSF" types out/r4 | grep -c '^stat$')" -ge 2 ]
	stop
}
