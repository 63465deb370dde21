"""Loads folders that Mortise saved with transformers and compares logits; writes random ones for Mortise to read.

usage: transformers_oracle.py OUT COUNT SEED FOLDER...
OUT gets COUNT folders (random_folders.py). FOLDER.ours.safetensors holds in.input_ids, logits, eos_token_id; exit code 0 = equal
PEFT loads a folder with an adapter if it is installed; else this script adds base and adapter by PEFT's formula.
"""
import importlib.util
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import random_folders


def load_adapted(folder: str):
    config = json.loads((Path(folder) / "adapter_config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    if importlib.util.find_spec("peft"):
        from peft import PeftModel
        return PeftModel.from_pretrained(model, folder)
    pairs = load_file(Path(folder) / "adapter_model.safetensors")
    names = [name.removesuffix(".lora_A.weight") for name in pairs if name.endswith(".lora_A.weight")]
    assert len(names) * 2 == len(pairs), "tensors other than lora_A and lora_B"
    with torch.no_grad():
        for name in names:
            weight = model.get_submodule(name.removeprefix("base_model.model.")).weight
            root = 0.5 if config.get("use_rslora") else 1.0
            scale = config["lora_alpha"] / config["r"] ** root
            weight += scale * pairs[name + ".lora_B.weight"] @ pairs[name + ".lora_A.weight"]
    return model


def check(folder: str) -> str:
    """The differences in the folder; empty if there are none."""
    ours = load_file(folder + ".ours.safetensors")
    if (Path(folder) / "adapter_config.json").exists():
        model = load_adapted(folder)
    else:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[kind]:
                return f"{kind}: {info[kind]}"
    with torch.no_grad():
        logits = model.eval()(ours["in.input_ids"]).logits
    difference = (logits - ours["logits"]).abs().max().item()
    if not difference <= 5e-5:
        return f"logits differ by {difference}"
    eos = model.generation_config.eos_token_id
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if eos != ours["eos_token_id"].tolist():
        return f"eos_token_id {eos}, ours {ours['eos_token_id'].tolist()}"
    return ""


def main() -> int:
    out, count, seed, folders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    random_folders.write(out, count, seed)
    faults = [f"{folder}: {fault}" for folder in folders if (fault := check(folder))]
    print("\n".join(faults))
    return 1 if faults or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
