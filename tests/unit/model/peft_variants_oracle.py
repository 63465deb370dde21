"""PEFT's training under the settings of our adapters.

usage: peft_variants_oracle.py FOLDER
FOLDER/cases.json: a list of {name, base, fresh, rate, steps}. `base` is a model's folder. `fresh`: the
arguments of PEFT's LoraConfig for an adapter that PEFT starts; null: FOLDER/NAME/ours is an adapter of ours.
FOLDER/rows.safetensors: rowN/ids and rowN/probe, one number per response token.
Writes for each case FOLDER/NAME/theirs, the adapter that PEFT saved after `steps` steps of plain gradient descent on
sum(probe * log_prob), and FOLDER/NAME/theirs.safetensors: before/log_prob, after/log_prob, and before/NAME, the first
gradient of each parameter. All in float64.
"""
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from peft_dropout_oracle import in_float64


def route(self, hidden_states):
    logits = torch.nn.functional.linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    indices = torch.softmax(logits, -1, dtype=torch.float32).topk(self.top_k, -1).indices
    scores = torch.softmax(logits, -1).gather(1, indices)
    if getattr(self, "norm_topk_prob", True):
        scores = scores / scores.sum(-1, keepdim=True)
    return logits, scores, indices


def routers_in_float64(model) -> None:
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = route.__get__(module)


def log_probs(model, rows):
    out = []
    row = 0
    while f"row{row}/ids" in rows:
        ids, probe = rows[f"row{row}/ids"], rows[f"row{row}/probe"]
        response = len(probe)
        logits = model(ids[None]).logits[0, -response - 1:-1]
        out.append(torch.log_softmax(logits, -1).gather(1, ids[-response:, None])[:, 0])
        row += 1
    return torch.cat(out)


def short(name: str) -> str:
    return name.replace(".modules_to_save.default", "").replace(".default", "").replace(
        "lora_magnitude_vector.weight", "lora_magnitude_vector")


def main() -> int:
    folder = Path(sys.argv[1])
    rows = load_file(folder / "rows.safetensors")
    probe = torch.cat([rows[f"row{i}/probe"] for i in range(len(rows) // 2)])
    for case in json.loads((folder / "cases.json").read_text()):
        here = folder / case["name"]
        # PEFT computes its starts in float32 only.
        config = AutoConfig.from_pretrained(case["base"])
        is_gpt_oss = config.model_type == "gpt_oss"
        base = AutoModelForCausalLM.from_pretrained(case["base"], experts_implementation="eager",
                                                    attn_implementation="eager" if is_gpt_oss else "sdpa",
                                                    dtype=torch.float64 if case["fresh"] is None else torch.float32)
        if case["fresh"] is None:
            model = PeftModel.from_pretrained(base, here / "ours", is_trainable=True)
        else:
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **case["fresh"]))
        model = model.double()
        if not is_gpt_oss:  # it has another form of rotation
            in_float64(model)
            routers_in_float64(model)
        model.train()
        trained = {short(n): p for n, p in model.named_parameters() if p.requires_grad}
        out = {}
        for step in range(case["steps"]):
            log_prob = log_probs(model, rows)
            (log_prob * probe).sum().backward()
            if step == 0:
                out["before/log_prob"] = log_prob.detach()
                out.update({f"before/{n}": p.grad.clone().contiguous() for n, p in trained.items()})
            with torch.no_grad():
                for parameter in trained.values():
                    parameter -= case["rate"] * parameter.grad
                    parameter.grad = None
        with torch.no_grad():
            out["after/log_prob"] = log_probs(model, rows).contiguous()
        save_file(out, here / "theirs.safetensors")
        model.save_pretrained(here / "theirs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
