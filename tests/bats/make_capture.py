#!/usr/bin/python3
"""Writes captures with the ordinary msgpack library: a sound one, and each kind of wrong one.  Usage: make_capture.py KIND FILE"""
import struct
import sys
import zlib

import msgpack


def head(kind, flags, stream, seq, meta, size, magic=b"DSF1"):
    h = b"\x9a\xa4" + magic + struct.pack(">BBBHBQBQBIBI", 0xCC, kind, 0xCD, flags, 0xCF, stream, 0xCF, seq, 0xCE, len(meta), 0xCE, size)
    return h + struct.pack(">BI", 0xCE, zlib.crc32(meta, zlib.crc32(h)))


def raw(kind, meta, data=b"", flags=0, stream=0, seq=0, magic=b"DSF1"):
    return head(kind, flags, stream, seq, meta, len(data), magic) + meta + struct.pack(">BI", 0xC6, len(data)) + data


def with_meta_len(h, n):
    return h[:30] + n.to_bytes(4, "big") + h[34:]


class Stream:
    def __init__(self):
        self.bytes, self.seq = b"", 0

    def add(self, kind, meta, data=b"", **more):
        packed = meta if isinstance(meta, bytes) else msgpack.packb(meta)
        self.bytes += raw(kind, packed, data, seq=self.seq, **more)
        self.seq += 1
        return self

    def end(self, frames=None, size=None):
        return self.add(15, {"frames": self.seq if frames is None else frames, "bytes": len(self.bytes) if size is None else size})


def begun():
    return Stream().add(1, {"minor": 0, "program": "test", "version": "1"})


def row(**more):
    r = {"name": "t", "dtype": "F32", "dims": ["x"], "shape": [4], "offset": 0, "nbytes": 16, "scale": None}
    r.update(more)
    return {"tensors": [list(r.values())]}


DATA = struct.pack("<4f", 1.5, float("nan"), -2.0, 0.25) + bytes(48)
DEEP = b"\x81\xa1x" + b"\x91" * 100000 + b"\x01"

KINDS = {
    "sound": lambda: begun().add(13, row(), DATA, stream=5).add(99, {}, b"later", flags=4).add(13, {"odd": {"a": [1]}}).end(),
    "minor": lambda: Stream().add(1, {"minor": 9, "program": "x", "version": "2", "new": 1}).end(),
    "major": lambda: Stream().add(1, {}, magic=b"DSF2").end(),
    "no_hello": lambda: Stream().add(13, {}).end(),
    "two_hellos": lambda: begun().add(1, {}).end(),
    "unknown_type": lambda: begun().add(99, {}).end(),
    "unknown_flag": lambda: begun().add(13, {}, flags=16).end(),
    "no_end": begun,
    "end_counts": lambda: begun().end(frames=7),
    "end_bytes": lambda: begun().end(size=7),
    "after_end": lambda: begun().end().end(),
    "depth_bomb": lambda: begun().add(13, DEEP).end(),
    "array_bomb": lambda: begun().add(13, b"\x81\xa1x\xdd\xff\xff\xff\xff").end(),
    "map_bomb": lambda: begun().add(13, b"\xdf\xff\xff\xff\xff").end(),
    "not_utf8": lambda: begun().add(13, b"\x81\xa1x\xa1\xff").end(),
    "number_key": lambda: begun().add(13, {1: 2}).end(),
    "no_map": lambda: begun().add(13, b"\x93\x01\x02\x03").end(),
    "beyond": lambda: begun().add(13, row(shape=[400], nbytes=1600), DATA).end(),
    "wrong_size": lambda: begun().add(13, row(nbytes=12), DATA).end(),
    "overflow": lambda: begun().add(13, row(shape=[1 << 63], nbytes=0), DATA).end(),
    "no_scale": lambda: begun().add(13, row(scale="s"), DATA).end(),
    "bad_dtype": lambda: begun().add(13, row(dtype="F64"), DATA).end(),
    "same_name": lambda: begun().add(13, {"tensors": row()["tensors"] + row(offset=16)["tensors"]}, DATA).end(),
    "bad_hash": lambda: begun().add(13, dict(row(), xxh=1), DATA).end(),
    "tensors_text": lambda: begun().add(13, {"tensors": "x"}).end(),
    "huge_payload": lambda: begun().bytes + head(13, 0, 0, 1, b"\x80", 0xFFFFFFFF) + b"\x80\xc6\xff\xff\xff\xff" + bytes(100),
    "huge_meta": lambda: begun().bytes + with_meta_len(head(13, 0, 0, 1, b"\x80", 0), 0xFFFFFFFF) + bytes(100),
    "text": lambda: b"This is not a stream of frames, it is a text that is longer than a head.\n",
}


def main():
    made = KINDS[sys.argv[1]]()
    with open(sys.argv[2], "wb") as f:
        f.write(made if isinstance(made, bytes) else made.bytes)


main()
