"""Clients of ds-kvstore --resp.  resp_check.py WHAT SOCKET [PID]"""
import fcntl
import os
import pty
import signal
import socket
import struct
import sys
import termios
import threading
import time


def connect(path):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(path)
    return s


def command(*args):
    args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
    return b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args)


def read(s, n):
    got = bytearray()
    while len(got) < n:
        part = s.recv(n - len(got))
        assert part, (len(got), n)
        got += part
    return bytes(got)


def ask(s, want, *args):
    s.sendall(command(*args))
    got = read(s, len(want))
    assert got == want, (args[:2], got[:200], want[:200])


def bulk(b):
    return b"$%d\r\n%s\r\n" % (len(b), b)


def client(path):
    import redis
    r = redis.Redis(unix_socket_path=path)
    assert r.ping()
    every = bytes(range(256)) * 300
    for n in (0, 1, 100, 16384, 16385, 65536, len(every), 5_000_000):
        value = (every * (n // len(every) + 1))[:n]
        assert r.set(f"k{n}", value) is True
        assert r.get(f"k{n}") == value and r.strlen(f"k{n}") == n
    assert r.get("none") is None and r.exists("k1", "none") == 1
    assert r.set("k1", b"x", nx=True) is None and r.set("k1", b"x", xx=True) is True
    assert r.set("k1", b"y", get=True) == b"x" and r.get("k1") == b"y"
    assert r.setnx("new", 1) and not r.setnx("new", 2)
    assert r.mset({"a": "1", "b": "2"}) and r.mget("a", "zz", "b") == [b"1", None, b"2"]
    assert r.set("t", 1, px=500) and 0 < r.pttl("t") <= 500
    assert r.set("u", 1, ex=100) and 99 <= r.ttl("u") <= 100
    assert r.set("u", 2, keepttl=True) and r.ttl("u") > 90 and r.ttl("a") == -1 and r.ttl("none") == -2
    time.sleep(0.6)
    assert r.get("t") is None
    for _ in range(300):  # within any part of a second
        assert r.set("t", 1, px=300) and 0 < r.pttl("t") <= 300
    for i in range(6):
        assert r.set("lock", 1, px=20, nx=True) is True and r.set("lock", 1, px=20, nx=True) is None
        time.sleep(0.13)
    assert r.delete("a", "b", "none") == 2 and r.unlink("new") == 1
    assert r.info()["role"] == "master" and r.dbsize() == r.info("store")["ds_items"]
    assert r.client_info()["db"] == 0 and len(r.client_list()) == 1
    assert r.client_setname("joe") and r.client_getname() in ("joe", b"joe") and r.client_id() > 0
    assert r.config_get("appendonly") == {"appendonly": "no"}
    p = r.pipeline(transaction=False)
    for i in range(500):
        p.set(f"p{i}", i)
        p.get(f"p{i}")
    out = p.execute()
    assert out[0::2] == [True] * 500 and out[1::2] == [b"%d" % i for i in range(500)]
    try:
        r.execute_command("SUBSCRIBE", "x")
        raise AssertionError("SUBSCRIBE is not known here")
    except redis.ResponseError as e:
        assert "unknown command" in str(e)


def fill(path):
    s = connect(path)
    for i in range(3):
        ask(s, b"+OK\r\n", "set", "small", f"small{i}")
        ask(s, b"+OK\r\n", "set", "large", "L" * (60000 + i))
        ask(s, b"+OK\r\n", "set", "gone", i)
    ask(s, b":1\r\n", "del", "gone")


def filled(path):
    s = connect(path)
    ask(s, bulk(b"small2"), "get", "small")
    ask(s, bulk(b"L" * 60002), "get", "large")
    ask(s, b"$-1\r\n", "get", "gone")
    ask(s, b":2\r\n", "dbsize")


def still(path):
    """Four that send half a command, four that take no replies; others are served meanwhile, then those are left."""
    value = b"v" * 500_000
    s = connect(path)
    ask(s, b"+OK\r\n", "set", "big", value)
    halves = [connect(path) for _ in range(4)]
    for h in halves:
        h.sendall(command("set", "half", value)[:300_000])
    deaf = [connect(path) for _ in range(4)]
    for d in deaf:
        d.sendall(command("get", "big") * 20)
    begin = time.monotonic()
    for _ in range(50):
        ask(s, bulk(value), "get", "big")
    assert time.monotonic() - begin < 5, time.monotonic() - begin
    for h in halves:
        assert h.recv(100) == b"", "left by the server"
    ask(s, b"$-1\r\n", "get", "half")
    assert time.monotonic() - begin < 20


def idle(path, pid):
    """Connections that say nothing do not keep the service from ending."""
    idle = [connect(path) for _ in range(20)]
    for s in idle[:10]:
        ask(s, b"+PONG\r\n", "ping")
    begin = time.monotonic()
    os.kill(int(pid), signal.SIGTERM)
    for s in idle:
        assert s.recv(100) == b""
    assert time.monotonic() - begin < 5, time.monotonic() - begin


def terminal(path):
    """redis-cli asks what there is, for its help, and drops what was typed before its prompt."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
        os.execvp("redis-cli", ["redis-cli", "-s", path])
    out = b""
    for line in ('set x "a b"', "get x", "client id", "hello 3", "get x", "quit"):
        end = time.monotonic() + 20
        while not out.rstrip(b"\x1b[0123456789KDGC\r ").endswith(b">"):
            assert time.monotonic() < end, out
            out += os.read(fd, 10000)
        os.write(fd, line.encode() + b"\r")
        time.sleep(0.05)
        out += os.read(fd, 10000)
    try:
        while part := os.read(fd, 10000):
            out += part
    except OSError:
        pass
    assert os.waitpid(pid, 0)[1] == 0
    assert b'"a b"' in out and b"(integer)" in out and b"rror" not in out and b"ERR" not in out, out


def limits(path):
    s = connect(path)
    ask(s, b"+OK\r\n", "set", "k", b"x" * (1 << 20))
    s.sendall(command("set", "k", b"x" * ((1 << 20) + 1)))
    ask(s, b"-ERR the value is too large for this store\r\n+PONG\r\n", "ping")
    ask(s, b":1048576\r\n", "strlen", "k")
    failed = []

    def many():
        try:
            mine = connect(path)
            for _ in range(10):
                ask(mine, b"+OK\r\n", "set", "k", b"y" * (1 << 20))
                ask(mine, bulk(b"y" * (1 << 20)), "get", "k")
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=many) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


globals()[sys.argv[1]](*sys.argv[2:])
