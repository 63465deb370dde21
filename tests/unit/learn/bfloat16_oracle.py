"""Fifty updates of AdamW by torch and transformers, for bfloat16_oracle_test.cpp.

Usage: bfloat16_oracle.py MODEL_FOLDER ROWS.json OUT.safetensors

ROWS.json has {"prompt_length", "rows"}: rows of token ids of one length. The loss is the mean of -log p over the tokens
behind the prompt. Three ways to compute it:

  float32   all of it
  bfloat16  a bfloat16 model, whose gradients step float32 masters, from which its weights are rounded again
  autocast  float32 weights under torch.autocast

Writes "<way>.losses" and the weights at last, "<way>.<parameter>".
"""

import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

NUM_UPDATES = 50
LEARNING_RATE = 1e-3

folder, rows_file, out_file = sys.argv[1:]
torch.set_num_threads(1)
with open(rows_file) as file:
    problem = json.load(file)
rows, prompt_length = torch.tensor(problem["rows"]), problem["prompt_length"]


def mean_loss(model):
    logits = model(input_ids=rows, use_cache=False).logits[:, prompt_length - 1 : -1].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, prompt_length:].flatten())


def train(way):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    masters = {name: torch.nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    if way == "bfloat16":
        model = model.to(torch.bfloat16)
    weights = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(masters.values() if way == "bfloat16" else weights.values(), lr=LEARNING_RATE)
    losses = []
    for _ in range(NUM_UPDATES):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
            loss = mean_loss(model)
        loss.backward()
        if way == "bfloat16":
            for name, master in masters.items():
                master.grad = weights[name].grad.float()
        optimizer.step()
        if way == "bfloat16":
            with torch.no_grad():
                for name, master in masters.items():
                    weights[name].copy_(master)
        losses.append(loss.item())
    final = masters if way == "bfloat16" else weights
    out = {f"{way}.{name}": p.detach().float().contiguous().clone() for name, p in final.items()}
    out[f"{way}.losses"] = torch.tensor(losses)
    return out


result = {}
for way in ("float32", "bfloat16", "autocast"):
    result.update(train(way))
save_file(result, out_file)
