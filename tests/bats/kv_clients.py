#!/usr/bin/python3
"""Clients that hand KV over to a service at d.sock, for tests of how ds-decode holds it.

    kv_clients.py split CAPTURE DIR      one stream for each request of ds-prefill's output
    kv_clients.py all DIR OUT            each file of DIR on a connection of its own, all at once; answers in OUT
    kv_clients.py mixed OUT FILE...      on one connection, the KV frames of all in turns
    kv_clients.py cut FILE SHARE         a part of the stream, then SIGKILL to itself
    kv_clients.py growth PID             kB of the process's peak of resident memory
"""
import io
import os
import re
import signal
import socket
import sys
import threading

import dsf


def stream(frames):
    buf = io.BytesIO()
    out = dsf.Writer(buf)
    for kind, flags, sid, _, meta, payload in frames:
        out.end() if kind == 15 else out.write(kind, sid, meta, payload, flags)
    return buf.getvalue()


def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(100)
    s.connect("d.sock")
    return s


def answers(s, path):
    with open(path, "wb") as out:
        while True:
            got = s.recv(1 << 16)
            if not got:
                return
            out.write(got)


def exchange(data, path):
    s = connect()
    sender = threading.Thread(target=s.sendall, args=(data,))
    sender.start()
    answers(s, path)
    sender.join()


def split(capture, folder):
    frames = list(dsf.read_frames(capture))
    for f in frames:
        if f[0] == 2:
            own = [g for g in frames if g[0] in (1, 15) or g[2] == f[2]]
            open(os.path.join(folder, f[4]["id"]), "wb").write(stream(own))


def everyone(folder, out):
    threads = [threading.Thread(target=exchange, args=(open(os.path.join(folder, name), "rb").read(), os.path.join(out, name)))
               for name in sorted(os.listdir(folder))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def mixed(out, *paths):
    each = [list(dsf.read_frames(p)) for p in paths]
    hello, end = each[0][0], each[0][-1]
    rest = [f[1:-1] for f in each]
    turns = [f for k in range(max(map(len, rest))) for f in (r[k] for r in rest if k < len(r))]
    exchange(stream([hello, *turns, end]), out)


def cut(path, share):
    data = open(path, "rb").read()
    s = connect()
    s.sendall(data[:int(len(data) * float(share))])
    os.kill(os.getpid(), signal.SIGKILL)


def growth(pid):
    print(re.search(r"VmHWM:\s+(\d+) kB", open(f"/proc/{pid}/status").read()).group(1))


if __name__ == "__main__":
    {"split": split, "all": everyone, "mixed": mixed, "cut": cut, "growth": growth}[sys.argv[1]](*sys.argv[2:])
