"""Random texts in many scripts, tokenized by the tokenizers wheel, for tokenizer_oracle_test.cpp.

    python tokenizer_oracle.py OUT COUNT SEED FOLDER...

For each model folder (tokenizer.json, or vocab.json and merges.txt) and for four tokenizers made here (three Unigram ones), writes
OUT/NAME/ (a copy of the folder's files) and OUT/NAME/rows.jsonl with a share of COUNT rows:
{"text", "special", "ids", "decoded", "skip", "any_ids", "any_decoded"}; the last two are random ids and their text.
OUT.classes.jsonl: {"pattern", "runs"}, all characters that match each of some regular expressions, as [first, last].
"""
import collections
import itertools
import json
import math
import os
import random
import shutil
import struct
import sys
import unicodedata

from tokenizers import AddedToken, PreTokenizedString, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

# The last line's blocks hold characters that came after Unicode 9, which the wheel's normalization tables are of.
BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x587),
          (0x591, 0x5F4), (0x600, 0x6FF), (0x904, 0x939), (0x93C, 0x94D), (0x985, 0x9B9), (0xA05, 0xA39), (0xB85, 0xBB9),
          (0xC05, 0xC39), (0xD05, 0xD39), (0xE01, 0xE5B), (0xE81, 0xEB9), (0xF40, 0xF6C), (0x1000, 0x109F),
          (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x1248), (0x13A0, 0x13F5), (0x1780, 0x17D3), (0x1820, 0x1877),
          (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20BE), (0x2100, 0x218B), (0x2190, 0x23FE),
          (0x2460, 0x24FF), (0x2500, 0x27BF), (0x3000, 0x303F), (0x3041, 0x3096), (0x30A1, 0x30FF), (0x3105, 0x312D),
          (0x3131, 0x318E), (0x3200, 0x32FE), (0x3300, 0x33FF), (0x4E00, 0x9FD5), (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0xF900, 0xFAD9),
          (0xFB00, 0xFB06), (0xFB1D, 0xFB4F), (0xFE00, 0xFE0F), (0xFE30, 0xFE6B), (0xFF01, 0xFFEE), (0x10330, 0x1034A),
          (0x1D400, 0x1D4FF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5), (0x20000, 0x2A6D6),
          (0xE000, 0xE010), (0xE0020, 0xE007F), (0xF0000, 0xF0010),
          (0x7F0, 0x7FD), (0x8A0, 0x8FF), (0x1ABE, 0x1ACE), (0x1DF0, 0x1DFF), (0x32FE, 0x32FF), (0xA7F2, 0xA7FF), (0x10780, 0x107BA),
          (0x11930, 0x11946), (0x1E030, 0x1E06D), (0x1E2C0, 0x1E2EF), (0x1FBF0, 0x1FBF9), (0x31350, 0x31360)]
GLUE = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\x85", "\u2028", "\ufeff", "\u200b",
        "\u200d", "\u180e", "\x1c", "\x00", "\x7f", "'s", "'LL", "\u2019t", "'", "_", "-", "--", "...", "!?", "://", "<|", "|>",
        "▁", "Ġ", "<0x0A>", "1", "12", "123", "1234567", "٣", "½", "²", "Ⅷ", "é", "e\u0301", "Å", "ﬁ", "ß", "İ", "Σ", "🇩🇪",
        "👩‍👩‍👧", "🏽", "각", "\u1100\u1161\u11a8", "{}", "[]", "();", "\\n", "\"", "#", "0x1F", "a.b", "A", "the", "The", "THE"]


def make_texts(rng, corpus, specials, count):
    def chars(n):
        low, high = rng.choice(BLOCKS)
        return "".join(chr(rng.randint(low, high)) for _ in range(n))

    def part():
        kind = rng.random()
        if kind < 0.30:
            text = rng.choice(corpus)
            start = rng.randrange(len(text) + 1)
            return text[start:start + rng.randint(0, 40)]
        if kind < 0.50:
            return chars(rng.randint(1, 8))
        if kind < 0.75:
            return rng.choice(GLUE)
        if kind < 0.83 and specials:
            return rng.choice(specials)
        if kind < 0.93:
            word = rng.choice(rng.choice(corpus).split() or ["x"])
            return rng.choice([word, word.upper(), word.title(), word.lower(), word * 2])
        return "".join(chr(rng.choice([rng.randint(0x20, 0x7E), rng.randint(0x20, 0x24F)])) for _ in range(rng.randint(1, 6)))

    return ["".join(part() for _ in range(rng.randint(0, 12))) for _ in range(count)]


def make_unigram(corpus):
    """The most frequent runs of characters, scored by how often they come; equal scores are meant to come up."""
    counts = collections.Counter()
    for text in corpus:
        for word in text.split():
            word = "▁" + word
            counts.update(word[i:j] for i in range(len(word)) for j in range(i + 1, min(i + 9, len(word)) + 1))
    total = sum(counts.values())
    vocab = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocab += [(piece, math.log(count * len(piece) / total)) for piece, count in counts.most_common(2000)]
    tokenizer = Tokenizer(models.Unigram(vocab, 0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.add_special_tokens([AddedToken("<sep>", lstrip=True, rstrip=True)])
    return tokenizer


def double_array(table):
    """{key: value} as Darts-clone lays it out: a node's children lie at (its place ^ its offset ^ label)."""
    trie = {}
    for key, value in table.items():
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = value  # label 0: the value
    units, bases = {0: 0}, set()
    queue = [(0, trie)]
    for place, node in queue:
        # The search begins near the number of units: what lies below is nearly full.
        start = max(1, len(units) * 3 // 4)
        base = next(b for b in itertools.count(start) if b not in bases and not any(b ^ label in units for label in node))
        bases.add(base)
        units[place] |= (place ^ base) << 10 | (256 if 0 in node and place else 0)
        for label, child in node.items():
            units[base ^ label] = label
            if label == 0:
                units[base] = child | 1 << 31
            else:
                queue.append((base ^ label, child))
    return [units.get(i, 1 << 31) for i in range(max(units) + 1)]


def make_charsmap():
    table, replacements = {}, b""
    pairs = {"e\u0301": "é", "A\u030a": "Å", "\r\n": " ", "\t": " ", "\n": " ", "\u200b": "", "ab": "X", "\u0301": "'"}
    for low, high in BLOCKS:
        for code in range(low, min(high, low + 300) + 1):
            text = unicodedata.normalize("NFKC", chr(code))
            if text != chr(code) and "\0" not in text:
                pairs[chr(code)] = text
    for key, text in pairs.items():
        table[key.encode()] = len(replacements)
        replacements += text.encode() + b"\0"
    units = double_array(table)
    return struct.pack("<I", 4 * len(units)) + struct.pack("<%dI" % len(units), *units) + replacements


def with_precompiled(tokenizer):
    out = Tokenizer.from_str(tokenizer.to_str())
    out.normalizer = normalizers.Sequence([normalizers.Precompiled(make_charsmap()),
                                           normalizers.Replace(Regex(" {2,}"), " ")])
    return out


def with_byte_fallback(tokenizer):
    spec = json.loads(tokenizer.to_str())
    spec["model"]["vocab"] += [["<0x%02X>" % byte, -20.0] for byte in range(256)]
    spec["model"]["byte_fallback"] = True
    spec["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                        {"type": "ByteFallback"}, {"type": "Fuse"}]}
    spec["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(spec))


def make_scripts(corpus):
    """Byte-level BPE without merges behind a splitter that asks for scripts, as Kimi's does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    pattern = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|"
               r"[\p{Hiragana}\p{Katakana}]+|\P{Latin}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    # The space in front of each piece shows the cuts in the ids.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


CLASSES = [r"\p{Emoji}", r"\p{Extended_Pictographic}", r"\p{Alphabetic}", r"\p{lower case}", r"\p{Uppercase}", r"\P{EPres}",
           r"[\p{XID_Continue}&&\P{Emoji}]", r"[^\P{ID_Start}a]", r"\p{Ideographic}", r"\p{Case_Ignorable}", r"\p{Punct}", r"\p{Alnum}",
           r"\p{Latin}", r"[\p{L}\p{M}]", r"\w", r"[[:alpha:]]", r"[[:alnum:]]", r"[[:punct:]]", r"[[:space:]]", r"[[:upper:]]", r"[[:lower:]]",
           r"[[:digit:]]", r"[[:graph:]]", r"[[:print:]]", r"[[:blank:]]", r"[[:cntrl:]]", r"[[:word:]]", r"[[:xdigit:]]", r"[[:^alpha:]]",
           r"[a[:^punct:]]"]


def write_classes(path):
    blocks = [(0x1, 0xD800), (0xE000, 0xE200), (0xF900, 0x32400), (0xE0000, 0xE0200)]  # there is nothing but private use between
    codes = [code for first, end in blocks for code in range(first, end)]
    text = "".join(map(chr, codes))
    # Offsets in bytes: for those in characters, the wheel makes a table of the whole text each time.
    starts = list(itertools.accumulate((len(chr(code).encode()) for code in codes), initial=0))
    place = {start: i for i, start in enumerate(starts)}
    with open(path, "w") as out:
        for pattern in CLASSES:
            pieces = PreTokenizedString(text)
            pre_tokenizers.Split(Regex("(?:" + pattern + ")+"), "removed", invert=True).pre_tokenize(pieces)
            runs = [(codes[place[begin]], codes[place[end] - 1]) for _, (begin, end), _ in pieces.get_splits("original", "byte")]
            out.write(json.dumps({"pattern": pattern, "runs": runs}) + "\n")


def wheel_of(folder):
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        return Tokenizer.from_file(path)
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(folder).backend_tokenizer


def write_rows(tokenizer, folder, rng, corpus, count):
    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    with open(os.path.join(folder, "rows.jsonl"), "w") as out:
        while count > 0:
            texts = make_texts(rng, corpus, specials, min(count, 5000))
            count -= len(texts)
            for special in (False, True):
                half = texts[special::2]
                encoded = [e.ids for e in tokenizer.encode_batch(half, add_special_tokens=special)]
                decoded = tokenizer.decode_batch(encoded, skip_special_tokens=False)
                skip = tokenizer.decode_batch(encoded, skip_special_tokens=True)
                any_ids = [[rng.randrange(vocab_size) for _ in range(rng.randint(0, 9))] for _ in half]
                any_decoded = tokenizer.decode_batch(any_ids, skip_special_tokens=False)
                for row in zip(half, encoded, decoded, skip, any_ids, any_decoded):
                    keys = ("text", "ids", "decoded", "skip", "any_ids", "any_decoded")
                    out.write(json.dumps(dict(zip(keys, row), special=special)) + "\n")


def main():
    out, count, seed, folders = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    rng = random.Random(seed)
    corpus = []
    for folder in folders:
        with open(os.path.join(folder, "cases.jsonl")) as lines:
            corpus += [json.loads(line)["text"] for line in lines]
    corpus = [text for text in corpus if text]
    write_classes(out + ".classes.jsonl")
    share = -(-count // (len(folders) + 4))
    for folder in folders:
        target = os.path.join(out, os.path.basename(folder))
        shutil.copytree(folder, target)
        write_rows(wheel_of(folder), target, rng, corpus, share)
    unigram = make_unigram(corpus)
    for name, tokenizer in (("unigram", unigram), ("unigram_bytes", with_byte_fallback(unigram)),
                            ("unigram_precompiled", with_precompiled(unigram)), ("scripts", make_scripts(corpus))):
        target = os.path.join(out, name)
        os.makedirs(target)
        tokenizer.save(os.path.join(target, "tokenizer.json"))
        write_rows(tokenizer, target, rng, corpus, share)


main()
