#!/usr/bin/python3
"""Load and plan frames by ds-frame(5), with python3-msgpack alone.

    unit_frames.py write FILE [CODE]   a capture of two loads of each of three ranks and one plan; CODE may change meta, data and tensors
                                       of any frame: kind, n (how manieth of its kind), meta, data (a dict of lists by tensor)
    unit_frames.py read FILE           what a capture's load and plan frames say, one JSON line a frame
"""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dsf

FORMATS = {"I64": "q", "I32": "i", "F32": "f", "U32": "I"}
WORLD, LAYERS, EXPERTS, SLOTS = 3, 2, 4, 2


def pack(tensors, data):
    """tensors: [name, dtype, dims, shape] -> meta rows and the payload."""
    rows, payload = [], b""
    for name, dtype, dims, shape in tensors:
        packed = struct.pack(f"<{len(data[name])}{FORMATS[dtype]}", *data[name])
        rows.append([name, dtype, dims, shape, len(payload), len(packed), None])
        payload += packed
    return rows, payload


def load(n):
    rank, second = n % WORLD, n // WORLD
    meta = {"rank": rank, "world": WORLD, "epoch": 1, "plan": second, "t_ns": 10 ** 18 + n, "interval_ns": 5 * 10 ** 9, "steps": 10 + n,
            "rows": 100, "layer": 3, "layers": LAYERS, "experts": EXPERTS, "sent_bytes": [1000, 2000, 3000],
            "received_bytes": [10, 20, 30], "waited_ns": [0, 0, 0] if rank == 2 else [1000000, 2000000 * rank, 1500000]}
    data = {"counts": [n + i for i in range(LAYERS * EXPERTS)], "received": [1 << 40] + [0] * (LAYERS * EXPERTS - 1)}
    dims, shape = ["layer", "expert"], [LAYERS, EXPERTS]
    return 10, 4, meta, [["counts", "I64", dims, shape], ["received", "I64", dims, shape]], data


def plan(n):
    meta = {"epoch": 1 + n, "layers": LAYERS, "experts": EXPERTS, "ranks": WORLD, "slots": SLOTS}
    data = {"placement": [3, 0, 1, -1, 2, 0, -1, -1, 0, 1, 3, 2], "weights": [0.5] * 12}
    dims, shape = ["layer", "rank", "slot"], [LAYERS, WORLD, SLOTS]
    return 11, 0, meta, [["placement", "I32", dims, shape], ["weights", "F32", dims, shape]], data


def write(path, code=""):
    code = compile(code, "code", "exec")
    with open(path, "wb") as file:
        out = dsf.Writer(file)
        out.hello()
        for make, n in [(load, i) for i in range(2 * WORLD)] + [(plan, 0)]:
            kind, flags, meta, tensors, data = make(n)
            exec(code, {"kind": dsf.TYPES[kind], "n": n, "meta": meta, "data": data, "tensors": tensors})
            rows, payload = pack(tensors, data)
            out.write(kind, 0, {**meta, "tensors": rows}, payload, flags)
        out.end()


def read(path):
    for kind, flags, stream, _, meta, payload in dsf.read_frames(path):
        if kind not in (10, 11):
            continue
        said = {k: v for k, v in meta.items() if k not in ("_", "xxh", "tensors")}
        for name, dtype, dims, shape, offset, size, scale in meta["tensors"]:
            form = FORMATS[dtype]
            said[name] = [dims, shape, list(struct.unpack_from(f"<{size // struct.calcsize(form)}{form}", payload, offset))]
        print(json.dumps({"type": dsf.TYPES[kind], "flags": flags, "stream": stream, **said}))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
