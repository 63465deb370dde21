"""The curves of docs/: each picture's name, its title, the metric that it shows, and the runs that it needs.

usage: picture_list.py                  prints the names of all pictures
       picture_list.py --runs NAME...   prints the runs that these pictures need
"""

import dataclasses
import sys

VALIDATION = "val-core/addition/reward/mean@1"


@dataclasses.dataclass(frozen=True)
class Curves:
    title: str
    lines: dict  # run -> label
    metric: str = VALIDATION
    size: tuple = (4.2, 2.2)
    legend: str = ""  # inside, outside, or none
    top: float = 1.0  # end of the vertical axis


def recipe(name, metric=VALIDATION):
    return Curves(metric, {f"recipe_{name}": name}, metric)


def seeds(name, metric=VALIDATION):
    return Curves(metric, {f"recipe_{name}_{seed}": f"seed {seed}" for seed in (1, 2, 3)}, metric)


def sweep(title, lines):
    return Curves(title, lines, size=(6, 2.6), legend="outside")


CURVES = {
    "quickstart": Curves("Share of right answers on the validation pairs, GRPO, 300 steps",
                         {f"seed_{seed}": f"seed {seed}" for seed in (1, 2, 3)}, size=(7, 3), legend="inside"),
    **{f"recipe_{name}": recipe(name) for name in ("gspo", "dapo", "dr_grpo", "ppo", "bfloat16")},
    "recipe_distill": recipe("distill", "eval_rewards/exact_match/mean"),  # distill gives its reward no weight
    # The greedy answers of these two are right from the start.
    "recipe_tools": recipe("tools", "critic/score/mean"),
    "recipe_search": recipe("search", "critic/score/mean"),
    "recipe_chord": Curves(VALIDATION, {"recipe_chord": "GRPO and 500 examples", "chord_grpo": "GRPO alone",
                                        "chord_examples": "500 examples alone"}, size=(6, 2.6), legend="outside", top=0.25),
    "recipe_warm_start": Curves(VALIDATION, {"recipe_warm_start": "warm start"}),
    **{f"recipe_{name}": seeds(name) for name in
       ("lora", "frozen", "over_sampling", "replay_buffer", "curriculum", "experts")},
    "recipe_validation_sets": seeds("validation_sets", "val-core/sampled/addition/reward/pass@8"),
    "recipe_game": seeds("game", "val-core/products/reward/mean@1"),
    # Its validation reward is the sum of two rewards.
    "recipe_reward_model": seeds("reward_model", "eval_rewards/exact_match/mean"),
    "choose_lr": sweep("actor.optim.lr", {"lr_2e-5": "2e-5", "base": "1e-4", "lr_4e-4": "4e-4", "lr_4e-3": "4e-3"}),
    "choose_n": sweep("rollout.n", {"n_2": "2", "base": "4", "n_16": "16"}),
    "choose_clip": sweep("actor.clip_ratio, four updates per step", {"clip_0.02": "0.02", "clip_0.2": "0.2", "clip_0.8": "0.8"}),
    "choose_kl": sweep("actor.kl_loss_coef", {"base": "no KL", "kl_0.01": "0.01", "kl_0.3": "0.3"}),
}
# Pictures other than curves, with the runs that they show.
OTHERS = {"terminal": [], "report": ["base", "lr_4e-4"]}
NEEDS = {"recipe_distill": ["seed_1"]}  # its teacher


def runs_of(pictures):
    runs = set()
    for picture in pictures:
        for run in CURVES[picture].lines if picture in CURVES else OTHERS[picture]:
            runs.update([run, *NEEDS.get(run, [])])
    return sorted(runs)


if __name__ == "__main__":
    for name in runs_of(sys.argv[2:]) if sys.argv[1:2] == ["--runs"] else [*CURVES, *OTHERS]:
        print(name)
