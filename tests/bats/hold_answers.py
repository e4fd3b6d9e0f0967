#!/usr/bin/python3
"""ds-token decode, one frame at a time: after each frame what is shown is compared with the text less what a stop string may still take
back, found by brute force.

    hold_answers.py MODEL CASES [--jsonl]
"""
import json
import os
import random
import select
import subprocess
import sys

import dsf

STOPS = ["STOP", "abab", "aab", "b\n", "é", "好好", "\n\n", "aaaaab"]
PIECES = ["a", "b", "ab", "STO", "STOP", "ST", "é", "è", "好", "好好", "\n", "x y", "aaaa", "�"]


def byte_alphabet():
    """Byte-level BPE's letters for bytes: printable ones stand for themselves, the others follow from U+0100."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + len(letters) - len(plain))
    return letters


def load_tokens(model):
    vocab = json.load(open(f"{model}/tokenizer.json"))["model"]["vocab"]
    back = {c: b for b, c in byte_alphabet().items()}
    return {bytes(back[c] for c in piece): i for piece, i in vocab.items() if all(c in back for c in piece)}


def cut_up(text, tokens, rng):
    """The text as tokens, any that fit."""
    at, out = 0, []
    while at < len(text):
        fits = [text[at:at + n] for n in range(1, 9) if text[at:at + n] in tokens and at + n <= len(text)]
        out.append(rng.choice(fits))
        at += len(out[-1])
    return out


def find_stop(text, stops):
    """(end, begin, stop) of the stop string that is complete first; of several the earliest begun."""
    found = []
    for s in stops:
        i = text.find(s)
        if i >= 0:
            found.append((i + len(s), i, s))
    return min(found) if found else None


def hold_of(text, stops):
    return max((n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


def whole(text):
    """Less the bytes at the end that are no whole character yet."""
    for n in range(len(text), max(len(text) - 4, -1), -1):
        try:
            text[:n].decode()
            return text[:n]
        except UnicodeDecodeError:
            pass
    raise AssertionError("the text is no UTF-8")


def frames(pieces, tokens, stops):
    """(meta, shown) of each token."""
    text = b""
    for i, piece in enumerate(pieces):
        text += piece
        meta = {"index": i, "id": tokens[piece], "t_ns": 1}
        found = find_stop(text, stops)
        if found:
            meta.update(finish_reason="stop", stop=found[2].decode(), cut=len(text) - found[1])
            yield meta, text[:found[1]]
            return
        if i + 1 == len(pieces):
            yield {**meta, "finish_reason": "length"}, text
            return
        hold = hold_of(text, stops)
        if hold:
            meta["hold"] = hold
        yield meta, whole(text[:len(text) - hold])


def read_until(fd, got, want):
    while len(got) < len(want) and select.select([fd], [], [], 20)[0]:
        piece = os.read(fd, 65536)
        if not piece:
            break
        got += piece
    while select.select([fd], [], [], 0.002)[0]:
        piece = os.read(fd, 65536)
        if not piece:
            break
        got += piece
    return got


def run_case(model, tokens, rng, jsonl):
    stops = [s.encode() for s in rng.sample(STOPS, rng.randint(1, 3))]
    text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 10))).encode()
    pieces = cut_up(text, tokens, rng)
    p = subprocess.Popen(["ds-token", "-m", model, "decode"] + ["--jsonl"] * jsonl, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    w = dsf.Writer(p.stdin)
    w.hello()
    got, last, count = b"", b"", 0
    for meta, shown in frames(pieces, tokens, stops):
        w.write(5, 7, meta)
        p.stdin.flush()
        last, count = shown, count + 1
        if not jsonl:
            want = shown + (b"\n" if "finish_reason" in meta else b"")
            got = read_until(p.stdout.fileno(), got, want)
            assert got == want, f"stops {stops}, tokens {pieces[:count]}: shown {got}, expected {want}"
        reason = meta.get("finish_reason")
    w.write(6, 7, {"id": "a", "finish_reason": reason, "usage": {"prompt": 1, "completion": count}})
    w.end()
    p.stdin.close()
    got += p.stdout.read()
    assert p.wait(20) == 0
    if jsonl:
        line = json.loads(got)
        assert line["text"] == last.decode() and line["finish_reason"] == reason, (stops, pieces, line)
        assert line.get("stop_reason") == meta.get("stop") and len(line["ids"]) == count, line
    else:
        assert got == last + b"\n", (stops, pieces, got)
    return reason == "stop"


def main():
    model, cases, jsonl = sys.argv[1], int(sys.argv[2]), "--jsonl" in sys.argv
    tokens = load_tokens(model)
    stopped = sum(run_case(model, tokens, random.Random(i), jsonl) for i in range(cases))
    print(f"{cases} answers, {stopped} ended by a stop string")
    assert cases / 4 < stopped < cases


main()
