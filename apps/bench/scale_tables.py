"""The tables of docs/scale.md, as ./dev bench scale prints them."""
from dataclasses import replace

from scale import (SHAPES, checkpoint_plan, learn, memory_of, rollout_seconds, sampling_flops, sequence_bytes, simulate,
                   tensor_bytes, train_flops)

COUNTS = (8, 64, 256, 1024)
TENSOR, SHARED = 8, 2e10  # so many GPUs share the layers of a model that has more parameters than that


def rows(head, cells):
    """A Markdown table; cells: one list for each line."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, *cells]).replace("\n", "\n" + "|---" * len(head) + "|\n", 1)


def gigabytes(value):
    return f"{value / 1e9:.1f} GB" if value < 1e11 else f"{value / 1e9:.0f} GB"


def places(c, s):
    """How a model is on the GPUs: each has all weights while it samples, or TENSOR of them share the layers."""
    shared = [(f"{s.name}, T = {TENSOR}", c.grouped(TENSOR))] if s.parameters > SHARED else []
    return [(s.name, c), *shared]


def fits(c, s, stage, groups):
    return max(s.parameters * c.weight, memory_of(c, s, stage, groups)) <= 0.9 * c.memory


def of_stages(c, cell):
    """Lines for each model and stage that fits somewhere. cell(c, s, stage, groups) is the text for a number of GPUs."""
    lines = []
    for s, (name, place), stage in ((s, place, stage) for s in SHAPES for place in places(c, s) for stage in range(4)):
        groups = [n // place.tensor for n in COUNTS]
        cells = [cell(place, s, stage, n) if fits(place, s, stage, n) else "-" for n in groups]
        if set(cells) != {"-"}:
            lines.append([name, str(stage), *cells])
    return rows(["model", "stage", *(f"{n} GPUs" for n in COUNTS)], lines)


def steps(c, work):
    def cell(place, s, stage, groups):
        step = simulate(place, s, work, stage, groups)
        return f"{step.total:.3g} ({step.seconds['wire'] / step.total:.1%})"
    return of_stages(c, cell)


def bytes_sent(c, work):
    responses = sum(work.lengths())
    return of_stages(c, lambda place, s, stage, groups: gigabytes(learn(place, s, work, responses, stage, groups).sent))


def operations(c, work):
    lengths = work.lengths()
    tokens = sum(lengths) + work.prompts * work.prompt_length
    lines = []
    for s in SHAPES:
        sampled = sampling_flops(s, work, lengths)
        learned = train_flops(s, tokens, sum(lengths), work.prompt_length + work.mean_length / 2)
        lines.append([s.name, *(f"{one / 1e15:,.0f}" for one in (sampled, learned)),
                      *(f"{(sampled + learned) / n / 1e15:,.3g}" for n in COUNTS),
                      f"{(sampled + learned) / COUNTS[0] / c.flops:.3g} s"])
    return rows(["model", "sampling", "update", *(f"a GPU of {n}" for n in COUNTS), "at its peak, 8 GPUs"], lines)


def memory(c):
    return rows(["model", *(f"stage {i}" for i in range(4))],
                [[s.name, *(gigabytes(memory_of(c, s, stage, 64)) for stage in range(4))] for s in SHAPES])


def rollouts(c, work):
    lengths = work.lengths()
    lines = []
    for s in (SHAPES[0], SHAPES[2]):
        for ranks in (8, 64):
            for factor in (1.0, 1.3):
                cells = []
                for shared in (False, True):
                    times = rollout_seconds(c, s, work, lengths, ranks, work.max_rows, {0: factor}, shared)
                    cells.append(f"{max(times):.2f} s, {1 - sum(times) / len(times) / max(times):.0%}")
                lines.append([s.name, str(ranks), str(factor), *cells])
    return rows(["model", "GPUs", "one is slow", "own blocks", "shared queue"], lines)


def sequence_parallel(work):
    """Bytes for a token that a rank computes, and of a rank in a step on 64 GPUs."""
    tokens = work.prompts * (work.prompt_length + work.samples * work.mean_length) // 64
    lines = []
    for s in SHAPES:
        sent = [sequence_bytes(s, size) for size in (2, 4, 8)]
        lines.append([s.name, *("-" if one is None else f"{one / 1e6:.2f} MB, {one * tokens / 1e9:.0f} GB" for one in sent)])
    return rows(["model", "S = 2", "S = 4", "S = 8"], lines)


def tensor_parallel():
    lines = []
    for s in SHAPES:
        cells = ["-" if sequence_bytes(s, size) is None else f"{tensor_bytes(s, size) / 1e6:.2f} MB" for size in (2, 4, 8)]
        lines.append([f"{s.name} ({s.hidden}, {s.layers})", *cells])
    return rows(["model (hidden size, layers)", "T = 2", "T = 4", "T = 8"], lines)


def failures(c):
    lines = []
    for s in (SHAPES[0], SHAPES[2], SHAPES[5]):
        for ranks in (8, 256, 1024):
            plan = checkpoint_plan(c, s, ranks)
            lost = [plan.simulated(plan.interval * factor) for factor in (1, 1 / 3, 3)]
            lines.append([s.name, str(ranks), f"{plan.save:.1f} s", f"{plan.between / 3600:.0f} h", f"{plan.interval / 60:.0f} min",
                          f"{plan.lost:.2%}", *(f"{one:.2%}" for one in lost)])
    return rows(["model", "GPUs", "save", "between failures", "interval", "lost", "simulated", "a third of it", "three times"], lines)


def quick_tables(c, work):
    """Those that need no rollout: a title, and a function that makes the table."""
    return [("Operations of a step in PFLOP: of all GPUs, of one GPU, and its seconds at the peak of matrix products",
             lambda: operations(c, work)),
            ("Bytes that a GPU sends in a step", lambda: bytes_sent(c, work)),
            ("Memory for weights, gradients and optimizer of a rank, 64 GPUs", lambda: memory(c)),
            ("Sequence parallel: bytes for a token that a rank computes, and of a rank in a step on 64 GPUs",
             lambda: sequence_parallel(work)),
            ("Tensor parallel: bytes of the layers for a token that a group computes", tensor_parallel),
            ("Failures: a save, the time between failures, the best interval between saves, and the time lost", lambda: failures(c))]


def print_tables(c, work):
    slow = [("A step in seconds, and the share of it on the wire, by model, ZeRO stage and GPUs; '-': does not fit",
             lambda: steps(c, work)),
            ("The same with 100 Gb/s per machine", lambda: steps(replace(c, outside=12.5e9 / 8), work)),
            ("The rollout of the slowest rank, and the share of all ranks' time that is spent waiting for it",
             lambda: rollouts(c, work))]
    for title, table in slow + quick_tables(c, work):
        print(f"{title}\n\n{table()}\n")
