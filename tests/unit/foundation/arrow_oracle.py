# Writes Parquet and Arrow files with pyarrow and datasets, and next to each the rows that these libraries read from it.
#
#   arrow_oracle.py FOLDER: for every NAME there is FOLDER/NAME, which Mortise reads, and FOLDER/NAME.rows, a JSON row per
#   line as pyarrow's to_pylist (or datasets' iteration) gives it. FOLDER/names.txt lists the names.
import base64
import datetime
import decimal
import json
import math
import pathlib
import random
import sys

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

folder = pathlib.Path(sys.argv[1])
names = []


def value_of(value):
    """A Python value as JSON of a row."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: value_of(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [value_of(inner) for inner in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc).isoformat()
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return format(value, "f") if value.as_tuple().exponent <= 0 else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def keep(name, rows):
    names.append(name)
    with open(folder / (name + ".rows"), "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(value_of(row), ensure_ascii=False, allow_nan=False) + "\n")


def every_form(stem, table, **parquet):
    """The table as Parquet in several layouts, as an IPC file and an IPC stream."""
    rows = table.to_pylist()
    for compression in ("snappy", "zstd", "none", "gzip", "brotli", "lz4"):
        name = f"{stem}_{compression}.parquet"
        pq.write_table(table, folder / name, compression=compression, row_group_size=7, **parquet)
        keep(name, pq.read_table(folder / name).to_pylist())
    with pa.OSFile(str(folder / f"{stem}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    keep(f"{stem}.arrow", rows)
    with pa.OSFile(str(folder / f"{stem}_stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    keep(f"{stem}_stream.arrow", rows)
    pa.feather.write_feather(table, folder / f"{stem}.feather", compression="lz4")
    keep(f"{stem}.feather", rows)


def nulls(values):
    return [None if i % 5 == 3 else value for i, value in enumerate(values)]


def scalars():
    rng = random.Random(1)
    n = 23
    ints = lambda bits, signed: nulls([rng.choice([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, 7]) if signed else rng.choice([0, 2**bits - 1, 3]) for _ in range(n)])
    stamps = [datetime.datetime(2024, 2, 29, 23, 59, 58, 123456), datetime.datetime(1969, 12, 31, 23, 59, 59),
              datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 1, 2, 3)]
    late = [datetime.datetime(2024, 2, 29, 23, 59, 58, 123000), datetime.datetime(1960, 1, 2, 3, 4, 5, 678000)]
    floats = [0.1, -0.0, 1.0, 1e300, 5e-324, math.nan, math.inf, 123456789.125, 2.5e-7]
    texts = ["", "x", 'a "quote" \\ and \n\t\x01', "é漢🤖", "\u2028 \x7f"]
    pick = lambda values: nulls([values[i % len(values)] for i in range(n)])
    columns = {
        "bool": pa.array(pick([True, False])),
        "f16": pa.array(pick([0.5, -2.0, 65504.0]), pa.float16()),
        "f32": pa.array(pick([0.1, 16777216.0, 3.5]), pa.float32()),
        "f64": pa.array(pick(floats), pa.float64()),
        "text": pa.array(pick(texts)),
        "large": pa.array(pick(texts), pa.large_string()),
        "view": pa.array(pick(texts + ["longer than twelve bytes"]), pa.string_view()),
        "bytes": pa.array(pick([b"", b"\x00\xff\x10", b"four"]), pa.binary()),
        "fixed": pa.array(pick([b"abc", b"\x00\x01\x02"]), pa.binary(3)),
        "dictionary": pa.array(pick(["red", "green"])).dictionary_encode(),
        "null": pa.nulls(n),
        "s": pa.array(pick([t.replace(microsecond=0) for t in stamps]), pa.timestamp("s")),
        "ms": pa.array(pick(late), pa.timestamp("ms")),
        "us": pa.array(pick(stamps), pa.timestamp("us")),
        "zone": pa.array(pick(stamps[:2]), pa.timestamp("us", tz="Europe/Berlin")),
        "date32": pa.array(pick([datetime.date(2024, 2, 29), datetime.date(1900, 3, 1)])),
        "date64": pa.array(pick([datetime.date(2024, 2, 29), datetime.date(1900, 3, 1)]), pa.date64()),
        "time32": pa.array(pick([datetime.time(1, 2, 3), datetime.time(23, 59, 59)]), pa.time32("s")),
        "time64": pa.array(pick([datetime.time(1, 2, 3, 4), datetime.time(0, 0)]), pa.time64("us")),
        "duration": pa.array(pick([datetime.timedelta(days=1, microseconds=5), datetime.timedelta(seconds=-3)])),
        "decimal": pa.array(pick([decimal.Decimal("1.10"), decimal.Decimal("-99999999.99")]), pa.decimal128(12, 2)),
        "wide": pa.array(pick([decimal.Decimal("0.00001"), decimal.Decimal("1" * 40)]), pa.decimal256(60, 5)),
    }
    for bits in (8, 16, 32, 64):
        columns[f"i{bits}"] = pa.array(ints(bits, True), getattr(pa, f"int{bits}")())
        columns[f"u{bits}"] = pa.array(ints(bits, False), getattr(pa, f"uint{bits}")())
    return pa.table(columns)


def without(table, *columns):
    return table.drop_columns([name for name in columns if name in table.column_names])


def nested():
    message = lambda i: {"role": "user" if i % 2 else "system", "content": f"turn {i}\n", "tool_calls": None}
    rows = [{
        "prompt": None if i == 4 else [message(k) for k in range(i % 4)],
        "reward_model": {"style": "rule", "ground_truth": str(i)},
        "extra_info": {"index": i, "split": "train", "nested": [[i], [], [i, i + 1]]},
        "scores": [i / 2, None],
    } for i in range(17)]
    table = pa.Table.from_pylist(rows)
    pairs = [None if i == 2 else [(f"k{j}", j) for j in range(i % 3)] for i in range(17)]
    table = table.append_column("map", pa.array(pairs, pa.map_(pa.string(), pa.int64())))
    table = table.append_column("fixed", pa.array([[i, i + 1] for i in range(17)], pa.list_(pa.int32(), 2)))
    table = table.append_column("large", pa.array([["a"] * (i % 3) for i in range(17)], pa.large_list(pa.string())))
    words = pa.array(["red", "green", None])
    return table.append_column("colours", pa.array([["red"] * (i % 2) for i in range(17)],
                                                   pa.list_(pa.dictionary(pa.int8(), words.type))))


def verl_gsm8k():
    """The layout of verl's examples/data_preprocess/gsm8k.py."""
    rows = [{
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {i} + {i}? Let's think step by step."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
        "extra_info": {"split": "train", "index": i, "answer": f"{i} + {i} = {2 * i}\n#### {2 * i}", "question": f"What is {i} + {i}?"},
    } for i in range(40)]
    data = datasets.Dataset.from_list(rows)
    data.to_parquet(folder / "verl.parquet")
    keep("verl.parquet", data)


def trl_conversational():
    rows = [{
        "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": f"{i}?"}],
        "completion": [{"role": "assistant", "content": str(i)}],
        "tools": json.dumps([{"type": "function", "function": {"name": "add"}}]),
        "solution": str(i),
    } for i in range(2500)]
    data = datasets.Dataset.from_list(rows)
    data.save_to_disk(folder / "saved", num_shards=3)
    keep("saved", data)
    features = datasets.Features({"id": datasets.Value("int32"), "label": datasets.ClassLabel(names=["no", "yes"]),
                                  "tools": datasets.List(datasets.Json()), "any": datasets.Json(),
                                  "when": datasets.Value("timestamp[s]"), "score": datasets.Value("float32")})
    rows = [{"id": i, "label": i % 2, "tools": [{"name": f"t{i}", "args": {"x": [i, None]}}, "text", 5], "any": {"k" * (i % 3 + 1): i},
             "when": datetime.datetime(2024, 1, 1 + i), "score": i / 3} for i in range(9)]
    data = datasets.Dataset.from_list(rows, features=features)
    data.save_to_disk(folder / "typed")
    keep("typed", data)
    data.to_parquet(folder / "typed.parquet")
    keep("typed.parquet", data)


plain = scalars()
# Feather and Parquet have no form for some of Arrow's types.
for name, table in {"scalars": without(plain, "f16", "view", "null"), "nested": nested()}.items():
    every_form(name, table)
for name in ("scalars.arrow", "scalars_stream.arrow"):
    write = pa.ipc.new_file if name == "scalars.arrow" else pa.ipc.new_stream
    with pa.OSFile(str(folder / name), "wb") as sink, write(sink, plain.schema) as writer:
        writer.write_table(plain)
    keep(name, plain.to_pylist())
names = sorted(set(names))
verl_gsm8k()
trl_conversational()
pq.write_table(pa.table({"u": pa.array([1])}).cast(pa.schema({"u": pa.int64()})), folder / "small.parquet")
keep("small.parquet", [{"u": 1}])
nothing = pa.table({"a": pa.array([], pa.int64())})
pq.write_table(nothing, folder / "empty.parquet")
keep("empty.parquet", [])
(folder / "names.txt").write_text("\n".join(names) + "\n")
