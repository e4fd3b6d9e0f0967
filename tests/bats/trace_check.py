#!/usr/bin/python3
"""Checks a trace: JSON, spans that nest, steps filled by their stages, requests that begin and end; and that --stats says the same.

    trace_check.py TRACE [STATS]     STATS: stderr of --stats --log-format json of the same run
    trace_check.py --cut TRACE       a trace of a run that was killed: every line but the last is whole
Prints counts that the caller may compare: "steps N", "requests N", "threads N".
"""
import json
import sys
from collections import Counter, defaultdict

LAYER = ["ATTN-0", "ATTN-1"]
MOE, DENSE = ["DISPATCH", "MLP", "SHARED", "COMBINE"], ["dense"]


def ns(us):
    return round(us * 1000)


def nesting(spans):
    """Every two spans of a lane either lie apart or one holds the other."""
    open_ends = []
    for begin, end, name, _ in sorted(spans, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"'{name}' from {begin} to {end} ns ends after what holds it"
        open_ends.append(end)


def stages_of(step, stages):
    """The stages within a step follow one another without overlap, in the order of the engine; returns their time."""
    inside = sorted(s for s in stages if step[0] <= s[0] and s[1] <= step[1])
    names = [s[2] for s in inside]
    for a, b in zip(inside, inside[1:]):
        assert a[1] <= b[0], f"{a} and {b} overlap"
    if step[2] == "draft" and names == ["embed", "MTP", "ATTN-0"]: # fills the cache, drafts nothing
        return sum(s[1] - s[0] for s in inside)
    assert names[0] == "embed" and names[-1] == "head", names
    rest, layers = names[1:-1], 0
    assert ("MTP" in rest) == (step[2] == "draft")
    if "MTP" in rest:
        assert rest.pop(0) == "MTP"
    while rest:
        body = DENSE if rest[2] == "dense" else MOE
        assert rest[:2] == LAYER and rest[2:2 + len(body)] == body, rest
        rest = rest[2 + len(body):]
        layers += 1
    assert layers >= 1
    return sum(s[1] - s[0] for s in inside)


def check(events, stats):
    lanes, asyncs, counters, threads = defaultdict(list), {}, set(), {}
    ended = Counter()
    for e in events:
        assert e["pid"] == 0
        if e["ph"] == "X":
            begin = ns(e["ts"])
            lanes[e["tid"]].append((begin, begin + ns(e["dur"]), e["name"], e.get("args", {}).get("weight_bytes", 0)))
            assert e["dur"] >= 0
        elif e["ph"] == "M" and e["name"] == "thread_name":
            threads[e["tid"]] = e["args"]["name"]
        elif e["ph"] == "C":
            counters.add(e["name"])
        elif e["ph"] == "b":
            assert e["id"] not in asyncs, "a request begins twice"
            asyncs[e["id"]] = (e["name"], e["ts"])
        elif e["ph"] == "e":
            name, begin = asyncs[e["id"]]
            assert name == e["name"] and begin <= e["ts"]
            ended[e["id"]] += 1
    assert events[0]["name"] == "process_name" and events[-1]["name"] == "end"
    assert set(ended) == set(asyncs) and set(ended.values()) <= {1}, "a request does not end once"
    assert counters == {"batch", "KV blocks"}
    assert set(lanes) <= set(threads), "a lane has no name"
    for spans in lanes.values():
        nesting(spans)
    steps = [s for s in lanes[1] if s[2] in ("step", "draft")]
    stages = [s for s in lanes[1] if s[2] not in ("step", "draft", "sample")]
    total = sum(s[1] - s[0] for s in steps)
    filled = sum(stages_of(s, stages) for s in steps)
    assert 0.7 * total <= filled <= total, f"stages fill {filled} of {total} ns"
    for tid, spans in lanes.items():
        for s in spans:
            assert tid == 1 or any(step[0] <= s[0] and s[1] <= step[1] for step in steps), f"{s} is in no step"
    if stats:
        compare(stats["stats"], lanes[1])
    if any(s[2] == "draft" for s in steps):
        print("drafts", sum(s[2] == "draft" for s in steps))
    print("steps", sum(s[2] == "step" for s in steps))
    print("requests", len(asyncs))
    print("threads", sum(bool(lanes[t]) for t in threads if t > 1))


def compare(stats, spans):
    """The statistics are the sums of the spans; a draft counts as one call of MTP."""
    rows = stats["stages"]
    drafts = [s for s in spans if s[2] == "draft"]
    calls, time, bytes_of = Counter({"MTP": len(drafts)}), Counter({"MTP": sum(s[1] - s[0] for s in drafts)}), Counter()
    for begin, end, name, weights in spans:
        drafted = any(d[0] <= begin and end <= d[1] for d in drafts)
        bytes_of["MTP" if drafted else name] += weights
        calls[name] += not drafted
        time[name] += 0 if drafted else end - begin
    assert stats["steps"] == calls["step"] == rows["steps"]["calls"]
    assert stats["tokens_out"] == calls["sample"] or drafts and stats["tokens_out"] < calls["sample"]
    assert rows["steps"]["ns"] == time["step"] + time["sample"] + time["MTP"], (rows["steps"]["ns"], time)
    for name, row in rows.items():
        if name in ("steps", "other"):
            continue
        assert (row["calls"], row["ns"], row["weight_bytes"]) == (calls[name], time[name], bytes_of[name]), name
        assert abs(row["share"] - row["ns"] / rows["steps"]["ns"]) < 1e-9
        if row["weight_bytes"]:
            assert abs(row["weight_bytes_per_s"] * row["ns"] / 1e9 / row["weight_bytes"] - 1) < 1e-9
            assert abs(row["of_read"] * stats["read_limit"] / row["weight_bytes_per_s"] - 1) < 1e-9
        if row["operations"]:
            assert abs(row["of_peak"] * stats["peak_limit"] / row["operations_per_s"] - 1) < 1e-9
    assert set(rows) - {"steps", "other"} == {c for c in calls if calls[c]} - {"step"}
    assert sum(r["ns"] for n, r in rows.items() if n != "steps") == rows["steps"]["ns"]
    assert sum(r["share"] for n, r in rows.items() if n != "steps") - 1 < 1e-9
    assert 1e8 < stats["read_limit"] < 1e13 and 1e8 < stats["peak_limit"] < 1e15


def main():
    if sys.argv[1] == "--cut":
        lines = open(sys.argv[2], encoding="utf-8").read().split("\n")
        assert lines[0] == "[" and len(lines) > 100 and lines[-1] != "]" and lines[-2] != "]"
        events = [json.loads(line.rstrip(",")) for line in lines[1:-1]]
        assert {e["name"] for e in events} >= {"step", "head"}
        return
    text = open(sys.argv[1], encoding="utf-8").read()
    lines = text.rstrip("\n").split("\n")
    assert lines[0] == "[" and lines[-1] == "]"
    for line in lines[1:-1]:
        json.loads(line.rstrip(","))
    stats = None
    if len(sys.argv) > 2:
        stats = next(x for x in map(json.loads, open(sys.argv[2], encoding="utf-8")) if "stats" in x)
    check(json.loads(text), stats)


main()
