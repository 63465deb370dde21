# Fills `expected` of verl_math.jsonl with the results of verl's own prime_math and geo3k. Needs sympy,
# antlr4-python3-runtime 4.11, pylatexenc, mathruler, tqdm and verl's folder reward_score:
#   python make_verl_math.py FOLDER < verl_math.jsonl > new.jsonl
import contextlib
import io
import json
import signal
import sys
import types


class TimeoutLimit(contextlib.ContextDecorator):  # replaces verl.utils.py_functional.timeout_limit
    def __init__(self, seconds):
        self.seconds = max(1, int(seconds))

    def __enter__(self):
        def stop(*_):
            raise TimeoutError

        self.before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(self.seconds)

    def __exit__(self, *_):
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self.before)


for name in ("verl", "verl.utils", "verl.utils.py_functional"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["verl.utils.py_functional"].timeout_limit = TimeoutLimit
sys.path.insert(0, sys.argv[1])
import geo3k
import prime_math

for line in sys.stdin:
    case = json.loads(line)
    with contextlib.redirect_stdout(io.StringIO()):
        if case["scorer"] == "geo3k":
            expected = geo3k.compute_score(case["solution"], case["truth"])
        else:
            expected = prime_math.compute_score(case["solution"], case["truth"])[0]
    print(json.dumps({**case, "expected": float(expected)}))
