# What ./dev bench device and ./dev test --device make of what they measure. bench_device.py SOURCE_DIR. Needs the standard
# library alone.
import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(sys.argv[1]) / "apps" / folder) for folder in ("bench/device", "bench/peers", "dev")]
import device_report
import gates
import parts
import peers
import turns
from expectations import end, expect


def bench_of(shape, mortise=None):
    bench = turns.Bench(argparse.Namespace(shape=shape, rounds=2, is_gpu=True), mortise, argparse.Namespace(free_memory=lambda: None))
    side = {"copy_bytes_per_s": 4.3e12, "flops_per_s": {"bfloat16": 790e12, "float32": 50e12}}
    bench.known_limits = {"mortise": side, "torch": {**side, "copy_bytes_per_s": 4.0e12}}
    return bench


def check_floors():
    # Weights, keys and values of a token, and milliseconds of a step, as published for these models on an H200.
    for shape, body, head, kept_bytes, step_ms in (("0.5b", 0.358e9, 0.136e9, 12 * 1024, 0.64), ("1.5b", 1.310e9, 0.233e9, 28 * 1024, 1.63),
                                                   ("7b", 6.525e9, 0.545e9, 56 * 1024, 5.1)):
        bench = bench_of(shape)
        got = bench.counts()
        expect(abs(got[0] / body - 1) < 0.005 and abs(got[1] / head - 1) < 0.005 and 2 * got[2] == kept_bytes, f"{shape}: {got}")
        prompts = [[1] * 512] * 256
        step = parts.decode_floor(bench, prompts, [2] * 256, 2, "bfloat16") - parts.decode_floor(bench, prompts, [1] * 256, 2, "bfloat16")
        expect(abs(1e3 * step / step_ms - 1) < 0.02, f"{shape}: a step takes at least {1e3 * step} ms, not {step_ms}")
    # A layer of Qwen3-30B-A3B has 604 million weights of experts. A row takes a sixteenth of them, and many rows take all.
    bench = bench_of("moe")
    attention = 4 * 2048 * (2 * 4096 + 2 * 512)
    for rows, share in ((1, 1 / 16), (16, 0.644), (512, 1.0)):
        got = (bench.weights_read(rows) - attention) / (4 * 604e6)
        expect(abs(got - share) < 0.001, f"{rows} rows read {got} of the experts, not {share}")
    expect(bench_of("0.5b").weights_read(5) == bench_of("0.5b").counts()[0], "without experts all rows read the same weights")
    bench = bench_of("0.5b")
    both = parts.decode_floor(bench, [[1] * 4, [1] * 4], [3, 9], 2, "bfloat16")
    alone = parts.decode_floor(bench, [[1] * 4], [9], 2, "bfloat16")
    expect(alone < both < 1.01 * alone, "a row that ended costs nothing, and the weights are read once for all rows")


def check_lengths():
    prompts, new_tokens = parts.queue_lengths()
    expect(sum(new_tokens) == 133966 and all(100 <= len(p) <= 1024 for p in prompts), "the queue has the lengths of nano-vllm's benchmark")
    lengths = parts.row_lengths(256)
    expect(max(lengths) == 1024 and abs(sum(lengths) / 256 - 169) < 1 and lengths != sorted(lengths), f"log-normal rows: {lengths[:8]}")


def check_search():
    for limit in (0, 1, 7, 8, 100, 1000):
        tried = []

        def fits(count):
            tried.append(count)
            return count <= limit

        found = parts.most_that_fits(fits, 1, 512)
        expect(found <= limit and len(tried) < 20, f"at most {limit} fit, and the search says {found}")
        expect(found >= min(limit, 512) * 7 // 8, f"{limit} fit, and the search says only {found}")
        expect(max(tried) <= 512, f"it tried {max(tried)}, more than it may")


def check_rows():
    answers = iter([{"seconds": [1.0, 9.0], "sums": [5]}, {"seconds": [2.0], "sums": [5]}])
    theirs = iter([{"seconds": [4.0]}, {"seconds": [4.0]}])
    row = bench_of("tiny").in_turns("a case", lambda: next(answers), lambda: next(theirs))
    expect(row["mortise"] == {"seconds": [1.0, 9.0, 2.0], "sums": [5]} and row["ratio"] == 2.0, f"two rounds: {row}")
    expect("2.00x" in turns.text_of(row) and "2000.000 ms" in turns.text_of(row), turns.text_of(row))

    def fails():
        raise RuntimeError("out of memory\nand more")

    row = bench_of("tiny").in_turns("a case", lambda: {"seconds": [1.0]}, fails)
    expect(row["peer"] == {"error": "RuntimeError: out of memory"} and "ratio" not in row and "error" not in row, f"a failing peer: {row}")
    row = bench_of("tiny").in_turns("a case", lambda: {"error": "no memory"}, lambda: {"seconds": [1.0]})
    expect(row["error"] == "no memory" and "no memory" in turns.text_of(row), f"Mortise fails: {row}")


def check_memory():
    asked = []

    class Program:
        def ask(self, **request):
            asked.append(request["optimizer"])
            fits = len(request["rows"]) <= (8 if request["optimizer"] else 20)
            return {} if fits else {"error": "the GPU has no memory left"}

    bench = bench_of("7b", Program())
    bench.args.repeats = 3
    bench.folder = lambda: "model"
    bench.torch.load = lambda folder, dtype: None
    alone, trained = parts.memory(bench)
    expect(alone["tokens"] in range(18 * 512, 20 * 512 + 1) and trained["tokens"] == 8 * 512, f"{alone} {trained}")
    expect("8 bits" in trained["case"] and set(asked) == {None, "adamw_8bit"}, f"{trained['case']}: {set(asked)}")
    expect(trained["peer_tokens"] == 0 and "peer" in trained["reasons"] and "error" not in trained, f"torch fails: {trained}")


def states(part, rows, shape="0.5b", is_gpu=True):
    return [(gate["gate"][:2], gate["measured"], gate["state"]) for gate in gates.gates_of(part, shape, rows, is_gpu)]


def check_gates():
    good, bad = {"case": "256 rows, against dynamic cache", "f": 0.35}, {"case": "256 rows, against static cache", "f": 0.349}
    other = {"case": "64 rows, against dynamic cache", "f": 0.1}
    expect(states("decode", [good, other]) == [("H1", 0.35, "met")], "a bound that is reached is met, and other cases do not count")
    expect(states("decode", [good, bad]) == [("H1", 0.349, "missed")], "the worst row counts")
    expect(states("decode", [good | {"error": "x"}]) == [("H1", None, "not measured")], "a row with an error has no number")
    expect(states("decode", [good], is_gpu=False) == [("H1", None, "not measured")], "only a GPU meets a gate")
    expect(states("decode", [good], shape="7b") == [], "a gate is for its shapes")
    head = [{"case": "4096 tokens, one_pass, torch in bfloat16", "ratio": 1.25, "extra_mib": 1000}, {"case": "4096 tokens, two_passes, torch in bfloat16", "ratio": 0.1},
            {"case": "65536 tokens, one_pass, torch in bfloat16", "ratio": 2.0, "extra_mib": 1431},
            {"case": "4096 tokens, one_pass, torch in bfloat16 compiled", "ratio": 0.5, "extra_mib": 9000}]
    (time, slowest, first), (memory, gigabytes, second) = states("head", head, "1.5b")
    expect((slowest, first, second) == (0.8, "met", "missed") and abs(gigabytes - 1.5005) < 1e-3, f"time and memory of the head: {slowest} {gigabytes}")
    train = [{"case": "rows of 512, against no checkpoints", "mfu_of_datasheet": 0.4, "mfu_of_measured": 0.5}]
    expect([states("train", train, shape)[0][2] for shape in ("0.5b", "1.5b")] == ["met", "missed"], "the two shapes have bounds of their own")
    step = [{"case": "0.5b, TRL best", "f": 0.03, "ratio": 8.5}, {"case": "0.5b, TRL default", "f": 0.9, "ratio": 90}]
    expect([state for _, _, state in states("step", step)] == ["missed", "met", "missed"], f"{states('step', step)}")
    names = {gate.part for gate in gates.GATES}
    expect(names <= set(parts.PARTS), f"gates of parts that there are: {names}")
    for gate in gates.gates_of("step", "0.5b", step, True):
        expect(gate["state"] in gates.text_of(gate) and gate["needed"] in gates.text_of(gate), gates.text_of(gate))


def check_losses():
    answers = {"losses": [{"name": "vanilla", "seconds": [4.0], "device": {"seconds": [2.0], "bytes": 80, "difference": 1e-7}},
                          {"name": "gspo", "seconds": [4.0], "device": {"seconds": [8.0], "bytes": 80, "difference": 0.1}},
                          {"name": "cispo", "seconds": [4.0], "device": None}]}
    bench = bench_of("0.5b", argparse.Namespace(ask=lambda **request: answers))
    bench.args.repeats = 1
    fast, wrong, host = parts.losses(bench)[:3]
    expect(fast["ratio"] == 2.0 and fast["bytes"] == 80 and "by the GPU" in fast["case"], f"{fast}")
    expect("error" in wrong and wrong["ratio"] == 0.5, f"other gradients: {wrong}")
    expect("by the host" in host["case"] and "ratio" not in host, f"no CUDA build: {host}")


def check_sizes():
    sizes = peers.gpu_sizes("0.5b")
    shape, work = turns.SHAPES["0.5b"], peers.WORKLOADS["0.5b"]
    rows = work["prompts_per_step"] * work["num_generations"]
    kept = bench_of("0.5b").counts()[2] * (work["prompt_length"] + work["completion_length"])
    expect(shape["hidden_size"] == work["model"]["hidden_size"], "the step is of the shape that is measured")
    expect(sizes["rollout.max_num_seqs"] == rows and 4 * rows * kept < sizes["rollout.kv_cache_mib"] << 20, "all rows run at once, even if float32 counts")


def cases(*cases):
    return json.dumps({"testsuites": [{"name": "Suite", "testsuite": list(cases)}]})


def check_reports():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one.json").write_text(cases({"name": "Good", "time": "1.5s", "result": "COMPLETED"}, {"name": "Quick", "time": "0.1s", "result": "COMPLETED"},
                                               {"name": "Bad", "time": "2s", "result": "COMPLETED", "failures": [{"failure": "x is 2"}]},
                                               {"name": "Left", "time": "0s", "result": "SKIPPED", "skipped": [{"message": "no cuDNN"}]},
                                               {"name": "Filtered", "time": "0s", "result": "SUPPRESSED"}))
        got = device_report.cases_of([folder / "one.json"])
        expect(got["passed"] == 2 and got["failed"] == [{"case": "Suite.Bad", "text": "x is 2"}], f"cases: {got}")
        expect(got["skipped"] == [{"case": "Suite.Left", "text": "no cuDNN"}] and got["slowest"][0] == {"case": "Suite.Bad", "seconds": 2.0}, f"cases: {got}")
        died = device_report.cases_of([folder / "one.json", folder / "two.json"])
        expect(died["failed"][1]["case"] == "two", f"a program without a report died: {died}")
        (folder / "log").write_text('== text\n{"workload": "c1"}\n{"workload": "c2"}\n')
        status = device_report.report(argparse.Namespace(what="lines", part="passes", device="cpu-as-device", log=folder / "log", google=[], wall_s=3, status=0,
                                                         out=folder / "out/a.json", measured=folder / "measured"))
        written = json.loads((folder / "out/a.json").read_text())
        expect(status == 0 and [line["workload"] for line in written["lines"]] == ["c1", "c2"] and written["versions"]["libtorch"], f"{written}")
        expect(not (folder / "measured").exists(), "only what a GPU measured is kept")
        (folder / "good.json").write_text(cases({"name": "Good", "time": "1s", "result": "COMPLETED"}))
        for status in (0, 139):
            ended = device_report.report(argparse.Namespace(what="tests", part="runs", device="cpu-as-device", log=folder / "log", google=[folder / "good.json"],
                                                            wall_s=3, status=status, out=folder / "out/b.json", measured=None))
            expect((ended == 0) == (status == 0), f"a program that ended with {status} gives {ended}")
    try:
        device_report.gpu_facts("cuda", "libnowhere.so")
        expect(False, "a machine without a driver has no GPU")
    except SystemExit as ended:
        expect(ended.code == 13, f"code {ended.code}")


check_floors()
check_lengths()
check_reports()
check_gates()
check_losses()
check_sizes()
check_memory()
check_search()
check_rows()
end()
