#!/usr/bin/python3
"""Judges answers of the example model; exit status 1 where they are not good enough.

    judge.py golden GOLDEN OTHER TOKENS   greedy tokens (as dsf.py prints them) against the goldens; the log-probabilities must tell them
                                          from OTHER, the goldens of the other weights
    judge.py exam FP8|BF16 PROBLEMS ANSWERS  answers (JSON lines of `ds-token decode --jsonl`) against the right ones, and the shares that
                                          the reference solves with these weights
"""
import json
import sys

# Percent of 200 fresh problems of each kind that the reference solves.
SOLVED = {"bf16": {"add": 100.0, "sub": 100.0, "mul": 99.5, "compare": 94.0, "count": 97.5, "reverse": 99.5, "sort": 85.5, "date": 100.0,
                   "unit": 100.0, "parity": 100.0, "digitsum": 100.0, "multi-turn": 100.0, "system-prompt": 96.0},
          "fp8": {"add": 100.0, "sub": 100.0, "mul": 99.5, "compare": 94.0, "count": 97.0, "reverse": 99.0, "sort": 85.0, "date": 100.0,
                  "unit": 99.5, "parity": 100.0, "digitsum": 100.0, "multi-turn": 99.5, "system-prompt": 95.5}}
GAP = 0.05        # where the two best logits are closer than this, another rounding may choose the other token
FAR = 1e-3        # requests whose sums of log-probabilities differ by more between FP8 and BF16 weights tell the two apart


def golden(golden_path, other_path, tokens_path):
    ids, logprobs = {}, {}
    for line in open(tokens_path):
        name, index, token, *rest = line.split()
        if index != "done":
            ids.setdefault(name, []).append(int(token))
            logprobs[name] = logprobs.get(name, 0.0) + float.fromhex(rest[0])
    other = {o["id"]: o["logprob_sum"] for o in map(json.loads, open(other_path))}
    bad, worst, parted, near, far = 0, 0.0, 0, 0, 0
    for g in map(json.loads, open(golden_path)):
        name, got, want, right = g["id"], ids[g["id"]], g["output_ids"], g["logprob_sum"]
        if got != want:
            parted += 1
            if g["top2_gap"] > GAP:
                bad += 1
                print(f"{name}: other tokens, although the least gap is {g['top2_gap']}")
            continue
        delta = abs(logprobs[name] - right)
        worst = max(worst, delta)
        # With FP8 an activation that is rounded the other way moves what follows by a percent.
        if delta > (1e-3 if "bf16" in golden_path else 0.02 + 0.3 * abs(right)):
            bad += 1
            print(f"{name}: log-probabilities sum to {logprobs[name]}, not {right}")
        if abs(right - other[name]) > FAR:
            near += delta < abs(logprobs[name] - other[name])
            far += delta >= abs(logprobs[name] - other[name])
    print(f"{len(ids)} requests, {parted} parted at a near tie, log-probability sums off by at most {worst:.2g}; "
          f"nearer to these weights' than to the other's: {near} of {near + far}")
    return bad == 0 and len(ids) == 40 and near + far >= 10 and near >= 3 * far


def exam(weights, problems_path, answers_path):
    answers, skills, bad = {}, {}, 0
    for line in open(answers_path):
        a = json.loads(line)
        answers[a["id"]] = a["text"]
    for p in map(json.loads, open(problems_path)):
        right = skills.setdefault(p["skill"], [0, 0])
        right[0] += answers[p["id"]].split("</think>")[-1].strip() == p["answer"]
        right[1] += 1
    total = [0, 0, 0.0]
    for skill, (right, n) in skills.items():
        expected = n * SOLVED[weights.lower()][skill] / 100
        print(f"{skill}: {right} of {n} right, expected {expected:.1f}")
        bad += right < expected - 1
        total = [total[0] + right, total[1] + n, total[2] + expected]
    print(f"{total[0]} of {total[1]} right, expected {total[2]:.1f}")
    return bad == 0 and total[1] == len(answers) == 300 and total[0] >= total[2] - total[1] / 100


if __name__ == "__main__":
    sys.exit(0 if {"golden": golden, "exam": exam}[sys.argv[1]](*sys.argv[2:]) else 1)
