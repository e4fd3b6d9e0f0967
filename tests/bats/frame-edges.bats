# ds-frame on captures and files made by hand: what real runs do not have, or only after long.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

# make_files CODE: Python with made.py's functions.
make_files() {
	PYTHONDONTWRITEBYTECODE=1 "$PYTHON" - "$DS_ROOT/tests/bats" <<-END
		import sys
		sys.path.insert(0, sys.argv[1])
		from made import Capture, raw, rows, safetensors
		import dsf
		$1
	END
}

@test "diff: a row without a cosine does not hide the least of the others in a better one" {
	make_files '
nan = float("nan")
def one(path, *values): Capture(path).tensor("out", [rows("r0", 0, 3)], "F32", 2, values).end()
one("a", 1, 0, 1, 0, 1, 0)
one("first", nan, 0, 0, 1, 1, 0.001)
one("middle", 0, 1, nan, 0, 1, 0.001)
one("none", 0, 1, 1, 0, 1, 0.001)'
	for b in first middle; do
		run -1 ds-frame diff a $b
		assert_output --regexp '\* out +3 +3 +inf +inf +-  r0'
		run -1 ds-frame diff --json a $b
		assert_output --partial '"least_cos":null'
	done
	run -1 ds-frame diff a none
	assert_output --regexp '\* out +3 +2 +1 +1\.41 +0  r0 0 '
}

@test "diff --common: tokens and log-probabilities of one side only do not count, those of both do" {
	make_files '
def answer(path, first, end, twist=None, bare=()):
    c = Capture(path)
    for i in range(first, end):
        c.token("r0", i, 99 if i == twist else 10 + i, **({} if i in bare else {"logprob": -0.5}))
    c.end()
answer("all", 0, 6); answer("tail", 3, 6); answer("head", 0, 4); answer("start", 0, 2)
answer("wrong", 3, 6, 4); answer("bare", 0, 6, None, (2, 3))'
	while read -r a b n; do
		run -0 ds-frame diff --common "$a" "$b"
		assert_line --regexp "^  1 answer, $n tokens? the same before any difference, $n logprobs? within 0$"
		run -1 ds-frame diff "$a" "$b"
	done <<-END
		all tail 3
		tail all 3
		all head 4
		head all 4
		head tail 1
	END
	run -1 ds-frame diff --common all wrong
	assert_line '* d44f434257deece4: token 4 is 14 in all, 99 in wrong'
	run -1 ds-frame diff --common start tail
	assert_line 'nothing could be compared: both hold answers, but at other positions: from 0 on in start, from 3 on in tail'
	run -1 ds-frame diff --tol 9 all bare
	assert_line '* d44f434257deece4: 2 logprobs only in all'
	run -0 ds-frame diff --common bare all
	assert_line '  d44f434257deece4: 2 logprobs only in all'
	run -1 ds-frame diff --json all bare
	assert_output --partial '"logprobs":4,"logprobs_over":0,"logprobs_only":[2,0],'
}

@test "diff: an infinite number in meta is near to no finite one" {
	make_files '
for name, x in ("inf", float("inf")), ("one", 1.0), ("minus", float("-inf")): Capture(name).token("r0", 0, 1, x=x).end()'
	for pair in 'inf one' 'one inf' 'inf minus'; do
		# shellcheck disable=SC2086 # two names
		run -1 ds-frame diff --tol 0.5 --atol 1e300 $pair
		assert_line --partial "1 token differs in other keys, first 'x'"
	done
	run -0 ds-frame diff --tol 0.5 inf inf
}

@test "diff: ids of experts that were dumped as floats are ids, too: sets, with weights by expert, and no tolerance for them" {
	make_files '
def chosen(path, dtype, ids, weights):
    Capture(path).tensor("layer.1.router.ids", [rows("r0", 0, 2)], dtype, 3, ids) \
        .tensor("layer.1.router.weights", [rows("r0", 0, 2)], "F32", 3, weights).end()
w, swapped = [.5, .25, .125, .75, .0625, .5], [.125, .5, .25, .5, .75, .0625]
chosen("u", "U32", [1, 2, 3, 4, 5, 160], w)
for t in "F32", "BF16", "I64":
    chosen(t, t, [3, 1, 2, 160, 4, 5], swapped)
chosen("other", "F32", [3, 1, 2, 160, 4, 6], swapped)
chosen("half", "F32", [3, 1, 2.5, 160, 4, float("nan")], swapped)'
	for t in F32 BF16 I64; do
		run -0 ds-frame diff u $t
		run -0 ds-frame diff $t u
	done
	run -1 ds-frame diff --tol 9 --atol 9 u other
	assert_line --regexp '^\* layer.1.router.ids +2 +1 +- +- +-  r0 1 \[1\] 5 6$'
	run -1 ds-frame diff --tol 9 --atol 9 u half
	assert_line --regexp '^\* layer.1.router.ids +2 +2 .*  r0 0 \[1\] 2 2.5$'
	run -0 ds-frame diff half half
}

@test "pack: every tensor lies at a multiple of its element, and of 64 where it fills that; there and back" {
	make_files '
c = Capture("odd")
c.tensor("layer.0.out", [rows("r0", 3, 3)], "F8_E4M3", 3, range(9))
c.tensor("layer.1.out", [rows("r0", 3, 1)], "BF16", 3, [1, 2, 3])
c.tensor("layer.2.out", [rows("r0", 1, 1)], "F32", 16, range(16))
c.tensor("layer.3.out", [rows("r0", 1, 1)], "F16", 33, range(33))
c.tensor("layer.4.out", [rows("r0", 0, 2)], "F32", 32, range(64))
c.tensor("layer.5.router.ids", [rows("r0", 0, 1)], "U32", 3, range(3)).end()'
	ds-frame pack odd -o st
	[ "$(aligned st)" -eq 0 ]
	ds-frame unpack st | ds-frame diff - odd
}

@test "pack: names with slashes and other choices come back, names that could not are refused" {
	make_files '
Capture("slash").tensor("a/b", [rows("r0", 0, 1)], "F32", 1, [1]).end()
Capture("meta").tensor("__metadata__", [rows("r0", 0, 1)], "F32", 1, [1]).end()
Capture("choice").tensor("layer.0.out", [[dsf.stream_id("r0") + 1, 0, 1, "r0"]], "F32", 1, [1]).end()
Capture("positions").tensor("x", [rows("r0", 5, 1)], "F32", 1, [1]).tensor("x.positions", [rows("r0", 0, 1)], "F32", 1, [2]).end()
for name, point in ("quote", chr(34) + "x"), ("control", "x" + chr(10)), ("back", "x" + chr(92)):
    Capture(name).tensor(point, [rows("r0", 0, 1)], "F32", 1, [1]).end()'
	for f in slash meta choice; do
		ds-frame pack $f -o $f.st
		ds-frame unpack $f.st | ds-frame diff - $f
	done
	for f in positions quote control back; do
		refused 65 'cannot be packed' ds-frame pack $f -o $f.st
		[ ! -e $f.st ]
	done
}

@test "unpack: empty tensors are left out, a name that comes twice is refused" {
	make_files '
one = raw("F32", [1])
safetensors("empty", [("expert.0", "F32", [0, 4], b""), ("expert.1", "F32", [1, 1], one), ("expert.2", "F32", [3, 0], b"")])
safetensors("none", [("x", "F32", [0, 4], b"")])
safetensors("twice", [("x", "F32", [1, 1], one), ("y", "F32", [1, 1], one), ("x", "F32", [1, 1], one)])'
	ds-frame unpack empty -o o
	[ "$(ds-frame stat o | grep -c '^expert')" -eq 1 ]
	refused 65 'empty' ds-frame unpack none
	refused 65 "tensor 'x': it is there twice" ds-frame unpack twice
}

@test "unpack: no frame is larger than its readers accept" {
	make_files 'safetensors("wide", [("x", "F32", [1, 3, 1000], bytes(12000))]); safetensors("batch", [("x", "F32", [2, 3, 1000], bytes(24000))])'
	ds-frame unpack wide --max-frame 12032 -o o # with padding
	ds-frame check --max-frame 12032 o
	refused 65 "tensor 'x': a row has more bytes than a frame may" ds-frame unpack batch --max-frame 11K
	ds-frame unpack wide --max-frame 8K -o p
	ds-frame check --max-frame 8K p
	[ "$(ds-frame dump p | grep -c '"tensor"')" -eq 2 ]
	ds-frame diff o p
}

@test "unpack: a map that gives one row to two tensors is refused, so are names that no frame can have" {
	make_files '
one = raw("F32", [1])
layers = [(f"layers.{l}.o", "F32", [1, 1], one) for l in range(3)]
at = lambda name, p: (name + ".positions", "I64", [1], raw("I64", [p]))
safetensors("layers", layers)
safetensors("pieces", layers + [at("layers.1.o", 1), at("layers.2.o", 2)])
safetensors("twice", [("x", "F32", [2, 1], 2 * one), ("x.positions", "I64", [2], raw("I64", [4, 4]))])'
	ds-frame unpack layers --map 'layers.*.o=layer.*.out' -o o
	[ "$(ds-frame dump o | grep -c '"tensor"')" -eq 3 ]
	refused 65 "'layers.0.o' and 'layers.1.o' both have position 0 of 'layer.3.out' by what --map says" \
		ds-frame unpack layers --map 'layers.*.o=layer.3.out'
	refused 65 "tensor 'x': a position comes twice" ds-frame unpack twice
	ds-frame unpack pieces --map '*=x' -o p
	ds-frame pack p -o p.st # of three pieces one tensor
	ds-frame unpack p.st | ds-frame diff - p
	for name in '' $'\xff' "$(printf '%065d' 0)"; do
		refused 64 'no name of a request' ds-frame unpack -r "$name" layers
	done
	refused 64 'UTF-8' ds-frame unpack layers --map $'*=\xff'
}

@test "unpack and stat: many tensors, all of them, in little time" {
	make_files '
one = raw("F32", [1])
safetensors("many", [(f"model.layers.{l}.experts.{e}", "F32", [1, 1], one) for l in range(200) for e in range(200)])'
	timeout $((LIMIT / 6)) ds-frame unpack many -o o
	[ "$(timeout $((LIMIT / 6)) ds-frame stat o | grep -c ^model)" -eq 40000 ]
	timeout $((LIMIT / 6)) ds-frame pack o -o back
	ds-frame unpack back | ds-frame diff - o >table
	[ "$(tail -n 1 table)" = 'the same' ]
}

@test "an empty name of an output is refused before anything is done" {
	make_files 'Capture("c").tensor("x", [rows("r0", 0, 1)], "F32", 1, [1]).end()'
	mkdir here
	cd here
	refused 64 'the name is empty' ds-frame head -o '' ../c
	refused 64 'the name is empty' ds-model random --like "$DS_MODEL" --layers 1 -o ''
	[ -z "$(ls -A)" ]
}

@test "neither a trace nor a dump takes the place of the input, by whatever name" {
	echo 'What is 1 + 1?' | ds-token -m "$DS_MODEL" encode --chat -o in
	cp in want
	ln -s in link
	refused 64 "--trace: './in' is the file of --input" ds-prefill -m "$DS_MODEL" -f --trace ./in -o kv in
	refused 64 "--trace: 'link' is the file of --input" ds-prefill -m "$DS_MODEL" -f --trace link -o kv -i in
	refused 64 "--dump-to: 'in' is the file of --input" ds-prefill -m "$DS_MODEL" -f --dump embed --dump-to in -o kv in
	cmp in want
	[ ! -e kv ]
	limited ds-prefill -m "$DS_MODEL" --trace /dev/null -f -o in in # in its place when it is complete
	ds-frame stat in | grep -q '^kv'
}

@test "a frame whose keys are wrong is named with its file by every command that reads them, also by check" {
	make_files '
import struct
def frame(path, kind, meta, data=b""):
    c = Capture(path)
    c.w.write(kind, dsf.stream_id("r0"), meta, data)
    c.end()
def point(path, name, rows, tensor, **more):
    frame(path, 13, {"point": name, "rows": rows, "tensors": [[tensor, "F32", ["token", "dim"], [1, 1], 0, 4, None]], **more}, bytes(4))
def kv(path, first, count):
    frame(path, 3, {"first": first, "count": count, "tensors": [["kv", "F32", ["layer", "token", "dim"], [1, 64, 4], 0, 1024, None]]}, bytes(1024))
point("sum", "x", [rows("r0", 0, 5)], "x")
point("none", "x", [rows("r0", 0, 0)], "x")
point("called", "out", [rows("r0", 0, 1)], "layer.1.out", layer=0)
point("layer", "layer.0.out", [rows("r0", 0, 1)], "layer.0.out")
kv("kv-count", 0, 65); kv("kv-none", 0, 0); kv("kv-first", 1 << 40, 1)
frame("token", 5, {"index": -1, "id": 5})
frame("ended", 6, {"id": "r0"})
frame("error", 7, {"code": 0, "message": "x"})
frame("prefilled", 4, {"position": 3})
frame("request", 2, {"id": "r0", "sampling": {"top_p": 2.0}, "tensors": [["tokens", "U32", ["token"], [1], 0, 4, None]]}, bytes(4))
frame("request-empty", 2, {"id": "r0"})'
	for f in sum none called layer kv-count kv-none kv-first token ended error prefilled request request-empty; do
		refused 65 "'$f': frame 1" ds-frame check $f
	done
	for f in sum none called layer; do
		refused 65 "'$f': frame 1" ds-frame stat $f
		refused 65 "'$f': frame 1" ds-frame cut --position 0 $f
		refused 65 "'$f': frame 1" ds-frame diff $f $f
		refused 65 "'$f': frame 1" ds-frame pack $f -o x
	done
}
