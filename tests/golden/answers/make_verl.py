# Writes verl.jsonl: answers with the results of verl's own scorers. Needs only these files of verl 0.9.1:
#   python make_verl.py FOLDER > verl.jsonl
# FOLDER has gsm8k.py, math_reward.py, math_dapo.py, search_r1_like_qa_em.py
import contextlib
import io
import json
import random
import sys

sys.path.insert(0, sys.argv[1])
import gsm8k
import math_dapo
import math_reward
import search_r1_like_qa_em as search_r1

random.seed(7)
TRUTHS = ["42", "-7", "1,234", "0.5", "\\frac{1}{2}", "\\frac{3}{4}", "2\\sqrt{3}", "(1, -2)", "x=5", "12\\text{ cm}",
          "30^\\circ", "25\\%", "\\$18.90", "A", "\\text{yes}", "3/4", "10 minutes", "é", "1000000"]
ANSWERS = TRUTHS + ["42.", " 42 ", "42.0", "1234", ".5", "\\frac12", "\\dfrac{1}{2}", "\\tfrac12", "1/2", "2 \\sqrt3", "\\sqrt",
                    "\\frac", "\\frac1", "\\frac{1}", "k = 42", "n=-7", "xyz=42", "12 cm", "12", "30", "30^{\\circ}", "25",
                    "\\left(1, -2\\right)", "(1,-2)", "18.90", "\\text{A}", "\\textbf{yes}", "\\overline{42}", "a 42", "an 42",
                    "$42$", "the value $42$ here", "\\text{ cm}", "5\\text{ a}\\text{ b}", "1{,}234", "1,\\!234", "42\\\\", "3/04",
                    "-3/4", "+3/4", "10", "\\mathrm{th}42", "square 42", "\\boxed{42}", "\\é{2}", "\\frac é2", "1,000,000", "", "="]
FRAMES = ["#### {}", "####{}", "so #### {}\nmore", "#### 3\n#### {}", "\\boxed{{{}}}", "\\boxed {}", "\\boxed {}$ and", "\\fbox{{{}}}",
          "\\boxed{{3}} then \\boxed{{{}}}", "\\boxed{{{}", "Answer: {}", "answer : {}\nrest", "ANSWER:{}", "Answer: 3\nAnswer: {}",
          "The answer is {}", "{}", "Answer: ${}$", "Answer: \\boxed{{{}}}", "\\boxed{{{}}}" + " " * 95, "Answer: {}" + "." * 290,
          "\\boxed{{{}}}" + "é" * 98]


def row(scorer, solution, truth, expected):
    print(json.dumps({"scorer": scorer, "solution": solution, "truth": truth, "expected": float(expected)}))


def rows():
    pairs = [(f.format(a), t) for f in FRAMES for a in ANSWERS for t in TRUTHS]
    alike = [(f.format(t), t) for f in FRAMES for t in TRUTHS]
    for solution, truth in alike + random.sample(pairs, 2500):
        strict = gsm8k.compute_score(solution, truth)
        flexible = gsm8k.compute_score(solution, truth, method="flexible", format_score=0.25)
        yield "gsm8k", solution, truth, strict
        yield "gsm8k_flexible", solution, truth, flexible
        yield "math_reward", solution, truth, math_reward.compute_score(solution, truth)
        yield "math_dapo", solution, truth, math_dapo.compute_score(solution, truth)["score"]
        yield "math_dapo_alone", solution, truth, math_dapo.compute_score(solution, truth, strict_box_verify=True)["score"]


# All that are right, and some of the rest.
with contextlib.redirect_stdout(io.StringIO()):  # math_reward prints what it catches
    every = sorted(set(rows()))
right = [r for r in every if r[3] == 1]
wrong = random.sample([r for r in every if r[3] != 1], 500)
for r in right + wrong:
    row(*r)

# Questions: case, articles, punctuation, spaces, letters beyond ASCII, tags.
NAMES = ["The Beatles", "U.S.A.", "Élan Vital", "a", "the", "42", "1,234", "New York City", "O'Brien", "theatre", "An the a", "İstanbul",
         "Straße", "naïve café", "first-class", "1969-07-20", "", "AT&T", "x_y", "«Le Monde»", "北京 大学", "ÇA VA"]
SHAPES = [lambda s: s, str.upper, str.lower, lambda s: "the " + s, lambda s: s + " the", lambda s: s + ".", lambda s: "  " + s + "\n",
          lambda s: s.replace(" ", "  "), lambda s: s.replace(" ", "\u00a0"), lambda s: s.replace(" ", "\x1f"), lambda s: s.replace(" ", "\x85"),
          lambda s: "(" + s + ")", lambda s: "it is " + s, lambda s: s + s, lambda s: s.replace(" ", ""), lambda s: s[:-1], lambda s: s + "…",
          lambda s: "\"" + s + "\"", lambda s: s.replace("e", "é"), lambda s: "A" + s]
TAGS = ["<answer>{}</answer>", "<answer> {}\n</answer> done", "<answer>no</answer><answer>{}</answer>", "<answer>{}</answer><answer>no</answer>",
        "<answer>{}</answer> <answer>no", "<answer>{}", "{}</answer>", "<answer><answer>{}</answer></answer>", "<Answer>{}</Answer>", "{}",
        "<answer>{}</answer>" * 11, "<answer>{}</answer>" + "<answer>" * 10, "<answer>{}</answer>" + "</answer>" * 10]


def questions():
    for name in NAMES:
        for shape in SHAPES:
            for tags in TAGS:
                text = tags.replace("{}", shape(name))
                target = {"target": name}
                yield "search_r1", text, name, search_r1.compute_score(text, target, format_score=0.1)
                yield "search_r1_subem", text, name, search_r1.compute_score_subem(text, target, format_score=0.1)


with contextlib.redirect_stdout(io.StringIO()):
    asked = sorted(set(questions()))
for r in random.sample(asked, 600):
    row(*r)
