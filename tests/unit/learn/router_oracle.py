"""The load-balancing loss of transformers and its gradient, for router_losses_test.cpp.

Usage: router_oracle.py PROBLEM.json OUT_FOLDER MODEL_FOLDER...

PROBLEM.json has {"rows", "prompt_lengths"}: token ids, padded here with an attention mask. The loss is the mean of
-log p over the tokens behind the prompts plus 0.7 times the load-balancing loss. The script writes one file
for each model, OUT_FOLDER/<name of the model's folder>.safetensors. It holds "loss", "aux_loss" and "grad.<parameter>";
parameters have the names that they have in the model's folder.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

COEFFICIENT = 0.7

problem_file, out_folder, *folders = sys.argv[1:]
torch.set_num_threads(1)
with open(problem_file) as file:
    problem = json.load(file)
longest = max(len(row) for row in problem["rows"])
ids = torch.tensor([row + [0] * (longest - len(row)) for row in problem["rows"]])
attention = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in problem["rows"]])
labels = ids.clone()
for row, prompt in enumerate(problem["prompt_lengths"]):
    labels[row, :prompt] = -100
labels[attention == 0] = -100

for folder in folders:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    out = model(input_ids=ids, attention_mask=attention, output_router_logits=True, use_cache=False)
    logits = out.logits[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100)
    loss = loss + COEFFICIENT * out.aux_loss
    loss.backward()
    result = {"loss": loss.detach().double().reshape(1), "aux_loss": out.aux_loss.detach().double().reshape(1)}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        for one in {name, name.replace(".mlp.gate.", ".block_sparse_moe.gate.")}:
            result["grad." + one] = parameter.grad.double().contiguous().clone()
    save_file(result, os.path.join(out_folder, os.path.basename(folder) + ".safetensors"))
