# verl_rows.py FOLDER: additions in the layout of verl's gsm8k preprocessing (verl.parquet), in TRL's conversational form
# (saved/, by save_to_disk), and the same rows as JSONL (verl.jsonl, trl.jsonl).
import json
import pathlib
import sys

import datasets

folder = pathlib.Path(sys.argv[1])
verl, trl = [], []
for i in range(64):
    a, b = i % 8, i // 8
    prompt = [{"role": "user", "content": f"{a}+{b}="}]
    verl.append({"data_source": "openai/gsm8k", "prompt": prompt, "ability": "math",
                 "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                 "extra_info": {"split": "train", "index": i, "answer": f"#### {a + b}", "question": f"{a}+{b}="}})
    trl.append({"prompt": prompt, "solution": str(a + b)})
for name, rows in {"verl": verl, "trl": trl}.items():
    with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
datasets.Dataset.from_list(verl).to_parquet(folder / "verl.parquet")
datasets.Dataset.from_list(trl).save_to_disk(folder / "saved", num_shards=2)
