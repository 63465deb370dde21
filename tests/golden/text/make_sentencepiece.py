"""Writes sentencepiece/NAME/: small models trained by the sentencepiece library, and what it does with texts.

    python make_sentencepiece.py SEED      (sentencepiece 0.2)

NAME/tokenizer.model and NAME/cases.jsonl: {"text", "ids", "decoded"}; decoded is null where an unknown piece is in it, which the
library shows in a way of its own. No text holds the name of a control piece, which the library does not look for.
"""
import json
import os
import random
import sys

import sentencepiece

here = os.path.dirname(os.path.abspath(__file__))
rng = random.Random(int(sys.argv[1]))
corpus = []
for name in ("qwen2", "llama3", "metaspace_first"):
    with open(os.path.join(here, "tokenizers", name, "cases.jsonl")) as lines:
        corpus += [json.loads(line)["text"] for line in lines]
corpus = [text.replace("\0", " ") for text in corpus if text.strip()]

RULES = [("ab", "X"), ("abc", "YZ"), ("\u00e9", "e"), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\ufb01", "fi"), ("\u200b", ""),
         ("\u00a0", " "), ("\u00df", "ss"), ("\u2026", " . . "), ("\uff01", "!")]
GLUE = [" ", "  ", "   ", "\n", "\t", "\u3000", "\u200b", "\u00a0", "\u2581", "ab", "abc", "abcd", "\u00e9", "\u00df", "\u2026", "<0x41>", "[U]", "[UV]", "U]",
        "\U0001f99c", "\u1112\u1161\u11ab", "zq", "\u0bb5", "123", "'s"]
MODELS = {
    "llama_bpe": dict(model_type="bpe", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, split_digits=True, character_coverage=0.99),
    "gemma_bpe": dict(model_type="bpe", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
                      remove_extra_whitespaces=False, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                      user_defined_symbols=["\u2581\u2581", "\u2581\u2581\u2581", "\n\n", "[U]", "[UV]"], character_coverage=0.99),
    "plain_bpe": dict(model_type="bpe", vocab_size=400, rules=True, character_coverage=0.98),
    "unigram": dict(model_type="unigram", vocab_size=400, rules=True, character_coverage=0.98,
                    user_defined_symbols=["[U]", "[UV]"], control_symbols=["<c>"]),
    "unigram_bytes": dict(model_type="unigram", vocab_size=600, byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, character_coverage=0.99),
}


def text():
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


def main():
    for name, options in MODELS.items():
        folder = os.path.join(here, "sentencepiece", name)
        os.makedirs(folder, exist_ok=True)
        prefix = os.path.join(folder, "tokenizer")
        options = dict(options)
        if options.pop("rules", False):
            with open(prefix + ".tsv", "w") as table:
                for key, value in RULES:
                    table.write(" ".join("%X" % ord(c) for c in key) + "\t" + " ".join("%X" % ord(c) for c in value) + "\n")
            options["normalization_rule_tsv"] = prefix + ".tsv"
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_prefix=prefix, num_threads=1,
                                                 hard_vocab_limit=False, minloglevel=2, **options)
        for ending in (".vocab", ".tsv"):
            if os.path.exists(prefix + ending):
                os.remove(prefix + ending)
        processor = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        with open(os.path.join(folder, "cases.jsonl"), "w") as out:
            for sample in ["", " ", "   ", "a", " a", "a ", "  a  b  ", "\u2581", "\u2581\u2581a"] + [text() for _ in range(400)]:
                ids = processor.encode(sample)
                decoded = None if processor.unk_id() in ids else processor.decode(ids)
                out.write(json.dumps({"text": sample, "ids": ids, "decoded": decoded}) + "\n")


main()
