# ds-kvstore as a service: requests and answers, many clients, slow ones, bad ones, limits, the end.
load helper

CHECK=$DS_ROOT/tests/bats/kvstore_check.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

check() {
	limited "$PYTHON" "$CHECK" "$@"
}

# serve ARGUMENT...: a service at kv.sock over the directory store.
serve() {
	background ds-kvstore -l unix:kv.sock -d store "$@"
	wait_socket kv.sock
}

# stop [CODE]: the service ends when it is told to, with this code.
stop() {
	local got=0
	kill -TERM "$BG"
	wait "$BG" || got=$?
	[ "$got" -eq "${1:-0}" ] || { echo "exit $got" >&2; cat "$BG_ERR" >&2; return 1; }
}

quiet() {
	[ ! -s "$BG_ERR" ] || { cat "$BG_ERR" >&2; return 1; }
}

@test "everything that can be asked for, on a unix socket" {
	serve
	check basics unix:kv.sock
	stop
	quiet
	[ ! -e kv.sock ]
}

@test "everything that can be asked for, over TCP, and through another ds-kvstore" {
	port=$(free_port)
	background ds-kvstore -l "tcp:127.0.0.1:$port" -l unix:kv.sock -d store
	wait_socket kv.sock
	check basics "tcp:127.0.0.1:$port"
	first=$BG
	for upstream in unix:kv.sock 'unix:kv.sock?bytes' "tcp:127.0.0.1:$port"; do
		rm -f front.sock
		background ds-kvstore -l unix:front.sock --store "$upstream"
		wait_socket front.sock
		"$PYTHON" - <<-END
			import sys
			sys.path.insert(0, "$DS_ROOT/tests/bats")
			from kvstore import Client, key
			c = Client("unix:kv.sock")
			for i in range(24):
			    c.call("del", [key(i)])
			c.end()
		END
		check refusals unix:front.sock
		limited "$PYTHON" - <<-END
			import sys
			sys.path.insert(0, "$DS_ROOT/tests/bats")
			from kvstore import *
			c = Client("unix:front.sock")
			for i, n in enumerate([64, 0, 1, 63, 65, 70001, 1 << 20]):
			    assert c.put(key(i), value(i, n), meta={"who": f"item {i}"}, replace=True) == "stored"
			    meta, data = c.get([key(i)], fds=True)[0]
			    assert data == value(i, n) and meta["who"] == f"item {i}", (i, meta)
			assert c.has([key(i) for i in range(9)]) == 7
			assert c.stat()["items"] == 7, c.stat()
			c.end()
		END
		stop
	done
	BG=$first
	stop
}

@test "a request that is wrong ends there, the connection goes on" {
	serve
	check refusals unix:kv.sock
	stop
	quiet
}

@test "payloads out of memory that a client shares; no descriptor is left behind" {
	serve
	pid=$(pgrep -P "$BG" -x ds-kvstore)
	check fill unix:kv.sock 100 1 1000
	before=$(check descriptors "$pid")
	check shared unix:kv.sock
	[ "$(check descriptors "$pid")" -eq "$before" ]
	stop
	quiet
}

@test "what is no stream of frames ends its connection with one line, and no other" {
	serve
	check bad_streams unix:kv.sock
	check refusals unix:kv.sock
	stop
	[ "$(wc -l <"$BG_ERR")" -eq 7 ] || { cat "$BG_ERR"; false; }
	! grep -v '^ds-kvstore: ' "$BG_ERR" || false
}

@test "64 clients at once" {
	serve --capacity 1G
	check many unix:kv.sock 64
	stop
	quiet
}

@test "clients that stand still are dropped, and hold nobody" {
	serve --peer-timeout 2s
	check slow unix:kv.sock
	stop
	grep -q 'stands still within a frame' "$BG_ERR"
	grep -Eq 'takes no answer|takes nothing' "$BG_ERR"
}

@test "a unix socket, TCP and a pipe carry the same bytes" {
	port=$(free_port)
	background ds-kvstore -l unix:kv.sock -l "tcp:127.0.0.1:$port" -d store
	wait_socket kv.sock
	check fill unix:kv.sock 0 6 5000
	check conversation talk
	check converse unix:kv.sock talk by-unix
	check converse "tcp:127.0.0.1:$port" talk by-tcp
	limited ds-kvstore -d store <talk >by-pipe 2>err || [ $? -eq 65 ] # one request in it is refused
	cmp by-unix by-tcp
	cmp by-unix by-pipe
	ds-frame check by-pipe
	[ "$(wc -l <err)" -eq 1 ]
	stop
}

@test "a conversation cut at every byte is truncated: 65, whole answers, no END" {
	check conversation talk
	EVERY=$([ -n "$DS_SANITIZE" ] && echo 37 || echo 3) check cuts - talk ds-kvstore -d store
	serve
	check cut_sockets unix:kv.sock talk
	stop
}

@test "killed and started again: what was acknowledged is there" {
	serve --sync
	touch log
	"$PYTHON" "$CHECK" storm unix:kv.sock log & storm=$!
	for _ in $(seq 600); do
		[ "$(wc -l <log)" -ge 20 ] && break
		sleep 0.05
	done
	kill -KILL "$(pgrep -P "$BG" -x ds-kvstore)"
	wait "$BG" || true
	wait "$storm"
	[ -S kv.sock ] # nobody took it away
	background ds-kvstore -l unix:kv.sock -d store --sync
	for _ in $(seq 100); do
		ds-kvstore stat unix:kv.sock >/dev/null 2>&1 && break
		sleep 0.1
	done
	check acknowledged unix:kv.sock log
	stop
}

@test "told to end: running requests finish, new ones are refused, 0" {
	serve
	check drained unix:kv.sock "$(pgrep -P "$BG" -x ds-kvstore)"
	wait "$BG"
	quiet
}

@test "a request that does not end within --drain-timeout: 75" {
	serve --drain-timeout 500ms
	"$PYTHON" - <<-END &
		import sys, time
		sys.path.insert(0, "$DS_ROOT/tests/bats")
		from kvstore import *
		c = Client("unix:kv.sock")
		c.has([key(0)])
		c.put_frame(key(1), value(1, 1 << 20))
		c.s.sendall(c.out.getvalue()[:1 << 19])
		open("half", "w").close()
		while c.s.recv(1000):
		    pass
	END
	client=$!
	while [ ! -e half ]; do sleep 0.05; done
	stop 75
	wait "$client" || true
	[ "$(wc -l <"$BG_ERR")" -le 2 ]
	grep -q -- '--drain-timeout' "$BG_ERR"
}

@test "SIGHUP is harmless; SIGUSR1 prints the state as JSON" {
	serve
	check fill unix:kv.sock 0 3 1000
	pid=$(pgrep -P "$BG" -x ds-kvstore)
	kill -HUP "$pid"
	kill -USR1 "$pid"
	for _ in $(seq 100); do grep -q '"stat"' "$BG_ERR" && break; sleep 0.05; done
	"$PYTHON" -c '
import json, sys
s = json.loads(open(sys.argv[1]).read())
assert s["program"] == "ds-kvstore" and s["requests"]["put"] == 3 and s["stat"]["items"] == 3 and s["draining"] is False, s
' "$BG_ERR"
	check read unix:kv.sock 0 3 1000
	stop
}

@test "signals while it starts: SIGHUP and SIGUSR1 are harmless, SIGTERM ends it at once" {
	serve
	stop
	background flock store/lock sleep 100 # which it waits for
	while flock -n store/lock true; do sleep 0.01; done
	for how in TERM INT; do
		background ds-kvstore -l unix:slow.sock -d store
		for _ in $(seq 100); do pid=$(pgrep -P "$BG" -x ds-kvstore) && break; sleep 0.02; done
		while ! grep -q '^SigIgn:.*1$' "/proc/$pid/status"; do sleep 0.01; done # SIGHUP
		kill -HUP "$pid"
		kill -USR1 "$pid"
		sleep 0.1
		[ -e "/proc/$pid" ] || { echo "it is gone"; false; }
		kill -"$how" "$pid"
		wait "$BG"
		quiet
	done
}

@test "with too few descriptors what is there is no miss" {
	background bash -c 'ulimit -n 40; exec ds-kvstore -l unix:kv.sock -d store --segment 64K'
	wait_socket kv.sock
	check few_descriptors unix:kv.sock 80
	stop
}

@test "one client too many is turned away with 75" {
	serve --max-clients 4
	check crowd unix:kv.sock
	stop
}

@test "payloads wait for memory; a larger one than --max-frame ends its connection" {
	serve --memory 4M --max-frame 8M
	check memory unix:kv.sock
	"$PYTHON" - <<-END
		import sys
		sys.path.insert(0, "$DS_ROOT/tests/bats")
		from kvstore import *
		c = Client("unix:kv.sock")
		try:
		    c.put(key(1), value(1, 9 << 20))
		    raise AssertionError("taken")
		except Refused as e:
		    assert e.code == 65 and "limit" in e.message
		except ConnectionError:
		    pass
	END
	stop
}

@test "a large put that comes slowly does not hold the small ones, of either protocol, and ends" {
	serve --memory 4M --max-frame 4M --peer-timeout 2s --resp unix:resp.sock
	check slow_put unix:kv.sock unix:resp.sock
	stop
	grep -q 'stands still within a frame' "$BG_ERR"
}

@test "large puts that come slowly give way to those who wait for their memory" {
	serve --memory 64M --max-frame 64M --resp unix:resp.sock
	wait_socket resp.sock
	check slow_hogs unix:kv.sock unix:resp.sock
	stop
	quiet
}

@test "pins hold what nobody asks for, and end with their client" {
	serve --capacity 64M --segment 4M
	check pins unix:kv.sock
	stop
}

@test "a stale socket is replaced, a live one is not taken away" {
	"$PYTHON" -c 'import socket; socket.socket(socket.AF_UNIX).bind("kv.sock")'
	background ds-kvstore -l unix:kv.sock -d store
	for _ in $(seq 100); do ds-kvstore stat unix:kv.sock >/dev/null 2>&1 && break; sleep 0.1; done
	refused 78 'another process serves there' ds-kvstore -l unix:kv.sock -d store
	check read unix:kv.sock 0 1 10
	stop
}

@test "a socket of a supervisor, readiness on a descriptor and to NOTIFY_SOCKET" {
	"$PYTHON" - <<-'END'
		import os, socket, subprocess, sys
		sys.path.insert(0, os.environ["DS_ROOT"] + "/tests/bats")
		from kvstore import Client, key
		s = socket.socket(socket.AF_UNIX)
		s.bind("given.sock")
		s.listen()
		note = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
		note.bind("note.sock")
		note.settimeout(30)
		r, w = os.pipe()

		def child():
		    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", NOTIFY_SOCKET=os.path.abspath("note.sock"))
		    os.dup2(s.fileno(), 3)
		    os.execvp("ds-kvstore", ["ds-kvstore", "-l", "unix:given.sock", "-d", "store", "--ready-fd", str(w)])

		pid = os.fork()
		if not pid:
		    os.set_inheritable(w, True)
		    child()
		os.close(w)
		assert os.read(r, 10) == b"\n"
		assert note.recv(100) == b"READY=1"
		c = Client("unix:given.sock")
		assert c.has([key(0)]) == 0
		c.end()
		os.kill(pid, 15)
		assert note.recv(100) == b"STOPPING=1"
		assert os.waitpid(pid, 0)[1] == 0
	END
	[ -S given.sock ] # it is the supervisor's
}

@test "a TCP address beyond loopback needs --insecure" {
	refused 78 '--insecure' ds-kvstore -l tcp:0.0.0.0:0 -d store
	refused 78 '--insecure' ds-kvstore -l unix:kv.sock --metrics tcp:0.0.0.0:0 -d store
}

@test "two services on one directory see each other's items" {
	background ds-kvstore -l unix:a.sock -d store
	first=$BG
	background ds-kvstore -l unix:b.sock -d store
	wait_socket a.sock
	wait_socket b.sock
	[ "$(check fill unix:a.sock 0 20 30000)" = '20 0' ]
	[ "$(check fill unix:b.sock 20 20 30000)" = '20 0' ]
	for _ in $(seq 50); do
		[ "$(check read unix:b.sock 0 40 30000) $(check read unix:a.sock 0 40 30000)" = '40 40' ] && break
		sleep 0.2
	done
	[ "$(check read unix:b.sock 0 40 30000)" = 40 ]
	[ "$(check read unix:a.sock 0 40 30000)" = 40 ]
	stop
	BG=$first
	stop
}

@test "a full disk: refused or given up, never wrong" {
	[ "$(id -u)" -eq 0 ] || skip 'a small disk needs root'
	mkdir disk
	mount -t tmpfs -o size=24m none disk 2>/dev/null || skip 'no tmpfs can be mounted here'
	background ds-kvstore -l unix:kv.sock -d disk/store --segment 2M
	wait_socket kv.sock
	filled=$(check fill unix:kv.sock 0 100 500000) || filled=failed
	there=$(check read unix:kv.sock 0 100 500000) || there=failed
	stop || there=failed
	background ds-kvstore -l unix:kv.sock -d disk/store --segment 2M
	wait_socket kv.sock
	again=$(check read unix:kv.sock 0 100 500000) || again=failed
	stop || again=failed
	umount disk
	echo "stored and refused: $filled; there: $there, then $again"
	[ "$there" != failed ] && [ "$again" != failed ] && [ "$filled" != failed ]
	[ "$there" -gt 10 ]
}

@test "figures by HTTP and in a file, and whether it is ready" {
	port=$(free_port)
	serve --metrics "tcp:127.0.0.1:$port" -q
	check fill unix:kv.sock 0 3 1000
	check http "tcp:127.0.0.1:$port" /metrics >page
	[ "$(head -n 1 page)" = 200 ]
	grep -qx 'ds_kvstore_items 3' page
	grep -qx 'ds_kvstore_requests_total{op="put"} 3' page
	! sed 1d page | grep -Ev '^#|^ds_kvstore_[a-z_]+(\{op="[a-z]+"\})? [0-9.e+-]+$' || false
	[ "$(check http "tcp:127.0.0.1:$port" /readyz)" = $'200\nok' ]
	[ "$(check http "tcp:127.0.0.1:$port" /healthz)" = $'200\nok' ]
	[ "$(check http "tcp:127.0.0.1:$port" /nothing)" = $'404\nNot Found' ]
	stop
	serve --metrics figures
	check fill unix:kv.sock 3 3 1000
	stop
	grep -qx 'ds_kvstore_requests_total{op="put"} 3' figures
}

@test "with clients that ask for nothing it sleeps" {
	not_sanitized 'its runtime has threads of its own'
	serve
	check idle unix:kv.sock "$(pgrep -P "$BG" -x ds-kvstore)"
	stop
}

@test "the Redis protocol on an address of its own" {
	port=$(free_port)
	serve --resp "tcp:127.0.0.1:$port"
	check resp "tcp:127.0.0.1:$port"
	stop
	quiet
}

@test "wrong usage is one line and 64" {
	refused 64 'no store is named' ds-kvstore </dev/null
	refused 64 'two stores' ds-kvstore -d a --store unix:b </dev/null
	refused 64 "'nonsense'" ds-kvstore nonsense
	refused 64 'compress' ds-kvstore -d store --compress best </dev/null
	refused 64 'admit' ds-kvstore -d store --admit some </dev/null
	refused 64 'address' ds-kvstore --store nowhere </dev/null
	refused 64 'address' ds-kvstore -d store -l nowhere
	refused 64 'ls' ds-kvstore ls
	refused 64 'more' ds-kvstore ls a more
	refused 64 '--listen' ds-kvstore ls a -l unix:x
	refused 64 'operand' ds-kvstore serve more
	for option in capacity=1G segment=1M sync compress=zstd admit=second; do
		refused 64 "--${option%%=*} is of a store that is a directory" ds-kvstore -l unix:kv.sock \
			--store redis://localhost:1 "--$option"
	done
	for option in metrics=tcp:127.0.0.1:0 metrics=file ready-fd=1 max-clients=3 insecure drain-timeout=1s; do
		refused 64 "--${option%%=*} is of a service" ds-kvstore -d store "--$option" </dev/null
	done
	refused 64 '--password-file is of a Redis server' ds-kvstore -d store -l unix:kv.sock --password-file x
	for address in redis://localhost:1 unix:kv.sock tcp:127.0.0.1:1; do
		for command in ls verify gc export import; do
			refused 64 "no directory; of other stores" ds-kvstore "$command" "$address" </dev/null
		done
	done
	"$PYTHON" -c 'print("{\"id\": \"a\", \"ids\": [1, 2]}")' | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >asked
	refused 65 "is no stream of a store" ds-kvstore import new asked
	[ ! -e new ]
	refused 78 'make that first' ds-kvstore -d store -l unix:run/kv.sock
	refused 78 'make that first' ds-kvstore -d a/b/c -l unix:kv.sock
	[ ! -e store ] || [ -d store ]
}

@test "a service whose store is itself, or one whose store it is, says so and goes on" {
	background ds-kvstore -l unix:a.sock --store unix:b.sock
	background ds-kvstore -l unix:b.sock --store unix:a.sock
	background ds-kvstore -l unix:kv.sock --store unix:kv.sock
	for socket in a b kv; do
		wait_socket $socket.sock
		refused 78 'is one of them its own --store' ds-kvstore stat unix:$socket.sock
		refused 78 'is one of them its own --store' ds-kvstore stat unix:$socket.sock
	done
	[ "$(find "/proc/$BG/task" -mindepth 1 -maxdepth 1 | wc -l)" -lt 30 ]
}

@test "a service that is not there: 69" {
	refused 69 'nobody.sock' ds-kvstore stat unix:nobody.sock
}
