"""Packed training passes and the transformers wheel's padded ones on the same rows, in one run.

  python train_peer.py --program build/release/bin/bench_train --out build/bench/train [--rows 48] [--rounds 2] [--threads 2]

Row lengths are the quantiles of a log-normal distribution with mean 169 and largest value 1,024, in a random order. The
model has the shape of workload c2. Both sides run forward and backward of the mean negative log-likelihood over all rows, in
float32, without an optimizer. Loss and gradient norm must be equal. transformers gets micro-batches of 8 rows, padded to the
longest row of the batch, and for a second figure to the longest row of each micro-batch. Its attention is sdpa.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import NormalDist

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--rows", type=int, default=48)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--micro-batch", type=int, default=8)
args = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=str(args.threads), CUDA_VISIBLE_DEVICES="")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.set_num_threads(args.threads)
MEAN, LONGEST = 169, 1024


def quantiles(count, sigma):
    """exp(mu + sigma z) at the middles of `count` equal shares, with the requested mean."""
    values = [math.exp(sigma * NormalDist().inv_cdf((i + 0.5) / count)) for i in range(count)]
    return [v * MEAN * count / sum(values) for v in values]


def row_lengths(count):
    low, high = 0.01, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if quantiles(count, middle)[-1] < LONGEST else (low, middle)
    lengths = [max(2, round(v)) for v in quantiles(count, low)]
    assert lengths[-1] == LONGEST, lengths[-1]
    random.Random(3).shuffle(lengths)
    return lengths


def make_inputs():
    shape = json.loads((Path(__file__).parent / "workloads.json").read_text())["c2"]["model"]
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(**shape, max_position_embeddings=2048, initializer_range=0.05, tie_word_embeddings=False,
                                         attn_implementation="sdpa"))
    args.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.out / "model")
    generator = random.Random(4)
    rows = [[generator.randrange(shape["vocab_size"]) for _ in range(n)] for n in row_lengths(args.rows)]
    with open(args.out / "rows.jsonl", "w") as out:
        for ids in rows:
            out.write(json.dumps({"ids": ids}) + "\n")
    return model.train(), rows


def run_packed():
    text = subprocess.run([args.program, "--model", args.out / "model", "--rows", args.out / "rows.jsonl", "--repeats", "2"], check=True,
                          stdout=subprocess.PIPE).stdout
    return json.loads(text)


def run_padded(model, rows, width):
    """`width` 0: each micro-batch is as wide as its longest row."""
    model.zero_grad(set_to_none=True)
    total, tokens = 0.0, sum(len(ids) - 1 for ids in rows)
    began = time.monotonic()
    for first in range(0, len(rows), args.micro_batch):
        part = rows[first:first + args.micro_batch]
        columns = width or max(len(ids) for ids in part)
        ids = torch.zeros(len(part), columns, dtype=torch.long)
        mask = torch.zeros(len(part), columns, dtype=torch.long)
        for i, row in enumerate(part):
            ids[i, :len(row)] = torch.tensor(row)
            mask[i, :len(row)] = 1
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
        labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / tokens
        loss.backward()
        total += loss.item()
    seconds = time.monotonic() - began
    norm = math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in model.parameters()))
    return {"seconds": seconds, "loss": total, "grad_norm": norm}


def main():
    model, rows = make_inputs()
    real = sum(len(ids) for ids in rows)
    print(f"{len(rows)} rows, {real} tokens, mean {real / len(rows):.0f}, longest {max(map(len, rows))}, {args.threads} threads", flush=True)
    run_padded(model, rows[:args.micro_batch], 0)  # warm
    sides = {"packed": run_packed, "padded to the batch": lambda: run_padded(model, rows, LONGEST),
             "padded to the micro-batch": lambda: run_padded(model, rows, 0)}
    best = {}
    for number in range(args.rounds):
        for name, run in sides.items():
            result = run()
            print(json.dumps({"side": name, "round": number + 1, "real_tokens_per_s": round(real / result["seconds"], 1), **result}), flush=True)
            if name not in best or result["seconds"] < best[name]["seconds"]:
                best[name] = result
    packed = best["packed"]
    for name, result in best.items():
        for key in ("loss", "grad_norm"):
            if abs(result[key] - packed[key]) > 1e-4 * abs(packed[key]):
                sys.exit(f"{key} of '{name}' is {result[key]}, of 'packed' {packed[key]}: the two sides do not compute the same")
    for name in ("padded to the batch", "padded to the micro-batch"):
        print(f"packed / {name}: {best[name]['seconds'] / packed['seconds']:.2f} times the real tokens per second"
              + (" (wanted: at least 3)" if name == "padded to the batch" else ""))


main()
