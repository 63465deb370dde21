"""Makes the site of the docs with mkdocs: the pages of docs/, and references made from the program and the headers.

usage: site.py PROGRAM OUT

Writes OUT/pages (Markdown) and OUT/html, which opens from the disk or from any web server. Only the search needs a
server. Links to files that are not pages are shown as the path. mkdocs runs with --strict: a broken link ends this with an error.
"""

import json
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

NAV = [
    ("Home", "index.md"),
    ("Guides", [
        ("Your model and data", "your_model.md"), ("Your reward", "guides/your_reward.md"),
        ("Choosing hyper-parameters", "guides/hyper_parameters.md"), ("Reading the metrics", "guides/reading_metrics.md"),
        ("Growing a run", "guides/growing.md"), ("Cookbook", "cookbook.md"), ("When it does not learn", "diagnosis.md"),
        ("See what a run does", "reports.md"), ("Data", "data.md"), ("Several turns", "turns.md"), ("The hub", "hub.md"),
        ("Coming from TRL, verl, ms-swift", "importing.md"), ("Ranks", "ranks.md"), ("Servers", "servers.md"),
        ("Sampling ahead", "async.md"), ("Validation", "validation.md"), ("Optimizers", "optimizers.md"),
        ("Recipes", "recipes.md"), ("Packs", "packs.md"), ("A run in the browser", "playground.md"),
        ("Checkpoints", "checkpoints.md")]),
    ("Plugins", [
        ("Write a plugin", "plugins/README.md"), ("Quickstart", "plugins/quickstart.md"), ("Reward", "plugins/reward.md"),
        ("Python rewards", "plugins/python_rewards.md"), ("HTTP rewards", "plugins/http_rewards.md"),
        ("Reward models", "plugins/reward_models.md"), ("Rewards that run code", "plugins/code_rewards.md"),
        ("Rewards by token", "plugins/token_rewards.md"), ("Policy loss", "plugins/policy_loss.md"),
        ("Advantage estimator", "plugins/advantage_estimator.md"), ("KL estimator", "plugins/kl_estimator.md"),
        ("Rollout backend", "plugins/rollout_backend.md"), ("Environment", "plugins/environment.md"),
        ("Packs", "plugins/packs.md"), ("Faults", "plugins/faults.md"), ("Isolation", "plugins/isolation.md"),
        ("Guarantees", "plugins/guarantees.md")]),
    ("How it works", [
        ("Architecture", "architecture.md"), ("Objective", "objective.md"), ("Split invariance", "split_invariance.md"),
        ("Number formats", "precision.md"), ("Performance", "performance.md"), ("GPUs", "cuda.md"), ("Scale", "scale.md")]),
    ("Reference", [
        ("Keys", "reference/keys.md"), ("Commands", "reference/commands.md"), ("Algorithms", "algorithms.md"),
        ("Metrics", "metrics.md"), ("Models", "models.md"), ("ABI headers", "reference/abi.md"), ("ABI rules", "reference/rules.md"),
        ("Exit codes", "exit_codes.md"), ("Limits", "limits.md")]),
]


def output_of(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


def type_of(schema):
    if "anyOf" in schema:
        return " or ".join(type_of(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return "list of " + type_of(schema.get("items", {}))
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(kind)


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def keys_of(schema, name):
    """(table, its text, [(key, schema)]) of each table below `schema`."""
    here = [(key, one) for key, one in schema.get("properties", {}).items() if one.get("type") != "object" or "properties" not in one]
    if here:
        yield name, schema.get("description", ""), here
    for key, one in schema.get("properties", {}).items():
        if one.get("type") == "object" and "properties" in one:
            yield from keys_of(one, f"{name}.{key}" if name else key)
        elif one.get("type") == "array" and "properties" in one.get("items", {}):
            yield from keys_of(one["items"], f"[{key}]")


def keys_page(program):
    lines = ["# Keys", "", "Every key of a run's file. `mortise config explain KEY` also says what a key is called in "
             "verl, TRL and ms-swift, and when it has no effect.", ""]
    for table, text, keys in keys_of(json.loads(output_of(program, "config", "schema")), ""):
        lines += [f"## {table or 'top level'}", "", text, "", "| key | type | default | what it does |", "|---|---|---|---|"]
        for key, one in keys:
            default = f"`{json.dumps(one['default'])}`" if "default" in one else ""
            lines.append(f"| `{key}` | {cell(type_of(one))} | {cell(default)} | {cell(one.get('description', ''))} |")
        lines.append("")
    return "\n".join(lines)


def commands_page(program):
    usage = output_of(program, "--help")
    lines = ["# Commands", "", "```", usage.rstrip(), "```", ""]
    for name in re.findall(r"^  ([a-z]+) +\S", usage, re.M):
        lines += [f"## mortise {name}", "", "```", output_of(program, name, "--help").rstrip(), "```", ""]
    return "\n".join(lines)


def abi_page(root):
    include = root / "sdk/include"
    lines = ["# ABI headers", "", "What a plugin in C includes. [Write a plugin](../plugins/README.md) begins with less.", ""]
    for path in sorted((include / "mortise").rglob("*.h")):
        name = path.relative_to(include)
        if name.parts[1] not in ("cpp", "testing"):
            lines += [f"## {name}", "", "```c", path.read_text().rstrip(), "```", ""]
    return "\n".join(lines)


def with_links(text, path, root, pages):
    """`path`: of the Markdown file in the tree. Links go to pages of the site, or become the path that they name."""
    def link(match):
        label, target = match.group(1), match.group(2)
        name, _, anchor = target.partition("#")
        if "://" in target or not name:
            return match.group(0)
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if (root / named).is_dir():
            named += "/README.md"
        here = posixpath.dirname(pages[path])
        if named.startswith("docs/pictures/"):
            return f"[{label}]({posixpath.relpath(named.removeprefix('docs/'), here or '.')})"
        if named not in pages:
            return f"{label} (`{named}`)"
        return f"[{label}]({posixpath.relpath(pages[named], here or '.')}{'#' + anchor if anchor else ''})"
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, text)


def complete_scripts(folder):
    """Debian's mkdocs has jQuery under another name than its theme asks for, and lacks a script of the theme."""
    asked = re.search(r'js/(jquery[^"]*)', (folder.parent / "index.html").read_text())[1]
    if not (folder / asked).exists():
        shutil.copy(next(folder.glob("jquery*.js")), folder / asked)
    if not (folder / "theme_extra.js").exists():
        (folder / "theme_extra.js").write_text("$('div.rst-content table').addClass('docutils');\n")


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    root = pathlib.Path(__file__).resolve().parents[2]
    pages = {str(path.relative_to(root)): str(path.relative_to(root / "docs")) for path in (root / "docs").rglob("*.md")}
    pages["docs/README.md"] = "pages.md"
    pages |= {"README.md": "index.md", "configs/README.md": "recipes.md", "sdk/RULES.md": "reference/rules.md"}
    shutil.rmtree(out, ignore_errors=True)
    for path, page in pages.items():
        target = out / "pages" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_links((root / path).read_text(), path, root, pages))
    shutil.copytree(root / "docs/pictures", out / "pages/pictures", dirs_exist_ok=True)
    (out / "pages/reference").mkdir(exist_ok=True)
    (out / "pages/reference/keys.md").write_text(keys_page(program))
    (out / "pages/reference/commands.md").write_text(commands_page(program))
    (out / "pages/reference/abi.md").write_text(abi_page(root))
    # JSON is YAML. Pages that the list does not name are found by the search and by links.
    nav = [{title: [{name: page} for name, page in part] if isinstance(part, list) else part} for title, part in NAV]
    config = {"site_name": "Mortise", "docs_dir": "pages", "site_dir": "html", "use_directory_urls": False,
              "theme": {"name": "readthedocs", "highlightjs": False}, "plugins": ["search"], "nav": nav}
    (out / "mkdocs.yml").write_text(json.dumps(config, indent=1))
    subprocess.run(["mkdocs", "build", "--strict", "--quiet", "--config-file", out / "mkdocs.yml"], check=True)
    complete_scripts(out / "html/js")
    print(f"{out}/html/index.html has {sum(1 for _ in (out / 'html').rglob('*.html'))} pages; to search in them:\n"
          f"  python3 -m http.server --bind 127.0.0.1 --directory {out}/html")


if __name__ == "__main__":
    main()
