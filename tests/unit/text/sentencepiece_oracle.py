"""Trains small models with the sentencepiece library and writes what it does with random texts, for sentencepiece_test.cpp.

    python sentencepiece_oracle.py OUT COUNT SEED FOLDER...

The words come from the FOLDERs (cases.jsonl). Writes OUT/NAME/tokenizer.model and OUT/NAME/rows.jsonl with COUNT rows
{"text", "ids", "decoded"}; decoded is null if the text has an unknown piece, which the library shows in a special way.
No text has the name of a control piece, because the library does not look for those.
"""
import json
import os
import random
import sys

import sentencepiece

RULES = [("ab", "X"), ("abc", "YZ"), ("\u00e9", "e"), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\ufb01", "fi"), ("\u200b", ""),
         ("\u00a0", " "), ("\u00df", "ss"), ("\u2026", " . . "), ("\uff01", "!")]
GLUE = [" ", "  ", "   ", "\n", "\t", "\u3000", "\u200b", "\u00a0", "\u2581", "ab", "abc", "abcd", "\u00e9", "\u00df", "\u2026", "<0x41>", "[U]",
        "[UV]", "U]", "\U0001f99c", "\u1112\u1161\u11ab", "zq", "\u0bb5", "123", "'s", "\uff21", "\u2460", "\ufb01", "e\u0301"]
MODELS = {
    "llama_bpe": dict(model_type="bpe", vocab_size=2600, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, split_digits=True, character_coverage=0.99),
    "gemma_bpe": dict(model_type="bpe", vocab_size=2600, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                      user_defined_symbols=["\u2581\u2581", "\u2581\u2581\u2581", "\n\n", "[U]", "[UV]"], character_coverage=0.99),
    "rules_bpe": dict(model_type="bpe", vocab_size=2200, rules=True, character_coverage=0.98),
    "rules_unigram": dict(model_type="unigram", vocab_size=2200, rules=True, character_coverage=0.98,
                          user_defined_symbols=["[U]", "[UV]"], control_symbols=["<c>"]),
    "nmt_unigram": dict(model_type="unigram", vocab_size=2200, normalization_rule_name="nmt_nfkc", character_coverage=0.98),
    "unigram_bytes": dict(model_type="unigram", vocab_size=2600, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, character_coverage=0.99),
}


def text(rng, corpus):
    def part():
        kind = rng.random()
        if kind < 0.4:
            source = rng.choice(corpus)
            start = rng.randrange(len(source))
            return source[start:start + rng.randint(0, 30)]
        if kind < 0.8:
            return rng.choice(GLUE)
        return "".join(rng.choice(rng.choice(corpus)) for _ in range(rng.randint(1, 5)))
    made = "".join(part() for _ in range(rng.randint(0, 8)))
    for control in ("<s>", "</s>", "<unk>", "<pad>", "<c>"):
        made = made.replace(control, "")
    return made


def train(folder, options, corpus):
    prefix = os.path.join(folder, "tokenizer")
    options = dict(options)
    if options.pop("rules", False):
        with open(prefix + ".tsv", "w") as table:
            for key, value in RULES:
                table.write(" ".join("%X" % ord(c) for c in key) + "\t" + " ".join("%X" % ord(c) for c in value) + "\n")
        options["normalization_rule_tsv"] = prefix + ".tsv"
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_prefix=prefix, num_threads=1, hard_vocab_limit=False,
                                             minloglevel=2, **options)
    for ending in (".vocab", ".tsv"):
        if os.path.exists(prefix + ending):
            os.remove(prefix + ending)
    return sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")


def main():
    out, count, seed, folders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    rng = random.Random(seed)
    corpus = []
    for folder in folders:
        with open(os.path.join(folder, "cases.jsonl")) as lines:
            corpus += [json.loads(line)["text"] for line in lines]
    corpus = [text.replace("\0", " ") for text in corpus if text.strip()]
    for name, options in MODELS.items():
        folder = os.path.join(out, name)
        os.makedirs(folder)
        processor = train(folder, options, corpus)
        with open(os.path.join(folder, "rows.jsonl"), "w") as rows:
            fixed = ["", " ", "   ", "a", " a", "a ", "  a  b  ", "\u2581", "\u2581\u2581a"]
            for sample in fixed + [text(rng, corpus) for _ in range(count)]:
                ids = processor.encode(sample)
                decoded = None if processor.unk_id() in ids else processor.decode(ids)
                rows.write(json.dumps({"text": sample, "ids": ids, "decoded": decoded}) + "\n")


main()
