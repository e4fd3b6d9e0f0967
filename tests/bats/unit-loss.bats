# Ranks of a unit that are killed, stopped, cut off, started again: who is left answers all of its requests, with the same bits.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
ANSWERS=$DS_ROOT/tests/bats/answers.py
UNIT=$DS_ROOT/tests/bats/unit.py
if [ -n "$DS_SANITIZE" ]; then MANY=8 ROUNDS=4; else MANY=32 ROUNDS=20; fi

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	(cd "$DS_ROOT" && "$PYTHON" "$ANSWERS" mix "$MANY" --long) | "$PYTHON" "$DSF" requests >all
	unit want all want
	[ "$(grep -c ' done ' want)" -eq "$MANY" ]
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	ln -s "$BATS_FILE_TMPDIR"/{all,want} .
}

teardown() {
	end_background
	if [ -n "${NET-}" ]; then
		for ns in hub 0 1 2 3; do
			ip netns del "$NET$ns" 2>/dev/null || true
		done
	fi
}

unit() {
	timeout -k 5 600 "$PYTHON" "$UNIT" "$@"
}

@test "a rank killed at a random instant, many times: the others answer all, the same" {
	unit kills all want "$ROUNDS" -- --redundant 8
}

@test "likewise over tcp, without redundant experts, in one micro-batch" {
	unit kills all want "$((ROUNDS / 2))" --world 3 --over tcp -- --micro-batches 1
}

@test "a rank stopped for longer than the time-out goes on: every rank answers all, the same" {
	unit stops all want "$((ROUNDS / 4))" -- --peer-timeout 500ms
	unit stops all want "$((ROUNDS / 4))" --over tcp --world 3 -- --peer-timeout 500ms
}

# A slow link makes the run long enough for the rank to find the others at work.
@test "a rank that was killed and started again joins: every rank answers all, the same" {
	unit restarts all want "$((ROUNDS / 4))" -- --redundant 8 --link-delay 2ms
	unit restarts all want "$((ROUNDS / 4))" --over tcp --world 3 -- --link-delay 2ms
}

@test "the last survivor serves alone" {
	unit last all want -- --redundant 8
	unit last all want --over tcp --world 3
}

# namespaces: four network namespaces, each with an address of 10.77.0.0/24, joined by veth pairs and a bridge in a fifth.
namespaces() {
	local r
	need_program ip
	NET=ds$$x
	ip netns add "${NET}hub" 2>/dev/null || { NET=; skip 'no network namespaces here'; }
	ip -n "${NET}hub" link add bridge type bridge || skip 'no bridges here'
	ip -n "${NET}hub" link set bridge up
	for r in 0 1 2 3; do
		ip netns add "$NET$r"
		ip -n "$NET$r" link set lo up
		ip -n "${NET}hub" link add "to$r" type veth peer name eth0 netns "$NET$r"
		ip -n "${NET}hub" link set "to$r" master bridge up
		ip -n "$NET$r" addr add "10.77.0.$((r + 1))/24" dev eth0
		ip -n "$NET$r" link set eth0 up
	done
}

@test "ranks in namespaces of their own, over tcp" {
	namespaces
	unit same all want --netns "$NET" -- --redundant 8
	unit kills all want 4 --netns "$NET"
}

# The fault: a connection that neither ends nor carries anything, for which TCP waits a quarter of an hour.
@test "a link that goes down: both sides go on, each with the experts it needs" {
	namespaces
	unit cut all want "ip -n ${NET}2 link set eth0 down" --netns "$NET" -- --peer-timeout 1s --link-delay 2ms
}

@test "packets that are dropped without a word: likewise" {
	need_program nft
	namespaces
	ip netns exec "${NET}1" nft list tables >/dev/null 2>&1 || skip 'no nftables here'
	unit cut all want "ip netns exec ${NET}1 nft 'add table inet t; add chain inet t in { type filter hook input priority 0; policy drop; }'" \
		--netns "$NET" -- --peer-timeout 1s --link-delay 2ms
}

# The fault: a rank that waits for nobody at that moment is never told that it is alone.
@test "a link that goes down while nothing is asked of anybody: both sides notice" {
	local r n=0
	namespaces
	for r in 0 1; do
		background ip netns exec "$NET$r" ds-decode -v -m "$DS_MODEL" -j 1 --unit tcp:10.77.0.1:7000 --insecure --rank "$r" --world 2 -l "unix:d.$r" \
			--peer-timeout 1s
		said[r]=$BG_ERR pid[r]=$BG
	done
	wait_socket d.0
	wait_socket d.1
	echo 'What is 1 + 1?' | ds-token -m "$DS_MODEL" encode --chat -c unix:d.0 | ds-token -m "$DS_MODEL" decode >answer
	ip -n "${NET}1" link set eth0 down
	until grep -q 'rank 1 has gone' "${said[0]}" && grep -q 'rank 0 has gone' "${said[1]}"; do
		n=$((n + 1))
		[ "$n" -lt 100 ] || { tail -n 5 "${said[@]}"; for r in 0 1; do ip netns exec "$NET$r" ss -tnao; done; false; } >&2
		sleep 0.1
	done
	echo 'What is 1 + 1?' | ds-token -m "$DS_MODEL" encode --chat -c unix:d.1 | ds-token -m "$DS_MODEL" decode | cmp answer -
	kill -TERM "${pid[@]}"
	wait "${pid[0]}"
	wait "${pid[1]}"
}
