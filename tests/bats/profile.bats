# --trace and --stats of ds-prefill and ds-decode: they change nothing, and what they say adds up.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
CHECK=$DS_ROOT/tests/bats/trace_check.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# requests N MAX: N requests of different lengths, a third of them sampled.
requests() {
	"$PYTHON" - "$@" <<-'END' | "$PYTHON" "$DSF" requests
		import json, sys
		for r in range(int(sys.argv[1])):
		    n = 3 + 31 * r % 150
		    print(json.dumps({"id": f"r\"{r}", "ids": [(7 * t + 11 * r) % 1000 + 3 for t in range(n)], "max_tokens": int(sys.argv[2]),
		                      "ignore_eos": True, "sampling": {"temperature": r % 3 // 2 * 0.8, "seed": r}}))
	END
}

# still FILE: the frames of a stream without the times in them.
still() {
	"$PYTHON" - "$DS_ROOT/tests/bats" "$1" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		import dsf
		for kind, flags, stream, seq, meta, data in dsf.read_frames(sys.argv[2]):
		    for key in [k for k in meta if k.endswith("_ns")] + ["_", "timings", "bytes"]:
		        meta.pop(key, None)
		    print(kind, flags, stream, seq, sorted(meta.items()), data.hex())
	END
}

@test "with a trace and statistics the output has the same bits" {
	requests 5 12 >in
	limited ds-prefill -m "$DS_MODEL" -j 2 -i in -o plain.kv
	limited ds-prefill -m "$DS_MODEL" -j 2 -i in -o seen.kv --trace p.json --stats 2>p.txt
	cmp <(still plain.kv) <(still seen.kv)
	limited ds-decode -m "$DS_MODEL" -j 2 -i plain.kv -o plain
	limited ds-decode -m "$DS_MODEL" -j 2 -i seen.kv -o seen --trace d.json --stats 2>d.txt
	cmp <(still plain) <(still seen)
	[ "$(still seen | wc -l)" -gt 60 ]
}

@test "a trace is JSON, its spans nest, stages fill their steps, and the statistics are the sums of the spans" {
	requests 5 12 >in
	limited ds-prefill -m "$DS_MODEL" -j 2 --chunk 64 --stats --log-format json --trace p.json <in >kv 2>p.err
	"$PYTHON" "$CHECK" p.json p.err >p.out
	limited ds-decode -m "$DS_MODEL" -j 2 --stats --log-format json --trace d.json <kv >out 2>d.err
	"$PYTHON" "$CHECK" d.json d.err >d.out
	printf '%s\n' 'steps 11' 'requests 5' 'threads 2' | diff - d.out
	grep -q '^requests 5$' p.out
	limited ds-decode -m "$DS_MODEL" -j 1 --trace d1.json <kv >out
	"$PYTHON" "$CHECK" d1.json | diff - <(printf '%s\n' 'steps 11' 'requests 5' 'threads 1')
}

@test "passes of the MTP layer are drafts in the trace and one line of the statistics" {
	requests 3 12 >in
	limited ds-prefill -m "$DS_MODEL" --mtp --stats --log-format json --trace p.json <in >kv 2>p.err
	"$PYTHON" "$CHECK" p.json p.err | has '^drafts [1-9]'
	limited ds-decode -m "$DS_MODEL" --mtp 2 --mtp-always --stats --log-format json --trace d.json <kv >out 2>d.err
	"$PYTHON" "$CHECK" d.json d.err | has '^drafts [1-9]'
	limited ds-decode -m "$DS_MODEL" --stats --log-format json <kv >out 2>plain.err
	cmp <(grep -o '"tokens_out":[0-9]*' d.err) <(grep -o '"tokens_out":[0-9]*' plain.err) # drafts are no tokens
}

@test "steps have the same numbers in a trace and in a dump, from 0" {
	requests 5 6 >in
	limited ds-prefill -m "$DS_MODEL" --chunk 40 --batch-tokens 60 --trace p.json --dump embed --dump-to p.dump <in >kv
	limited ds-decode -m "$DS_MODEL" --mtp 2 --mtp-always --trace d.json --dump '*.kv,embed' --dump-to d.dump -i in >out
	"$PYTHON" - "$DS_ROOT/tests/bats" p d <<-'END'
		import json, sys
		sys.path.insert(0, sys.argv[1])
		import dsf
		for run in sys.argv[2:]:
		    spans = [e for e in json.load(open(run + ".json")) if e["ph"] == "X" and e["name"] in ("step", "draft")]
		    steps = {e["args"]["step"]: e["args"]["rows"] for e in spans if e["name"] == "step"}
		    dump = [meta for kind, _, _, _, meta, _ in dsf.read_frames(run + ".dump") if kind == 13]
		    rows = {m["step"]: sum(r[2] for r in m["rows"]) for m in dump if m["point"] == "embed"}
		    assert list(steps) == list(range(len(steps))) and len(steps) > 3 and rows == steps, (run, steps, rows)
		    drafts = [(e["args"]["step"], e["args"]["rows"]) for e in spans if e["name"] == "draft"]
		    assert drafts == [(m["step"], sum(r[2] for r in m["rows"])) for m in dump if m.get("layer") == 3], run
		    assert bool(drafts) == (run == "d")
	END
}

@test "a run that fails before its first step prints no statistics" {
	echo "no frames" >kv
	refused 65 "" ds-decode -m "$DS_MODEL" --stats -i kv
	refused 66 "no such" ds-decode -m "$DS_MODEL" --stats --trace t.json -i "no such"
	[ ! -e t.json ] || "$PYTHON" -c 'import json; json.load(open("t.json"))'
}

@test "the table of --stats has a line a stage, its shares add up, and its tokens are those that were made" {
	requests 3 9 >in
	limited ds-prefill -m "$DS_MODEL" --stats <in 2>p.txt >kv
	limited ds-decode -m "$DS_MODEL" --stats <kv 2>d.txt >out
	head -n 1 p.txt | has "^ds-prefill: .* $((3 + 34 + 65)) tokens in, 3 out,"
	head -n 1 d.txt | has '^ds-decode: 8 steps, 24 tokens in, 24 out,'
	has '^limits: reading [0-9.]* GB/s, [0-9.]* GFLOP/s; measured just now, .* threads, kernels' <d.txt
	awk 'NR > 3 && $1 != "steps" { sum += $4; n++; ms += $3 } $1 == "steps" { all = $3 }
		END { exit !(n == 11 && sum > 99 && sum < 101 && ms > all - 0.1 && ms < all + 0.1) }' d.txt
	[ "$(sed -n '4,$p' d.txt | cut -d' ' -f1 | tr '\n' ' ')" = \
		"embed ATTN-0 ATTN-1 DISPATCH SHARED MLP COMBINE dense head sample other steps " ]
}

@test "without --stats nothing is printed, and no input still gives a table and a trace" {
	requests 1 2 | limited ds-prefill -m "$DS_MODEL" --trace t.json >kv 2>err
	[ ! -s err ]
	requests 0 2 | limited ds-prefill -m "$DS_MODEL" --stats --trace e.json >kv 2>err
	has '^ds-prefill: 0 steps, 0 tokens in, 0 out' <err
	"$PYTHON" -c 'import json; assert json.load(open("e.json"))[-1]["name"] == "end"'
}

@test "a trace has a file of its own" {
	requests 1 2 >in
	refused 64 "--trace: 't.json' is the file of --output" ds-prefill -m "$DS_MODEL" -i in -o t.json --trace t.json
	refused 64 "--dump-to: 'x' is the file of --output" \
		ds-prefill -m "$DS_MODEL" -i in -f -o x --dump final --dump-to x
	refused 64 "'-' is no file" ds-prefill -m "$DS_MODEL" -i in --trace -
	[ ! -e t.json ] && [ ! -e x ] && [ ! -e - ]
	limited ds-prefill -m "$DS_MODEL" -i in -o /dev/null --dump final --dump-to /dev/null --trace /dev/null
}

@test "an existing trace is kept unless --force is given; one that cannot be made is refused before any work" {
	requests 1 2 >in
	echo precious >t.json
	refused 64 "'t.json' is there" ds-prefill -m "$DS_MODEL" -i in --trace t.json
	[ "$(cat t.json)" = precious ]
	limited ds-prefill -m "$DS_MODEL" -f -i in -o kv --trace t.json
	"$PYTHON" "$CHECK" t.json
	refused 74 "cannot create the trace 'no/t.json': No such file" ds-prefill -m "$DS_MODEL" -i in --trace no/t.json
}

@test "a trace that cannot be written ends with a warning; the answers are complete, the exit code is 74" {
	local got=0
	[ -e /dev/full ] || skip "no /dev/full"
	requests 2 30 >in
	limited ds-prefill -m "$DS_MODEL" <in >kv
	limited ds-decode -m "$DS_MODEL" -i kv -o plain
	limited ds-decode -m "$DS_MODEL" -i kv -o out --trace /dev/full 2>err || got=$?
	[ "$got" -eq 74 ]
	cmp <(still plain) <(still out)
	has "^ds-decode: the trace ends here: No space left on device$" <err
	has "^ds-decode: cannot write the trace '/dev/full': No space left on device$" <err
	[ "$(wc -l <err)" -eq 2 ]
}

@test "the trace of a run that was killed can be read up to there" {
	requests 1 4000 >in
	limited ds-prefill -m "$DS_MODEL" <in >kv
	background ds-decode -m "$DS_MODEL" -i kv -o out --trace t.json
	for _ in $(seq 200); do
		[ -f t.json ] && [ "$(wc -c <t.json)" -gt 100000 ] && break
		sleep 0.05
	done
	kill -9 "$(pgrep -P "$BG" ds-decode)"
	wait "$BG" || true
	"$PYTHON" "$CHECK" --cut t.json
}
