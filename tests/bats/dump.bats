# --dump and --dump-to of ds-prefill and ds-decode: what is written, and that nothing else changes.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
EVAL=$DS_ROOT/tests/golden/eval

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# requests N: N requests of mixed length with names m00, m01, ...
requests() {
	"$PYTHON" - "$EVAL/golden-fp8.jsonl" "$1" <<-'END' | "$PYTHON" "$DSF" requests
		import json, sys
		golden = [json.loads(line) for line in open(sys.argv[1])]
		for i in range(int(sys.argv[2])):
		    print(json.dumps({"id": f"m{i:02}", "ids": golden[i]["prompt_ids"], "max_tokens": 4 + i}))
	END
}

# points FILE: the points of a dump in order of appearance, "name rows columns dtype".
points() {
	"$PYTHON" - "$DSF" "$1" <<-'END'
		import importlib.util, sys
		spec = importlib.util.spec_from_file_location("dsf", sys.argv[1])
		dsf = importlib.util.module_from_spec(spec)
		spec.loader.exec_module(dsf)
		for kind, flags, stream, seq, meta, data in dsf.read_frames(sys.argv[2]):
		    if kind == 13:
		        (name, dtype, dims, shape, offset, nbytes, scale), = meta["tensors"]
		        layer = f"layer.{meta['layer']}." if "layer" in meta else ""
		        assert name == layer + meta["point"] and sum(r[2] for r in meta["rows"]) == shape[0] and dims == ["token", "dim"]
		        assert stream in (0, meta["rows"][0][0]) and (stream != 0) == (len({r[0] for r in meta["rows"]}) == 1)
		        print(meta["step"], name, *shape, dtype)
	END
}

# named FILE: "stream name" of each request frame and each segment of a tensor frame, as ds-frame dump shows them.
named() {
	ds-frame dump "$1" | "$PYTHON" -c 'import json, sys
for f in map(json.loads, sys.stdin):
    if f["type"] == "request": print(f["stream"], f["meta"]["id"])
    for r in f["meta"].get("rows", []): print(r[0], r[3])'
}

@test "every point, in order, with its shape" {
	local l
	requests 1 >req
	limited ds-prefill -m "$DS_MODEL" --dump '*' --dump-to d <req >kv
	run -0 limited ds-frame check d
	points d >got
	n=$("$PYTHON" -c 'import json, sys; print(len(json.loads(open(sys.argv[1]).readline())["prompt_ids"]))' "$EVAL/golden-fp8.jsonl")
	{
		echo "0 embed $n 256 F32"
		for l in 0 1 2; do
			echo "0 layer.$l.q $n 384 F32"
			echo "0 layer.$l.kv $n 160 F32"
			echo "0 layer.$l.attn_core $n 256 F32"
			echo "0 layer.$l.attn_out $n 256 F32"
			echo "0 layer.$l.attn $n 256 F32"
			if [ "$l" -gt 0 ]; then
				echo "0 layer.$l.router.logits $n 32 F32"
				echo "0 layer.$l.router.ids $n 4 U32"
				echo "0 layer.$l.router.weights $n 4 F32"
			fi
			echo "0 layer.$l.mlp_out $n 256 F32"
			echo "0 layer.$l.out $n 256 F32"
		done
		echo "0 final $n 256 F32"
		echo "0 logits 1 1024 F32"
	} >want
	diff want got
	limited ds-decode -m "$DS_MODEL" --dump 'layer.2.attn_o?t,final' --dump-to e <kv >tokens
	[ "$(points e | cut -d ' ' -f 2- | sort | uniq -c | sed 's/^ *//')" = "3 final 1 256 F32
3 layer.2.attn_out 1 256 F32" ]
}

@test "the answers are the same bits with and without a dump" {
	requests 12 >req
	limited ds-prefill -m "$DS_MODEL" -o kv --dump '*' --dump-to d <req
	limited ds-prefill -m "$DS_MODEL" -o kv2 <req
	for f in kv kv2; do limited ds-frame dump $f | sed 's/"[a-z]*_ns":[0-9]*,*//g' >$f.text; done
	cmp kv.text kv2.text
	limited ds-decode -m "$DS_MODEL" --dump '*' --dump-to e kv | "$PYTHON" "$DSF" tokens - >with
	limited ds-decode -m "$DS_MODEL" kv | "$PYTHON" "$DSF" tokens - >without
	cmp with without
	[ "$(grep -c ' done ' with)" -eq 12 ]
	run -0 limited ds-frame check d e
}

@test "rows of a dump bear the names of their requests" {
	requests 5 >req
	limited ds-prefill -m "$DS_MODEL" -o kv --chunk 7 --dump embed,logits --dump-to d req
	limited ds-decode -m "$DS_MODEL" -o tokens --dump final --dump-to e kv
	named kv | sort >want
	[ "$(wc -l <want)" -eq 5 ]
	for f in d e; do
		named $f | sort -u | diff want -
	done
}

@test "a pattern without a point is a usage error that lists them; --dump and --dump-to go together" {
	requests 1 >req
	refused 64 "'layer.0.router' matches no point; the points are embed final logits; layer.N.P, N from 0 to" \
		ds-prefill -m "$DS_MODEL" --dump 'embed,layer.0.router' --dump-to d req
	refused 64 "'' matches no point" ds-decode -m "$DS_MODEL" --dump '' --dump-to d req
	refused 64 'go together' ds-prefill -m "$DS_MODEL" --dump embed req
	refused 64 'go together' ds-decode -m "$DS_MODEL" --dump-to d req
	[ ! -e d ]
}

@test "a file that exists needs --force; stdout only where it is not for the answers; an address works" {
	requests 1 >req
	echo precious >d
	refused 64 "'d' exists" ds-prefill -m "$DS_MODEL" --dump embed --dump-to d req
	[ "$(cat d)" = precious ]
	limited ds-prefill -m "$DS_MODEL" --dump embed --dump-to d -f req >kv
	limited ds-frame check d kv
	refused 64 'standard output is for the answers' ds-prefill -m "$DS_MODEL" --dump embed --dump-to - req
	limited ds-prefill -m "$DS_MODEL" --dump embed --dump-to - -o kv2 req >d2
	cmp d d2
	background "$PYTHON" -c 'if True:
		import socket, sys
		s = socket.socket(socket.AF_UNIX); s.bind("s"); s.listen(); c = s.accept()[0]
		out = open("d3", "wb")
		while b := c.recv(65536): out.write(b)'
	limited ds-prefill -m "$DS_MODEL" --dump embed --dump-to unix:s -o kv3 req
	wait "$BG"
	cmp d d3
	mkfifo pipe
	background ds-frame check pipe
	limited ds-prefill -m "$DS_MODEL" --dump embed --dump-to pipe -o kv4 req
	wait "$BG"
}

@test "waiting for a reader of the dump is said once, after a second, not with -q" {
	requests 1 >req
	mkfifo pipe
	for to in unix:nobody.sock pipe; do
		run -124 timeout 3 ds-prefill -m "$DS_MODEL" --dump embed --dump-to "$to" -o kv req
		assert_output "ds-prefill: waiting for '$to' (--dump-to)"
		run -124 timeout 2 ds-decode -q -m "$DS_MODEL" --dump embed --dump-to "$to" -o tokens req
		assert_output ''
	done
	background ds-prefill -m "$DS_MODEL" --dump embed --dump-to pipe -o kv req
	sleep 2
	limited ds-frame check pipe # of a reader that comes late, all of it
	wait "$BG"
	[ "$(cat "$BG_ERR")" = "ds-prefill: waiting for 'pipe' (--dump-to)" ]
	ds-prefill -m "$DS_MODEL" --dump embed --dump-to pipe -o kv2 req 2>err &
	limited ds-frame check pipe
	wait $!
	[ ! -s err ]
}

@test "a full disk is 74 and leaves nothing; a reader that goes is 74" {
	requests 2 >req
	refused 74 "cannot write to '/dev/full'" ds-prefill -m "$DS_MODEL" --dump '*' --dump-to /dev/full -o kv req
	[ ! -e kv ]
	mkfifo pipe
	background sh -c 'head -c 1000 pipe >/dev/null'
	refused 74 'reader of the dump' ds-prefill -m "$DS_MODEL" --dump '*' --dump-to pipe -o kv req
	ulimit -f 100
	refused 74 "cannot write to 'd'" ds-prefill -m "$DS_MODEL" --dump '*' --dump-to d -o kv req
	run -2 ls d d.* kv kv.*
}

@test "a reader of the dump that takes nothing holds a service up no longer than --peer-timeout" {
	requests 2 >req
	mkfifo pipe
	exec 7<>pipe # a reader that never reads
	background ds-prefill -m "$DS_MODEL" --dump '*' --dump-to pipe -l "unix:$PWD/s" --peer-timeout 1s
	wait_socket s
	run -69 limited ds-token -m "$DS_MODEL" decode -c "unix:$PWD/s" req # cut off
	got=0
	wait "$BG" || got=$?
	[ "$got" -eq 74 ]
	[ "$(grep -c "reader of the dump took nothing for 1 s" "$BG_ERR")" -eq 1 ] # said once
	exec 7>&-
}

@test "a request that fails and a truncated input leave a whole dump; a signal leaves none" {
	requests 2 >req
	head -c "$(($(stat -c %s req) - 10))" req >cut
	run -65 limited ds-prefill -m "$DS_MODEL" --dump embed --dump-to d -o kv cut
	run -0 limited ds-frame check d
	mkfifo in
	background ds-prefill -m "$DS_MODEL" --dump embed --dump-to e in -o out
	exec 8>in
	cat req >&8
	for _ in $(seq 100); do ls e.*.tmp >/dev/null 2>&1 && break || sleep 0.1; done
	ls e.*.tmp
	kill "$BG"
	wait "$BG" || true
	exec 8>&-
	for _ in $(seq 100); do ls e.* out.* >/dev/null 2>&1 || break; sleep 0.1; done
	run -2 ls e e.* out out.*
}

@test "a service dumps what all its clients ask" {
	requests 2 >req
	background ds-prefill -m "$DS_MODEL" -l unix:s --dump 'layer.1.out' --dump-to d
	pid=$BG
	wait_socket s
	for i in 1 2; do
		"$PYTHON" -c 'import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect("s"); s.sendall(open("req", "rb").read())
while b := s.recv(65536): sys.stdout.buffer.write(b)' >kv$i
	done
	limited ds-frame check kv1 kv2
	[ ! -e d ]
	kill "$pid"
	wait "$pid"
	run -0 limited ds-frame check d
	[ "$(points d | wc -l)" -ge 2 ]
}

@test "a prompt that begins like an earlier one has all its rows in the dump" {
	printf '%s\n' '{"id": "a", "ids": [3], "max_tokens": 2}' '{"id": "b", "ids": [3], "max_tokens": 2}' |
		"$PYTHON" -c 'import json, sys
for line in sys.stdin:
    print(json.dumps({**json.loads(line), "ids": [(7 * t) % 1000 + 3 for t in range(150)]}))' | "$PYTHON" "$DSF" requests >req
	limited ds-decode -m "$DS_MODEL" --max-batch 1 -o out --dump embed --dump-to d req
	[ "$(points d | awk '{ n += $3 } END { print n }')" -eq $((2 * 150 + 2)) ]
	limited ds-decode -m "$DS_MODEL" --max-batch 1 -o hit req
	ds-frame dump hit | has '"hit":128'
}

@test "drafts: the MTP layer is layer number 3, and the main model's rows are those of a run without drafts" {
	requests 2 >req
	limited ds-prefill -m "$DS_MODEL" --mtp -o kv req
	limited ds-decode -m "$DS_MODEL" --dump 'layer.2.out' --dump-to plain -o tokens kv
	limited ds-decode -m "$DS_MODEL" --mtp 1 --mtp-always --dump 'layer.2.out,layer.3.out' --dump-to drafts -o tokens.drafts kv
	points drafts | grep 'layer.3.out' >/dev/null # reads to the end, as -q would not
	limited ds-frame diff <(ds-frame filter --layer 2 drafts) plain >table || true
	# Rows of drafts that were not accepted are replaced, but for those behind the last token.
	grep -q 'layer.2.out  *[0-9]*  *0  *0  *0  *1$' table
	refute grep -q 'rows only in plain' table
}

@test "points of the MTP layer are there where it runs, as far as it runs" {
	requests 1 >req
	refused 64 'layer.N.P, N from 0 to 2, P one' ds-decode -m "$DS_MODEL" --dump layer.3.out --dump-to d req
	refused 64 "'layer.3.q' matches no point" ds-prefill -m "$DS_MODEL" --dump layer.3.q --dump-to d req
	refused 64 'mlp_out out; layer.3.q, layer.3.kv; layer.N.P, N from 1 to 2, P one' \
		ds-prefill -m "$DS_MODEL" --mtp --dump layer.3.router --dump-to d req
	limited ds-prefill -m "$DS_MODEL" --mtp --dump 'layer.3.*' --dump-to d -o kv req
	[ "$(points d | cut -d ' ' -f 2 | sort -u | paste -sd ' ')" = 'layer.3.kv layer.3.q' ]
}

@test "choices of a request have stream ids of their own in a dump" {
	requests 1 >req
	"$PYTHON" "$DSF" set req request n 3 >req3
	"$PYTHON" "$DSF" set req3 request sampling.temperature 0.8 >req4
	limited ds-prefill -m "$DS_MODEL" -o kv req4
	limited ds-decode -m "$DS_MODEL" --dump 'layer.2.out' --dump-to d -o tokens kv
	run -0 limited ds-frame check d
	named d | sort -u >streams
	[ "$(wc -l <streams)" -eq 3 ]
	refute grep -v ' m00$' streams
	limited ds-decode -m "$DS_MODEL" --mtp 1 --mtp-always --dump 'layer.2.out,layer.3.out' --dump-to e -o tokens2 req4
	[ "$(named e | cut -d ' ' -f 2 | sort -u)" = m00 ]
	# By the request's name all of it, by a stream one choice.
	ds-frame filter -r m00 e | cmp - e
	ds-frame filter -r m01 d | ds-frame stat | refute grep layer
	third=$(sort streams | tail -n 1)
	ds-frame cut -s "${third% *}" d >one
	[ "$(named one | sort -u)" = "$third" ]
	ds-frame pack d -o st
	ds-frame unpack st | ds-frame diff - d
}
