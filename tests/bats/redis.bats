# ds-kvstore over Redis servers of Debian's, over a cluster of three, and over the Redis front of another ds-kvstore.
load helper

CHECK=$DS_ROOT/tests/bats/redis_check.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	need_program redis-server
	need_program redis-cli
	PYTHONDONTWRITEBYTECODE=1
	export PYTHONDONTWRITEBYTECODE
}

teardown() {
	end_background
}

check() {
	limited "$PYTHON" "$CHECK" "$@"
}

# redis NAME OPTION...: a server with its socket at NAME.sock.
redis() {
	local name=$1
	shift
	mkdir -p "$name"
	background redis-server --port 0 --unixsocket "$PWD/$name.sock" --dir "$PWD/$name" --save '' --appendonly no "$@" >"$name.log"
	wait_socket "$name.sock"
}

# kill_server OPTION...: the one that redis-cli reaches with these options.
kill_server() {
	local pid
	pid=$(redis-cli "$@" info server | tr -d '\r' | sed -n 's/^process_id://p')
	kill -KILL "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
}

# serve STORE OPTION...: ds-kvstore in front of it, at kv.sock; its pid is in FRONT.
serve() {
	local store=$1
	shift
	rm -f kv.sock
	background ds-kvstore -l unix:kv.sock --store "$store" "$@"
	FRONT=$BG
	FRONT_ERR=$BG_ERR
	wait_socket kv.sock
}

stop() {
	local got=0
	kill -TERM "$FRONT"
	wait "$FRONT" || got=$?
	[ "$got" -eq 0 ] || { echo "exit $got" >&2; cat "$FRONT_ERR" >&2; return 1; }
}

quiet() {
	[ ! -s "$FRONT_ERR" ] || { cat "$FRONT_ERR" >&2; return 1; }
}

@test "a Redis server holds what ds-kvstore is given" {
	redis r
	serve "redis://unix:$PWD/r.sock"
	check fill unix:kv.sock 0 50 70000
	check fill unix:kv.sock 50 3 4497408
	check read unix:kv.sock 0 50 70000
	check read unix:kv.sock 50 3 4497408
	[ "$(redis-cli -s r.sock dbsize)" = 53 ]
	redis-cli -s r.sock --raw randomkey | has -E '^ds:[0-9a-f]{32}$'
	stop
	quiet
	serve "redis://unix:$PWD/r.sock"
	check read unix:kv.sock 0 50 70000
	ds-kvstore stat unix:kv.sock | has -E 'items +53'
	stop
	quiet
}

@test "a server that is killed and started again" {
	redis r
	serve "redis://unix:$PWD/r.sock"
	check fill unix:kv.sock 0 5 70000
	kill_server -s r.sock
	check down unix:kv.sock 5 70000 5
	rm -f r.sock
	redis r
	sleep 2.1 # the longest pause between two tries
	check fill unix:kv.sock 100 5 70000
	check read unix:kv.sock 100 5 70000
	stop
}

@test "a password, a database, and a server that is full" {
	printf 'open sesame\n' >password
	redis r --requirepass 'open sesame' --maxmemory 8mb --maxmemory-policy noeviction
	serve "redis://unix:$PWD/r.sock" --password-file password
	check fill unix:kv.sock 0 5 70000
	check read unix:kv.sock 0 5 70000
	check full unix:kv.sock
	check read unix:kv.sock 0 5 70000
	stop
	refute grep -r sesame "$FRONT_ERR"
	printf 'wrong\n' >password
	serve "redis://unix:$PWD/r.sock" --password-file password
	check refused unix:kv.sock 78 WRONGPASS
	stop
	refused 78 "cannot read the password file 'none'" ds-kvstore -l unix:kv2.sock --store redis://unix:r.sock --password-file none
	refused 64 'is of a store that is a directory' ds-kvstore -l unix:kv2.sock --store redis://unix:r.sock --sync
	refused 64 "bad address" ds-kvstore -l unix:kv2.sock --store redis://localhost:99999
}

@test "--kv redis:// with a password, as a user, and with a wrong one" {
	"$PYTHON" - <<-'END' | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >in
		import json
		for n in range(3):
		    print(json.dumps({"id": f"a{n}", "ids": [(11 * t) % 1000 + 3 for t in range(150)] + [n + 3] * 5, "max_tokens": 2}))
	END
	prefill() { limited ds-prefill -m "$DS_MODEL" --no-prefix-cache "$@" <in; }
	blocks() { redis-cli --no-auth-warning -a "$(cat secret)" -s r.sock dbsize; }
	echo 'open sesame' >secret
	echo 'wrong' >wrong
	prefill >want
	redis r --requirepass 'open sesame'
	redis-cli --no-auth-warning -a 'open sesame' -s r.sock acl setuser cache on '>let me in' '~ds:*' '+@all' >/dev/null
	redis-cli --no-auth-warning -a 'open sesame' -s r.sock acl setuser reader on '>let me in' '~ds:*' -@all +get +exists +auth >/dev/null
	prefill --kv "redis://unix:$PWD/r.sock" --kv-password-file secret --stats >first 2>said
	has ' 2 written,' <said
	[ "$(blocks)" = 2 ]
	echo 'let me in' >user # a pipe, which has no size, serves as well
	prefill --kv "redis://cache@unix:$PWD/r.sock" --kv-password-file <(cat user) --stats >second 2>said
	has ' 6 fetched,' <said
	for kv in "wrong redis://unix:$PWD/r.sock" "wrong redis://cache@unix:$PWD/r.sock" "secret redis://nobody@unix:$PWD/r.sock"; do
		prefill --kv "${kv#* }" --kv-password-file "${kv%% *}" >none 2>said
		[ "$(wc -l <said)" -eq 1 ]
		has "is lost: .*WRONGPASS.*; prompts are computed without it" <said
		cmp <("$PYTHON" "$DS_ROOT/tests/bats/kv_talk.py" handed none) <("$PYTHON" "$DS_ROOT/tests/bats/kv_talk.py" handed want)
	done
	prefill --kv "redis://reader@unix:$PWD/r.sock" --kv-password-file user >third 2>said # may not write, and all is there
	for got in first second third; do
		"$PYTHON" "$DS_ROOT/tests/bats/kv_talk.py" handed "$got" | cmp - <("$PYTHON" "$DS_ROOT/tests/bats/kv_talk.py" handed want)
	done
	[ ! -s said ]
	serve "redis://cache@unix:$PWD/r.sock" --password-file user
	check fill unix:kv.sock 0 5 70000
	check read unix:kv.sock 0 5 70000
	stop
	quiet
	refused 64 'no file with the password' ds-kvstore --store "redis://cache@unix:$PWD/r.sock"
	refused 64 'not for a command line' ds-kvstore --store "redis://cache:secret@unix:$PWD/r.sock"
	head -c 5000 /dev/zero | tr '\0' x >long
	refused 78 "'long' has more than" ds-kvstore --store "redis://cache@unix:$PWD/r.sock" --password-file long
}

@test "a cluster of three, of which one is lost and comes back" {
	nodes=
	for i in 1 2 3; do
		port=$(free_port)
		bus=$(free_port)
		mkdir "n$i"
		background redis-server --port "$port" --bind 127.0.0.1 --cluster-enabled yes --cluster-port "$bus" --dir "$PWD/n$i" --save '' \
			--cluster-node-timeout 1000 --cluster-require-full-coverage no >"n$i.log"
		nodes="$nodes 127.0.0.1:$port"
		again="redis-server --port $port --bind 127.0.0.1 --cluster-enabled yes --cluster-port $bus --dir $PWD/n$i --save '' --cluster-node-timeout 1000 --cluster-require-full-coverage no"
	done
	for n in $nodes; do
		until redis-cli -p "${n#*:}" ping 2>/dev/null | has PONG; do sleep 0.05; done
	done
	# shellcheck disable=SC2086 # a list
	redis-cli --cluster create $nodes --cluster-replicas 0 --cluster-yes >made
	for n in $nodes; do
		until redis-cli -p "${n#*:}" cluster info | has cluster_state:ok; do sleep 0.05; done
	done
	serve "redis-cluster://${nodes##* },127.0.0.1:1"
	check fill unix:kv.sock 0 60 70000
	check read unix:kv.sock 0 60 70000
	for n in $nodes; do
		[ "$(redis-cli -p "${n#*:}" dbsize)" -gt 5 ]
	done
	ds-kvstore stat unix:kv.sock | has -E 'items +60'
	kill_server -p "${nodes##*:}"
	check down unix:kv.sock 60 70000 45
	# shellcheck disable=SC2086 # a list of words
	background sh -c "exec $again" >n3.log
	for n in $nodes; do
		until redis-cli -p "${n#*:}" cluster info 2>/dev/null | has cluster_state:ok; do sleep 0.05; done
	done
	sleep 2.1
	check fill unix:kv.sock 100 60 70000
	check read unix:kv.sock 100 60 70000
	stop
}

@test "the Redis front of another ds-kvstore is a Redis" {
	background ds-kvstore -l unix:one.sock --resp unix:r.sock -d store
	one=$BG
	wait_socket r.sock
	serve "redis://unix:$PWD/r.sock" --resp unix:r2.sock
	check fill unix:kv.sock 0 40 70000
	check fill unix:kv.sock 50 2 4497408
	check read unix:kv.sock 0 40 70000
	check read unix:kv.sock 50 2 4497408
	[ "$(redis-cli -s r.sock dbsize)" = 42 ]
	[ "$(redis-cli -s r2.sock dbsize)" = 42 ]
	[ "$(redis-cli -s r2.sock set name value ex 100)" = OK ]
	[ "$(redis-cli -s r2.sock get name)" = value ]
	[ "$(redis-cli -s r2.sock ttl name)" -gt 90 ]
	[ "$(redis-cli -s r.sock dbsize)" = 43 ]
	[ "$(redis-cli -s r2.sock del name)" = 1 ]
	redis-benchmark -s r2.sock -t ping,set,get -n 2000 -d 5000 -r 50 --csv | has '"GET"'
	stop
	quiet
	kill -TERM "$one"
	wait "$one"
	ds-kvstore verify store
}
