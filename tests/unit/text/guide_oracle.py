"""Random patterns with texts, and whether Python's re says that the whole text matches, for guide_test.cpp.

    python guide_oracle.py OUT COUNT SEED

OUT: a JSON line for each pattern: {"pattern", "texts", "matches"}. About half of the texts match.
"""
import json
import random
import re
import signal
import sys

LETTERS = "abAB01_ -.\n\"{}é€😀\xa0"
WORD = "abcXYZ019_"
SPACE = " \t\n\v\f\r\xa0"


def quoted(c):
    return "\\" + c if c in "\\^$.|?*+()[]{}-" else c


class Tree:
    """A pattern as we write it, as Python writes it, and how to draw a text that matches."""

    def __init__(self, own, peer, draw):
        self.own, self.peer, self.draw = own, peer, draw


def literal(rng):
    c = rng.choice(LETTERS)
    ways = [quoted(c), "\\u%04x" % ord(c) if ord(c) < 65536 else "\\U%08x" % ord(c)]
    own = rng.choice(ways + ["\\u{%x}" % ord(c)])
    return Tree(own, re.escape(c), lambda: c)


def named(rng):
    kind = rng.choice("dwsDWS.")
    peers = {"d": "[0-9]", "w": "[0-9A-Za-z_]", "s": "[ \t\n\v\f\r\xa0]", "D": "[^0-9]", "W": "[^0-9A-Za-z_]",
             "S": "[^ \t\n\v\f\r\xa0]", ".": "(?s:.)"}
    samples = {"d": "0189", "w": WORD, "s": SPACE, "D": "aé \n", "W": " é-😀", "S": "a0é€", ".": "a\n€😀0"}
    return Tree("." if kind == "." else "\\" + kind, peers[kind], lambda: rng.choice(samples[kind]))


def char_class(rng):
    own, members = "", []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.4:
            first = rng.choice([0x30, 0x41, 0x61, 0x7A, 0xE0, 0x7FF, 0x20AC, 0xFFF0, 0x1F600])
            last = first + rng.choice([0, 1, 9, 25, 100, 2000])
            own += quoted(chr(first)) + "-" + quoted(chr(last))
            members.append((first, last))
        else:
            c = rng.choice(LETTERS)
            own += quoted(c)
            members.append((ord(c), ord(c)))
    negated = rng.random() < 0.3
    peer = "[" + ("^" if negated else "") + "".join("%s-%s" % (re.escape(chr(a)), re.escape(chr(b))) for a, b in members) + "]"
    if negated:
        pool = [chr(c) for c in (0x21, 0x39, 0x62, 0xFF, 0x3000, 0x1F700, 0x10FFFF)]
        pool = [c for c in pool if re.fullmatch(peer, c)]
        draw = lambda: rng.choice(pool)
    else:
        draw = lambda: chr(rng.randint(*rng.choice(members)))
    return Tree("[" + ("^" if negated else "") + own + "]", peer, draw)


def tree(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice([literal, named, char_class])(rng)
    if kind < 0.6:
        parts = [tree(rng, depth - 1) for _ in range(rng.randint(1, 4))]
        return Tree("".join(grouped(rng, p).own for p in parts), "".join("(?:%s)" % p.peer for p in parts),
                    lambda: "".join(p.draw() for p in parts))
    if kind < 0.75:
        parts = [tree(rng, depth - 1) for _ in range(rng.randint(2, 3))]
        own, peer = "|".join(p.own for p in parts), "|".join("(?:%s)" % p.peer for p in parts)
        if rng.random() < 0.2:
            own, peer = own + "|", peer + "|"
            parts = parts + [Tree("", "", lambda: "")]
        return Tree("(%s)" % own, "(?:%s)" % peer, lambda: rng.choice(parts).draw())
    child = grouped(rng, tree(rng, depth - 1))
    least, most = rng.randint(0, 3), rng.randint(3, 5)
    own, peer, low, high = rng.choice([("*", "*", 0, 4), ("+", "+", 1, 4), ("?", "?", 0, 1),
                                       ("{%d}" % least, "{%d}" % least, least, least),
                                       ("{%d,}" % least, "{%d,}" % least, least, least + 3),
                                       ("{%d,%d}" % (least, most), "{%d,%d}" % (least, most), least, most)])
    lazy = "?" if rng.random() < 0.2 else ""
    return Tree(child.own + own + lazy, "(?:%s)%s" % (child.peer, peer),
                lambda: "".join(child.draw() for _ in range(rng.randint(low, high))))


def grouped(rng, part):
    return Tree(rng.choice(["(%s)", "(?:%s)", "(?<n_1>%s)", "(?P<m>%s)"]) % part.own, part.peer, part.draw)


def changed(rng, text):
    at = rng.randint(0, len(text))
    way = rng.random()
    if way < 0.4:
        return text[:at] + rng.choice(LETTERS) + text[at:]
    return text[:at] + (rng.choice(LETTERS) if way < 0.7 else "") + text[at + 1:]


class TooSlow(Exception):
    pass


def give_up(signal_number, frame):
    raise TooSlow


def matches(peer, text):
    """None where re would go through too many ways."""
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        return peer.fullmatch(text) is not None
    except TooSlow:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main():
    signal.signal(signal.SIGALRM, give_up)
    out, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    with open(out, "w", encoding="utf-8") as file:
        for _ in range(count):
            one = tree(rng, 3)
            peer = re.compile(one.peer)
            texts = [one.draw()[:24] for _ in range(5)]
            texts += [changed(rng, t) for t in texts]
            verdicts = [matches(peer, t) for t in texts]
            texts = [t for t, v in zip(texts, verdicts) if v is not None]
            own = one.own
            if rng.random() < 0.2:
                own = "^" + own + "$"
            row = {"pattern": own, "texts": texts, "matches": [v for v in verdicts if v is not None]}
            file.write(json.dumps(row) + "\n")


main()
