"""When sampling ahead pays: the modes of docs/async.md on 8 to 10,240 GPUs, simulated in virtual time with a fixed seed.

  python scale_async.py              the tables of docs/async.md, "On many GPUs"; some minutes

Rates, shapes and the costs of decoding and learning are those of scale.py. async_modes.py has the modes, and asserts in
each run that no group is lost and none is too old. The split between samplers and trainer is the best of 15.
`./dev bench async` measures the modes on this machine; nothing is measured here.
"""
import argparse
from dataclasses import replace

from async_modes import Setting, best_split, flow, in_pieces, over_sampling, sync
from scale import SHAPES, Cluster, Work

# Rows of the first table: name, workload, GPUs. The lengths of GSM8K are those of verl's log (docs/async.md).
GSM8K = Work(prompts=1024, samples=5, prompt_length=94, mean_length=190, max_length=1024, spread=0.55)
LONG = Work(prompts=512, samples=16, mean_length=3000, max_length=28672)
CASES = [("GSM8K", GSM8K, (8, 64)), ("docs/scale.md", Work(), (8, 64, 512)), ("long", LONG, (32, 128, 1024)),
         ("long, 2,048 prompts", replace(LONG, prompts=2048), (10240,))]
MODES = {"one_step_off": lambda setting, gpus, samplers: in_pieces(setting, gpus, samplers, 1),
         "async, 2": lambda setting, gpus, samplers: in_pieces(setting, gpus, samplers, 2),
         "async, 4": lambda setting, gpus, samplers: in_pieces(setting, gpus, samplers, 4),
         "flow, 4": lambda setting, gpus, samplers: flow(setting, gpus, samplers, 4)}

# The published runs. An H20 trains at 0.78 of 148 TFLOP/s in verl's log of GSM8K; other rates are from data sheets.
H20 = Cluster(flops=148e12 * 0.78 / Cluster.reached, memory_rate=4.0e12, memory=96e9)
H800 = Cluster(memory_rate=3.35e12, memory=80e9, inside=200e9)
THINKING = replace(LONG, mean_length=8000, max_length=27648)


def print_modes(s):
    print("| completions | GPUs | sync: sampling, learning | over_sampling | " + " | ".join(MODES) + " |")
    print("|---" * (4 + len(MODES)) + "|")
    for name, work, counts in CASES:
        setting = Setting(Cluster(), s, work)
        for gpus in counts:
            base, sampling, learning = sync(setting, gpus)
            cells = [f"{over_sampling(setting, gpus) / base:.2f}"]
            for mode in MODES.values():
                rate, samplers = best_split(setting, gpus, lambda count: mode(setting, gpus, count))
                cells.append(f"{rate / base:.2f} ({samplers})" if rate else "-")
            print(f"| {name} | {gpus:,} | {sampling:.3g} s, {learning:.3g} s | " + " | ".join(cells) + " |", flush=True)


def print_published():
    print("| run | sync, published | sync, simulated | published | simulated |\n|---|---|---|---|---|")

    def row(name, told, ratio, setting, gpus, mode):
        base, sampling, learning = sync(setting, gpus)
        found = mode(setting) / base
        print(f"| {name} | {told} | {sampling:.0f} s, {learning:.0f} s | {ratio} | {found:.2f} |", flush=True)

    old = Setting(H20, SHAPES[2], replace(LONG, max_length=20480), extra_passes=1)
    row("verl, one_step_off, 4 + 12 GPUs", "321 s, 374 s", "1.24", old, 16, lambda setting: in_pieces(setting, 16, 4, 1))
    old = replace(old, work=LONG)
    for gpus, told, ratio in ((32, "357 s, 422 s", 2.68), (64, "151 s, 204 s", 1.93), (128, "178 s, 168 s", 2.37)):
        row(f"verl, fully async, {gpus // 2} + {gpus // 2} GPUs", told, ratio, old, gpus,
            lambda setting: flow(replace(setting, extra_passes=0), gpus, gpus // 2, 0.5, 4))
    for s, gpus, told, ratio in ((SHAPES[1], 128, "590 s in all", 2.77), (SHAPES[2], 192, "831 s in all", 2.27)):
        row(f"AReaL, {s.name}, {gpus} GPUs", told, ratio, Setting(H800, s, THINKING), gpus,
            lambda setting: best_split(setting, gpus, lambda samplers: flow(setting, gpus, samplers, 4, 4))[0])


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    s = SHAPES[2]
    print(f"Tokens per second of each mode over those of sync, and the GPUs that sample; {s.name} on H200s\n")
    print_modes(s)
    print("\nPublished runs, and what the same simulation says of them\n")
    print_published()


if __name__ == "__main__":
    main()
