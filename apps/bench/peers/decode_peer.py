"""Decoding against transformers' generate: the same weights, prompts, threads and dtype, in turns in one run.

    python decode_peer.py --program bench_decode --out DIR [--rounds 5] [--threads 2] [--cache dynamic|static] [SHAPE...]

SHAPEs: c1, c1v, c2 (workloads.json, whole calls with their prompts), 0.5b (Qwen2.5-0.5B with random weights; float32 and
bfloat16). transformers gets a minimum length and Mortise ignores end tokens, so that both make every token. Before a shape
is timed, greedy completions of both must be equal. For 0.5b, each turn's median step is also compared with the larger of
bytes over bandwidth and multiply-adds over rate, both measured just before and after it; the table has the turns' median.
Prints a table, and writes one JSON object per row of it to DIR/decode.jsonl.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("shapes", nargs="*", default=["c1", "c1v", "c2", "0.5b"])
parser.add_argument("--program", required=True)
parser.add_argument("--out", required=True, type=Path)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--cache", choices=["dynamic", "static"], default="dynamic")
args = parser.parse_args()
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=str(args.threads), CUDA_VISIBLE_DEVICES="")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

HERE = Path(__file__).resolve().parent
WORKLOADS = json.loads((HERE / "workloads.json").read_text())
ROWS = {"c1": [1, 8, 32], "c1v": [32], "c2": [1, 8, 32], "0.5b": [1, 4, 8]}
LENGTHS = {"0.5b": (16, 12)}  # prompt and new tokens where workloads.json has none
PAUSE_S = 0.05  # either side's threads spin a little after their work
torch.set_num_threads(args.threads)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def make_half_billion(folder):
    """The shape of Qwen2.5-0.5B, random weights, stored as bfloat16 so that both dtypes are the same numbers."""
    torch.manual_seed(7)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                                         num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True, initializer_range=0.05,
                                         bos_token_id=None, eos_token_id=151935, pad_token_id=151935))
    torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 151935
    model.save_pretrained(folder)


def folder_of(shape):
    folder = args.out / shape / "model"
    if not (folder / "config.json").exists():
        if shape == "0.5b":
            make_half_billion(folder)
        else:
            subprocess.run([sys.executable, HERE / "make_models.py", args.out, shape], check=True, stdout=subprocess.DEVNULL)
    return folder


class Mortise:
    def __init__(self):
        self.process = subprocess.Popen([args.program, "--serve", "--threads", str(args.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench_decode ended with {self.process.wait()} on {str(request)[:200]}")
        return json.loads(line)


class Peer:
    def __init__(self, folder, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(self, prompts, new_tokens, greedy=False):
        ids = torch.tensor(prompts)
        defaults = self.model.generation_config
        sampling = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(max_new_tokens=new_tokens, min_new_tokens=new_tokens, eos_token_id=defaults.eos_token_id, pad_token_id=defaults.pad_token_id,
                                  cache_implementation=None if args.cache == "dynamic" else args.cache, disable_compile=True, **sampling)
        begin = time.perf_counter()
        with torch.no_grad():
            out = self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        elapsed = time.perf_counter() - begin
        assert out.shape == (len(prompts), len(prompts[0]) + new_tokens), out.shape
        return elapsed, out[:, ids.shape[1]:].tolist()


def prompts_of(shape, rows, length, vocab):
    generator = torch.Generator().manual_seed(11)
    return torch.randint(0, vocab - 2, (rows, length), generator=generator).tolist()


def check_equal(shape, mortise, peer, length, vocab):
    prompts = prompts_of(shape, 2, length, vocab)
    theirs = peer.run(prompts, 8, greedy=True)[1]
    ours = mortise.ask(do="run", prompts=prompts, new_tokens=8, dtype="float32", temperature=0.0, step=0)["ids"]
    if ours != theirs:
        sys.exit(f"{shape}: greedy completions differ, so the two do not compute the same: {ours} and {theirs}")


def measure(shape, rows, dtype, mortise, peer, length, new_tokens, vocab):
    prompts = prompts_of(shape, rows, length, vocab)
    ours, steps, theirs, limits, shares = [], [], [], [], []
    for turn in range(args.rounds + 1):
        time.sleep(PAUSE_S)
        around = [mortise.ask(do="roofline")] if shape == "0.5b" else []
        answer = mortise.ask(do="run", prompts=prompts, new_tokens=new_tokens, dtype=dtype, temperature=1.0, step=turn)
        around += [mortise.ask(do="roofline")] if shape == "0.5b" else []
        time.sleep(PAUSE_S)
        seconds = peer.run(prompts, new_tokens)[0]
        if turn == 0:
            continue  # warm-up
        ours.append(answer["seconds"])
        steps += answer["step_seconds"][1:]
        theirs.append(seconds)
        if around:
            limits.append(roofline_ms(answer, around))
            shares.append(max(limits[-1]) / (1e3 * statistics.median(answer["step_seconds"][1:])))
    row = {"shape": shape, "dtype": dtype, "rows": rows, "new_tokens": new_tokens, "threads": args.threads,
           "ms_a_step": 1e3 * statistics.median(ours) / new_tokens, "peer_ms_a_step": 1e3 * statistics.median(theirs) / new_tokens,
           "ratio": statistics.median(theirs) / statistics.median(ours), "decode_ms": 1e3 * statistics.median(steps)}
    if limits:
        row |= {"bytes_ms": [by_bytes for by_bytes, _ in limits], "flops_ms": [by_flops for _, by_flops in limits], "of_roofline": statistics.median(shares),
                "read_gb_per_s": [answer["step_bytes"] / by_bytes / 1e6 for by_bytes, _ in limits]}
    return row


def roofline_ms(answer, around):
    """A step's bytes and multiply-adds at the machine's mean rates just before and after: shared machines change theirs within a minute."""
    return [1e3 * answer[work] / statistics.mean(limit[rate] for limit in around)
            for work, rate in (("step_bytes", "read_bytes_per_s"), ("step_flops", "flops_per_s"))]


def print_row(row):
    text = f"{row['shape']:5s} {row['dtype']:9s} {row['rows']:4d} {row['ms_a_step']:12.3f} {row['peer_ms_a_step']:12.3f} {row['ratio']:7.1f}x {row['decode_ms']:10.3f}"
    if "of_roofline" in row:
        low, high = min(row["read_gb_per_s"]), max(row["read_gb_per_s"])
        text += (f"   {row['of_roofline']:.2f} of max({statistics.median(row['bytes_ms']):.1f} ms at {low:.0f} to {high:.0f} GB/s, "
                 f"{statistics.median(row['flops_ms']):.1f} ms of multiply-adds)")
    print(text, flush=True)


def main():
    args.out.mkdir(parents=True, exist_ok=True)
    mortise = Mortise()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {args.threads} threads, {args.cache} cache; ms a step: whole call / new tokens; "
          "decode: median step without the prompts")
    print(f"{'shape':5s} {'dtype':9s} {'rows':>4s} {'mortise ms':>12s} {'peer ms':>12s} {'ratio':>8s} {'decode ms':>10s}   of the roofline")
    with open(args.out / "decode.jsonl", "a") as log:
        for shape in args.shapes:
            folder = folder_of(shape)
            length, new_tokens = LENGTHS.get(shape) or (WORKLOADS[shape]["prompt_length"], WORKLOADS[shape]["completion_length"])
            mortise.ask(do="load", folder=str(folder))
            for dtype in ["float32", "bfloat16"] if shape == "0.5b" else ["float32"]:
                peer = Peer(folder, dtype)
                vocab = peer.model.config.vocab_size
                if dtype == "float32":
                    check_equal(shape, mortise, peer, length, vocab)
                for rows in ROWS[shape]:
                    row = measure(shape, rows, dtype, mortise, peer, length, new_tokens, vocab)
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                    print_row(row)


if __name__ == "__main__":
    main()
