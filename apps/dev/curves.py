"""Draws the curves of docs/ from the runs in runs/pictures, and writes their last numbers to docs/pictures/results.json.

usage: curves.py RUNS OUT
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

VALIDATION = "val-core/addition/reward/mean@1"
# The metric of each recipe. distill gives its reward no weight, and the greedy answers of tools are right from the start.
RECIPES = {"gspo": VALIDATION, "dapo": VALIDATION, "dr_grpo": VALIDATION, "ppo": VALIDATION,
           "distill": "eval_rewards/exact_match/mean", "tools": "critic/score/mean"}
# Title, and (run, label) of each line.
SWEEPS = {
    "lr": ("actor.optim.lr", [("lr_2e-5", "2e-5"), ("base", "1e-4"), ("lr_4e-4", "4e-4"), ("lr_4e-3", "4e-3")]),
    "n": ("rollout.n", [("n_2", "2"), ("base", "4"), ("n_16", "16")]),
    "clip": ("actor.clip_ratio, four updates per step", [("clip_0.02", "0.02"), ("clip_0.2", "0.2"), ("clip_0.8", "0.8")]),
    "kl": ("actor.kl_loss_coef", [("base", "no KL"), ("kl_0.01", "0.01"), ("kl_0.3", "0.3")]),
}


def series(folder, name):
    """Steps and values of a metric."""
    steps, values = [], []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get(name) is not None:
            steps.append(row["step"])
            values.append(row[name])
    return steps, values


def axes(width, height, title):
    figure, axis = plt.subplots(figsize=(width, height))
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlabel("step")
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def main():
    runs, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mortise", "font.family": "sans-serif", "font.size": 9})
    results = {}

    def line(axis, run, label, metric=VALIDATION):
        steps, values = series(runs / run, metric)
        axis.plot(steps, values, marker="o", markersize=3, label=label)
        results[run] = {"first": values[0], "last": values[-1], "steps": steps[-1]}

    figure, axis = axes(7, 3, "Share of right answers on the validation pairs, GRPO, 300 steps")
    for seed in (1, 2, 3):
        line(axis, f"seed_{seed}", f"seed {seed}")
    axis.legend(frameon=False, loc="lower right")
    save(figure, out / "quickstart.svg")
    for recipe, metric in RECIPES.items():
        figure, axis = axes(4.2, 2.2, metric)
        line(axis, f"recipe_{recipe}", recipe, metric)
        save(figure, out / f"recipe_{recipe}.svg")
    for name, (title, lines) in SWEEPS.items():
        figure, axis = axes(6, 2.6, title)
        for run, label in lines:
            line(axis, run, label)
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        save(figure, out / f"choose_{name}.svg")
    (out / "results.json").write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
