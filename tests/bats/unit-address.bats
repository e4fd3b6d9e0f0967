# A unit's address: what may happen there does not hold up the unit, and what does not work there is said.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	LOCKS=
}

teardown() {
	# shellcheck disable=SC2086 # a list
	[ -z "$LOCKS" ] || kill $LOCKS 2>/dev/null || true
	end_background
}

# lock DIRECTORY: somebody else holds its lock, until the test ends.
lock() {
	flock "$1" sleep 60 3>&- &
	LOCKS="$LOCKS $!"
	until ! flock -n "$1" true; do sleep 0.02; done
}

# serve RANK WORLD [OPTION...]: a rank that serves at d.RANK.
serve() {
	local r=$1 world=$2
	shift 2
	background ds-decode -v -m "$DS_MODEL" -j 1 --unit unix:u --rank "$r" --world "$world" -l unix:d.%r "$@"
	SERVED[r]=$BG
	SAID[r]=$BG_ERR
}

ask() {
	echo "What is 348 + 977?" | ds-token -m "$DS_MODEL" encode --chat "$@" | ds-token -m "$DS_MODEL" decode
}

# The fault: the thread that answers the other ranks waited for the lock, was taken for dead, and the next one did the same.
@test "the directory of the address is locked when its holder is killed: the others go on" {
	echo "What is 348 + 977?" | ds-token -m "$DS_MODEL" encode --chat | ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode >want
	serve 2 3 --peer-timeout 1s
	wait_socket u # rank 2 holds it
	serve 0 3 --peer-timeout 1s
	serve 1 3 --peer-timeout 1s
	for r in 0 1 2; do
		wait_socket "d.$r"
	done
	lock .
	pkill -KILL -P "${SERVED[2]}"
	sleep 2 # the peer timeout, twice
	for r in 0 1; do
		ask -c "unix:d.$r" | cmp - want
		run ! grep 'has gone (silent' "${SAID[r]}"
	done
	kill "${SERVED[0]}" "${SERVED[1]}"
	wait "${SERVED[0]}"
	wait "${SERVED[1]}"
}

# The fault: it waited for the lock and looked at no clock.
@test "--unit-timeout holds where the directory of the address is locked" {
	local began=$SECONDS
	mkdir locked
	lock locked
	refused 69 'its directory is locked' ds-decode -m "$DS_MODEL" -j 1 --unit unix:locked/u --rank 0 --world 2 --input none --unit-timeout 1s
	[ $((SECONDS - began)) -lt 20 ]
	[ ! -e locked/u ]
}

# The fault: both served alone and said nothing.
@test "ranks that meet, but cannot connect to each other, say so" {
	unshare -n true 2>/dev/null || skip 'no network namespaces here'
	for r in 0 1; do
		background unshare -n ds-decode -m "$DS_MODEL" -j 1 --unit unix:u --rank "$r" --world 2 -l unix:d.%r --peer-timeout 1s
		SAID[r]=$BG_ERR
	done
	for r in 0 1; do
		wait_socket "d.$r"
		grep -q "unit: rank $((1 - r)) came to 'unix:u' but could not be connected to; 1 rank begins" "${SAID[r]}"
	done
}

# The fault: they were all kept, until the holder had no descriptor left for its clients.
@test "processes that say again and again that they are a rank which is there take no more than some descriptors" {
	"$PYTHON" -c '
import socket
s = socket.socket(socket.AF_UNIX)
s.bind("trap")
s.listen(5)
hello = b""
while len(hello) < 1000: # who only looks whether somebody is there says nothing
    c, _ = s.accept()
    c.settimeout(1)
    try:
        while piece := c.recv(1 << 16):
            hello += piece
    except TimeoutError:
        pass
open("hello", "wb").write(hello)' &
	wait_socket trap
	refused 69 'unit' ds-decode -m "$DS_MODEL" -j 1 --unit unix:trap --rank 1 --world 2 --input none --unit-timeout 2s
	wait $!
	serve 0 2
	wait_socket u
	serve 1 2
	wait_socket d.0
	wait_socket d.1
	"$PYTHON" -c '
import os, socket, sys
hello, kept = open("hello", "rb").read(), []
for i in range(400):
    c = socket.socket(socket.AF_UNIX)
    c.connect("u")
    c.sendall(hello)
    kept.append(c)
n = len(os.listdir("/proc/%s/fd" % sys.argv[1]))
assert n < 150, n' "$(pgrep -P "${SERVED[0]}" ds-decode)"
	kill "${SERVED[0]}" "${SERVED[1]}"
	wait "${SERVED[0]}"
	wait "${SERVED[1]}"
}

@test "a TCP port that is any is none to meet at" {
	refused 64 'the port is to be the same for all' ds-decode -m "$DS_MODEL" -j 1 --unit tcp:127.0.0.1:0 --rank 0 --world 2 --input none
}
