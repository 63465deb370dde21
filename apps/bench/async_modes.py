"""The modes of docs/async.md in virtual time, for scale_async.py. The costs of decoding and learning are those of scale.py.

What is simulated here is who waits for whom:

  sync            all GPUs sample, then all learn
  over_sampling   the same, but a step ends with the first groups that are finished (in rounds of 1/16 of the length)
  in_pieces       samplers and a trainer: a row gets 1/N of the longest completion while a step learns (1: one_step_off)
  flow            AReaL's scheme: samplers never wait for a batch, the trainer learns from groups that are finished, new
                  weights interrupt rows, and at most (staleness + version + 1) batches have been begun

A ledger asserts in every run that no group is lost or learnt from twice, that the tokens that samplers decoded are those of
the groups, and that no group is older than its mode allows.
"""
import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, replace

from scale import Cluster, Rank, Shape, Work, gather_seconds, learn, memory_of, slots_of

STEPS = 6    # steps that count
WARM_UP = 6  # steps before them
ROUNDS = 16  # OverSampling::kRounds
OVER_SAMPLING = 1.25


class Group:
    """The completions of a prompt: their lengths, the tokens so far, and the version of the weights that began them."""

    def __init__(self, number, lengths, begun):
        self.number, self.lengths, self.begun = number, lengths, begun
        self.done = [0] * len(lengths)
        self.left = len(lengths)

    @property
    def tokens(self):
        return sum(self.lengths)


def prefill_seconds(c, s, tokens):
    """A forward pass over the tokens that a row has, before it is continued."""
    return tokens * (2 * s.body + 2 * s.layers * s.heads * s.head_dim * tokens) / (c.flops * c.reached)


class Ledger:
    """What samplers and trainer say that they did, and whether it adds up."""

    def __init__(self, work, bound):
        self.work = work
        self.bound = bound  # steps between the first token of a group and the step that learns from it
        self.begun = self.sampled = 0  # groups; tokens that were decoded and not yet learnt from
        self.learnt, self.batch = set(), []

    def begin(self, version):
        seed, place = divmod(self.begun, self.work.prompts)
        if place == 0:
            lengths = self.work.lengths(seed)
            n = self.work.samples
            self.batch = [lengths[i * n:(i + 1) * n] for i in range(self.work.prompts)]
        self.begun += 1
        return Group(self.begun - 1, self.batch[place], version)

    def learn(self, groups, version):
        for group in groups:
            assert group.number not in self.learnt, f"group {group.number} is learnt from twice"
            assert group.done == group.lengths, f"group {group.number} is not finished"
            assert 0 <= version - group.begun <= self.bound, f"group {group.number} is {version - group.begun} steps old"
            self.learnt.add(group.number)
            self.sampled -= group.tokens
        return sum(group.tokens for group in groups)

    def close(self, open_groups):
        rest = [group.number for group in open_groups]
        assert self.learnt.isdisjoint(rest) and len(set(rest)) == len(rest), "a group is in two places"
        assert len(self.learnt) + len(rest) == self.begun, "a group is lost"
        assert self.sampled == sum(sum(group.done) for group in open_groups), "tokens are lost"


@dataclass(frozen=True)
class Setting:
    """A cluster that trains a model. `extra_passes`: forward passes of a step for old log-probs."""
    c: Cluster
    s: Shape
    work: Work
    extra_passes: int = 0

    def fits(self, ranks):
        return any(memory_of(self.c, self.s, stage, ranks) <= 0.9 * self.c.memory for stage in range(4))

    def learn_seconds(self, tokens, ranks, share=1.0):
        """A step's learning, or that of a `share` of its prompts, with the first stage of ZeRO that fits."""
        stage = next(i for i in range(4) if memory_of(self.c, self.s, i, ranks) <= 0.9 * self.c.memory)
        work = replace(self.work, prompts=round(self.work.prompts * share))
        # A forward pass takes 2 of the 8 operations for a token.
        return learn(self.c, self.s, work, tokens, stage, ranks).total * (1 + self.extra_passes / 4)

    def send_seconds(self, ranks):
        return gather_seconds(self.c, self.s.parameters * self.c.weight, ranks)

    def bag(self, group, most, cached=False):
        """The rows of a group that are sampled next, as (index, tokens, context), and the seconds before they can be."""
        rows = [(i, min(most, length - done), self.work.prompt_length + done)
                for i, (length, done) in enumerate(zip(group.lengths, group.done)) if done < length]
        if cached:
            return group, rows, 0.0
        contexts = [row[2] for row in rows] if any(group.done) else [self.work.prompt_length]
        return group, rows, sum(prefill_seconds(self.c, self.s, context) for context in contexts)

    def round_seconds(self, ledger, bags, count, state=0.0):
        """Until `count` samplers have sampled all bags. A sampler takes the next bag as soon as it has room."""
        slots = slots_of(self.c, self.s, self.work, state)
        ranks = [Rank() for _ in range(min(count, len(bags)))]
        waiting = deque(bags)

        def take(rank):
            if not waiting or (rank.rows and len(rank.rows) + self.work.samples > slots):
                return False
            group, rows, seconds = waiting.popleft()
            rank.seconds += seconds
            for i, tokens, context in rows:
                rank.begin(tokens, context)
                group.done[i] += tokens
            return True

        while any([take(rank) for rank in ranks]):
            pass
        events = [(rank.seconds, r) for r, rank in enumerate(ranks) if rank.rows]
        heapq.heapify(events)
        while events:
            _, r = heapq.heappop(events)
            ranks[r].until_next_end(self.c, self.s)
            while take(ranks[r]):
                pass
            if ranks[r].rows:
                heapq.heappush(events, (ranks[r].seconds, r))
        ledger.sampled += sum(rank.tokens for rank in ranks)
        return max((rank.seconds for rank in ranks), default=0.0)


def sync(setting, gpus):
    """Response tokens per second, and a step's seconds of sampling and of learning."""
    ledger, work = Ledger(setting.work, 0), setting.work
    sampling = learning = tokens = 0
    for version in range(STEPS):
        groups = [ledger.begin(version) for _ in range(work.prompts)]
        state = setting.s.parameters * setting.c.state / gpus
        sampling += setting.round_seconds(ledger, [setting.bag(group, work.max_length) for group in groups], gpus, state)
        sampled = ledger.learn(groups, version)
        learning += setting.learn_seconds(sampled, gpus) + setting.send_seconds(gpus)
        tokens += sampled
    ledger.close([])
    return tokens / (sampling + learning), sampling / STEPS, learning / STEPS


def over_sampling(setting, gpus):
    work = setting.work
    ledger, groups, seconds, tokens = Ledger(work, ROUNDS), [], 0.0, 0
    state = setting.s.parameters * setting.c.state / gpus
    for version in range(WARM_UP + STEPS):
        if version == WARM_UP:
            seconds = tokens = 0
        groups += [ledger.begin(version) for _ in range(math.ceil(OVER_SAMPLING * work.prompts) - len(groups))]
        finished, cached = [group for group in groups if group.done == group.lengths], False
        while len(finished) < work.prompts:
            bags = [setting.bag(group, -(-work.max_length // ROUNDS), cached)
                    for group in groups if group.done != group.lengths]
            seconds += setting.round_seconds(ledger, bags, gpus, state)
            there = {group.number for group in finished}
            finished += [group for group in groups if group.done == group.lengths and group.number not in there]
            cached = True
        taken = finished[:work.prompts]
        sampled = ledger.learn(taken, version)
        seconds += setting.learn_seconds(sampled, gpus) + setting.send_seconds(gpus)
        tokens += sampled
        numbers = {group.number for group in taken}
        groups = [group for group in groups if group.number not in numbers]
    ledger.close(groups)
    return tokens / seconds


def in_pieces(setting, gpus, samplers, staleness):
    """trainer.mode = async: `staleness` batches are open. Each gets its next piece while the oldest whole one learns."""
    work = setting.work
    ledger, batches, ready, seconds, tokens = Ledger(work, staleness), deque(), [], 0.0, 0
    piece = -(-work.max_length // staleness)
    for version in range(staleness + STEPS):
        batches.append([ledger.begin(version) for _ in range(work.prompts)])
        bags = [setting.bag(group, piece) for batch in batches for group in batch if group.done != group.lengths]
        sampling = setting.round_seconds(ledger, bags, samplers)
        if ready:
            sampled = ledger.learn(ready, version)
            seconds += max(sampling, setting.learn_seconds(sampled, gpus - samplers)) + setting.send_seconds(gpus)
            tokens += sampled
        ready = batches.popleft() if len(batches) == staleness else []
    ledger.close(ready + [group for batch in batches for group in batch])
    return tokens / seconds


class Flow:
    """AReaL's scheme. `parts`: updates of a step, each of which learns as soon as its groups are finished."""

    def __init__(self, setting, gpus, samplers, staleness, parts=1):
        self.setting, self.gpus, self.staleness, self.parts = setting, gpus, staleness, parts
        self.c, self.s, self.work = setting.c, setting.s, setting.work
        self.slots = slots_of(self.c, self.s, self.work)
        self.ledger = Ledger(self.work, math.ceil(staleness))
        self.ranks = [Rank() for _ in range(samplers)]
        self.stamps = [0] * samplers
        self.open, self.ripe = {}, {}  # groups by number; the finished ones by the version that began them
        self.num_unlearnt = Counter()  # by that version
        self.events, self.now, self.learning, self.updates = [], 0.0, None, 0
        self.ends = []  # (seconds, tokens) of each step
        self.tokens = 0

    @property
    def version(self):
        return self.updates // self.parts

    def may_begin(self):
        return self.ledger.begun < (self.staleness + self.version + 1) * self.work.prompts

    def has_room(self, rank):
        return not rank.rows or len(rank.rows) + self.work.samples <= self.slots

    def begin(self, rank):
        group = self.ledger.begin(self.version)
        self.open[group.number] = group
        self.num_unlearnt[group.begun] += 1
        rank.seconds += prefill_seconds(self.c, self.s, self.work.prompt_length)
        for i, length in enumerate(group.lengths):
            rank.begin(length, self.work.prompt_length, (group.number, i))

    def schedule(self, r):
        rank = self.ranks[r]
        self.stamps[r] += 1
        if rank.rows:
            left = rank.rows[0][0] - rank.steps
            heapq.heappush(self.events, (rank.seconds + left * rank.per_step(self.c, self.s), r, self.stamps[r]))

    def share_out(self):
        """New groups go to the samplers with the fewest rows."""
        loads = [(len(rank.rows), r) for r, rank in enumerate(self.ranks)]
        heapq.heapify(loads)
        while loads and self.may_begin():
            _, r = heapq.heappop(loads)
            if self.has_room(self.ranks[r]):
                self.begin(self.ranks[r])
                heapq.heappush(loads, (len(self.ranks[r].rows), r))

    def interrupt(self):
        """New weights: samplers stop, receive them, and compute their rows' keys and values again."""
        pause = self.setting.send_seconds(self.gpus)
        for rank in self.ranks:
            if rank.rows and rank.seconds < self.now:
                per_step = rank.per_step(self.c, self.s)
                steps = int((self.now - rank.seconds) / per_step)
                rank.decode(max(0, min(steps, rank.rows[0][0] - rank.steps - 1)), per_step)
            again = sum(prefill_seconds(self.c, self.s, base + rank.steps) for _, base, _ in rank.rows)
            rank.seconds = max(rank.seconds, self.now) + pause + again

    def end_rows(self, r):
        rank = self.ranks[r]
        for _, _, (number, i) in rank.until_next_end(self.c, self.s):
            group = self.open[number]
            group.done[i] = group.lengths[i]
            group.left -= 1
            if group.left == 0:
                self.ripe.setdefault(group.begun, deque()).append(self.open.pop(number))
        while self.may_begin() and self.has_room(rank):
            self.begin(rank)
        self.schedule(r)

    def next_groups(self):
        """How many finished groups of each version the next update takes, the oldest first, or None if it has to wait.

        The groups that remain must fit into the updates before they are too old. Else the trainer waits for old ones.
        """
        size = self.work.prompts // self.parts
        if sum(map(len, self.ripe.values())) < size:
            return None
        taken, missing, remain = {}, size, 0
        for begun in sorted(version for version, count in self.num_unlearnt.items() if count):
            taken[begun] = min(len(self.ripe.get(begun, ())), missing)
            missing -= taken[begun]
            remain += self.num_unlearnt[begun] - taken[begun]
            if remain > (begun + self.ledger.bound + 1) * self.work.prompts - (self.updates + 1) * size:
                return None
        return taken

    def learn_if_ready(self):
        taken = None if self.learning else self.next_groups()
        if taken is None:
            return
        self.learning = []
        for begun, count in taken.items():
            self.learning += [self.ripe[begun].popleft() for _ in range(count)]
            self.num_unlearnt[begun] -= count
        sampled = self.ledger.learn(self.learning, self.version)
        self.tokens += sampled
        seconds = self.setting.learn_seconds(sampled, self.gpus - len(self.ranks), 1 / self.parts)
        heapq.heappush(self.events, (self.now + seconds, -1, 0))

    def run(self, steps):
        self.share_out()
        for r in range(len(self.ranks)):
            self.schedule(r)
        while len(self.ends) < steps:
            assert self.events, "samplers and trainer wait for each other"
            self.now, r, stamp = heapq.heappop(self.events)
            if r >= 0 and stamp == self.stamps[r]:
                self.end_rows(r)
            elif r < 0:
                self.learning = None
                self.updates += 1
                if self.updates % self.parts == 0:
                    self.ends.append((self.now, self.tokens))
                    self.interrupt()
                    self.share_out()
                    for i in range(len(self.ranks)):
                        self.schedule(i)
            self.learn_if_ready()
        self.close()
        (begin, before), (end, after) = self.ends[-1 - STEPS], self.ends[-1]
        return (after - before) / (end - begin)

    def close(self):
        for rank in self.ranks:
            for end, _, (number, i) in rank.rows:
                group = self.open[number]
                group.done[i] = group.lengths[i] - (end - rank.steps)
        self.ledger.sampled += sum(rank.tokens for rank in self.ranks)
        self.ledger.close(list(self.open.values()) + [group for groups in self.ripe.values() for group in groups])


def flow(setting, gpus, samplers, staleness, parts=1):
    return Flow(setting, gpus, samplers, staleness, parts).run(WARM_UP + STEPS)


def best_split(setting, gpus, rate_of):
    """The highest rate and its samplers, among sixteenths of the GPUs. The rate rises and then falls with the samplers."""
    counts = [n for n in sorted({round(gpus * i / 16) for i in range(1, 16)}) if 0 < n < gpus and setting.fits(gpus - n)]
    rates = {}

    def rate(i):
        if i not in rates:
            rates[i] = rate_of(counts[i])
        return rates[i]

    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        if rate(middle) < rate(middle + 1):
            low = middle + 1
        else:
            high = middle
    return (rate(low), counts[low]) if counts else (0.0, 0)
