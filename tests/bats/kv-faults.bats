# A store of KV blocks that is wrong, slow, silent or damaged: ds-prefill and ds-decode answer as without it, in bounded time.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
TALK=$DS_ROOT/tests/bats/kv_talk.py
WRONG=$DS_ROOT/tests/bats/kv_wrong.py
if [ -n "$DS_SANITIZE" ]; then MANY=8; else MANY=40; fi

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY") | "$PYTHON" "$DSF" requests >mix
	limited ds-prefill -m "$DS_MODEL" --no-prefix-cache mix | "$PYTHON" "$TALK" handed /dev/stdin >mix.want
	limited ds-decode -m "$DS_MODEL" --no-prefix-cache mix | "$PYTHON" "$ANSWERS" table --no-hits - >answers.want
	limited ds-prefill -m "$DS_MODEL" --no-prefix-cache --kv dir:store mix >/dev/null
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{mix,mix.want,answers.want} .
	cp -r "$BATS_FILE_TMPDIR/store" .
}

teardown() {
	end_background
}

# wrong MODE [ARGUMENT...]: such a store at wrong.sock.
wrong() {
	rm -f wrong.sock
	background "$PYTHON" "$WRONG" wrong.sock "$@"
	wait_socket wrong.sock
}

# store: a ds-kvstore at kv.sock on the directory of all blocks.
store() {
	background ds-kvstore -l unix:kv.sock --dir store
	wait_socket kv.sock
}

# same [OPTION...]: both programs answer as wanted; stderr in said.
same() {
	limited ds-prefill -m "$DS_MODEL" "$@" mix >kv 2>said || return 1
	"$PYTHON" "$TALK" handed kv | cmp mix.want - || return 1
	limited ds-decode -m "$DS_MODEL" "$@" mix >answers 2>>said || return 1
	"$PYTHON" "$ANSWERS" table --no-hits answers | cmp answers.want -
}

@test "nobody there, silence, a connection that closes, noise: the same answers, one line, --kv-timeout at most" {
	same --kv unix:nobody.sock
	[ "$(grep -c "'unix:nobody.sock' is lost" said)" -eq 2 ] # of each program
	for mode in silent closing noise; do
		wrong "$mode"
		begin=$(date +%s%N)
		same --kv unix:wrong.sock --kv-timeout 300ms
		[ -n "$DS_SANITIZE" ] || [ $((($(date +%s%N) - begin) / 1000000)) -lt 20000 ] # each request its own: more
		[ "$(grep -c "'unix:wrong.sock' is lost" said)" -eq 2 ]
		[ "$(wc -l <said)" -eq 2 ]
		kill "$BG"
	done
}

# The fault: both started together, the first run computed all without the store and wrote nothing to it.
@test "a store that is started just after its client: the first run writes to it, the second hits" {
	for program in ds-prefill ds-decode; do
		rm -rf late kv.sock
		mkdir late
		(sleep 0.3 && exec timeout "$LIMIT" ds-kvstore -l unix:kv.sock --dir late) 2>/dev/null 3>&- &
		pid=$!
		limited "$program" -m "$DS_MODEL" --kv unix:kv.sock --kv-timeout 10s mix >/dev/null 2>said
		[ ! -s said ]
		limited ds-prefill -m "$DS_MODEL" --kv unix:kv.sock mix >kv
		"$PYTHON" "$TALK" hits kv | awk '$3 != int(($2 - 1) / 64) * 64 { bad = 1 } END { exit bad }'
		kill "$pid"
		wait "$pid"
	done
}

@test "blocks that are still to be written at the end are offered once more, to a store that has come meanwhile" {
	mkdir late
	mkfifo go
	(read -r _ <go && exec timeout "$LIMIT" ds-kvstore -l unix:kv.sock --dir late) 2>/dev/null 3>&- &
	pid=$!
	# the input's end comes when the store is there, and long before it is tried again
	(cat mix && sleep 1.7 && echo >go && sleep 0.5) | limited ds-prefill -m "$DS_MODEL" --kv unix:kv.sock --kv-timeout 50ms >/dev/null
	limited ds-prefill -m "$DS_MODEL" --kv unix:kv.sock mix >kv
	"$PYTHON" "$TALK" hits kv | awk '$3 != int(($2 - 1) / 64) * 64 { bad = 1 } END { exit bad }'
	kill "$pid"
	wait "$pid"
}

# within MS COMMAND...: it takes no longer, whatever it exits with.
within() {
	local begin ms=$1
	shift
	begin=$(date +%s%N)
	"$@" >/dev/null 2>&1 || true
	[ $((($(date +%s%N) - begin) / 1000000)) -lt "$ms" ]
}

# The fault: memory that a fetch still held which had just been given up; no room, nothing to do: "in part only".
@test "a prompt that needs all memory waits for what its own fetch holds, after that was given up" {
	"$PYTHON" -c "import json; print(json.dumps({'id': 'all', 'ids': [7 * t % 900 + 3 for t in range(382)], 'max_tokens': 2}))" |
		"$PYTHON" "$DSF" requests >all
	limited ds-prefill -m "$DS_MODEL" all | "$PYTHON" "$TALK" handed /dev/stdin >all.want
	limited ds-decode -m "$DS_MODEL" all | "$PYTHON" "$ANSWERS" table --no-hits - >all.answer
	limited ds-prefill -m "$DS_MODEL" --kv dir:store all >/dev/null
	store
	wrong stops kv.sock 20000
	MOST=(--kv "unix:wrong.sock?bytes" --kv-timeout 500ms --kv-memory 400K)
	for cache in "" --no-prefix-cache; do
		limited ds-prefill -m "$DS_MODEL" "${MOST[@]}" $cache all >kv
		"$PYTHON" "$TALK" handed kv | cmp all.want -
		limited ds-decode -m "$DS_MODEL" "${MOST[@]}" $cache all >answers
		"$PYTHON" "$ANSWERS" table --no-hits answers | cmp all.answer -
		for program in ds-prefill ds-decode; do
			background "$program" -m "$DS_MODEL" -l unix:c.sock "${MOST[@]}" $cache
			wait_socket c.sock
			limited "$PYTHON" "$TALK" send c.sock <all >got
			kill "$BG"
			wait "$BG"
			if [ "$program" = ds-prefill ]; then
				"$PYTHON" "$TALK" handed got | cmp all.want -
			else
				"$PYTHON" "$ANSWERS" table --no-hits got | cmp all.answer -
			fi
		done
	done
}

# The fault: an end waited for the call of the store that went on, and for the next one.
@test "an end waits for no store that is silent: a second signal at once, a filter's after --kv-timeout" {
	wrong silent
	for program in ds-prefill ds-decode; do
		background "$program" -m "$DS_MODEL" -l unix:c.sock --kv unix:wrong.sock --kv-timeout 30s
		service=$BG
		wait_socket c.sock
		background bash -c "\"$PYTHON\" \"$TALK\" send c.sock <mix >sent"
		sleep 1.5
		kill "$service"
		sleep 0.3
		kill "$service"
		within 5000 wait "$service"
		rm -f c.sock
		within 5500 limited "$program" -m "$DS_MODEL" --kv unix:wrong.sock --kv-timeout 3s mix
	done
}

# The fault: the reader of a pipe saw its end when the last block was written.
@test "who reads the output does not wait for a store that takes blocks slowly" {
	for program in ds-prefill ds-decode; do
		rm -rf empty
		mkdir empty
		background ds-kvstore -l unix:kv.sock --dir empty
		wait_socket kv.sock
		[ "$program" = ds-prefill ] && wrong takes kv.sock 300000 || wrong takes kv.sock 100000
		"$PYTHON" - "$program" -m "$DS_MODEL" --no-prefix-cache --kv "unix:wrong.sock?bytes" --kv-timeout 9s mix <<-'END'
			import subprocess, sys, time
			with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE) as p:
			    p.stdout.read()
			    end = time.monotonic()
			    p.wait()
			    print("later by", time.monotonic() - end)
			    sys.exit(p.returncode or time.monotonic() - end < 1)
		END
		rm kv.sock
	done
}

# The fault: an error for each frame, nine for one request.
@test "a store's address where a stage's belongs: one line, 76" {
	store
	wired() {
		status=0
		limited "$@" >out 2>said || status=$?
		[ "$status" -eq 76 ]
		[ "$(wc -l <said)" -eq 1 ]
		has "is no stage of a pipeline, but ds-kvstore (role 'store')" <said
	}
	wired ds-prefill -m "$DS_MODEL" -c unix:kv.sock mix
	wired ds-token -m "$DS_MODEL" encode -c unix:kv.sock <<<"What is 348 + 977?"
	limited ds-kvstore export store >exported
	wired ds-prefill -m "$DS_MODEL" exported
	wired ds-decode -m "$DS_MODEL" exported
}

@test "bits of what comes from the store turned on the way: the same answers" {
	store
	wrong mixed kv.sock
	for _ in 1 2 3; do
		same --kv "unix:wrong.sock?bytes" --kv-timeout 2s --no-prefix-cache
	done
}

@test "a slow store: a request pays --kv-timeout at most, takes what came in time, and the answers are the same" {
	store
	wrong slow kv.sock 600000
	same --kv "unix:wrong.sock?bytes" --kv-timeout 1s --no-prefix-cache
	"$PYTHON" "$TALK" hits kv >hits
	[ "$(awk '{ n += $3 } END { print n }' hits)" -gt 0 ]
}

@test "bits turned in the segment files, the files cut, or gone: the same answers, and the next run has all again" {
	for seed in 1 2 3; do
		rm -rf store
		cp -r "$BATS_FILE_TMPDIR/store" .
		"$PYTHON" "$TALK" flip 20 "$seed" store/*.seg
		same --kv dir:store --no-prefix-cache
	done
	for f in store/*.seg; do
		truncate -s $(($(wc -c <"$f") / 2)) "$f"
	done
	same --kv dir:store --no-prefix-cache
	rm -f store/*.seg
	same --kv dir:store --no-prefix-cache
	same --kv dir:store --no-prefix-cache
	"$PYTHON" "$TALK" hits kv | awk '$3 != int(($2 - 1) / 64) * 64 { bad = 1 } END { exit bad }'
}

@test "the store is killed in the middle of a run, again and again: the same answers" {
	for after in 0.05 0.1 0.2 0.3; do
		rm -f kv.sock
		store
		(sleep "$after" && kill -9 "$(pgrep -P "$BG" ds-kvstore)") 3>&- &
		same --kv unix:kv.sock --kv-timeout 1s --no-prefix-cache --batch-tokens 64
		wait $!
	done
}

@test "clients that go away while their blocks come, and cancels: nothing is left behind, the next one is answered" {
	store
	wrong slow kv.sock 200000
	background ds-prefill -m "$DS_MODEL" -l unix:pf.sock --kv "unix:wrong.sock?bytes" --kv-timeout 3s --no-prefix-cache --kv-memory 900K
	wait_socket pf.sock
	for _ in 1 2 3 4 5; do
		timeout 0.3 "$PYTHON" "$TALK" send pf.sock <mix >/dev/null || true
	done
	limited "$PYTHON" "$TALK" send pf.sock <mix >kv
	"$PYTHON" "$TALK" handed kv | cmp mix.want -
	for ((n = 0; n < 50; n++)); do # until --kv-timeout is over: what was given up may be arriving
		kill -USR1 "$(pgrep -P "$BG" ds-prefill)"
		sleep 0.2
		! tail -n 1 "$BG_ERR" | has '"kv_blocks_used":0' || break
	done
	kill "$BG"
	wait "$BG"
	[ "$n" -lt 50 ]
}

@test "a unit of two ranks, each with its own connection to one store: the same KV as one process, found by both" {
	unit() {
		for rank in 0 1; do
			background ds-prefill -m "$DS_MODEL" --unit unix:unit --rank "$rank" --world 2 --kv dir:unit.store -i mix -o "kv.$rank" -f --no-prefix-cache
			RANKS="${RANKS:-} $BG"
		done
		for p in $RANKS; do
			wait "$p"
		done
		RANKS=
		for rank in 0 1; do
			"$PYTHON" "$TALK" handed "kv.$rank" | cmp mix.want -
		done
	}
	unit
	unit
	for rank in 0 1; do
		"$PYTHON" "$TALK" hits "kv.$rank" | awk '$3 != int(($2 - 1) / 64) * 64 { bad = 1 } END { exit bad }'
	done
	# a rank whose store is silent does not hold up the other for longer than --kv-timeout
	wrong silent
	background ds-prefill -m "$DS_MODEL" --unit unix:unit --rank 0 --world 2 --kv unix:wrong.sock --kv-timeout 1s -i mix -o kv.0 -f
	RANKS=$BG
	limited ds-prefill -m "$DS_MODEL" --unit unix:unit --rank 1 --world 2 --kv dir:unit.store -i mix -o kv.1 -f
	wait "$RANKS"
	for rank in 0 1; do
		"$PYTHON" "$TALK" handed "kv.$rank" | cmp mix.want -
	done
}

# The fault: blocks that a mixture of two models made, under the key of one of them.
@test "a model that is written to while it is used: none of what was computed since is stored" {
	for seed in 1 2; do
		ds-model random --like "$DS_ROOT/tests/golden/v3-tiny-fp8" --layers 2 --dtype bf16 --seed "$seed" -o "m$seed"
	done
	for n in 0 1; do
		"$PYTHON" -c "import json; print(json.dumps({'id': 'c$n', 'ids': [(t + 7 * $n) % 60 + 1 for t in range(200)], 'max_tokens': 3}))" |
			"$PYTHON" "$DSF" requests >"ask.$n"
	done
	for program in ds-prefill ds-decode; do
		rm -rf m store
		cp -r m1 m
		background "$program" -m m -l unix:c.sock --kv dir:store
		wait_socket c.sock
		limited "$PYTHON" "$TALK" send c.sock <ask.0 >/dev/null
		cat m2/model.safetensors >m/model.safetensors
		limited "$PYTHON" "$TALK" send c.sock <ask.1 >/dev/null || true
		status=0
		wait "$BG" || status=$?
		[ "$status" -eq 65 ]
		"$PYTHON" "$TALK" blocks store/*.seg >blocks
		[ "$(wc -l <blocks)" -eq 3 ]
		rm -f c.sock
	done
}
