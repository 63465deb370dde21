# serve_weights.py URL MODEL: a trainer in Python sends weights to `mortise serve` by vLLM's calls and torch.distributed's own
# Gloo: whole sets, sets with a hole, sets that end in the middle, and a second trainer while the first one hangs. Each time
# it looks at what the server samples with.
import json
import struct
import sys
import threading
from datetime import timedelta
from pathlib import Path

import requests
import torch
import torch.distributed as dist

url, folder = sys.argv[1], Path(sys.argv[2])
LIMIT = timedelta(seconds=60)


def call(path, body=None, expect=200):
    answer = requests.post(url + path, json={} if body is None else body, timeout=300)
    assert answer.status_code == expect, (path, answer.status_code, answer.text)
    return answer.text


def sampled():
    """Greedy tokens' log-probs, and the version that the server says."""
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "logprobs": 0, "ignore_eos": True}
    choice = json.loads(call("/v1/completions", body))["choices"][0]
    return choice["logprobs"]["token_logprobs"], choice["weight_version"]


def read_weights():
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        out[name] = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.float32).view(entry["shape"])
    return out


class Trainer:
    """Rank 0 of a group with the server, as vLLM's clients make it."""

    def __init__(self):
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
        info = {"master_address": "127.0.0.1", "master_port": self.store.port, "rank_offset": 1, "world_size": 2}
        with Meanwhile(lambda: call("/init_weight_transfer_engine", {"init_info": info})):
            options = dist.ProcessGroupGloo._Options()
            options._timeout = LIMIT
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            self.group = dist.ProcessGroupGloo(dist.PrefixStore("weights", self.store), 0, 2, options)

    def update(self, weights, expect=200, num_sent=None):
        """Sends the weights, or only the first of them."""
        lists = {"names": list(weights), "dtype_names": [str(w.dtype).split(".")[1] for w in weights.values()],
                 "shapes": [list(w.shape) for w in weights.values()]}
        with Meanwhile(lambda: call("/update_weights", {"update_info": lists}, expect)):
            for tensor in list(weights.values())[:num_sent]:
                self.group.broadcast([tensor.contiguous()], dist.BroadcastOptions()).wait()
            if num_sent is not None:
                self.group = None  # its sockets are closed, as those of a trainer that was killed


class Meanwhile:
    """Runs `work` on another thread during the block. Its error is raised at the end of the block."""

    def __init__(self, work):
        self.error = None
        self.thread = threading.Thread(target=self.run, args=(work,))

    def run(self, work):
        try:
            work()
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.thread.join()
        if self.error:
            raise self.error


def load(trainer, parts, version):
    """A whole update: the weights come in as many calls as there are parts."""
    call("/pause?mode=wait")
    call("/start_weight_update")
    for part in parts:
        trainer.update(part)
    call("/finish_weight_update", {"weight_version": version})
    call("/resume")


original = read_weights()
norm = "model.norm.weight"
changed = {name: (w * 2 if name == norm else w) for name, w in original.items()}
before, version = sampled()
assert version is None

call("/start_weight_update", {}, 409)  # nobody has connected
trainer = Trainer()
load(trainer, [changed], "7")
after, version = sampled()
assert version == 7 and after != before, (after, before)
print("a whole set is loaded")

call("/pause?mode=wait")
call("/start_weight_update")
items = list(original.items())
half = len(items) // 2
trainer.update(dict(items[:half]))
call("/update_weights", {"update_info": {"names": [items[0][0]], "dtype_names": ["float32"], "shapes": [[1]]}}, 409)
print("a weight that comes twice is refused")

# That has ended the connection. The weights in use are those of the last whole set.
call("/finish_weight_update", {}, 409)
call("/resume")
assert sampled() == (after, 7)
trainer = Trainer()
load(trainer, [dict(items[:half]), dict(items[half:])], "8")
assert sampled() == (before, 8)
print("a set in two calls is loaded")

# A trainer that dies in the middle.
call("/pause?mode=wait")
call("/start_weight_update")
trainer.update(changed, expect=500, num_sent=half)
call("/finish_weight_update", {"weight_version": "9"}, 409)
call("/resume")
assert sampled() == (before, 8)
print("half a set is never loaded")

# A trainer that hangs does not keep the next one away.
hangs = Trainer()
next_one = Trainer()
load(next_one, [changed], "10")
assert sampled() == (after, 10)
print("a new trainer takes the place of one that hangs")

# A set that lacks a weight: nothing is sampled until a good one comes.
call("/pause?mode=wait")
call("/start_weight_update")
next_one.update({name: w for name, w in changed.items() if name != norm})
call("/finish_weight_update", {"weight_version": "11"}, 500)
call("/resume")
call("/v1/completions", {"prompt": [5], "max_tokens": 1}, 500)
call("/start_weight_update")
next_one.update(original)
call("/finish_weight_update", {"weight_version": "12"})
assert sampled() == (before, 12)
print("a set with a hole ends in an error, and a good one makes the server well")
