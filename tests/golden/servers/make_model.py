# Makes model/, other/ and adapter/: a tiny Qwen3 (heads of size 32, which vLLM's CPU kernels need), a second set of
# weights for it, and a LoRA adapter. Run by hand with transformers and peft:
#   python3 make_model.py
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

here = Path(__file__).parent
tokens = ["<|pad|>", "<|end|>", *"0123456789+="]
tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
tokenizer.decoder = decoders.Fuse()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")


def model_of(seed):
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=64, initializer_range=0.4, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, dtype=torch.float32))


model_of(1).save_pretrained(here / "model")
fast.save_pretrained(here / "model")
(here / "model" / "generation_config.json").unlink()
model_of(14).save_pretrained(here / "other")
for path in (here / "other").iterdir():
    if path.name != "model.safetensors":
        path.unlink()
adapted = get_peft_model(model_of(1), LoraConfig(r=2, lora_alpha=2, target_modules=["q_proj", "v_proj", "down_proj"]))
torch.manual_seed(3)
for name, parameter in adapted.named_parameters():
    if "lora_" in name:
        torch.nn.init.normal_(parameter, std=0.6)
adapted.save_pretrained(here / "adapter")
(here / "adapter" / "README.md").unlink(missing_ok=True)
