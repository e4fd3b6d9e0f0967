"""A client of ds-decode for tests: one connection, requests written and answers read as a test needs it."""
import socket
import struct

import msgpack

import dsf


def prompt(n, seed=0):
    return [(7 * t + 13 * seed) % 1000 + 3 for t in range(n)]


class Talk:
    def __init__(self, path, patience=40):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(patience)
        self.s.connect(path)
        self.f = self.s.makefile("wb")
        self.w = dsf.Writer(self.f)
        self.u = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=0)
        self.w.hello()
        self.f.flush()

    def ask(self, name, ids, max_tokens, **more):
        payload = struct.pack(f"<{len(ids)}I", *ids)
        sampling = {"temperature": 0.0, **more.pop("sampling", {})}
        meta = {"id": name, "sampling": sampling, "max_tokens": max_tokens, "ignore_eos": True,
                "tensors": [["tokens", "U32", ["token"], [len(ids)], 0, len(payload), None]], **more}
        self.w.write(2, dsf.stream_id(name), meta, payload)
        self.f.flush()

    def cancel(self, name):
        self.w.write(8, dsf.stream_id(name), {"reason": "test"})
        self.f.flush()

    def end(self):
        self.w.end()
        self.f.flush()

    def frames(self):
        """Yields (type, stream, meta) as they come, to the end."""
        while True:
            for f in self.u:
                yield f[1], f[3], f[8]
            data = self.s.recv(1 << 16)
            if not data:
                return
            self.u.feed(data)

    def answer(self, name):
        """Tokens by choice, and the done or error frame, of one request; frames of others are dropped."""
        tokens, stream = {}, dsf.stream_id(name)
        for kind, s, meta in self.frames():
            if s == stream and kind == 5:
                tokens.setdefault(meta.get("choice", 0), []).append(meta["id"])
            elif s == stream and kind in (6, 7):
                return tokens, meta
        raise EOFError(name)


def count(t, until):
    """Tokens of a connection's answers so far by request and choice, until a request is done."""
    seen = {}
    for kind, stream, meta in t.frames():
        if kind == 5:
            key = (stream, meta.get("choice", 0))
            seen[key] = seen.get(key, 0) + 1
        assert kind != 7, meta
        if kind == 6 and meta["id"] == until:
            return seen
    raise EOFError(until)
