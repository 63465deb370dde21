# The answers of a real vLLM (tests/golden/servers) against those of two servers that speak its protocol: the tests' own
# rollout_server.py, and `mortise serve`.
#   recorded_servers.py TESTS_FOLDER           the tests' server: the same status, fields and types for every request;
#                                              and which log-probs --logprobs-mode processed_logprobs changes
#   recorded_servers.py TESTS_FOLDER PROGRAM   `mortise serve`: also the same greedy tokens and their log-probs
# Prints each difference. Exit code 1 if there is one.
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

tests = Path(sys.argv[1])
program = sys.argv[2] if len(sys.argv) > 2 else None
golden = tests / "golden" / "servers"
sys.path.insert(0, str(tests / "support"))
sys.dont_write_bytecode = True
from nan_weights import write_nan

LOG_PROB_TOLERANCE = 2e-5  # float32 kernels of two libraries
# What `mortise serve` answers in another way on purpose: its status, by the name of the request.
OTHER_STATUS = {
    "wrong method": 404,
    "unknown field": 400,  # vLLM ignores what it does not know
    "too many stop texts": 200, "several greedy ones": 200, "presence penalty of 3": 200, "hot": 200, "too many log-probs": 200,
    "long completion": 400,  # vLLM ends it early
    "new version as a number": 200,
    "greedy with NaN": 500, "greedy with the first weights": 200,
    "weight version before": 404, "weight version after": 404, "is sleeping": 404,
    # It has no adapters.
    "load an adapter": 404, "load it again": 404, "load one without a path": 404, "load under the model's name": 404,
    "greedy with the adapter": 404, "unload it": 404,
}
faults = []
num_compared = 0  # completions with the same greedy tokens


def ask(url, line, text):
    request = urllib.request.Request(url + line["path"], text, {"Content-Type": "application/json"}, method=line["method"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=300 if line["status"] else 1) as answer:
            return answer.status, answer.headers.get("Content-Type"), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Content-Type"), error.read().decode()
    except TimeoutError:
        return None, None, None  # as vLLM, which answers nothing while it is paused


def shape(value):
    """Fields and types, without numbers and texts. Lists of one type count as one element."""
    if isinstance(value, dict):
        return {name: shape(entry) for name, entry in value.items()}
    if isinstance(value, list):
        shapes = [shape(entry) for entry in value]
        return shapes[:1] if all(entry == shapes[0] for entry in shapes) else shapes
    return type(value).__name__


def choices_shape(answer):
    answer = json.loads(json.dumps(answer))
    for choice in answer.get("choices", []):
        choice["stop_reason"] = None
        if choice["logprobs"]:
            choice["logprobs"]["top_logprobs"] = [list(entry.values()) for entry in choice["logprobs"]["top_logprobs"]]
    return shape(answer)


def compare_fake(line, status, kind, text):
    if (status, kind) != (line["status"], line["type"]):
        return f"status and type {status} {kind}, not {line['status']} {line['type']}"
    if status is None:
        return ""
    if kind is None:
        return "" if text == line["answer"] else f"{text!r}, not {line['answer']!r}"
    if not kind.startswith("application/json"):
        return "" if re.search(r"\nprocess_start_time_seconds \S+\n", text) else "no process_start_time_seconds"
    answer, wanted = json.loads(text), line["answer"]
    if choices_shape(answer) != choices_shape(wanted):
        return f"{json.dumps(choices_shape(answer))}, not {json.dumps(choices_shape(wanted))}"
    if "choices" in wanted:
        counts = [[len(choice["token_ids"] or []) for choice in each["choices"]] for each in (answer, wanted)]
        ends = {choice["finish_reason"] for each in (answer, wanted) for choice in each["choices"]}
        return "" if counts[0] == counts[1] or ends != {"length"} else f"{counts[0]} tokens, not {counts[1]}"
    if "error" in wanted:
        for each in (answer["error"], wanted["error"]):
            each["message"] = each["message"].split(":\n")[0].split(" is out of")[0]  # the first line, if there are more
            each["message"] = re.sub(r"^\d+ validation errors?", "validation errors", each["message"])
    return "" if answer == wanted else f"{text}, not {json.dumps(wanted)}"


def compare_mortise(line, status, text):
    wanted_status = OTHER_STATUS.get(line["name"], line["status"])
    if status != wanted_status:
        return f"status {status} ({str(text)[:200]}), not {wanted_status}"
    if not all(code == 200 for code in (status, line["status"])) or "choices" not in (line["answer"] or {}):
        return ""
    answer = json.loads(text)
    if line["body"].get("temperature") != 0.0 or not line["body"].get("return_token_ids"):
        return ""  # the samplers draw other random numbers
    global num_compared
    num_compared += len(answer["choices"])
    for got, wanted in zip(answer["choices"], line["answer"]["choices"], strict=True):
        if got["token_ids"] != wanted["token_ids"] or got["finish_reason"] != wanted["finish_reason"]:
            return f"{got['token_ids']} {got['finish_reason']}, not {wanted['token_ids']} {wanted['finish_reason']}"
        if got["text"] != wanted["text"]:
            return f"text {got['text']!r}, not {wanted['text']!r}"
        if not wanted["logprobs"]:
            continue
        pairs = list(zip(got["logprobs"]["token_logprobs"], wanted["logprobs"]["token_logprobs"], strict=True))
        if max(abs(a - b) for a, b in pairs) > LOG_PROB_TOLERANCE:
            return f"log-probs of {pairs}"
    return ""


def log_probs_of(exchange):
    return [choice["logprobs"]["token_logprobs"] for choice in exchange["answer"]["choices"]]


def compare_kinds():
    """What the backend's place_log_probs takes for granted: when processed log-probs are the raw ones."""
    from vllm_recorded import PROCESSED, RECORDED
    are_equal = {"probe": False, "greedy": True, "sampled": True, "at half the temperature": False, "filtered": False,
                 "penalties": False}
    if set(PROCESSED) != set(are_equal):
        faults.append(f"vllm_processed.jsonl has {sorted(PROCESSED)}")
    for name, equal in are_equal.items():
        raw, processed = log_probs_of(RECORDED[name]), log_probs_of(PROCESSED[name])
        if (raw == processed) != equal:
            faults.append(f"{name}: raw log-probs {raw}, processed ones {processed}")
        if raw[0][0] > -1e-5:
            faults.append(f"{name}: the raw log-prob {raw[0][0]} cannot tell the kinds apart")
    for log_probs in log_probs_of(PROCESSED["probe"]):
        if log_probs[0] < -1e-5:
            faults.append(f"probe: {log_probs} is not the log-prob of the only token left")


def body_of(line, folder):
    if line["method"] == "GET":
        return None
    if isinstance(line["body"], str):
        return line["body"].encode()
    text = json.dumps(line["body"])
    for name in ("other", "model", "adapter", "nan"):
        for key in ("weights_path", "lora_path"):
            text = text.replace(f'"{key}": "{name}"', f'"{key}": "{folder / name}"')
    return text.encode()


def start():
    if program is None:
        service = subprocess.Popen([sys.executable, tests / "support" / "rollout_server.py"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        return service, f"http://127.0.0.1:{service.stdout.readline().strip()}/good/0"
    service = subprocess.Popen([program, "serve", "--model", golden / "model", "--served-model-name", "m", "--port", "0"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for text in service.stdout:
        if found := re.search(r"http://\S+", text):
            return service, found.group().rstrip("/")
    sys.exit("`mortise serve` ended before it gave its address")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("model", "other", "adapter"):
            shutil.copytree(golden / part, folder / part)
        (folder / "nan").mkdir()
        write_nan(golden / "model", folder / "nan")
        service, url = start()
        try:
            with open(golden / "vllm.jsonl") as lines:
                for line in map(json.loads, lines):
                    status, kind, text = ask(url, line, body_of(line, folder))
                    fault = compare_fake(line, status, kind, text) if program is None else compare_mortise(line, status, text)
                    if fault:
                        faults.append(f"{line['name']}: {fault}")
        finally:
            service.kill()
            service.wait()
    if program is None:
        compare_kinds()
    elif num_compared < 8:
        faults.append(f"only {num_compared} greedy completions were compared")
    print("\n".join(faults) or "all answers are those of vLLM")
    return 1 if faults else 0


sys.exit(main())
