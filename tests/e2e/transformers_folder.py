"""Loads the folder of a trained model with transformers: same logits as the program, same token ids, nothing missing.

usage: transformers_folder.py PROGRAM FOLDER SCRATCH
exit code 0 = equal
"""
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ["12+34=", "99+1=", "7", "46"]


def main() -> int:
    program, folder, scratch = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{kind}: {info[kind]}"
    ids = (torch.arange(24).reshape(2, 12) * 7 + 3) % model.config.vocab_size
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    save_file({"in.input_ids": ids, "in.attention_mask": mask}, scratch / "in.safetensors")
    subprocess.run([program, "model", "logprob", "--model", folder, "--inputs", scratch / "in.safetensors",
                    "--outputs", scratch / "out.safetensors"], check=True)
    ours = load_file(scratch / "out.safetensors")["logits"]
    with torch.no_grad():
        theirs = model.eval()(ids, attention_mask=mask).logits
    difference = ((ours - theirs).abs() * mask.unsqueeze(-1)).max().item()
    assert difference <= 1e-4, f"logits differ by {difference}"

    tokenizer = AutoTokenizer.from_pretrained(folder)
    (scratch / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    subprocess.run([program, "tokenizer", "encode", "--model", folder, "--in", scratch / "texts.jsonl",
                    "--out", scratch / "ids.jsonl"], check=True)
    encoded = [json.loads(line)["ids"] for line in (scratch / "ids.jsonl").read_text().splitlines()]
    assert encoded == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS], encoded
    return 0


if __name__ == "__main__":
    sys.exit(main())
