"""Mortise and TRL on the workloads of workloads.json: same models, prompts, lengths and batch shapes.

  python peers.py --program build/release/bin/mortise --packs DIR --out build/bench [c1 c1v c2] [--runs 3] [--variant best|kl|default|bfloat16]

Runs are interleaved (Mortise, TRL, Mortise, ...). A run has 10 steps, of which the first 3 are dropped. The result is the
median over the runs of each run's median step. scoring_s is rewards and advantages, log_prob_s the passes of the reference and
of the old policy (--variant kl has them). first_step_s is the time from the program's start to the end of its first step.
Prints a table, and writes one JSON object per run to OUT/peers.jsonl. The part step of ../device compares the two on a GPU
(workload 0.5b).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOADS = json.loads((HERE / "workloads.json").read_text())


def mortise_settings(args, name, out):
    """The settings of a workload, over those of step.toml. The run writes into `out`."""
    w = WORKLOADS[name]
    return {
        "model.path": args.out / name / "model", "data.train_files": json.dumps([str(args.out / name / "prompts.jsonl")]),
        "data.max_prompt_length": w["prompt_length"], "data.max_response_length": w["completion_length"],
        "data.train_batch_size": w["prompts_per_step"], "actor.ppo_mini_batch_size": w["prompts_per_step"],
        "rollout.n": w["num_generations"], "trainer.total_training_steps": args.steps, "trainer.default_local_dir": out,
        "plugins.paths": json.dumps([str(args.packs)])}


def gpu_sizes(name):
    """Settings for a GPU, as TRL has its best micro-batch: all rows of a step run at once, with room for their keys and values. Passes of
    training have the default of a run on a GPU."""
    w = WORKLOADS[name]
    return {"rollout.max_num_seqs": w["prompts_per_step"] * w["num_generations"], "rollout.kv_cache_mib": 65536}


def make_models(args, names):
    """Makes the models and prompts of the workloads that have none yet."""
    missing = [n for n in names if not (args.out / n / "prompts.jsonl").exists()]
    if missing:
        subprocess.run([sys.executable, HERE / "make_models.py", args.out, *missing], check=True, stdout=subprocess.DEVNULL)


def bfloat16_instructions():
    """The names in /proc/cpuinfo of this CPU's instructions that multiply bfloat16 numbers."""
    words = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "").split()
    return [name for name in ("avx512_bf16", "amx_bf16") if name in words]


def computes_bfloat16(args):
    return args.variant == "bfloat16" or args.device.startswith("cuda")


def trl_device(device):
    return device if device.startswith("cuda") else "cpu"


def tell_bfloat16():
    found = bfloat16_instructions()
    if found:
        return "bfloat16: this CPU multiplies it by " + " and ".join(found)
    return ("bfloat16: this CPU has no instructions that multiply it (avx512_bf16 or amx_bf16). Both programs widen the numbers, "
            "so the times say nothing about a CPU that has them.")


def wait_for(process, metrics):
    """Waits for a run. Returns its status and usage, and when the first line of its metrics was complete."""
    while not (metrics.exists() and b"\n" in metrics.read_bytes()):
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            return status, usage, time.monotonic()
        time.sleep(0.002)
    first_step = time.monotonic()
    _, status, usage = os.wait4(process.pid, 0)
    return status, usage, first_step


def run_mortise(args, name, run):
    w = WORKLOADS[name]
    out = args.out / f"mortise-{name}"
    subprocess.run(["rm", "-rf", out], check=True)
    settings = mortise_settings(args, name, out)
    settings["model.device"] = args.device
    if args.device.startswith("cuda"):
        settings |= gpu_sizes(name)
    if computes_bfloat16(args):
        settings["model.dtype"] = "bfloat16"
    if args.variant == "kl":
        settings |= {"actor.use_kl_loss": "true", "actor.kl_loss_coef": 0.04}
    command = [args.program, "train", HERE / "step.toml", *(f"{k}={v}" for k, v in settings.items())]
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, "OMP_NUM_THREADS": "2"})
        status, usage, first_step = wait_for(process, out / "metrics.jsonl")
        if status != 0:
            errors.seek(0)
            sys.exit(f"mortise failed on {name}: {errors.read().decode()}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(r["response_length/min"] == w["completion_length"] for r in rows), "a completion is not of the forced length"
    kept = rows[args.drop:]
    pick = lambda key: statistics.median(r.get(key, 0.0) for r in kept)
    return {"engine": "mortise", "workload": name, "run": run, "step_s": pick("timing_s/step"), "generation_s": pick("timing_s/gen"),
            "scoring_s": pick("timing_s/reward") + pick("timing_s/adv"), "log_prob_s": pick("timing_s/ref") + pick("timing_s/old_log_prob"),
            "update_s": pick("timing_s/update_actor"), "first_step_s": first_step - began, "peak_rss_mb": usage.ru_maxrss / 1024, "process_s": time.monotonic() - began,
            "entropy_first_last": [rows[0]["entropy"], rows[-1]["entropy"]]}


def run_trl(args, name, run):
    variant = ["--variant", "best" if args.variant == "bfloat16" else args.variant, *(["--bf16"] if computes_bfloat16(args) else [])]
    command = [sys.executable, HERE / "trl_side.py", args.out, name, *variant, "--device", trl_device(args.device), "--steps", str(args.steps), "--drop", str(args.drop)]
    began = time.monotonic()
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    r = json.loads(text.strip().splitlines()[-1])
    return {"engine": "trl", "workload": name, "run": run, "step_s": r["step_s"], "generation_s": r["phases_s"]["generation"],
            "scoring_s": r["phases_s"]["scoring"] - r["phases_s"]["reference"], "log_prob_s": r["phases_s"]["reference"],
            "update_s": r["phases_s"]["update"], "first_step_s": r["startup_s"] + r["first_step_s"], "peak_rss_mb": r["peak_rss_mb"],
            "process_s": time.monotonic() - began}


def ratio(trl, mortise):
    return f"{trl / mortise:13.1f}x" if mortise > 0 else f"{'-':>14s}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=["c1", "c1v", "c2"])
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--packs", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--drop", type=int, default=3)
    parser.add_argument("--variant", default="best", choices=["best", "kl", "default", "bfloat16"])
    parser.add_argument("--device", default="cpu", help="model.device; on a GPU both train with bfloat16")
    args = parser.parse_args()
    make_models(args, args.workloads)
    if args.variant == "bfloat16":
        print(tell_bfloat16(), file=sys.stderr)
    results = []
    with open(args.out / "peers.jsonl", "a") as log:
        for name in args.workloads:
            for run in range(args.runs):
                for engine in (run_mortise, run_trl):
                    results.append(engine(args, name, run))
                    log.write(json.dumps({**results[-1], "variant": args.variant, "bfloat16_instructions": bfloat16_instructions()}) + "\n")
                    log.flush()
                    print(f"  {results[-1]['engine']:8s} {name:4s} run {run + 1}: {results[-1]['step_s']:.4f} s a step", file=sys.stderr)
    if args.variant == "bfloat16":
        print("\n" + tell_bfloat16())
    keys = ["step_s", "generation_s", "scoring_s", "log_prob_s", "update_s", "first_step_s", "peak_rss_mb"]
    print(f"\n{'workload':9s}{'engine':9s}" + "".join(f"{k:>14s}" for k in keys))
    for name in args.workloads:
        medians = {}
        for engine in ("mortise", "trl"):
            mine = [r for r in results if r["workload"] == name and r["engine"] == engine]
            medians[engine] = {k: statistics.median(r[k] for r in mine) for k in keys}
            print(f"{name:9s}{engine:9s}" + "".join(f"{medians[engine][k]:14.4f}" for k in keys))
        print(f"{name:9s}{'ratio':9s}" + "".join(ratio(medians["trl"][k], medians["mortise"][k]) for k in keys))


if __name__ == "__main__":
    main()
