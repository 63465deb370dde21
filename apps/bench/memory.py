"""The peak memory of a run against what `mortise train --dry-run` says of it.

  python memory.py --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --out build/bench/memory
      [--workload memory] [--steps 3] [NAME...]

Each case is one run of a model of 75 M parameters that starts from its own folder. A line tells the estimate, the peak that
the system counted (ru_maxrss), the estimate over the peak, and the peak of what lies in no file (RssAnon). The first peak
also counts the pages of files that are mapped at that moment; the system takes these back when memory is short. The program
fails if an estimate is more than 15 % off. Of several ranks, the one that needs most counts.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ranks import command_of, parse, prepare

BFLOAT16 = {"model.dtype": "bfloat16"}
KL = {"actor.use_kl_loss": "true"}
LORA = {"model.lora_rank": 16}
CRITIC = {"algorithm.adv_estimator": "gae", "~algorithm.adv_params": None}
CASES = {
    "float32": {},
    "float32, KL": KL,
    "float32, critic": CRITIC,
    "float32, adamw_8bit": {"actor.optim.optimizer": "adamw_8bit"},
    "float32, LoRA": LORA,
    "float32, LoRA, KL": {**LORA, **KL},
    "bfloat16": BFLOAT16,
    "bfloat16, KL": {**BFLOAT16, **KL},
    "bfloat16, no masters": {**BFLOAT16, "actor.optim.master_weights": "false"},
    "bfloat16, LoRA": {**BFLOAT16, **LORA},
    "float32, state in files": {"actor.optim.offload": "file"},
    "float32, KL, state and reference in files": {**KL, "actor.optim.offload": "file", "ref.offload": "file"},
    "bfloat16, KL, state, masters and reference in files": {
        **BFLOAT16, **KL, "actor.optim.offload": "file", "ref.offload": "file"},
}


# Ranks on this machine; how many a name begins with. Some sample each row together, with parts of the layers in updates
# or with whole ones.
TOGETHER = {"rollout.tensor_model_parallel_size": 2}
WHOLE_ENDS = {**LORA, "model.modules_to_save": '["embed_tokens", "lm_head"]'}  # the adapter trains both as a whole
SHARED_TOKENS = {"actor.ulysses_sequence_parallel_size": 2}
RANK_CASES = {
    "2 ranks": {},
    "2 ranks, ZeRO 1": {"ranks.zero_stage": 1},
    "2 ranks, ZeRO 2": {"ranks.zero_stage": 2},
    "2 ranks, ZeRO 2, critic": {"ranks.zero_stage": 2, **CRITIC},
    "2 ranks, ZeRO 3": {"ranks.zero_stage": 3},
    "2 ranks, ZeRO 3, critic": {"ranks.zero_stage": 3, **CRITIC},
    "2 ranks, ZeRO 3, deterministic": {"ranks.zero_stage": 3, "trainer.deterministic": "true"},
    "2 ranks, ZeRO 2, deterministic": {"ranks.zero_stage": 2, "trainer.deterministic": "true"},
    "2 ranks, ZeRO 3, bfloat16": {"ranks.zero_stage": 3, **BFLOAT16},
    "2 ranks, ZeRO 3, KL, state and reference in files": {
        "ranks.zero_stage": 3, **KL, "actor.optim.offload": "file", "ref.offload": "file"},
    "2 ranks, ZeRO 3, LoRA": {"ranks.zero_stage": 3, **LORA},
    "2 ranks, ZeRO 1, LoRA, whole ends": {"ranks.zero_stage": 1, **WHOLE_ENDS},
    "2 ranks, ZeRO 2, LoRA, whole ends": {"ranks.zero_stage": 2, **WHOLE_ENDS},
    "2 ranks, ZeRO 3, LoRA, whole ends": {"ranks.zero_stage": 3, **WHOLE_ENDS},
    "2 ranks share tokens, ZeRO 3": {**SHARED_TOKENS, "ranks.zero_stage": 3},
    "2 ranks share tokens, ZeRO 2, LoRA, whole ends": {**SHARED_TOKENS, "ranks.zero_stage": 2, **WHOLE_ENDS},
    "4 ranks, ZeRO 1": {"ranks.zero_stage": 1},
    "4 ranks, ZeRO 2": {"ranks.zero_stage": 2},
    "4 ranks, ZeRO 3": {"ranks.zero_stage": 3},
    "2 ranks sample together": TOGETHER,
    "2 ranks sample together, KL": {**TOGETHER, **KL},
    "2 ranks sample together, LoRA": {**TOGETHER, **LORA},
    "2 ranks sample together, ZeRO 3": {**TOGETHER, "ranks.zero_stage": 3},
    "2 ranks sample together, ZeRO 3, the whole KL": {
        **TOGETHER, **KL, "actor.kl_loss_type": "full", "ranks.zero_stage": 3},
    "2 ranks sample together, ZeRO 3, deterministic": {
        **TOGETHER, "ranks.zero_stage": 3, "trainer.deterministic": "true"},
    "2 ranks, split layers": {"actor.tensor_model_parallel_size": 2},
    "2 ranks sample together, split layers": {**TOGETHER, "actor.tensor_model_parallel_size": 2},
    "2 ranks sample together, split layers, KL": {**TOGETHER, **KL, "actor.tensor_model_parallel_size": 2},
    "2 ranks sample together, split layers, LoRA": {
        **TOGETHER, **LORA, "actor.tensor_model_parallel_size": 2},
    "2 ranks sample together, split layers, Adafactor": {
        **TOGETHER, "actor.optim.optimizer": "adafactor", "actor.tensor_model_parallel_size": 2},
    "2 ranks sample together, split layers, KL, state and reference in files": {
        **TOGETHER, **KL, "actor.optim.offload": "file", "ref.offload": "file", "actor.tensor_model_parallel_size": 2},
    "2 ranks sample together, bfloat16 sampler": {**TOGETHER, "rollout.dtype": "bfloat16"},
}
LIMIT = 1.15


def children_of(process):
    try:
        return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []  # it is ending


def own_bytes(process):
    """What the process, or that of its ranks that has most, has at this moment that lies in no file."""
    return max(own_bytes_of(one) for one in [process, *children_of(process)])


def own_bytes_of(process):
    status = Path(f"/proc/{process}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # it is ending


def peaks_of(command):
    """The peaks of all pages and of those that lie in no file."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors,
                                   env={**os.environ, "OMP_NUM_THREADS": "2"})
        own, ended = 0, 0
        while ended == 0:
            own = max(own, own_bytes(process.pid))
            time.sleep(0.01)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if status != 0:
            errors.seek(0)
            sys.exit(f"mortise failed: {errors.read().decode()}")
    return usage.ru_maxrss * 1024, own


def estimate_of(command):
    done = subprocess.run([*command, "--dry-run", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"mortise failed: {done.stderr}")
    return json.loads(done.stdout)["memory_bytes"]


def add_options(parser):
    parser.set_defaults(workload="memory", steps=3)
    parser.add_argument("names", nargs="*", default=[*CASES, *RANK_CASES])


def main():
    args = parse(1, add_options)
    workload = prepare(args)
    worst = 1.0
    print(f"{'case':<52} {'estimate':>9} {'peak':>9} ratio {'in no file':>10}")
    for name in args.names:
        num_ranks = int(name.split()[0]) if name in RANK_CASES else 1
        case = RANK_CASES[name] if name in RANK_CASES else CASES[name]
        settings = {key: value for key, value in case.items() if value is not None}
        removed = [key for key, value in case.items() if value is None]
        command = command_of(args, workload, args.out / "run", {"trainer.num_threads": max(1, 2 // num_ranks), **settings}) + removed
        if num_ranks > 1:
            command[1:1] = ["launch", "--nproc", str(num_ranks), "--log-dir", args.out / "logs"]
        estimate = estimate_of(command)["total"]
        peak, own = peaks_of(command)
        worst = max(worst, estimate / peak, peak / estimate)
        print(f"{name:<52} {estimate / 2**20:>5.0f} MiB {peak / 2**20:>5.0f} MiB {estimate / peak:>5.2f} "
              f"{own / 2**20:>6.0f} MiB", flush=True)
    print(f"the estimate is at most {100 * (worst - 1):.0f} % off")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
