"""A step of Mortise and of TRL, each in one process with 2 threads and in 2 ranks with 1 thread, in turns.

  python ranks_trl.py --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --out build/bench/ranks
      [--workload c1,c1v,c2] [--rounds 3] [--steps 8]

TRL's ranks are those of accelerate: DDP over Gloo, with torchrun's variables. TRL runs at its best settings (peers/trl_side.py).
In Mortise a group of completions is a micro-batch, as in ranks.py. One round runs all four. `step` is the median step after the
first two. `processor` is the mean processor time of these steps, of all processes of a run together. Other programs on the
machine stretch the first and hardly change the second. A ratio is TRL's time over Mortise's in one round, the median over the
rounds. The ratio of ranks should not be lower than that of one process. Next to other programs, set OMP_WAIT_POLICY=passive for
both: otherwise the threads of TRL's one process spin while they wait for each other, and its step takes many times as long.
"""
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ranks import DROPPED, PEERS, THREADS, command_of, free_port, parse, prepare, times_of

TICKS = os.sysconf("SC_CLK_TCK")
RUNS = [(name, num_ranks) for num_ranks in (1, THREADS) for name in ("mortise", "trl")]


def environments(num_ranks):
    """The environment of each process: what torchrun sets, or nothing for one process."""
    port, threads = str(free_port()), {"OMP_NUM_THREADS": str(THREADS // num_ranks)}
    if num_ranks == 1:
        return [{**os.environ, **threads}]
    size = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**os.environ, **threads, **size, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def start(command, num_ranks, stdout=subprocess.DEVNULL):
    return [subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, env=env, text=True) for env in environments(num_ranks)]


def end(name, processes):
    """What each process printed. All are read at once: a rank whose pipe is full would keep the others waiting."""
    with ThreadPoolExecutor(len(processes)) as pool:
        texts = list(pool.map(subprocess.Popen.communicate, processes))
    for process, (_, errors) in zip(processes, texts):
        if process.returncode != 0:
            sys.exit(f"{name} failed with {len(processes)} ranks: {errors}")
    return [out for out, _ in texts]


def is_running(process):
    """Leaves a process that has ended as it is, so that its times can still be read."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def processor_seconds(processes):
    """The processor time of running processes so far."""
    total = 0
    for process in processes:
        with open(f"/proc/{process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def run_mortise(args, workload, num_ranks):
    out = args.out / f"trl_{num_ranks}"
    # The last row is written before the save at the end, which is no part of a step.
    command = command_of(args, workload, out, {"trainer.num_threads": THREADS // num_ranks, "trainer.rank_check_freq": -1})
    processes, at = start(command, num_ranks), {}
    while any(map(is_running, processes)) and args.steps not in at:
        time.sleep(0.01)
        rows = out / "metrics.jsonl"
        done = rows.read_bytes().count(b"\n") if rows.exists() else 0
        if done >= DROPPED and done not in at:
            at[done] = processor_seconds(processes)
    end("mortise", processes)
    first, last = min(at), max(at)
    if last == first:
        sys.exit("the steps are too short to be watched; raise --steps")
    return {"step": times_of(out)["step"], "processor": (at[last] - at[first]) / (last - first)}


def run_trl(args, num_ranks):
    command = [sys.executable, PEERS / "trl_side.py", args.out / "models", args.workload, "--steps", str(args.steps), "--drop",
               str(DROPPED), "--threads", str(THREADS // num_ranks)]
    ranks = [json.loads(text.strip().splitlines()[-1]) for text in end("TRL", start(command, num_ranks, subprocess.PIPE))]
    return {"step": max(rank["step_s"] for rank in ranks), "processor": sum(rank["processor_s"] for rank in ranks)}


def tell(workload, rounds):
    for name, num_ranks in RUNS:
        times = {key: statistics.median(one[name, num_ranks][key] for one in rounds) for key in ("step", "processor")}
        what = "1 process" if num_ranks == 1 else f"{num_ranks} ranks"
        print(f"{workload} {name:8s}{what:10s} step {times['step']:.3f} s, processor {times['processor']:.3f} s")
    for num_ranks in (1, THREADS):
        texts = []
        for key in ("step", "processor"):
            ratios = [one["trl", num_ranks][key] / max(1e-9, one["mortise", num_ranks][key]) for one in rounds]
            texts.append(f"{key} {statistics.median(ratios):.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")
        print(f"{workload} ratio {'of 1 process' if num_ranks == 1 else f'of {num_ranks} ranks'}: {'; '.join(texts)}", flush=True)


def main():
    args = parse(3, workload="c1,c1v,c2")
    for name in args.workload.split(","):
        args.workload = name
        workload, rounds = prepare(args), []
        for _ in range(args.rounds):
            rounds.append({(engine, num_ranks): run_mortise(args, workload, num_ranks) if engine == "mortise" else
                           run_trl(args, num_ranks) for engine, num_ranks in RUNS})
        tell(name, rounds)


if __name__ == "__main__":
    main()
