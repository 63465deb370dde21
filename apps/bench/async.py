"""A training step that samples on a server, in turn and ahead: trainer.mode sync against one_step_off and async.

  python async.py --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --out build/bench/async
      [--workload c2] [--rounds 3] [--steps 8]

The server and the trainer have a core each, so that they slow each other down as little as two machines do. One round runs
all modes in turns. A figure is the median step after the first two; `ratio` is the time in turn over the time ahead, the
median over the rounds.
"""
import os
import re
import statistics
import subprocess
import sys
import time

from ranks import command_of, parse, prepare, times_of

SERVER_CORE, TRAINER_CORE = sorted(os.sched_getaffinity(0))[:2]
MODES = ("sync", "one_step_off", "async")
NAMES = ("step", "gen", "update_weights", "old_log_prob", "update_actor")


def on_core(core):
    return lambda: os.sched_setaffinity(0, {core})


def start_server(args):
    told = args.out / "server.txt"
    with told.open("w") as out:
        server = subprocess.Popen([args.program, "serve", "--model", args.out / "models" / args.workload / "model", "--port",
                                   "0"], stdout=out, stderr=subprocess.STDOUT, preexec_fn=on_core(SERVER_CORE))
    while not (url := re.search(r"http://\S+", told.read_text())):
        if server.poll() is not None:
            sys.exit(f"the server ended: {told.read_text()}")
        time.sleep(0.05)
    return server, url.group(0)


def run(args, workload, url, mode):
    out = args.out / mode
    command = command_of(args, workload, out, {
        "trainer.num_threads": 1, "trainer.mode": mode, "rollout.name": "vllm", "rollout.vllm.url": url,
        "algorithm.rollout_correction.rollout_is": "token"})
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=on_core(TRAINER_CORE),
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        sys.exit(f"mortise failed with {mode}: {done.stderr}")
    return times_of(out, NAMES)


def main():
    args = parse(3)
    workload = prepare(args)
    server, url = start_server(args)
    try:
        rounds = [[run(args, workload, url, mode) for mode in MODES] for _ in range(args.rounds)]
    finally:
        server.terminate()
        server.wait()
    for i, mode in enumerate(MODES):
        print(mode + ": " + ", ".join(f"{name} {statistics.median(one[i][name] for one in rounds):.3f} s" for name in NAMES))
    for i, mode in enumerate(MODES[1:], 1):
        ratios = [one[0]["step"] / one[i]["step"] for one in rounds]
        print(f"ratio of {mode} {statistics.median(ratios):.3f} (rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
