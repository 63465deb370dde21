"""Where the time of a training step goes, on the workloads of workloads.json.

  python step.py --program build/release/bin/bench_step --packs DIR --out build/bench [c1 c1v c2] [float32|bfloat16] [--steps N] [--threads N]

Runs the trainer with a listener to its timers (bench_step.cpp): on one thread by processor time, on more by the clock.
Prints a table per workload, and writes the same numbers to OUT/step-WORKLOAD-DTYPE[-THREADS].json.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

import peers

STEPS = {"c1": 60, "c1v": 12, "c2": 8}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", help="workloads, and at most one of float32 and bfloat16")
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--packs", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=0, help="steps of a run; 0: a number that suits the workload")
    parser.add_argument("--threads", type=int, default=1, help="with more than 1 the machine must be idle")
    args = parser.parse_args()
    dtypes = [w for w in args.words if w in ("float32", "bfloat16")] or ["float32"]
    names = [w for w in args.words if w not in dtypes] or list(STEPS)
    unknown = [n for n in names if n not in STEPS]
    if unknown or len(dtypes) > 1:
        parser.error(f"unknown workload {unknown[0]!r}; there are {', '.join(STEPS)}" if unknown else "give one dtype")
    dtype = dtypes[0]
    suffix = "" if args.threads == 1 else f"-{args.threads}"
    peers.make_models(args, names)
    if dtype == "bfloat16":
        print(peers.tell_bfloat16())
    for name in names:
        out = args.out / f"step-{name}"
        subprocess.run(["rm", "-rf", out], check=True)
        settings = peers.mortise_settings(args, name, out) | {
            "model.dtype": dtype, "trainer.num_threads": args.threads, "trainer.total_training_steps": args.steps or STEPS[name]}
        result = args.out / f"step-{name}-{dtype}{suffix}.json"
        print(f"\n{name}, {dtype}", flush=True)
        run = subprocess.run([args.program, peers.HERE / "step.toml", result, *(f"{k}={v}" for k, v in settings.items())],
                             env={**os.environ, "OMP_NUM_THREADS": str(args.threads)}, stderr=subprocess.PIPE)
        if run.returncode != 0:
            sys.exit(f"bench_step failed on {name}: {run.stderr.decode()}")


if __name__ == "__main__":
    main()
