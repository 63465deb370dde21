"""The gates: what a GPU must reach, for which shape and case, and whether it did. The worst row of a case counts.

Shares of the roofline and ratios are of one run, by the limits that it measured. verl's share is that of its published logs
of GRPO with vLLM at 0.5B on two GPUs: 1 to 3 % (64 prompts with 5 completions of at most 512 tokens in 53.6 s). 3 % is the
number to beat. A built-in loss should be one launch. No part counts launches; docs/cuda.md says how many each loss takes.
"""
import re
from dataclasses import dataclass
from typing import Callable

VERL_SHARE = 0.03


@dataclass
class Gate:
    part: str
    shapes: tuple
    case: str  # a pattern of the row's case
    what: str
    number: Callable  # the number that a row has for it, or None
    least: float = None
    most: float = None

    def needed(self):
        return f">= {self.least}" if self.most is None else f"<= {self.most}"

    def state(self, values):
        worst = min(values) if self.most is None else max(values)
        return worst, "met" if (worst >= self.least if self.most is None else worst <= self.most) else "missed"


BODY = ("0.5b", "1.5b")
HEAD, ROWS, TRL = r"one_pass, torch in bfloat16$", r"^rows of 512, against no checkpoints", r"TRL best$"
GATES = (
    Gate("decode", ("0.5b",), r"^256 rows", "H1: share of the roofline, f_gen", lambda row: row.get("f"), least=0.35),
    Gate("head", BODY, HEAD, "H3: time, as a multiple of torch's", lambda row: 1 / row["ratio"] if row.get("ratio") else None, most=1.0),
    Gate("head", BODY, HEAD, "H3: memory in GB", lambda row: row["extra_mib"] * 2**20 / 1e9 if "extra_mib" in row else None, most=1.5),
    Gate("train", ("0.5b",), ROWS, "H4: MFU of 990 TFLOP/s", lambda row: row.get("mfu_of_datasheet"), least=0.30),
    Gate("train", ("1.5b",), ROWS, "H4: MFU of 990 TFLOP/s", lambda row: row.get("mfu_of_datasheet"), least=0.45),
    Gate("step", ("0.5b",), TRL, "H5: share of the roofline, f_step", lambda row: row.get("f"), least=0.35),
    Gate("step", ("0.5b",), TRL, "a whole step, times as fast as TRL's", lambda row: row.get("ratio"), least=8.0),
    Gate("step", ("0.5b",), TRL, "f_step, times verl's published share", lambda row: row["f"] / VERL_SHARE if "f" in row else None, least=1.2),
)


def gates_of(part, shape, rows, is_gpu):
    """The gates of a part: each with the number that the rows have for it, or without one, and its state."""
    out = []
    for gate in GATES:
        if gate.part != part or (shape not in gate.shapes and is_gpu):
            continue
        answer = {"gate": gate.what, "shapes": gate.shapes, "case": gate.case, "needed": gate.needed(), "measured": None, "state": "not measured"}
        numbers = [gate.number(row) for row in rows if re.search(gate.case, row["case"]) and "error" not in row]
        values = [value for value in numbers if value is not None]
        if not is_gpu:
            answer["why"] = "this is no GPU"
        elif not values:
            answer["why"] = "no row has the number"
        else:
            answer["measured"], answer["state"] = gate.state(values)
        out.append(answer)
    return out


def text_of(gate):
    measured = gate.get("why") or f"{gate['measured']:.3g}"
    return f"  {gate['state']:12s} {gate['gate']:40s} {'/'.join(gate['shapes']):10s} {gate['needed']:8s} {measured}"
