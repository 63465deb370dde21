"""Random conversations with the result of transformers' return_assistant_tokens_mask, for assistant_mask_test.cpp.

    python assistant_mask_oracle.py OUT COUNT SEED FOLDER...

Writes OUT with COUNT rows for each model folder (tokenizer.json): {"folder", "template", "messages", "text", "ids", "mask"}.
Turns neither begin nor end with white space: if a tokenizer trims its offsets, transformers loses such a turn and all later
ones.
"""
import json
import os
import random
import sys

from transformers import PreTrainedTokenizerFast

TEMPLATES = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}",
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]{% else %} {% generation %}"
    "{{ m.content }}</s>{% endgeneration %}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}.{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %} | {% endfor %}",
]
PARTS = ["hello", "Hello there", "what is 12+34?", "caf\u00e9", "cafe\u0301", "A\u030angstro\u0308m", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "\ud55c\uad6d\uc5b4",
         "\u4f60\u597d\uff0c\u4e16\u754c", "\U0001f99c\U0001f99c", "\ufb01ne \u00bd", "a  b   c", "line\nnext\n\nlast", "\ttab", "'s don't", "x=1;", "<think>ok</think>",
         "ti\u1ec3ng Vi\u1ec7t", "tie\u0302\u0309ng Vie\u0323\u0302t", "\u0645\u0631\u062d\u0628\u0627", "I [INST] you", "100%", "\u00df\u0130", "!!", "\u2581x", "1\u00a02"]


def content(rng):
    text = rng.choice(["", " "]).join(rng.choice(PARTS) for _ in range(rng.randint(1, 6)))
    return text.strip() or "x"


def main():
    out, count, seed, folders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    rng = random.Random(seed)
    with open(out, "w") as rows:
        for folder in folders:
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
            for _ in range(count):
                template = rng.choice(TEMPLATES)
                messages = []
                for _ in range(rng.randint(1, 3)):
                    messages += [{"role": "user", "content": content(rng)}, {"role": "assistant", "content": content(rng)}]
                made = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=True,
                                                     return_assistant_tokens_mask=True)
                text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
                rows.write(json.dumps({"folder": folder, "template": template, "messages": messages, "text": text,
                                       "ids": made["input_ids"], "mask": made["assistant_masks"]}) + "\n")


main()
