# The simulators behind docs/scale.md and docs/async.md. bench_scale.py SOURCE_DIR. Needs the standard library alone.
import contextlib
import io
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "apps/bench"))
import scale_check
from async_modes import Flow, Ledger, Setting, best_split, flow, in_pieces, over_sampling, sync
from expectations import end, expect
from scale import SHAPES, Cluster, Rank, Saves, Work, checkpoint_plan, learn, sequence_bytes, simulate, tensor_bytes
from scale_tables import quick_tables


def expect_refused(text, do):
    try:
        do()
    except AssertionError as error:
        expect(text in str(error), f"expected '{text}', got '{error}'")
        return
    expect(False, f"no assertion says '{text}'")


LONG_TAIL = Work(prompts=32, samples=4, prompt_length=64, mean_length=400, max_length=4096, spread=1.0)
SETTING = Setting(Cluster(), SHAPES[2], LONG_TAIL)


def rank_counts_what_it_decodes():
    rank = Rank()
    rank.begin(3, 10)
    rank.begin(5, 20)
    expect([row[0] for row in rank.until_next_end(SETTING.c, SETTING.s)] == [3], "the shorter row ends first")
    expect(rank.base == 20 and rank.tokens == 6, "a row that ended is not read again")
    rank.until_next_end(SETTING.c, SETTING.s)
    expect(rank.tokens == 8 and not rank.rows, "each row gives as many tokens as it is long")


def sync_is_the_step_of_scale():
    work = Work(prompts=64, samples=8)
    rate, sampling, learning = sync(Setting(Cluster(), SHAPES[0], work), 8)
    step = simulate(Cluster(), SHAPES[0], work, 0, 8)
    # The mean over other lengths than those of scale.py, and with the passes over the prompts.
    expect(abs(sampling / step.seconds["rollout"] - 1) < 0.1, f"sampling {sampling}, in scale.py {step.seconds['rollout']}")
    rest = step.total - step.seconds["rollout"]
    expect(abs(learning / rest - 1) < 0.1, f"learning {learning}, in scale.py {rest}")


def equal_lengths_leave_nothing_to_wait_for():
    setting = replace(SETTING, work=replace(LONG_TAIL, spread=0.0))
    tokens = 32 * 4 * 400
    groups = [Ledger(setting.work, 0).begin(0) for _ in range(32)]
    sampling = setting.round_seconds(Ledger(setting.work, 0), [setting.bag(group, 4096) for group in groups], 4)
    step = max(sampling, setting.learn_seconds(tokens, 4)) + setting.send_seconds(8)
    rate = in_pieces(setting, 8, 4, 1)
    expect(abs(rate * step / tokens - 1) < 1e-9, f"one_step_off takes the longer of both: {rate}, {tokens / step}")
    expect(abs(over_sampling(setting, 8) / sync(setting, 8)[0] - 1) < 0.01, "over-sampling wins nothing from equal lengths")


def more_staleness_waits_less():
    rates = [best_split(SETTING, 16, lambda samplers: flow(SETTING, 16, samplers, staleness))[0] for staleness in (0, 1, 4)]
    expect(rates[0] < rates[1] < rates[2], f"rates with staleness 0, 1, 4: {rates}")
    base = sync(SETTING, 16)[0]
    expect(base < in_pieces(SETTING, 16, 12, 4), "async wins with a long tail")
    expect(flow(SETTING, 16, 12, 4) == flow(SETTING, 16, 12, 4), "two runs have the same numbers")


def the_ledger_finds_faults():
    class TooMany(Flow):
        def may_begin(self):
            return self.ledger.begun < (self.staleness + self.version + 3) * self.work.prompts

    class NeverWaits(Flow):
        def next_groups(self):
            size, taken = self.work.prompts, {}
            for begun in sorted(self.ripe, reverse=True):
                taken[begun] = min(len(self.ripe[begun]), size - sum(taken.values()))
            return taken if sum(taken.values()) == size else None

    class Loses(Flow):
        def close(self):
            self.open.popitem()
            for rank in self.ranks:
                rank.rows = [row for row in rank.rows if row[2][0] in self.open]
            super().close()

    class Invents(Flow):
        def close(self):
            self.ranks[0].tokens += 1
            super().close()

    Flow(SETTING, 16, 12, 1).run(12)
    Flow(SETTING, 16, 12, 0.5, 4).run(12)
    expect_refused("steps old", lambda: NeverWaits(SETTING, 16, 12, 1).run(12))
    expect_refused("wait for each other", lambda: TooMany(SETTING, 16, 15, 0).run(12))
    expect_refused("is lost", lambda: Loses(SETTING, 16, 12, 1).run(12))
    expect_refused("tokens are lost", lambda: Invents(SETTING, 16, 12, 1).run(12))
    ledger = Ledger(LONG_TAIL, 1)
    group = ledger.begin(0)
    expect_refused("not finished", lambda: ledger.learn([group], 0))
    group.done = list(group.lengths)
    ledger.learn([group], 0)
    expect_refused("twice", lambda: ledger.learn([group], 1))


def shared_layers_are_one_device():
    one, eight, shape = Cluster(), Cluster().grouped(8), SHAPES[4]
    expect(eight.grouped(1) == replace(eight, tensor=1), "a group of one is the device itself")
    alone, shared = learn(one, shape, Work(), 2 ** 23, 1, 8), learn(eight, shape, Work(), 2 ** 23, 1, 1)
    expect(abs(shared.seconds["passes"] / alone.seconds["passes"] - 1) < 1e-9, "the same operations on as many GPUs")
    tokens = 2 ** 23 + 1024 * 256  # each GPU of the group sends for all of them, and no other rank has the gradient
    expect(abs(shared.sent / (tokens * tensor_bytes(shape, 8)) - 1) < 1e-9, f"sent {shared.sent}")
    # Forward, backward, and forward again; two sums of the hidden state, of which a ring sends 2 (T-1)/T; 2 bytes.
    expect(tensor_bytes(SHAPES[2], 4) == 3 * 2 * 2 * 3 / 4 * 3584 * 2 * 28, "bytes of the 7B model with T = 4")
    # 12 query heads and, for four ranks, four times the key-value heads' two: queries, keys, values, results.
    expect(sequence_bytes(SHAPES[1], 4) == 3 * (12 + 4 + 4 + 12) * 128 * 2 * 3 / 4 * 28, "bytes of the 1.5B model with S = 4")
    expect(sequence_bytes(SHAPES[0], 4) is None, "14 heads do not divide among four ranks")


def the_check_predicts_ranks_from_one_rank_of_their_size():
    asked, cores = [], len(os.sched_getaffinity(0))

    def measured(args, workload, prompts, ranks, stage, copies, spreads):
        asked.append((prompts, ranks, stage, copies, spreads))
        return {"step": 3.0 if spreads else 2.0}

    real, scale_check.measure = scale_check.measure, measured
    rates, known = {"wire": 4.0, "fresh": 8.0}, {}
    predicted = [scale_check.predict(None, {"prompts_per_step": 4}, ranks, stage, 16.0, rates, known)
                 for ranks, stage in ((1, 0), (2, 0), (2, 2), (2, 3), (2, 3))]
    scale_check.measure = real
    at_once = min(2, cores)
    # Two micro-batches. Half of 16 bytes goes each way: twice for gradients, after each pass, or with weights for each pass.
    wire = [2 * sent / 4.0 / at_once for sent in (16.0, 24.0, 56.0)]
    fresh = 2 * 2 * 16.0 * 5 / 8.0 / at_once  # a pass gathers forward and backward, a rollout once
    expect(predicted == [2.0, 2.0 + wire[0], 2.0 + wire[1], 3.0 + wire[2] + fresh, 3.0 + wire[2] + fresh], f"{predicted}")
    copies = max(2, cores)
    expect(asked == [(4, 1, 0, cores, False), (2, 1, 0, copies, False), (2, 1, 0, copies, True)], f"{asked}")


def the_check_names_runs_that_it_predicts_badly():
    # In three rounds each. The median counts, not a round in which something else ran.
    steps = {(1, 0): [1.0, 1.0, 1.0], (2, 0): [1.26, 1.0, 1.27], (2, 3): [1.24, 2.0, 0.9], (4, 0): [0.79, 0.7, 0.9], (4, 3): [0.81] * 3}

    class Args:
        out, workload, ranks_list, stages, rounds = Path(), "", [1, 2, 4], [0, 3], 3

    saved = {name: getattr(scale_check, name) for name in ("prepare", "count_parameters", "wire_rate", "fresh_rate", "predict", "measure")}
    scale_check.prepare = lambda args: {"prompts_per_step": 4}
    scale_check.count_parameters = scale_check.wire_rate = scale_check.fresh_rate = lambda *_: 1.0
    scale_check.predict = lambda *_: 1.0
    scale_check.measure = lambda args, workload, prompts, ranks, stage, copies=1: {"step": steps[ranks, stage].pop(0)}
    with contextlib.redirect_stdout(io.StringIO()):
        bad = scale_check.check(Args)
    for name, value in saved.items():
        setattr(scale_check, name, value)
    expect([line.split(":")[0] for line in bad] == ["2 ranks with stage 0", "4 ranks with stage 0"], f"{bad}")


def the_check_leaves_out_rounds_in_which_the_machine_changed_its_speed():
    class Args:
        rounds = 2

    def checked(predictions, steps):
        scale_check.wire_rate = scale_check.fresh_rate = lambda: 1.0
        scale_check.predict = lambda *_: predictions.pop(0)
        scale_check.measure = lambda *_: {"step": steps.pop(0)}
        return scale_check.rounds_of(Args, {"prompts_per_step": 4}, 2, 0, 1.0)

    saved = {name: getattr(scale_check, name) for name in ("wire_rate", "fresh_rate", "predict", "measure")}
    steady = checked([1.0, 1.1, 2.0, 2.0], [1.0, 5.0, 2.0])
    restless = checked([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0, 4.0, 8.0])
    for name, value in saved.items():
        setattr(scale_check, name, value)
    expect(steady == ([(1.05, 1.0), (2.0, 2.0)], 1), f"{steady}")
    expect(restless == ([(6.0, 4.0), (12.0, 8.0)], 2), f"not more are left out than were asked for: {restless}")


def failures_cost_saves_repeated_work_and_restarts():
    # With random failures, a segment of work and its save is whole with chance exp(-segment / between), and so is a restart.
    def expected(plan, interval):
        kept = interval / math.expm1((interval + plan.save) / plan.between)
        return 1 - kept / (plan.between * math.exp(plan.restart / plan.between))

    often = Saves(save=30.0, between=3600.0, restart=300.0)
    for plan in (checkpoint_plan(Cluster(), SHAPES[2], 1024), checkpoint_plan(Cluster(), SHAPES[5], 256), often):
        for interval in (plan.interval / 2, plan.interval, plan.interval * 2):
            lost = plan.simulated(interval)
            expect(abs(lost / expected(plan, interval) - 1) < 0.02, f"{plan}: simulated {lost}, not {expected(plan, interval)}")
            expect(lost >= plan.simulated(plan.interval), f"{plan}: {interval} s between saves is better than Young's interval")
        if plan is not often:  # Young's formula is for failures that are rare
            expect(abs(plan.simulated(plan.interval) / plan.lost - 1) < 0.1, f"{plan}: simulated {lost}, by the formula {plan.lost}")
    expect(often.simulated(60.0, seed=1) != often.simulated(60.0), "another seed fails at other moments")
    free = replace(often, save=0.0, restart=0.0)
    expect(abs(free.simulated(600.0) - 600 / 2 / 3600) < 0.003, "what is left is half of an interval for each failure")


def the_page_has_the_tables():
    page = (Path(sys.argv[1]) / "docs/scale.md").read_text()
    for title, table in quick_tables(Cluster(), Work()):
        expect(f"\n{table()}\n" in page, f"docs/scale.md has an old table; run ./dev bench scale: {title}")
    step = simulate(Cluster().grouped(8), SHAPES[5], Work(), 1, 128)
    expect(f" | {step.total:.3g} ({step.seconds['wire'] / step.total:.1%}) |\n" in page, "a step of the 72B model on 1,024 GPUs")


for check in (rank_counts_what_it_decodes, sync_is_the_step_of_scale, equal_lengths_leave_nothing_to_wait_for,
              more_staleness_waits_less, the_ledger_finds_faults, shared_layers_are_one_device,
              the_check_names_runs_that_it_predicts_badly, the_check_leaves_out_rounds_in_which_the_machine_changed_its_speed, failures_cost_saves_repeated_work_and_restarts, the_check_predicts_ranks_from_one_rank_of_their_size, the_page_has_the_tables):
    check()
end()
