"""Writes the page of the built-in algorithms (docs/algorithms.md) from what the program says about them.

usage: algorithms_page.py PROGRAM [--check FILE]

Everything comes from `PROGRAM plugin list --json` (the kinds), `PROGRAM plugin describe --all --json` (the notes in the
packs) and `PROGRAM config explain preset --json`, so the page says exactly what the binaries say. --check compares the
page with FILE and exits with 1 if they differ.
"""

import json
import pathlib
import subprocess
import sys

COUPLING = {
    "token": "each token alone",
    "row": "the tokens of a row",
    "group": "the rows of a prompt",
    "update": "all rows of an update",
}
HEAD = """# Algorithms

Every algorithm is a plugin. This page lists the built-in plugins with formula, paper and parameters, as their packs
describe themselves. `mortise plugin describe NAME` prints the same. `./dev docs` writes this page, and a test compares
it with the program.

Where to set the parameters of a plugin:

| kind | table |
|---|---|
| policy loss | `[actor.policy_loss]` |
| KL estimator | `actor.kl_params`, `algorithm.kl_params` |
| advantage estimator | `algorithm.adv_params` |
| reward | its `[[reward]]` table |
| rollout backend | `[rollout.NAME]` |
| environment | `rollout.multi_turn.params` |

The engine does the rest in the same way for every loss: aggregation (`actor.loss_agg_mode`), masks, importance weights
and the KL term ([objective.md](objective.md)).
"""


def ask(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def range_of(param):
    if "choices" in param:
        return ", ".join(f"`{c}`" for c in param["choices"])
    return param.get("allowed", "")


def needs_of(plugin):
    needs = [f"`{name}`" for name in plugin["requires"]]
    needs += [what for flag, what in (("needs_network", "network"), ("needs_programs", "programs"), ("needs_files", "files")) if plugin[flag]]
    return ", ".join(needs)


def section(plugin):
    lines = [f"### {plugin['name']}", "", plugin["summary"][:1].upper() + plugin["summary"][1:] + "."]
    if plugin["doc"]:
        lines += ["", plugin["doc"].rstrip(".") + "."]
    if plugin["kind"] in ("policy_loss", "kl_estimator"):
        lines += ["", f"Computed from: {COUPLING.get(plugin['coupling'], plugin['coupling'])}."]
    if plugin["consumes"]:
        lines += ["", "Applies itself, instead of the engine: " + ", ".join(f"`{name}`" for name in plugin["consumes"]) + "."]
    if plugin["experimental"]:
        lines += ["", "Experimental: there are no published outputs to compare with."]
    needs = needs_of(plugin)
    if needs:
        lines += ["", f"Needs: {needs}."]
    if plugin["params"]:
        lines += ["", "| parameter | type | default | allowed | meaning |", "|---|---|---|---|---|"]
        for p in plugin["params"]:
            default = "must be given" if p["default"] is None else f"`{p['default']}`" if p["default"] != "" else "empty"
            lines.append(f"| `{p['name']}` | {p['type']} | {cell(default)} | {cell(range_of(p))} | {cell(p['doc'])} |")
    return lines


def kind_pages(plugins, kinds):
    lines = []
    for kind, title, key in ((k["kind"], k["title"], k["chosen_by"]) for k in kinds):
        mine = sorted((p for p in plugins if p["kind"] == kind), key=lambda p: p["name"])
        if not mine:
            sys.exit(f"there is no built-in {kind}: are the packs built?")
        lines += ["", f"## {title}", "", f"Chosen by {key}.", "", "| name | what | needs |", "|---|---|---|"]
        lines += [f"| [{p['name']}](#{p['name']}) | {cell(p['summary'])} | {cell(needs_of(p))} |" for p in mine]
        for plugin in mine:
            lines += [""] + section(plugin)
    return lines


def preset_page(presets):
    lines = ["", "## Presets", "", 'A preset sets a group of keys to the values of a paper: `preset = "gspo"`. [configs](../configs/README.md) says what a\npreset overrides.']
    for preset in presets:
        lines += ["", f"### preset {preset['name']}", "", preset["doc"], "", "```"] + preset["settings"] + ["```"]
    return lines


def main():
    if len(sys.argv) not in (2, 4) or (len(sys.argv) == 4 and sys.argv[2] != "--check"):
        sys.exit(__doc__)
    program = sys.argv[1]
    plugins = [p for p in ask(program, "plugin", "describe", "--all", "--json") if p["origin"] == "built-in"]
    presets = ask(program, "config", "explain", "preset", "--json")
    kinds = ask(program, "plugin", "list", "--json")["kinds"]
    page = HEAD + "\n".join(kind_pages(plugins, kinds) + preset_page(presets)) + "\n"
    if len(sys.argv) == 2:
        sys.stdout.write(page)
    elif pathlib.Path(sys.argv[3]).read_text() != page:
        sys.exit(f"{sys.argv[3]} is not what the program says: run ./dev docs")


main()
