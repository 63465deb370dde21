"""The check of scale.py on this machine: one rank at two batch sizes predicts runs of more ranks, which are measured too."""
import os
import socket
import threading
import time
from dataclasses import dataclass

from ranks import count_parameters, prepare, run  # the same runs as ./dev bench ranks


def wire_rate():
    """Bytes/s through a TCP connection on the loopback device, from one process to itself."""
    server = socket.create_server(("127.0.0.1", 0))
    block, count = b"\0" * (1 << 20), 256
    def serve():
        with server.accept()[0] as connection:
            while connection.recv(1 << 20):
                pass
    thread = threading.Thread(target=serve)
    thread.start()
    begin = time.perf_counter()
    with socket.create_connection(server.getsockname()) as client:
        for _ in range(count):
            client.sendall(block)
    thread.join()
    return count * len(block) / (time.perf_counter() - begin)


def measure(args, workload, prompts, ranks, stage, copies=1, settings=None):
    args.threads = ranks  # one for each
    return run(args, {**workload, "prompts_per_step": prompts}, ranks, stage, copies, settings)[0]


@dataclass
class Costs:
    """Seconds of a step of one rank: of each part for a prompt and for the step, and the rest of the step."""
    slope: dict
    fixed: dict
    rest: float

    def seconds(self, prompts):
        return self.rest + sum(self.fixed[part] + self.slope[part] * prompts for part in self.slope)


def costs_of(args, workload, settings):
    """From two sizes of a step. Each processor runs a copy, as it runs a rank later: they share caches and memory."""
    full = workload["prompts_per_step"]
    copies = len(os.sched_getaffinity(0))
    whole, half = (measure(args, workload, size, 1, 0, copies, settings) for size in (full, full // 2))
    slope = {part: (whole[part] - half[part]) / (full - full // 2) for part in ("gen", "old_log_prob", "update_actor")}
    fixed = {part: whole[part] - slope[part] * full for part in slope}
    return Costs(slope, fixed, whole["step"] - sum(whole[part] for part in slope))


def check(args):
    """One rank at two batch sizes gives the costs; more ranks are predicted from them and then measured."""
    workload = prepare(args)
    full = workload["prompts_per_step"]
    cores = len(os.sched_getaffinity(0))
    # Ranks with stage 3 run their own forward pass; those with a lower stage reuse what sampling has computed.
    settings = {True: {"rollout.reuse_forward_mib": 0}, False: {}}
    costs = {own: costs_of(args, workload, settings[own]) for own in sorted({stage == 3 for stage in args.stages})}
    bytes_of = 4 * count_parameters(args.out / "models" / args.workload / "model")
    rate = wire_rate()
    alone = " and ".join(f"{cost.seconds(full):.3f} s{' with its own forward pass' if own else ''}" for own, cost in costs.items())
    print(f"{cores} processors; loopback {rate / 1e9:.2f} GB/s; a step of one rank: {alone}\n")
    print("| ranks | ZeRO | predicted | measured | measured / predicted |\n|---|---|---|---|---|")
    for ranks in args.ranks_list:
        for stage in args.stages if ranks > 1 else args.stages[:1]:
            most = -(-full // ranks)
            crowd = max(1.0, ranks / cores)  # ranks that share a processor
            passes = most  # a prompt's group is a micro-batch
            sent = (ranks - 1) / ranks * bytes_of * {0: 2, 2: passes + 1, 3: passes * 3 + 1}[stage]
            # Whoever sends keeps a processor busy, and so does whoever receives.
            wire = ranks * sent / rate / min(ranks, cores)
            seconds = costs[stage == 3].seconds(most) * crowd + wire
            copies = cores if ranks == 1 else 1
            real = measure(args, workload, full, ranks, stage, copies)["step"]
            print(f"| {ranks} | {stage} | {seconds:.3f} s | {real:.3f} s | {real / seconds:.2f} |", flush=True)
