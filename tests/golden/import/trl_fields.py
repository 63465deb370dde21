"""Prints a JSON object: class -> setting -> default, of the classes behind `trl grpo`, read from the installed wheels.

It parses their sources and does not import them, which is fast and needs no torch. Settings of a derived class win. A default
that is not a literal becomes the text "<code>".
"""

import ast
import importlib.util
import json
import pathlib
import sys

CLASSES = [
    ("transformers", "training_args.py", "TrainingArguments", "GRPOConfig"),
    ("trl", "trainer/base_config.py", "_BaseConfig", "GRPOConfig"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig", "GRPOConfig"),
    ("trl", "trainer/model_config.py", "ModelConfig", "ModelConfig"),
    ("trl", "scripts/utils.py", "ScriptArguments", "GRPOScriptArguments"),
    ("trl", "scripts/utils.py", "DatasetMixtureConfig", "DatasetMixtureConfig"),
    ("trl", "scripts/grpo.py", "GRPOScriptArguments", "GRPOScriptArguments"),
]


def default_of(value):
    if isinstance(value, ast.Call):
        keywords = {k.arg: k.value for k in value.keywords}
        value = keywords.get("default")
    try:
        return ast.literal_eval(value) if value is not None else "<code>"
    except ValueError:
        return "<code>"


def fields_of(path, name):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                s.target.id: default_of(s.value)
                for s in node.body
                if isinstance(s, ast.AnnAssign) and "ClassVar" not in ast.unparse(s.annotation)
            }
    sys.exit(f"{path} has no class {name}")


def main():
    out = {}
    for package, file, name, group in CLASSES:
        root = pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])
        out.setdefault(group, {}).update(fields_of(root / file, name))
    print(json.dumps(out))


main()
