"""PEFT's log-probs and adapter gradients, with given masks in place of its dropout.

usage: peft_dropout_oracle.py FOLDER
FOLDER has base/, adapter/ and case.safetensors: rowN/ids, rowN/probe (one number per response token) and rowN/MODULE,
what the input of MODULE's lora_A is multiplied by. Writes FOLDER/theirs.safetensors: log_prob of all response tokens,
and the gradient of sum(probe * log_prob) of every A and B. All in float64, also where transformers computes in float32.
"""
import sys
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


class Given(torch.nn.Module):
    mask = None

    def forward(self, x):
        return x * self.mask


def in_float64(model) -> None:
    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rotary(self, x, position_ids):
        config = self.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        parameters = getattr(config, "rope_parameters", None) or {}
        theta = parameters.get("rope_theta") or config.rope_theta
        inverse = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = position_ids[..., None].double() * inverse
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward = norm.__get__(module)
        elif name.endswith("RotaryEmbedding"):
            module.forward = rotary.__get__(module)


def main() -> int:
    folder = Path(sys.argv[1])
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float64, attn_implementation="sdpa")
    model = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).double()
    in_float64(model)
    model.train()
    given = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_dropout"):
            assert isinstance(module.lora_dropout["default"], torch.nn.Dropout), "the adapter has dropout"
            given[name] = module.lora_dropout["default"] = Given()
    case = load_file(folder / "case.safetensors")
    log_probs = []
    row = 0
    while f"row{row}/ids" in case:
        for name, module in given.items():
            module.mask = case[f"row{row}/{name}"]
        ids, probe = case[f"row{row}/ids"], case[f"row{row}/probe"]
        response = len(probe)
        logits = model(ids[None]).logits[0, -response - 1:-1]
        log_prob = torch.log_softmax(logits, -1).gather(1, ids[-response:, None])[:, 0]
        (log_prob * probe).sum().backward()
        log_probs.append(log_prob.detach())
        row += 1
    out = {"log_prob": torch.cat(log_probs)}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            out[name.replace(".default", "")] = parameter.grad.contiguous()
    save_file(out, folder / "theirs.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
