"""Random tiny model folders as transformers and PEFT write them, for oracle_test.cpp.

write(out, count, seed) makes OUT/NAME/ (config.json in the form of transformers 4 or 5, weights in one file or shards), NAME.safetensors
(in.input_ids, in.attention_mask, and transformers' `logits` or `scores` of that folder) and OUT/cases.jsonl: {"name", "changed",
"expect"}. In half of the folders one key of config.json is removed or changed.
- equal: Mortise must read it and give these numbers
- named: gives these numbers, or is refused by the key's name
- refused: the weights do not fit the configuration, so transformers invents some of them
The script omits folders that transformers does not load.
"""
import importlib.util
import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, logging

FAMILIES = ["qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3", "qwen2_moe", "qwen3_moe", "mixtral",
            "gpt_oss"]
# What the reader needs, or what would make a large model where it is not there.
KEPT = {"model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "transformers_version", "dtype", "torch_dtype"}
CHANGES = [
    ("attention_bias", True), ("attention_bias", False), ("mlp_bias", True), ("mlp_bias", False), ("attention_dropout", 0.1),
    ("hidden_act", "gelu"), ("hidden_act", "relu"), ("hidden_act", "gelu_pytorch_tanh"), ("hidden_act", "silu"), ("hidden_act", "swish"),
    ("hidden_activation", "gelu"), ("hidden_activation", "silu"), ("rms_norm_eps", 0.1), ("rms_norm_eps", 0), ("rms_norm_eps", 1),
    ("partial_rotary_factor", 0.5), ("partial_rotary_factor", 1.0), ("rope_theta", 77.0), ("rope_theta", 50000),
    ("rope_scaling", None), ("rope_scaling", {}), ("rope_scaling", {"rope_type": "default"}), ("rope_scaling", {"type": "default"}),
    ("rope_scaling", {"type": "linear", "factor": 3.0}), ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
    ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6}),
    ("rope_scaling", {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4}),
    ("rope_scaling", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 4, "beta_slow": 2}),
    ("rope_scaling", {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}),
    ("rope_scaling", {"rope_type": "mrope", "mrope_section": [1, 1, 1]}), ("rope_scaling", {"rope_type": "proportional", "factor": 2.0}),
    ("rope_parameters", None), ("rope_parameters", {"rope_theta": 300.0}), ("rope_parameters", {"rope_type": "linear", "factor": 2.0}),
    ("rope_local_base_freq", 500.0), ("sliding_window", 3), ("sliding_window", None), ("use_sliding_window", True),
    ("use_sliding_window", False), ("max_window_layers", 0), ("max_window_layers", 1), ("sliding_window_pattern", 2),
    ("layer_types", None), ("attn_logit_softcapping", 2.0), ("attn_logit_softcapping", None), ("final_logit_softcapping", 1.5),
    ("final_logit_softcapping", None), ("query_pre_attn_scalar", 7), ("query_pre_attn_scalar", 100), ("tie_word_embeddings", True),
    ("tie_word_embeddings", False), ("head_dim", None), ("head_dim", 4), ("num_key_value_heads", None), ("num_key_value_heads", 1),
    ("max_position_embeddings", 9), ("original_max_position_embeddings", 5), ("is_causal", False), ("use_bidirectional_attention", True),
    ("num_experts", 4), ("num_local_experts", 4), ("logit_scale", 0.5), ("logits_scaling", 2.0), ("embedding_multiplier", 3.0),
    ("residual_multiplier", 0.5), ("attention_multiplier", 0.5), ("use_qk_norm", True), ("qk_layernorm", True), ("pretraining_tp", 2),
    ("resid_pdrop", 0.1), ("embd_pdrop", 0.1), ("initializer_range", 0.5), ("num_labels", 3), ("pad_token_id", 5),
    ("dtype", "bfloat16"), ("torch_dtype", "float16"), ("use_cache", False), ("bos_token_id", None), ("chunk_size_feed_forward", 2),
    ("norm_topk_prob", True), ("norm_topk_prob", False), ("num_experts_per_tok", 1), ("num_experts_per_tok", 9), ("decoder_sparse_step", 2),
    ("mlp_only_layers", [0]), ("mlp_only_layers", None), ("mlp_only_layers", [7]), ("router_aux_loss_coef", 0.5), ("output_router_logits", True),
    ("router_jitter_noise", 0.1), ("qkv_bias", False), ("shared_expert_intermediate_size", 7), ("moe_intermediate_size", 5), ("num_experts", 0),
    ("swiglu_limit", 0.4), ("swiglu_alpha", 1.1),
    ("layer_norm_eps", 0.3), ("norm_eps", 0.3), ("rotary_pct", 0.5), ("alibi", True), ("scale_embedding", True), ("tie_encoder_decoder", True),
]


def random_rope(rng, kinds, num_pairs):
    rope = {"rope_type": rng.choice(kinds), "rope_theta": rng.choice([1e4, 5e5, 123.0])}

    def maybe(**keys):
        rope.update({key: value for key, value in keys.items() if rng.random() < 0.5})

    kind = rope["rope_type"]
    if kind in ("linear", "dynamic"):
        rope["factor"] = rng.choice([1.0, 2.0, 3.5])
    elif kind == "llama3":
        rope.update(factor=rng.choice([2.0, 8.0]), low_freq_factor=1.0, high_freq_factor=rng.choice([2.0, 4.0]))
        maybe(original_max_position_embeddings=rng.choice([8, 64]))
    elif kind == "yarn":
        rope["factor"] = rng.choice([1.0, 2.0, 4.0])
        maybe(original_max_position_embeddings=rng.choice([8, 32]), beta_fast=rng.choice([8, 32]), beta_slow=rng.choice([1, 2]))
        maybe(attention_factor=1.2, truncate=False)
        if rng.random() < 0.3:
            rope.update(mscale=rng.choice([1.0, 0.7]), mscale_all_dim=rng.choice([1.0, 0.5]))
    elif kind == "longrope":
        rope.update(short_factor=[1.0 + rng.random() for _ in range(num_pairs)], long_factor=[1.0 + 3 * rng.random() for _ in range(num_pairs)])
        maybe(factor=2.0, attention_factor=1.1, original_max_position_embeddings=rng.choice([8, 40]))
    return rope


def random_config(rng):
    family = rng.choice(FAMILIES)
    heads, layers = rng.choice([1, 2, 3, 4]), rng.randint(1, 3)
    head_dim = rng.choice([4, 6, 8, 16])
    keys = dict(vocab_size=rng.randint(30, 60), hidden_size=heads * head_dim, intermediate_size=rng.choice([12, 20, 33]), num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=rng.choice([k for k in range(1, heads + 1) if heads % k == 0]),
                max_position_embeddings=rng.choice([8, 16, 4096]), rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]), pad_token_id=0,
                tie_word_embeddings=rng.random() < 0.5, bos_token_id=1, eos_token_id=rng.choice([2, [2, 3]]))
    if family != "phi3":
        keys["hidden_size"] = heads * rng.choice([head_dim, 10])
        keys["head_dim"] = head_dim
    if family in ("llama", "qwen3", "gemma2", "gemma3_text", "qwen3_moe", "gpt_oss"):
        keys["attention_bias"] = rng.random() < 0.3
    if family == "llama":
        keys["mlp_bias"] = rng.random() < 0.3
    if not family.startswith("gemma"):
        keys["hidden_act"] = rng.choice(["silu", "silu", "gelu_pytorch_tanh"])
    kinds = ["default", "default", "linear", "dynamic", "llama3", "yarn", "longrope"]
    if family == "gemma3_text":
        full = random_rope(rng, kinds[:-1], head_dim // 2)
        keys["rope_parameters"] = {"full_attention": full, "sliding_attention": random_rope(rng, ["default"], head_dim // 2)}
    elif family == "phi3":
        part = rng.choice([0.5, 1.0]) if head_dim % 4 == 0 else 1.0
        keys["rope_parameters"] = dict(random_rope(rng, ["default", "longrope"], int(head_dim * part) // 2), partial_rotary_factor=part)
        keys["original_max_position_embeddings"] = rng.choice([8, 40])
    else:
        keys["rope_parameters"] = random_rope(rng, kinds, head_dim // 2)
    if family == "gpt_oss":
        keys["swiglu_limit"] = rng.choice([0.5, 7.0])
    if family in ("mixtral", "gpt_oss"):
        keys.update(num_local_experts=rng.randint(2, 5), num_experts_per_tok=rng.choice([1, 2]))
    elif family.endswith("_moe"):
        keys.update(num_experts=rng.randint(3, 6), num_experts_per_tok=rng.randint(1, 3), moe_intermediate_size=rng.choice([7, 16]),
                    norm_topk_prob=rng.random() < 0.5, decoder_sparse_step=rng.choice([1, 1, 2]),
                    mlp_only_layers=rng.choice([[], [0], list(range(layers))]))
    if family == "qwen2_moe":
        keys.update(shared_expert_intermediate_size=rng.choice([9, 24]), qkv_bias=rng.random() < 0.7)
    if family.startswith("qwen"):
        keys.update(use_sliding_window=rng.random() < 0.5, sliding_window=rng.choice([2, 5]), max_window_layers=rng.randint(0, layers))
    elif family == "gpt_oss":
        keys["sliding_window"] = rng.choice([3, 50])
    elif family in ("mistral", "phi3", "mixtral"):
        keys["sliding_window"] = rng.choice([None, 3, 50])
    elif family.startswith("gemma"):
        keys.update(sliding_window=rng.choice([2, 5]), query_pre_attn_scalar=rng.choice([head_dim, 5, 144]),
                    final_logit_softcapping=rng.choice([None, 4.0, 30.0]))
        if family == "gemma2":
            keys["attn_logit_softcapping"] = rng.choice([None, 3.0, 50.0])
    if family in ("qwen2", "qwen3", "gemma2", "gemma3_text", "qwen2_moe", "gpt_oss") and rng.random() < 0.3:
        kinds = ["full_attention", "sliding_attention"] if keys.get("use_sliding_window", True) else ["full_attention"]
        keys["layer_types"] = [rng.choice(kinds) for _ in range(layers)]
    return AutoConfig.for_model(family, **keys)


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator) * (0.25 if weight.dim() > 1 else 0.3)
            weight.copy_(noise + (1.0 if "norm" in name and not type(model).__name__.startswith("Gemma") else 0.0))


def to_classic(rng, config):
    """config.json as transformers 4 wrote it."""
    config["torch_dtype"] = config.pop("dtype", "float32")
    if "layer_types" in config and rng.random() < 0.5:
        del config["layer_types"]
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope["rope_type"] == "default":
        config["rope_scaling"] = None
    else:
        if rng.random() < 0.5:
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = rope


def change(rng, config):
    """Takes a key out or sets one; which."""
    if rng.random() < 0.3:
        key = rng.choice([key for key in config if key not in KEPT])
        del config[key]
        return key
    key, value = rng.choice(CHANGES)
    config[key] = value
    return key


def numbers(folder, auto, ids, adapter=None, **options):
    """What transformers computes, and whether the weights fit; nothing if it does not load the folder."""
    try:
        model, info = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True,
                                           ignore_mismatched_sizes=True, **options)
        if adapter:
            from peft import PeftModel
            model = PeftModel.from_pretrained(model, adapter)
        with torch.no_grad():
            logits = model.eval()(ids).logits
    except Exception:  # whatever it stops at
        return None, False
    # A reward model's adapter brings the head that its base lacks.
    fits = adapter is not None or not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return logits.contiguous(), fits


def save_adapter(rng, auto, base, folder, **labels):
    from peft import LoraConfig, get_peft_model
    model = auto.from_pretrained(base, dtype=torch.float32, **labels)
    # PEFT turns what it is told of a mixture's MLPs into tensors of all experts, which we refuse.
    is_mixture = hasattr(model.config, "num_experts_per_tok")
    names = sorted({name.split(".")[-1] for name, part in model.named_modules()
                    if isinstance(part, torch.nn.Linear) and ("self_attn" if is_mixture else "layers") in name})
    chosen = rng.sample(names, rng.randint(1, len(names)))
    options = dict(r=rng.choice([1, 2, 5]), lora_alpha=rng.choice([1, 4, 7]), use_rslora=rng.random() < 0.5, init_lora_weights=False)
    options["target_modules"] = "all-linear" if rng.random() < 0.3 and not is_mixture else chosen
    if rng.random() < 0.5:
        options["rank_pattern"] = {rng.choice([chosen[0], r"layers\.0\..*" + chosen[0], r"^model\.layers\.0.*"]): 3}
    if rng.random() < 0.5:
        options["alpha_pattern"] = {rng.choice([chosen[-1], ".*" + chosen[-1]]): 9}
    if rng.random() < 0.3 and options["target_modules"] != "all-linear":
        options["layers_to_transform"] = [0]
    options["bias"] = rng.choice(["none", "none", "lora_only", "all"])
    if labels:  # PEFT adds the head to modules_to_save, and TRL names it too
        options.update(task_type="SEQ_CLS", modules_to_save=rng.choice([None, ["score"]]))
    elif not model.config.tie_word_embeddings and rng.random() < 0.2:
        options["modules_to_save"] = ["lm_head"]
    model = get_peft_model(model, LoraConfig(**options))
    torch.manual_seed(rng.randrange(1 << 30))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn(weight.shape) * 0.2)
    model.save_pretrained(folder)


def write_folder(rng, out, name, reward):
    """A folder and its numbers; the row of cases.jsonl, or nothing if transformers does not load it.

    reward: a LoRA reward model as TRL trains it, a language model under an adapter with a score head.
    """
    auto = AutoModelForSequenceClassification if not reward and rng.random() < 0.15 else AutoModelForCausalLM
    config = random_config(rng)
    if auto is AutoModelForSequenceClassification:
        config.num_labels = rng.choice([1, 3])
    model = auto.from_config(config)
    randomize(model, rng.randrange(1 << 30))
    folder = out / name
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    model.to(dtype).save_pretrained(folder, max_shard_size=rng.choice(["1GB", "8KB"]))
    written = json.loads((folder / "config.json").read_text())
    if rng.random() < 0.5:
        to_classic(rng, written)
    with_adapter = auto is AutoModelForCausalLM and (reward or rng.random() < 0.2) and importlib.util.find_spec("peft") is not None
    changed = change(rng, written) if not with_adapter and rng.random() < 0.6 else None
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    ids = torch.tensor([[rng.randrange(1, config.vocab_size) for _ in range(rng.choice([7, 12, 20]))]] * 2)
    ids[1] = ids[1].flip(0)
    adapter, labels = None, {}
    if with_adapter:
        adapter = out / (name + "_adapter")
        if reward:
            auto, labels = AutoModelForSequenceClassification, {"num_labels": rng.choice([1, 1, 3])}
        save_adapter(rng, auto, folder, adapter, **labels)
    logits, fits = numbers(folder, auto, ids, adapter, **labels)
    if logits is None:
        return None
    kind = "scores" if auto is AutoModelForSequenceClassification else "logits"
    save_file({"in.input_ids": ids, "in.attention_mask": torch.ones_like(ids), kind: logits}, out / (name + ".safetensors"))
    expect = "refused" if not fits else "equal" if changed is None else "named"
    return {"name": name, "folder": name + ("_adapter" if adapter else ""), "changed": changed, "expect": expect}


def write(out, count, seed):
    logging.set_verbosity_error()
    rng = random.Random(seed)
    out = Path(out)
    out.mkdir(parents=True)
    with open(out / "cases.jsonl", "w") as rows:
        made = 0
        for i in range(3 * count):
            if made == count:
                break
            case = write_folder(rng, out, f"case_{i}", reward=i % 10 == 0)
            if case:
                rows.write(json.dumps(case) + "\n")
                made += 1
