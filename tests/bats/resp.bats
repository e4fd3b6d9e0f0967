# ds-kvstore --resp: redis-cli, redis-benchmark and Redis's Python client take it for a Redis.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	need_program redis-cli
	PYTHONDONTWRITEBYTECODE=1
	export PYTHONDONTWRITEBYTECODE
}

teardown() {
	end_background
}

# serve ARGUMENT...: a service with its Redis front at r.sock.
serve() {
	rm -f r.sock
	background ds-kvstore -l unix:kv.sock --resp unix:r.sock -d store "$@"
	wait_socket r.sock
}

cli() {
	limited redis-cli -s r.sock "$@"
}

stop() {
	local got=0
	kill -TERM "$BG"
	wait "$BG" || got=$?
	[ "$got" -eq 0 ] || { echo "exit $got" >&2; cat "$BG_ERR" >&2; return 1; }
}

quiet() {
	[ ! -s "$BG_ERR" ] || { cat "$BG_ERR" >&2; return 1; }
}

check() {
	limited "$PYTHON" "$DS_ROOT/tests/bats/resp_check.py" "$@"
}

@test "redis-cli: commands, one by one and from a pipe" {
	serve
	[ "$(cli ping)" = PONG ]
	[ "$(cli set name 'some value')" = OK ]
	[ "$(cli get name)" = 'some value' ]
	[ "$(cli set name other nx)" = '' ]
	[ "$(cli --no-raw get nothing)" = '(nil)' ]
	[ "$(cli -3 --no-raw get nothing)" = '(nil)' ]
	[ "$(cli mset a 1 b 2)" = OK ]
	[ "$(cli mget a b | tr '\n' ' ')" = '1 2 ' ]
	[ "$(cli exists a b c)" = 2 ]
	[ "$(cli strlen name)" = 10 ]
	[ "$(cli setex short 100 x)" = OK ]
	[ "$(cli ttl short)" -gt 90 ]
	[ "$(cli dbsize)" = 4 ]
	[ "$(cli del a b c)" = 2 ]
	[ "$(cli dbsize)" = 2 ]
	cli info | has '^redis_version:7'
	cli info store | has '^ds_items:2'
	[ "$(cli config get save | head -n 1)" = save ]
	cli flushall | has '^ERR flushall is not done here'
	cli lpush a b | has "^ERR unknown command 'lpush'"
	printf 'set x 1\nget x\n' | cli | tr '\n' ' ' | has '^OK 1 $'
	stop
	quiet
}

@test "redis-cli on a terminal" {
	serve
	check terminal r.sock
	stop
	quiet
}

@test "redis-cli --pipe" {
	serve
	for i in $(seq 3000); do printf 'SET key%d value%d\r\n' "$i" "$i"; done >many
	cli --pipe <many | has 'errors: 0, replies: 3000'
	[ "$(cli dbsize)" = 3000 ]
	[ "$(cli get key2999)" = value2999 ]
	stop
	quiet
}

@test "redis-benchmark: small values and large, one command at a time and many" {
	need_program redis-benchmark
	port=$(free_port)
	background ds-kvstore -l unix:kv.sock --resp "tcp:127.0.0.1:$port" -d store
	wait_socket kv.sock
	for more in '-n 3000' '-n 10000 -P 16' '-n 1000 -d 71680 -r 100' '-n 1000 -d 71680 -r 100 -P 16' '-n 100 -d 1000000 -r 10'; do
		# shellcheck disable=SC2086 # a list of words
		run -0 limited redis-benchmark -p "$port" -t ping,set,get -c 50 --csv $more
		assert_output --partial '"PING_MBULK"'
		assert_output --partial '"SET"'
		assert_output --partial '"GET"'
		refute_output --partial rror
		refute_output --partial WARN
	done
	redis-cli -p "$port" info stats | has '^total_error_replies:0'
	[ "$(redis-cli -p "$port" strlen key:000000000001)" = 1000000 ]
	stop
	quiet
}

@test "Redis's client for Python" {
	"$PYTHON" -c 'import redis' || skip "python3-redis is not here"
	serve
	check client r.sock
	stop
	quiet
}

@test "what was set is there after the end, and only the last of it" {
	serve
	check fill r.sock
	stop
	serve
	check filled r.sock
	stop
	quiet
	ds-kvstore verify store
}

@test "a value whose bytes have changed on disk is not there" {
	serve
	check fill r.sock
	stop
	"$PYTHON" - store/*.seg <<-'END'
		import sys
		# the values of 'large' are all of one letter
		found = 0
		for path in sys.argv[1:]:
		    b = bytearray(open(path, "rb").read())
		    at = b.rfind(b"L" * 50000)
		    if at >= 0:
		        found += 1
		        b[at + 1234] ^= 4
		        open(path, "r+b").write(b)
		assert found
	END
	serve
	[ "$(cli --no-raw get large)" = '(nil)' ]
	[ "$(cli exists large)" = 0 ]
	[ "$(cli get small)" = small2 ]
	cli info store | has '^ds_corrupt:1'
	[ "$(cli set large new)" = OK ]
	[ "$(cli get large)" = new ]
	stop
}

@test "clients that stand still hold nobody, and nothing at the end" {
	serve --peer-timeout 1s
	check still r.sock
	stop
	serve
	check idle r.sock "$BG"
	wait "$BG"
	quiet
}

# The fault: one thread served all, and stood still with whoever waited for another process.
@test "who waits for the directory's lock holds nobody else, and is told to try again" {
	serve
	cli set there 1
	"$PYTHON" -c 'import fcntl, sys, time; f = open("store/lock", "r+"); fcntl.flock(f, fcntl.LOCK_EX); print("has it", flush=True); time.sleep(60)' >locked 3>&- &
	holder=$!
	for _ in $(seq 100); do [ -s locked ] && break; sleep 0.05; done
	for i in 1 2 3; do cli del gone$i >del$i 3>&- & done
	sleep 0.5
	[ "$(timeout 3 redis-cli -s r.sock ping)" = PONG ]
	[ "$(timeout 3 redis-cli -s r.sock get there)" = 1 ]
	for _ in $(seq 200); do [ -s del3 ] && [ -s del2 ] && [ -s del1 ] && break; sleep 0.1; done
	for i in 1 2 3; do has '^TRYAGAIN .*another process holds the lock' <del$i; done
	kill "$holder"
	wait "$holder" || true
	[ "$(cli del there)" = 1 ]
	stop
}

@test "what is no RESP is told so, and said in one line" {
	serve
	printf '*1\r\n$x\r\n' | limited socat -t 5 - unix:r.sock | has '^-ERR Protocol error'
	printf 'POST / HTTP/1.1\r\nHost: x\r\n\r\nset a b\r\n' | limited socat -t 5 - unix:r.sock | has '^-ERR Protocol error'
	head -c 100000 /dev/urandom | limited socat -t 5 - unix:r.sock >out || true
	[ "$(cli ping)" = PONG ]
	[ "$(cli exists a)" = 0 ]
	stop
	[ "$(wc -l <"$BG_ERR")" -ge 2 ]
	refute grep -v '^ds-kvstore: ' "$BG_ERR"
}

@test "--max-frame is the largest value, --memory what all of them have" {
	serve --max-frame 1M --memory 8M
	check limits r.sock
	stop
	quiet
}
