"""A training step of several ranks against the same step in one process with as many threads, and what the ranks send.

  python ranks.py --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --out build/bench/ranks
      [--workload c2] [--ranks 2] [--rounds 5] [--steps 8] [--zero-stages 0,1,2,3] [--deterministic]

One round runs one process, and then the ranks with each stage of ZeRO. A figure is the median step after the first two;
`ratio` is the one-process time over the ranks' time, the median over the rounds. The bytes are those that the loopback
device carried in a run, per step, next to the least that any sum of the gradients has to send, and next to what --dry-run
says of all ranks. Nothing else should use the loopback device meanwhile. The peak memory is that of the rank that needs most.
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
THREADS = 2  # all runs use this many in all


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


def command_of(args, workload, out, settings):
    """A run of the workload into an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    folder = args.out / "models" / args.workload
    group = workload["prompt_length"] + workload["num_generations"] * workload["completion_length"]
    settings = {
        "model.path": folder / "model", "data.train_files": folder / "prompts.jsonl",
        "data.max_prompt_length": workload["prompt_length"], "data.max_response_length": workload["completion_length"],
        "data.train_batch_size": workload["prompts_per_step"], "actor.ppo_mini_batch_size": workload["prompts_per_step"],
        "actor.ppo_max_token_len_per_gpu": group,  # a group is a micro-batch, whatever the number of ranks
        "rollout.n": workload["num_generations"], "trainer.total_training_steps": args.steps, "trainer.default_local_dir": out,
        "plugins.paths": json.dumps([str(args.packs)]), **settings}
    return [args.program, "train", PEERS / "step.toml", *(f"{key}={value}" for key, value in settings.items())]


def times_of(out, names=("step", "gen", "old_log_prob", "update_actor")):
    """Medians over the steps of a run, in seconds."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()][DROPPED:]
    return {name: statistics.median(row.get(f"timing_s/{name}", 0.0) for row in rows) for name in names}


def command_of_rank(args, workload, num_ranks, out, settings):
    return command_of(args, workload, out, {
        "trainer.num_threads": args.threads // num_ranks, "trainer.deterministic": str(args.deterministic).lower(),
        "trainer.rank_check_freq": -1, **settings})


def place_of(rank, num_ranks, port):
    """The variables of a rank."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port} if num_ranks > 1 else {}


def predicted_bytes(args, workload, num_ranks, stage):
    """What --dry-run says that all ranks send in a step."""
    command = command_of_rank(args, workload, num_ranks, args.out / "dry_run", {"ranks.zero_stage": stage})
    env = {**os.environ, **place_of(0, num_ranks, "29500")}  # nobody is waited for
    text = subprocess.run([*command, "--dry-run", "--json"], env=env, check=True, stdout=subprocess.PIPE).stdout
    return num_ranks * json.loads(text)["ranks"]["bytes_sent_per_step"]


def start(args, workload, num_ranks, out, settings, environment):
    """The processes of a run into the folder `out`."""
    command = command_of_rank(args, workload, num_ranks, out, settings)
    port, processes = str(free_port()), []
    for rank in range(num_ranks):
        env = {**os.environ, **environment, **place_of(rank, num_ranks, port), "OMP_NUM_THREADS": str(args.threads // num_ranks)}
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env))
    return processes


def run(args, workload, num_ranks, stage=0, copies=1, settings=None, environment=None):
    """Median step in seconds, bytes on the loopback device per step, and the peak memory of a rank in bytes. `copies`: so
    many such runs at the same time, of which the first counts. `environment`: variables of their processes."""
    before = loopback_bytes()
    out = args.out / f"run_{num_ranks}"
    processes = []
    for copy in range(copies):
        folder = args.out / f"run_{num_ranks}_copy_{copy}" if copy else out
        processes += start(args, workload, num_ranks, folder, {"ranks.zero_stage": stage, **(settings or {})}, environment or {})
    peak = 0
    for process in processes:
        errors = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        peak = max(peak, usage.ru_maxrss * 1024)
        if status != 0:
            for other in processes[processes.index(process) + 1:]:
                other.kill()
            sys.exit(f"mortise failed with {num_ranks} ranks: {errors}")
    sent = (loopback_bytes() - before) / args.steps
    return times_of(out), sent, peak


def count_parameters(folder):
    header = (folder / "model.safetensors").open("rb")
    sizes = json.loads(header.read(int.from_bytes(header.read(8), "little")))
    return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for name, entry in sizes.items() if name != "__metadata__") // 4


def prepare(args):
    """The workload, whose model is made if it is not there."""
    if not (args.out / "models" / args.workload).exists():
        subprocess.run([sys.executable, PEERS / "make_models.py", args.out / "models", args.workload], check=True)
    return json.loads((PEERS / "workloads.json").read_text())[args.workload]


def parse(rounds, add_more=None, workload="c2"):
    """The options of a benchmark of steps; `add_more` adds its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--packs", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--workload", default=workload)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--steps", type=int, default=8)
    if add_more:
        add_more(parser)
    args = parser.parse_args()
    args.out, args.packs = args.out.resolve(), args.packs.resolve()
    return args


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--zero-stages", default="0,1,2,3")
    parser.add_argument("--deterministic", action="store_true")


def main():
    args = parse(5, add_options)
    args.threads = THREADS
    workload = prepare(args)
    stages = [int(stage) for stage in args.zero_stages.split(",")]
    alone, ranks = [], {stage: [] for stage in stages}
    for _ in range(args.rounds):
        alone.append(run(args, workload, 1))
        for stage in stages:
            ranks[stage].append(run(args, workload, args.ranks, stage))
    least = 2 * (args.ranks - 1) * 4 * count_parameters(args.out / "models" / args.workload / "model")
    for name, stage, runs in [("1 process", None, alone), *((f"{args.ranks} ranks, ZeRO {stage}", stage, ranks[stage]) for stage in stages)]:
        times = ", ".join(f"{part} {statistics.median(one[0][part] for one in runs):.3f} s" for part in runs[0][0])
        peak = statistics.median(one[2] for one in runs)
        print(f"{name}: {times}; peak {peak / 2**20:.0f} MiB")
        if runs is alone:
            continue
        ratios = [one[0]["step"] / other[0]["step"] for one, other in zip(alone, runs)]
        sent = statistics.median(one[1] for one in runs)
        print(f"  ratio {statistics.median(ratios):.3f} (rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)})")
        print(f"  sent per step {sent / 2**20:.2f} MiB, least for the gradients {least / 2**20:.2f} MiB, {sent / least:.2f} of it")
        said = predicted_bytes(args, workload, args.ranks, stage)
        print(f"  --dry-run says {said / 2**20:.2f} MiB, sent {sent / said:.2f} of it")


if __name__ == "__main__":
    main()
