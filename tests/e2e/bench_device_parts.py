# What bench_device answers, by the code of a device on the CPU, against the golden numbers of transformers and against formulas.
# bench_device_parts.py PROGRAM SOURCE_DIR. Needs the standard library alone.
import json
import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
program, source = sys.argv[1:]
sys.path.insert(0, str(Path(source) / "apps/bench/device"))
from expectations import end, expect
from parts import LOSSES

FOLDER = Path(source) / "tests/golden/models/qwen2_tied"
process = subprocess.Popen([program, "--device", "cpu-as-device"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(**request):
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def golden_tensor(name):
    """Its numbers, row by row."""
    data = (FOLDER / "forward.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])[name]
    begin, stop = (8 + size + at for at in entry["data_offsets"])
    kind, width = {"I64": ("q", 8), "F32": ("f", 4)}[entry["dtype"]]
    numbers = struct.unpack(f"<{(stop - begin) // width}{kind}", data[begin:stop])
    columns = entry["shape"][1]
    return [numbers[i:i + columns] for i in range(0, len(numbers), columns)]


def near(got, want, tolerance):
    return abs(got - want) <= tolerance * max(1.0, abs(want))


def check_limits():
    got = ask(do="limits", copy_bytes=1 << 16, width=32, launches=10, repeats=2)
    numbers = [got.get("copy_bytes_per_s"), got.get("launch_us"), *got.get("flops_per_s", {}).values()]
    expect(len(numbers) == 4 and all(number > 0 for number in numbers) and got["graph_node_us"] is None, f"limits: {got}")


def check_sampling():
    cases = [case for case in json.loads((FOLDER / "greedy.json").read_text())["cases"] if case["finish_reason"] == "length"]
    got = ask(do="sample", folder=str(FOLDER), dtype="float32", prompts=[case["prompt_ids"] for case in cases],
              new_tokens=[len(case["completion_ids"]) for case in cases], repeats=1, temperature=0.0)
    expect(got.get("ids") == [case["completion_ids"] for case in cases] and len(cases) > 1, f"greedy completions are those of transformers: {got}")
    expect(got.get("is_repeatable") and got["kernels"] == "device" and len(got["seconds"]) == 1 and got["mean_prob_diff"] < 1e-5, f"sampling: {got}")


def check_training():
    kept = [[bool(x) for x in row] for row in golden_tensor("in.attention_mask")]
    rows = [[token for token, is_real in zip(*row) if is_real] for row in zip(golden_tensor("in.input_ids"), kept)]
    log_probs = [number for row, real in zip(golden_tensor("expected.log_prob"), kept) for number, both in zip(row, zip(real, real[1:])) if all(both)]
    want = -math.fsum(log_probs) / len(log_probs)
    for tokens in (16, 4096):
        got = ask(do="train", folder=str(FOLDER), dtype="float32", rows=rows, tokens=tokens, repeats=1, deterministic=True)
        expect("error" not in got and near(got["loss"], want, 1e-4), f"the loss of transformers is {want}: {got}")
        expect(got.get("is_repeatable") and got["grad_norm"] > 0 and got["flops"] > 0 and len(got["forward_seconds"]) == 1, f"training: {got}")
    got = ask(do="train", folder=str(FOLDER), dtype="bfloat16", rows=rows, tokens=4096, repeats=0, deterministic=True, optimizer="adamw_8bit")
    expect("error" not in got and near(got["loss"], want, 0.02), f"in bfloat16: {got}")


def check_head():
    got = ask(do="head", folder=str(FOLDER), dtype="bfloat16", tokens=20, repeats=1)
    expect(got.get("weight_dtype") == "BFloat16" and all(len(got[name]["seconds"]) == 1 for name in ("forward", "one_pass", "two_passes")), f"head: {got}")
    tokens, width, vocab = 3, 4, 7
    states = [[math.sin(1.1 * (i * width + j)) for j in range(width)] for i in range(tokens)]
    weight = [[math.cos(0.9 * (i * width + j)) for j in range(width)] for i in range(vocab)]
    targets = [2, 6, 0]
    want = []
    for state, target in zip(states, targets):
        logits = [math.fsum(a * b for a, b in zip(state, row)) for row in weight]
        want.append(logits[target] - math.log(math.fsum(map(math.exp, logits))))
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, numbers in (("hidden.f32", "f", sum(states, [])), ("weight.f32", "f", sum(weight, [])), ("targets.i64", "q", targets)):
            (Path(folder) / name).write_bytes(struct.pack(f"<{len(numbers)}{kind}", *numbers))
        got = ask(do="head_check", folder=folder, tokens=tokens, hidden=width, vocab=vocab)
    expect("error" not in got and all(near(a, b, 1e-5) for a, b in zip(got["log_probs"], want)), f"log-probs of the head are {want}: {got}")


def check_losses():
    got = ask(do="losses", names=LOSSES, rows=8, length=5, repeats=2).get("losses", [])
    expect([loss["name"] for loss in got] == list(LOSSES), f"losses: {got}")
    expect(all(len(loss["seconds"]) == 2 and loss["device"] is None for loss in got), f"only a GPU has a second place: {got}")


def spaced(first, last, count):
    return [first + (last - first) * i / (count - 1) for i in range(count)]


def check_optimizer():
    got = ask(do="optimizer", shapes=[[3, 4], [5]], repeats=2)
    want = []
    for count in (12, 5):
        gradients, numbers = spaced(0.01, -0.02, count), spaced(-1.0, 1.0, count)
        for i, g in enumerate(gradients):  # the same gradient in each of three steps, too small to be clipped
            for _ in range(3):
                numbers[i] -= 1e-3 * (0.01 * numbers[i] + (g / (abs(g) + 1e-8)))
        want.append(math.fsum(numbers))
    expect("error" not in got and all(near(a, b, 1e-5) for a, b in zip(got["sums"], want)) and got["bytes_a_step"] == 32 * 17, f"AdamW gives {want}: {got}")


def check_errors():
    expect("no part 'everything'" in ask(do="everything").get("error", ""), "a part that there is not")
    expect("error" in ask(do="sample", folder="/nowhere", dtype="float32", prompts=[[1]], new_tokens=[1], repeats=1, temperature=1.0), "a model that there is not")


process.stdout.readline()  # the device
for check in (check_limits, check_sampling, check_training, check_head, check_losses, check_optimizer, check_errors):
    check()
process.stdin.close()
expect(process.wait() == 0, "the program ends well")
end()
