"""torch's and transformers' side of device.py: what bench_device measures, by the operations that their users would take."""
import statistics
import time

import torch
from torch.nn.functional import cross_entropy, linear, log_softmax


class TorchSide:
    def __init__(self, device):
        self.device = torch.device("cuda" if device == "cuda" else device if device.startswith("cuda:") else "cpu")
        self.is_gpu = self.device.type == "cuda"
        if self.is_gpu:
            torch.cuda.set_device(self.device)

    def name(self):
        return torch.cuda.get_device_name(self.device) if self.is_gpu else "the CPU"

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def times(self, repeats, work):
        """Seconds of each of `repeats` calls, after one that is not counted."""
        out = []
        for i in range(repeats + 1):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            if i > 0:
                out.append(time.perf_counter() - begin)
        return out

    def extra_bytes(self, work):
        """Most bytes that the work holds above what is held before it."""
        if self.is_gpu:
            self.wait()
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            work()
            self.wait()
            return torch.cuda.max_memory_allocated(self.device) - before
        before = memory_of_process("VmRSS")
        with open("/proc/self/clear_refs", "w") as out:
            out.write("5")
        work()
        return memory_of_process("VmHWM") - before

    def free_memory(self):
        if self.is_gpu:
            torch.cuda.empty_cache()

    def limits(self, copy_bytes, width, launches, repeats):
        source, target = (torch.zeros(copy_bytes // 4, device=self.device) for _ in range(2))
        copy = 2 * copy_bytes / min(self.times(repeats, lambda: target.copy_(source)))
        del source, target
        rates = {}
        for dtype in (torch.float32, torch.bfloat16):
            a, b = (torch.randn(width, width, device=self.device).to(dtype) for _ in range(2))
            out = torch.empty_like(a)
            rates[str(dtype).removeprefix("torch.")] = 2 * width**3 / min(self.times(repeats, lambda: torch.mm(a, b, out=out)))
        number = torch.zeros(1, device=self.device)

        def launch():
            for _ in range(launches):
                number.add_(1)

        answer = {"copy_bytes_per_s": copy, "flops_per_s": rates, "launch_us": 1e6 * min(self.times(repeats, launch)) / launches, "graph_node_us": None}
        if self.is_gpu:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                launch()
            answer["graph_node_us"] = 1e6 * min(self.times(repeats, graph.replay)) / launches
        return answer

    def head(self, tokens, hidden, vocab, repeats, dtype, compiles):
        states = torch.rand(tokens, hidden, device=self.device).sub_(0.5).to(dtype).requires_grad_()
        weight = torch.rand(vocab, hidden, device=self.device).sub_(0.5).mul_(0.2).to(dtype).requires_grad_()
        targets = torch.randint(vocab, (tokens,), device=self.device)
        log_probs = torch.compile(head_log_probs) if compiles else head_log_probs

        def forward():
            with torch.no_grad():
                log_probs(states, weight, targets)

        def full():
            states.grad = None
            weight.grad = None
            log_probs(states, weight, targets).sum().backward()

        return {name: {"seconds": self.times(repeats, work), "extra_bytes": self.extra_bytes(work)}
                for name, work in (("forward", forward), ("full", full))}

    def optimizer(self, shapes, repeats):
        parameters = []
        for shape in shapes:
            size = torch.Size(shape).numel()
            p = torch.nn.Parameter(torch.linspace(-1.0, 1.0, size, device=self.device).view(shape))
            p.grad = torch.linspace(0.01, -0.02, size, device=self.device).view(shape)
            parameters.append(p)
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)

        def update():
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        return {"seconds": self.times(repeats, update), "sums": [p.sum(dtype=torch.float64).item() for p in parameters]}

    def load(self, folder, dtype):
        from transformers import AutoModelForCausalLM
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(self.device)

    def generate(self, model, prompts, new_tokens, temperature, cache=None, wants_logits=False):
        """Prompts of one length, new_tokens each. Returns all ids, and the logits that the tokens were drawn from."""
        from transformers import GenerationConfig
        ids = torch.tensor(prompts, device=self.device)
        # No token ends a row, on both sides: to bar the one that would costs a pass over the logits in every step.
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=temperature > 0, top_k=0, top_p=1.0,
                                  temperature=temperature or 1.0, eos_token_id=-1, pad_token_id=model.config.vocab_size - 1,
                                  cache_implementation=cache, output_logits=wants_logits, return_dict_in_generate=True)
        with torch.no_grad():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        assert out.sequences.shape == (len(prompts), ids.shape[1] + new_tokens), out.sequences.shape
        return out.sequences, out.logits

    def match(self, model, prompts, new_tokens):
        """The difference of the probabilities that generate and one forward pass have for the tokens that generate drew."""
        sequences, logits = self.generate(model, prompts, new_tokens, 1.0, wants_logits=True)
        drawn = sequences[:, len(prompts[0]):]
        sampled = log_softmax(torch.stack(logits, 1).float(), -1).gather(2, drawn.unsqueeze(2)).exp()
        with torch.no_grad():
            again = model(input_ids=sequences, use_cache=False).logits[:, len(prompts[0]) - 1:-1]
        trained = log_softmax(again.float(), -1).gather(2, drawn.unsqueeze(2)).exp()
        diff = (sampled - trained).abs().double()
        return {"mean_prob_diff": diff.mean().item(), "max_prob_diff": diff.max().item()}

    def queue(self, model, prompts, new_tokens, temperature):
        """transformers' continuous batching, each request with its own number of tokens. Seconds of the whole queue."""
        from transformers import GenerationConfig
        config = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, temperature=temperature, eos_token_id=-1, pad_token_id=0,
                                  max_new_tokens=max(new_tokens))
        manager = model.init_continuous_batching(generation_config=config)
        manager.start()

        def made(kind, requests):
            for i, (ids, count) in enumerate(requests):
                manager.add_request(ids, request_id=f"{kind} {i}", max_new_tokens=count)
            out = {}
            while len(out) < len(requests):
                result = manager.get_result(timeout=60)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching stopped")
                if result is not None and result.is_finished():
                    out[result.request_id] = len(result.generated_tokens)
            return [out[f"{kind} {i}"] for i in range(len(requests))]

        try:
            made("warm", [(prompts[0], 2), (prompts[1], 2)])  # it takes its memory now
            begin = time.perf_counter()
            lengths = made("row", list(zip(prompts, new_tokens)))
            seconds = time.perf_counter() - begin
        finally:
            manager.stop(block=True)
        assert lengths == list(new_tokens), "a completion has another length than it was given"
        return seconds

    def train(self, model, rows, micro_batch, repeats, autocasts, checkpoints, optimizer=None):
        """Padded micro-batches of `micro_batch` rows in order of length: mean negative log-likelihood and its gradient, and then
        a step of the optimizer if one is named (adamw_8bit: that of bitsandbytes)."""
        model.train()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # the name that transformers 5.17 has too
        total = sum(len(row) - 1 for row in rows)
        rows = sorted(rows, key=len)
        losses = []
        if optimizer == "adamw_8bit":
            from bitsandbytes.optim import AdamW8bit
            optimizer = AdamW8bit(model.parameters(), lr=1e-6)

        def step():
            model.zero_grad(set_to_none=False)
            loss = 0.0
            for first in range(0, len(rows), micro_batch):
                ids, labels = padded(rows[first:first + micro_batch], self.device)
                with torch.autocast(self.device.type, torch.bfloat16, enabled=autocasts):
                    logits = model(input_ids=ids.clamp(min=0), attention_mask=(ids >= 0).long(), use_cache=False).logits[:, :-1]
                part = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / total
                part.backward()
                loss += part.detach().item()
            losses.append(loss)
            if optimizer is not None:
                optimizer.step()

        extra = self.extra_bytes(step)
        norm = statistics.fsum(p.grad.double().pow(2).sum().item() for p in model.parameters() if p.grad is not None)**0.5
        return {"seconds": self.times(repeats, step), "loss": losses[-1], "grad_norm": norm, "extra_bytes": extra}


def head_log_probs(states, weight, targets):
    return log_softmax(linear(states, weight).float(), -1).gather(1, targets.unsqueeze(1)).squeeze(1)


def head_reference(states, weight, targets):
    """In float64: log-probs, and the norms of the gradients of their sum."""
    states, weight = (t.double().requires_grad_() for t in (states, weight))
    log_probs = log_softmax(linear(states, weight), -1).gather(1, targets.unsqueeze(1)).squeeze(1)
    log_probs.sum().backward()
    return log_probs.detach(), states.grad.norm().item(), weight.grad.norm().item()


def padded(rows, device):
    """Ids with -1 where a row has ended, and the labels of all but the first column."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), -1, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = torch.tensor(row)
    labels = ids[:, 1:].masked_fill(ids[:, 1:] < 0, -100)
    return ids.to(device), labels.to(device)


def memory_of_process(name):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))
