# ds-prefill and ds-decode against streams that are wrong, half there, or too many at once.
load helper

DSF=$DS_ROOT/tests/bats/dsf.py
CKPT=$DS_ROOT/tests/bats/ckpt.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

# requests ID N MAX...: a stream of requests, each of N tokens and MAX to be made.
requests() {
	"$PYTHON" - "$@" <<-'END' | ds-token -m "$DS_MODEL" encode --jsonl --logprobs
		import json, sys
		a = sys.argv[1:]
		for i in range(0, len(a), 3):
		    print(json.dumps({"id": a[i], "prompt_ids": [(7 * t + len(a[i])) % 1000 + 3 for t in range(int(a[i + 1]))],
		                      "max_tokens": int(a[i + 2]), "ignore_eos": True}))
	END
}

# edit CODE STREAM: the stream with its list of frames [type, flags, stream, seq, meta, payload] changed by Python code, numbered anew.
edit() {
	"$PYTHON" - "$DS_ROOT/tests/bats" "$1" "$2" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		import dsf
		frames = [f for f in dsf.read_frames(sys.argv[3])]
		exec(sys.argv[2])
		out = dsf.Writer(sys.stdout.buffer)
		for kind, flags, stream, _, meta, payload in frames:
		    out.end() if kind == 15 else out.write(kind, stream, meta, payload, flags)
	END
}

table() {
	"$PYTHON" "$DSF" tokens "$@"
}

@test "a bit of a request's payload turned on the way is noticed by prefill and by decode" {
	requests a 70 3 >good
	ds-prefill -m "$DS_MODEL" -i good >good.kv
	edit 'frames[1][5] = bytes([frames[1][5][0] ^ 1]) + frames[1][5][1:]' good >bad
	refused 65 "payload hash is" ds-prefill -m "$DS_MODEL" -i bad
	edit 'frames[1][5] = bytes([frames[1][5][0] ^ 1]) + frames[1][5][1:]' good.kv >bad.kv
	refused 65 "payload hash is" ds-decode -m "$DS_MODEL" -i bad.kv
	edit 'frames[2][5] = bytes([frames[2][5][0] ^ 1]) + frames[2][5][1:]' good.kv >bad.kv
	refused 65 "payload hash is" ds-decode -m "$DS_MODEL" -i bad.kv
}

@test "a payload larger than its tokens is refused" {
	requests a 5 3 >good
	edit 'frames[1][5] += bytes(1 << 16); frames[1][4].pop("xxh", None)' good >bad
	refused 65 "a payload of" ds-prefill -m "$DS_MODEL" -i bad
}

@test "a name that is still in use ends the stream, it is not answered twice" {
	requests a 200 50 >one
	edit 'frames.insert(2, frames[1])' one >two
	refused 65 "request 'a' is still running" ds-prefill -m "$DS_MODEL" -i two
	ds-prefill -m "$DS_MODEL" -i one >one.kv
	edit 'frames.insert(len(frames) - 1, frames[1])' one.kv >two.kv
	refused 65 "request 'a' is still running" ds-decode -m "$DS_MODEL" -i two.kv
}

@test "requests that begin to arrive without end are refused above --max-batch, the others are answered" {
	requests a 5 2 b 5 2 c 5 2 d 5 2 >all
	ds-prefill -m "$DS_MODEL" -i all >all.kv
	# all four requests first, then what belongs to them
	edit 'frames[1:-1] = [f for f in frames if f[0] == 2] + [f for f in frames if f[0] in (3, 4)]' all.kv >mixed.kv
	run -75 limited sh -c "ds-decode -m '$DS_MODEL' --max-batch 3 -i mixed.kv >out"
	table out >t
	[ "$(grep -c ' done length 5 2$' t)" -eq 3 ]
	grep -q ' error 75 .*begun to arrive' t
}

@test "a cancel stops a running request, and prefill passes it on for what it has handed over" {
	requests a 10 1000 b 10 5 >two
	edit 'a = frames[1][2]; frames.insert(3, [8, 0, a, 0, {"reason": "test"}, b""])' two >cancelled
	limited ds-prefill -m "$DS_MODEL" -i cancelled | limited ds-decode -m "$DS_MODEL" >out
	table out >t
	grep -q 'done cancelled' t
	grep -q '^b done length 10 5$' t
	ds-prefill -m "$DS_MODEL" -i two >two.kv
	edit 'a = frames[1][2]; frames.insert(-1, [8, 0, a, 0, {"reason": "test"}, b""])' two.kv >cancelled.kv
	limited ds-decode -m "$DS_MODEL" -i cancelled.kv >out
	table out >t
	grep -q '^a done cancelled' t
	grep -q '^b done length 10 5$' t
	# handed over already: the cancel goes on
	edit 'frames[1:-1] = [[8, 0, frames[1][2], 0, {"reason": "test"}, b""]]' two >only
	limited ds-prefill -m "$DS_MODEL" -i only | "$PYTHON" "$DSF" types - >types
	grep -q cancel types
}

@test "what failed upstream is dropped, its error travels on" {
	requests a 100 5 b 10 5 >two
	ds-prefill -m "$DS_MODEL" -i two >two.kv
	# an error in the middle of a's blocks
	edit 'a = frames[1][2]; frames[3:5] = [[7, 0, a, 0, {"code": 69, "message": "gone", "retryable": True}, b""]]' two.kv >bad.kv
	limited ds-decode -m "$DS_MODEL" -i bad.kv >out || true
	table out >t
	grep -q 'error 69 gone' t
	grep -q '^b done length 10 5$' t
}

@test "weights that make logits of NaN fail the request by name" {
	"$PYTHON" "$CKPT" "$DS_MODEL" nan-model nan:model.norm.weight
	requests a 5 3 >one
	refused 65 "logits are not finite" ds-prefill -m nan-model -i one
}

@test "KV of NaN or infinity fails its own request, and is not put down to the model" {
	requests a 70 9 b 70 9 >two
	ds-prefill -m "$DS_MODEL" -i two >two.kv
	ds-decode -m "$DS_MODEL" -i two.kv | table - | grep '^b' >want
	for value in 7fc0 7f80 ff80; do
		# of a's first frame: layer 1 of token 7 (a layer is 64 rows of one size)
		edit "
k = [f for f in frames if f[0] == 3 and f[2] == frames[1][2]][0]
shape = k[4]['tensors'][0][3]
at = (1 * shape[1] + 7) * shape[2] * 2
k[5] = k[5][:at] + bytes.fromhex('$value')[::-1] + k[5][at + 2:]
k[4].pop('xxh', None)" two.kv >bad.kv
		run -65 limited sh -c "ds-decode -m '$DS_MODEL' -i bad.kv >out 2>err"
		[ "$(wc -l <err)" -eq 1 ]
		grep -qF "request 'a': the KV that 'bad.kv' handed over is not finite: layer 1 of token 7" err
		table out >t
		grep -q '^[0-9a]* error 65 .*not finite' t
		grep '^b' t | cmp - want
	done
}

@test "a client whose request is half there neither stops another's nor makes it fail" {
	# six blocks of KV memory: a has five of its six in, b needs two
	requests a 375 4 >a
	requests b 100 40 >b
	ds-prefill -m "$DS_MODEL" -i a >a.kv
	ds-prefill -m "$DS_MODEL" -i b >b.kv
	ds-decode -m "$DS_MODEL" -i a.kv | table - >want
	ds-decode -m "$DS_MODEL" -i b.kv | table - >>want
	background ds-decode -m "$DS_MODEL" -l unix:d.sock --kv-memory 368640
	wait_socket d.sock
	"$PYTHON" - "$DS_ROOT/tests/bats" <<-'END'
		import sys
		sys.path.insert(0, sys.argv[1])
		from kv_clients import answers, connect
		a, data = connect(), open("a.kv", "rb").read()
		cut = 0
		for _ in range(2 + 5):  # hello, request, five blocks
		    cut += 44 + int.from_bytes(data[cut + 30:cut + 34], "big") + 5 + int.from_bytes(data[cut + 35:cut + 39], "big")
		a.sendall(data[:cut])
		b = connect()
		b.sendall(open("b.kv", "rb").read())
		answers(b, "b.out")
		a.sendall(data[cut:])
		answers(a, "a.out")
	END
	{ table a.out; table b.out; } >got
	cmp got want
}

@test "the input may be an operand; the hash in a dump is the one that check computes, as text" {
	requests a 5 3 >one
	ds-prefill -m "$DS_MODEL" one >one.kv
	ds-decode -m "$DS_MODEL" one.kv | table - >t
	grep -q '^a done length 5 3$' t
	refused 64 "unexpected operand 'two'" ds-decode -m "$DS_MODEL" one two
	ds-frame dump one.kv | "$PYTHON" -c '
import json, sys
for f in map(json.loads, sys.stdin):
    if f["type"] == "kv":
        assert f["meta"]["xxh"] == f["tensors"][0]["xxh"] and len(f["meta"]["xxh"]) == 16, f
        break
else:
    raise SystemExit("no kv frame")
'
}

@test "a payload that goes on in the next frame is refused, not taken for whole" {
	requests a 5 3 >one
	ds-prefill -m "$DS_MODEL" one >one.kv
	edit 'frames[1][1] = 2' one >more
	refused 65 "not supported" ds-prefill -m "$DS_MODEL" more
	edit 'frames[2][1] = 2' one.kv >more.kv
	refused 65 "not supported" ds-decode -m "$DS_MODEL" more.kv
}

@test "an error or a done that comes behind its request ends it: one answer" {
	requests a 400 50 b 5 3 >two
	for frame in '[7, 0, a, 0, {"code": 69, "message": "gone", "retryable": True}, b""]' \
		'[6, 0, a, 0, {"id": "a", "finish_reason": "cancelled", "usage": {"prompt": 400, "completion": 0}}, b""]'; do
		edit "a = frames[1][2]; frames.insert(2, $frame)" two >ended
		limited ds-prefill -m "$DS_MODEL" ended | limited ds-decode -m "$DS_MODEL" | table - >t
		[ "$(grep -vc '^b ' t)" -eq 1 ]
		grep -q '^b done length 5 3$' t
	done
}

@test "a zstd payload of nothing is given out once" {
	requests a 5 3 >one
	edit 'frames.insert(2, [8, 1, 77, 0, {"reason": "x"}, bytes.fromhex("28b52ffd2000010000")])' one >empty
	limited ds-frame check empty || [ $? -eq 65 ]
	limited ds-prefill -m "$DS_MODEL" empty | limited ds-decode -m "$DS_MODEL" | table - >t
	grep -q '^a done length 5 3$' t
}

@test "a cancel is read though the batch is full" {
	requests a 5 3000 b 5 3000 c 5 3 >three
	ds-prefill -m "$DS_MODEL" three >three.kv
	# a and b run; their cancels stand before the third request
	edit 'last = max(i for i, f in enumerate(frames) if f[0] == 2)
for n in (1, 4):
    frames.insert(last, [8, 0, frames[n][2], 0, {"reason": "test"}, b""])' three.kv >cancelled.kv
	limited ds-decode -m "$DS_MODEL" --max-batch 2 cancelled.kv | table - >t
	[ "$(grep -c 'done cancelled' t)" -eq 2 ]
	grep -q '^c done length 5 3$' t
}

@test "controls of eight bits and marks of direction do not reach the terminal" {
	printf '{"prompt": "x", "\u009b2J\u202ekey": 1}\n' >keys
	run -65 --separate-stderr ds-token -m "$DS_MODEL" encode --jsonl -i keys
	[[ $stderr == *'?2J?key'* ]]
}

@test "a file size limit is an error like a full disk, nothing is left behind" {
	requests a 400 3 >one
	run -74 --separate-stderr bash -c "ulimit -f 8; exec ds-prefill -m '$DS_MODEL' one -o out"
	run -74 --separate-stderr bash -c "ulimit -f 8; exec ds-model random --like '$DS_MODEL' -o model"
	run -74 --separate-stderr bash -c "ulimit -f 1; exec ds-frame filter one -o out"
	[[ $stderr == "ds-frame: cannot write to 'out': File too large" ]]
	run ls -I 'separate-stderr*'
	assert_output one
}

@test "a request that fails is named in the answers, whatever its name" {
	printf '%s\n' '{"id": "good", "prompt": "a", "max_tokens": 2}' '{"id": "bad", "prompt_ids": [1, 2], "max_tokens": 2}' \
		'{"id": "worse", "prompt": "a", "temperature": -1}' >lines
	{ ds-token -m "$DS_MODEL" encode --jsonl -i lines 2>/dev/null || true; } >all
	edit 'import struct
for f in frames:
    if f[4].get("id") == "bad":
        f[5] = struct.pack("<I", 70000) + f[5][4:]
        f[4].pop("xxh")' all >some
	{ ds-prefill -m "$DS_MODEL" some | ds-decode -m "$DS_MODEL" | ds-token -m "$DS_MODEL" decode --jsonl; } 2>/dev/null >answers || true
	run "$PYTHON" -c '
import json
for a in sorted(map(json.loads, open("answers")), key=lambda a: a["id"]):
    print(a["id"], a["finish_reason"])
'
	assert_output "$(printf 'bad error\ngood length\nworse error')"
}

@test "-v says which model, kernels and memory are used" {
	requests a 5 3 >one
	DS_KERNELS=scalar run -0 --separate-stderr ds-prefill -v -j 2 -m "$DS_MODEL" one -o out
	[[ $stderr == *"model $(ds-model fingerprint "$DS_MODEL")"*"kernels scalar, 2 threads"* ]]
}
