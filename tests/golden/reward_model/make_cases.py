"""Makes model/ and cases.jsonl: a random tiny reward model and its scores by transformers.

usage: make_cases.py TOKENIZER_FOLDER OUT_FOLDER
The texts are scored as TRL's GRPOTrainer does with a model among its reward_funcs: the chat with the completion as its
answer through the chat template, or prompt + completion; no special tokens added; config.pad_token_id taken from the
tokenizer; rows padded on the right; logits[:, 0]. Computed in float64; rows alone and padded together must agree.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

TEMPLATE = (
    "{%- if tools %}tools: {{ tools | tojson }}\n{% endif -%}"
    "{%- for message in messages -%}"
    "[{{ message.role }}] {{ message.content | trim }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}[assistant] {% endif -%}"
)
SUM = [{"role": "user", "content": "12+34="}]
LONG = [
    {"role": "system", "content": "You add numbers."},
    {"role": "user", "content": "1+1="},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "  What is 7 + 30, in words?  "},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CASES = [
    {"messages": SUM, "completion": "46"},
    {"messages": SUM, "completion": "47"},
    {"messages": SUM, "completion": ""},
    {"messages": LONG, "completion": "thirty-seven"},
    {"messages": LONG, "completion": "siebenunddreißig, 三十七"},
    {"messages": SUM, "tools": TOOLS, "completion": "call add"},
    {"prompt": "12+34=", "completion": "46"},
    {"prompt": "12+34=", "completion": " 46<|endoftext|>"},  # padding at the end of the text is passed over
    {"prompt": "x<|endoftext|>", "completion": "y<|endoftext|><|endoftext|>"},
    {"prompt": "", "completion": "only this"},
    {"prompt": "<|endoftext|>", "completion": ""},  # nothing but padding: the first token
    {"prompt": "[user] 12+34=<|im_end|>\n[assistant] ", "messages": SUM, "completion": "46", "plain_text": True},
    {"messages": LONG, "completion": "thirty-seven", "max_length": 21, "truncation": "left"},
    {"messages": LONG, "completion": "thirty-seven", "max_length": 21, "truncation": "right"},
    {"messages": LONG, "completion": "thirty-seven", "max_length": 21, "truncation": "middle"},
]


def make_model(tokenizer_folder: str, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(7)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.3, num_labels=1,
        pad_token_id=3,  # not the tokenizer's: the trainer sets that one
        tie_word_embeddings=False)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def text_of(tokenizer, case) -> str:
    if "messages" not in case or case.get("plain_text"):
        return case["prompt"] + case["completion"]
    chat = case["messages"] + [{"role": "assistant", "content": case["completion"]}]
    return tokenizer.apply_chat_template(chat, tools=case.get("tools"), tokenize=False)


def cut(ids, case):
    limit = case.get("max_length", len(ids))
    if len(ids) <= limit:
        return ids
    if case["truncation"] == "left":
        return ids[-limit:]
    if case["truncation"] == "right":
        return ids[:limit]
    return ids[: limit // 2] + ids[len(ids) - (limit - limit // 2):]


def main() -> None:
    out = Path(sys.argv[2])
    make_model(sys.argv[1], out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    model = AutoModelForSequenceClassification.from_pretrained(out / "model", num_labels=1, dtype=torch.float64).eval()
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    rows = [cut(tokenizer(text_of(tokenizer, case), add_special_tokens=False)["input_ids"], case) for case in CASES]
    width = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.inference_mode():
        together = model(input_ids=ids, attention_mask=mask).logits[:, 0]
        alone = torch.cat([model(input_ids=torch.tensor([row])).logits[:, 0] for row in rows])
    assert torch.allclose(together, alone, atol=1e-9), (together - alone).abs().max()
    with open(out / "cases.jsonl", "w") as file:
        for case, row, score in zip(CASES, rows, alone.tolist()):
            file.write(json.dumps({**case, "num_tokens": len(row), "score": score}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
