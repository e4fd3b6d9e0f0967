# ds-frame stat, head, filter, cut, merge, diff, pack, unpack, on captures and dumps of real runs.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
EVAL=$DS_ROOT/tests/golden/eval
CAPTURE=$DS_ROOT/tests/bats/make_capture.py

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	"$PYTHON" - "$EVAL/golden-fp8.jsonl" <<-'END' >lines
		import json, sys
		golden = [json.loads(line) for line in open(sys.argv[1])]
		for i in range(6):
		    print(json.dumps({"id": f"m{i}", "ids": golden[i]["prompt_ids"] * (1 + 2 * i), "max_tokens": 5 + i}))
	END
	"$PYTHON" "$DSF" requests <lines >req
	ds-prefill -m "$DS_MODEL" -o kv --dump '*' --dump-to d req
	ds-prefill -m "$DS_MODEL" -o kv.chunks --chunk 7 --batch-tokens 11 --max-batch 3 -j 1 --dump '*' --dump-to d.chunks req
	ds-decode -m "$DS_MODEL" -o tok --dump 'layer.1.*,logits' --dump-to e kv
	ds-decode -m "$DS_MODEL" -o tok.alone --max-batch 1 --dump 'layer.1.*,logits' --dump-to e.alone kv
}

teardown() {
	end_background
}

setup() {
	cd "$BATS_FILE_TMPDIR" || return 1
	T=$BATS_TEST_TMPDIR
	PYTHONDONTWRITEBYTECODE=1
	export PYTHONDONTWRITEBYTECODE
}

# each FILE EXPRESSION: evaluates a Python expression for each frame f of a capture (m: its meta) and prints what is not None.
each() {
	ds-frame dump "$1" | "$PYTHON" -c '
import json, sys
for line in sys.stdin:
    f = json.loads(line)
    m, v = f["meta"], None
    v = eval(sys.argv[1])
    if v is not None: print(v)' "$2"
}

# valid FILE: a whole capture.
valid() {
	limited ds-frame check "$@" >/dev/null
}

# edit FROM TO CODE: a capture rewritten by dsf.py, with CODE run for each frame (kind, stream, meta, data; drop = True leaves it out).
edit() {
	"$PYTHON" - "$DSF" "$1" "$2" "$3" <<-'END'
		import importlib.util, struct, sys
		spec = importlib.util.spec_from_file_location("dsf", sys.argv[1])
		dsf = importlib.util.module_from_spec(spec)
		spec.loader.exec_module(dsf)
		out = dsf.Writer(open(sys.argv[3], "wb"))
		code = compile(sys.argv[4], "edit", "exec")
		for kind, flags, stream, seq, meta, data in dsf.read_frames(sys.argv[2]):
		    if kind == 15:
		        break
		    meta.pop("xxh", None)
		    env = {"kind": kind, "stream": stream, "meta": meta, "data": bytearray(data), "drop": False, "struct": struct, "seq": seq}
		    exec(code, env)
		    if not env["drop"]:
		        out.write(env["kind"], env["stream"], meta, bytes(env["data"]), flags)
		out.end()
		out.out.close()
	END
}

# differ LINES...: ds-frame diff of two files exits 1 and its output has every one of the lines (fixed strings).
differ() {
	local a=$1 b=$2 line
	shift 2
	# shellcheck disable=SC2086,SC2153 # a list of options
	run -1 limited ds-frame diff $OPTIONS "$a" "$b"
	for line; do
		[[ $output == *"$line"* ]] || {
			echo "no '$line' in:"
			echo "$output"
			return 1
		}
	done
	assert_line different
}

# ---- law 2, seen through diff ----

@test "diff: other chunks, batches and threads compute the same bits at every point" {
	run -0 limited ds-frame diff d d.chunks
	assert_line 'the same'
	refute_output --partial '*'
	[ "$(grep -c 'layer.2.*0          0          0            1$' <<<"$output")" -ge 8 ]
	run -0 limited ds-frame diff kv kv.chunks
	assert_line --partial 'layer.2.cache'
	assert_line --partial 'request.tokens'
	run -0 limited ds-frame diff e e.alone
	run -0 limited ds-frame diff tok tok.alone
	assert_line '  6 answers, 45 tokens the same before any difference, 45 logprobs within 0'
	! cmp -s d d.chunks
	! cmp -s e e.alone
}

@test "diff: from pipes, compressed payloads, the same as from files" {
	run -0 bash -c 'cat d | timeout 60 ds-frame diff - <(cat d.chunks)'
	assert_line 'the same'
	"$DS_BUILD/tests/test_frame" --sample "$T/zstd"
	"$DS_BUILD/tests/test_frame" --sample "$T/plain" plain
	run -0 limited ds-frame diff "$T/zstd" "$T/plain"
	refused 64 "only one of the two" ds-frame diff - - <d
	TMPDIR=$T/none refused 74 'temporary file' sh -c 'cat d | ds-frame diff - d'
}

# ---- what diff must see ----

@test "diff: one value, one NaN, one id that differ" {
	edit d "$T/value" 'if meta.get("point") == "attn_out" and meta["layer"] == 1 and meta["step"] == 0: data[4*(256*2+5)+3] ^= 0x80'
	OPTIONS='' differ d "$T/value" '* layer.1.attn_out' 'first difference: layer.1.attn_out, 1 of' '2 [5]'
	OPTIONS='--tol 1e-9' differ d "$T/value" 'first over tolerance: layer.1.attn_out, 1 of'
	run -0 limited ds-frame diff --tol 0.9 d "$T/value"
	run -0 limited ds-frame diff --atol 100 d "$T/value"
	OPTIONS='--atol 1e-6' differ d "$T/value"
	edit d "$T/nan" 'if meta.get("point") == "final" and meta["step"] == 0: data[:4] = struct.pack("<f", float("nan"))'
	OPTIONS='--tol 1e9 --atol 1e30' differ d "$T/nan" '* final' 'inf' 'first over tolerance: final, 1 of'
	OPTIONS='--tol 1e9 --atol 1e30' differ "$T/nan" d
	run -0 limited ds-frame diff "$T/nan" "$T/nan"
	edit d "$T/id" 'if meta.get("point") == "router.ids" and meta["layer"] == 2: data[4:8] = struct.pack("<I", 77)'
	OPTIONS='--tol 1e9 --atol 1e30' differ d "$T/id" '* layer.2.router.ids' '77'
}

# reorder FROM TO CODE: each row of the router's ids and weights in the reverse order, then CODE as for edit, with `layer` and the
# values of a point of four columns in v, a list of rows.
reorder() {
	edit "$1" "$2" 'point, layer, v = meta.get("point"), meta.get("layer"), []
if point in ("router.ids", "router.weights"):
    form = "<4I" if point == "router.ids" else "<4f"
    count = meta["tensors"][0][3][0]
    v = [list(struct.unpack_from(form, data, 16 * i))[::-1] for i in range(count)]
'"$3"'
for i, row in enumerate(v): struct.pack_into(form, data, 16 * i, *row)'
}

@test "diff: experts chosen in another order are the same set, with weights by expert" {
	reorder d "$T/order" ''
	run -0 limited ds-frame diff d "$T/order"
	run -0 limited ds-frame diff "$T/order" d.chunks # rows of other frames
	run -0 limited ds-frame diff --json d "$T/order"
	refute_output --regexp '"differ":[1-9]'
	reorder d "$T/id" 'if point == "router.ids" and layer == 2 and meta["step"] == 0: v[1][0] = 77'
	OPTIONS='--tol 1e9 --atol 1e30' differ d "$T/id" '* layer.2.router.ids' ' 1 [3] ' ' 77' \
		'first over tolerance: layer.2.router.ids, 1 of'
	OPTIONS='' differ d "$T/id" '* layer.2.router.weights' # an expert has no weight on the other side
	reorder d "$T/swapped" 'if point == "router.weights" and layer == 1 and meta["step"] == 0: v[2].reverse()'
	OPTIONS='' differ d "$T/swapped" '* layer.1.router.weights' 'first difference: layer.1.router.weights, 1 of'
	refute_line --partial '* layer.1.router.ids'
	# Ids of one side only: nothing tells whose the weights are, so they are compared as they come.
	ds-frame filter -p 'layer.*.router.weights' "$T/order" >"$T/bare"
	OPTIONS='--common' differ d "$T/bare" '* layer.1.router.weights'
	ds-frame filter -p 'layer.*.router.weights' d >"$T/bare"
	run -0 limited ds-frame diff --common d "$T/bare"
}

@test "diff: JSON says the same" {
	edit d "$T/value" 'if meta.get("point") == "attn_out" and meta["layer"] == 1 and meta["step"] == 0: data[4*(256*2+5)+3] ^= 0x80'
	run -1 limited ds-frame diff --json d "$T/value"
	echo "$output" >"$T/json"
	run -0 "$PYTHON" - "$T/json" <<-'END'
		import json, sys
		d = json.load(open(sys.argv[1]))
		assert d["same"] is False and d["first_over"] == "layer.1.attn_out" and d["models"][0] == d["models"][1], d["first_over"]
		bad, = [t for t in d["tensors"] if t["differ"]]
		w = bad["worst"]
		assert bad["over"] == 1 and bad["only"] == [0, 0] and w["position"] == 2 and w["column"] == 5, bad
		assert abs(bad["max_abs"] - 2 * abs(w["a"])) < 1e-9 and w["a"] == -w["b"] and bad["least_cos"] < 1, bad
		ids, = [t for t in d["tensors"] if t["tensor"] == "layer.1.router.ids"]
		assert ids["max_abs"] is None and ids["rows"] > 0
	END
	run -0 limited ds-frame diff --json d d
	assert_output --partial '{"same":true,'
}

@test "diff: what only one has, rows and tensors, and --common" {
	ds-frame cut --position 3.. d >"$T/tail"
	OPTIONS='' differ d "$T/tail" '18 rows only in d'
	run -0 limited ds-frame diff --common d "$T/tail"
	ds-frame filter -p 'layer.*.out' d >"$T/out"
	OPTIONS='' differ "$T/out" d '* 27 tensors only in d: embed, layer.0.q, layer.0.kv, ...'
	[ "$(wc -l <<<"$output")" -eq 6 ]
	run -0 limited ds-frame diff --common d "$T/out"
	assert_line '  27 tensors only in d: embed, layer.0.q, layer.0.kv, ...'
	refute_line --partial '*'
}

@test "diff: rows of another width, and a row that comes twice" {
	edit d "$T/wide" 'if meta.get("point") == "final": t = meta["tensors"][0]; t[3] = [t[3][0], t[3][1] // 2]; t[5] //= 2'
	OPTIONS='--tol 1e9 --atol 1e30' differ d "$T/wide" '  513 rows of another width'
	edit d "$T/twice" 'if meta.get("point") == "embed": data[0] ^= 255'
	ds-frame merge "$T/twice" d >"$T/last-right"
	run -0 limited ds-frame diff "$T/last-right" d
	ds-frame merge d "$T/twice" >"$T/last-wrong"
	OPTIONS='' differ "$T/last-wrong" d '* embed'
}

@test "diff: the first token that differs, log-probabilities, missing answers, other keys" {
	stream=$(each tok 'f["stream"] if f["type"] == "done" and m["id"] == "m2" else None')
	edit tok "$T/token" "if kind == 5 and stream == 0x$stream and meta['index'] >= 3: meta['id'] ^= 1; meta['logprob'] = -5.0"
	OPTIONS='' differ tok "$T/token" '* m2: token 3 is '
	[[ $output == *'6 answers, 41 tokens the same before any difference, 41 logprobs within 0'* ]]
	edit tok "$T/short" "drop = kind == 5 and stream == 0x$stream and meta['index'] >= 5"
	OPTIONS='' differ tok "$T/short" '* m2: token 5 is ' ", none in $T/short"
	edit tok "$T/logprob" "if kind == 5 and stream == 0x$stream and meta['index'] == 1: meta['logprob'] -= 0.01"
	OPTIONS='' differ tok "$T/logprob" '* m2: 1 logprob differs, by 0.01 at most'
	run -0 limited ds-frame diff --atol 0.011 tok "$T/logprob"
	OPTIONS='--atol 0.009' differ tok "$T/logprob"
	edit tok "$T/gone" "drop = kind in (5, 6) and stream == 0x$stream"
	OPTIONS='' differ tok "$T/gone" '* m2: 7 tokens only in tok' '* done of m2: only in tok'
	run -0 limited ds-frame diff --common tok "$T/gone"
	edit tok "$T/keys" "if kind == 5 and stream == 0x$stream and meta['index'] == 1: meta['hold'] = 2"
	OPTIONS='' differ tok "$T/keys" "* m2: 1 token differs in other keys, first 'hold'"
}

@test "diff: log-probabilities by their difference, under --tol and --atol alike, also of other tokens and near 0" {
	edit tok "$T/a" 'if kind == 5 and meta["index"] == 1: meta["logprob"] = -1e-7; meta["top_logprobs"] = [[7, -1e-7], [8, -16.5]]'
	edit "$T/a" "$T/b" 'if kind == 5 and meta["index"] == 1: meta["logprob"] = -3e-7; meta["top_logprobs"] = [[7, -3e-7], [8, -16.25]]'
	OPTIONS='--tol 1e-7' differ "$T/a" "$T/b" '* m2: 1 logprob differs, by 2e-07 at most'
	OPTIONS='--tol 0.2' differ "$T/a" "$T/b" "* m2: 1 token differs in other keys, first 'top_logprobs[1][1]': -16.5, -16.25"
	[[ $output != *logprob\ differs* ]]
	run -0 limited ds-frame diff --tol 0.25 "$T/a" "$T/b"
	run -0 limited ds-frame diff --atol 0.25 "$T/a" "$T/b"
	assert_line '  6 answers, 45 tokens the same before any difference, 45 logprobs within 2e-07'
	# Other real numbers in meta are relative to the first.
	edit req "$T/c" 'if kind == 2: meta["sampling"] = {"temperature": 0.5}'
	edit req "$T/d" 'if kind == 2: meta["sampling"] = {"temperature": 0.55}'
	run -0 limited ds-frame diff --tol 0.11 "$T/c" "$T/d"
	OPTIONS='--tol 0.09' differ "$T/c" "$T/d" "* request of m0: 'sampling.temperature' is 0.5"
}

# nothing TEXT A B: compares nothing, says TEXT and no verdict, and exits 1, with --common and without.
nothing() {
	local options
	for options in '' --common; do
		# shellcheck disable=SC2086 # an option or none
		run -1 limited ds-frame diff $options "$2" "$3"
		assert_line --partial "nothing could be compared: $1"
		refute_line 'the same'
		refute_line different
		# shellcheck disable=SC2086
		run -1 limited ds-frame diff --json $options "$2" "$3"
		assert_output --partial '{"same":false,"compared":false,"why":"'
	done
}

@test "diff: an empty comparison is not the same, and says why it is empty" {
	ds-frame cut -r m2 d | ds-frame pack -f -o "$T/one"
	ds-frame unpack "$T/one" -r m3 -o "$T/m3"
	ds-frame cut -r m2 d >"$T/m2"
	nothing 'both hold embed, but of other requests: ' "$T/m2" "$T/m3"
	assert_output --partial '; -r of unpack says whose the tensors are'
	ds-frame unpack "$T/one" -r m2 | ds-frame diff --common - d
	nothing 'req holds request frames, tok holds answers' req tok
	nothing 'd holds tensors such as embed, kv holds request frames' d kv
	ds-frame filter -r m1 tok >"$T/m1"
	ds-frame filter -r m4 tok >"$T/m4"
	nothing "both hold done frames, but of other requests: m1 in $T/m1, m4 in $T/m4" "$T/m1" "$T/m4"
	ds-frame filter -t token "$T/m1" >"$T/t1"
	ds-frame filter -t token "$T/m4" >"$T/t4"
	nothing "both hold answers, but of other requests: " "$T/t1" "$T/t4"
	ds-frame cut -r m2 --position 0..3 d >"$T/p0"
	ds-frame cut -r m2 --position 4..5 d >"$T/p4"
	nothing "both hold embed, but at other positions: from 0 on in $T/p0, from 4 on in $T/p4" "$T/p0" "$T/p4"
	ds-frame filter -p typo d >"$T/empty"
	nothing "d holds tensors such as embed, $T/empty holds nothing" d "$T/empty"
	run -0 limited ds-frame diff "$T/empty" "$T/empty"
	assert_output 'the same: both are empty'
}

@test "diff and pack list requests in the order in which they came, and a table only where rows were compared" {
	edit tok "$T/logprob" 'if kind == 5: meta["logprob"] -= 1'
	OPTIONS='' differ tok "$T/logprob"
	[ "$(grep -o '^\* m[0-9]' <<<"$output" | tr -d '\n')" = '* m0* m1* m2* m3* m4* m5' ]
	refute_output --partial 'worst row'
	ds-frame filter -r m3 tok >"$T/first"
	ds-frame merge "$T/first" <(ds-frame filter -r m0 -r m1 tok) >"$T/order"
	OPTIONS='' differ "$T/order" "$T/logprob"
	[ "$(grep -o '^\* m[0-9]' <<<"$output" | tr -d '\n')" = '* m3* m0* m1* m2* m4* m5' ]
	ds-frame pack kv -f -o "$T/st"
	"$PYTHON" - "$T/st" <<-'END'
		import json, struct, sys
		raw = open(sys.argv[1], "rb").read()
		names = list(json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]]))
		got = [n.split("/")[0] for n in names if n.endswith("/layer.0.cache")]
		assert got == [f"m{i}" for i in range(6)], got
	END
}

@test "diff: the worst row by the request's name where one of the captures has it" {
	edit kv "$T/rows" 'if kind == 3 and meta["first"] == 0: data[0] ^= 1'
	OPTIONS='' differ kv "$T/rows"
	assert_line --regexp '^\* layer\.0\.cache .* m[0-9] 0 \['
}

@test "diff: requests of dumps by name; a dump without names is as good as one with" {
	edit d "$T/value" 'if meta.get("point") == "embed" and meta["step"] == 0: data[3] ^= 0x80'
	OPTIONS='' differ d "$T/value" '* embed'
	assert_line --regexp '^\* embed .* m0 0 \['
	edit d "$T/bare" 'for r in meta.get("rows", []): del r[3]'
	OPTIONS='' differ "$T/value" "$T/bare" '* embed'
	assert_line --regexp '^\* embed .* m0 0 \['
	run -0 limited ds-frame diff d "$T/bare"
	edit "$T/value" "$T/bare2" 'for r in meta.get("rows", []): del r[3]'
	OPTIONS='' differ "$T/bare" "$T/bare2" '* embed'
	assert_line --regexp '^\* embed .* [0-9a-f]{16} 0 \['
	edit "$T/value" "$T/nil" 'for r in meta.get("rows", []): r[3] = None; r.append({"later": 1})'
	run -0 limited ds-frame diff "$T/nil" "$T/value"
	# The name goes with the stream, for choices too.
	edit d "$T/choice" 'for r in meta.get("rows", []): r[0] += 127
stream += 127 if stream else 0'
	edit "$T/choice" "$T/choice2" 'if meta.get("point") == "embed" and meta["step"] == 0: data[3] ^= 0x80'
	OPTIONS='' differ "$T/choice" "$T/choice2" '* embed'
	assert_line --regexp '^\* embed .* m0 choice 127 0 \['
	edit d "$T/none" 'for r in meta.get("rows", []): r[0] += 128'
	refused 65 "a segment's name is not that of its stream" ds-frame check "$T/none"
}

@test "diff: other frames by meta, but for times" {
	edit kv "$T/times" 'for k in list(meta):
	    if k.endswith("_ns"): meta[k] = 1'
	run -0 limited ds-frame diff kv "$T/times"
	edit kv "$T/usage" 'if kind == 4: meta["usage"]["prompt"] = 1'
	OPTIONS='' differ kv "$T/usage" "* prefilled of m0: 'usage.prompt' is"
	# what caches had of it says nothing of the answer
	edit kv "$T/hits" 'if kind == 4: meta["usage"].update(hit=1, miss=meta["usage"]["prompt"] - 1)'
	run -0 limited ds-frame diff kv "$T/hits"
	edit kv "$T/named" 'if kind == 4: meta["hit"] = 1'
	OPTIONS='' differ kv "$T/named" "* prefilled of m0: 'hit'"
	edit kv "$T/prompt" 'if kind == 2: data[4] ^= 1'
	OPTIONS='--tol 1' differ kv "$T/prompt" '* request.tokens'
	edit kv "$T/rows" 'if kind == 3 and meta["first"] == 0: data[0] ^= 1'
	OPTIONS='' differ kv "$T/rows" '* layer.0.cache' 'first difference: layer.0.cache, 6 of'
}

@test "diff: the same answers with drafts and without" {
	ds-decode -m "$DS_MODEL" -o "$T/drafts" --mtp 2 --mtp-always req 2>/dev/null
	[ "$(each "$T/drafts" 'm.get("mtp") if f["type"] == "done" else None' | wc -l)" -gt 0 ]
	limited ds-frame diff tok "$T/drafts"
}

@test "diff: bad, truncated and missing input" {
	head -c 100000 d >"$T/cut"
	refused 65 truncated ds-frame diff d "$T/cut"
	refused 65 truncated ds-frame diff "$T/cut" d
	refused 66 'cannot open' ds-frame diff d "$T/missing"
	for kind in no_hello two_hellos beyond bad_hash end_counts; do
		"$PYTHON" "$CAPTURE" $kind "$T/$kind"
		refused 65 '' ds-frame diff "$T/$kind" d
	done
	for change in 'meta["rows"][0][2] += 1' 'meta["rows"] = []' 'meta["rows"] = [[1, 2]]' 'meta["rows"] = "x"' 'meta["layer"] = -1' \
		'meta["point"] = ""' 'meta["point"] = 7' 'meta["rows"][0][1] = 1 << 63' 'meta["rows"][0][3] = "m7"' \
		'meta["rows"][0][3] = ""' 'meta["rows"][0][3] = 7' 'meta["rows"][0][3] = "m" * 65' 'meta["rows"][0][3] += chr(0)' 'meta["rows"][0][0] -= 1' \
		'meta["tensors"] *= 2' 'meta["step"] = "x"' \
		't = meta["tensors"][0]; t[2], t[3] = ["x"], [t[3][0] * t[3][1]]'; do
		edit d "$T/bad" "if meta.get('point') == 'embed': $change"
		refused 65 '' ds-frame diff d "$T/bad"
		refused 65 '' ds-frame check "$T/bad"
		refused 65 '' ds-frame cut -r m0 "$T/bad"
	done
	run -74 sh -c 'ds-frame diff d d >/dev/full'
}

# ---- slices ----

@test "filter: whole frames by type, request, point, layer, step" {
	ds-frame filter -t request,prefilled kv >"$T/a"
	valid "$T/a"
	[ "$(each "$T/a" 'f["type"]' | sort | uniq -c | tr -s ' ' | tr '\n' ';')" = ' 1 end; 1 hello; 6 prefilled; 6 request;' ]
	ds-frame filter -r m2 -r m4 tok >"$T/b"
	valid "$T/b"
	[ "$(each "$T/b" 'm["id"] if f["type"] == "done" else None' | tr '\n' ' ')" = 'm2 m4 ' ]
	[ "$(each "$T/b" '1 if f["type"] == "token" else None' | wc -l)" -eq 16 ]
	ds-frame filter --layer 1.. -p '*.router' d >"$T/c"
	[ "$(each "$T/c" '(m["layer"], m["point"]) if f["type"] == "tensor" else None' | sort -u | wc -l)" -eq 6 ]
	ds-frame filter --step 0,2.. -p embed d.chunks >"$T/d"
	[ "$(each "$T/d" 'm.get("step")' | sort -n | head -n 2 | tr '\n' ' ')" = '0 2 ' ]
	stream=$(each tok 'f["stream"] if f["type"] == "done" and m["id"] == "m3" else None')
	ds-frame filter -s "$stream" tok >"$T/e"
	ds-frame filter -r m3 tok >"$T/f"
	cmp "$T/e" "$T/f"
	ds-frame filter --index 2..3 tok >"$T/g"
	[ "$(each "$T/g" 'm["index"] if f["type"] == "token" else None' | sort | uniq -c | tr -s ' ' | tr '\n' ';')" = ' 6 2; 6 3;' ]
	# Everything is everything, byte for byte.
	ds-frame filter kv >"$T/h"
	cmp kv "$T/h"
}

@test "cut: rows of one request at some positions, all others left out" {
	ds-frame cut -r m1 --position 2..4,6 -p 'layer.2.out,embed' d >"$T/a"
	valid "$T/a"
	stream=$(each kv 'f["stream"] if m.get("id") == "m1" else None')
	[ "$(each "$T/a" '(m["point"], m["rows"], f["stream"]) if f["type"] == "tensor" else None' | sort)" = \
		"('embed', [['$stream', 2, 3, 'm1'], ['$stream', 6, 1, 'm1']], '$stream')
('out', [['$stream', 2, 3, 'm1'], ['$stream', 6, 1, 'm1']], '$stream')" ]
	run -0 limited ds-frame diff --common "$T/a" d
	assert_line --partial 'embed                           4        0'
	ds-frame cut --frames 3..5 d >"$T/b"
	valid "$T/b"
	[ "$(each "$T/b" 'f["type"]' | tr '\n' ' ')" = 'hello tensor tensor tensor end ' ]
	# The union of what is cut is what was there.
	ds-frame cut --position ..5 d >"$T/c"
	ds-frame cut --position 6.. d >"$T/d"
	ds-frame merge "$T/c" "$T/d" | ds-frame diff - d
}

@test "cut and filter keep meta keys that they do not know" {
	edit d "$T/odd" 'if kind == 13: meta["odd"] = {"a": [1, {"b": None}], "c": 2.5}'
	ds-frame cut --position 1 "$T/odd" >"$T/cut"
	[ "$(each "$T/cut" 'm["odd"] if f["type"] == "tensor" else None' | sort -u)" = "{'a': [1, {'b': None}], 'c': 2.5}" ]
	valid "$T/cut"
}

@test "head: the first frames, a whole stream, and reads no further" {
	ds-frame head -n 3 kv >"$T/a"
	valid "$T/a"
	[ "$(each "$T/a" 'f["type"]' | tr '\n' ' ')" = 'hello request kv prefilled end ' ]
	[ "$(ds-frame head -n 0 kv | ds-frame dump | wc -l)" -eq 2 ]
	[ "$(ds-frame head kv | ds-frame dump | wc -l)" -eq 12 ]
	ds-frame head -n 1000 kv | cmp - kv
	# Nothing after the third frame is looked at: neither waited for nor judged.
	mkfifo "$T/slow"
	background sh -c "exec >'$T/slow'; head -c 70000 kv; exec sleep 50"
	timeout 20 ds-frame head -n 2 "$T/slow" | ds-frame check
	end_background
	refused 65 truncated sh -c 'head -c 3000 kv | ds-frame head -n 100'
}

@test "merge: captures one after the other; clashing names and other models are refused" {
	ds-frame filter -r m0 -r m1 kv >"$T/a"
	ds-frame filter -r m2 -r m3 -r m4 -r m5 kv >"$T/b"
	ds-frame merge "$T/a" "$T/b" -o "$T/ab"
	valid "$T/ab"
	ds-frame diff "$T/ab" kv
	[ "$(ds-decode -m "$DS_MODEL" "$T/ab" | "$PYTHON" "$DSF" tokens - | cksum)" = "$("$PYTHON" "$DSF" tokens tok | cksum)" ]
	refused 65 "request 'm0'" ds-frame merge "$T/a" "$T/a"
	refused 65 'request frames' ds-frame merge "$T/b" - <kv
	ds-frame merge req tok | ds-frame check
	edit tok "$T/other" 'if kind == 1: meta["model"] = "another"
drop = kind in (5, 6)'
	refused 76 another ds-frame merge tok "$T/other"
	refused 65 truncated ds-frame merge "$T/a" <(head -c 3000 "$T/b")
	refused 64 'at least one' ds-frame merge
}

@test "slices of what is truncated: 65, no end, and no file" {
	head -c "$(($(stat -c %s kv) - 10))" kv >"$T/cut"
	refused 65 truncated ds-frame filter "$T/cut"
	refused 65 truncated ds-frame check "$T/refused.out"
	refused 65 truncated ds-frame cut "$T/cut" -o "$T/out"
	refused 65 truncated ds-frame merge "$T/cut" -o "$T/out"
	run -2 ls "$T"/out*
	echo old >"$T/out"
	refused 64 "'$T/out' exists" ds-frame filter kv -o "$T/out"
	ds-frame filter kv -o "$T/out" -f
	cmp kv "$T/out"
	refused 74 'cannot write' sh -c 'ds-frame filter kv >/dev/full'
	run -141 bash -o pipefail -c 'ds-frame filter d | head -c 100 >/dev/null'
	assert_output ''
}

@test "frames do not go to a terminal" {
	need_program script
	for command in 'filter kv' 'head kv' 'unpack tensors' 'pack d'; do
		ds-frame pack d -f -o tensors
		run -64 script -qec "ds-frame $command" /dev/null
		assert_output --partial 'not for a terminal'
	done
}

@test "selections that are none: 64" {
	refused 64 "'frob' is no type" ds-frame filter -t request,frob kv
	refused 64 "--layer: '3..1'" ds-frame filter --layer 3..1 kv
	refused 64 'no stream id' ds-frame filter -s xyz kv
	refused 64 'two files' ds-frame diff d
	refused 64 'two files' ds-frame diff d d d
	refused 64 '--tol' ds-frame diff --tol x d d
	refused 64 "'dump' does not take --tol" ds-frame dump --tol 1 d
	refused 64 "'check' does not take --output" ds-frame check -o "$T/x" d
}

@test "stat: frames, points, requests; as a table and as JSON" {
	ds-frame merge req tok >"$T/both"
	run -0 limited ds-frame stat "$T/both"
	assert_line --regexp '^token  +45 '
	assert_line --regexp '^m5 +[0-9a-f]{16} +[0-9]+ +10 '
	run -0 limited ds-frame stat --json "$T/both"
	echo "$output" >"$T/json"
	run -0 "$PYTHON" - "$T/json" lines <<-'END'
		import json, sys
		s = json.load(open(sys.argv[1]))
		want = [json.loads(l) for l in open(sys.argv[2])]
		assert s["types"]["token"]["frames"] == 45 and s["types"]["request"]["tensors"] == 6
		assert [(r["id"], r["prompt"], r["tokens"], r["end"]) for r in s["requests"]] == \
		       [(w["id"], len(w["ids"]), w["max_tokens"], "length") for w in want], s["requests"]
		assert all(r["ms_per_token"] > 0 and r["first_ms"] is None for r in s["requests"])
	END
	# Tokens alone: the prompt's length is in the done frame; without that it is not known.
	run -0 limited ds-frame stat tok
	assert_line --regexp '^m5 +[0-9a-f]{16} +[1-9][0-9]* +10 '
	[ "$(ds-frame stat --json tok | grep -o '"prompt":[0-9]*')" = "$(ds-frame stat --json "$T/both" | grep -o '"prompt":[0-9]*')" ]
	ds-frame filter -t token tok >"$T/tokens"
	run -0 limited ds-frame stat "$T/tokens"
	assert_line --regexp '^- +[0-9a-f]{16} +- +10 '
	[ "$(ds-frame stat --json "$T/tokens" | grep -o '"prompt":null' | wc -l)" -eq 6 ]
	run -0 limited ds-frame stat d
	assert_line --regexp '^layer\.\*\.attn_out +6 +'
	refused 65 truncated sh -c 'head -c 3000 kv | ds-frame stat'
}

@test "stat: the time to the first token" {
	edit req "$T/req" 'if kind == 2: meta["arrival_ns"] = 5000000000'
	edit tok "$T/tok" 'if kind == 5: meta["t_ns"] = 5250000000 + meta["index"] * 2000000'
	ds-frame merge "$T/req" "$T/tok" | ds-frame stat --json >"$T/json"
	"$PYTHON" -c 'import json, sys
for r in json.load(open(sys.argv[1]))["requests"]: assert (r["first_ms"], r["ms_per_token"]) == (250, 2), r' "$T/json"
}

# ---- other engines ----

@test "pack and unpack: there and back the same, one request or several, any positions" {
	ds-frame pack d -o "$T/all.safetensors"
	ds-frame unpack "$T/all.safetensors" | ds-frame diff - d
	ds-frame cut -r m2 d | ds-frame pack >"$T/one.safetensors"
	ds-frame cut -r m2 d >"$T/one"
	ds-frame unpack "$T/one.safetensors" -r m2 | ds-frame diff - "$T/one"
	ds-frame cut -r m2 --position 1..2,5,9..30 d >"$T/some"
	ds-frame pack "$T/some" | cat >"$T/some.safetensors"
	ds-frame unpack "$T/some.safetensors" -r m2 | ds-frame diff - "$T/some"
	# As any reader of safetensors sees it.
	"$PYTHON" - "$T/some.safetensors" "$T/one.safetensors" <<-'END'
		import json, struct, sys
		def load(path):
		    raw = open(path, "rb").read()
		    n, = struct.unpack("<Q", raw[:8])
		    assert (8 + n) % 64 == 0
		    return {k: (v["dtype"], v["shape"], raw[8 + n:][slice(*v["data_offsets"])]) for k, v in json.loads(raw[8:8 + n]).items()}
		some, one = load(sys.argv[1]), load(sys.argv[2])
		at = struct.unpack(f"<{some['embed.positions'][1][0]}q", some["embed.positions"][2])
		assert list(at[:4]) == [1, 2, 5, 9] and "embed.positions" not in one
		dtype, (rows, cols), data = one["layer.2.attn_out"]
		assert dtype == "F32" and cols == 256 and some["layer.2.attn_out"][1] == [len(at), 256]
		assert some["layer.2.attn_out"][2] == b"".join(data[1024 * p:1024 * p + 1024] for p in at)
		assert one["layer.1.router.ids"][0] == "U32"
	END
	ds-frame pack kv >"$T/kv.safetensors"
	aligned "$T"/*.safetensors
}

@test "unpack: rows at scattered positions, more than the meta of one frame names" {
	"$PYTHON" - "$T/scattered" <<-'END'
		import json, struct, sys
		n = 40000
		data = struct.pack(f"<{n}I", *range(n)) + struct.pack(f"<{n}q", *range(0, 3 * n, 3))
		text = json.dumps({"x": {"dtype": "U32", "shape": [n, 1], "data_offsets": [0, 4 * n]},
		                   "x.positions": {"dtype": "I64", "shape": [n], "data_offsets": [4 * n, 12 * n]}}).encode()
		open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
	END
	name=$(printf '%064d' 7)
	ds-frame unpack "$T/scattered" -r "$name" -o "$T/f"
	valid "$T/f"
	[ "$(each "$T/f" 'len(m["rows"]) if f["type"] == "tensor" else None' | tr '\n' ' ')" = '8192 8192 8192 8192 7232 ' ]
	ds-frame pack "$T/f" -o "$T/back"
	ds-frame unpack "$T/back" -r "$name" | ds-frame diff - "$T/f"
}

@test "unpack: names of stacks of other engines, batches of one, heads, and what it refuses" {
	"$PYTHON" - "$T" <<-'END'
		import json, struct, sys
		def save(name, tensors):
		    header, data = {}, b""
		    for k, (dtype, shape, raw) in tensors.items():
		        header[k] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
		        data += raw
		    text = json.dumps(header).encode()
		    open(f"{sys.argv[1]}/{name}", "wb").write(struct.pack("<Q", len(text)) + text + data)
		f = lambda *v: struct.pack(f"<{len(v)}f", *v)
		save("hf", {"model.layers.0.self_attn.o_proj": ("F32", [1, 2, 3], f(1, 2, 3, 4, 5, 6)),
		            "model.layers.0.q": ("F32", [2, 2, 1], f(1, 2, 3, 4)), "junk": ("F64", [1], bytes(8))})
		save("f64", {"x": ("F64", [1], bytes(8))})
		save("empty", {"x": ("F32", [0, 4], b"")})
		save("positions", {"x": ("F32", [2, 1], f(1, 2)), "x.positions": ("I64", [3], bytes(24))})
		save("negative", {"x": ("F32", [2, 1], f(1, 2)), "x.positions": ("I64", [2], struct.pack("<2q", 0, -1))})
		save("long", {"x" * 101: ("F32", [1], f(1))})
		save("many", {"a/layer.0.q": ("BF16", [1, 2], bytes(4)), "00000000000000ff/layer.0.q": ("BF16", [1, 2], bytes(4)),
		              "layer.0.q": ("BF16", [2], bytes(4))})
	END
	ds-frame unpack "$T/hf" --map 'model.layers.*.self_attn.o_proj=layer.*.attn_out' --map 'model.layers.*.q=layer.*.q' -o "$T/o"
	[ "$(each "$T/o" '(f["tensors"][0]["name"], f["tensors"][0]["shape"], f["tensors"][0]["first"]) if "tensors" in f else None')" = \
		"('layer.0.attn_out', [2, 3], [1, 2, 3, 4])
('layer.0.q', [2, 2], [1, 2, 3, 4])" ]
	ds-frame unpack "$T/many" -r b >"$T/m"
	[ "$(each "$T/m" 'f["stream"] if "tensors" in f else None' | tail -n +2 | head -n 1)" = 00000000000000ff ]
	[ "$(ds-frame filter -r a "$T/m" | ds-frame dump | wc -l) $(ds-frame filter -r b "$T/m" | ds-frame dump | wc -l)" = '3 3' ]
	refused 65 'no such type' ds-frame unpack "$T/hf"
	refused 65 'no such type' ds-frame unpack "$T/f64"
	refused 65 'empty' ds-frame unpack "$T/empty"
	refused 65 'x.positions' ds-frame unpack "$T/positions"
	refused 65 'out of range' ds-frame unpack "$T/negative"
	refused 65 'too long' ds-frame unpack "$T/long"
	refused 65 'matches' ds-frame unpack "$T/hf" --map 'a=b'
	refused 64 'FROM=TO' ds-frame unpack "$T/hf" --map 'a'
	refused 66 'cannot open' ds-frame unpack "$T/missing"
	refused 65 '' ds-frame unpack d
	refused 65 'no tensors' ds-frame pack tok
	edit d "$T/wide" 'if meta.get("point") == "final" and seq < 40: t = meta["tensors"][0]; t[3] = [t[3][0], t[3][1] // 2]; t[5] //= 2'
	ds-frame merge "$T/wide" <(ds-frame cut --position 0..1 d) >"$T/widths"
	refused 65 'differ in width' ds-frame pack "$T/widths"
}

# golden NAME PROMPT: DeepSeek's reference on a small model, unpacked, against our own dump; each tensor within its golden's tolerance.
against_reference() {
	local dir
	dir=$(golden "$1")
	"$PYTHON" -c 'import json, sys
print(json.dumps({"id": sys.argv[2], "ids": json.load(open(sys.argv[1]))["prompts"][sys.argv[2]], "max_tokens": 1}))' \
		"$DS_ROOT/tests/golden/$1/golden.json" "$2" | "$PYTHON" "$DSF" requests >"$T/req"
	limited ds-prefill -m "$dir" --arith float32 --dump '*' --dump-to "$T/ours" -f -o "$T/kv" "$T/req"
	limited ds-frame unpack "$DS_ROOT/tests/golden/$1/golden.safetensors" -r "$2" -f -o "$T/theirs" --map "$2.h.embed=embed" \
		--map "$2.h.final=final" --map "$2.h.*.attn=layer.*.attn" --map "$2.h.*.out=layer.*.out" --map "$2.logits=logits" \
		--map "$2.router.*.logits=layer.*.router.logits" --map "$2.router.*.ids=layer.*.router.ids" \
		--map "$2.router.*.weights=layer.*.router.weights"
	limited ds-frame diff --json --common --atol 2e-4 "$T/theirs" "$T/ours" >"$T/json" || {
		ds-frame diff --common --atol 2e-4 "$T/theirs" "$T/ours"
		return 1
	}
	"$PYTHON" - "$T/json" "$DS_ROOT/tests/golden/$1/golden.json" "$2" <<-'END'
		import json, sys
		d, notes, prompt = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))["tensors"], sys.argv[3]
		compared = 0
		for t in d["tensors"]:
		    if not t["rows"] or t["max_abs"] is None:
		        continue
		    name = t["tensor"].split(".")
		    name = f"h.{name[0]}" if name[0] in ("embed", "final") else "logits" if name[0] == "logits" else \
		        f"router.{name[1]}.{name[3]}" if name[2] == "router" else f"h.{name[1]}.{name[2]}"
		    atol = notes[f"{prompt}.{name}"]["atol"]
		    assert t["max_abs"] <= atol, (t, atol)
		    compared += 1
		assert compared >= 10, compared
	END
}

@test "the dump of DeepSeek's own code on small models, unpacked, is what we compute in float32" {
	against_reference v3-tiny p64
	against_reference v3-tiny p7
	against_reference v2lite-tiny p64
	against_reference v2-group-tiny p64
}

# ---- the walk-through ----

@test "examples/find-broken-layer.sh finds the layer and the product" {
	run -0 limited sh "$DS_ROOT/examples/find-broken-layer.sh"
	assert_line 'the first tensor that differs is layer.1.attn_out'
	assert_line --regexp '^first difference: layer.1.attn_out, [0-9]+ of [0-9]+ rows$'
	# The README shows the same five commands.
	sed -n '/with five commands:/,/ds-frame dump/s/^    //p' "$DS_ROOT/README.md" | sed 's/  *#.*//' >"$T/readme"
	sed -n 's/^\$ //p' <<<"$output" | diff - "$T/readme"
	[ "$(wc -l <"$T/readme")" -eq 5 ]
	run -0 limited sh "$DS_ROOT/examples/find-broken-layer.sh" "$DS_MODEL" model.layers.2.self_attn.kv_a_proj_with_mqa.weight_scale_inv
	assert_line 'the first tensor that differs is layer.2.kv'
	run -0 limited sh "$DS_ROOT/examples/find-broken-layer.sh" "$DS_MODEL" model.layers.0.mlp.down_proj.weight_scale_inv
	assert_line 'the first tensor that differs is layer.0.mlp_out'
	run -66 sh "$DS_ROOT/examples/find-broken-layer.sh" "$DS_MODEL" model.nothing
}
