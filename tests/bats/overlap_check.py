#!/usr/bin/python3
"""overlap_check.py decode|prefill TRACE: the stages of a trace follow one another in the published order of two micro-batches, and its
transfers lie where that order hides them.  Prints how many layers it saw in that order, and the share of communication that was hidden."""
import json
import sys

# The steady state: from one layer's stage to the next one's, (stage, micro-batch).
ORDERS = {
    "decode": [("SHARED", 0), ("ATTN-0", 1), ("MLP", 0), ("ATTN-1", 1), ("SHARED", 1), ("ATTN-0", 0), ("MLP", 1), ("ATTN-1", 0)],
    "prefill": [("ATTN-0", 0), ("ATTN-1", 0), ("SHARED", 1), ("ATTN-0", 1), ("ATTN-1", 1), ("MLP", 0), ("MLP", 1), ("SHARED", 0)],
}
# Which stages run between a transfer's departure and the moment that it is waited for.
UNDER = {
    ("decode", "DISPATCH"): {("SHARED", 0), ("ATTN-0", 1)},
    ("decode", "COMBINE"): {("ATTN-1", 1)},
    ("prefill", "DISPATCH"): {("SHARED", 1), ("ATTN-0", 1)},
    ("prefill", "COMBINE"): {("MLP", 1), ("SHARED", 0)},
}


def main():
    order, path = sys.argv[1], sys.argv[2]
    with open(path) as f:
        events = [e for e in json.load(f) if e["ph"] == "X"]
    steps = sorted((e for e in events if e["tid"] == 1 and e["name"] == "step"), key=lambda e: e["ts"])
    stages = [e for e in events if e["tid"] == 1 and "micro_batch" in e["args"]]
    transfers = [e for e in events if e["tid"] >= 2000]
    assert steps and stages and transfers, "no steps of two micro-batches"
    names = {n for n, _ in ORDERS[order]}
    seen = 0
    for step in steps:
        inside = [e for e in stages if step["ts"] <= e["ts"] < step["ts"] + step["dur"] and e["name"] in names]
        moe = {e["args"]["layer"] for e in inside if e["name"] == "MLP"}
        inside = sorted((e for e in inside if e["args"]["layer"] in moe), key=lambda e: e["ts"])
        what = [(e["name"], e["args"]["micro_batch"]) for e in inside]
        if len({b for _, b in what}) < 2 or len(moe) < 2:
            continue
        cycle = ORDERS[order]
        first = what.index(cycle[0])
        if order == "prefill":  # SHARED 1 of the layer before comes from the second layer on
            first = [i for i, w in enumerate(what) if w == cycle[0]][1]
        for k in range(len(moe) - 1):
            got = what[first + k * len(cycle):first + (k + 1) * len(cycle)]
            assert got == cycle, f"step at {step['ts']}: {got}"
            seen += 1
    assert seen, "no step of two micro-batches"
    waits = [e for e in events if e["tid"] == 1 and e["name"].startswith("wait ")]
    for t in transfers:  # of the first micro-batch: what runs before it is waited for
        if t["args"]["micro_batch"] or not any(s["ts"] <= t["ts"] < s["ts"] + s["dur"] for s in steps):
            continue
        same = [w for w in waits if w["name"] == "wait " + t["name"] and w["args"].get("micro_batch") == 0 and w["ts"] >= t["ts"]
                and w["args"]["layer"] == t["args"]["layer"]]
        until = min(w["ts"] for w in same)
        under = {(e["name"], e["args"]["micro_batch"]) for e in stages if t["ts"] <= e["ts"] < until}
        last = order == "decode" and t["name"] == "COMBINE" and t["args"]["layer"] == max(moe)
        assert UNDER[order, t["name"]] <= under or last or ("prefill", t["args"]["layer"]) == (order, min(moe)), f"{t}: {under}"
    way = sum(t["dur"] for t in transfers)
    exposed = sum(w["dur"] for w in waits)
    print(seen, round(1 - exposed / way, 3))


main()
