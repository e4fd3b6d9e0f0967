"""Clients of a ds-kvstore that stands before Redis servers.  redis_check.py WHAT ADDR ARGUMENT..."""
import sys
import time

from kvstore import Client, Refused, key, value


def fill(addr, first, count, size):
    c = Client(addr)
    for i in range(int(first), int(first) + int(count)):
        assert c.put(key(i), value(i, int(size)), meta={"who": i}) == "stored", i
        assert c.put(key(i), value(i, int(size))) == "already", i
    c.end()


def read(addr, first, count, size):
    """All in one request, then each of some."""
    c = Client(addr)
    keys = [key(i) for i in range(int(first), int(first) + int(count))]
    assert c.has(keys + [key(10**6)]) == len(keys)
    items = c.get(keys + [key(10**6)])
    assert len(items) == len(keys), (len(items), len(keys))
    for i, (meta, data) in enumerate(items, int(first)):
        assert data == value(i, int(size)) and meta["who"] == i, i
    for k in keys[::7]:
        assert len(c.get([k])) == 1
    c.end()


def down(addr, count, size, most_lost):
    """Each item is there or refused, soon."""
    c = Client(addr)
    got = lost = 0
    for i in range(int(count)):
        begin = time.monotonic()
        try:
            got += c.get([key(i)])[0][1] == value(i, int(size))
        except Refused as e:
            assert e.code in (69, 75), e
            lost += 1
        assert time.monotonic() - begin < 3
    assert got + lost == int(count) and 0 < lost <= int(most_lost), (got, lost)
    c.end()


def full(addr):
    c = Client(addr)
    try:
        for i in range(100, 200):
            c.put(key(i), value(i, 500000))
        raise AssertionError("it has 8 MB")
    except Refused as e:
        assert e.code == 75 and e.retryable and "OOM" in e.message, e
    c.end()


def refused(addr, code, text):
    c = Client(addr)
    try:
        c.get([key(0)])
        raise AssertionError("not refused")
    except Refused as e:
        assert e.code == int(code) and text in e.message, e
    c.end()


globals()[sys.argv[1]](*sys.argv[2:])
