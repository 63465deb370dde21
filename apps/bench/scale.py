"""What a GRPO step costs on 8 to 1,024 GPUs, simulated, and a check of the same model against runs on this machine.

  python scale.py                     the tables of docs/scale.md (scale_async.py: the modes that sample ahead)
  python scale.py --check --program build/release/bin/mortise --packs build/release/lib/mortise/bench_packs --out build/bench/scale
      [--workload c2] [--ranks 1,2,3,4] [--zero-stages 0,2,3] [--steps 6] [--rounds 3]

The simulator knows shapes, device rates and the schedule of Mortise: a rollout that all ranks share, then updates whose
micro-batches they share, with the sums of each ZeRO stage. It draws lengths from a log-normal distribution by a fixed seed.
The check measures one rank with the prompts of each run's ranks, and predicts these runs from that, in turns. It fails if the
median run takes less than 0.8 or more than 1.25 of the predicted time. docs/scale.md explains both.
"""
import argparse
import heapq
import math
import random
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """A decoder: layers, hidden size, heads, key-value heads, head size, width of the MLP, vocabulary."""
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    tied: bool

    @property
    def layer(self):
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 3 * self.hidden * self.width

    @property
    def body(self):
        return self.layers * self.layer

    @property
    def head(self):
        return self.vocab * self.hidden

    @property
    def parameters(self):
        return self.body + self.head * (1 if self.tied else 2)

    def kv_bytes(self, element=2):
        return 2 * self.layers * self.kv_heads * self.head_dim * element


SHAPES = [
    Shape("0.5B", 24, 896, 14, 2, 64, 4864, 151936, True),
    Shape("1.5B", 28, 1536, 12, 2, 128, 8960, 151936, True),
    Shape("7B", 28, 3584, 28, 4, 128, 18944, 152064, False),
    Shape("14B", 48, 5120, 40, 8, 128, 13824, 152064, False),
    Shape("32B", 64, 5120, 40, 8, 128, 27648, 152064, False),
    Shape("72B", 80, 8192, 64, 8, 128, 29568, 152064, False),
]


@dataclass(frozen=True)
class Cluster:
    """Rates of a device and of its network, in FLOP/s and bytes/s. Sources: docs/scale.md."""
    flops: float = 790e12
    memory_rate: float = 4.3e12
    memory: float = 141e9
    inside: float = 450e9  # to and from the GPUs of the machine
    outside: float = 50e9  # to and from other machines
    per_machine: int = 8
    reached: float = 0.4  # share of the ceilings that programs reach
    call: float = 20e-6   # what a collective costs however small it is, times log2(ranks)
    disk: float = 2e9     # bytes/s with which the ranks of a machine write a checkpoint
    all_disks: float = 40e9  # bytes/s that the shared file system takes from all machines
    mtbf_hours: float = 50700.0  # hours between failures of one GPU
    weight: int = 2   # bytes of a weight; of its gradient; of master copy and moments
    gradient: int = 4
    state: int = 12
    tensor: int = 1   # GPUs of a machine that share the layers: they count as one device

    def grouped(self, size):
        """The same GPUs, `size` of which share the layers (tensor parallel)."""
        return replace(self, flops=self.flops * size, memory_rate=self.memory_rate * size, memory=self.memory * size,
                       inside=self.inside * size, outside=self.outside * size, per_machine=self.per_machine // size, tensor=size)


@dataclass(frozen=True)
class Work:
    """A step: prompts, completions of each, and their lengths."""
    prompts: int = 1024
    samples: int = 8
    prompt_length: int = 256
    mean_length: int = 1024
    max_length: int = 4096
    spread: float = 0.8  # sigma of the log-normal lengths
    pass_tokens: int = 16384  # tokens in a micro-batch
    max_rows: int = 256  # rollout.max_num_seqs

    def lengths(self, seed=0):
        rng = random.Random(seed)
        mu = math.log(self.mean_length) - self.spread ** 2 / 2
        return [max(1, min(self.max_length, round(rng.lognormvariate(mu, self.spread))))
                for _ in range(self.prompts * self.samples)]


def gather_seconds(c, size, ranks):
    """All ranks get `size` bytes of which each has a part; a reduction to the owners takes as long."""
    if ranks == 1:
        return 0.0
    near = min(ranks, c.per_machine)
    machines = -(-ranks // c.per_machine)
    seconds = max(size * (near - 1) / near / c.inside, size * (machines - 1) / machines / (near * c.outside))
    return seconds + c.call * math.log2(ranks)


def tensor_bytes(s, size, element=2):
    """What each of `size` GPUs that share the layers sends for a token of an update: forward, backward, layers again."""
    return 3 * 2 * 2 * (size - 1) / size * s.hidden * element * s.layers


def sequence_bytes(s, size, element=2):
    """What each of `size` GPUs that share the tokens sends for a token of its own. None: the heads do not divide."""
    if s.heads % size or (s.kv_heads % size and size % s.kv_heads):
        return None
    return 3 * (2 * s.heads + 2 * max(s.kv_heads, size)) * s.head_dim * element * (size - 1) / size * s.layers


def tensor_seconds(c, s, sums, sent):
    """`sums` over the GPUs that share the layers, in which each sends `sent` bytes in all."""
    return 0.0 if c.tensor == 1 else sums * c.call * math.log2(c.tensor) + sent / (c.inside / c.tensor)


def decode_seconds(c, s, live, context):
    """One token for each of `live` rows that have `context` tokens in all."""
    read = 2 * (s.body + s.head) + s.kv_bytes() * context
    compute = 2 * live * (s.body + s.head) + 4 * s.layers * s.heads * s.head_dim * context
    terms = 2 * s.layers * (c.tensor - 1) * s.hidden * 2 * live
    return max(read / c.memory_rate, compute / c.flops) / c.reached + tensor_seconds(c, s, 2 * s.layers, terms)


class Rank:
    """A rank in a rollout: the rows that it decodes, as (end in its own decode steps, context less steps, name)."""

    def __init__(self, slow=1.0):
        self.rows, self.steps, self.seconds, self.slow, self.base, self.tokens = [], 0, 0.0, slow, 0, 0

    def begin(self, length, context, name=0):
        heapq.heappush(self.rows, (self.steps + length, context - self.steps, name))
        self.base += context - self.steps

    def per_step(self, c, s):
        """Seconds of a decode step, on average until a row ends."""
        context = self.base + len(self.rows) * (self.steps + self.rows[0][0]) / 2
        return decode_seconds(c, s, len(self.rows), context) * self.slow

    def decode(self, steps, per_step):
        self.seconds += steps * per_step
        self.steps += steps
        self.tokens += steps * len(self.rows)

    def until_next_end(self, c, s):
        """The rows that end next."""
        self.decode(self.rows[0][0] - self.steps, self.per_step(c, s))
        ended = []
        while self.rows and self.rows[0][0] <= self.steps:
            ended.append(heapq.heappop(self.rows))
            self.base -= ended[-1][1]
        return ended


def rollout_seconds(c, s, work, lengths, ranks, slots, slow=None, shared=True):
    """When each rank is done. Ranks take prompts as core/train/sampling/prompt_queue does; `shared`: also from one another."""
    groups = [lengths[i * work.samples:(i + 1) * work.samples] for i in range(work.prompts)]
    blocks = [[work.prompts * r // ranks, work.prompts * (r + 1) // ranks] for r in range(ranks)]
    all_ranks = [Rank((slow or {}).get(r, 1.0)) for r in range(ranks)]
    shared = shared and -(-work.prompts // ranks) > max(1, slots // work.samples)  # else all begin everything at once

    def next_prompt(r):
        own = blocks[r]
        if own[0] < own[1]:
            own[0] += 1
            return own[0] - 1
        most = max(blocks, key=lambda block: block[1] - block[0])
        if not shared or most[0] >= most[1]:
            return None
        most[1] -= 1
        return most[1]

    def fill(r):
        rank = all_ranks[r]
        while not rank.rows or len(rank.rows) + work.samples <= slots:
            prompt = next_prompt(r)
            if prompt is None:
                return
            for length in groups[prompt]:
                rank.begin(length, work.prompt_length)

    events = []
    for r, rank in enumerate(all_ranks):
        fill(r)
        if rank.rows:
            heapq.heappush(events, (rank.seconds, r))
    while events:
        _, r = heapq.heappop(events)
        all_ranks[r].until_next_end(c, s)
        fill(r)
        if all_ranks[r].rows:
            heapq.heappush(events, (all_ranks[r].seconds, r))
    return [rank.seconds for rank in all_ranks]


def train_flops(s, tokens, responses, mean_context):
    """Forward and backward. The layers' activations are computed twice."""
    body = 2 * s.body + 2 * s.layers * s.heads * s.head_dim * mean_context
    return 4 * tokens * body + 3 * responses * 2 * s.head


def sampling_flops(s, work, lengths):
    """The prompts are read once for their completions."""
    prompts = work.prompts * work.prompt_length * (2 * s.body + 2 * s.layers * s.heads * s.head_dim * work.prompt_length)
    contexts = sum(n * (work.prompt_length + n / 2) for n in lengths)
    return prompts + sum(lengths) * 2 * (s.body + s.head) + 4 * s.layers * s.heads * s.head_dim * contexts


ROLLOUTS = {}  # the workload's rollouts, by size; they do not depend on the network


@dataclass
class Step:
    seconds: dict = field(default_factory=dict)
    sent: float = 0.0
    memory: float = 0.0

    @property
    def total(self):
        return sum(self.seconds.values())


def memory_of(c, s, stage, ranks):
    """Bytes of weights, gradients and optimizer state of a rank while it learns."""
    n = s.parameters
    weights = n * c.weight if stage < 3 else n * c.weight / ranks + max(2 * s.layer, s.head) * c.weight
    gradients = n * c.gradient
    if stage == 2:  # next to its own, an embedding or a head, OwnerSums::kMostBuckets + 1 of unit_size(), and messages
        buckets = 3 * max(32 << 20, ranks << 20) + (64 << 20)
        gradients = min(gradients, (n / ranks + s.head) * c.gradient + buckets)
    elif stage == 3:  # those of a layer, the embedding and the head
        gradients = (n / ranks + s.layer + n - s.body) * c.gradient
    return weights + gradients + n * c.state / (ranks if stage > 0 else 1)


def slots_of(c, s, work, state=0.0):
    """Rows that a rank decodes at a time, next to its weights and `state` bytes of the optimizer."""
    cache = max(0.0, c.memory * 0.9 - s.parameters * c.weight - state)
    return max(1, min(work.max_rows * c.tensor, int(cache / (s.kv_bytes() * (work.prompt_length + work.mean_length)))))


def simulate(c, s, work, stage, ranks, slow=None, shared=True):
    lengths = work.lengths()
    step = learn(c, s, work, sum(lengths), stage, ranks, max((slow or {}).values(), default=1.0))
    slots = slots_of(c, s, work, s.parameters * c.state / (ranks if stage > 0 else 1))
    key = (s.name, c.tensor, ranks, slots, shared, tuple((slow or {}).items()))
    if key not in ROLLOUTS:
        ROLLOUTS[key] = max(rollout_seconds(c, s, work, lengths, ranks, slots, slow, shared))
    step.seconds["rollout"] = ROLLOUTS[key]
    if stage == 3:
        step.seconds["gather for it"] = gather_seconds(c, s.parameters * c.weight, ranks)
    return step


def learn(c, s, work, responses, stage, ranks, slowest=1.0):
    """The part of a step after the rollout, for so many response tokens. `ranks` groups of c.tensor GPUs each."""
    step = Step()
    tokens = responses + work.prompts * work.prompt_length  # a prompt is computed once for its completions
    flops = train_flops(s, tokens, responses, work.prompt_length + work.mean_length / 2) / ranks
    compute = flops / (c.flops * c.reached) * slowest
    passes = max(1, math.ceil(tokens / ranks / (work.pass_tokens * c.tensor)))
    gradients = s.parameters * c.gradient
    weights = s.parameters * c.weight
    share = (ranks - 1) / ranks
    if stage < 2:
        wire = gather_seconds(c, gradients, ranks) + gather_seconds(c, gradients if stage == 0 else weights, ranks)
        step.sent = share * (gradients + (gradients if stage == 0 else weights))
    elif stage == 2:
        wire = passes * gather_seconds(c, gradients, ranks) + gather_seconds(c, weights, ranks)
        step.sent = share * (passes * gradients + weights)
    else:
        # The next layer travels while one computes; embedding, head and gradients do not overlap.
        layer = gather_seconds(c, s.layer * c.weight, ranks)
        ends = (2 if s.tied else 1) * gather_seconds(c, s.head * c.weight, ranks) * (1 if s.tied else 2)
        forward, backward = compute / passes / 4 / s.layers, compute / passes * 3 / 4 / s.layers
        waits = s.layers * (max(0.0, layer - forward) + max(0.0, layer - backward)) + layer + ends
        wire = passes * (waits + gather_seconds(c, gradients, ranks))
        step.sent = share * (passes * ((s.parameters + s.body) * c.weight + gradients) + weights)
    step.seconds["passes"] = compute
    shared = tokens / ranks * tensor_bytes(s, c.tensor)
    step.sent = step.sent / c.tensor + shared
    step.seconds["wire"] = wire + tensor_seconds(c, s, passes * 3 * 2 * s.layers, shared)
    step.seconds["optimizer"] = s.parameters / (ranks if stage > 0 else 1) * 30 / c.memory_rate
    step.memory = memory_of(c, s, stage, ranks) / c.tensor
    return step


@dataclass(frozen=True)
class Saves:
    """Seconds of a save, between failures of any rank, and of a restart."""
    save: float
    between: float
    restart: float

    @property
    def interval(self):
        """The best time between two saves (Young 1974)."""
        return math.sqrt(2 * self.save * self.between)

    @property
    def lost(self):
        """The share of the time that does not count, by the same formula: of saves, of repeated work, of restarts."""
        return self.save / self.interval + self.interval / (2 * self.between) + self.restart / self.between

    def simulated(self, interval, failures=20000, seed=0):
        """The same share in a run that saves after each `interval` of work and fails so many times, at random moments. It goes
        on from its last whole save, after a restart that may fail too."""
        rng = random.Random(seed)
        kept = time = 0.0
        for _ in range(failures):
            runs = rng.expovariate(1 / self.between)
            kept += runs // (interval + self.save) * interval
            time += runs + self.restart
            while (fails := rng.expovariate(1 / self.between)) < self.restart:
                time += fails
        return 1 - kept / time


def checkpoint_plan(c, s, ranks):
    rate = min(c.disk * max(1, ranks // c.per_machine), c.all_disks)
    save = s.parameters * (c.weight + c.state) / rate
    return Saves(save, c.mtbf_hours * 3600 / ranks, 120 + save)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", type=Path)
    parser.add_argument("--packs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workload", default="c2")
    parser.add_argument("--ranks", default="1,2,3,4")
    parser.add_argument("--zero-stages", default="0,2,3")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not args.check:
        from scale_tables import print_tables
        print_tables(Cluster(), Work())
        return
    for name in ("program", "packs", "out"):
        if getattr(args, name) is None:
            parser.error(f"--check needs --{name}")
        setattr(args, name, getattr(args, name).resolve())
    args.ranks_list = [int(count) for count in args.ranks.split(",")]
    args.stages = [int(stage) for stage in args.zero_stages.split(",")]
    args.deterministic = False
    from scale_check import LEAST, MOST, check
    if bad := check(args):
        sys.exit("\n".join(["", f"not between {LEAST} and {MOST}:", *bad]))


if __name__ == "__main__":
    main()
