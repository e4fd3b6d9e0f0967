#!/usr/bin/python3
"""What tests of ds-kvstore do to a service: kvstore_check.py WHAT ADDR [ARGUMENT...]; the functions below say what."""
import array
import fcntl
import io
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time

import dsf
from kvstore import END, ERROR, HELLO, STORE, Client, Gone, Refused, key, value, wait_for, xxh

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
KEYS = [key(i) for i in range(24)]
SIZES = [64, 0, 1, 63, 65, 4096, 70001, 1 << 20]


def basics(addr):
    """Everything that can be asked for, in the order in which it is said."""
    c = Client(addr)
    assert c.has(KEYS) == 0 and c.has(KEYS, each=True) == (0, [0] * 24)
    for i, n in enumerate(SIZES):
        assert c.put(KEYS[i], value(i, n), meta={"who": f"item {i}", "list": [1, "two", 3.0]}) == "stored"
    assert c.put(KEYS[3], value(3, SIZES[3])) == "already"
    assert c.has(KEYS) == 8 and c.has([KEYS[20]] + KEYS, each=True) == (0, [0] + [1] * 8 + [0] * 16)
    for fds in (False, True) if addr.startswith("unix:") else (False,):
        items = c.get(KEYS, fds=fds)
        assert len(items) == 8
        for i, (meta, data) in enumerate(items):
            assert data == value(i, SIZES[i]) and meta["who"] == f"item {i}" and meta["list"] == [1, "two", 3.0], i
            assert meta["at"] > 0 and not {"sync", "replace", "element", "ttl_ns"} & meta.keys(), meta
    assert c.get([KEYS[20], KEYS[0]]) == []
    assert c.put(KEYS[2], b"other", replace=True, sync=True) == "stored"
    assert c.get(KEYS[2:3])[0][1] == b"other"
    assert c.put(KEYS[9], b"soon over", ttl_ns=4_000_000_000) == "stored" and c.has(KEYS[9:10]) == 1
    assert c.call("del", KEYS[3:4])[-1][0]["was"] and not c.call("del", KEYS[3:4])[-1][0]["was"]
    assert c.has(KEYS) == 3
    assert c.put(KEYS[3], value(3, 63)) == "stored"
    c.call("pin", KEYS)
    c.call("unpin", KEYS)
    c.call("doubt", KEYS[:2])
    stat = c.stat()
    assert stat["items"] in (8, 9) and stat["corrupt"] == 0 and stat["hits"] >= 9, stat
    time.sleep(4.5)
    assert c.has(KEYS[9:10]) == 0 and c.get(KEYS[9:10]) == []
    c.end()


def refusals(addr):
    """Requests that are wrong end there, with what is wrong; the connection goes on."""
    c = Client(addr)

    def refused(code, text, *args, **more):
        try:
            c.call(*args, **more)
        except Refused as e:
            assert e.code == code and text in e.message, e
        else:
            raise AssertionError(f"not refused: {text}")

    refused(65, "'op'", "brew")
    refused(65, "'op'", "ok")
    refused(65, "'op'", 7)
    refused(65, "'keys'", "has")
    refused(65, "'keys'", "has", payload=bytes(64), meta={"tensors": [["keys", "U8", ["key", "byte"], [4, 15], 0, 60, None]]})
    refused(65, "tensor", "has", payload=bytes(64), meta={"tensors": [["keys", "U8", ["key", "byte"], [5, 16], 0, 80, None]]})
    refused(65, "", "has", KEYS, each="yes")
    refused(65, "keys", "has", payload=bytes(16 * 16385 + 64))
    refused(65, "", "put", payload=bytes(64))
    refused(65, "key", "put", meta={"key": "zz" * 16, "size": 64, "xxh": xxh(bytes(64))}, payload=bytes(64))
    refused(65, "size", "put", meta={"key": "00" * 16, "size": 65, "xxh": xxh(bytes(64))}, payload=bytes(64))
    refused(65, "hash", "put", meta={"key": "00" * 16, "size": 64, "xxh": 5}, payload=bytes(64))
    refused(65, "xxh", "put", meta={"key": "00" * 16, "size": 64}, payload=bytes(64))
    refused(65, "element", "put", meta={"key": "00" * 16, "size": 64, "xxh": xxh(bytes(64)), "element": 99}, payload=bytes(64))
    refused(65, "meta", "put", meta={"key": "00" * 16, "size": 64, "xxh": xxh(bytes(64)), "x": "y" * 20000}, payload=bytes(64))
    c.stream += 1
    c.w.write(3, c.stream, {"first": 0, "count": 0}, bytes(1 << 20))
    c.flush()
    kind, stream, meta, _ = c.frame()
    assert kind == ERROR and stream == c.stream and meta["code"] == 65, meta
    assert c.put(KEYS[0], b"still here") == "stored"
    c.end()


def bad_streams(addr):
    """What is no stream of frames ends the connection, which is told why."""
    def ends_with(data, text):
        c = Client(addr, hello=False)
        try:
            c.s.sendall(data)
            c.s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        got = []
        try:
            while True:
                got.append(c.frame())
        except (Gone, ConnectionError):
            pass
        errors = [m["message"] for k, s, m, _ in got if k == ERROR and s == 0]
        assert errors and text in errors[0] and got[-1][0] == END, (text, got)

    def stream(make):
        out = io.BytesIO()
        make(dsf.Writer(out))
        return out.getvalue()

    hello = stream(lambda w: w.hello())
    ends_with(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\n\r\n", "DSF1")
    ends_with(stream(lambda w: w.end()), "hello")
    ends_with(hello + hello, "sequence")
    two = io.BytesIO()
    w = dsf.Writer(two)
    w.hello()
    w.hello()
    ends_with(two.getvalue(), "hello")
    ends_with(bytes(bytearray(hello[:60]) + bytes([hello[60] ^ 1]) + hello[61:]), "CRC")
    large = io.BytesIO()
    w = dsf.Writer(large)
    w.hello()
    w.write(STORE, 1, {"op": "has"})
    data = bytearray(large.getvalue())
    data[len(hello) + 35:len(hello) + 39] = struct.pack(">I", 1 << 31)
    ends_with(bytes(data), "limit")
    packed = io.BytesIO()
    w = dsf.Writer(packed)
    w.hello()
    w.write(STORE, 1, {"op": "put", "key": "00" * 16, "size": 64}, bytes(64), flags=1)
    ends_with(packed.getvalue(), "compressed")


def many(addr, clients="64"):
    """Clients at once, each with puts, gets and has of its own and of keys that all share."""
    wrong = []

    def one(n):
        try:
            rng = random.Random(n)
            c = Client(addr)
            for turn in range(12):
                i = 1000 + 100 * n + turn if turn % 2 else 500 + rng.randrange(20)
                data = value(i, 20000 + 64 * (i % 50))
                assert c.put(key(i), data) in ("stored", "already")
                fds = addr.startswith("unix:") and turn % 3 == 0
                items = c.get([key(i), key(1), key(i)], fds=fds)
                assert items and items[0][1] == data, i
            assert c.has([key(1000 + 100 * n + t) for t in range(1, 12, 2)]) == 6
            c.end()
        except BaseException as e:
            wrong.append((n, repr(e)))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(int(clients))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]


def slow(addr):
    """Clients that stand still in the middle of things hold nobody, and are dropped (--peer-timeout is 2s)."""
    fast = Client(addr)
    assert fast.put(KEYS[0], value(0, 1 << 20)) in ("stored", "already")
    half = Client(addr)           # half a put
    half.put_frame(KEYS[1], value(1, 1 << 20))
    data = half.out.getvalue()
    half.s.sendall(data[:len(data) // 2])
    deaf = Client(addr)           # asks for much and reads nothing
    for _ in range(100):
        deaf.ask("get", [KEYS[0]] * 8)
    deaf.flush()
    drip = Client(addr)           # sends on and on, but a byte at a time
    drip.put_frame(KEYS[2], value(2, 50000))

    def trickle():
        try:
            drip.s.sendall(drip.out.getvalue()[:2000])
            for b in drip.out.getvalue()[2000:]:
                drip.s.sendall(bytes([b]))
                time.sleep(0.02)
        except OSError:
            drip.dropped = True
    threading.Thread(target=trickle, daemon=True).start()
    mute = Client(addr, hello=False)
    idle = Client(addr)           # asked for something, and stays
    assert idle.has(KEYS[:1]) == 1
    worst = 0
    until = time.monotonic() + 5
    while time.monotonic() < until:
        t = time.monotonic()
        assert fast.get(KEYS[:1])[0][1] == value(0, 1 << 20)
        worst = max(worst, time.monotonic() - t)
        time.sleep(0.01)
    assert worst < 1.8, worst
    for c in (half, deaf):
        c.s.settimeout(10)
        try:
            while c.s.recv(1 << 20):
                pass
        except ConnectionError:
            pass
    wait_for(lambda: hasattr(drip, "dropped"))
    assert idle.has(KEYS[:1]) == 1
    mute.s.close()
    fast.end()
    idle.end()


def fill(addr, first, count, size):
    """Puts items; prints how many were stored, and how many there refused."""
    c = Client(addr)
    stored, refused = 0, 0
    for i in range(int(first), int(first) + int(count)):
        try:
            stored += c.put(key(i), value(i, int(size)), sync=True) in ("stored", "already")
        except Refused as e:
            assert e.code in (74, 75), e
            refused += 1
    c.end()
    print(stored, refused)


def read(addr, first, count, size):
    """Each item is what was put, or is not there; prints how many are."""
    c = Client(addr)
    there = 0
    for i in range(int(first), int(first) + int(count)):
        for _, data in c.get([key(i)], fds=addr.startswith("unix:")):
            assert data == value(i, int(size)), i
            there += 1
    c.end()
    print(there)


def storm(addr, log):
    """Puts with sync until the service goes; what was acknowledged is in the file."""
    c = Client(addr)
    with open(log, "w") as out:
        for i in range(100000):
            try:
                how = c.put(key(i), value(i, 30000), sync=True)
            except (Gone, ConnectionError):
                return
            assert how == "stored"
            print(i, file=out, flush=True)


def acknowledged(addr, log):
    c = Client(addr)
    ids = [int(line) for line in open(log)]
    assert len(ids) >= 5, len(ids)
    for i in ids:
        items = c.get([key(i)])
        assert items and items[0][1] == value(i, 30000), i
    c.end()


def drained(addr, pid):
    """A put that is on its way when the service is told to end is finished; what comes later is refused; then END."""
    idle, busy, new = Client(addr), Client(addr), Client(addr)
    for c in (idle, busy, new):
        c.has(KEYS[:1])
    busy.put_frame(KEYS[5], value(5, 1 << 20))
    data = busy.out.getvalue()
    busy.out.seek(0)
    busy.out.truncate()
    busy.s.sendall(data[:1 << 19])
    time.sleep(0.2)
    os.kill(int(pid), 15)
    kind, _, _, _ = idle.frame()
    assert kind == END
    busy.s.sendall(data[1 << 19:])
    assert busy.answer()[-1][0]["result"] == "stored"
    try:
        busy.ask("has", KEYS[:1])
        busy.flush()
        busy.answer()
        raise AssertionError("served while it drains")
    except Refused as e:
        assert e.code == 75 and e.retryable, e
    except (Gone, ConnectionError):
        pass


def crowd(addr):
    """One client more than --max-clients 4 is turned away with 75; a place that is free is taken."""
    inside = [Client(addr) for _ in range(4)]
    for c in inside:
        c.has(KEYS[:1])
    extra = Client(addr)
    try:
        extra.has(KEYS[:1])
        raise AssertionError("taken in")
    except Refused as e:
        assert e.code == 75, e
    except ConnectionError:
        pass
    inside.pop().end()

    def place():
        try:
            Client(addr).has(KEYS[:1])
            return True
        except (Refused, Gone, ConnectionError):
            return False
    wait_for(place)


def talk(w):
    """A short conversation that changes nothing."""
    w.hello()
    keys = b"".join(KEYS[:9])
    rows = [["keys", "U8", ["key", "byte"], [9, 16], 0, len(keys), None]]
    w.write(STORE, 1, {"op": "has", "each": True, "tensors": rows}, keys)
    w.write(STORE, 2, {"op": "get", "tensors": rows}, keys)
    w.write(STORE, 3, {"op": "brew"})
    w.write(STORE, 4, {"op": "has", "tensors": rows}, keys)


def conversation(path):
    with open(path, "wb") as f:
        w = dsf.Writer(f)
        talk(w)
        w.end()


def converse(addr, path, out):
    """Sends a file, writes what comes back."""
    c = Client(addr, hello=False)
    c.s.sendall(open(path, "rb").read())
    with open(out, "wb") as f:
        while got := c.s.recv(1 << 20):
            f.write(got)


def cuts(addr, path, *command):
    """The conversation cut at every byte, into a filter: 65, one line that says so, whole answers and no END."""
    whole = open(path, "rb").read()
    step = int(os.environ.get("EVERY", "1"))
    for n in range(0, len(whole), step):
        p = subprocess.run(command, input=whole[:n], capture_output=True, timeout=60)
        lines = p.stderr.decode().splitlines()
        assert p.returncode == 65, (n, p.returncode, lines)
        assert len(lines) == 1 and ("truncated" in lines[0]), (n, lines)
        with open("cut.out", "wb") as f:
            f.write(p.stdout)
        kinds = [f[0] for f in dsf.read_frames("cut.out")]
        assert kinds[0] == HELLO and END not in kinds, (n, kinds)


def cut_sockets(addr, path):
    """The same on sockets, all at once: the service lives and answers others."""
    whole = open(path, "rb").read()
    for n in range(0, len(whole), 7):
        c = Client(addr, hello=False)
        c.s.sendall(whole[:n])
        c.s.close()
    c = Client(addr)
    c.has(KEYS)
    c.end()


def http(addr, path):
    """Prints the answer's status and body."""
    host, _, port = addr.split(":", 1)[1].rpartition(":")
    s = socket.create_connection((host, int(port)))
    s.settimeout(20)
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    data = b""
    while got := s.recv(1 << 16):
        data += got
    head, _, body = data.decode().partition("\r\n\r\n")
    length = int(re.search(r"Content-Length: (\d+)", head)[1])
    assert length == len(body.encode())
    print(head.split()[1])
    print(body, end="")


def idle(addr, pid):
    """With clients that ask for nothing the service sleeps: no thread of it runs, the store's own upkeep apart."""
    clients = [Client(addr) for _ in range(5)]
    for c in clients:
        c.has(KEYS)

    def switches():
        total = {}
        for task in os.listdir(f"/proc/{pid}/task"):
            text = open(f"/proc/{pid}/task/{task}/status").read()
            total[task] = int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M)[1])
        return total

    time.sleep(0.5)
    before = switches()
    time.sleep(2)
    after = switches()
    awake = {t: after[t] - n for t, n in before.items() if after.get(t, n) != n}
    assert len(awake) <= 1 and sum(awake.values()) <= 6, awake
    cpu = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13]
    time.sleep(1)
    assert cpu == open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13]


def resp(addr):
    """The Redis protocol is there."""
    host, _, port = addr.split(":", 1)[1].rpartition(":")
    s = socket.create_connection((host, int(port)))
    s.settimeout(20)
    s.sendall(b"PING\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
    want = b"+PONG\r\n+OK\r\n$5\r\nhello\r\n"
    got = b""
    while len(got) < len(want):
        got += s.recv(100)
    assert got == want, got


def memory(addr):
    """Payloads of more than --memory 4M wait for each other, and are all stored."""
    wrong = []

    def one(i):
        try:
            c = Client(addr)
            assert c.put(key(i), value(i, 3 << 20)) == "stored"
            assert c.get([key(i)])[0][1] == value(i, 3 << 20)
            c.end()
        except BaseException as e:
            wrong.append(repr(e))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def few_descriptors(addr, n):
    """More files than descriptors: an item that cannot be had now is refused with 75, and is no miss."""
    c = Client(addr)
    there = 0
    for i in range(int(n)):
        try:
            there += c.put(key(i), value(i, 30000)) == "stored"
        except Refused as e:
            assert e.code == 75, (e.code, e.message)
    assert there > 30, there
    here = [i for i in range(int(n)) if c.has([key(i)])]
    assert len(here) == there
    for fds in (False, True):
        for i in here:
            assert [data for _, data in c.get([key(i)], fds=fds)] == [value(i, 30000)], (i, fds)
    more = []
    refused = 0
    for _ in range(60):
        s = socket.socket(socket.AF_UNIX)
        s.connect(addr[5:])
        more.append(s)
    time.sleep(0.5)
    for fds in (False, True):
        for i in here:
            try:
                assert [data for _, data in c.get([key(i)], fds=fds)] == [value(i, 30000)], (i, fds)
            except Refused as e:
                assert e.code == 75, (e.code, e.message)
                refused += 1
    assert refused
    for s in more:
        s.close()
    c.end()


def slow_put(addr, resp):
    """A put of 4 MB, all of --memory, at 300 kB/s: small puts beside it are stored at once."""
    slow_one = Client(addr)
    slow_one.put_frame(KEYS[1], value(1, 4 << 20))
    data = slow_one.out.getvalue()
    ended = []

    def trickle():
        try:
            for i in range(0, len(data), 30000):
                slow_one.s.sendall(data[i:i + 30000])
                time.sleep(0.1)
        except OSError:
            ended.append(True)
    threading.Thread(target=trickle, daemon=True).start()
    time.sleep(0.3)
    c = Client(addr)
    r = socket.socket(socket.AF_UNIX)
    r.connect(resp[5:])
    until = time.monotonic() + 3
    while time.monotonic() < until:
        t = time.monotonic()
        assert c.put(KEYS[2], value(2, 1000), replace=True) == "stored"
        r.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000\r\n" + bytes(200000) + b"\r\n")
        assert r.recv(100) == b"+OK\r\n"
        assert time.monotonic() - t < 0.7
        assert not ended
    wait_for(lambda: ended)  # 2 s and 4 MB at 1 MB/s
    assert c.put(KEYS[3], value(3, 3 << 20)) == "stored"
    c.end()


def slow_hogs(addr, resp):
    """Two large puts at 2 MB/s have the memory for large ones: who is quick gets it soon, and they are refused and may go on."""
    n = 24 << 20
    c = Client(addr)
    c.put_frame(KEYS[1], value(1, n))
    data = c.out.getvalue()
    c.out.seek(0)
    c.out.truncate()
    r = socket.socket(socket.AF_UNIX)
    r.connect(resp[5:])

    def trickle(s, data):
        for i in range(0, len(data), 200000):
            s.sendall(data[i:i + 200000])
            if not quick_done.is_set():
                time.sleep(0.1)
    quick_done = threading.Event()
    command = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % n + bytes(n) + b"\r\n"
    threads = [threading.Thread(target=trickle, args=a) for a in ((c.s, data), (r, command))]
    for t in threads:
        t.start()
    time.sleep(1.3)
    quick = Client(addr)
    t = time.monotonic()
    assert quick.put(KEYS[2], value(2, n)) == "stored"
    assert time.monotonic() - t < 5, time.monotonic() - t
    quick_done.set()
    for t in threads:
        t.join()
    said = r.recv(200)
    refusals = [said.startswith(b"-TRYAGAIN the value came too slowly")]
    assert refusals[0] or said == b"+OK\r\n", said
    try:
        c.answer()
        refusals.append(False)
    except Refused as e:
        assert e.code == 75 and "too slowly" in str(e), e
        refusals.append(True)
    assert any(refusals)
    assert c.put(KEYS[3], value(3, n)) == "stored"
    r.sendall(b"PING\r\n")
    assert r.recv(100) == b"+PONG\r\n"
    c.end()
    quick.end()


def pins(addr):
    """Pins of a client end with it (the store holds about 64 MB)."""
    c = Client(addr)
    for i in range(10):
        c.put(key(i), value(i, 1 << 20))
    c.call("pin", [key(i) for i in range(10)])
    other = Client(addr)
    for i in range(100, 220):
        try:
            other.put(key(i), value(i, 1 << 20))
        except Refused as e:
            assert e.code == 75, e
    assert other.has([key(i) for i in range(10)]) == 10
    assert other.stat()["pinned_bytes"] > 0
    c.end()
    wait_for(lambda: other.stat()["pinned_bytes"] == 0)
    other.end()


def shared(addr):
    """Payloads out of memory that is passed; what is no such memory is refused, and holds nothing up."""
    c = Client(addr)

    def pass_memory(size, seals, fd=None):
        fd = os.memfd_create("m", os.MFD_ALLOW_SEALING) if fd is None else fd
        if size is not None:
            os.ftruncate(fd, size)
        if seals:
            fcntl.fcntl(fd, F_ADD_SEALS, seals)
        c.ask("memory")
        data = c.out.getvalue()
        c.out.seek(0)
        c.out.truncate()
        c.s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        c.answer()
        return fd

    def refused(what, *args, **more):
        try:
            what(*args, **more)
        except Refused as e:
            assert e.code == 65, e
        else:
            raise AssertionError(f"not refused: {args} {more}")

    def put(i, size, **more):
        c.ask("put", meta={"key": key(i).hex(), "size": size, "at": 0, "shared": True, "n": i, **more})
        c.flush()
        return c.answer()[-1][0]["result"]

    refused(c.call, "memory")
    refused(put, 1, 64)
    refused(pass_memory, 1 << 20, 0)
    refused(pass_memory, 0, F_SEAL_SHRINK)
    refused(pass_memory, 300 << 20, F_SEAL_SHRINK)
    refused(pass_memory, None, 0, os.open("/dev/null", os.O_RDONLY))
    refused(pass_memory, None, 0, os.open(__file__, os.O_RDONLY))
    for turn, size in enumerate((100000, 1 << 20, 5000)):
        fd = pass_memory(size, F_SEAL_SHRINK)
        for i in range(3):
            n = size - 64 * i - i
            os.pwrite(fd, value(10 * turn + i, n), 0)
            assert put(10 * turn + i, n) == "stored"
            meta, data = c.get([key(10 * turn + i)])[0]
            assert data == value(10 * turn + i, n) and meta["n"] == 10 * turn + i and "shared" not in meta, meta
        refused(put, 99, size + 1)
        os.close(fd)
    c.put_frame(key(50), value(50, 1000))  # descriptors where none are due are not kept
    data = c.out.getvalue()
    c.out.seek(0)
    c.out.truncate()
    null = os.open("/dev/null", os.O_RDONLY)
    c.s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 10))])
    assert c.answer()[-1][0]["result"] == "stored"
    c.end()


def descriptors(pid):
    """Prints how many the process has open."""
    print(len(os.listdir(f"/proc/{pid}/fd")))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
