"""Compares Mortise's sampler with transformers' logits processors, and its greedy completions with generate.

usage: transformers_oracle.py CASES.json
Exit code 0: Mortise can draw exactly the tokens that transformers keeps, and the log-probabilities are equal. The
processors run on float64, so that boundaries are exactly where the definition puts them.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LogitsProcessorList
from transformers.utils import logging

logging.set_verbosity_error()


def config_of(params, greedy):
    given = {"repetition_penalty": params["repetition_penalty"], "bad_words_ids": params["bad_words"] or None, "eos_token_id": params["stop_ids"] or None,
             "min_new_tokens": params["min_new_tokens"] or None, "max_new_tokens": params["max_new_tokens"], "pad_token_id": 0}
    if not greedy:
        given |= {"temperature": params["temperature"], "top_k": max(0, params["top_k"]), "top_p": params["top_p"],
                  "min_p": params["min_p"] or None, "typical_p": params["typical_p"]}
    return GenerationConfig(do_sample=not greedy, **given)


def check_processors(model, case):
    config = config_of(case["params"], greedy=False)
    model._prepare_special_tokens(config, True, device="cpu")
    processors = model._get_logits_processor(config, input_ids_seq_length=len(case["prompt_ids"]), logits_processor=LogitsProcessorList(),
                                             device="cpu", model_kwargs={})
    ids = torch.tensor([case["prompt_ids"] + case["completion_ids"]])
    log_probs = processors(ids, torch.tensor([case["logits"]], dtype=torch.float64)).log_softmax(-1)[0]
    kept = torch.isfinite(log_probs).nonzero().flatten().tolist()
    if kept != case["ours"]["ids"]:
        return f"kept {kept}, ours {case['ours']['ids']}"
    difference = (log_probs[kept] - torch.tensor(case["ours"]["log_probs"], dtype=torch.float64)).abs().max().item()
    return "" if difference < 1e-5 else f"log-probabilities differ by {difference}"


def check_greedy(model, case):
    ids = torch.tensor([case["prompt_ids"]])
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config_of(case["params"], greedy=True))
    theirs = out[0, ids.shape[1]:].tolist()
    return "" if theirs == case["ours"] else f"completion {theirs}, ours {case['ours']}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    model = AutoModelForCausalLM.from_pretrained(cases["model"], dtype=torch.float32).eval()
    checks = [("processors", check_processors), ("greedy", check_greedy)]
    faults = []
    for kind, check in checks:
        assert cases[kind], kind
        for index, case in enumerate(cases[kind]):
            if fault := check(model, case):
                faults.append(f"{kind} {index} ({case['params']}): {fault}")
    print("\n".join(faults[:10]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
