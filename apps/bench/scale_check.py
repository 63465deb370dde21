"""The check of scale.py on this machine: runs of one rank predict runs of more ranks, which are measured too."""
import mmap
import os
import socket
import statistics
import threading
import time

from ranks import count_parameters, prepare, run  # the same runs as ./dev bench ranks

# Ranks with stage 3 run their own forward pass, and those with a lower stage reuse what sampling has computed. With stage 3 the
# program also gives the memory of freed matrices back at once (give_freed_matrices_back), which glibc does by this variable.
SETTINGS = {True: {"rollout.reuse_forward_mib": 0}, False: {}}
ENVIRONMENT = {True: {"MALLOC_MMAP_THRESHOLD_": str(4 << 20)}, False: {}}
LEAST, MOST = 0.8, 1.25  # measured / predicted
STEADY = 1.15  # the predictions before and after a run differ by less, if the machine has not changed its speed


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


def fresh_rate():
    """Bytes/s at which numbers are copied into memory that the system has just given, and that goes back to it."""
    block, count = bytes(8 << 20), 32
    begin = time.perf_counter()
    for _ in range(count):
        with mmap.mmap(-1, len(block)) as fresh:
            fresh.write(block)
    return count * len(block) / (time.perf_counter() - begin)


def measure(args, workload, prompts, ranks, stage, copies=1, spreads=False):
    args.threads = ranks  # one for each
    return run(args, {**workload, "prompts_per_step": prompts}, ranks, stage, copies, SETTINGS[spreads], ENVIRONMENT[spreads])[0]


def alone(args, workload, prompts, copies, spreads, known):
    """Seconds of a step of one rank with so many prompts, while `copies` of it run: as many as there will be ranks, so that they
    share processors, caches and memory as these do."""
    key = (prompts, copies, spreads)
    if key not in known:
        known[key] = measure(args, workload, prompts, 1, 0, copies, spreads)["step"]
    return known[key]


def predict(args, workload, ranks, stage, bytes_of, rates, known):
    """A rank's step is that of one rank with its prompts, and what travels. With stage 3, gathered weights go through two pieces
    of fresh memory: where they arrive, and the matrices."""
    cores = len(os.sched_getaffinity(0))
    most = -(-workload["prompts_per_step"] // ranks)
    passes = most  # a prompt's group is a micro-batch
    sent = (ranks - 1) / ranks * bytes_of * {0: 2, 2: passes + 1, 3: passes * 3 + 1}[stage]
    gathered = bytes_of * (passes * 2 + 1) if stage == 3 and ranks > 1 else 0
    # Whoever sends keeps a processor busy, and so does whoever receives.
    at_once = min(ranks, cores)
    return alone(args, workload, most, max(ranks, cores), stage == 3, known) + ranks * sent / rates["wire"] / at_once + (
        ranks * 2 * gathered / rates["fresh"] / at_once)


def rounds_of(args, workload, ranks, stage, bytes_of):
    """Pairs of predicted and measured seconds, and how many rounds were left out. The machine may be slower for a while, so what
    predicts a run is measured before and after it, and the mean counts. A round in which both differ much is made again, if
    not more rounds than were asked for are left out already."""
    def predicted():
        return predict(args, workload, ranks, stage, bytes_of, {"wire": wire_rate(), "fresh": fresh_rate()}, {})

    copies, pairs, left_out = len(os.sched_getaffinity(0)) if ranks == 1 else 1, [], 0
    before = predicted()
    while len(pairs) < args.rounds:
        real = measure(args, workload, workload["prompts_per_step"], ranks, stage, copies)["step"]
        after = predicted()
        if max(before, after) > STEADY * min(before, after) and left_out < args.rounds:
            left_out += 1
        else:
            pairs.append(((before + after) / 2, real))
        before = after
    return pairs, left_out


def check(args):
    """Predicts each run from runs of one rank, and then measures it. Returns those that the model predicts badly: the median of
    the rounds counts."""
    workload, bad = prepare(args), []
    bytes_of = 4 * count_parameters(args.out / "models" / args.workload / "model")
    print(f"{len(os.sched_getaffinity(0))} processors\n")
    print("| ranks | ZeRO | predicted | measured | measured / predicted | each round | left out |\n|---|---|---|---|---|---|---|")
    for ranks in args.ranks_list:
        for stage in args.stages if ranks > 1 else args.stages[:1]:
            pairs, left_out = rounds_of(args, workload, ranks, stage, bytes_of)
            ratios = [real / seconds for seconds, real in pairs]
            ratio = statistics.median(ratios)
            predicted, measured = (statistics.median(column) for column in zip(*pairs))
            print(f"| {ranks} | {stage} | {predicted:.3f} s | {measured:.3f} s | {ratio:.2f} | "
                  f"{', '.join(f'{one:.2f}' for one in ratios)} | {left_out} |", flush=True)
            if not LEAST <= ratio <= MOST:
                bad.append(f"{ranks} ranks with stage {stage}: measured / predicted is {ratio:.2f}")
    return bad
