"""A device against its own limits and against torch and transformers, in turns in one run.

  python3 device.py --program build/release/bin/bench_device --out build/bench/device [--device cuda|cuda:N|cpu-as-device|cpu]
      [--shape 0.5b|1.5b|7b|0.6b|moe|tiny|tiny_moe] [--rounds 2] [--repeats 5] [--compile] PART...

PARTs, in the names of docs/measured:
  limits      H0  the rates of copies and of products, and the time of a launch, also in a graph
  decode      H1  128 prompt tokens and 512 new ones for 1 to 512 rows, against generate
  queue       H2  256 requests with 100 to 1,024 tokens in and out, against continuous batching
  head        H3  the vocabulary head with its gradients, time and memory, against log_softmax over all logits
  train       H4  forward and backward of rows of equal and of log-normal lengths, against padded micro-batches
  step        H5  a whole GRPO step of 64 prompts and 8 completions each, against TRL; needs --mortise and --packs
  losses          policy losses on the GPU, against the host
  optimizer   H6  clipping and AdamW's step, against torch's clipping and its fused AdamW
  memory      H7  the most tokens of a micro-batch, against transformers with and without checkpoints
  match       H8  the probabilities of sampler and training, equal bits of two runs, the cost of determinism

Each part writes DIR/PART-SHAPE.json, on a GPU also MEASURED/device-PART-SHAPE.json if --measured names a folder. The file and the
output say which gates (gates.py) are met or missed. Before times count, both sides must compute the same numbers. A part that
takes more than ten minutes can be cut by --shape and --rounds. It needs a Python with torch, and transformers for parts with a model; the
program and this folder are enough on a machine without compilers. Without a GPU: --device cpu-as-device and the shape tiny or tiny_moe.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gates  # noqa: E402
import parts  # noqa: E402
import turns  # noqa: E402
from torch_side import TorchSide  # noqa: E402


class Mortise:
    def __init__(self, program, device):
        self.process = subprocess.Popen([program, "--device", device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read("its start")

    def ask(self, **request):
        """The answer; it has "error" if the request failed."""
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() tells how it ended
        return self.read(str(request)[:200])

    def read(self, what):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        code = self.process.wait()
        print(f"bench_device ended with code {code} at {what}", file=sys.stderr)
        sys.exit(code if code > 0 else 1)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PART", default=[name for name in parts.PARTS if name != "step"])
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--measured", type=Path, metavar="MEASURED", help="a folder that keeps the results of a GPU (docs/measured)")
    parser.add_argument("--mortise", help="step: the program mortise")
    parser.add_argument("--packs", help="step: the folder with bench.rewards.so")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=list(turns.SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="head: torch.compile as well")
    args = parser.parse_args()
    for name in args.names:
        if name not in parts.PARTS:
            parser.error(f"there is no part '{name}'; the parts are {', '.join(parts.PARTS)}")
    if "step" in args.names and not (args.mortise and args.packs):
        parser.error("the part step needs --mortise and --packs")
    args.is_gpu = args.device.startswith("cuda")
    args.shape = args.shape or ("0.5b" if args.is_gpu else "tiny")
    return args


def main():
    args = arguments()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRANSFORMERS_VERBOSITY="error")
    bench = turns.Bench(args, Mortise(args.program, args.device), TorchSide(args.device))
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in args.names:
        print(f"== {name}, {args.shape}, on {bench.torch.name()}", flush=True)
        began = time.monotonic()
        rows = parts.PARTS[name](bench)
        # torch may run out of a GPU's memory. Without a GPU an error of its side is a fault of these scripts.
        failed = failed or any("error" in row or (not args.is_gpu and "error" in row.get("peer", {})) for row in rows)
        report = {"part": name, "shape": args.shape, "device": bench.torch.name(), "place": args.device, "limits": bench.limits(),
                  "versions": turns.versions(), "wall_s": round(time.monotonic() - began, 1),
                  "gates": gates.gates_of(name, args.shape, rows, args.is_gpu), "rows": rows}
        path = args.out / f"{name}-{args.shape}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        if args.measured and args.is_gpu:
            args.measured.mkdir(parents=True, exist_ok=True)
            path = args.measured / f"device-{path.name}"
            path.write_text(json.dumps(report, indent=1) + "\n")
        for row in rows:
            print("  " + turns.text_of(row), flush=True)
        for gate in report["gates"]:
            print(gates.text_of(gate), flush=True)
        print(f"  {path}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
