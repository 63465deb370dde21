"""The reference implementations of the optimizers: torch, transformers, bitsandbytes, and Lion's paper.

Usage: optimizers_oracle.py OUT.safetensors

Writes the parameters of a small model, 50 gradients of each ("gradient.<step>.<parameter>", counted from 1), and for
every case the parameters after 50 updates ("<case>.<parameter>"). optimizers_oracle_test.cpp has the same cases.
"""

import sys

import torch

NUM_UPDATES = 50
SHAPES = {"embedding": (130, 64), "wide": (64, 96), "tall": (100, 64), "small": (40, 24), "norm": (64,), "bias": (3,)}
HIDDEN = ("wide", "tall", "small")


def problem():
    generator = torch.Generator().manual_seed(20261124)
    parameters, gradients = {}, []
    for name, shape in SHAPES.items():
        parameters[name] = torch.randn(shape, generator=generator) * 0.1 + (1.0 if name == "norm" else 0.0)
    means = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    for step in range(NUM_UPDATES):
        scale = 10.0 ** (-step % 5 - 2)
        gradients.append({
            name: (means[name] + 2.0 * torch.randn(shape, generator=generator)) * scale for name, shape in SHAPES.items()
        })
    return parameters, gradients


PARAMETERS, GRADIENTS = problem()
OUT = {f"start.{name}": tensor for name, tensor in PARAMETERS.items()}
for number, gradient in enumerate(GRADIENTS, 1):
    OUT.update({f"gradient.{number}.{name}": tensor for name, tensor in gradient.items()})


def run(case, make):
    """`make` takes the parameters by name and returns optimizers; their learning rate falls over the run."""
    named = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in PARAMETERS.items()}
    optimizers = make(named)
    starts = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    for number, gradient in enumerate(GRADIENTS):
        factor = 1.0 - number / (2.0 * NUM_UPDATES)
        for name, parameter in named.items():
            parameter.grad = gradient[name].clone()
        for optimizer, rates in zip(optimizers, starts):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = None if rate is None else rate * factor
            optimizer.step()
    OUT.update({f"{case}.{name}": parameter.detach().clone() for name, parameter in named.items()})


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:2302.06675."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad) + group["weight_decay"] * p
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad
                p.sub_(group["lr"] * update)


def two_groups(named, decay):
    """transformers' rule: no decay for norms and biases."""
    plain = [p for name, p in named.items() if name in ("norm", "bias")]
    rest = [p for name, p in named.items() if name not in ("norm", "bias")]
    return [{"params": rest, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def muon(decay, **settings):
    def make(named):
        rest = [p for name, p in named.items() if name not in HIDDEN]
        return [
            torch.optim.Muon([named[name] for name in HIDDEN], lr=1e-2, weight_decay=decay, **settings),
            torch.optim.AdamW(rest, lr=1e-2, betas=(0.9, 0.99), eps=1e-6, weight_decay=decay),
        ]

    return make


def torch_cases():
    adamw = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-6}
    run("adamw", lambda named: [torch.optim.AdamW(two_groups(named, 0.1), **adamw)])
    for case, settings in {
        "sgd": {},
        "sgd_momentum": {"momentum": 0.9, "weight_decay": 0.05},
        "sgd_nesterov": {"momentum": 0.8, "nesterov": True},
        "sgd_dampening": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05},
    }.items():
        run(case, lambda named, s=settings: [torch.optim.SGD(named.values(), lr=0.5, **s)])
    run("lion", lambda named: [Lion(named.values(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)])
    run("muon", muon(0.1))
    run("muon_plain", muon(0.0, momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"))

    def groups(named):  # "tall" is frozen
        return [torch.optim.AdamW([
            {"params": [named["embedding"]], "lr": 1e-3, "weight_decay": 0.0},
            {"params": [named["wide"], named["small"]], "lr": 5e-3, "weight_decay": 0.3},
            {"params": [named["norm"], named["bias"]], "weight_decay": 0.0},
        ], **adamw)]

    run("groups", groups)


def transformers_cases():
    from transformers import Adafactor

    fixed = {"scale_parameter": False, "relative_step": False}
    for case, settings in {
        "adafactor": {"lr": 1e-2, **fixed},
        "adafactor_scaled": {"lr": 1e-1, "scale_parameter": True, "relative_step": False, "clip_threshold": 0.5},
        "adafactor_relative": {"lr": None, "scale_parameter": True, "relative_step": True, "warmup_init": True},
        "adafactor_moment": {"lr": 1e-2, "beta1": 0.9, "weight_decay": 0.1, "decay_rate": -0.6, **fixed},
    }.items():
        run(case, lambda named, s=settings: [Adafactor(named.values(), **s)])


def nearest_of_the_map(bitsandbytes):
    """bitsandbytes' kernel for CPUs rounds by a table, which is coarse near 0; the one for GPUs takes the nearest value."""

    def quantize(numbers, code, absmax_out, codes_out, blocksize):
        flat = torch.nn.functional.pad(numbers.reshape(-1), (0, -numbers.numel() % blocksize)).view(-1, blocksize)
        absmax = flat.abs().amax(1)
        inverse = torch.where(absmax > 0, 1.0 / absmax, torch.zeros(()))
        codes = torch.searchsorted((code[1:] + code[:-1]) / 2, (flat * inverse[:, None]).contiguous())
        codes_out.copy_(codes.view(-1)[: numbers.numel()].view(codes_out.shape))
        absmax_out.copy_(absmax)

    bitsandbytes.backends.cpu.ops._quant_blockwise_fp32_direct = quantize


def bitsandbytes_cases():
    import bitsandbytes
    from bitsandbytes.functional import create_dynamic_map

    OUT["map.signed"], OUT["map.unsigned"] = create_dynamic_map(True), create_dynamic_map(False)
    settings = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    quantize_all = lambda named: [bitsandbytes.optim.AdamW8bit(named.values(), **settings)]
    run("adamw_8bit_table", quantize_all)
    nearest_of_the_map(bitsandbytes)
    run("adamw_8bit_all", quantize_all)

    def without_embeddings(named):
        rest = [p for name, p in named.items() if name != "embedding"]
        return [
            bitsandbytes.optim.AdamW8bit(rest, **settings),
            bitsandbytes.optim.AdamW32bit([named["embedding"]], **settings),
        ]

    run("adamw_8bit", without_embeddings)
    run("lion_bitsandbytes", lambda named: [
        bitsandbytes.optim.Lion32bit(named.values(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    ])


def main():
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    torch_cases()
    transformers_cases()
    bitsandbytes_cases()
    save_file({name: tensor.contiguous() for name, tensor in OUT.items()}, sys.argv[1])


main()
