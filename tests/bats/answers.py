#!/usr/bin/python3
"""Requests of many kinds, and their answers in a form that cmp can compare; read and written with dsf.py.

    answers.py mix N [--plain] [--long]    N requests as JSON lines (for dsf.py requests): prompts of 1 to 400 tokens, 1 to 150 tokens
                                           to be made, greedy and sampled, penalties, several choices, stop strings; --plain: without
                                           the last two; --long: answers that run on (ignore_eos)
    answers.py table [--no-hits] STREAM    every answer, sorted: all that token, done and error frames say but times and what speculation
                                           did; numbers exactly.  --no-hits: without what a cache of prefixes did
    answers.py kv STREAM                   a line for each KV and prefilled frame: its meta and the hash of its payload
    answers.py mtp STREAM                  drafted, accepted, steps: sums over all done frames
"""
import hashlib
import json
import random
import sys

import dsf

TIMES = ("_", "xxh", "t_ns", "prefill_ns", "decode_ns", "mtp")


def exact(v):
    if isinstance(v, float):
        return v.hex()
    if isinstance(v, dict):
        return {k: exact(x) for k, x in v.items() if k not in TIMES}
    return [exact(x) for x in v] if isinstance(v, list) else v


def table(path, hits=True):
    names, rows, ended = {}, [], False
    for kind, _, stream, _, meta, _ in dsf.read_frames(path):
        ended = kind == 15
        if kind not in (5, 6, 7):
            continue
        if kind != 5:
            names[stream] = meta["id"]
        if kind == 6 and not hits:
            meta["usage"].pop("hit")
            meta["usage"].pop("miss")
        rows.append((stream, kind, meta.get("choice", 0), meta.get("index", 0), json.dumps(exact(meta), sort_keys=True)))
    for row in sorted((str(names.get(r[0], r[0])), *r[1:]) for r in rows):
        print(row[0], dsf.TYPES[row[1]], row[4])
    if not ended:
        sys.exit("answers.py: the stream has no end")


def kv(path):
    for kind, _, stream, _, meta, payload in dsf.read_frames(path):
        if kind in (3, 4):
            if kind == 4:
                meta["usage"].pop("hit")
                meta["usage"].pop("miss")
            print(f"{stream:016x}", dsf.TYPES[kind], json.dumps(exact(meta), sort_keys=True), hashlib.md5(payload).hexdigest())


def mtp(path):
    sums = [0, 0, 0]
    for kind, _, _, _, meta, _ in dsf.read_frames(path):
        if kind == 6:
            for i, key in enumerate(("drafted", "accepted", "steps")):
                sums[i] += meta.get("mtp", {}).get(key, 0)
    print(*sums)


def sampling(rng):
    s = {"temperature": rng.choice([0.7, 1.0, 1.5]), "seed": rng.randrange(1 << 40)}
    if rng.random() < 0.5:
        s["top_p"] = rng.choice([0.8, 0.95])
    if rng.random() < 0.3:
        s["top_k"] = rng.choice([2, 40])
    if rng.random() < 0.3:
        s["min_p"] = 0.05
    return s


def penalties(rng):
    return {"repetition_penalty": rng.choice([1.1, 1.3]), "presence_penalty": rng.choice([0.0, 0.5]),
            "frequency_penalty": rng.choice([0.0, 0.2]), "logit_bias": [[rng.randrange(3, 1024), 2.5], [17, -100.0]]}


def mix(n, plain=False, long=False):
    """Prompts are exercises of the goldens, and several in a row, cut anywhere, of which many begin alike."""
    rng = random.Random(20)
    with open("tests/golden/eval/golden-fp8.jsonl") as f:
        golden = [json.loads(line) for line in f]
    rows = [sum((rng.choice(golden)["prompt_ids"] for _ in range(40)), [])[:400] for _ in range(3)]
    for i in range(n):
        ids = rng.choice(golden)["prompt_ids"]
        if i % 3 == 0:
            ids = rng.choice(rows)[:rng.randint(1, 400)]
        if i % 6 == 0:
            ids = (ids + rng.choice(golden)["prompt_ids"])[:400]
        r = {"id": f"m{i:04}", "ids": ids, "max_tokens": rng.choice([rng.randint(1, 8), rng.randint(1, 60), rng.randint(1, 150)]),
             "ignore_eos": long or i % 7 == 0, "sampling": {}}
        if rng.random() < 0.5:
            r["sampling"].update(sampling(rng))
        if rng.random() < 0.25:
            r["sampling"].update(penalties(rng))
        if rng.random() < 0.3:
            r["sampling"]["top_logprobs"] = rng.randint(1, 4)
        if not plain and rng.random() < 0.1:
            r["n"] = rng.choice([2, 3, 5])
        if not plain and rng.random() < 0.2:
            r["stop"] = rng.choice([["="], ["\n"], ["ten", "carry"], [". ", "so", "is "], ["</think>", "answer"]])
        print(json.dumps(r))


def main():
    what, args = sys.argv[1], sys.argv[2:]
    flags, rest = [a for a in args if a.startswith("--")], [a for a in args if not a.startswith("--")]
    if what == "mix":
        mix(int(rest[0]), "--plain" in flags, "--long" in flags)
    elif what == "table":
        table(rest[0], "--no-hits" not in flags)
    elif what == "kv":
        kv(rest[0])
    elif what == "mtp":
        mtp(rest[0])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
