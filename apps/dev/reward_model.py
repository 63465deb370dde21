"""Trains the reward model of a picture: a classifier of right and wrong sums, which begins as the quickstart's warm start.

usage: reward_model.py MODEL ROWS.jsonl OUT [STEPS]

Needs transformers and torch. Prints the share of unseen sums that it judges right.
"""

import json
import random
import shutil
import sys

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BATCH, WIDTH = 256, 12


def wrong(answer, dice):
    """Another number, mostly one that is close."""
    value = int(answer)
    while str(value) == answer:
        value = int(answer) + dice.choice([-100, -20, -10, -2, -1, 1, 2, 10, 20, 100]) if dice.random() < 0.7 else dice.randrange(10, 199)
    return str(abs(value))


def batch_of(rows, tokenizer, dice):
    chosen = dice.choices(rows, k=BATCH)
    labels = [dice.random() < 0.5 for _ in chosen]
    texts = [row["prompt"] + (row["answer"] if label else wrong(row["answer"], dice)) for row, label in zip(chosen, labels)]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    pad = tokenizer.pad_token_id
    table = torch.tensor([one + [pad] * (WIDTH - len(one)) for one in ids])
    return table, (table != pad).long(), torch.tensor(labels, dtype=torch.float32)


def main():
    base, rows_file, out = sys.argv[1:4]
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 600
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dice = random.Random(1)
    rows = [json.loads(line) for line in open(rows_file)]
    seen, unseen = rows[:-500], rows[-500:]
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    for step in range(1, steps + 1):
        ids, mask, labels = batch_of(seen, tokenizer, dice)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids, attention_mask=mask).logits[:, 0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        ids, mask, labels = batch_of(unseen, tokenizer, dice)
        right = ((model(ids, attention_mask=mask).logits[:, 0] > 0) == labels.bool()).float().mean().item()
    print(f"right about {right:.3f} of {BATCH} unseen sums")
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
