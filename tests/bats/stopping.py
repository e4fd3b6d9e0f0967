#!/usr/bin/python3
"""Stop strings at every place of known answers, and what must come of them, computed from the answers' bytes alone.

    stopping.py known                   requests whose answers are to be known
    stopping.py requests TEXTS          one request (JSON line, for ds-token encode --jsonl) for each stop string: substrings of the
                                        answers in TEXTS (lines of `ds-token decode --jsonl`, ids "en", "cn", ...) at all offsets
    stopping.py expect TEXTS REQUESTS   what ds-token decode must print of each choice: lines "id choice text stop_reason" as JSON
    stopping.py got ANSWERS             the same of lines of `ds-token decode --jsonl`
    stopping.py frames TEXTS REQUESTS MODEL STREAM
                                        checks hold and cut of every token frame: what may be shown at any time is a beginning of the
                                        final text, and no byte is held back that cannot begin a stop string
"""
import codecs
import json
import sys

import dsf

PROMPTS = {"en": {"messages": [{"role": "user", "content": "What is 348 + 977?"}]},
           "cn": {"messages": [{"role": "user", "content": "348加977等于多少?"}]},
           "many": {"prompt": "hello ", "max_tokens": 40, "n": 5, "temperature": 1.2, "seed": 8, "ignore_eos": True}}


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def texts(path):
    out = {}
    for a in lines(path):
        out.setdefault(a["id"], {})[a.get("index", 0)] = a["text"]
    return out


def known():
    for name, prompt in PROMPTS.items():
        print(json.dumps({"id": name, **prompt}))


def substrings(text, lengths):
    return {text[o:o + n] for o in range(len(text)) for n in lengths if o + n <= len(text)}


def requests(path):
    known_texts, rows = texts(path), []
    for name, lengths in (("en", (1, 2, 3, 5, 8, 21)), ("cn", (1, 2, 3, 7))):
        rows += [(name, [s]) for s in sorted(substrings(known_texts[name][0], lengths))]
    many = sorted(set().union(*(substrings(t, (1, 3)) for t in known_texts["many"].values())))
    rows += [("many", [s]) for s in many[::4]]
    # several at once; some are the beginning or the end of others
    rows += [("en", [a, a + b, b]) for a, b in ((" ca", "rry"), ("carry 1", ".\n"), ("1", "3"), ("=1", "5, carry"))]
    rows += [("cn", ["zzz", known_texts["cn"][0][k:k + 3], known_texts["cn"][0][k + 1:k + 2]]) for k in range(3, 40, 4)]
    rows += [("en", ["not in the answer", "nor this"]), ("en", ["325.</think>", "The answer is 1325.\n"])]
    for i, (name, stops) in enumerate(rows):
        if all(len(s.encode()) <= 256 for s in stops) and not any("\ufffd" in s for s in stops):
            print(json.dumps({"id": f"{name}.{i}", **PROMPTS[name], "stop": stops}))


def cut(text, stops):
    """The match that is complete first; of those, the one that began first."""
    b, best = text.encode(), None
    for s in stops:
        at = b.find(s.encode())
        if at >= 0 and (best is None or (at + len(s.encode()), at) < best[:2]):
            best = (at + len(s.encode()), at, s)
    return (text, None) if best is None else (b[:best[1]].decode(), best[2])


def expect(path, requests_path):
    known_texts = texts(path)
    for r in lines(requests_path):
        for choice, text in sorted(known_texts[r["id"].split(".")[0]].items()):
            shown, stop = cut(text, r["stop"])
            print(json.dumps([r["id"], choice, shown, stop]))


def got(path):
    for row in sorted([[a["id"], a.get("index", 0), a["text"], a.get("stop_reason")] for a in lines(path)], key=order):
        print(json.dumps(row))


def order(row):
    name, number = row[0].split(".")
    return int(number), row[1]


def token_bytes(model):
    """Bytes of each id, by the byte-level alphabet of GPT-2; special tokens have none."""
    t = json.load(open(f"{model}/tokenizer.json", encoding="utf-8"))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    byte = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    out = {i: bytes(byte[c] for c in s) for s, i in t["model"]["vocab"].items() if all(c in byte for c in s)}
    for a in t["added_tokens"]:
        out[a["id"]] = b"" if a["special"] else a["content"].encode()
    return out


def frames(path, requests_path, model, stream):
    known_texts, of = texts(path), token_bytes(model)
    rows = {dsf.stream_id(r["id"]): r for r in lines(requests_path)}
    text, bad, held, spread = {}, 0, 0, {}
    for kind, _, s, _, meta, _ in dsf.read_frames(stream):
        if kind != 5:
            continue
        r, choice = rows[s], meta.get("choice", 0)
        stops = [x.encode() for x in r["stop"]]
        before = text.get((s, choice), b"")
        t = text[s, choice] = before + of[meta["id"]]
        final = cut(known_texts[r["id"].split(".")[0]][choice], r["stop"])[0]
        if "finish_reason" in meta:
            ok = t[:len(t) - meta.get("cut", 0)].decode("utf-8", "replace") == final and "hold" not in meta
            ok = ok and (meta.get("stop") is not None) == (meta["finish_reason"] == "stop" and final != t.decode("utf-8", "replace"))
            if "stop" in meta:  # how the stop string lay over the tokens
                n, last = len(meta["stop"].encode()), len(of[meta["id"]])
                spread[min(n, 9), min(last, 9), n > last] = 1
        else:
            want = max([n for x in stops for n in range(1, len(x)) if t.endswith(x[:n])], default=0)
            ok = meta.get("hold", 0) == want and final.startswith(codecs.getincrementaldecoder("utf-8")("replace").decode(t[:len(t) - want]))
            held += want > 0
        if not ok:
            bad += 1
            print(r["id"], choice, r["stop"], t, meta)
    print(f"{len(rows)} requests, {bad} tokens wrong, {held} held something back, {len(spread)} kinds of endings")
    return bad or held < 100 or len(spread) < 10


if __name__ == "__main__":
    sys.exit({"known": known, "requests": requests, "expect": expect, "got": got, "frames": frames}[sys.argv[1]](*sys.argv[2:]))
