# What vLLM 0.32 answers, made from answers of a real one (tests/golden/servers): rollout_server.py plays it, and
# recorded_servers.py compares the two.
import copy
import json
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "servers"
VOCABULARY = json.loads((GOLDEN / "model" / "config.json").read_text())["vocab_size"]
INT64 = 2**63 - 1


def read_exchanges(file):
    with open(GOLDEN / file) as lines:
        return {line["name"]: line for line in map(json.loads, lines)}


RECORDED = read_exchanges("vllm.jsonl")
PROCESSED = read_exchanges("vllm_processed.jsonl")
COMPLETION = RECORDED["greedy"]["answer"]
MAX_MODEL_LEN = RECORDED["models"]["answer"]["data"][0]["max_model_len"]


def error(message, kind="BadRequestError", param=None, code=400):
    return code, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def mistyped(kind, param):
    """A field that cannot be read. The real message quotes what came; this one has its first words."""
    return error(f"1 validation error:\n  {{'type': '{kind}', 'loc': '{param}'}}", "Bad Request", param)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# Fields by type, with what vLLM says of a value that it refuses.
COUNTS = {"n": 1, "max_tokens": 1, "min_tokens": 0, "top_k": 0, "logprobs": 0, "seed": -INT64}
BOUNDS = [  # the reason, and whether it names the parameter
    ("temperature", lambda x: x >= 0, "temperature must be non-negative", True),
    ("temperature", lambda x: x <= 2, "temperature must be in [0, 2]", True),
    ("top_p", lambda x: 0 < x <= 1, "top_p must be in (0, 1]", True),
    ("min_p", lambda x: 0 <= x <= 1, "min_p must be in [0, 1]", False),
    ("repetition_penalty", lambda x: x > 0, "repetition_penalty must be greater than zero", False),
    ("presence_penalty", lambda x: -2 <= x <= 2, "presence_penalty must be in [-2, 2]", False),
    ("frequency_penalty", lambda x: -2 <= x <= 2, "frequency_penalty must be in [-2, 2]", False),
]
NUMBERS = {name for name, *_ in BOUNDS}
FLAGS = {"return_token_ids", "ignore_eos", "include_stop_str_in_output"}
LISTS = {"stop_token_ids": int, "stop": str}
KNOWN = {"model", "prompt", "structured_outputs", *COUNTS, *NUMBERS, *FLAGS, *LISTS}


def type_refusal(body):
    for name in COUNTS:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, str) or isinstance(value, bool):
            return mistyped("int_parsing", f"body.{name}")
        if not isinstance(value, int):
            return mistyped("int_from_float", f"body.{name}")
    if body.get("seed") is not None and abs(body["seed"]) > INT64:
        return mistyped("less_than_equal", "body.seed")
    for name in NUMBERS:
        if name in body and not is_number(body[name]):
            return mistyped("float_type", f"body.{name}")
    for name in FLAGS:
        if name in body and not isinstance(body[name], bool):
            return mistyped("bool_type", f"body.{name}")
    for name, item in LISTS.items():
        value = body.get(name, [])
        if not isinstance(value, list) or any(not isinstance(x, item) for x in value):
            return mistyped("list_type", f"body.{name}")
    if len(body.get("stop", [])) > 4:
        return mistyped("too_long", "body.stop")
    return None


def prompts_of(body):
    prompt = body["prompt"]
    return prompt if prompt and isinstance(prompt[0], list) else [prompt]


def prompt_refusal(body):
    if "prompt" not in body:
        return error("Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt")
    if not body["prompt"]:
        return error("You must pass at least one prompt")
    for prompt in prompts_of(body):
        for place, token in enumerate(prompt):
            if not isinstance(token, int) or token < 0:
                return mistyped("greater_than_equal", f"body.prompt.{place}")
            if token >= VOCABULARY:
                return error(f"Token id {token} is out of vocabulary")
        if len(prompt) >= MAX_MODEL_LEN:
            return error("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", param="max_tokens")
    return None


def range_refusal(body):
    for name, holds, reason, names_it in BOUNDS:
        value = body.get(name)
        if value is not None and not holds(value):
            tail = f" (parameter={name}, value={value})" if names_it else ""
            return error(f"{reason}, got {value}.{tail}", param=name if names_it else None)
    n, limit, forced = body.get("n", 1), body.get("max_tokens", 16), body.get("min_tokens", 0)
    if n < 1:
        return error(f"n must be at least 1, got {n}.")
    if limit < 1:
        return error(f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})", param="max_tokens")
    if body.get("top_k", 0) < 0 and body["top_k"] != -1:
        return error(f"top_k must be 0 (disable), or at least 1, got {body['top_k']}.")
    if forced > limit:
        return error(f"min_tokens must be less than or equal to max_tokens={limit}, got {forced}.")
    if body.get("temperature") == 0 and n > 1:
        return error(f"n must be 1 when using greedy sampling, got {n}.")
    if (body.get("logprobs") or 0) > 20:
        return error(f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: 20 "
                     f"(parameter=logprobs, value={body['logprobs']})", param="logprobs")
    return None


def refusal(body, adapters):
    """Status and body of the refusal of a completion, or None. `adapters`: names of those that are loaded."""
    if not isinstance(body, dict):
        return mistyped("json_invalid", "body")
    mistake = type_refusal(body)
    if mistake:
        return mistake
    model = body.get("model", "m")
    if model != "m" and model not in adapters:
        return unknown_model(model, adapters)
    return prompt_refusal(body) or range_refusal(body)


def unknown_model(model, adapters):
    known = ", ".join(["m", *adapters])
    return error(f"The model `{model}` does not exist. Valid aliases: {known}.", "NotFoundError", "model", 404)


def completion(body, samples):
    """The answer with (prompt, ids, log-probs, finish reason) of each choice."""
    answer = copy.deepcopy(COMPLETION)
    template = answer["choices"].pop()
    for index, (prompt, ids, log_probs, reason) in enumerate(samples):
        choice = copy.deepcopy(template)
        names = [f"<{token}>" for token in ids]
        choice.update(index=index, text="".join(names), finish_reason=reason, stop_reason=ids[-1] if reason == "stop" else None)
        if body.get("logprobs") is None:
            choice["logprobs"] = None
        else:
            choice["logprobs"].update(text_offset=[4 * t for t in range(len(ids))], token_logprobs=log_probs, tokens=names,
                                      top_logprobs=[{name: value} for name, value in zip(names, log_probs)])
        asks_ids = body.get("return_token_ids", False)
        choice.update(token_ids=ids if asks_ids else None, prompt_token_ids=prompt if asks_ids else None)
        answer["choices"].append(choice)
    num_prompt, num_new = (sum(map(len, lists)) for lists in (prompts_of(body), [sample[1] for sample in samples]))
    answer["usage"].update(prompt_tokens=num_prompt, completion_tokens=num_new, total_tokens=num_prompt + num_new)
    answer["model"] = body.get("model", "m")
    return answer


def models(adapters, owner="vllm"):
    answer = copy.deepcopy(RECORDED["models"]["answer"])
    answer["data"][0]["owned_by"] = owner
    card = RECORDED["models with an adapter"]["answer"]["data"][1]
    answer["data"] += [{**card, "id": name} for name in adapters]
    return answer


def change_adapter(body, adapters, loads):
    """Status and body of the answer to a load or unload, which changes nothing here."""
    for name in ("lora_name", "lora_path") if loads else ("lora_name",):
        if not isinstance(body.get(name), str):
            return mistyped("missing", f"body.{name}")
    name = body["lora_name"]
    if loads and name == "m":
        return error("The lora adapter 'm' conflicts with a served base model.", "InvalidUserInput")
    if loads and name in adapters:
        return error(f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                     "'load_inplace' to True.", "InvalidUserInput")
    if loads and not Path(body["lora_path"]).is_dir():
        return error(f"Loading lora {name} failed: No adapter found for {body['lora_path']}", "NotFoundError", code=404)
    if not loads and name not in adapters:
        return error(f"The lora adapter '{name}' cannot be found.", "NotFoundError", code=404)
    return 200, f"Success: LoRA adapter '{name}' {'added' if loads else 'removed'} successfully."
