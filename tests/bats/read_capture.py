#!/usr/bin/python3
"""Reads a capture with the ordinary msgpack library and prints what `ds-frame dump` says of it, to be compared: one line a frame with
number, type, stream, meta without padding, and for each tensor its first values, computed here from the payload's bytes."""
import json
import struct
import sys
import zlib

import msgpack

NAMES = ["", "hello", "request", "kv", "prefilled", "token", "done", "error", "cancel", "stat", "load", "plan", "store", "tensor", "text", "end"]
FORMATS = {"F32": "<f", "I32": "<i", "U32": "<I", "I64": "<q", "U8": "<B"}


def value(dtype, data, at):
    if dtype == "BF16":
        return struct.unpack("<f", b"\0\0" + data[2 * at:2 * at + 2])[0]
    fmt = FORMATS[dtype]
    return struct.unpack_from(fmt, data, at * struct.calcsize(fmt))[0]


def tensor(row, data):
    name, dtype, dims, shape, offset, nbytes, _ = row
    count = 1
    for n in shape:
        count *= n
    part = data[offset:offset + nbytes]
    return {"name": name, "dtype": dtype, "dims": dims, "shape": shape, "first": [value(dtype, part, i) for i in range(min(4, count))]}


def main(path):
    raw = open(path, "rb").read()
    unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
    unpacker.feed(raw)
    at = 0
    for number, (magic, kind, flags, stream, seq, meta_len, data_len, crc, meta, data) in enumerate(unpacker):
        assert magic == "DSF1" and seq == number and len(data) == data_len, number
        assert zlib.crc32(raw[at + 44:at + 44 + meta_len], zlib.crc32(raw[at:at + 39])) == crc, number
        assert at % 64 == 0 and (44 + meta_len + 5) % 64 == 0 and data_len % 64 == 0, number
        at += 44 + meta_len + 5 + data_len
        if kind == 15:
            assert (meta["frames"], meta["bytes"]) == (number, at - 49 - meta_len), number
        line = {"number": number, "type": NAMES[kind], "stream": f"{stream:016x}", "meta": {k: v for k, v in meta.items() if k != "_"}}
        if "xxh" in meta:
            line["meta"]["xxh"] = f"{meta['xxh']:016x}"
        if "tensors" in meta:
            line["tensors"] = [tensor(row, data) for row in meta["tensors"]]
        print(json.dumps(line, sort_keys=True))
    assert at == len(raw), "bytes are left"


def same(path):
    """Brings lines of `ds-frame dump` into the form above."""
    for text in open(path):
        line = json.loads(text)
        line = {k: line[k] for k in ("number", "type", "stream", "meta", "tensors") if k in line}
        for t in line.get("tensors", []):
            for k in ("min", "max", "mean", "nan", "xxh"):
                t.pop(k, None)
            if t["dtype"] in ("F32", "BF16"):
                t["first"] = [float(v) for v in t["first"]]
        print(json.dumps(line, sort_keys=True))


if __name__ == "__main__":
    same(sys.argv[2]) if sys.argv[1] == "--dump" else main(sys.argv[1])
