"""How much a training step slows down on a busy machine: the quickstart's step, alone and next to other processes.

  python3 busy.py --bin build/release/bin --out build/bench/busy [--rounds 5] [--steps 12] [--cores 2] [--same-session]
                  [SCENARIO ...]

Everything runs on the same few cores. One round times every scenario once, in turns, so that a slow minute of the machine
affects all of them. A figure is the mean of a run's steps after the first two, relative to `alone` of the same round. The
table has the median over the rounds. The environment is passed on: GOMP_SPINCOUNT=300000 shows libgomp's default waiting.

Each of the other processes has a session of its own, as if it were started in another terminal. If Linux groups processes
by session (kernel.sched_autogroup_enabled), such a process has the share of a whole run with all its threads. Two hogs then
leave a run of two threads a third of two cores. With --same-session the other processes belong to the session of the run,
so each of them has the share of one thread, and two hogs leave it half.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

HOG = [sys.executable, "-c", "while True: pass"]
STORM = ["/bin/sh", "-c", "while :; do /bin/true; done"]
# The other processes, how many runs at once, the wanted ratio.
SCENARIOS = {
    "alone": ([], 1, 1.0),
    "one hog": ([HOG], 1, 1.5),
    "two hogs": ([HOG, HOG], 1, 2.3),
    "two runs": ([], 2, 2.2),
    "fork storm": ([STORM], 1, 2.0),
}
DROPPED = 2  # steps that warm up


def start_run(args, number):
    out = args.out / f"run{number}"
    shutil.rmtree(out, ignore_errors=True)
    task = args.out / "task"
    settings = {
        "model.path": task / "model", "data.train_files": task / "data/train.jsonl", "data.val_files": task / "data/val.jsonl",
        "trainer.total_training_steps": args.steps, "trainer.test_freq": -1, "trainer.val_before_train": "false",
        "trainer.save_freq": -1, "trainer.default_local_dir": out, "trainer.validation_data_dir": "null"}
    command = [args.bin / "mortise", "train", "configs/quickstart.toml", *(f"{key}={value}" for key, value in settings.items())]
    return out, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def step_seconds(args, scenario):
    others, num_runs, _ = SCENARIOS[scenario]
    # Each has its own process group, so that the storm's children end with it.
    group = {"process_group": 0} if args.same_session else {"start_new_session": True}
    started = [subprocess.Popen(command, **group) for command in others]
    try:
        seconds = []
        for out, process in [start_run(args, number) for number in range(num_runs)]:
            _, errors = process.communicate()
            if process.returncode != 0:
                sys.exit(f"mortise failed ({scenario}): {errors.decode()}")
            rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            seconds += [row["timing_s/step"] for row in rows if row["step"] > DROPPED]
        return statistics.fmean(seconds)
    finally:
        for process in started:
            os.killpg(process.pid, 9)
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--same-session", action="store_true", help="the other processes belong to the session of the run")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    args = parser.parse_args()
    if unknown := [name for name in args.scenarios if name not in SCENARIOS]:
        parser.error(f"there is no scenario {unknown[0]!r}: there are {', '.join(SCENARIOS)}")
    if args.rounds < 1 or args.steps <= DROPPED:
        parser.error(f"--rounds must be at least 1, --steps more than {DROPPED}")
    names = ["alone", *(name for name in args.scenarios or SCENARIOS if name != "alone")]

    cores = sorted(os.sched_getaffinity(0))[:args.cores]
    os.sched_setaffinity(0, cores)
    load = os.getloadavg()[0]
    print(f"{len(cores)} cores, {args.rounds} rounds of {args.steps} steps; load before: {load:.2f}")
    if load > 0.3:
        print("The machine is not idle: `alone` is not alone, and the ratios are smaller than they would be.")
    shutil.rmtree(args.out / "task", ignore_errors=True)
    (args.out / "task").mkdir(parents=True)
    subprocess.run([args.bin / "make_task", args.out / "task", "--seed", "42"], check=True, stdout=subprocess.DEVNULL)

    seconds = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names:
            seconds[name].append(step_seconds(args, name))
        print(f"round {number + 1}: " + ", ".join(f"{name} {values[-1]:.3f} s" for name, values in seconds.items()), flush=True)
    print(f"\n{'next to':12} {'s/step':>8} {'ratio':>7} {'range':>13} {'asked':>7}")
    for name in names:
        ratios = [time / alone for time, alone in zip(seconds[name], seconds["alone"])]
        wanted = "" if name == "alone" else f"<= {SCENARIOS[name][2]:.1f}"
        print(f"{name:12} {statistics.median(seconds[name]):8.3f} {statistics.median(ratios):7.2f} "
              f"{f'{min(ratios):.2f} to {max(ratios):.2f}':>13} {wanted:>7}")


if __name__ == "__main__":
    main()
