# For tests of ds-token: `load token` behind `load helper`.

# shellcheck disable=SC2034 # for the tests
DSF=$DS_ROOT/tests/bats/dsf.py

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() {
	end_background
}

token() {
	limited ds-token -m "$DS_MODEL" "$@"
}

# requests: the request frames of stdin as one JSON line each: id, ids of the prompt, meta.
requests() {
	"$PYTHON" -c '
import json, struct, sys
sys.path.insert(0, sys.argv[1])
import dsf
for kind, flags, stream, seq, meta, data in dsf.read_frames("-"):
    if kind == 2:
        (name, dtype, dims, shape, offset, nbytes, scale), = meta["tensors"]
        ids = struct.unpack("<%dI" % shape[0], data[offset:offset + nbytes])
        print(json.dumps({"id": meta["id"], "ids": ids, "meta": {k: v for k, v in meta.items() if k not in ("_", "id", "tensors", "xxh", "arrival_ns")}}))
    elif kind == 7:
        print(json.dumps({"error": meta["message"], "code": meta["code"]}))
' "$DS_ROOT/tests/bats"
}

# answers [VOCAB]: a stream of token frames made of JSON lines: {"id", "token": [ids]...} with "choice" (0), "logprob", "top" (top_logprobs),
# "each" (keys of every token), "last" (keys of the last one); {"id", "done": reason, "n": N, "choices": [[reason, tokens]...]},
# {"id", "error": text, "code": N}, {"id", "cancel": true}, {"cut": true}
answers() {
	"$PYTHON" -c '
import json, sys
sys.path.insert(0, sys.argv[1])
import dsf
w = dsf.Writer(sys.stdout.buffer)
lines = [json.loads(line) for line in sys.stdin]
hello = {"minor": 0, "program": "test", "version": "1", "mtp": 0, "rank": 0, "world": 1}
if len(sys.argv) > 2:
    hello["vocab"] = int(sys.argv[2])
w.write(1, 0, hello)
at, cut = {}, False
for o in lines:
    stream = sum(ord(c) << (8 * i) for i, c in enumerate(o.get("id", "")))
    mine = at.setdefault(o.get("id"), {})
    choice = o.get("choice", 0)
    for i, token in enumerate(o.get("token", [])):
        meta = {"index": mine.get(choice, 0), "id": token, "t_ns": 1, **({"choice": choice} if choice else {}), **o.get("each", {})}
        meta.update({k: o[v] for k, v in (("logprob", "logprob"), ("top_logprobs", "top")) if v in o})
        if i + 1 == len(o["token"]):
            meta.update(o.get("last", {}))
        w.write(5, stream, meta)
        mine[choice] = mine.get(choice, 0) + 1
    if "done" in o:
        usage = {"prompt": 3, "hit": 1, "miss": 2, "completion": o.get("n", sum(mine.values()))}
        w.write(6, stream, {"id": o["id"], "finish_reason": o["done"], "usage": usage, "prefill_ns": 1, "decode_ns": 1,
                            **({"choices": o["choices"]} if "choices" in o else {})})
    if "error" in o:
        w.write(7, stream, {"id": o["id"], "code": o.get("code", 65), "message": o["error"], "retryable": o.get("retryable", False)})
    if "cancel" in o:
        w.write(8, stream, {})
    cut = cut or "cut" in o
if not cut:
    w.write(15, 0, {"frames": w.seq, "bytes": w.bytes})
' "$DS_ROOT/tests/bats" "$@"
}

# The ids of a text, as decode takes them.
ids() {
	printf %s "$1" | token tokens | cut -f 1 | tail -n +2 | paste -sd ,
}
