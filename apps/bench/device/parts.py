"""The parts of device.py. Each asks both sides in turns and returns rows: a case, the seconds of both, and their ratio.

A floor is the least time that the measured limits allow for the real tokens of the work. f is floor / time.
"""
import argparse
import math
import random
import statistics
import sys
from pathlib import Path
from statistics import NormalDist

from turns import join

DATASHEET_FLOPS = 990e12  # bfloat16 products of an H100 or H200 in a second; the denominator of published figures


def limits(bench):
    rows = []
    both = bench.limits()
    if "error" in both["mortise"]:
        return [{"case": "limits", "error": both["mortise"]["error"]}]
    for key in ("copy_bytes_per_s", "launch_us", "graph_node_us"):
        rows.append({"case": key, "of_mortise": both["mortise"][key], "of_torch": both["torch"][key]})
    for dtype in ("float32", "bfloat16"):
        rows.append({"case": f"flops_per_s {dtype}", "of_mortise": both["mortise"]["flops_per_s"][dtype], "of_torch": both["torch"]["flops_per_s"][dtype]})
    return rows


def decode_floor(bench, prompts, new_tokens, element_bytes, dtype):
    """Seconds: prompts once, then steps that read all weights and the keys and values of the rows that run."""
    rate, flops = bench.rates(dtype)
    body, head, kept, queries = bench.counts()
    vocab = bench.shape["vocab_size"]
    total = sum(map(len, prompts)) * 2 * body / flops
    for step in range(max(new_tokens)):
        contexts = [len(prompt) + step for prompt, count in zip(prompts, new_tokens) if count > step]
        rows, tokens = len(contexts), sum(contexts)
        read = element_bytes * (bench.weights_read(rows) + head + kept * tokens) / rate
        computed = (2 * rows * (body + head) + 4 * queries * tokens) / flops
        total += max(read, computed) + 4 * rows * vocab / rate
    return total


def checked_model(bench):
    """The greedy completions of both sides in float32 must be equal. Returns transformers' model in bfloat16."""
    import torch
    folder = bench.folder()
    prompts = bench.random_rows([12, 12], seed=11)
    ours = bench.ask(do="sample", folder=str(folder), dtype="float32", prompts=prompts, new_tokens=[8, 8], repeats=0, temperature=0.0)
    if "error" in ours:
        raise SystemExit(ours["error"])
    theirs = bench.torch.generate(bench.torch.load(folder, torch.float32), prompts, 8, 0.0)[0][:, 12:].tolist()
    if ours["ids"] != theirs:
        raise SystemExit(f"greedy completions differ, so the two sides do not compute the same: {ours['ids']} and {theirs}")
    return bench.torch.load(folder, torch.bfloat16)


def with_floor(row, floor):
    if "seconds" in row["mortise"]:
        row["floor_s"] = floor
        row["f"] = floor / statistics.median(row["mortise"]["seconds"])
    row["mortise"].pop("ids", None)
    return row


def decode(bench):
    model = checked_model(bench)
    length, count, sizes = (128, 512, (1, 64, 256, 512)) if bench.args.is_gpu else (16, 8, (1, 4))
    rows = []
    for size in sizes:
        prompts, new_tokens = bench.random_rows([length] * size), [count] * size
        floor = decode_floor(bench, prompts, new_tokens, 2, "bfloat16")
        for cache in (None, "static") if bench.args.is_gpu else (None,):
            def theirs():
                return {"seconds": bench.torch.times(1, lambda: bench.torch.generate(model, prompts, count, 1.0, cache))}
            row = bench.in_turns(f"{size} rows, against {cache or 'dynamic'} cache",
                                 lambda: bench.ask(do="sample", prompts=prompts, new_tokens=new_tokens, temperature=1.0, **bench.request()), theirs)
            row["tokens_per_s"] = size * count / statistics.median(row["mortise"]["seconds"]) if "seconds" in row["mortise"] else 0
            rows.append(with_floor(row, floor))
    return rows


def queue_lengths():
    """The requests of nano-vllm's benchmark: the same generator in the same order."""
    generator = random.Random(0)
    prompts = [[generator.randint(0, 10000) for _ in range(generator.randint(100, 1024))] for _ in range(256)]
    new_tokens = [generator.randint(100, 1024) for _ in range(256)]
    assert sum(new_tokens) == 133966, sum(new_tokens)
    return prompts, new_tokens


def queue(bench):
    model = checked_model(bench)
    prompts, new_tokens = queue_lengths()
    if not bench.args.is_gpu:  # the same, on a smaller scale
        prompts, new_tokens = [[t % 500 for t in ids[:len(ids) // 32]] for ids in prompts[:8]], [count // 32 for count in new_tokens[:8]]
    row = bench.in_turns(f"{len(prompts)} requests", lambda: bench.ask(do="sample", prompts=prompts, new_tokens=new_tokens, temperature=0.6, **bench.request()),
                         lambda: {"seconds": [bench.torch.queue(model, prompts, new_tokens, 0.6)]})
    if "seconds" in row["mortise"]:
        row["tokens_per_s"] = sum(new_tokens) / statistics.median(row["mortise"]["seconds"])
    return [with_floor(row, decode_floor(bench, prompts, new_tokens, 2, "bfloat16"))]


def check_head(bench):
    """Log-probs and gradients for the same inputs, both against float64."""
    import torch
    from torch_side import head_log_probs, head_reference
    tokens, width, vocab = 96, 64, 20000  # more columns than one block of the head
    folder = bench.args.out / "head"
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    states, weight = torch.randn(tokens, width, generator=generator), torch.randn(vocab, width, generator=generator) * 0.3
    targets = torch.randint(vocab, (tokens,), generator=generator)
    for name, tensor in (("hidden.f32", states), ("weight.f32", weight), ("targets.i64", targets)):
        (folder / name).write_bytes(tensor.numpy().tobytes())
    ours = bench.ask(do="head_check", folder=str(folder), tokens=tokens, hidden=width, vocab=vocab)
    if "error" in ours:
        return {"case": "numbers", "error": ours["error"]}
    wanted, hidden_norm, weight_norm = head_reference(states, weight, targets)
    place = bench.torch.device
    theirs = head_log_probs(states.to(place), weight.to(place), targets.to(place)).cpu().double()
    row = {"case": "numbers, against float64", "error_of_mortise": (torch.tensor(ours["log_probs"]).double() - wanted).abs().max().item(),
           "error_of_torch": (theirs - wanted).abs().max().item(), "error_of_gradients":
           max(abs(ours["hidden_norm"] / hidden_norm - 1), abs(ours["weight_norm"] / weight_norm - 1))}
    if row["error_of_mortise"] > 1e-3 or row["error_of_gradients"] > 1e-3:
        row["error"] = f"the head does not compute what float64 does: {row}"
    return row


def head(bench):
    import torch
    rows = [check_head(bench)]
    if "error" in rows[0]:
        return rows
    width, vocab = bench.shape["hidden_size"], bench.shape["vocab_size"]
    for tokens in (4096, 16384, 65536) if bench.args.is_gpu else (256, 512):
        for dtype, compiles in ((torch.float32, False), (torch.bfloat16, False)) + (((torch.bfloat16, True),) if bench.args.compile else ()):
            own, peer = {}, {}
            for _ in range(bench.args.rounds):
                join(own, bench.ask(do="head", tokens=tokens, **bench.request()))
                join(peer, bench.peer(lambda: bench.torch.head(tokens, width, vocab, bench.args.repeats, dtype, compiles)))
            name = str(dtype).removeprefix("torch.") + (" compiled" if compiles else "")
            for mine, other in (("forward", "forward"), ("one_pass", "full"), ("two_passes", "full")):
                row = {"case": f"{tokens} tokens, {mine}, torch in {name}", "weight_dtype": own.get("weight_dtype"), "mortise": own.get(mine, {}),
                       "peer": peer.get(other, peer)}
                if "error" in own:
                    row["error"] = own["error"]
                elif "error" not in peer:
                    row["ratio"] = statistics.median(row["peer"]["seconds"]) / statistics.median(row["mortise"]["seconds"])
                rows.append(row | ({"extra_mib": own[mine]["extra_bytes"] / 2**20} if mine in own else {}))
    return rows


def row_lengths(count, mean=169, longest=1024):
    """Quantiles of a log-normal distribution, in a random order."""
    def quantiles(sigma):
        values = [math.exp(sigma * NormalDist().inv_cdf((i + 0.5) / count)) for i in range(count)]
        return [v * mean * count / sum(values) for v in values]
    low, high = 0.01, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if quantiles(middle)[-1] < longest else (low, middle)
    lengths = [max(2, round(v)) for v in quantiles(low)]
    random.Random(3).shuffle(lengths)
    return lengths


def train(bench):
    import torch
    cases = {"rows of 512": [512] * 64, "log-normal rows": row_lengths(256)} if bench.args.is_gpu else {"rows of 32": [32] * 8, "log-normal rows": row_lengths(12, 20, 64)}
    budget, batch = (16384, 16) if bench.args.is_gpu else (128, 4)
    out = []
    for case, lengths in cases.items():
        data = bench.random_rows(lengths)
        for checkpoints in (False, True):
            def theirs():
                model = bench.torch.load(bench.folder(), torch.float32)
                return bench.torch.train(model, data, batch, bench.args.repeats, autocasts=True, checkpoints=checkpoints)
            row = bench.in_turns(f"{case}, against {'checkpoints' if checkpoints else 'no checkpoints'}",
                                 lambda: bench.ask(do="train", rows=data, tokens=budget, deterministic=True, **bench.request()), theirs)
            own = row["mortise"]
            if "error" not in own:
                seconds = statistics.median(own["seconds"])
                row |= {"tokens_per_s": sum(lengths) / seconds, "mfu_of_measured": own["flops"] / seconds / bench.rates("bfloat16")[1],
                        "mfu_of_datasheet": own["flops"] / seconds / DATASHEET_FLOPS,
                        "log_prob_tokens_per_s": sum(lengths) / statistics.median(own["forward_seconds"])}
                if "error" not in row["peer"]:
                    row["loss_difference"] = abs(own["loss"] / row["peer"]["loss"] - 1)
                    row["norm_difference"] = abs(own["grad_norm"] / row["peer"]["grad_norm"] - 1)
                    if row["loss_difference"] > 0.01 or row["norm_difference"] > 0.05:
                        row["error"] = "loss or gradient differ by more than bfloat16 explains, so the two sides do not compute the same"
            out.append(row)
    return out


def step_floor(bench, work):
    """Seconds of a step: sampling, one update of all rows, AdamW. Prompts are sampled from once, and learnt from in each row."""
    prompts, samples, length, count = (work[key] for key in ("prompts_per_step", "num_generations", "prompt_length", "completion_length"))
    rate, flops = bench.rates("bfloat16")
    body, head, _, queries = bench.counts()
    rows = prompts * samples
    tokens = rows * (length + count)
    sampling = decode_floor(bench, [[0] * length] * rows, [count] * rows, 2, "bfloat16") - (rows - prompts) * length * 2 * body / flops
    update = 3 * (tokens * (2 * body + 2 * queries * (length + count)) + rows * count * 2 * head) / flops
    return sampling + update + 28 * (body + 2 * head) / rate  # embedding and head


def step(bench):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
    import peers
    name = bench.args.shape
    if name not in peers.WORKLOADS:
        return [{"case": "step", "error": f"workloads.json has no workload '{name}'; choose the shape 0.5b or tiny"}]
    out = []
    for variant in ("best", "kl", "default"):
        args = argparse.Namespace(program=bench.args.mortise, packs=bench.args.packs, out=bench.args.out / "models", variant=variant,
                                  **(dict(steps=8, drop=3) if bench.args.is_gpu else dict(steps=3, drop=1)), device=bench.args.device)
        peers.make_models(args, [name])
        row = bench.in_turns(f"{name}, TRL {variant}", lambda: timed_phases(peers.run_mortise, args, name), lambda: timed_phases(peers.run_trl, args, name))
        out.append(with_floor(row, step_floor(bench, peers.WORKLOADS[name])))
    return out


def timed_phases(run, args, name):
    try:
        out = run(args, name, 0)
    except SystemExit as ended:
        return {"error": str(ended)[:600]}
    return {"seconds": [out["step_s"]]} | {key: out[key] for key in ("generation_s", "scoring_s", "update_s", "peak_rss_mb")}


LOSSES = ("vanilla", "gspo", "cispo", "geo_mean", "vespo", "clip_cov", "m2po")  # one, two and more launches


def losses(bench):
    """Calls of losses as a run makes them: on the host, and on the GPU with all columns sent and the outputs fetched."""
    rows = []
    for count, length in ((64, 512), (512, 512)) if bench.args.is_gpu else ((8, 16),):
        answer = bench.ask(do="losses", names=LOSSES, rows=count, length=length, repeats=bench.args.repeats)
        if "error" in answer:
            return [*rows, {"case": f"{count} rows of {length}", "error": answer["error"]}]
        for loss in answer["losses"]:
            row = {"case": f"{loss['name']}, {count} rows of {length}, by the GPU" if loss["device"] else f"{loss['name']}, {count} rows of {length}, by the host",
                   "mortise": {"seconds": loss["seconds"]}}
            if loss["device"]:  # the host in the place of the peer: a ratio above 1 says that the GPU is faster
                row |= {"mortise": {"seconds": loss["device"]["seconds"]}, "peer": {"seconds": loss["seconds"]},
                        "ratio": statistics.median(loss["seconds"]) / statistics.median(loss["device"]["seconds"]),
                        "bytes": loss["device"]["bytes"], "difference": loss["device"]["difference"]}
                if loss["device"]["difference"] > 1e-3:
                    row["error"] = f"the gradients of {loss['name']} on the GPU are not those of the host"
            rows.append(row)
    return rows


def optimizer(bench):
    s = bench.shape
    if "num_experts" in s:
        return [{"case": "clipping and AdamW", "error": "this part has no shapes of experts; choose another --shape"}]
    width = s.get("head_dim", s["hidden_size"] // s["num_attention_heads"])
    q, kv, h, inner = width * s["num_attention_heads"], width * s["num_key_value_heads"], s["hidden_size"], s["intermediate_size"]
    shapes = [[s["vocab_size"], h], [h]]
    for _ in range(s["num_hidden_layers"]):
        shapes += [[q, h], [kv, h], [kv, h], [h, q], [inner, h], [inner, h], [h, inner], [h], [h]]
    row = bench.in_turns("clipping and AdamW", lambda: bench.ask(do="optimizer", shapes=shapes, repeats=bench.args.repeats),
                         lambda: bench.torch.optimizer(shapes, bench.args.repeats))
    own, peer = row["mortise"], row["peer"]
    if "error" in own or "error" in peer:
        return [row]
    differences = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(own.pop("sums"), peer.pop("sums"))]
    row["difference"] = max(differences)
    if row["difference"] > 1e-2:
        row["error"] = "the parameters differ after the same steps, so the two sides do not compute the same"
    seconds = statistics.median(own["seconds"])
    return [row | {"bytes_per_s": own["bytes_a_step"] / seconds, "f": own["bytes_a_step"] / seconds / bench.rates("float32")[0]}]


def most_that_fits(fits, least, most):
    """The most units, to an eighth, for which `fits` says yes; 0 if not even `least`."""
    good, step = 0, least
    while step <= most and fits(step):
        good, step = step, step * 2
    if good == 0 or step > most:
        return good
    bad = step
    while bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def memory(bench):
    length, most = (512, 4096) if bench.args.is_gpu else (32, 16)
    request = {**bench.request(), "repeats": 0}

    def ours(optimizer, reasons):
        def fits(count):
            answer = bench.ask(do="train", rows=bench.random_rows([length] * count), tokens=count * length, deterministic=True, optimizer=optimizer, **request)
            if "error" in answer:
                reasons["mortise"] = answer["error"]
            return "error" not in answer
        return fits

    def peer(checkpoints, optimizer, reasons):
        def fits(count):
            def work():
                import torch
                model = bench.torch.load(bench.folder(), torch.float32)
                return bench.torch.train(model, bench.random_rows([length] * count), count, 0, autocasts=True, checkpoints=checkpoints, optimizer=optimizer)
            answer = bench.peer(work)
            if "error" in answer:
                reasons["peer"] = answer["error"]
            return "error" not in answer
        return fits

    # Full training holds the weights, their gradients and the optimizer's moments. With 8 bits for a moment 7B fits on 139 GiB.
    rows = []
    for case, optimizer in (("without an optimizer", None), ("with AdamW's step, moments of 8 bits", "adamw_8bit")):
        reasons = {}
        row = {"case": f"tokens of a micro-batch with its gradients, {case}", "tokens": length * most_that_fits(ours(optimizer, reasons), 1, most),
               "peer_tokens": length * most_that_fits(peer(False, optimizer, reasons), 1, most),
               "peer_tokens_with_checkpoints": length * most_that_fits(peer(True, optimizer, reasons), 1, most), "most_tried": length * most, "reasons": reasons}
        if row["tokens"] == 0:
            row["error"] = reasons["mortise"]
        rows.append(row)
    return rows


def match(bench):
    model = checked_model(bench)
    length, count, size = (128, 256, 64) if bench.args.is_gpu else (16, 12, 4)
    prompts = bench.random_rows([length] * size)
    ours = bench.ask(do="sample", prompts=prompts, new_tokens=[count] * size, temperature=1.0, **bench.request())
    theirs = bench.peer(lambda: bench.torch.match(model, prompts, count))
    rows = [{"case": "probabilities of sampler and training"}]
    if "error" in ours:
        return [rows[0] | {"error": ours["error"]}]
    rows[0] |= {key: ours[key] for key in ("mean_prob_diff", "max_prob_diff", "is_repeatable", "kernels")}
    rows[0] |= {"peer_" + key: value for key, value in theirs.items()}
    data, asked = bench.random_rows([512] * 64 if bench.args.is_gpu else [32] * 8), {}
    for _ in range(bench.args.rounds):
        for is_on in (True, False):
            answer = bench.ask(do="train", rows=data, tokens=16384, deterministic=is_on, **bench.request())
            join(asked.setdefault(is_on, {}), answer)
    cost = {"case": "passes with and without determinism", "is_repeatable": asked[True].get("is_repeatable"), "is_repeatable_without": asked[False].get("is_repeatable")}
    if "error" in asked[True] or "error" in asked[False]:
        cost["error"] = asked[True].get("error") or asked[False].get("error")
    else:
        cost["cost_of_determinism"] = statistics.median(asked[True]["seconds"]) / statistics.median(asked[False]["seconds"])
        if not asked[True]["is_repeatable"]:
            cost["error"] = "two deterministic passes have different bits"
    return rows + [cost]


PARTS = {"limits": limits, "decode": decode, "queue": queue, "head": head, "train": train, "step": step, "losses": losses, "optimizer": optimizer, "memory": memory, "match": match}
