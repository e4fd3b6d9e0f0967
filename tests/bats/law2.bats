# The same request, the same bits: however its tokens were guessed, its prompt's KV was come by, and whoever shared its steps.  What is
# compared is all that answers say but times: token ids, log-probabilities as exact numbers, choices, finish reasons, usage.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
if [ -n "$DS_SANITIZE" ]; then MANY=6; else MANY=80; fi

# Requests of all kinds, their answers made one request at a time, every prompt computed from its beginning, nothing guessed; and the
# same for answers that run on.
setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	mix "$MANY" >requests
	mix "$MANY" --long >long
	decode --max-batch 1 --no-prefix-cache requests | table --no-hits - >want
	decode --max-batch 1 --no-prefix-cache long | table --no-hits - >want.long
	[ "$(grep -c ' done ' want)" -eq "$MANY" ]
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{requests,long,want,want.long} .
}

teardown() {
	end_background
}

# mix N [OPTION...]: a stream of N requests of all kinds.
mix() {
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$@") | "$PYTHON" "$DSF" requests
}

decode() {
	limited ds-decode -m "$DS_MODEL" "$@"
}

table() {
	"$PYTHON" "$ANSWERS" table "$@"
}

# The fault: draft and verify in different kernels give other tokens, or drafts that are never right.
@test "with MTP and without: 1, 2, 4 and 8 drafts, greedy and sampled, penalties, several choices, stop strings" {
	for n in 1 2 4 8; do
		decode --mtp "$n" --mtp-always requests >out 2>said
		table --no-hits out | cmp want -
		read -r drafted accepted _ < <("$PYTHON" "$ANSWERS" mtp out)
		[ "$accepted" -gt $((drafted / 5)) ]
		grep -q "mtp: $accepted of $drafted drafts accepted" said
	done
	decode --mtp 3 requests 2>/dev/null | table --no-hits - | cmp want - # switched off and on as it pays
}

@test "with MTP and without: hand-over from ds-prefill, with hidden states and MTP entries" {
	limited ds-prefill -m "$DS_MODEL" --mtp -o kv.mtp requests
	decode --mtp 2 --mtp-always kv.mtp 2>/dev/null >out
	table --no-hits out | cmp want -
	read -r drafted accepted _ < <("$PYTHON" "$ANSWERS" mtp out)
	[ "$accepted" -gt $((drafted / 3)) ]
	decode kv.mtp | table --no-hits - | cmp want - # a decode that does not speculate takes it, too
	limited ds-prefill -m "$DS_MODEL" -o kv.plain requests
	decode kv.plain | table --no-hits - | cmp want -
	refused 76 "give --mtp to ds-prefill, too" ds-decode -m "$DS_MODEL" --mtp 1 kv.plain
}

@test "a prefix taken from an earlier request's KV and one computed: the same answers, with MTP and without" {
	decode --no-prefix-cache requests >out
	table --no-hits out | cmp want -
	[ "$(table out | grep -c '"hit": 0,')" -eq "$MANY" ]
	for options in '--max-batch 4' '--max-batch 8 --kv-memory 900K' '--max-batch 4 --mtp 2 --mtp-always'; do
		# shellcheck disable=SC2086 # a list
		decode $options requests >out 2>/dev/null
		table --no-hits out | cmp want -
		[ "$(table out | grep -c '"hit": [1-9]')" -ge $((MANY / 16)) ]
	done
	# what was found and what was computed is the prompt
	table out | "$PYTHON" -c '
import json, sys
for line in sys.stdin:
    kind, text = line.split(" ", 2)[1:]
    u = json.loads(text).get("usage")
    if u:
        assert u["hit"] + u["miss"] == u["prompt"] and u["hit"] % 64 == 0 and u["hit"] < u["prompt"], u
'
}

# Prompts that part at, before and behind the borders of blocks, in an order in which each finds what others have left.
branches() {
	"$PYTHON" - "${DS_SANITIZE:+few}" <<-'END' | "$PYTHON" "$DSF" requests
		import json, sys
		ends = (64, 129) if sys.argv[1] else (64, 128, 192, 127, 129, 63, 65, 256)
		base = [(7 * t) % 1000 + 3 for t in range(400)]
		n = 0
		for again in range(2):
		    for at in ends:
		        for token in (5, 6):
		            for more in (1, 70, 140):
		                ids = base[:at] + [token] * more
		                print(json.dumps({"id": f"b{n}", "ids": ids, "max_tokens": 2}))
		                n += 1
		        print(json.dumps({"id": f"b{n}", "ids": base[:at], "max_tokens": 2}))
		        n += 1
	END
}

@test "a prefix taken and one computed: KV frames and hidden states equal to the byte, with MTP and without" {
	branches >prompts
	for mtp in '' --mtp; do
		for memory in 1G 700K; do
			# shellcheck disable=SC2086 # perhaps nothing
			limited ds-prefill -m "$DS_MODEL" $mtp --no-prefix-cache prompts >computed
			# shellcheck disable=SC2086 # perhaps nothing
			limited ds-prefill -m "$DS_MODEL" $mtp --max-batch 1 --batch-tokens 1 --kv-memory "$memory" prompts >found
			[ "$(ds-frame dump found | grep -c '"hit":[1-9]')" -gt $((MANY / 4)) ]
			"$PYTHON" "$ANSWERS" kv computed >kv.want
			"$PYTHON" "$ANSWERS" kv found >kv.got
			cmp kv.want kv.got
		done
	done
}

# The fault: a second turn pays for the first one's prompt again.
@test "the second turn of a dialogue finds the first one's prompt" {
	"$PYTHON" - <<-'END' | "$PYTHON" "$DSF" requests >turns
		import json
		first = [(11 * t) % 1000 + 3 for t in range(300)]
		print(json.dumps({"id": "turn1", "ids": first, "max_tokens": 40, "ignore_eos": True}))
		print(json.dumps({"id": "turn2", "ids": first + [9] * 100, "max_tokens": 3}))
	END
	decode --max-batch 1 turns >out
	table out | has '^turn2 .*"hit": 256, "miss": 144'
	limited ds-prefill -m "$DS_MODEL" --chunk 300 --batch-tokens 300 turns >kv
	[ "$(ds-frame dump kv | grep -c '"hit":256,"miss":144')" -eq 1 ]
}

# The fault: garbage whenever a prompt spans more than one forward pass.
@test "prompt chunks of 1, 7, 64 and 256 tokens, steps of few tokens, small batches: the same answers, with MTP and without" {
	for options in '--chunk 1 --batch-tokens 80' '--chunk 7 --max-batch 20' '--chunk 64 --batch-tokens 1' '--chunk 256 --max-batch 3' \
		'--chunk 7 --max-batch 20 --mtp 4 --mtp-always' '--chunk 256 --batch-tokens 1024 --mtp 1 --mtp-always'; do
		# shellcheck disable=SC2086 # a list
		decode $options requests 2>/dev/null | table --no-hits - | cmp want -
	done
}

@test "one thread and two, with MTP and without: the same answers" {
	for options in '-j 1' '-j 2' '-j 1 --mtp 2 --mtp-always' '-j 2 --mtp 2 --mtp-always'; do
		# shellcheck disable=SC2086 # a list
		decode $options requests 2>/dev/null | table --no-hits - | cmp want -
	done
}

# client N: sends requests N, N + 5, ... of the mix, a few at a time, and reads its answers.
client() {
	"$PYTHON" - "$DS_ROOT/tests/bats" "$1" <<-'END'
		import random, socket, sys, time
		sys.path.insert(0, sys.argv[1])
		import dsf
		which, rng = int(sys.argv[2]), random.Random(sys.argv[2])
		mine = [f for f in dsf.read_frames("long") if f[0] == 2][which::5]
		s = socket.socket(socket.AF_UNIX)
		s.settimeout(50)
		s.connect("d.sock")
		f = s.makefile("wb")
		w = dsf.Writer(f)
		w.hello()
		for kind, flags, stream, seq, meta, payload in mine:
		    meta.pop("_", None)
		    w.write(kind, stream, meta, payload)
		    if rng.random() < 0.4:
		        f.flush()
		        time.sleep(rng.random() * 0.05)
		w.end()
		f.flush()
		with open(f"out.{which}", "wb") as out:
		    while data := s.recv(1 << 16):
		        out.write(data)
	END
}

@test "requests of several clients that come and go in the middle of each other's answers: the same as alone" {
	for options in '--max-batch 8' '--max-batch 8 --mtp 2 --mtp-always --kv-memory 1M' '--kv-memory 900K --chunk 16'; do
		rm -f d.sock
		# shellcheck disable=SC2086 # a list
		background ds-decode -m "$DS_MODEL" -l unix:d.sock $options
		service=$BG
		wait_socket d.sock
		clients=
		for n in 0 1 2 3 4; do
			client "$n" 3>&- &
			clients="$clients $!"
		done
		for pid in $clients; do
			wait "$pid"
		done
		kill -TERM "$service"
		wait "$service"
		for n in 0 1 2 3 4; do
			table --no-hits "out.$n"
		done | sort >got
		sort want.long | cmp - got
	done
}
