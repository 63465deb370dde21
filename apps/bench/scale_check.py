"""The check of scale.py on this machine: one rank at two batch sizes predicts runs of more ranks, which are measured too."""
import os
import socket
import threading
import time

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


def measure(args, workload, prompts, ranks, stage):
    args.threads = ranks  # one for each
    return run(args, {**workload, "prompts_per_step": prompts}, ranks, stage)[0]


def check(args):
    """One rank at two batch sizes gives the costs; more ranks are predicted from them and then measured."""
    workload = prepare(args)
    full = workload["prompts_per_step"]
    cores = len(os.sched_getaffinity(0))
    whole, half = measure(args, workload, full, 1, 0), measure(args, workload, full // 2, 1, 0)
    slope = {part: (whole[part] - half[part]) / (full - full // 2) for part in ("gen", "old_log_prob", "update_actor")}
    fixed = {part: whole[part] - slope[part] * full for part in slope}
    rest = whole["step"] - sum(whole[part] for part in slope)
    bytes_of = 4 * count_parameters(args.out / "models" / args.workload / "model")
    rate = wire_rate()
    print(f"{cores} processors; loopback {rate / 1e9:.2f} GB/s; one rank: {whole['step']:.3f} s a step\n")
    print("| ranks | ZeRO | predicted | measured | measured / predicted |\n|---|---|---|---|---|")
    for ranks in args.ranks_list:
        for stage in ((0,) if ranks == 1 else (0, 2, 3)):
            most = -(-full // ranks)
            crowd = max(1.0, ranks / cores)  # ranks that share a processor
            passes = most  # a prompt's group is a micro-batch
            sent = (ranks - 1) / ranks * bytes_of * {0: 2, 2: passes + 1, 3: passes * 3 + 1}[stage]
            seconds = rest + sum(fixed[part] + slope[part] * most for part in slope)
            # Whoever sends keeps a processor busy, and so does whoever receives.
            seconds = seconds * crowd + ranks * sent / rate / min(ranks, cores)
            real = measure(args, workload, full, ranks, stage)["step"]
            print(f"| {ranks} | {stage} | {seconds:.3f} s | {real:.3f} s | {real / seconds:.2f} |")
