"""Reads what trackers_test.cpp wrote with the packages of the trackers.

usage: trackers_oracle.py mlflow ROOT        MLflow's own reader of its file store
       trackers_oracle.py wandb FILE         the messages of the wandb package; the fragments by LevelDB's definition
"""
import json
import os
import struct
import sys
import zlib

EXPECTED = [(1, {"actor/pg_loss": 0.5, "val-core/a/reward/mean@4": 2.0}), (2, {"actor/pg_loss": 22.0}), (3, {"actor/pg_loss": 23.0})]


def read_mlflow(root):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient("file:" + root)
    experiment = client.get_experiment_by_name("a: project")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "first", run.info
    assert run.data.params["actor.optim.lr"] == "0.001", run.data.params
    history = {}
    for name in run.data.metrics:
        history[name] = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
    assert history == {
        "actor/pg_loss": [(1, 0.5), (2, 22.0), (3, 23.0)],
        "val-core/a/reward/mean_at_4": [(1, 2.0)],
    }, history


def wandb_records(path):
    from wandb.proto import wandb_internal_pb2 as pb

    data = open(path, "rb").read()
    assert data[:7] == b":W&B\xe1\xbe\x00", data[:7]
    at, record = 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            assert not any(data[at : at + left])
            at += left
            continue
        crc, size, kind = struct.unpack("<IHB", data[at : at + 7])
        body = data[at + 7 : at + 7 + size]
        assert size <= left - 7 and crc == zlib.crc32(bytes([kind]) + body)
        record = body if kind in (1, 2) else record + body
        if kind in (1, 4):
            message = pb.Record()
            message.ParseFromString(record)
            yield message
        at += 7 + size


def read_wandb(path):
    records = list(wandb_records(path))
    assert [r.num for r in records] == list(range(1, len(records) + 1))
    kinds = [r.WhichOneof("record_type") for r in records]
    assert kinds[:2] == ["header", "run"] and kinds[-1] == "exit", kinds
    run = records[1].run
    assert run.project == "a: project" and run.display_name == "first", run
    assert run.run_id == os.path.basename(path)[len("run-") : -len(".wandb")], run.run_id
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["actor"] == {"optim": {"lr": 0.001}} and len(config["long"]) == 70000, config.keys()
    rows = []
    for record in records:
        if record.WhichOneof("record_type") != "history":
            continue
        values = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        assert values.pop("_step") == record.history.step.num and values.pop("_timestamp") > 1e9
        values.pop("_runtime")
        rows.append((record.history.step.num, values))
    assert rows == EXPECTED, rows


{"mlflow": read_mlflow, "wandb": read_wandb}[sys.argv[1]](sys.argv[2])
