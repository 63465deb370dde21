# A strict rollout server for tests of the backends vllm, sglang and openai: the requests and answers of vLLM 0.32 (those
# of a real one, see vllm_recorded.py) and of SGLang 0.5.23 (from its source), and every way in which such a server fails.
# Stricter than a real one in that fields that it does not know are faults. Prints its port, then serves until its standard
# input ends.
#
# The first part of a path picks a behaviour: http://127.0.0.1:PORT/MODE/v1/completions.
#   good           answers; so do all others but for what they say
#   processed      log-probs after the filters; tempered (SGLang's default is this one)
#   errors/K       500 for the first K completions        half/K      half a body, K times
#   garbage/K      no JSON, K times                       count/K     one choice too few, K times
#   nan/K          a log-prob NaN, K times                hang/K      no answer, K times
#   drop/K         closes the connection, K times         twice/K     the same index twice, K times
#   long/K         more tokens than asked for, K times    refuse      400 for every completion
#   diverged       400 as vLLM says that weights are NaN  no_ids      knows no return_token_ids
#   mortise        says that it is `mortise serve`, with versions; forgets its weights after 2 completions, once
#   restart        another process start time after 2 completions, with closed connections, once
#   lost           the same; all reloads after it fail
#   reload/K       500 for the first K reloads            no_version  has no /update_weight_version
#   held/K         cannot empty its prefix cache K times
#   stuck/K        no answer to any completion, probes too, after K of them
#   short/K        a context of 8 tokens
#   no_start       does not tell when it started
#   key            wants the API key "sesame"
#   moved          redirects to http://gpu1:8000
#   no_adapters    has no calls for LoRA adapters
#   forget         forgets its LoRA adapters after 2 completions, once
#   reborn         forgets its LoRA adapters before each load
#   taken/K        after K completions another run loads its weights, as version 5
#   plain/K        the same, as version 5 without the mark of a run
#   busy/K         answers its first K questions for the version with 503
#   overtaken/K    while it answers the first question for the version after K completions, another run loads its
#                  weights, and all later completions but one are of these
#   blank          loses its weights after 2 completions, and keeps its start time and connections, once
#   late/K         half a body, once; its second reload ends after the second one of good/K
#   named/K        gives back the weight_name that /reload gave; after K completions it is another run's
#   net/K          takes weights over the network: vLLM 0.K, or SGLang (needs torch: rollout_transfers.py)
#   ipc/K          a vLLM 0.K that opens the memory of the trainer's GPU
#   netfail/K      the same as net/K; its first update of the weights fails, and it closes its end
#   torn/K         the same as net/K; a trainer has died within an update, and has left a vLLM (K >= 27) paused
# GET /MODE/log gives what came: {"calls": [[path, body], ...], "loaded": {"file": [names]}, "faults": [...]}.
import copy
import json
import math
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.dont_write_bytecode = True
import vllm_recorded as vllm

MORTISE_FIELDS = {"mortise", "typical_p", "bad_word_ids"}
SGLANG_FIELDS = {"input_ids", "sampling_params", "return_logprob", "logprob_start_len", "lora_path"}
SGLANG_SAMPLING = set(
    "max_new_tokens min_new_tokens temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty n "
    "sampling_seed stop_token_ids ignore_eos stop no_stop_trim regex".split())
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."  # its last words
lock = threading.Lock()
modes = {}


class Mode:
    def __init__(self):
        self.calls, self.faults, self.loaded = [], [], {}
        self.completions = self.failures = self.reloads = self.questions = 0
        self.version, self.paused, self.start, self.has_forgotten = None, False, 1000.5, False
        self.sleeps = False
        self.num_nan = 0  # completions that give NaN
        self.receiver = None  # weights over the network
        self.session = None  # their update
        self.name = None  # the weights have this one, as an openai server was told
        self.adapters = {}  # by name: the configuration, and the names of the tensors with the first number


def names_of(folder):
    out = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in header.values()]
        assert max(ends) == len(data) - 8 - size, "the file does not end with its last tensor"
        first = min(header.values(), key=lambda entry: entry["data_offsets"][0])
        value = struct.unpack("<f", data[8 + size:12 + size])[0] if first["dtype"] == "F32" else None
        out[path.name] = [sorted(header), value]
    return out


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    # A body that is text is sent as it is.
    def reply(self, status, body, cut=None, kind="application/json"):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def route(self):
        parts = self.path[1:].split("/")
        name, rest = parts[0], parts[1:]
        count = int(rest.pop(0)) if rest and rest[0].isdigit() else 0
        with lock:
            if f"{name}/{count}" not in modes:
                modes[f"{name}/{count}"] = Mode()
                modes[f"{name}/{count}"].paused = name == "torn" and count >= 27
            mode = modes[f"{name}/{count}"]
        return name, count, mode, "/" + "/".join(rest)

    def do_GET(self):
        name, count, mode, path = self.route()
        if path == "/log":
            return self.reply(200, {"calls": mode.calls, "loaded": mode.loaded, "faults": mode.faults,
                                    "adapters": sorted(mode.adapters)})
        if path == "/get_world_size":
            return self.reply(200, {"world_size": 1 if name == "ipc" else 2})
        if path == "/version":
            return self.reply(200, {"version": f"0.{count}.0+cpu"})
        if path == "/get_server_info":
            return self.reply(200, {"tp_size": 1, "dp_size": 1, "pp_size": 1})
        if name == "key" and self.headers["Authorization"] != "Bearer sesame":
            return self.reply(401, {"error": "Unauthorized"})
        if name == "moved":
            self.send_response(307)
            self.send_header("Location", "http://gpu1:8000" + path)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if path == "/v1/models":
            answer = vllm.models(mode.adapters, "mortise" if name == "mortise" else "vllm")
            if name == "short":
                answer["data"][0]["max_model_len"] = 8
            return self.reply(200, answer)
        if path == "/metrics":
            kind = vllm.RECORDED["metrics"]["type"]
            if name == "no_start":
                return self.reply(200, "# TYPE x gauge\nx 1\n", kind=kind)
            return self.reply(200, f"# TYPE x gauge\nprocess_start_time_seconds {mode.start}\nx 1\n", kind=kind)
        if path == "/get_model_info":
            return self.reply(200, {"model_path": "m"})
        if path == "/health":
            return self.reply(200, "", kind=None)
        if path == "/is_paused":
            return self.reply(200, {"is_paused": mode.paused})
        if path == "/is_sleeping":
            return self.reply(200, {"is_sleeping": mode.sleeps})
        if path == "/weight_info" and mode.reloads > 0:
            mode.questions += 1
            if name == "busy" and mode.questions <= count:
                return self.reply(503, {"detail": "Service Unavailable"})
            if name == "overtaken" and mode.completions > count and not mode.has_forgotten:
                before, mode.version, mode.has_forgotten = mode.version, 777777000000005, True
                time.sleep(0.5)
                return self.reply(200, {"weight_version": str(before)})
        if path == "/weight_info":
            return self.reply(200, {"weight_version": "default" if mode.version is None else str(mode.version)})
        if path == "/v1/completions":
            return self.reply(405, {"detail": "Method Not Allowed"})
        self.reply(404, {"detail": "Not Found"})

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        name, count, mode, path = self.route()
        try:
            body = json.loads(text)
        except ValueError:
            return self.reply(*vllm.mistyped("json_invalid", f"body.{len(text)}"))
        with lock:
            mode.calls.append([path, body])
        try:
            self.answer(name, count, mode, path, body)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, name, count, mode, path, body):
        if name == "key" and self.headers["Authorization"] != "Bearer sesame":
            return self.reply(401, {"error": "Unauthorized"})
        if path == "/v1/completions":
            note_faults(body, mode)
            return self.complete(name, count, mode, body, vllm.refusal(body, mode.adapters), vllm_answer)
        if path == "/generate":
            fault = sglang_fault(body, mode)
            if fault:
                mode.faults.append(fault)
            refused = (400, {"error": {"message": fault}}) if fault else None
            return self.complete(name, count, mode, body, refused, sglang_answer)
        if path.startswith("/pause?mode="):
            if path[12:] not in ("wait", "keep", "abort"):
                return self.reply(*vllm.mistyped("literal_error", "query.mode"))
            mode.paused = True
            return self.reply(200, {"status": "paused"})
        if path == "/resume":
            mode.paused = False
            return self.reply(200, {"status": "resumed"})
        if path == "/reset_prefix_cache?reset_running_requests=true":
            fails = name == "held" and mode.failures < count
            mode.failures += fails
            return self.reply(200, {"success": not fails})
        if path in ("/sleep?level=1", "/wake_up"):
            mode.sleeps = path != "/wake_up"
            return self.reply(200, {"status": "awake", "tags": None} if path == "/wake_up" else {"status": "sleeping", "level": 1})
        if path == "/abort_requests":
            return self.reply(200, {"status": "aborted", "aborted": 0})
        if path == "/update_weight_version" and name != "no_version":
            if not isinstance(body.get("new_version"), str):
                kind = "string_type" if "new_version" in body else "missing"
                return self.reply(*vllm.mistyped(kind, "body.new_version"))
            mode.version = int(body["new_version"])
            return self.reply(200, {"success": True, "new_version": body["new_version"]})
        if name in ("net", "netfail", "torn", "ipc") and self.receive(name, count, mode, path, body):
            return None
        if path.endswith("load_lora_adapter") and name != "no_adapters":
            if name == "reborn" and not path.endswith("unload_lora_adapter"):
                mode.adapters.clear()
            return self.change_adapters(mode, path, body)
        self.load(name, count, mode, path, body)

    def load(self, name, count, mode, path, body):
        folder = None
        if path == "/collective_rpc" and "method" not in body:
            return self.reply(*vllm.error("Missing 'method' in request body", "Bad Request"))
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            folder = body["kwargs"]["weights_path"]
            if not mode.paused:
                mode.faults.append("reload without pause")
        if path == "/update_weights_from_disk":
            folder = body["model_path"]
        if path == "/reload":
            folder = body["weights_path"]
        if folder is None:
            return self.reply(404, {"detail": "Not Found"})
        mode.reloads += 1
        fails = (name == "reload" and mode.reloads <= count) or (name == "lost" and mode.has_forgotten)
        if fails or not Path(folder).is_dir():
            mode.version = None
            if path == "/update_weights_from_disk":
                return self.reply(200, {"success": False, "message": "bad weights"})
            return self.reply(500, vllm.RECORDED["reload from nowhere"]["answer"])
        mode.loaded = names_of(folder)
        # The key-value cache keeps NaN until something else is written there.
        is_nan = any(value is not None and math.isnan(value) for _, value in mode.loaded.values())
        mode.num_nan = sys.maxsize if is_nan else min(mode.num_nan, 1)
        while name == "late" and mode.reloads == 2 and modes[f"good/{count}"].reloads < 2:
            time.sleep(0.002)
        if path == "/reload" and name == "named":
            mode.name = body["weight_name"]
        if path == "/update_weights_from_disk":
            mode.version = int(body["weight_version"])
            return self.reply(200, {"success": True, "message": "ok", "num_paused_requests": 0})
        self.reply(200, {"results": [None]})

    # Weights over the network. False: the call is another one.
    def receive(self, name, count, mode, path, body):
        import rollout_transfers as transfers
        if path in ("/init_weight_transfer_engine", "/init_weights_update_group"):
            if mode.session is None:
                mode.session = transfers.Session()
                mode.session.is_open, mode.session.partial = name == "torn", {"model.a"} if name == "torn" else set()
            if path == "/init_weights_update_group":
                mode.receiver = transfers.SglangWorker(mode.session)
            elif name == "ipc":
                mode.receiver = transfers.VllmOnOneGpu(mode.session)
            else:
                mode.receiver = transfers.VllmWorkers(mode.session, count >= 30, count >= 28)
        if mode.receiver is None or path not in mode.receiver.PATHS:
            return False
        if name == "netfail" and path in ("/update_weights", "/update_weights_from_distributed"):
            mode.reloads += 1
            if mode.reloads == 1:
                mode.receiver = None
                mode.session.partial = {"model.a"}
                mode.session.is_open = path != "/update_weights"  # vLLM closes it
                self.reply(500, {"detail": "no room for the weights"})
                return True
        try:
            answer = mode.receiver.call(path, body, mode.paused)
        except transfers.Refusal as error:
            self.reply(400 if "distributed" in "".join(mode.receiver.PATHS) else 500, {"success": False, "message": str(error)})
            return True
        except Exception as error:
            mode.faults.append(f"{path}: {type(error).__name__}: {error}")
            self.reply(500, {"detail": str(error)})
            return True
        mode.loaded = mode.receiver.weights
        if path == "/update_weights_from_distributed":
            mode.version = mode.receiver.version
        self.reply(200, answer or {"message": "done"})
        return True

    # Both kinds of servers refuse a name that they have, and one that they do not have.
    def change_adapters(self, mode, path, body):
        loads = not path.endswith("unload_lora_adapter")
        status, answer = vllm.change_adapter(body, mode.adapters, loads)
        adapter = body.get("lora_name")
        if status != 200:
            mode.faults.append(f"{path} of {adapter}")
            return self.reply(status, answer)
        if loads:
            folder = Path(body["lora_path"])
            files = sorted(path.name for path in folder.iterdir())
            mode.loaded = {"files": files, **names_of(folder)}
            mode.adapters[adapter] = json.loads((folder / "adapter_config.json").read_text())
            mode.loaded["config"] = mode.adapters[adapter]
        else:
            del mode.adapters[adapter]
        if path.startswith("/v1"):
            return self.reply(200, answer, kind=None)
        self.reply(200, {"success": True, "loaded_adapters": {}})

    def complete(self, name, count, mode, body, refused, make):
        if refused:
            return self.reply(*refused)
        # vLLM queues what comes while it is paused. A backend that asks then would wait for nothing.
        if mode.paused:
            mode.faults.append("a completion was asked for while the server was paused")
        while mode.paused:
            time.sleep(0.002)
        if mode.num_nan > 0:
            mode.num_nan -= 1
            return self.reply(400, vllm.RECORDED["greedy with NaN"]["answer"])
        is_probe = "seed" not in body and "mortise" not in body and "sampling_seed" not in body.get("sampling_params", {})
        answer = make(body, name, mode)
        if name == "stuck" and mode.completions >= count:
            time.sleep(1_000_000)
        if is_probe:
            return self.reply(200, answer)
        with lock:
            mode.completions += 1
            fails = mode.failures < (1 if name == "late" else count)
            mode.failures += fails
            forgets = name in ("mortise", "restart", "lost", "forget") and mode.completions > 2 and not mode.has_forgotten
            mode.has_forgotten = mode.has_forgotten or forgets
            number = mode.completions
        while name == "overtaken" and number > count + 1 and not mode.has_forgotten:
            time.sleep(0.002)
        if forgets:
            mode.version, mode.start = None, mode.start + 1
            self.close_connection = True
            if name == "forget":
                mode.adapters.clear()
                return self.reply(*vllm.unknown_model(body["model"], []))
            if name in ("restart", "lost"):
                return  # the connection breaks; the next one leads to the new process
            answer = make(body, name, mode)
        if name == "taken" and mode.completions > count:
            mode.version = 777777000000005
        if name == "named" and mode.completions > count:
            mode.name = "777777000000007"
            answer = make(body, name, mode)
        if name == "plain" and mode.completions > count:
            mode.version = 5
        if name == "blank" and mode.completions > 2 and not mode.has_forgotten:
            mode.version, mode.has_forgotten = None, True
        if name == "refuse":
            return self.reply(400, {"error": {"message": "the prompt is too long"}})
        if name == "diverged":
            return self.reply(400, vllm.RECORDED["greedy with NaN"]["answer"])
        if fails and name in FAULTS:
            return FAULTS[name](self, answer)
        self.reply(200, answer)


def spoil(change):
    def fault(self, answer):
        change(answer["choices"])
        self.reply(200, answer)
    return fault


def longer(choices):
    choices[0]["token_ids"] = choices[0]["token_ids"] * 50
    choices[0]["logprobs"]["token_logprobs"] = choices[0]["logprobs"]["token_logprobs"] * 50


def not_a_number(choices):
    choices[-1]["logprobs"]["token_logprobs"][0] = float("nan")


def drop(self, answer):
    self.close_connection = True


def half(self, answer):
    text = json.dumps(answer)
    self.reply(200, text, len(text) // 2)


FAULTS = {
    "errors": lambda self, answer: self.reply(*vllm.error(DEAD, "InternalServerError", code=500)),
    "half": half,
    "garbage": lambda self, answer: self.reply(200, "<html>busy</html>"),
    "count": spoil(lambda choices: choices.pop()),
    "twice": spoil(lambda choices: choices[-1].update(index=0)),
    "long": spoil(longer),
    "nan": spoil(not_a_number),
    "hang": lambda self, answer: time.sleep(1_000_000),
    "drop": drop,
    "late": half,
}


# What vLLM would ignore, and what a backend must never send.
def note_faults(body, mode):
    unknown = set(body) - vllm.KNOWN - MORTISE_FIELDS
    if unknown:
        mode.faults.append(f"unknown fields {sorted(unknown)}")
    refused = vllm.refusal(body, mode.adapters)
    if refused and refused[0] != 404:
        mode.faults.append(refused[1]["error"]["message"])


def sglang_fault(body, mode):
    if "lora_path" in body and body["lora_path"] not in mode.adapters:
        return f"unknown adapter {body['lora_path']}"
    unknown = set(body) - SGLANG_FIELDS | set(body["sampling_params"]) - SGLANG_SAMPLING
    return f"unknown fields {sorted(unknown)}" if unknown else None


def tokens_of(seed, prompt, index, limit):
    return [(seed + index + sum(prompt)) % 50 + 3 + t % 3 for t in range(limit)]


# Up to the first stop id, with the reason why it ends there.
def cut(ids, stop_ids):
    for place, token in enumerate(ids):
        if token in stop_ids:
            return ids[:place + 1], "stop"
    return ids, "length"


# The only likely token has log-prob -0.5 (temperature 1), -0.125 (4); with one token left 0.
def log_probs_of(count, temperature, top_k, name):
    if name == "processed" and top_k == 1:
        return [0.0] * count
    scale = 1.0 if name not in ("processed", "tempered") or temperature == 0 else temperature
    return [(-0.5 - 0.25 * t) / scale for t in range(count)]


def vllm_answer(body, name, mode):
    samples = []
    for prompt in vllm.prompts_of(body):
        for i in range(body.get("n", 1)):
            seed = body["mortise"]["first_row_id"] if "mortise" in body else body.get("seed", 0)
            ids, reason = cut(tokens_of(seed, prompt, i, min(body["max_tokens"], vllm.MAX_MODEL_LEN - len(prompt))),
                              body.get("stop_token_ids", []))
            log_probs = log_probs_of(len(ids), body.get("temperature", 1), body.get("top_k", 0), name)
            samples.append((prompt, ids, log_probs, reason))
    answer = vllm.completion(body, samples)
    if body["prompt"] == vllm.RECORDED["probe"]["body"]["prompt"]:
        answer = copy.deepcopy((vllm.PROCESSED if name == "processed" else vllm.RECORDED)["probe"]["answer"])
    for choice in answer["choices"]:
        if name == "no_ids":
            del choice["token_ids"], choice["prompt_token_ids"]
        if name == "mortise":
            choice["weight_version"] = mode.version
        if mode.name is not None:
            choice["weight_name"] = mode.name
    return answer


def sglang_answer(body, name, mode):
    sampling, out = body["sampling_params"], []
    for i in range(sampling.get("n", 1)):
        ids = tokens_of(sampling.get("sampling_seed", 0), body["input_ids"], i, sampling["max_new_tokens"])
        log_probs = log_probs_of(len(ids), sampling["temperature"], 0, "raw" if name == "raw" else "tempered")
        version = "default" if mode.version is None else str(mode.version)
        out.append({"text": "", "output_ids": ids, "meta_info": {
            "finish_reason": {"type": "length", "length": len(ids)}, "weight_version": version,
            "output_token_logprobs": [[lp, i, None] for lp, i in zip(log_probs, ids)]}})
    return out if len(out) > 1 else out[0]


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
server.handle_error = lambda *_: None  # a client that gave up has closed its connection
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
