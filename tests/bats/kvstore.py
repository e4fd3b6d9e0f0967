"""A client of ds-kvstore, by ds-frame(5) and python3-msgpack alone, for its tests."""
import array
import ctypes
import fcntl
import io
import os
import socket
import struct
import time

import msgpack

import dsf

HELLO, ERROR, STORE, END = 1, 7, 12, 15


def xxh(data):
    f = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    f.restype, f.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return f(data, len(data))


def key(i):
    return struct.pack(">QQ", 0x6b65790000000000 + i, i * 0x9E3779B97F4A7C15 & (1 << 64) - 1)


def value(i, size):
    """Bytes that follow from the key's number."""
    unit = struct.pack("<QQ", i, i ^ 0x5555) + bytes((i * 7 + k) & 255 for k in range(48))
    return (unit * (size // 64 + 1))[:size]


def pad(data):
    return data + bytes(-len(data) % 64)


class Refused(Exception):
    def __init__(self, meta):
        super().__init__(f"{meta['code']} {meta['message']}")
        self.code, self.message, self.retryable = meta["code"], meta["message"], meta.get("retryable", False)


class Gone(Exception):
    pass


class Client:
    def __init__(self, addr, hello=True, timeout=50):
        kind, _, rest = addr.partition(":")
        if kind == "unix":
            self.s = socket.socket(socket.AF_UNIX)
            self.s.connect(rest)
        else:
            host, _, port = rest.rpartition(":")
            self.s = socket.create_connection((host, int(port)))
        self.s.settimeout(timeout)
        self.out = io.BytesIO()
        self.w = dsf.Writer(self.out)
        self.buf, self.fds, self.stream, self.seq = b"", [], 0, 0
        if hello:
            self.w.hello()

    def flush(self):
        data = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        self.s.sendall(data)

    def read(self, n):
        while len(self.buf) < n:
            got, ancillary, _, _ = self.s.recvmsg(1 << 20, socket.CMSG_SPACE(4 * 16))
            for level, kind, data in ancillary:
                assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                fds = array.array("i")
                fds.frombytes(data[:len(data) - len(data) % 4])
                self.fds.extend(fds)
            if not got:
                raise Gone("truncated" if self.buf else "closed")
            self.buf += got
        data, self.buf = self.buf[:n], self.buf[n:]
        return data

    def frame(self):
        """[kind, stream, meta, payload]"""
        head = self.read(44)
        meta_len, data_len = struct.unpack(">I", head[30:34])[0], struct.unpack(">I", head[35:39])[0]
        rest = self.read(meta_len + 5 + data_len)
        f = msgpack.unpackb(head + rest, raw=False, max_bin_len=1 << 30)
        assert f[0] == "DSF1" and f[4] == self.seq, f[:6]
        self.seq += 1
        return [f[1], f[3], f[8], f[9]]

    def ask(self, op, keys=(), meta=None, payload=b"", stream=None, **more):
        self.stream += 1
        m = {"op": op, **more, **(meta or {})}
        if keys:
            payload = b"".join(keys)
            m["tensors"] = [["keys", "U8", ["key", "byte"], [len(keys), 16], 0, len(payload), None]]
        self.w.write(STORE, self.stream if stream is None else stream, m, payload)

    def answer(self):
        """Frames up to ok; raises Refused at an error."""
        frames = []
        while True:
            kind, stream, meta, payload = self.frame()
            if kind == HELLO:
                assert meta["role"] == "store", meta
                continue
            if kind == END:
                raise Gone("end")
            if kind == ERROR:
                raise Refused(meta)
            assert kind == STORE and stream == self.stream, (kind, stream, meta)
            frames.append((meta, payload))
            if meta["op"] == "ok":
                return frames

    def call(self, op, keys=(), **more):
        self.ask(op, keys, **more)
        self.flush()
        return self.answer()

    def has(self, keys, each=False):
        meta, payload = self.call("has", keys, **({"each": True} if each else {}))[-1]
        return (meta["prefix"], list(payload[:len(keys)])) if each else meta["prefix"]

    def put_frame(self, k, data, meta=None, hash=None, **more):
        m = {"key": k.hex(), "size": len(data), "at": 0, "xxh": xxh(pad(data)) if hash is None else hash, **(meta or {}), **more}
        self.ask("put", meta=m, payload=data)

    def put(self, k, data, **more):
        self.put_frame(k, data, **more)
        self.flush()
        return self.answer()[-1][0]["result"]

    def get(self, keys, fds=False):
        """[(meta, payload without padding)] up to the first that is missing, or is not what was put, which the store is told."""
        frames = self.call("get", keys, **({"fds": True} if fds else {}))
        items, files = [], {}
        for meta, payload in frames:
            if meta["op"] == "segment":
                files[meta["number"]] = self.fds.pop(0)
                assert fcntl.fcntl(files[meta["number"]], fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            elif meta["op"] == "ranges":
                n = meta["tensors"][0][3][0]
                rows = [struct.unpack_from("<4q", payload, 32 * i) for i in range(n)]
                for number, offset, head, size in rows:
                    bytes_ = os.pread(files[number], head + size, offset)
                    f = msgpack.unpackb(bytes_, raw=False, max_bin_len=1 << 30)
                    items.append((f[8], f[9]))
                for fd in files.values():
                    os.close(fd)
                files = {}
            elif meta["op"] == "put":
                items.append((meta, payload))
        assert frames[-1][0]["got"] == len(items)
        for n, (k, (meta, payload)) in enumerate(zip(keys, items)):
            assert meta["key"] == k.hex()
            if payload and meta["xxh"] != xxh(payload):
                self.call("doubt", [k])
                items = items[:n]
                break
        return [(meta, payload[:meta["size"]]) for meta, payload in items]

    def stat(self):
        return self.call("stat")[-1][0]["counters"]

    def end(self):
        """Says END, expects END and nothing behind it."""
        self.w.end()
        self.flush()
        kind, _, meta, _ = self.frame()
        if kind == HELLO:
            kind, _, meta, _ = self.frame()
        assert kind == END, kind
        assert not self.s.recv(1)
        self.s.close()


def wait_for(what, seconds=20):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "did not come"
        time.sleep(0.02)
