# ds-kvstore's sub-commands on a directory: stat, ls, verify, gc, export, import.
load helper

CHECK=$DS_ROOT/tests/bats/kvstore_check.py

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	ds-kvstore -l unix:kv.sock -d store --segment 1M 3>&- & # many small files
	pid=$!
	wait_socket kv.sock
	limited "$PYTHON" "$CHECK" fill unix:kv.sock 0 40 100000
	limited "$PYTHON" - <<-END
		import sys
		sys.path.insert(0, "$DS_ROOT/tests/bats")
		from kvstore import *
		c = Client("unix:kv.sock")
		for i in range(10):
		    c.call("del", [key(i)])
		c.put(key(50), b"a value", meta={"name": "na\x1bme"}, ttl_ns=3600_000_000_000)
		c.put(key(51), bytes(64), meta={"model": "0123456789abcdef0123", "first": 128, "block": 64, "decoded": 64})
		c.put(key(52), bytes(64), meta={"model": "0123456789abcdef0123", "first": 192, "block": 64, "decoded": 3})
		c.put(key(53), bytes(64), meta={"name": b"\xff\x00bin"})
		c.end()
	END
	kill "$pid"
	wait "$pid"
}

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
	cp -r "$BATS_FILE_TMPDIR/store" .
}

teardown() {
	end_background
}

check() {
	limited "$PYTHON" "$CHECK" "$@"
}

@test "stat of a directory, as text and as JSON" {
	run limited ds-kvstore stat store
	assert_success
	[ "$(awk '$1 == "items" { print $2 }' <<<"$output")" = 34 ]
	ds-kvstore stat --json store | "$PYTHON" -c '
import json, sys
s = json.load(sys.stdin)
assert s["items"] == 34 and s["bytes"] > 3100000 and s["segments"] >= 3, s'
	ds-kvstore stat dir:store | grep -q '^items *34$'
	[ "$(ds-kvstore stat store | awk '{ print $1 }' | tr '\n' ' ')" = "items bytes capacity segments dead_bytes " ]
}

@test "stat of a service is what it did" {
	background ds-kvstore -l unix:kv.sock -d store
	wait_socket kv.sock
	[ "$(check read unix:kv.sock 0 40 100000)" = 30 ]
	ds-kvstore stat unix:kv.sock >stat
	grep -q '^hits *30$' stat
	grep -q '^misses *10$' stat
	diff <(ds-kvstore stat store | grep '^items') <(grep '^items' stat) # of the directory also while it is in use
}

@test "ls: a line for each item, a table or JSON; names are made harmless" {
	limited ds-kvstore ls store >table
	[ "$(wc -l <table)" -eq 35 ]
	grep -q '^key .*segment, offset, what$' table
	grep -q '  na?me$' table
	grep -q '  tokens 128+64 of 0123456789abcdef$' table
	grep -q '  tokens 192+64 (generated) of 0123456789abcdef$' table
	limited ds-kvstore ls --json store >lines
	"$PYTHON" - <<-'END'
		import json
		items = [json.loads(line) for line in open("lines")]
		assert len(items) == 34 and len({i["key"] for i in items}) == 34
		assert sum(i["size"] == 100000 for i in items) == 30
		named = [i for i in items if i["meta"].get("name") == "na\x1bme"]
		assert len(named) == 1 and named[0]["size"] == 7 and named[0]["stored"] == 64 and named[0]["meta"]["expires"] > 0
		for i in items:
		    f = open("store/" + i["segment"], "rb")
		    f.seek(i["offset"])
		    assert f.read(6) == b"\x9a\xa4DSF1", i
	END
}

@test "verify: 0 where all is well, 1 and a line for each fault" {
	limited ds-kvstore verify store >report
	grep -q '^items *34$' report
	grep -q '^bad_items *0$' report
	"$PYTHON" - <<-'END'
		import json, subprocess
		items = [json.loads(line) for line in subprocess.check_output(["ds-kvstore", "ls", "--json", "store"]).splitlines()]
		for i in items[3], items[20]:
		    with open("store/" + i["segment"], "r+b") as f:
		        f.seek(i["offset"] + 5000)
		        b = f.read(1)
		        f.seek(i["offset"] + 5000)
		        f.write(bytes([b[0] ^ 4]))
	END
	run -1 --separate-stderr limited ds-kvstore verify store
	[ "$(wc -l <<<"$stderr")" -eq 2 ]
	grep -q '^bad_items *2$' <<<"$output"
	! grep -v '^ds-kvstore: ' <<<"$stderr" || false
	run -1 --separate-stderr limited ds-kvstore verify --json store
	"$PYTHON" -c 'import json, sys; r = json.loads(sys.argv[1]); assert r["bad_items"] == 2, r' "$output"
	background ds-kvstore -l unix:kv.sock -d store # what is wrong is a miss
	wait_socket kv.sock
	[ "$(check read unix:kv.sock 0 40 100000)" = 28 ]
	[ "$(ds-kvstore stat unix:kv.sock | awk '$1 == "corrupt" { print $2 }')" = 2 ]
}

@test "export and import: the same items, and ds-frame can read what is between" {
	limited ds-kvstore export store -o all.frames
	ds-frame check all.frames
	[ "$(ds-frame dump all.frames | grep -c '"type":"store"')" -eq 34 ]
	limited ds-kvstore import other all.frames -v 2>err
	grep -q '34 items imported, 0 there already' err
	limited ds-kvstore export store | limited ds-kvstore import other -v 2>err
	grep -q '0 items imported, 34 there already' err
	limited ds-kvstore verify other >report
	grep -q '^items *34$' report
	background ds-kvstore -l unix:kv.sock -d other
	wait_socket kv.sock
	[ "$(check read unix:kv.sock 0 40 100000)" = 30 ]
}

@test "an export is a conversation, too: a filter takes it, and says what became of each" {
	limited ds-kvstore export store | limited ds-kvstore -d other >answers
	[ "$("$PYTHON" "$DS_ROOT/tests/bats/dsf.py" types answers | sort | uniq -c | xargs)" = '1 end 1 hello 34 store' ]
	[ "$(ds-kvstore stat other | awk '$1 == "items" { print $2 }')" = 34 ]
}

@test "compressed: stored smaller, read the same, exported and imported" {
	limited ds-kvstore export store | limited ds-kvstore import small --compress zstd
	[ "$(du -s small | cut -f 1)" -lt $(($(du -s store | cut -f 1) / 4)) ]
	limited ds-kvstore verify small
	limited ds-kvstore export small | limited ds-kvstore import again
	background ds-kvstore -l unix:kv.sock -d small
	wait_socket kv.sock
	for how in '' '?bytes'; do
		background ds-kvstore -l "unix:front$how.sock" --store "unix:kv.sock$how"
		wait_socket "front$how.sock"
		[ "$(check read "unix:front$how.sock" 0 40 100000)" = 30 ]
	done
	background ds-kvstore -l unix:again.sock -d again
	wait_socket again.sock
	[ "$(check read unix:again.sock 0 40 100000)" = 30 ]
}

@test "export: a file that is there needs -f, a full disk is noticed, nothing is left behind" {
	echo precious >all.frames
	refused 64 'all.frames' ds-kvstore export store -o all.frames
	grep -qx precious all.frames
	limited ds-kvstore export store -o all.frames -f
	ds-frame check all.frames
	refused 74 '' sh -c 'exec ds-kvstore export store >/dev/full'
	[ "$(find . -name '*frames*' | wc -l)" -eq 1 ]
}

@test "gc drops what is dead" {
	before=$(du -sb store | cut -f 1)
	[ "$(ds-kvstore stat store | awk '$1 == "dead_bytes" { print $2 }')" -gt 900000 ]
	limited ds-kvstore verify store >report
	[ "$(awk '$1 == "dead_bytes" { print $2 }' report)" -gt 900000 ]
	limited ds-kvstore gc store >report
	limited ds-kvstore verify store >report
	grep -q '^items *34$' report
	grep -q '^dead_bytes *0$' report
	ds-kvstore stat store | grep -q '^dead_bytes *0$'
	[ "$(du -sb store | cut -f 1)" -lt "$before" ]
}

@test "a capacity is remembered: whoever writes keeps to it, until another is said" {
	limited ds-kvstore export store -o all.frames
	limited ds-kvstore import small all.frames --capacity 1M
	[ "$(cat small/capacity)" = 1048576 ]
	limited ds-kvstore import small all.frames
	[ "$(du -sb small | cut -f 1)" -le 1060000 ]
	ds-kvstore stat small | grep -q '^capacity *1048576$'
	echo 2M >small/capacity
	background ds-kvstore -l unix:kv.sock -d small
	wait_socket kv.sock
	ds-kvstore stat unix:kv.sock | grep -q '^capacity *2097152$'
	limited ds-kvstore gc --capacity 0 small
	limited ds-kvstore import small all.frames
	[ "$(ds-kvstore stat small | awk '$1 == "items" { print $2 }')" = 34 ]
	limited ds-kvstore --store 'dir:other?capacity=1M' <all.frames >/dev/null
	[ "$(cat other/capacity)" = 1048576 ]
	[ "$(du -sb other | cut -f 1)" -le 1060000 ]
	echo much >other/capacity
	refused 78 "other/capacity' is no size" ds-kvstore import other all.frames
	refused 64 'no size' ds-kvstore --store 'dir:other?capacity=' </dev/null
	limited ds-kvstore verify other
}

@test "an import that is cut short or damaged takes what came whole, and says so" {
	limited ds-kvstore export store -o all.frames
	head -c 1500000 all.frames >cut
	refused 65 'truncated' ds-kvstore import other cut
	n=$(ds-kvstore stat other | awk '$1 == "items" { print $2 }')
	[ "$n" -gt 5 ] && [ "$n" -lt 34 ]
	limited ds-kvstore verify other
}

@test "what is no directory of a store" {
	mkdir empty
	refused 66 'nowhere' ds-kvstore ls nowhere
	refused 66 'nowhere' ds-kvstore verify nowhere
	refused 66 'nowhere' ds-kvstore export nowhere
	refused 66 'nowhere' ds-kvstore stat nowhere
	echo 'something else' >empty/file
	refused 65 'empty' ds-kvstore ls empty
	refused 65 'empty' ds-kvstore verify empty
	[ ! -e nowhere ]
	refused 66 'nofile' ds-kvstore import store nofile
	refused 65 '/dev/null' ds-kvstore import new /dev/null
	refused 65 'file' ds-kvstore import new empty/file
	[ ! -e new ]
}
