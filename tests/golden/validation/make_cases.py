# Makes cases.json: verl's own process_validation_metrics (wheel verl 0.9.1, unpacked into the folder given first) on
# random rewards and answers. Needs numpy. usage: make_cases.py FOLDER cases.json
import ast, json, random, sys
from collections import defaultdict
from functools import partial
from typing import Any, Callable
import numpy as np

source = open(sys.argv[1] + "/verl/trainer/ppo/metric_utils.py").read()
names = ("bootstrap_metric", "calc_maj_val", "process_validation_metrics")
keep = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name in names]
verl = {"np": np, "defaultdict": defaultdict, "partial": partial, "Any": Any, "Callable": Callable}
exec(compile(ast.Module(keep, []), "metric_utils", "exec"), verl)

random.seed(5)
cases = []
for n, prompts, kind in ((1, 3, "binary"), (2, 3, "binary"), (3, 2, "real"), (5, 3, "binary"), (8, 2, "real"), (13, 2, "real"), (32, 2, "binary")):
    sources, uids, rewards, preds = [], [], [], []
    for p in range(prompts):
        for _ in range(n):
            sources.append("ab"[p % 2])
            uids.append(str(p))
            rewards.append(float(random.random() < 0.4) if kind == "binary" else round(random.gauss(0, 1), 3))
            preds.append(random.choice(["7", "8", "", "x y"]))
    made = verl["process_validation_metrics"](sources, uids, {"reward": rewards, "acc": [r > 0 for r in rewards], "pred": preds})
    metrics = {f"{s}/{v}/{m}": float(x) for s, by in made.items() for v, ms in by.items() for m, x in ms.items()}
    cases.append({"n": n, "sources": [sources[i * n] for i in range(prompts)], "rewards": rewards, "pred": preds, "metrics": metrics})
json.dump(cases, open(sys.argv[2], "w"), indent=0)
