"""Writes the cases of this folder, TRL's whole loss with its KL term (beta > 0) at sequence and token level, and those
of ../trl_entropy, with its entropy bonus.

TRL 1.16's own GRPOTrainer._compute_loss runs here in float64 on float32 inputs: python make_cases.py
"""
import json
import pathlib
import types
from collections import defaultdict

import torch
from safetensors.torch import save_file
from trl.trainer.grpo_trainer import GRPOTrainer

ROWS, TOKENS, LONGEST = 5, 9, 16


def random_inputs(seed):
    generator = torch.Generator().manual_seed(seed)

    def normal(scale, shift=0.0):
        return (shift + scale * torch.randn(ROWS, TOKENS, generator=generator)).float()

    log_prob = normal(0.5, -2.0)
    lengths = torch.tensor([9, 4, 1, 6, 8])
    mask = (torch.arange(TOKENS)[None, :] < lengths[:, None]).float()
    return {
        "log_prob": log_prob,
        "old_log_prob": log_prob + normal(0.3),
        "ref_log_prob": log_prob + normal(0.6, 0.1),
        "response_mask": mask,
        "advantages": torch.randn(ROWS, generator=generator).float(),
    }


class Alone:
    """What _compute_loss asks of accelerate in one process."""
    num_processes = 1

    def gather(self, tensor):
        return tensor

    def reduce(self, tensor, reduction):
        return tensor

    def pad_across_processes(self, tensor, dim, pad_index):
        return tensor


def trainer_of(case, log_prob, entropy):
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (log_prob, entropy, None),
        aux_loss_enabled=False, top_entropy_quantile=case.get("quantile", 1.0), off_policy_mask_threshold=None,
        use_vllm=False, importance_sampling_level=case["level"], beta=case["beta"], loss_type=case["loss_type"],
        epsilon_low=0.2, epsilon_high=0.2, max_completion_length=LONGEST, current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled="entropy_coef" in case, entropy_coef=case.get("entropy_coef"),
        use_adaptive_entropy=False, model=types.SimpleNamespace(training=True), accelerator=Alone(),
        _metrics={"train": defaultdict(list)}, vllm_importance_sampling_correction=False)
    trainer.args = types.SimpleNamespace(
        use_bias_correction_kl=case["corrected"], delta=None, steps_per_generation=1, vespo_k_pos=2.0,
        vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0, sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05)
    trainer.accelerator.sync_gradients = True
    trainer.get_gamma_weights = GRPOTrainer.get_gamma_weights
    trainer.get_high_entropy_mask = types.MethodType(GRPOTrainer.get_high_entropy_mask, trainer)
    return trainer


def write_case(folder, name, case, inputs):
    wide = {key: value.double() for key, value in inputs.items()}
    log_prob = wide["log_prob"].clone().requires_grad_(True)
    entropy = wide.get("entropy", torch.ones_like(log_prob)).clone().requires_grad_("entropy" in wide)
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids,
        "completion_mask": wide["response_mask"], "advantages": wide["advantages"],
        "old_per_token_logps": wide["old_log_prob"], "ref_per_token_logps": wide["ref_log_prob"],
        "num_items_in_batch": wide["response_mask"].sum(),
    }
    trainer = trainer_of(case, log_prob, entropy)
    loss = GRPOTrainer._compute_loss(trainer, None, batch)
    loss.backward()
    published = ("kl", "entropy") if "entropy" in wide else ("kl",)
    metrics = {key: values[0] for key, values in trainer._metrics["train"].items() if key in published}
    params = {"trl_loss_type": case["loss_type"], "importance_sampling_level": case["level"], "beta": case["beta"],
              "use_bias_correction_kl": case["corrected"], "max_completion_length": LONGEST}
    if "entropy" in wide:
        params |= {"entropy_coef": case["entropy_coef"], "top_entropy_quantile": case["quantile"]}
    tensors = {f"in.{key}": value.contiguous() for key, value in inputs.items()}
    tensors["expected.loss"] = loss.detach().float().reshape(1)
    tensors["expected.grad_log_prob"] = log_prob.grad.float().contiguous()
    if "entropy" in wide:
        tensors["expected.grad_entropy"] = entropy.grad.float().contiguous()
    save_file(tensors, str(folder / f"{name}.safetensors"),
              {"kind": "policy_loss", "source": "TRL 1.16 GRPOTrainer._compute_loss",
               "params": json.dumps(params), "metrics": json.dumps(metrics)})


def write_entropy_cases(folder):
    seed = 100
    kinds = [(name, "token") for name in ("grpo", "bnpo", "dapo", "dr_grpo", "sapo", "cispo", "vespo")]
    for loss_type, level in kinds + [(name, "sequence") for name in ("grpo", "dapo", "dr_grpo", "luspo")]:
        for quantile in (1.0, 0.3):
            seed += 1
            case = {"level": level, "loss_type": loss_type, "corrected": False, "beta": 0.3, "entropy_coef": 0.05,
                    "quantile": quantile}
            inputs = random_inputs(seed)
            generator = torch.Generator().manual_seed(seed)
            inputs["entropy"] = (1.5 + 0.4 * torch.randn(ROWS, TOKENS, generator=generator)).float()
            write_case(folder, f"{loss_type}_{level}{'_top' if quantile < 1 else ''}", case, inputs)


def main():
    folder = pathlib.Path(__file__).parent
    seed = 0
    for level in ("sequence", "token"):
        for loss_type in ("grpo", "bnpo", "dapo", "dr_grpo", "luspo"):
            if level == "token" and loss_type == "luspo":
                continue  # TRL advises against it, and our luspo is the sequence's
            for corrected in (True, False):
                seed += 1
                case = {"level": level, "loss_type": loss_type, "corrected": corrected, "beta": 0.3}
                write_case(folder, f"{loss_type}_{level}{'_corrected' if corrected else ''}", case, random_inputs(seed))
    for loss_type in ("cispo", "sapo"):
        for corrected in (True, False):
            seed += 1
            case = {"level": "sequence", "loss_type": loss_type, "corrected": corrected, "beta": 0.3}
            write_case(folder, f"{loss_type}_sequence{'_corrected' if corrected else ''}", case, random_inputs(seed))
    write_entropy_cases(folder.parent / "trl_entropy")


if __name__ == "__main__":
    main()
