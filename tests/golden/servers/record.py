# Asks a running vLLM what the rollout backends ask it, and what it refuses, and writes each request with its answer.
# README.md says how the server is started.
#   python3 record.py http://127.0.0.1:8000 vllm.jsonl
#   python3 record.py http://127.0.0.1:8001 vllm_processed.jsonl   the log-probs only; started with processed_logprobs
import json
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent.parent / "support"))
sys.dont_write_bytecode = True
from nan_weights import write_nan

url, file = sys.argv[1:]
# What a run sends with each prompt.
generate = {"model": "m", "prompt": [3, 12, 4, 13], "n": 1, "max_tokens": 6, "temperature": 1.0, "top_p": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": 0, "return_token_ids": True, "ignore_eos": True,
            "stop_token_ids": [1], "seed": 7}
greedy = {**generate, "temperature": 0.0}
probe = {"model": "m", "prompt": [[1], [2], [3], [5]], "max_tokens": 1, "temperature": 1.0, "top_k": 1, "logprobs": 0,
         "return_token_ids": True}
chat = "/v1/completions"
rpc = "/collective_rpc"
WAIT = {"greedy while paused"}


def reload(folder):
    return {"method": "reload_weights", "kwargs": {"weights_path": folder}}


def without(body, *names):
    return {name: value for name, value in body.items() if name not in names}


def exchanges(nan_folder):
    """Name, method, path and body of each request, in order. A body that is text is sent as it is."""
    if "processed" in file:
        yield from log_probs()
        return
    yield "health", "GET", "/health", None
    yield "models", "GET", "/v1/models", None
    yield "metrics", "GET", "/metrics", None
    yield "no such path", "POST", "/nothing", {}
    yield "wrong method", "GET", chat, None
    yield from log_probs()
    yield from completions()
    yield from refusals()
    yield "weight version before", "GET", "/weight_info", None
    yield "is paused", "GET", "/is_paused", None
    yield "resume what runs", "POST", "/resume", {}
    yield "pause in no such mode", "POST", "/pause?mode=never", {}
    # New weights, as the backend sends them.
    yield "pause", "POST", "/pause?mode=wait", {}
    yield "pause again", "POST", "/pause?mode=wait", {}
    yield "is paused now", "GET", "/is_paused", None
    yield "greedy while paused", "POST", chat, greedy
    yield "reload", "POST", rpc, reload(str(here / "other"))
    yield "new version", "POST", "/update_weight_version", {"new_version": "7"}
    yield "new version as a number", "POST", "/update_weight_version", {"new_version": 7}
    yield "new version without one", "POST", "/update_weight_version", {}
    yield "reset the prefix cache", "POST", "/reset_prefix_cache?reset_running_requests=true", {}
    yield "resume", "POST", "/resume", {}
    yield "weight version after", "GET", "/weight_info", None
    yield "greedy with other weights", "POST", chat, greedy
    # Loads that fail. A good one repairs the model.
    yield "pause for failures", "POST", "/pause?mode=wait", {}
    yield "reload without a method", "POST", rpc, {"kwargs": {}}
    yield "reload from nowhere", "POST", rpc, reload("/no/such/folder")
    yield "reload NaN", "POST", rpc, reload(nan_folder)
    yield "reset after NaN", "POST", "/reset_prefix_cache?reset_running_requests=true", {}
    yield "resume with NaN", "POST", "/resume", {}
    yield "greedy with NaN", "POST", chat, greedy
    yield "pause after NaN", "POST", "/pause?mode=wait", {}
    yield "reload the first weights", "POST", rpc, reload(str(here / "model"))
    yield "reset after all", "POST", "/reset_prefix_cache?reset_running_requests=true", {}
    yield "resume after all", "POST", "/resume", {}
    yield "greedy with the first weights", "POST", chat, greedy
    yield "sleep", "POST", "/sleep?level=1", {}
    yield "is sleeping", "GET", "/is_sleeping", None
    yield "wake up", "POST", "/wake_up", {}
    yield "abort requests", "POST", "/abort_requests", {}
    yield "greedy after sleep", "POST", chat, greedy
    yield from adapters()


def completions():
    yield "forced length", "POST", chat, {**generate, "min_tokens": 6}
    yield "stop id", "POST", chat, {**greedy, "stop_token_ids": list(range(14))}
    yield "stop text", "POST", chat, {**greedy, "stop": ["+6", "99"], "include_stop_str_in_output": True}
    yield "too many stop texts", "POST", chat, {**greedy, "stop": ["91", "92", "93", "94", "95"]}
    yield "large seed", "POST", chat, {**generate, "seed": 2**61 - 1}
    yield "several prompts", "POST", chat, {**greedy, "prompt": [[3, 12], [4, 12, 5]]}
    yield "no ids asked", "POST", chat, without(greedy, "return_token_ids")
    yield "no log-probs asked", "POST", chat, without(greedy, "logprobs")
    yield "unknown field", "POST", chat, {**greedy, "no_such_field": 1}
    yield "fields of mortise", "POST", chat, {**greedy, "typical_p": 0.5, "bad_word_ids": [[3]]}


def refusals():
    for name, body in {
            "text for a number": {**generate, "n": "two"}, "fraction for a count": {**generate, "n": 1.5},
            "no completions": {**generate, "n": 0}, "several greedy ones": {**greedy, "n": 2},
            "no tokens": {**generate, "max_tokens": 0}, "below zero": {**generate, "max_tokens": -1},
            "cold": {**generate, "temperature": -1.0}, "hot": {**generate, "temperature": 2.5},
            "top_p of 2": {**generate, "top_p": 2.0},
            "top_p of 0": {**generate, "top_p": 0.0}, "top_k of -2": {**generate, "top_k": -2},
            "min_p of 2": {**generate, "min_p": 2.0}, "repetition penalty of 0": {**generate, "repetition_penalty": 0.0},
            "presence penalty of 3": {**generate, "presence_penalty": 3.0},
            "more forced than allowed": {**generate, "min_tokens": 7}, "too many log-probs": {**generate, "logprobs": 50},
            "seed of 2^63": {**generate, "seed": 2**63}, "text for a seed": {**generate, "seed": "x"},
            "unknown id": {**generate, "prompt": [3, 99]}, "id below zero": {**generate, "prompt": [3, -1]},
            "empty prompt": {**generate, "prompt": []}, "no prompt": without(generate, "prompt"),
            "long prompt": {**generate, "prompt": [3] * 64}, "long completion": {**generate, "max_tokens": 61},
            "unknown model": {**generate, "model": "x"}, "no model": without(greedy, "model"),
            "stop id as text": {**generate, "stop_token_ids": "x"},
    }.items():
        yield name, "POST", chat, body
    yield "no JSON", "POST", chat, '{"model": "m", '


def log_probs():
    yield "probe", "POST", chat, probe
    yield "greedy", "POST", chat, greedy
    yield "sampled", "POST", chat, {**generate, "n": 2}
    yield "at half the temperature", "POST", chat, {**generate, "temperature": 0.5}
    yield "filtered", "POST", chat, {**generate, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1}
    yield "penalties", "POST", chat, {**greedy, "presence_penalty": 0.5, "frequency_penalty": 0.25}


def adapters():
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    folder = str(here / "adapter")
    yield "load an adapter", "POST", load, {"lora_name": "a-1", "lora_path": folder}
    yield "load it again", "POST", load, {"lora_name": "a-1", "lora_path": folder}
    yield "load one from nowhere", "POST", load, {"lora_name": "a-2", "lora_path": "/no/such/folder"}
    yield "load one without a path", "POST", load, {"lora_name": "a-2"}
    yield "load under the model's name", "POST", load, {"lora_name": "m", "lora_path": folder}
    yield "models with an adapter", "GET", "/v1/models", None
    yield "greedy with the adapter", "POST", chat, {**greedy, "model": "a-1"}
    yield "greedy without the adapter", "POST", chat, greedy
    yield "unload it", "POST", unload, {"lora_name": "a-1"}
    yield "unload it again", "POST", unload, {"lora_name": "a-1"}
    yield "greedy with the unloaded adapter", "POST", chat, {**greedy, "model": "a-1"}


def ask(name, method, path, body):
    """Status, type and text; three times None for a request that waits because the server is paused."""
    data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5 if name in WAIT else 300) as answer:
            return answer.status, answer.headers.get("Content-Type"), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Content-Type"), error.read().decode()
    except TimeoutError:
        return None, None, None


def kept(text, kind):
    """An answer without what differs from one time to the next."""
    if kind and kind.startswith("application/json"):
        answer = json.loads(text)
        if isinstance(answer, dict):
            for name in ("id", "created"):
                if name in answer:
                    answer[name] = "cmpl-0" if name == "id" else 0
            for card in answer.get("data", []):
                card.update(created=0, permission=[])
                card["root"] = Path(card["root"]).name
        return answer
    return [line for line in text.splitlines() if line.startswith("process_start_time_seconds")] if path == "/metrics" else text


with tempfile.TemporaryDirectory() as nan_folder, open(here / file, "w") as out:
    write_nan(here / "model", Path(nan_folder))
    for name, method, path, body in exchanges(nan_folder):
        status, kind, text = ask(name, method, path, body)
        line = {"name": name, "method": method, "path": path, "body": body, "status": status, "type": kind,
                "answer": kept(text, kind)}
        written = json.dumps(line).replace(str(here) + "/", "").replace(nan_folder, "nan")
        out.write(written + "\n")
        print(f"{status} {name}: {str(text)[:150]!r}", flush=True)
