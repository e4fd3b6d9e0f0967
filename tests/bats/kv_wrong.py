#!/usr/bin/python3
"""A store of KV blocks that is wrong, for tests: a unix socket that answers in a way that a test chooses.

    kv_wrong.py SOCKET silent      takes connections and says nothing
    kv_wrong.py SOCKET closing     takes connections and closes them
    kv_wrong.py SOCKET noise       random bytes
    kv_wrong.py SOCKET mixed STORE     passes to and fro what a ds-kvstore at STORE says, with random bits of its answers turned
    kv_wrong.py SOCKET slow STORE RATE the same unchanged, its answers at RATE bytes a second
    kv_wrong.py SOCKET takes STORE RATE  what it is told at RATE bytes a second
    kv_wrong.py SOCKET stops STORE N   its answers up to the Nth byte of a connection, then nothing more
"""
import os
import random
import socket
import sys
import threading
import time


def pump(src, dst, change):
    try:
        while data := src.recv(1 << 16):
            dst.sendall(change(data))
    except OSError:
        pass
    for s in (src, dst):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def turned(rng):
    def change(data):
        b = bytearray(data)
        if rng.random() < 0.3:
            b[rng.randrange(len(b))] ^= 1 << rng.randrange(8)
        return bytes(b)
    return change


def slowly(rate):
    def change(data):
        time.sleep(len(data) / rate)
        return data
    return change


def up_to(n):
    left = [n]

    def change(data):
        data = data[:left[0]]
        left[0] -= len(data)
        return data
    return change


def between(c, store, change, told=lambda data: data):
    s = socket.socket(socket.AF_UNIX)
    s.connect(store)
    threading.Thread(target=pump, args=(c, s, told), daemon=True).start()
    threading.Thread(target=pump, args=(s, c, change), daemon=True).start()


def main():
    path, mode, *rest = sys.argv[1:]
    rng = random.Random(5)
    s, kept = socket.socket(socket.AF_UNIX), []
    s.bind(path)
    s.listen(16)
    while True:
        c, _ = s.accept()
        if mode == "closing":
            c.close()
        elif mode == "noise":
            c.sendall(os.urandom(1 << 16))
            kept.append(c)
        elif mode == "mixed":
            between(c, rest[0], turned(rng))
        elif mode == "slow":
            between(c, rest[0], slowly(float(rest[1])))
        elif mode == "stops":
            between(c, rest[0], up_to(int(rest[1])))
        elif mode == "takes":
            between(c, rest[0], lambda data: data, slowly(float(rest[1])))
        else:
            kept.append(c)


if __name__ == "__main__":
    main()
