#!/usr/bin/python3
"""A unit of services under everything at once: clients that come and go at all ranks, ranks that are killed, stopped, drained and started
again, plans, load frames.

    unit_soak.py STREAM WANT SECONDS [--over tcp] [--seed N] [--clients N] [-- OPTION...]

Every answer that comes whole must be the one in WANT (unit.py want).  One that does not is allowed only of a rank that was harmed
meanwhile.  Rank 0 is never harmed: its memory is read every ten seconds, and at the end must be what it was after a quarter of the time,
but for a tenth.
"""
import collections
import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import dsf
import msgpack
import unit

WORLD = 4


def request(name, ids):
    meta = {"id": name, "sampling": {"temperature": 0.0}, "max_tokens": 2,
            "tensors": [["tokens", "U32", ["token"], [len(ids)], 0, 4 * len(ids), None]]}
    return (2, 0, dsf.stream_id(name), 0, meta, struct.pack(f"<{len(ids)}I", *ids))


class Soak:
    def __init__(self, frames, want, over, more, seed, clients):
        self.clients, self.plans = clients, 0
        self.frames, self.want, self.more, self.rng = frames, want, more, random.Random(seed)
        self.dir = tempfile.mkdtemp(prefix="soak.")
        self.addr = f"unix:{self.dir}/unit" if over == "unix" else f"tcp:127.0.0.1:{unit.free_port()}"
        self.child, self.harmed, self.stop = {}, collections.defaultdict(int), threading.Event()
        self.done, self.lost, self.bad, self.harm_done = 0, 0, [], collections.Counter()
        self.lock = threading.Lock()

    def start(self, r):
        with open(f"{self.dir}/err.{r}", "ab") as err:
            self.child[r] = subprocess.Popen(
                ["ds-decode", "-v", "-m", os.environ["DS_MODEL"], "-j", "1", "--unit", self.addr, "--rank", str(r), "--world", str(WORLD),
                 "-l", f"unix:{self.dir}/d.%r", "--peer-timeout", "500ms", "--redundant", "8",
                 "--loads-to", f"{self.dir}/loads.%r", "-f", "--load-interval", "500ms", *self.more],
                stdin=subprocess.DEVNULL, stderr=err)

    def ask(self, r, frames):
        """Requests to a rank and what it answers, as lines."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(60)
            s.connect(f"{self.dir}/d.{r}")
            f = s.makefile("wb")
            w = dsf.Writer(f)
            w.hello()
            for kind, flags, stream, _, meta, payload in frames:
                w.write(kind, stream, meta, payload, flags)
            w.end()
            f.flush()
            data = b""
            while chunk := s.recv(1 << 16):
                data += chunk
        with tempfile.NamedTemporaryFile(dir=self.dir) as out:
            out.write(data)
            out.flush()
            return unit.lines_of(out.name, "ds-decode")

    def warm(self):
        """Steps as large as steps get, on all ranks at once: memory that is touched as it is used has been used then."""
        def large(r):
            self.ask(r, [request(f"warm {r} {i}", [(7 * t + 13 * i) % 1000 + 3 for t in range(1000)]) for i in range(4)])
        threads = [threading.Thread(target=large, args=(r,)) for r in range(WORLD)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def client(self, n):
        rng = random.Random(f"client {n}")
        while not self.stop.is_set():
            r, frames = rng.randrange(WORLD), rng.sample(self.frames, rng.randint(1, 4))
            harm = self.harmed[r]
            try:
                got = sorted(line for _, line in self.ask(r, frames))
            except (OSError, subprocess.CalledProcessError, AssertionError, msgpack.exceptions.ExtraData):
                got = None
            should = sorted(line for f in frames for line in self.want[f[4]["id"]])
            with self.lock:
                if got == should:
                    self.done += len(frames)
                elif self.harmed[r] != harm or harm % 2 or got is None and self.child[r].poll() is not None:
                    self.lost += len(frames) # harm came in between, or is going on
                else:
                    self.bad.append(f"rank {r}: {got and [x for x in got if x not in should][:1]} of {[f[4]['id'] for f in frames]}")
            time.sleep(rng.random() * 0.2)

    def plan(self):
        """Sent to any rank, which may be gone."""
        self.plans += 1
        f = unit.plan(self.rng, self.plans, os.environ["DS_MODEL"], WORLD)
        try:
            self.ask(self.rng.randrange(WORLD), [f])
        except (OSError, subprocess.CalledProcessError, AssertionError):
            pass

    def harm(self):
        r, what = self.rng.randrange(1, WORLD), self.rng.choice(["kill", "kill", "stop", "long stop", "drain", "plan", "plan"])
        if what == "plan":
            self.harm_done[what] += 1
            return self.plan()
        self.harmed[r] += 1 # odd: going on
        self.harm_done[what] += 1
        if what in ("kill", "drain"):
            self.child[r].send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            code = self.child[r].wait()
            if what == "drain" and code not in (0, 75):
                self.bad.append(f"rank {r} drained: exit {code}")
            time.sleep(self.rng.random() * 2)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.dir}/d.{r}") # of the one that was killed: where there is one it is the new one's
            self.start(r)
            while not os.path.exists(f"{self.dir}/d.{r}") and self.child[r].poll() is None:
                time.sleep(0.05)
            time.sleep(0.5)
        else:
            self.child[r].send_signal(signal.SIGSTOP)
            time.sleep(self.rng.random() * (0.3 if what == "stop" else 3))
            self.child[r].send_signal(signal.SIGCONT)
            time.sleep(0.5)
        if self.child[r].poll() is not None:
            self.bad.append(f"rank {r} ended with {self.child[r].returncode} after {what}")
            self.start(r)
        self.harmed[r] += 1

    def memory(self):
        with open(f"/proc/{self.child[0].pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("RssAnon"))

    def run(self, seconds):
        for r in range(WORLD):
            self.start(r)
        for r in range(WORLD):
            while not os.path.exists(f"{self.dir}/d.{r}"):
                time.sleep(0.05)
        self.warm()
        clients = [threading.Thread(target=self.client, args=(n,)) for n in range(self.clients)]
        for c in clients:
            c.start()
        began, rss, said = time.monotonic(), [], 0.0
        while time.monotonic() - began < seconds and len(self.bad) < 10:
            self.harm()
            time.sleep(self.rng.random() * 2)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                rss.append(self.memory())
                print(f"{said - began:6.0f} s: {self.done} answered, {self.lost} lost, {len(self.bad)} bad, rank 0 {rss[-1]} KiB", flush=True)
        self.stop.set()
        for c in clients:
            c.join()
        for r in range(WORLD):
            self.child[r].send_signal(signal.SIGTERM)
        self.bad += [f"rank {r} at the end: exit {code}" for r in range(WORLD) if (code := self.child[r].wait(40)) != 0]
        quarter = rss[len(rss) // 4]
        if len(rss) > 8 and rss[-1] > quarter * 1.1:
            self.bad.append(f"rank 0 grew from {quarter} to {rss[-1]} KiB")
        times = sorted(t for r in range(WORLD) for t in unit.recovered(open(f"{self.dir}/err.{r}").read()))
        if times:
            print(f"back after {times[len(times) // 2]:.1f} ms (median), {times[-1]:.1f} ms (worst) of {len(times)}")
        print(f"{self.done} answered, {self.lost} lost, {len(self.bad)} bad; {dict(self.harm_done)}; memory {quarter} to {rss[-1]} KiB; {self.dir}")
        for b in self.bad:
            print(b)
        return int(bool(self.bad))


def main():
    args, more = sys.argv[1:], []
    if "--" in args:
        args, more = args[:args.index("--")], args[args.index("--") + 1:]
    over, seed, clients = "unix", 0, 6
    while len(args) > 3:
        if args[-2] == "--over":
            over = args[-1]
        elif args[-2] == "--seed":
            seed = int(args[-1])
        elif args[-2] == "--clients":
            clients = int(args[-1])
        del args[-2:]
    return Soak(unit.requests_of(args[0]), unit.wanted(args[1]), over, more, seed, clients).run(float(args[2]))


if __name__ == "__main__":
    sys.exit(main())
