"""Writes the cases of this folder whose updates hold rows of several generation batches (carried_*).

TRL 1.16's own GRPOTrainer trains here on recorded completions, without its random order of rows: once in float64, and
once in float32, which gives the drift in `tolerance`. The model and the rows are those of other cases of this folder.

  python make_carried.py [CASE ...]   # needs trl, transformers, datasets and torch
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
MODEL_OF = "dapo_multi_step"
DEFAULTS = {
    "loss_type": "grpo", "beta": 0.0, "use_bias_correction_kl": False, "epsilon": 0.2, "epsilon_high": None,
    "delta": None, "importance_sampling_level": "token", "sapo_temperature_neg": 1.05, "sapo_temperature_pos": 1.0,
    "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "scale_rewards": "group",
    "multi_objective_aggregation": "sum_then_normalize", "reward_weights": None, "num_generations": 4,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 3, "num_iterations": 1,
    "learning_rate": 0.003, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-06, "weight_decay": 0.0,
    "max_grad_norm": 20.0, "lr_scheduler_type": "constant", "warmup_steps": 0, "temperature": 1.0,
    "mask_truncated_completions": False, "top_entropy_quantile": 1.0, "max_completion_length": 16}
# The number of prompts in the data set, and settings in addition to DEFAULTS.
CASES = {
    # 9 micro-steps in an epoch: updates of 2, 2, 2, 2 and 1.
    "carried_epochs": (9, {"num_train_epochs": 2, "lr_scheduler_type": "linear", "warmup_steps": 2}),
    # Two passes over 2 micro-steps: an update may see a row twice. The last micro-steps of the run are left out.
    "carried_passes": (12, {"gradient_accumulation_steps": 3, "steps_per_generation": 2, "num_iterations": 2,
                            "loss_type": "dr_grpo", "beta": 0.04, "learning_rate": 0.001, "max_steps": 7}),
    # An update is larger than a generation batch.
    "carried_large": (12, {"gradient_accumulation_steps": 5, "steps_per_generation": 2, "num_train_epochs": 1,
                           "importance_sampling_level": "sequence"}),
    # An update has two whole generation batches, and each of them is normalized on its own.
    "carried_scale": (12, {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "scale_rewards": "batch",
                           "max_steps": 3}),
}


def rows_of_cases(count):
    """Prompts with completions and scores, of the case whose model is used."""
    lines = (HERE / MODEL_OF / "samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    out = []
    for i in range(count):
        row = json.loads(json.dumps(rows[i % len(rows)]))
        turn = i // len(rows)
        if turn > 0:  # other scores, and another first token, so that no row is there twice
            row["prompt_token_ids"][0] = (row["prompt_token_ids"][0] + 17 * turn) % 250
            row["scores"] = row["scores"][turn:] + row["scores"][:turn]
        out.append(row)
    return out


def train(model_dir, rows, settings, wide):
    import datasets
    import torch
    import trl.trainer.grpo_trainer as grpo
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    grpo.shuffle_sequence_dict = lambda batch: batch
    steps, losses, tokens = [], [], []

    def rollout(prompts, trainer):
        seen, out = {}, {"prompt_ids": [], "completion_ids": [], "logprobs": None, "score": []}
        for prompt in prompts:
            row, place = rows[int(prompt)], seen.get(prompt, 0)
            seen[prompt] = place + 1
            out["prompt_ids"].append(row["prompt_token_ids"])
            out["completion_ids"].append(row["completions"][place])
            out["score"].append(row["scores"][place])
        return out

    class Recorded(GRPOTrainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses.append(loss.item())
            return loss

        def compute_loss(self, model, inputs, *args, **kwargs):
            tokens.append(inputs["completion_mask"].sum().item())
            return super().compute_loss(model, inputs, *args, **kwargs)

        def log(self, logs, *args, **kwargs):
            metrics = self._metrics["train"]
            if "loss" in logs:
                window = {"rows": len(losses) * self.args.per_device_train_batch_size, "tokens": int(sum(tokens))}
                for name, key in (("entropy", "entropy"), ("kl", "kl")):
                    if metrics.get(key):
                        window[name] = sum(v * n for v, n in zip(metrics[key], tokens, strict=True)) / sum(tokens)
                steps[-1].update(loss=sum(losses), grad_norm=float(logs["grad_norm"]), window=window)
                losses.clear()
                tokens.clear()
            super().log(logs, *args, **kwargs)

    class Rate(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
            steps.append({"step": len(steps) + 1, "learning_rate": optimizer.param_groups[0]["lr"]})

    with tempfile.TemporaryDirectory() as folder:
        trainer = Recorded(
            model=model, reward_funcs=lambda score, **kwargs: score, rollout_func=rollout, callbacks=[Rate()],
            args=GRPOConfig(output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False,
                            shuffle_dataset=False, logging_steps=1, report_to="none", save_strategy="no",
                            disable_tqdm=True, seed=1, top_p=1.0, top_k=0, optim="adamw_torch", **settings),
            processing_class=AutoTokenizer.from_pretrained(model_dir),
            train_dataset=datasets.Dataset.from_list([{"prompt": str(i)} for i in range(len(rows))]))
        if wide:  # TRL and the model code say float32 in some places
            for one in (trainer.model, trainer.ref_model):
                if one is not None:
                    one.double()
            torch.set_default_dtype(torch.float64)
            torch.float32 = torch.float64
            torch.Tensor.float = torch.Tensor.double
        trainer.train()
    return steps, {name: value.detach() for name, value in trainer.model.state_dict().items()}


def write_run(model_dir, case, out, wide):
    """One run, in a process of its own: float64 changes torch."""
    import torch

    count, more = CASES[case]
    steps, weights = train(model_dir, rows_of_cases(count), DEFAULTS | more, wide)
    weights = {name: value.contiguous() for name, value in weights.items() if name != "lm_head.weight"}
    pathlib.Path(out + ".json").write_text(json.dumps(steps))
    torch.save(weights, out + ".pt")


def tolerance_of(wide, narrow):
    def drift(values):
        pairs = list(values)
        most = max(abs(a - b) for a, b in pairs)
        scale = max(abs(a) for a, _ in pairs) or 1.0
        return {"abs": most, "rel": most / scale}

    out = {key: drift((a[key], b[key]) for a, b in zip(wide, narrow, strict=True)) for key in ("loss", "grad_norm")}
    for key in ("entropy", "kl"):
        if key in wide[0]["window"]:
            out[f"window.{key}"] = drift((a["window"][key], b["window"][key]) for a, b in zip(wide, narrow, strict=True))
    return out


def make_case(case, scratch):
    import torch
    from safetensors.torch import load_file, save_file

    folder, (count, more) = HERE / case, CASES[case]
    model_dir = HERE / MODEL_OF / "model"
    runs = {}
    for wide in (True, False):
        out = str(scratch / f"{case}.{wide}")
        subprocess.run([sys.executable, __file__, case, out, str(int(wide))], check=True)
        runs[wide] = json.loads(pathlib.Path(out + ".json").read_text()), torch.load(out + ".pt")
    (wide, final), (narrow, narrow_final) = runs[True], runs[False]
    tolerance = tolerance_of(wide, narrow)
    start = load_file(str(model_dir / "model.safetensors"))
    difference = sum((final[k].double() - narrow_final[k].double()).square().sum() for k in final).sqrt().item()
    moved = sum((final[k].double() - start[k].double()).square().sum() for k in final).sqrt().item()
    tolerance["final_parameters"] = {"l2": difference, "move": moved, "rel_to_move": difference / moved}

    settings = DEFAULTS | more
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(model_dir, folder / "model")
    rows = rows_of_cases(count)
    epochs = settings.get("num_train_epochs", 1)
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "prompts.jsonl").write_text("".join(lines))
    (folder / "samples.jsonl").write_text("".join(lines) * epochs)
    rows_of_micro, prompts = settings["per_device_train_batch_size"], settings["num_generations"]
    batch, update = (rows_of_micro * settings[k] for k in ("steps_per_generation", "gradient_accumulation_steps"))
    used = -(-settings["max_steps"] * update // (batch * settings["num_iterations"])) if "max_steps" in settings else \
        epochs * count * prompts // batch
    derived = {"rows_per_generation_batch": batch, "prompts_per_generation_batch": batch // prompts,
               "completions_per_optimizer_step": update, "prompts_per_optimizer_step": update // prompts,
               "generation_batches": used}
    params = {"case": case, "trl": settings, "derived": derived}
    (folder / "params.json").write_text(json.dumps(params, indent=2) + "\n")
    (folder / "expected.json").write_text(json.dumps({"steps": wide, "tolerance": tolerance}, indent=1) + "\n")
    stride = 4
    save_file({k: (v[::stride] if v.dim() == 2 else v).float().contiguous() for k, v in final.items()},
              str(folder / "final.safetensors"), {"row_stride": str(stride)})


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3] in ("0", "1"):
        write_run(HERE / MODEL_OF / "model", sys.argv[1], sys.argv[2], sys.argv[3] == "1")
    else:
        with tempfile.TemporaryDirectory() as scratch_folder:
            for name in sys.argv[1:] or CASES:
                make_case(name, pathlib.Path(scratch_folder))
