"""A training step of several ranks against the same step in one process with as many threads, and what the ranks send.

  python ranks.py --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --out build/bench/ranks
      [--workload c2] [--ranks 2] [--rounds 5] [--steps 8] [--deterministic]

One round runs both in turns. A figure is the median step after the first two; `ratio` is the one-process time over the
ranks' time, the median over the rounds. The bytes are those that the loopback device carried in a run, per step, next to the
least that any sum of the gradients has to send. Nothing else should use the loopback device meanwhile.
"""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
DROPPED = 2  # steps that warm up
THREADS = 2  # both runs use this many in all


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def loopback_bytes():
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0


def run(args, workload, num_ranks):
    """Median step in seconds, and bytes on the loopback device per step."""
    out = args.out / f"run_{num_ranks}"
    shutil.rmtree(out, ignore_errors=True)
    folder = args.out / "models" / args.workload
    group = workload["prompt_length"] + workload["num_generations"] * workload["completion_length"]
    settings = {
        "model.path": folder / "model", "data.train_files": folder / "prompts.jsonl",
        "data.max_prompt_length": workload["prompt_length"], "data.max_response_length": workload["completion_length"],
        "data.train_batch_size": workload["prompts_per_step"], "actor.ppo_mini_batch_size": workload["prompts_per_step"],
        "actor.ppo_max_token_len_per_gpu": group,  # a group is a micro-batch, whatever the number of ranks
        "rollout.n": workload["num_generations"], "trainer.total_training_steps": args.steps, "trainer.default_local_dir": out,
        "trainer.num_threads": THREADS // num_ranks, "trainer.deterministic": str(args.deterministic).lower(),
        "trainer.rank_check_freq": -1, "plugins.paths": json.dumps([str(args.packs)])}
    command = [args.program, "train", PEERS / "step.toml", *(f"{key}={value}" for key, value in settings.items())]
    port, before, processes = str(free_port()), loopback_bytes(), []
    for rank in range(num_ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port} if num_ranks > 1 else {}
        env = {**os.environ, **place, "OMP_NUM_THREADS": str(THREADS // num_ranks)}
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env))
    for process in processes:
        errors = process.communicate()[1].decode()
        if process.returncode != 0:
            sys.exit(f"mortise failed with {num_ranks} ranks: {errors}")
    sent = (loopback_bytes() - before) / args.steps
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][DROPPED:]
    parts = {name: statistics.median(row.get(f"timing_s/{name}", 0.0) for row in rows)
             for name in ("step", "gen", "old_log_prob", "update_actor")}
    return parts, sent


def count_parameters(folder):
    header = (folder / "model.safetensors").open("rb")
    sizes = json.loads(header.read(int.from_bytes(header.read(8), "little")))
    return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in sizes.items() if name != "__metadata__") // 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--packs", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--workload", default="c2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--deterministic", action="store_true")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.packs = args.packs.resolve()
    workload = json.loads((PEERS / "workloads.json").read_text())[args.workload]
    if not (args.out / "models" / args.workload).exists():
        subprocess.run([sys.executable, PEERS / "make_models.py", args.out / "models", args.workload], check=True)
    ratios, sent, times = [], [], {1: [], args.ranks: []}
    for _ in range(args.rounds):
        alone, _ = run(args, workload, 1)
        ranks, on_wire = run(args, workload, args.ranks)
        ratios.append(alone["step"] / ranks["step"])
        sent.append(on_wire)
        times[1].append(alone)
        times[args.ranks].append(ranks)
    least = 2 * (args.ranks - 1) * 4 * count_parameters(args.out / "models" / args.workload / "model")
    for num_ranks, runs in times.items():
        print(f"{num_ranks} x {THREADS // num_ranks} threads:",
              ", ".join(f"{name} {statistics.median(one[name] for one in runs):.3f} s" for name in runs[0]))
    print(f"ratio {statistics.median(ratios):.3f} (rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)})")
    print(f"sent per step {statistics.median(sent) / 2**20:.2f} MiB, least for the gradients {least / 2**20:.2f} MiB, "
          f"{statistics.median(sent) / least:.2f} of it")


if __name__ == "__main__":
    main()
