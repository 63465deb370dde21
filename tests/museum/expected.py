#!/usr/bin/env python3
"""Writes expected.json: the inputs of the museum, and what every piece gives for them, in exact arithmetic.

Nothing of Mortise is used. Every number is a multiple of 1/8 with few bits, so that floats hold it exactly and the order
of operations does not matter; `bits` fails where that is not so.
"""
import json
import struct
import sys
from fractions import Fraction as F


def bits(value, kind="f"):
    packed = struct.pack(">" + kind, float(value))
    assert F(struct.unpack(">" + kind, packed)[0]) == value, value
    return packed.hex()


TOKENS = {
    "row_offsets": [0, 3, 5, 6, 8],
    "group_index": [0, 0, 1, 1],
    "row_valid": [1, 1, 1, 0],
    "mask": [1, 1, 0, 1, 1, 1, 1, 1],
    "log_prob": [-1, -2.5, -3, -0.25, -4, -1.125, -2, -0.5],
    "old_log_prob": [-1, -2, -0.5, -0.5, -4.75, -1, -2.25, -0.5],
    "ref_log_prob": [-1.5, -2.5, -9, -0.125, -3, -2, -2.75, -1],
    "advantages": [1, 1, 1, -0.5, -0.5, 2, -3.25, -3.25],
    "weight": [0.5, 0.5, 0.5, 0.25, 0.25, 1, 0, 2],
    "token_level_rewards": [0, 0, 1.5, 0.25, -1, 4, 0, 7],
}
REWARDS = {
    "completions": ["seven", "", "42", "a\u00e9\u4e2d", "x"],
    "answers": ["seven", "no", "24", "a\u00e9\u4e2d", None],
}
ROLLOUT = {"prompts": [[1, 2, 3], [9, 30]], "num_samples": 2, "max_new_tokens": 5, "version": 3}
EPISODES = [{"episode": 5, "turn": 0, "text": "h\u00e9llo", "ids": [3, 4]}, {"episode": 9, "turn": 1, "text": "", "ids": [7]}]


def exact(name):
    return [F(x) for x in TOKENS[name]]


def policy_loss(scale):
    loss, grad = [], []
    for x, old, a, w, m in zip(exact("log_prob"), exact("old_log_prob"), exact("advantages"), exact("weight"), TOKENS["mask"]):
        d = x - old
        counts = m and w  # the engine clears the others
        loss.append(-scale * a * (1 + d + d * d / 2) if counts else F(0))
        grad.append(-scale * a * (1 + d) * w if counts else F(0))
    return {"first": [bits(x) for x in loss], "second": [bits(x) for x in grad]}


def kl_estimator(scale):
    kl, grad = [], []
    for x, ref, w, m in zip(exact("log_prob"), exact("ref_log_prob"), exact("weight"), TOKENS["mask"]):
        d = x - ref
        kl.append(scale * d * d / 2 if m else F(0))
        grad.append(scale * d * w if m and w else F(0))
    return {"first": [bits(x) for x in kl], "second": [bits(x) for x in grad]}


def advantage_estimator(number):
    offsets, rewards = TOKENS["row_offsets"], exact("token_level_rewards")
    rows = range(len(offsets) - 1)
    outcome = [sum(rewards[offsets[r]:offsets[r + 1]]) for r in rows]
    out = []
    for r in rows:
        group = [outcome[o] for o in rows if TOKENS["group_index"][o] == TOKENS["group_index"][r] and TOKENS["row_valid"][o]]
        value = outcome[r] - sum(group) / len(group) + number if TOKENS["row_valid"][r] else F(0)
        out += [value if m else F(0) for m in TOKENS["mask"][offsets[r]:offsets[r + 1]]]
    return {"first": [bits(x) for x in out], "second": [bits(x) for x in out]}


def reward(scale, number, flip):
    out = []
    for completion, answer in zip(REWARDS["completions"], REWARDS["answers"]):
        if answer is None:
            out.append("nan")
            continue
        value = len(completion.encode()) * scale + number + (100 if completion == answer else 0)
        out.append(bits(-value if flip else value, "d"))
    return {"rewards": out}


def rollout_backend(number):
    sequences = []
    for i, prompt in enumerate(ROLLOUT["prompts"]):
        first_row = i * ROLLOUT["num_samples"]
        for s in range(ROLLOUT["num_samples"]):
            length = range(ROLLOUT["max_new_tokens"])
            sequences.append({
                "request_id": 100 + i, "sample_index": s, "weight_version": ROLLOUT["version"],
                "ids": [(prompt[j % len(prompt)] * 7 + first_row + 3 * s + j) % number for j in length],
                "log_prob": [bits(F(-(j + 1), 8)) for j in length]})
    return {"sequences": sequences}


def environment(number):
    return {"answers": [{
        "episode": e["episode"], "done": e["turn"] >= 1, "reward": bits(number * len(e["ids"]) + F(len(e["text"].encode()), 8), "d"),
        "messages": "" if e["turn"] >= 1 else '[{"role":"user","content":"more"}]'} for e in EPISODES]}


def main():
    half = F(1, 2)
    cases = [
        ("policy_loss", {}, policy_loss(3 * half)), ("policy_loss", {"scale": 2.5}, policy_loss(5 * half)),
        ("kl_estimator", {}, kl_estimator(3 * half)), ("kl_estimator", {"scale": 0.5}, kl_estimator(half)),
        ("advantage_estimator", {}, advantage_estimator(2)), ("advantage_estimator", {"number": -3}, advantage_estimator(-3)),
        ("reward", {}, reward(3 * half, 2, False)),
        ("reward", {"scale": 0.25, "number": 7, "flip": True, "column": "solution"}, reward(half / 2, 7, True)),
        ("rollout_backend", {"number": 32}, rollout_backend(32)), ("rollout_backend", {"number": 7}, rollout_backend(7)),
        ("environment", {}, environment(2)), ("environment", {"number": -3}, environment(-3)),
    ]
    out = {"tokens": TOKENS, "rewards": REWARDS, "rollout": ROLLOUT, "episodes": EPISODES,
           "cases": [{"kind": kind, "params": params, "expected": expected} for kind, params, expected in cases]}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(out, file, indent=1, ensure_ascii=True)
        file.write("\n")


if __name__ == "__main__":
    main()
