# Writes cases.jsonl: schema, value, valid, by the Python package jsonschema 4.26 (Draft202012Validator).
#   python make_cases.py > cases.jsonl
import json
import random

from jsonschema import Draft202012Validator

random.seed(11)
WORDS = ["a", "b", "ab", "abc", "é", "", "a1", "long text"]


def value(depth=0):
    kind = random.randrange(9 if depth < 2 else 6)
    if kind == 0: return random.choice([0, 1, 2, 3, -1, 10, 1.0, 2.5, 1e20, 0.3])
    if kind == 1: return random.choice(WORDS)
    if kind == 2: return random.choice([True, False, None])
    if kind < 6: return random.choice([1, "a", None, 2.5])
    if kind == 6: return [value(depth + 1) for _ in range(random.randrange(4))]
    return {random.choice(WORDS): value(depth + 1) for _ in range(random.randrange(4))}


def schema(depth=0):
    if depth > 2: return random.choice([True, False, {}, {"type": "integer"}, {"type": "string"}])
    makers = {
        "type": lambda: random.choice(["integer", "number", "string", "boolean", "null", "array", "object", ["integer", "string"]]),
        "enum": lambda: [value(1) for _ in range(random.randrange(1, 4))],
        "const": lambda: value(1),
        "minimum": lambda: random.choice([0, 1, 2.5]),
        "maximum": lambda: random.choice([1, 2, 3.5]),
        "exclusiveMinimum": lambda: random.choice([0, 1]),
        "exclusiveMaximum": lambda: random.choice([1, 3]),
        "multipleOf": lambda: random.choice([1, 2, 0.5]),
        "minLength": lambda: random.randrange(3),
        "maxLength": lambda: random.randrange(4),
        "pattern": lambda: random.choice(["^a", "b$", "[0-9]", "^$"]),
        "minItems": lambda: random.randrange(3),
        "maxItems": lambda: random.randrange(3),
        "uniqueItems": lambda: random.choice([True, False]),
        "items": lambda: schema(depth + 1),
        "prefixItems": lambda: [schema(depth + 1) for _ in range(random.randrange(1, 3))],
        "contains": lambda: schema(depth + 1),
        "minContains": lambda: random.randrange(3),
        "maxContains": lambda: random.randrange(3),
        "required": lambda: random.sample(WORDS, random.randrange(3)),
        "properties": lambda: {w: schema(depth + 1) for w in random.sample(WORDS, random.randrange(1, 4))},
        "patternProperties": lambda: {random.choice(["^a", "b"]): schema(depth + 1)},
        "additionalProperties": lambda: schema(depth + 1),
        "propertyNames": lambda: random.choice([{"maxLength": 2}, {"pattern": "a"}, True]),
        "minProperties": lambda: random.randrange(3),
        "maxProperties": lambda: random.randrange(3),
        "dependentRequired": lambda: {random.choice(WORDS): [random.choice(WORDS)]},
        "dependentSchemas": lambda: {random.choice(WORDS): schema(depth + 1)},
        "allOf": lambda: [schema(depth + 1) for _ in range(random.randrange(1, 3))],
        "anyOf": lambda: [schema(depth + 1) for _ in range(random.randrange(1, 3))],
        "oneOf": lambda: [schema(depth + 1) for _ in range(random.randrange(1, 3))],
        "not": lambda: schema(depth + 1),
        "if": lambda: schema(depth + 1),
        "then": lambda: schema(depth + 1),
        "else": lambda: schema(depth + 1),
        "$ref": lambda: "#/$defs/d",
        "title": lambda: "only a word",
        "format": lambda: "date",
    }
    out = {k: makers[k]() for k in random.sample(list(makers), random.choice([1, 1, 2, 3]))}
    if depth == 0: out["$defs"] = {"d": random.choice([{"type": "integer"}, {"maxItems": 1}, {"required": ["a"]}])}
    return out


def has_ref_only_at_top(s):
    return "$ref" not in json.dumps(s) or "$defs" in s


counts, keys = {True: 0, False: 0}, {}
while sum(counts.values()) < 600:
    s, v = schema(), value()
    if not has_ref_only_at_top(s): continue
    valid = Draft202012Validator(s).is_valid(v)
    if counts[valid] > 300: continue
    # Rules about another type than the value's decide nothing; keep few of those.
    if valid and random.random() < 0.6: continue
    counts[valid] += 1
    print(json.dumps({"schema": s, "value": v, "valid": valid}))
