"""What happens to a program whose model changes under it.

changed.py serve HOW MODEL OTHER DIR   ds-decode serves MODEL; between two equal questions HOW happens to its file.  Exits with ds-decode's
                                       code; the two answers must be the same where both come.
changed.py late PROGRAM MODEL OTHER DIR  the same with PROGRAM (ds-prefill, ds-decode) on a file system that takes long to say anything of a
                                       file, OTHER's bytes, and the second question asked at once: no answer may be final
changed.py cut FILE SIZE COMMAND...    COMMAND runs; as soon as it, or a child of it, has mapped FILE, that is cut to SIZE bytes.
"""
import os
import shutil
import signal
import subprocess
import sys
import time

import talk


def overwrite(path, data, truncate):
    with open(path, "wb" if truncate else "r+b") as f:
        f.write(data)


def change(how, path, other):
    data, others = open(path, "rb").read(), open(other, "rb").read()
    if how == "cut":
        os.truncate(path, 8192)
    elif how == "cut a little":  # the page at the end reads as zeros: no signal tells
        os.truncate(path, len(data) - 8)
    elif how == "half a copy":
        overwrite(path, others[:len(others) // 2], True)
    elif how == "another copied over it":
        assert len(data) == len(others)
        overwrite(path, others, True)
    elif how == "another written into it":
        overwrite(path, others, False)
    elif how == "the same copied over it":
        overwrite(path, data, True)
    elif how == "touched":
        os.utime(path)
    elif how == "replaced":
        shutil.copy(other, path + ".new")
        os.rename(path + ".new", path)
    elif how == "removed":
        os.unlink(path)
    else:
        raise ValueError(how)


def ask(t, name):
    """Its tokens; None where the program is gone."""
    try:
        t.ask(name, [0, 5, 6, 7, 8, 9], 12)
        tokens, end = t.answer(name)
    except (ConnectionError, EOFError):
        return None
    assert "message" not in end, end
    return tokens


def serve(how, model, other, where):
    sock = os.path.join(where, "sock")
    ready, tell = os.pipe()
    p = subprocess.Popen(["ds-decode", "-m", model, "-l", "unix:" + sock, "-j", "2", "--ready-fd", str(tell)], pass_fds=[tell])
    os.close(tell)
    try:
        assert os.read(ready, 1), "not ready"
        t = talk.Talk(sock)
        first = ask(t, "first")
        assert first and len(first[0]) >= 12, first
        change(how, os.path.join(model, "model.safetensors"), os.path.join(other, "model.safetensors"))
        second = ask(t, "second")
        if second:
            assert second == first, (first, second)
            p.send_signal(signal.SIGTERM)
        return p.wait(30)
    finally:
        p.kill()


def final(t, name):
    """The frame that ends the answer; None where the program is gone."""
    t.ask(name, [0, 5, 6, 7, 8, 9], 12)
    try:
        for kind, _, meta in t.frames():
            if kind in (4, 6, 7):
                return meta
    except ConnectionError:
        pass
    return None


def late(program, model, other, where):
    sock = os.path.join(where, "sock")
    ready, tell = os.pipe()
    slow = ["strace", "-f", "-o", "/dev/null", "-e", "inject=newfstatat:delay_exit=20000"]
    p = subprocess.Popen(slow + [program, "-m", model, "-l", "unix:" + sock, "-j", "2", "--ready-fd", str(tell)], pass_fds=[tell])
    os.close(tell)
    try:
        assert os.read(ready, 1), "not ready"
        t = talk.Talk(sock)
        first = final(t, "first")
        assert first and "message" not in first, first
        change("another written into it", os.path.join(model, "model.safetensors"), os.path.join(other, "model.safetensors"))
        second = final(t, "second")
        assert second is None or "message" in second, f"an answer of a mixture: {second}"
        return p.wait(30)
    finally:
        for pid in list(family(p.pid))[1:]:
            os.kill(pid, signal.SIGKILL)
        p.kill()


def family(pid):
    yield pid
    try:
        for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
            yield from family(int(child))
    except OSError:
        pass


def mapped(pid, path):
    try:
        return path in open(f"/proc/{pid}/maps").read()
    except OSError:
        return False


def cut(path, size, command):
    path = os.path.realpath(path)
    p = subprocess.Popen(command)
    while not any(mapped(pid, path) for pid in family(p.pid)):
        assert p.poll() is None, f"ended before it was cut: {p.returncode}"
    os.truncate(path, int(size))
    return p.wait(50)


if __name__ == "__main__":
    if sys.argv[1] == "cut":
        sys.exit(cut(sys.argv[2], sys.argv[3], sys.argv[4:]))
    sys.exit({"serve": serve, "late": late}[sys.argv[1]](*sys.argv[2:]))
