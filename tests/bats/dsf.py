#!/usr/bin/python3
"""Frames for tests, read and written with python3-msgpack alone, by the layout in ds-frame(5): a second implementation, independent
of the C one.

    dsf.py requests < LINES > STREAM   one request a JSON line: id, ids, sampling, max_tokens, ignore_eos, stop_ids, stop, n
    dsf.py tokens STREAM               the answers: "id index token logprob", "id done reason prompt completion", "id error code message"
    dsf.py set STREAM TYPE KEY JSON    the stream with a meta key of every frame of a type changed ("sampling.seed": nested)
    dsf.py major STREAM                the stream with a higher format version in every magic
    dsf.py types STREAM                the frames' types, one a line
"""
import ctypes
import json
import struct
import sys
import zlib

import msgpack

TYPES = ["", "hello", "request", "kv", "prefilled", "token", "done", "error", "cancel", "stat", "load", "plan", "store", "tensor",
         "text", "end"]


def stream_id(name):
    """The XXH3-64 of a request's name."""
    f = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    f.restype, f.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return f(name.encode(), len(name.encode()))


def read_frames(path):
    """Yields [type, flags, stream, seq, meta, data] of a whole stream; the layout is checked with msgpack's own reader."""
    data = sys.stdin.buffer.read() if path == "-" else open(path, "rb").read()
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=0, strict_map_key=False)
    unpacker.feed(data)
    at = 0
    for f in unpacker:
        assert isinstance(f, list) and len(f) == 10, f"frame at byte {at} is no array of ten"
        magic, kind, flags, stream, seq, meta_len, data_len, crc, meta, payload = f
        assert magic == "DSF1", f"magic {magic!r}"
        head = data[at:at + 44]
        assert len(payload) == data_len
        assert crc == zlib.crc32(data[at + 44:at + 44 + meta_len], zlib.crc32(head[:39])), f"CRC of the frame at byte {at}"
        at += 44 + meta_len + 5 + data_len
        assert at == unpacker.tell(), "lengths in the head and msgpack's disagree"
        yield [kind, flags, stream, seq, meta, payload]


class Writer:
    def __init__(self, out, magic=b"DSF1"):
        self.out, self.magic, self.seq, self.bytes = out, magic, 0, 0

    def write(self, kind, stream, meta, payload=b"", flags=0):
        payload += bytes(-len(payload) % 64)
        meta = {k: v for k, v in meta.items() if k != "_"}
        packed = msgpack.packb(meta)
        for room in range(200):
            if (44 + len(packed) + 5) % 64 == 0:
                break
            packed = msgpack.packb({**meta, "_": " " * room})
        head = (b"\x9a\xa4" + self.magic + struct.pack(">BBBHBQBQBIBI", 0xCC, kind, 0xCD, flags, 0xCF, stream, 0xCF, self.seq, 0xCE,
                                                       len(packed), 0xCE, len(payload)))
        head += struct.pack(">BI", 0xCE, zlib.crc32(packed, zlib.crc32(head)))
        assert len(head) == 44
        whole = head + packed + b"\xc6" + struct.pack(">I", len(payload)) + payload
        self.out.write(whole)
        self.seq += 1
        self.bytes += len(whole)

    def hello(self, **more):
        self.write(1, 0, {"minor": 0, "program": "dsf.py", "version": "0", "role": "test", **more})

    def end(self):
        self.write(15, 0, {"frames": self.seq, "bytes": self.bytes})


def requests():
    out = Writer(sys.stdout.buffer)
    out.hello()
    for n, line in enumerate(sys.stdin, 1):
        r = json.loads(line)
        ids = r.get("ids", r.get("prompt_ids"))
        sampling = {"temperature": 0.0, "logprobs": True, **r.get("sampling", {})}
        payload = struct.pack(f"<{len(ids)}I", *ids)
        name = r.get("id", f"r{n}")
        meta = {"id": name, "sampling": sampling, "max_tokens": r.get("max_tokens", 0),
                "tensors": [["tokens", "U32", ["token"], [len(ids)], 0, len(payload), None]]}
        for key in ("ignore_eos", "stop_ids", "stop", "n"):
            if key in r:
                meta[key] = r[key]
        out.write(2, stream_id(name), meta, payload)
    out.end()


def tokens(path):
    names, lines, ended = {}, [], False
    for kind, _, stream, _, meta, payload in read_frames(path):
        ended = kind == 15
        if kind == 6:
            names[stream] = meta["id"]
            usage = meta["usage"]
            lines.append((stream, 1 << 40, f"done {meta['finish_reason']} {usage['prompt']} {usage['completion']}"))
        elif kind == 7:
            lines.append((stream, 1 << 41, f"error {meta['code']} {meta['message']}"))
        elif kind == 5:
            logprob = meta.get("logprob")
            lines.append((stream, meta["index"], f"{meta['index']} {meta['id']} " + (logprob.hex() if logprob is not None else "-")))
    for name, _, text in sorted((str(names.get(s, s)), i, t) for s, i, t in lines):
        print(name, text)
    if not ended:
        sys.exit("dsf.py: the stream has no end")


def rewrite(path, change, magic=b"DSF1"):
    out = Writer(sys.stdout.buffer, magic)
    for kind, flags, stream, _, meta, payload in read_frames(path):
        if kind == 15:
            out.end()
            continue
        change(kind, meta)
        out.write(kind, stream, meta, payload, flags)


def set_key(path, kind, key, value):
    def change(k, meta):
        if TYPES[k] != kind:
            return
        *outer, last = key.split(".")
        for part in outer:
            meta = meta[part]
        meta[last] = json.loads(value)
        meta.pop("xxh", None)
    rewrite(path, change)


def main():
    what, args = sys.argv[1], sys.argv[2:]
    if what == "requests":
        requests()
    elif what == "tokens":
        tokens(*args)
    elif what == "set":
        set_key(*args)
    elif what == "major":
        rewrite(args[0], lambda kind, meta: None, b"DSF2")
    elif what == "types":
        for f in read_frames(args[0]):
            print(TYPES[f[0]])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
