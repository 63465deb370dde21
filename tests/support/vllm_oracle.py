# The log-probs of completions by transformers, with the weights that each completion names: those of the model, the last
# norm multiplied by version + 1 (vllm_test.cpp).
#   vllm_oracle.py MODEL LINES     {"version", "prompt", "ids", "log_probs"} a line
# Prints as JSON the largest difference, and the smallest one that another version would have had.
import json
import sys

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64).eval()
norm = model.model.norm.weight.detach().clone()


@torch.no_grad()
def difference(line, version):
    model.model.norm.weight.copy_(norm * (version + 1))
    ids = torch.tensor([line["prompt"] + line["ids"]])
    log_probs = torch.log_softmax(model(ids).logits[0], dim=-1)
    start = len(line["prompt"])
    own = [log_probs[start + t - 1, token].item() for t, token in enumerate(line["ids"])]
    return max(abs(a - b) for a, b in zip(own, line["log_probs"], strict=True))


with open(sys.argv[2]) as file:
    lines = [json.loads(line) for line in file]
print(json.dumps({
    "completions": len(lines),
    "tokens": sum(len(line["ids"]) for line in lines),
    "versions": len({line["version"] for line in lines}),
    "largest_difference": max(difference(line, line["version"]) for line in lines),
    "smallest_difference_of_another_version": min(
        difference(line, other) for line in lines for other in (line["version"] - 1, line["version"] + 1) if other >= 0),
}))
