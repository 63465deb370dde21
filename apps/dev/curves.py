"""Draws curves of docs/ from the runs in RUNS, and writes their first and last numbers into OUT/results.json. Numbers of
pictures that are not named stay as they are.

usage: curves.py RUNS OUT [PICTURE...]     draws the curves of these names and skips other names; without names, all
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from picture_list import CURVES  # noqa: E402


def series(folder, name):
    """Steps and values of a metric."""
    steps, values = [], []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get(name) is not None:
            steps.append(row["step"])
            values.append(row[name])
    return steps, values


def draw(curves, runs, path, results):
    figure, axis = plt.subplots(figsize=curves.size)
    axis.set_title(curves.title, loc="left", fontsize=10)
    axis.set_xlabel("step")
    axis.set_ylim(0, curves.top)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    for run, label in curves.lines.items():
        steps, values = series(runs / run, curves.metric)
        axis.plot(steps, values, marker="o", markersize=3, label=label)
        results[run] = {"first": values[0], "last": values[-1], "steps": steps[-1]}
    if curves.legend == "outside":
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    elif curves.legend == "inside":
        axis.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")), facecolor="white")
    plt.close(figure)
    # Indents are a twentieth of the file.
    path.write_text("".join(line.lstrip(" ") for line in path.read_text().splitlines(keepends=True)))


def main():
    runs, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mortise", "font.family": "sans-serif", "font.size": 9})
    kept = out / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for name in sys.argv[3:] or CURVES:
        if name in CURVES:
            draw(CURVES[name], runs, out / f"{name}.svg", results)
    drawn = {run for curves in CURVES.values() for run in curves.lines}
    results = {run: ends for run, ends in results.items() if run in drawn}
    kept.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
