# The names in what programs say of themselves (SIGUSR1, metrics, stat, --stats) are those that their pages explain.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# explained PAGE: each line of stdin is a name that the page has as literal text.
explained() {
	"$PYTHON" -c '
import re, sys
known = set()
for line in open(sys.argv[1]):
    if re.match(r"\.(It |Pq |Po |Op )?Ql ", line):
        known |= set(line.split())
names = {line.strip() for line in sys.stdin if line.strip()}
missing = sorted(names - known)
if not names or missing:
    print(sys.argv[1], "does not explain", missing or "nothing", file=sys.stderr)
    sys.exit(1)
' "$DS_ROOT/man/$1"
}

# state_of PID FILE: the names of the objects that SIGUSR1 adds to a program's standard error.
state_of() {
	local n=$3
	kill -USR1 "$1"
	for _ in $(seq 100); do [ "$(grep -c '^{' "$2")" -ge "$n" ] && break; sleep 0.05; done
	"$PYTHON" -c '
import json, sys
def names(v, skip=()):
    if isinstance(v, dict):
        for k, w in v.items():
            if k not in skip: print(k)
            if k != "requests" or not isinstance(w, dict): names(w)
    elif isinstance(v, list):
        for w in v: names(w)
found = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
assert len(found) >= int(sys.argv[2]), found
for f in found: names(f)
' "$2" "$n"
}

@test "states of ds-prefill and ds-decode" {
	background ds-prefill -m "$DS_MODEL" --kv dir:store -l unix:p.sock
	wait_socket p.sock
	state_of "$(pgrep -P "$BG" -x ds-prefill)" "$BG_ERR" 1 >names
	grep -qx missing_blocks names
	explained ds-prefill.1 <names
	background ds-decode -m "$DS_MODEL" --kv dir:store --store-generated -l unix:d.sock
	wait_socket d.sock
	state_of "$(pgrep -P "$BG" -x ds-decode)" "$BG_ERR" 1 >names
	grep -qx kv_blocks_outside names
	explained ds-decode.1 <names
}

@test "a rank's part of them" {
	sed -n '/^void ranked_state/,/^}/s/.*jw_[a-z_]*(out, "\([a-z_]*\)".*/\1/p' "$DS_ROOT/lib/serve/ranked.c" >names
	[ "$(wc -l <names)" -ge 7 ]
	explained ds-prefill.1 <names
	explained ds-decode.1 <names
}

@test "the line about the store in --stats" {
	printf '' | "$PYTHON" "$DS_ROOT/tests/bats/dsf.py" requests >none
	for p in prefill decode; do
		"ds-$p" -m "$DS_MODEL" --kv dir:store --stats --log-format json -q <none 2>said | cat >/dev/null
		[ "$(wc -l <said)" -eq 1 ]
		"$PYTHON" -c 'import json, sys; s = json.loads(sys.stdin.read())["stats"]["kv_store"]; assert s["asks"] == 0 and "missing_blocks" in s, s' <said
		"ds-$p" -m "$DS_MODEL" --kv dir:store --stats -q <none >/dev/null 2>said
		sed -n 's/.*kv store: //p' said | sed 's/[,;]/\n/g' | sed 's/ *[0-9]* *//; s/ [0-9]* times$//; s/^\(prompts\|blocks\) //' >words
		[ "$(wc -l <words)" -eq 10 ]
		col -b <"$DS_ROOT/man/ds-$p.1" | tr -s '\n ' '  ' >page
		while read -r w; do grep -qF -- "$w" page || { echo "ds-$p.1 does not say '$w'" >&2; false; }; done <words
		grep -qx missing words
	done
}

@test "states, metrics and stat of ds-kvstore" {
	background ds-kvstore -d store -l unix:kv.sock --resp unix:resp.sock --metrics figures
	pid=$(pgrep -P "$BG" -x ds-kvstore)
	wait_socket kv.sock
	wait_socket resp.sock
	"$PYTHON" -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect("kv.sock"); s.recv(1); sys.stdin.read()' < <(sleep 3) &
	sleep 0.5
	state_of "$pid" "$BG_ERR" 1 >names
	grep -qx seconds names
	explained ds-kvstore.1 <names
	ds-kvstore stat unix:kv.sock | awk '{ print $1 }' | explained ds-kvstore.1
	ds-kvstore stat unix:kv.sock | awk '{ print $1 }' >counters
	kill "$pid"
	wait "$BG"
	# metrics are named as counters are, but for _total
	sed -n 's/^ds_kvstore_\([a-z_]*\).*/\1/p' figures | sort -u >metrics
	[ "$(wc -l <metrics)" -gt 35 ]
	while read -r name; do grep -qx "${name%_total}" counters || echo "$name"; done <metrics | explained ds-kvstore.1
	ds-kvstore stat store | awk '$1 != "dead_bytes" { print $1 }' | explained ds-kvstore.1
}
