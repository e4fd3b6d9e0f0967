#!/usr/bin/python3
"""Damages a capture and runs `ds-frame check` on each piece: cut_capture.py cut|flip N FILE.  cut: at every frame boundary and at N
random bytes; flip: N single bits (payloads must carry hashes).  Each must give 65 (a flip in the major version: 76) and exactly one line
on stderr.  Prints what did not."""
import random
import subprocess
import sys


def boundaries(raw):
    at, all_of = 0, []
    while at < len(raw):
        all_of.append(at)
        at += 49 + int.from_bytes(raw[at + 30:at + 34], "big") + int.from_bytes(raw[at + 35:at + 39], "big")
    return all_of


def check(data):
    r = subprocess.run(["ds-frame", "check"], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    return r.returncode, r.stderr, r.stdout


def main():
    what, count, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    raw = open(path, "rb").read()
    rng = random.Random(1)
    bad = 0
    if what == "cut":
        places = boundaries(raw) + [rng.randrange(len(raw)) for _ in range(count)]
        pieces = [(at, raw[:at], (65,)) for at in places]
    else:
        pieces = []
        for _ in range(count):
            bit = rng.randrange(8 * len(raw))
            data = bytearray(raw)
            data[bit // 8] ^= 1 << bit % 8
            pieces.append((bit, bytes(data), (65, 76)))
    for at, data, codes in pieces:
        code, err, out = check(data)
        if code not in codes or err.count(b"\n") != 1 or not err.startswith(b"ds-frame: ") or out:
            bad += 1
            print(f"{what} {at}: exit {code}, {err!r}")
    print(f"{len(pieces)} pieces, {bad} wrong")
    return bad != 0


sys.exit(main())
