#!/usr/bin/python3
"""Dialogues and what came of them, for tests of the store of KV blocks; read and written with dsf.py.

    kv_talk.py begin N [SEED]         first turns of N dialogues as JSON lines (for dsf.py requests): half of them begin alike, as with
                                      a system prompt; lengths around the borders of blocks
    kv_talk.py next LINES ANSWERS     their next turns: the prompt, the answer, and a few tokens more
    kv_talk.py handed STREAM          a line for each KV and prefilled frame of ds-prefill, sorted: all but times, keys and usage
    kv_talk.py hits STREAM            "name prompt hit" for each request, by name
    kv_talk.py keys STREAM            "stream first key parent decoded" of KV frames that say them
    kv_talk.py send SOCKET            stdin to the service there, its answers to stdout
    kv_talk.py blocks FILE...         "key parent first decoded hash" of a store's items, sorted; each key once
    kv_talk.py flip N SEED FILE...    turns N bits at random places of the files
"""
import hashlib
import json
import os
import random
import socket
import sys
import threading

import dsf

QUIET = ("_", "xxh", "prefill_ns", "usage", "block_key", "parent_key", "decoded")


def begin(n, seed=1):
    rng = random.Random(int(seed))
    system = [rng.randrange(3, 1024) for _ in range(150)]
    for i in range(int(n)):
        size = rng.choice([5, 63, 64, 65, 127, 128, 129, 192, 200, 256, rng.randint(1, 330)])
        ids = (system if i % 2 else []) + [rng.randrange(3, 1024) for _ in range(size)]
        print(json.dumps({"id": f"talk{i:03}", "ids": ids[:max(size, 150 if i % 2 else 0)], "max_tokens": rng.choice([3, 70, 140]),
                          "ignore_eos": True, "sampling": {"seed": i, "temperature": 0.8, "top_logprobs": 2} if i % 3 else {}}))


def names(lines):
    return {int(dsf.stream_id(r["id"])): r for r in lines}


def tokens(path):
    out = {}
    for kind, _, stream, _, meta, _ in dsf.read_frames(path):
        if kind == 5 and meta.get("choice", 0) == 0:
            out.setdefault(stream, []).append(meta["id"])
    return out


def following(lines_path, answers):
    with open(lines_path) as f:
        lines = [json.loads(line) for line in f]
    said = tokens(answers)
    for stream, r in names(lines).items():
        rng = random.Random(len(r["ids"]) + stream)
        r["ids"] = r["ids"] + said[stream] + [rng.randrange(3, 1024) for _ in range(rng.choice([1, 9, 40, 70]))]
        print(json.dumps(r))


def plain(v):
    if isinstance(v, float):
        return v.hex()
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items() if k not in QUIET}
    return [plain(x) for x in v] if isinstance(v, list) else v


def handed(path):
    rows = []
    for kind, _, stream, _, meta, payload in dsf.read_frames(path):
        if kind in (3, 4):
            rows.append((stream, kind, meta.get("first", 0), json.dumps(plain(meta), sort_keys=True), hashlib.md5(payload).hexdigest()))
    for r in sorted(rows):
        print(f"{r[0]:016x}", dsf.TYPES[r[1]], r[3], r[4])


def hits(path):
    ids, usage = {}, {}
    for kind, _, stream, _, meta, _ in dsf.read_frames(path):
        if kind == 2:
            ids[stream] = meta["id"]
        if kind in (4, 6):
            usage[meta.get("id") or ids[stream]] = meta["usage"]
    for name, u in sorted(usage.items()):
        assert u["hit"] + u["miss"] == u["prompt"] and u["hit"] < u["prompt"], u
        print(name, u["prompt"], u["hit"])


def keys(path):
    for kind, _, stream, _, meta, _ in dsf.read_frames(path):
        if kind == 3 and "parent_key" in meta:
            print(f"{stream:016x}", meta["first"], meta.get("block_key", "-"), meta["parent_key"], meta.get("decoded", "-"))


def blocks(*paths):
    rows = {}
    for _, _, _, _, meta, payload in (frame for path in paths for frame in dsf.read_frames(path)):
        if meta.get("op") == "put":
            assert meta["key"] not in rows, meta["key"]
            rows[meta["key"]] = f"{meta['parent']} {meta['first']} {meta['decoded']} {hashlib.md5(payload).hexdigest()}"
    for key, rest in sorted(rows.items()):
        print(key, rest)


def send(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    writer = threading.Thread(target=lambda: s.sendall(sys.stdin.buffer.read()))
    writer.start()
    while data := s.recv(1 << 16):
        sys.stdout.buffer.write(data)
    writer.join()


def flip(n, seed, *paths):
    rng = random.Random(int(seed))
    sizes = [os.path.getsize(p) for p in paths]
    for _ in range(int(n)):
        path = rng.choices(paths, sizes)[0]
        with open(path, "r+b") as f:
            at = rng.randrange(os.path.getsize(path))
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1 << rng.randrange(8)]))


def main():
    does = {"begin": begin, "next": following, "handed": handed, "hits": hits, "keys": keys, "send": send, "blocks": blocks, "flip": flip}
    if len(sys.argv) < 3 or sys.argv[1] not in does:
        sys.exit(__doc__)
    does[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
