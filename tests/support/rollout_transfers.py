# Weights over the network, as vLLM's and SGLang's processes take them, with torch.distributed's own stores and groups.
# NCCL is replaced by Gloo: the unique id that the tests' host gives has the address of its store in its first bytes, and
# all else (the store's handshake, the pickled id, the order of calls, names, types, shapes and bytes) is the real thing.
import ctypes
import pickle
import sys
import threading
import types
from base64 import b64decode
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.multiprocessing import reductions

LIMIT = timedelta(seconds=20)
NUM_WORKERS = 2  # a vLLM has so many
CLASS_PLACE = "vllm.distributed.device_communicators.pynccl_wrapper"


class ncclUniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def stub_vllm():
    """The class that vLLM unpickles, where it lies in vLLM."""
    parts = CLASS_PLACE.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(".".join(parts[:i + 1])))
    sys.modules[CLASS_PLACE].ncclUniqueId = ncclUniqueId
    ncclUniqueId.__module__ = CLASS_PLACE


def store_of(address, port):
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=LIMIT)


def place_in(unique_id):
    address, port = bytes(unique_id).split(b"\0")[0].decode().rsplit(":", 1)
    return address, int(port)


def on_threads(count, work):
    """Runs work(0) ... work(count - 1) at the same time and gives their results."""
    results = [None] * count
    failures = []

    def run(i):
        try:
            results[i] = work(i)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class Refusal(Exception):
    """An answer that is no fault of the caller's."""


class Session:
    """What an update that breaks off leaves in a server: it is open, and has loaded some weights."""

    def __init__(self):
        self.is_open, self.partial = False, set()

    def open(self):
        if self.is_open:
            raise Refusal("a weight update is already active")
        self.is_open = True

    def close(self):
        if not self.is_open:
            raise Refusal("no weight update is active")
        self.is_open, self.partial = False, set()

    def load(self, names):
        assert self.is_open
        assert not self.partial, f"weights are mixed with {self.partial} of an update that broke off"
        self.partial = set(names)


class VllmWorkers:
    """The workers of a vLLM whose engine is nccl. `takes_id`: NCCL's unique id comes with the call (0.30 and later)."""
    PATHS = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")

    def __init__(self, session, takes_id, packs_from_start=True):
        self.session, self.takes_id, self.groups, self.is_connected, self.weights = session, takes_id, None, False, {}
        self.packs_from_start = packs_from_start

    def call(self, path, body, paused):
        return getattr(self, path[1:])(body, paused)

    def unique_id(self, info):
        if self.takes_id:
            assert set(info) == {"rank_offset", "world_size", "nccl_unique_id_b64"}, sorted(info)
            unique_id = b64decode(info["nccl_unique_id_b64"], validate=True)
        else:
            assert set(info) == {"rank_offset", "world_size", "master_address", "master_port"}, sorted(info)
            stub_vllm()
            store = store_of(info["master_address"], info["master_port"])
            received = pickle.loads(store.get("broadcast_from/0/0"))
            assert type(received) is ncclUniqueId
            assert pickle.loads(pickle.dumps(received)).internal[:] == received.internal[:]
            unique_id = bytes(bytearray(b & 255 for b in received.internal))
            assert place_in(unique_id)[1] == info["master_port"]
        assert len(unique_id) == 128, len(unique_id)
        assert unique_id[-3:] == b"\xff\x00\x7f", "the id is not whole"
        return unique_id

    def init_weight_transfer_engine(self, body, paused):
        info = dict(body["init_info"])
        assert info.pop("packed", False) is self.packs_from_start
        assert info["world_size"] == NUM_WORKERS + 1 and info["rank_offset"] == 1, info
        place = place_in(self.unique_id(info))

        def join(worker):
            prefix = dist.PrefixStore("nccl_by_gloo", store_of(*place))
            return dist.ProcessGroupGloo(prefix, worker + 1, NUM_WORKERS + 1, LIMIT)

        self.groups = on_threads(NUM_WORKERS, join)
        self.is_connected = True

    def start_weight_update(self, body, paused):
        assert body == {} and paused and self.is_connected, (body, paused, self.is_connected)
        self.session.open()

    def update_weights(self, body, paused):
        assert paused
        info = dict(body["update_info"])
        self.session.load(info["names"])
        assert info.pop("packed", False) is not self.packs_from_start
        assert set(info) == {"names", "dtype_names", "shapes"}, sorted(info)

        def receive(worker):
            return receive_packed(info["names"], info["dtype_names"], info["shapes"],
                                  lambda tensor: self.groups[worker].broadcast(tensor, 0).wait())

        first, second = on_threads(NUM_WORKERS, receive)
        assert first == second
        self.weights = first

    def finish_weight_update(self, body, paused):
        assert paused
        self.session.close()


class VllmOnOneGpu(VllmWorkers):
    """A vLLM whose engine is ipc. In the place of the GPU's memory, the handle of a piece is the path of a file."""

    def __init__(self, session):
        super().__init__(session, False)

    def init_weight_transfer_engine(self, body, paused):
        assert body == {"init_info": {}}, body
        self.is_connected = True

    def update_weights(self, body, paused):
        assert paused
        info = body["update_info"]
        self.session.load(info["names"])
        assert set(info) == {"names", "dtype_names", "shapes", "ipc_handles_pickled"}, sorted(info)
        handles = pickle.loads(b64decode(info["ipc_handles_pickled"], validate=True))
        assert type(handles) is list and len(handles) == len(info["names"])
        self.weights = {name: self.open(dtype, shape, handle) for name, dtype, shape, handle
                        in zip(info["names"], info["dtype_names"], info["shapes"], handles)}

    def open(self, dtype, shape, handle):
        assert list(handle) == ["0123-uuid"], list(handle)
        function, arguments = handle["0123-uuid"]
        assert function is reductions.rebuild_cuda_tensor
        names = function.__code__.co_varnames[:function.__code__.co_argcount]
        assert type(arguments) is tuple and len(arguments) == len(names), arguments
        given = dict(zip(names, arguments))
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        path, size = bytes(given.pop("storage_handle")).decode(), tensor.numel() * tensor.element_size()
        expected = dict(tensor_cls=torch.Tensor, tensor_size=tensor.size(), tensor_stride=tensor.stride(),
                        tensor_offset=0, storage_cls=type(tensor._typed_storage()), dtype=tensor.dtype, storage_device=3,
                        storage_size_bytes=size, storage_offset_bytes=512, requires_grad=False,
                        ref_counter_handle=b"/counter", ref_counter_offset=7, event_handle=b"e\x00\xff",
                        event_sync_required=True)
        assert given == expected, (given, expected)
        assert {name: type(value) for name, value in given.items()} == {n: type(v) for n, v in expected.items()}
        with open(path, "rb") as file:
            data = bytearray(file.read())
        return [dtype, shape, torch.frombuffer(data, dtype=tensor.dtype).tolist()]


class SglangWorker:
    """One SGLang process. It makes its group as SGLang's init_custom_process_group does."""
    PATHS = ("/init_weights_update_group", "/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update")

    def __init__(self, session):
        self.session, self.groups, self.weights, self.version = session, {}, {}, None

    def call(self, path, body, paused):
        getattr(self, path[1:])(body)
        return {"success": True, "message": "Success"}

    def init_weights_update_group(self, body):
        assert set(body) == {"master_address", "master_port", "rank_offset", "world_size", "group_name", "backend"}
        assert body["rank_offset"] == 1 and body["world_size"] == 2 and body["backend"] == "gloo", body
        where = f"tcp://{body['master_address']}:{body['master_port']}"
        store, rank, size = next(c10d.rendezvous(where, 1, 2, timeout=LIMIT))
        store.set_timeout(LIMIT)
        name = body["group_name"]
        group, _ = c10d._new_process_group_helper(size, rank, [], c10d.Backend("gloo"), c10d.PrefixStore(name, store),
                                                  group_name=name, backend_options=None, timeout=LIMIT)
        c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
        self.groups[name] = group

    def begin_weight_update(self, body):
        assert body == {"selector": "all"}
        self.session.open()

    def update_weights_from_distributed(self, body):
        self.session.load(body["names"])
        assert set(body) == {"names", "dtypes", "shapes", "group_name", "flush_cache", "abort_all_requests",
                             "weight_version"}, sorted(body)
        assert body["flush_cache"] is True
        group = self.groups[body["group_name"]]
        self.weights = receive_all(body["names"], body["dtypes"], body["shapes"],
                                   lambda tensor: dist.broadcast(tensor, src=0, group=group))
        self.version = int(body["weight_version"])

    def end_weight_update(self, body):
        self.session.close()


def receive_packed(names, dtypes, shapes, broadcast, bucket_bytes=2**30):
    """As vLLM takes them: a broadcast ends with the tensor that takes it past the limit."""
    out, bucket = {}, []

    def take():
        sizes = [size for *_, size in bucket]
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        broadcast(data)
        for (name, dtype, shape, _), piece in zip(bucket, data.split(sizes)):
            out[name] = [dtype, shape, piece.clone().view(getattr(torch, dtype)).tolist()]
        bucket.clear()

    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        bucket.append((name, dtype, shape, tensor.numel() * tensor.element_size()))
        if sum(size for *_, size in bucket) > bucket_bytes:
            take()
    if bucket:
        take()
    return out


def receive_all(names, dtypes, shapes, broadcast):
    assert len(names) == len(dtypes) == len(shapes)
    out = {}
    for name, dtype, shape in zip(names, dtypes, shapes):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        broadcast(tensor)
        out[name] = [dtype, shape, tensor.flatten().tolist()]
    return out
