# Writes pairs.jsonl again with math-verify's result for each pair. Needs math-verify 0.9 and latex2sympy2-extended:
#   python judge_pairs.py < pairs.jsonl > judged.jsonl
import json
import logging
import sys

from math_verify import parse, verify

logging.disable(logging.CRITICAL)
for line in sys.stdin:
    pair = json.loads(line)
    gold = parse("\\boxed{" + pair["gold"] + "}")
    pair["math_verify"] = bool(verify(gold, parse(pair["prediction"])))
    print(json.dumps(pair, ensure_ascii=False))
