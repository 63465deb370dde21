# What ./dev bench device computes from what it measures. bench_device.py SOURCE_DIR. Needs the standard library alone.
import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(sys.argv[1]) / "apps/bench/device"))
import parts
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


check_floors()
check_lengths()
check_memory()
check_search()
check_rows()
end()
