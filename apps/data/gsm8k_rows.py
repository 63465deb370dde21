#!/usr/bin/env python3
"""gsm8k_rows.py FILE > ROWS.jsonl: GSM8K as published, to rows for Mortise. Uses no network.

FILE is a JSONL file ({"question", "answer"} per line), or a Parquet file with these columns, which needs pyarrow. A row
becomes {"messages": [...], "answer": "72", "data_source": "openai/gsm8k"}.
"""
import json
import sys

TASK = "Let's think step by step and output the final answer after \"####\"."


def read(path):
    if path.endswith(".parquet"):
        try:
            import pyarrow.parquet
        except ImportError:
            sys.exit("gsm8k_rows.py: reading Parquet needs pyarrow: install it, or give the JSONL file")
        yield from pyarrow.parquet.read_table(path).to_pylist()
    else:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield json.loads(line)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for number, row in enumerate(read(sys.argv[1]), 1):
        if "question" not in row or "####" not in row.get("answer", ""):
            sys.exit(f"{sys.argv[1]}: row {number} is no row of GSM8K: it needs 'question', and '####' in 'answer'")
        answer = row["answer"].split("####")[-1].strip().replace(",", "")
        messages = [{"role": "user", "content": row["question"] + " " + TASK}]
        print(json.dumps({"messages": messages, "answer": answer, "data_source": "openai/gsm8k"}, ensure_ascii=False))


if __name__ == "__main__":
    main()
