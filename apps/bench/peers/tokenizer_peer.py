"""Encoding 10 MB of text: bench_tokenizer and the tokenizers wheel, one thread each, one after the other in each round.

    python tokenizer_peer.py --program bench_tokenizer --out DIR [--rounds N] [--text FILE] [FOLDER...]

The text is FILE, or the sources of Python's standard library. FOLDERs are model folders. The script also trains a
byte-level BPE of 32,000 tokens on the text with Qwen2's pattern, and a Unigram of 8,000 on a tenth of it. Prints a JSON
object per tokenizer: the best rate of each side by processor time, and their ratio. The ids must be equal.
"""
import argparse
import glob
import json
import os
import subprocess
import sysconfig
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

BYTES = 10_000_000
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def read_text(path):
    if path:
        with open(path, encoding="utf-8") as file:
            return file.read()[:BYTES]
    parts, size = [], 0
    for name in sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**", "*.py"), recursive=True)):
        with open(name, encoding="utf-8", errors="ignore") as file:
            parts.append(file.read())
        size += len(parts[-1].encode())
        if size >= BYTES:
            break
    return "".join(parts)


def write_docs(text, path):
    """Documents of about 4,000 characters, cut at line ends."""
    docs, doc = [], ""
    for line in text.splitlines(keepends=True):
        doc += line
        if len(doc) >= 4000:
            docs.append(doc)
            doc = ""
    if doc:
        docs.append(doc)
    with open(path, "w") as out:
        for doc in docs:
            out.write(json.dumps({"text": doc}) + "\n")
    return docs


def train_bpe(docs, folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=32000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(docs, trainer)
    save(tokenizer, folder)


def train_unigram(docs, folder):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=8000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(docs[::10], trainer)
    save(tokenizer, folder)


def save(tokenizer, folder):
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text")
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    docs = write_docs(read_text(args.text), os.path.join(args.out, "docs.jsonl"))
    made = [(os.path.join(args.out, "bpe_32000"), train_bpe), (os.path.join(args.out, "unigram_8000"), train_unigram)]
    for folder, train in made:
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            train(docs, folder)
    megabytes = sum(len(doc.encode()) for doc in docs) / 1e6
    for folder in [folder for folder, _ in made] + args.folders:
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        ours, theirs, wheel_ids = [], [], 0
        for _ in range(args.rounds):
            output = subprocess.run([args.program, folder, os.path.join(args.out, "docs.jsonl"), "--repeats", "2"],
                                    check=True, capture_output=True, text=True).stdout.splitlines()
            ours += [json.loads(line) for line in output]
            start = time.process_time()
            wheel_ids = sum(len(tokenizer.encode(doc, add_special_tokens=False).ids) for doc in docs)
            theirs.append(megabytes / (time.process_time() - start))
        assert all(row["ids"] == wheel_ids for row in ours), (folder, ours[0]["ids"], wheel_ids)
        rate = round(megabytes / min(row["cpu_seconds"] for row in ours), 2)
        print(json.dumps({"tokenizer": os.path.basename(folder), "mb": round(megabytes, 1), "mb_per_s": rate,
                          "wheel_mb_per_s": round(max(theirs), 2), "ratio": round(rate / max(theirs), 2)}), flush=True)


main()
