"""What the parts of device.py share: the shapes, both sides in turns, and rows as text."""
import importlib.metadata
import random
import statistics
import subprocess
from pathlib import Path

SHAPES = {
    "tiny": dict(kind="qwen2", vocab_size=512, hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
    "0.5b": dict(kind="qwen2", vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2),
    "0.6b": dict(kind="qwen3", vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
                 head_dim=128),
    "1.5b": dict(kind="qwen2", vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2),
    # Four layers of Qwen3-30B-A3B, with a small vocabulary: each token takes 8 experts, together as wide as intermediate_size.
    "moe": dict(kind="qwen3_moe", vocab_size=32768, hidden_size=2048, intermediate_size=6144, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=4,
                head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True),
    "tiny_moe": dict(kind="qwen3_moe", vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True),
    "7b": dict(kind="qwen2", vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4),
}


def versions():
    out = {}
    for name in ("torch", "transformers"):
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = None
    return out


class Bench:
    def __init__(self, args, mortise, torch_side):
        self.args, self.mortise, self.torch = args, mortise, torch_side
        self.shape = SHAPES[args.shape]
        self.known_limits = None

    def limits(self):
        if self.known_limits is None:
            sizes = dict(copy_bytes=8 << 30, width=8192, launches=1000) if self.args.is_gpu else dict(copy_bytes=64 << 20, width=512, launches=1000)
            self.known_limits = {"mortise": self.ask(do="limits", repeats=5, **sizes), "torch": self.torch.limits(repeats=5, **sizes)}
        return self.known_limits

    def rates(self, dtype):
        """Bytes and operations per second: what either side reached."""
        both = [x for x in self.limits().values() if "error" not in x]
        return max(x["copy_bytes_per_s"] for x in both), max(x["flops_per_s"][dtype] for x in both)

    def ask(self, **request):
        self.torch.free_memory()
        return self.mortise.ask(**request)

    def peer(self, work):
        """The same for torch: an error is an answer."""
        try:
            return work()
        except subprocess.CalledProcessError as error:
            return {"error": f"{Path(error.cmd[1]).name} ended with code {error.returncode}"}
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError, AssertionError) as error:  # out of memory is a RuntimeError
            return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"}
        finally:
            self.torch.free_memory()

    def in_turns(self, case, ours, theirs):
        """A row of the case: `ours` asks Mortise, `theirs` torch; both return answers with "seconds"."""
        own, peer = {}, {}
        for _ in range(self.args.rounds):
            join(own, ours())
            join(peer, self.peer(theirs))
        row = {"case": case, "mortise": own, "peer": peer}
        if "error" in own:
            row["error"] = own["error"]
        elif "error" not in peer:
            row["ratio"] = statistics.median(peer["seconds"]) / statistics.median(own["seconds"])
        return row

    def folder(self):
        """A model of the shape with random weights, stored as bfloat16 so that every dtype reads the same numbers."""
        folder = self.args.out / "models" / self.args.shape
        if (folder / "config.json").exists():
            return folder
        import torch
        from transformers import (Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                                  Qwen3MoeForCausalLM)
        config, model = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM),
                         "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM)}[self.shape["kind"]]
        end = self.shape["vocab_size"] - 1
        torch.manual_seed(7)
        torch.set_default_dtype(torch.bfloat16)
        made = model(config(**{k: v for k, v in self.shape.items() if k != "kind"}, max_position_embeddings=4096, initializer_range=0.02,
                            tie_word_embeddings=self.args.shape != "7b", bos_token_id=None, eos_token_id=end, pad_token_id=end))
        torch.set_default_dtype(torch.float32)
        made.save_pretrained(folder)
        return folder

    def request(self, **more):
        return dict(folder=str(self.folder()), dtype="bfloat16", repeats=self.args.repeats, **more)

    def counts(self):
        """Weights of layers and of the head, and numbers of keys and values of a token, and of its queries, in all layers."""
        s = self.shape
        width = s.get("head_dim", s["hidden_size"] // s["num_attention_heads"])
        q, kv = width * s["num_attention_heads"], width * s["num_key_value_heads"]
        layers = s["num_hidden_layers"]
        body = layers * s["hidden_size"] * (2 * q + 2 * kv + 3 * s["intermediate_size"])
        return body, s["vocab_size"] * s["hidden_size"], 2 * layers * kv, layers * q

    def weights_read(self, rows):
        """Weights of the layers that a step of so many rows reads: of a mixture, those of the experts that random rows choose."""
        s, body = self.shape, self.counts()[0]
        if "num_experts" not in s:
            return body
        chosen = s["num_experts"] * (1 - (1 - s["num_experts_per_tok"] / s["num_experts"]) ** rows)
        return body + s["num_hidden_layers"] * s["hidden_size"] * 3 * (chosen * s["moe_intermediate_size"] - s["intermediate_size"])

    def random_rows(self, lengths, seed=4):
        generator = random.Random(seed)
        return [[generator.randrange(self.shape["vocab_size"] - 2) for _ in range(n)] for n in lengths]


def join(known, answer):
    """Adds the answer of another round: its seconds to those that are known, all else only once."""
    for key, value in answer.items():
        if isinstance(value, list) and key.endswith("seconds") and key in known:
            known[key] = known[key] + value
        elif isinstance(value, dict) and key in known:
            join(known[key], value)
        else:
            known.setdefault(key, value)


def text_of(row):
    text = f"{row['case']:36s}"
    if "error" in row:
        return text + row["error"]
    for side in ("mortise", "peer"):
        if "seconds" in row.get(side, {}):
            text += f" {side} {1e3 * statistics.median(row[side]['seconds']):10.3f} ms"
        elif "error" in row.get(side, {}):
            text += f" {side}: {row[side]['error'][:60]}"
    if "ratio" in row:
        text += f"  {row['ratio']:6.2f}x"
    return text + "".join(f"  {key} {row[key]:.4g}" for key in row if key not in ("case", "ratio", "mortise", "peer") and isinstance(row[key], (int, float)))
