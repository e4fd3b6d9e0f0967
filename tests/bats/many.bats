# A thousand requests at once and KV memory for few of them: they wait, they are parked and come back, and each gets the answer that it
# gets alone.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
if [ -n "$DS_SANITIZE" ]; then MANY=40; else MANY=1000; fi

# streams: the requests; what they get one at a time, with much memory.
setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY") >lines
	"$PYTHON" "$DSF" requests <lines >requests
	head -n $((MANY / 4)) lines | "$PYTHON" "$DSF" requests >quarter
	LIMIT=200
	limited ds-decode -m "$DS_MODEL" --max-batch 1 requests | "$PYTHON" "$ANSWERS" table --no-hits - >alone
	awk -v n=$((MANY / 4)) 'substr($1, 2) + 0 < n' alone >alone.quarter
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{requests,quarter,alone,alone.quarter} .
	# shellcheck disable=SC2034 # `limited` reads it
	LIMIT=200
}

teardown() {
	end_background
}

# 13 blocks of 64 tokens; the longest request needs nine, 64 are run together.
@test "all are complete and equal to each one alone, with --kv-memory for a few" {
	limited ds-decode -m "$DS_MODEL" --kv-memory 800K requests | "$PYTHON" "$ANSWERS" table --no-hits - >got
	[ "$(grep -c ' done ' got)" -eq "$MANY" ]
	cmp alone got
}

@test "the same with MTP" {
	limited ds-decode -m "$DS_MODEL" --kv-memory 1200K --mtp 2 --mtp-always quarter 2>/dev/null |
		"$PYTHON" "$ANSWERS" table --no-hits - | cmp alone.quarter -
}

@test "the same handed over by ds-prefill, which waits for memory, too" {
	limited ds-prefill -m "$DS_MODEL" --kv-memory 500K quarter | limited ds-decode -m "$DS_MODEL" --kv-memory 800K |
		"$PYTHON" "$ANSWERS" table --no-hits - | cmp alone.quarter -
}

@test "requests do wait and are parked, as SIGUSR1 shows" {
	background ds-decode -m "$DS_MODEL" -l "unix:$PWD/d.sock" --kv-memory 800K
	wait_socket d.sock
	service=$BG service_err=$BG_ERR
	background ds-token -m "$DS_MODEL" decode -c "unix:$PWD/d.sock" -i requests -o text
	for _ in $(seq 200); do
		kill -USR1 "$(pgrep -P "$service" ds-decode)"
		sleep 0.02
		grep -q '"parked":[1-9]' "$service_err" && break
	done
	grep -q '"parked":[1-9]' "$service_err"
	kill -TERM "$BG"
	wait "$BG" || true
	kill -TERM "$service"
	wait "$service"
}
