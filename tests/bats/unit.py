#!/usr/bin/python3
"""Runs units: many ranks of ds-decode or ds-prefill as processes, each with its share of some requests, whose answers must be the bits
of one process.

    unit.py fit MODEL < LINES > LINES      requests as JSON lines made to suit a model of another vocabulary, without stop strings
    unit.py want STREAM WANT [OPTION...]   what one process answers, as lines that can be compared
    unit.py same STREAM WANT [OPTION...]   runs a unit on the stream and compares
    unit.py many STREAM WANT [--every] [OPTION...]
                                           the same with many worlds, redundancies, micro-batches and transports; --every: all of them
    unit.py kills STREAM WANT ROUNDS [OPTION...]
                                           each round kills a rank at a random instant; what the others answer must be whole and the
                                           same; says how long it took them to go on
    unit.py stops STREAM WANT ROUNDS [OPTION...]
                                           each round stops a rank (SIGSTOP) until the others go on without it, and lets it continue:
                                           every rank's answers must be whole and the same, its own too
    unit.py restarts STREAM WANT ROUNDS [OPTION...]
                                           each round kills a rank and starts it again: likewise
    unit.py last STREAM WANT [OPTION...]   kills one rank after the other but the last, whose answers must be whole and the same
    unit.py cut STREAM WANT COMMAND [OPTION...]
                                           runs COMMAND in the middle: every rank's answers must be whole and the same
    unit.py loads TOP_K ANSWERS... -- LOADS...
                                           what the ranks' load frames count is what their answers took; prints frames, steps, and the
                                           tokens that each layer's experts were given
    options:
        --program P     ds-decode unless given
        --model DIR     DS_MODEL unless given
        --world N       4 unless given
        --idle LIST     ranks (0,2,...) whose input has no request
        --none LIST     ranks started with --input none
        --over tcp      meet at a TCP port of the loopback, not at a unix socket
        --netns P       rank R in the network namespace PR, where P0 has the address 10.77.0.1
        --plans N       so many plans come in with the requests, at random ranks and places
        --limit S       seconds for a run
        -- ...          further options of the program
"""
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import dsf

HERE = os.path.dirname(os.path.abspath(__file__))


# ---- streams ----

def requests_of(path):
    return [f for f in dsf.read_frames(path) if f[0] == 2]


def write_stream(f, frames, before_end=lambda: None):
    w = dsf.Writer(f)
    w.hello()
    for kind, flags, stream, _, meta, payload in frames:
        w.write(kind, stream, meta, payload, flags)
    f.flush()
    before_end()
    w.end()


def lines_of(path, program):
    """What a stream answers, as (name or stream of the request, line)."""
    how = ["kv"] if program == "ds-prefill" else ["table", "--no-hits"]
    out = subprocess.run([sys.executable, os.path.join(HERE, "answers.py"), *how, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         check=True, text=True)
    return [(line.split(" ", 1)[0], line) for line in out.stdout.splitlines()]


def key_of(frame, program):
    return f"{frame[2]:016x}" if program == "ds-prefill" else frame[4]["id"]


def fit(model):
    with open(os.path.join(model, "config.json")) as f:
        vocab = json.load(f)["vocab_size"]
    for line in sys.stdin:
        r = json.loads(line)
        r["ids"] = [i % vocab for i in r["ids"]]
        r.pop("stop", None)
        bias = dict((i % vocab, b) for i, b in r["sampling"].get("logit_bias", []))
        if bias:
            r["sampling"]["logit_bias"] = [[i, b] for i, b in bias.items()]
        print(json.dumps(r))


def plan(rng, number, model, world, mtp=False):
    """A plan frame: experts anywhere, a few slots empty, each expert somewhere."""
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    layers, experts = c["num_hidden_layers"] - c["first_k_dense_replace"] + mtp, c["n_routed_experts"]
    slots = -(-experts // world) + rng.randint(1, 4)
    ids, weights = [], []
    for _ in range(layers):
        layer = list(range(experts)) + [rng.choice([rng.randrange(experts), -1]) for _ in range(world * slots - experts)]
        rng.shuffle(layer)
        ids += layer
        weights += [rng.choice([0.5, 1.0, 3.0]) for _ in layer]
    size, shape = 4 * len(ids), [layers, world, slots]
    room = -(-size // 64) * 64
    meta = {"epoch": number, "layers": layers, "experts": experts, "ranks": world, "slots": slots, "tensors": [
        ["placement", "I32", ["layer", "rank", "slot"], shape, 0, size, None],
        ["weights", "F32", ["layer", "rank", "slot"], shape, room, size, None]]}
    payload = struct.pack(f"<{len(ids)}i", *ids).ljust(room, b"\0") + struct.pack(f"<{len(ids)}f", *weights)
    return [11, 0, 0, 0, meta, payload]


# ---- processes ----

class Options:
    def __init__(self, args):
        self.program, self.model, self.world, self.limit = "ds-decode", os.environ.get("DS_MODEL", ""), 4, 300 if os.environ.get("DS_SANITIZE") else 60
        self.idle, self.none, self.over, self.netns, self.every, self.plans, self.more = set(), set(), "unix", "", False, 0, []
        args = list(args)
        if "--" in args:
            at = args.index("--")
            args, self.more = args[:at], args[at + 1:]
        while args:
            a = args.pop(0)
            if a == "--every":
                self.every = True
            elif a in ("--idle", "--none"):
                setattr(self, a[2:], {int(x) for x in args.pop(0).split(",")})
            elif a in ("--world", "--limit", "--plans"):
                setattr(self, a[2:], int(args.pop(0)))
            elif a in ("--program", "--model", "--over", "--netns"):
                setattr(self, a[2:], args.pop(0))
            else:
                sys.exit(f"unit.py: unknown option {a}")


class Unit:
    """Ranks as child processes in a directory of their own: in.R, out.R, err.R.  stay: ranks whose input ends when `end` is set."""

    def __init__(self, o, frames, more=(), stay=()):
        self.o, self.dir, self.child, self.began = o, tempfile.mkdtemp(prefix="unit."), {}, time.monotonic()
        self.more = [*o.more, *more]
        self.addr = f"unix:{self.dir}/unit" if o.over == "unix" else f"tcp:127.0.0.1:{free_port()}"
        if o.netns:
            self.addr, self.more = "tcp:10.77.0.1:7000", [*self.more, "--insecure"]
        takers = [r for r in range(o.world) if r not in o.idle and r not in o.none]
        self.share = {r: frames[i::len(takers)] for i, r in enumerate(takers)}
        rng, streams = random.Random(o.world), {r: list(self.share.get(r, [])) for r in range(o.world) if r not in o.none}
        for n in range(o.plans):
            to = streams[rng.choice(list(streams))]
            to.insert(rng.randint(0, len(to)), plan(rng, n + 1, o.model, o.world))
        self.end = threading.Event()
        for r, frames_of in streams.items():
            if r in stay:
                os.mkfifo(self.path("in", r))
                threading.Thread(target=self.feed, args=(r, frames_of), daemon=True).start()
            else:
                self.feed(r, frames_of)

    def feed(self, r, frames):
        fifo = os.path.exists(self.path("in", r))
        with contextlib.suppress(BrokenPipeError), open(self.path("in", r), "wb") as f:
            write_stream(f, frames, self.end.wait if fifo else lambda: None)

    def path(self, what, r):
        return os.path.join(self.dir, f"{what}.{r}")

    def start(self, r):
        io = ["--input", "none"] if r in self.o.none else ["-i", self.path("in", r), "-o", self.path("out", r), "-f"]
        command = [self.o.program, "-v", "-m", self.o.model, "-j", "1", "--unit", self.addr, "--rank", str(r), "--world",
                   str(self.o.world), *io, *self.more]
        if self.o.netns:
            command = ["ip", "netns", "exec", f"{self.o.netns}{r}", *command]
        with open(self.path("err", r), "ab") as err:
            self.child[r] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)

    def start_all(self):
        for r in range(self.o.world):
            self.start(r)
        return self

    def signal(self, r, sig):
        self.child[r].send_signal(sig)

    def wait(self, ranks=None):
        """Exit codes; None: it did not end in time."""
        end, codes = time.monotonic() + self.o.limit, {}
        for r in sorted(self.child if ranks is None else ranks):
            try:
                codes[r] = self.child[r].wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                codes[r] = None
        self.ended = time.monotonic()
        return codes

    def met(self):
        """Until all have met."""
        while not all("running" in self.said(r) for r in self.child) and all(p.poll() is None for p in self.child.values()):
            time.sleep(0.005)
        self.began = time.monotonic()

    def until_said(self, ranks, text):
        """Until one of these ranks has said it, or none of them runs any more."""
        while not any(text in self.said(r) for r in ranks) and any(self.child[r].poll() is None for r in ranks):
            time.sleep(0.02)

    def said(self, r):
        with open(self.path("err", r)) as f:
            return f.read()

    def close(self):
        self.end.set()
        for p in self.child.values():
            if p.poll() is None:
                p.kill()
            p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def complaint(self, ranks, want):
        """What is wrong with the answers of these ranks, None: nothing.  want: the lines by request."""
        for r, code in self.wait(ranks).items():
            if code != 0:
                return f"rank {r}: " + ("does not end" if code is None else f"exit {code}") + "\n" + self.said(r)
        for r in ranks:
            if r in self.o.none:
                continue
            got = sorted(line for _, line in lines_of(self.path("out", r), self.o.program))
            should = sorted(line for f in self.share.get(r, []) for line in want[key_of(f, self.o.program)])
            if got != should:
                differ = [x for x in zip(got, should) if x[0] != x[1]][:1] or [(len(got), len(should))]
                return f"rank {r} answers otherwise: " + "\n".join(map(str, differ[0]))
        return None


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wanted(path):
    want = {}
    with open(path) as f:
        for line in f:
            want.setdefault(line.split(" ", 1)[0], []).append(line.rstrip("\n"))
    return want


def answer_alone(stream, want, o):
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "out")
        subprocess.run([o.program, "-m", o.model, *o.more, "-i", stream, "-o", out], check=True)
        with open(want, "w") as f:
            for _, line in lines_of(out, o.program):
                print(line, file=f)


def run_one(frames, want, o, more=()):
    unit = Unit(o, frames, more)
    try:
        return unit.start_all().complaint(range(o.world), want)
    finally:
        unit.close()


# ---- many shapes ----

WORLDS, REDUNDANT, MICRO, OVER = (2, 3, 4, 8, 16), (0, 8, 32), (1, 2), ("unix", "tcp")


def shapes(every):
    """All combinations; or as many as it takes to have each pair of values in one."""
    if every:
        return [(w, r, m, t) for w in WORLDS for r in REDUNDANT for m in MICRO for t in OVER]
    return [(w, r, MICRO[(i + k) % 2], OVER[(i + k // 2 + k) % 2]) for i, w in enumerate(WORLDS) for k, r in enumerate(REDUNDANT)]


def many(frames, want, o):
    bad = 0
    for world, redundant, micro, over in shapes(o.every):
        o.world, o.over = world, over
        began = time.monotonic()
        said = run_one(frames, want, o, ["--redundant", str(redundant), "--micro-batches", str(micro)])
        print(f"world {world} redundant {redundant} micro-batches {micro} over {over}: {said or 'the same'},"
              f" {time.monotonic() - began:.1f} s", flush=True)
        bad += said is not None
    return bad


# ---- losses ----

def recovered(text):
    """Milliseconds that a survivor says it took to go on."""
    return [float(m) for m in re.findall(r"unit: .*(?:has|have) gone\b.*; .* ([0-9.]+) ms", text)]


def others(o, victim):
    return [r for r in range(o.world) if r != victim]


def kill(unit, victim):
    unit.signal(victim, signal.SIGKILL)
    return others(unit.o, victim)


def stop(unit, victim):
    unit.signal(victim, signal.SIGSTOP)
    unit.until_said(others(unit.o, victim), f"rank {victim} has gone")
    unit.signal(victim, signal.SIGCONT)
    return range(unit.o.world)


def restart(unit, victim):
    unit.signal(victim, signal.SIGKILL)
    unit.child[victim].wait()
    unit.start(victim)
    while unit.said(victim).count("running") < 2 and unit.child[victim].poll() is None:
        time.sleep(0.02)
    unit.end.set()
    return range(unit.o.world)


restart.stay = True # an input of the others does not end before: there might be nobody left to join


def duration(frames, want, o):
    """Of a run that nothing happens to."""
    unit = Unit(o, frames)
    try:
        unit.start_all().met()
        said = unit.complaint(range(o.world), want)
        return said, unit.ended - unit.began
    finally:
        unit.close()


def rounds(frames, want, n, o, harm):
    """Does harm to a rank at a random instant, n times."""
    said, whole = duration(frames, want, o)
    if said:
        print(f"undisturbed: {said}")
        return 1
    rng, times, bad = random.Random(n), [], 0
    for i in range(n):
        victim, instant = i % o.world, rng.random() * whole
        unit = Unit(o, frames, stay=others(o, victim)[:1] if hasattr(harm, "stay") else ())
        try:
            unit.start_all().met()
            time.sleep(instant)
            said = unit.complaint(harm(unit, victim), want)
            times += [t for r in others(o, victim) for t in recovered(unit.said(r))]
        finally:
            unit.close()
        if said:
            bad += 1
            print(f"round {i}: rank {victim} after {instant:.3f} s: {said}", flush=True)
    times.sort()
    print(f"{n} rounds, {bad} bad" + (f"; back after {times[len(times) // 2]:.1f} ms (median), {times[-1]:.1f} ms (worst) of {len(times)}"
                                      if times else ""))
    return bad


def last(frames, want, o):
    said, whole = duration(frames, want, o)
    unit = Unit(o, frames)
    try:
        unit.start_all().met()
        for r in range(o.world - 1):
            time.sleep(whole / 2 / o.world)
            unit.signal(r, signal.SIGKILL)
        return said or unit.complaint([o.world - 1], want)
    finally:
        unit.close()


def cut(frames, want, command, o):
    said, whole = duration(frames, want, o)
    unit = Unit(o, frames)
    try:
        unit.start_all().met()
        time.sleep(whole / 2)
        subprocess.run(["sh", "-c", command], check=True)
        said = said or unit.complaint(range(o.world), want)
        lost = [r for r in range(o.world) if recovered(unit.said(r))]
        return said or (None if len(lost) == o.world else f"only {lost} noticed anything")
    finally:
        unit.close()


def numbers(meta, payload, name):
    """A tensor of I64 [layer, expert] as lists."""
    t = next(t for t in meta["tensors"] if t[0] == name)
    assert t[1] == "I64" and t[2] == ["layer", "expert"], t
    layers, experts = t[3]
    flat = struct.unpack_from(f"<{layers * experts}q", payload, t[4])
    return [flat[i * experts:(i + 1) * experts] for i in range(layers)]


def add(a, b):
    return [[x + y for x, y in zip(r, s)] for r, s in zip(a, b)] if a else [list(r) for r in b]


def tokens_of(path):
    """Rows that its answers took: prompts that were computed, and every generated token but the last of each choice."""
    n, choices = 0, collections.Counter()
    for kind, _, stream, _, meta, _ in dsf.read_frames(path):
        if kind == 5:
            choices[stream, meta.get("choice", 0)] += 1
        elif kind == 6:
            n += meta["usage"]["miss"]
    return n + sum(c - 1 for c in choices.values())


def loads(top_k, outs, files):
    counts, received, frames, steps, peers = [], [], 0, [0] * len(files), collections.defaultdict(int)
    for r, path in enumerate(files):
        own = []
        for kind, flags, _, _, meta, payload in dsf.read_frames(path):
            if kind != 10:
                continue
            assert flags & 4 and meta["rank"] == r and meta["world"] == len(files), meta
            frames, steps[r] = frames + 1, steps[r] + meta["steps"]
            c = numbers(meta, payload, "counts")
            assert all(sum(layer) == meta["rows"] * top_k for layer in c), "counts are not rows x top_k"
            own, received = add(own, c), add(received, numbers(meta, payload, "received"))
            assert meta["sent_bytes"][r] == meta["received_bytes"][r] == 0, "a rank sends itself nothing"
            for p in range(len(files)):
                peers[r, p] += meta["sent_bytes"][p]
                peers[p, r, "back"] += meta["received_bytes"][p]
        assert sum(own[0]) == tokens_of(outs[r]) * top_k, (sum(own[0]), tokens_of(outs[r]) * top_k)
        counts = add(counts, own)
    # in an output the last frame stands before what the rank computes for those that are not done yet
    assert outs == files or counts == received, "what was sent to experts and what they computed differ"
    assert outs == files or all(peers[r, p] == peers[r, p, "back"] for r in range(len(files)) for p in range(len(files))), dict(peers)
    print(frames, steps, [sum(layer) for layer in counts], min(peers[r, p] for r in range(len(files)) for p in range(len(files)) if r != p))


def main():
    what, args = sys.argv[1], sys.argv[2:]
    if what == "fit":
        return fit(args[0])
    if what == "loads":
        at = args.index("--")
        return loads(int(args[0]), args[1:at], args[at + 1:])
    stream, want = args[0], args[1]
    if what == "want":
        return answer_alone(stream, want, Options(args[2:]))
    frames = requests_of(stream)
    if what == "same":
        said = run_one(frames, wanted(want), Options(args[2:]))
        if said:
            print(said)
        return int(said is not None)
    if what == "many":
        return int(many(frames, wanted(want), Options(args[2:])) > 0)
    if what in ("kills", "stops", "restarts"):
        harm = {"kills": kill, "stops": stop, "restarts": restart}[what]
        return int(rounds(frames, wanted(want), int(args[2]), Options(args[3:]), harm) > 0)
    if what in ("last", "cut"):
        said = last(frames, wanted(want), Options(args[2:])) if what == "last" else cut(frames, wanted(want), args[2], Options(args[3:]))
        if said:
            print(said)
        return int(said is not None)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
