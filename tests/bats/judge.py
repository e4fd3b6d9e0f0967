#!/usr/bin/python3
"""Judges answers of the example model; exit status 1 where they are not good enough.

    judge.py golden GOLDEN TOKENS    greedy tokens (as dsf.py prints them) against the goldens
    judge.py exam PROBLEMS ANSWERS   answers (JSON lines of `ds-token decode --jsonl`) against the right ones
"""
import json
import sys

# Percent of 200 fresh problems of each kind that the reference solves with the FP8 weights.
SOLVED = {"add": 100.0, "sub": 100.0, "mul": 99.5, "compare": 94.0, "count": 97.0, "reverse": 99.0, "sort": 85.0, "date": 100.0,
          "unit": 99.5, "parity": 100.0, "digitsum": 100.0, "multi-turn": 99.5, "system-prompt": 95.5}
GAP = 0.05       # where the two best logits are closer than this, another rounding may choose the other token
LOGPROB = 2e-3   # and the sum of log-probabilities over a hundred tokens may differ by so much


def golden(golden_path, tokens_path):
    ids, logprobs = {}, {}
    for line in open(tokens_path):
        name, index, token, *rest = line.split()
        if index != "done":
            ids.setdefault(name, []).append(int(token))
            logprobs[name] = logprobs.get(name, 0.0) + float.fromhex(rest[0])
    bad, worst, parted = 0, 0.0, 0
    for g in map(json.loads, open(golden_path)):
        got, want = ids[g["id"]], g["output_ids"]
        if got != want:
            parted += 1
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            if g["top2_gap"] > GAP or at != g["top2_gap_at"]:
                bad += 1
                print(f"{g['id']}: other tokens from {at} on, the least gap is {g['top2_gap']} at {g['top2_gap_at']}")
            continue
        delta = abs(logprobs[g["id"]] - g["logprob_sum"])
        worst = max(worst, delta)
        if delta > LOGPROB:
            bad += 1
            print(f"{g['id']}: log-probabilities sum to {logprobs[g['id']]}, not {g['logprob_sum']}")
    print(f"{len(ids)} requests, {parted} parted at a near tie, log-probability sums off by at most {worst:.2g}")
    return bad == 0 and len(ids) == 40


def exam(problems_path, answers_path):
    answers = {}
    for line in open(answers_path):
        a = json.loads(line)
        answers[a["id"]] = a["text"]
    expected, right, wrong = 0.0, 0, {}
    problems = [json.loads(line) for line in open(problems_path)]
    for p in problems:
        expected += SOLVED[p["skill"]] / 100
        if answers[p["id"]].split("</think>")[-1].strip() == p["answer"]:
            right += 1
        else:
            wrong[p["skill"]] = wrong.get(p["skill"], 0) + 1
    n = len(problems)
    print(f"{right} of {n} right ({100 * right / n:.1f} %), expected {100 * expected / n:.1f} %; wrong: {wrong}")
    return 100 * right / n >= 100 * expected / n - 1


if __name__ == "__main__":
    sys.exit(0 if {"golden": golden, "exam": exam}[sys.argv[1]](*sys.argv[2:]) else 1)
