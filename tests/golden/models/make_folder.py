"""Makes a golden folder of a tiny random model with transformers, in float64.

usage: make_folder.py FOLDER [--prompts 3,9,17] [--seed 0] [--four-bit nf4|fp4|mxfp4 [--double-quant]]
FOLDER has config.json (and generation_config.json); config.classic.json and config.v5.json in it must mean the same.
Writes model.safetensors, forward.safetensors and greedy.json (README.md in this folder describes them).
--four-bit stores the matrices as bitsandbytes does, and adds quantization_config to config.json. The expected numbers
are those of the matrices that bitsandbytes' dequantize_4bit gives. mxfp4 is the form of gpt-oss's experts; transformers
widens them.
"""
import argparse
import copy
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

NEW_TOKENS = 24
MXFP4_BLOCK = 32
LEAST_MARGIN = 6e-3  # between the two best logits of every greedy step: no other order of sums changes the argmax


def experts_of(folder: Path):
    """transformers' grouped product takes no float64."""
    is_mixture = "num_experts_per_tok" in json.loads((folder / "config.json").read_text())
    return {"experts_implementation": "eager"} if is_mixture else {}


def attention_of(folder: Path):
    """transformers computes gpt-oss's sinks only in its eager attention."""
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    return {"attn_implementation": "eager" if model_type == "gpt_oss" else "sdpa"}


def random_model(folder: Path, seed: int):
    """Weights that give logits of some size, norms that do something."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32,
                                             **attention_of(folder), **experts_of(folder))
    for name, parameter in model.named_parameters():
        scale, shift = (0.1, 1.0) if "norm" in name else (0.3, 0.0) if "embed" in name else (0.15, 0.0)
        parameter.copy_(torch.randn_like(parameter) * scale + shift)
    return model.eval()


def in_four_bits(plain, saved: str, form: str, double_quant: bool):
    """Lets transformers save `plain` in four bits. Returns the model that it then is, in float32."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit
    from transformers import BitsAndBytesConfig
    with tempfile.TemporaryDirectory() as base:
        plain.save_pretrained(base)
        how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=form, bnb_4bit_use_double_quant=double_quant)
        packed = AutoModelForCausalLM.from_pretrained(base, quantization_config=how, dtype=torch.bfloat16, device_map="cpu")
    packed.save_pretrained(saved)
    state = {name: parameter.float() for name, parameter in packed.named_parameters()}
    for name, module in packed.named_modules():
        if isinstance(module, Linear4bit):
            state[name + ".weight"] = dequantize_4bit(module.weight.data, module.weight.quant_state).float()
    plain.load_state_dict(state, strict=False)
    return plain


def pack_mxfp4(matrix):
    """(E, in, out) as blocks of 16 bytes and their exponents, which are those of the published files."""
    from transformers.integrations.mxfp4 import FP4_VALUES
    values = torch.tensor(FP4_VALUES)
    blocks = matrix.transpose(1, 2).reshape(matrix.shape[0], matrix.shape[2], -1, MXFP4_BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    exponents = largest.log2().floor() - 2  # the largest value is 6 = 1.5 * 2^2
    nearest = (blocks[..., None] / 2.0**exponents[..., None] - values).abs().argmin(-1)
    packed = (nearest[..., ::2] | nearest[..., 1::2] << 4).to(torch.uint8)
    return packed, (exponents[..., 0] + 127).to(torch.uint8)


def in_mxfp4(plain, saved: str):
    """Saves `plain` as gpt-oss is published. Returns the model that transformers reads from it, in float32."""
    from transformers import Mxfp4Config
    state = {}
    for name, tensor in plain.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            state[name + "_blocks"], state[name + "_scales"] = pack_mxfp4(tensor)
        else:
            state[name] = tensor.to(torch.bfloat16)
    config_json = plain.config.to_dict()
    config_json["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                   "lm_head"],
        "quant_method": "mxfp4"}
    Path(saved, "config.json").write_text(json.dumps(config_json))
    save_file(state, Path(saved) / "model.safetensors", metadata={"format": "pt"})
    how = Mxfp4Config(dequantize=True)
    widened = AutoModelForCausalLM.from_pretrained(saved, quantization_config=how, dtype=torch.bfloat16,
                                                   attn_implementation="eager", experts_implementation="eager")
    return widened.float().eval()


def rows(vocab_size: int, generator):
    """Rows full, padded left, padded right, nearly empty, padded on both sides."""
    ids = torch.randint(3, vocab_size, (5, 20), generator=generator)
    mask = torch.ones_like(ids)
    for row, begin, end in ((1, 6, 20), (2, 0, 13), (3, 18, 20), (4, 3, 15)):
        mask[row, :begin] = 0
        mask[row, end:] = 0
    return ids, mask


def logits_of(model, ids, mask):
    """0 at padding, where transformers may give anything."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)  # positions of the real tokens
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    return torch.where(mask.bool()[..., None], logits, 0.0)


def greedy(model, prompt, end_ids):
    ids, margin = list(prompt), float("inf")
    for _ in range(NEW_TOKENS):
        best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
        if ids[-1] in end_ids:
            return {"prompt_ids": prompt, "completion_ids": ids[len(prompt):], "finish_reason": "stop"}, margin
    return {"prompt_ids": prompt, "completion_ids": ids[len(prompt):], "finish_reason": "length"}, margin


def write_forward(folder: Path, model, single, ids, mask):
    real = mask.bool()
    pairs = real[:, 1:] & real[:, :-1]
    logits = logits_of(model, ids, mask)
    drift = (logits - logits_of(single, ids, mask).double()).abs().max().item()
    log_probs = logits.log_softmax(-1)
    chosen = log_probs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    entropy = -(log_probs.exp() * log_probs).sum(-1)[:, :-1]
    save_file({"in.input_ids": ids, "in.attention_mask": mask,
               "expected.logits": logits.float().contiguous(),
               "expected.log_prob": (chosen * pairs).float().contiguous(),
               "expected.entropy": (entropy * pairs).float().contiguous()},
              folder / "forward.safetensors", metadata={"float32_drift": f"{drift:.3g}"})
    return logits


def check_forms(folder: Path, logits, ids, mask):
    for form in ("config.classic.json", "config.v5.json"):
        if not (folder / form).exists():
            continue
        with tempfile.TemporaryDirectory() as other:
            shutil.copy(folder / form, Path(other) / "config.json")
            shutil.copy(folder / "model.safetensors", other)
            model = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float64, **attention_of(folder),
                                                         **experts_of(folder))
            difference = (logits_of(model.eval(), ids, mask) - logits).abs().max().item()
        assert difference < 1e-9, f"{form} gives logits that differ by {difference}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", default="3,9,17", help="their lengths")
    parser.add_argument("--seed", type=int, default=0, help="the first that is tried")
    parser.add_argument("--four-bit", choices=["nf4", "fp4", "mxfp4"], help="how the matrices are stored")
    parser.add_argument("--double-quant", action="store_true", help="the scales are quantised too")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    generator = torch.Generator().manual_seed(7)
    config = AutoConfig.from_pretrained(args.folder)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ids, mask = rows(config.vocab_size, generator)
    prompts = [torch.randint(3, config.vocab_size, (int(n),), generator=generator).tolist()
               for n in args.prompts.split(",")]
    saved = tempfile.mkdtemp()
    for seed in range(args.seed, args.seed + 500):
        single = random_model(args.folder, seed)
        if args.four_bit == "mxfp4":
            single = in_mxfp4(single, saved)
        elif args.four_bit:
            single = in_four_bits(single, saved, args.four_bit, args.double_quant)
        model = copy.deepcopy(single).double()
        made = [greedy(model, prompt, ends) for prompt in prompts]
        varied = all(len(set(case["completion_ids"])) > 6 for case, _ in made)
        if varied and min(margin for _, margin in made) >= LEAST_MARGIN:
            break
    else:
        raise SystemExit("no seed gives greedy continuations with a clear winner at every step")
    if args.four_bit:
        config_json = json.loads((args.folder / "config.json").read_text())
        config_json["quantization_config"] = json.loads((Path(saved) / "config.json").read_text())["quantization_config"]
        (args.folder / "config.json").write_text(json.dumps(config_json, indent=2) + "\n")
    else:
        single.save_pretrained(saved)  # the experts one by one, as in the files of published models
    shutil.copy(Path(saved) / "model.safetensors", args.folder)
    shutil.rmtree(saved)
    logits = write_forward(args.folder, model, single, ids, mask)
    cases = [{**case, "min_margin": round(margin, 5)} for case, margin in made]
    text = json.dumps({"max_new_tokens": NEW_TOKENS, "cases": cases}, indent=1)
    (args.folder / "greedy.json").write_text(text + "\n")
    check_forms(args.folder, logits, ids, mask)
    print(f"{args.folder}: seed {seed}, largest logit {logits.abs().max().item():.3g}")


if __name__ == "__main__":
    main()
