"""Optimisers with random options, those of PyTorch that they equal, and where PyTorch's steps led.

python -m tests.support.cases.optimizers     write the record anew (needs PyTorch)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts

O = ts.optim
SHAPES = ((3, 4), (5,), (2, 3, 2))
RECORD = Path(__file__).parents[1] / "data" / "optimizers.json"
SEEDS, STEPS = range(6), 8


def some(rng: Any, low: float, high: float) -> float:
    return float(rng.uniform(low, high))


def maybe(rng: Any, x: float) -> float:
    return x if rng.integers(2) else 0.0


def sgd(r: Any) -> tuple[Any, Any, Any]:
    lr, m, wd = some(r, 0.01, 0.2), maybe(r, 0.8), maybe(r, 0.1)
    nesterov = bool(m and r.integers(2))
    damp = 0.0 if nesterov or not m else maybe(r, 0.3)
    theirs = {"lr": lr, "momentum": m, "weight_decay": wd, "nesterov": nesterov, "dampening": damp}
    return O.sgd(lr, m, nesterov, wd, dampening=damp), "SGD", theirs


def adam(r: Any) -> tuple[Any, Any, Any]:
    lr, b1, b2, eps, wd, top = some(r, 0.01, 0.2), some(r, 0.5, 0.95), some(r, 0.8, 0.999), 1e-6, maybe(r,
        0.1), bool(r.integers(2))  # fmt: skip
    theirs = {"lr": lr, "betas": (b1, b2), "eps": eps, "weight_decay": wd, "amsgrad": top}
    if r.integers(2):
        return O.adam(lr, b1, b2, eps, l2=wd, amsgrad=top), "Adam", theirs
    return O.adam(lr, b1, b2, eps, wd, amsgrad=top), "AdamW", theirs


def adamax(r: Any) -> tuple[Any, Any, Any]:
    lr, wd = some(r, 0.01, 0.2), maybe(r, 0.1)
    return O.adamax(lr, 0.8, 0.95, 1e-6, wd), "Adamax", {"lr": lr, "betas": (0.8, 0.95), "eps": 1e-6,
        "weight_decay": wd}  # fmt: skip


def nadam(r: Any) -> tuple[Any, Any, Any]:
    lr, wd, apart = some(r, 0.01, 0.2), maybe(r, 0.1), bool(r.integers(2))
    ours = O.nadam(lr, 0.8, 0.95, 1e-6, **{"decay" if apart else "l2": wd}, momentum_decay=0.01)
    return ours, "NAdam", {"lr": lr, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": wd,
        "momentum_decay": 0.01, "decoupled_weight_decay": apart}  # fmt: skip


def radam(r: Any) -> tuple[Any, Any, Any]:
    lr, wd, apart = some(r, 0.01, 0.2), maybe(r, 0.1), bool(r.integers(2))
    ours = O.radam(lr, 0.8, 0.95, 1e-6, **{"decay" if apart else "l2": wd})
    return ours, "RAdam", {"lr": lr, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": wd,
        "decoupled_weight_decay": apart}  # fmt: skip


def rmsprop(r: Any) -> tuple[Any, Any, Any]:
    lr, m, wd, centered = some(r, 0.01, 0.1), maybe(r, 0.7), maybe(r, 0.1), bool(r.integers(2))
    ours = O.rmsprop(lr, 0.9, 1e-4, momentum=m, centered=centered, l2=wd)
    return ours, "RMSprop", {"lr": lr, "alpha": 0.9, "eps": 1e-4, "momentum": m, "centered": centered,
        "weight_decay": wd}  # fmt: skip


def adagrad(r: Any) -> tuple[Any, Any, Any]:
    lr, slower, wd, first = some(r, 0.01, 0.2), maybe(r, 0.1), maybe(r, 0.1), maybe(r, 0.2)
    ours = O.adagrad(lr, 1e-6, lr_decay=slower, l2=wd, initial=first)
    return ours, "Adagrad", {"lr": lr, "lr_decay": slower, "eps": 1e-6, "weight_decay": wd,
        "initial_accumulator_value": first}  # fmt: skip


def adadelta(r: Any) -> tuple[Any, Any, Any]:
    lr, wd = some(r, 0.5, 1.0), maybe(r, 0.1)
    return O.adadelta(lr, 0.85, 1e-4, wd), "Adadelta", {"lr": lr, "rho": 0.85, "eps": 1e-4,
        "weight_decay": wd}  # fmt: skip


def adafactor(r: Any) -> tuple[Any, Any, Any]:
    lr, wd = some(r, 0.01, 0.5), maybe(r, 0.1)
    return O.adafactor(lr, decay=wd), "Adafactor", {"lr": lr, "weight_decay": wd}


OPTIMIZERS = {f.__name__: f
    for f in (sgd, adam, adamax, nadam, radam, rmsprop, adagrad, adadelta, adafactor)}  # fmt: skip


def course(name: str, seed: int, count: int) -> tuple[Any, str, Any, list[Any], list[list[Any]]]:
    """An optimiser, the name and options of PyTorch's, where it starts, and the gradients of its steps."""
    rng = np.random.default_rng(seed)
    ours, theirs, options = OPTIMIZERS[name](rng)
    start = [rng.normal(size=s) for s in SHAPES]
    return (
        ours,
        theirs,
        options,
        start,
        [[rng.normal(size=s) for s in SHAPES] for _ in range(count)],
    )


def pytorch(name: str, seed: int, count: int) -> list[list[Any]]:
    """Where PyTorch is after each step."""
    import torch

    torch.set_default_dtype(torch.float64)  # PyTorch keeps scalars of states in this dtype
    try:
        _, theirs, options, start, steps = course(name, seed, count)
        held = [torch.tensor(x, requires_grad=True) for x in start]
        opt = getattr(torch.optim, theirs)(held, **options)
        out = []
        for grads in steps:
            for p, g in zip(held, grads, strict=True):
                p.grad = torch.tensor(g)
            opt.step()
            out.append([p.detach().numpy().copy() for p in held])
        return out
    finally:
        torch.set_default_dtype(torch.float32)


def tessera(name: str, seed: int, count: int) -> list[list[Any]]:
    """Where ours is."""
    ours, _, _, start, steps = course(name, seed, count)
    mine: Any = [ts.tensor(x) for x in start]
    state, out = ours.init(mine), []
    for grads in steps:
        mine, state = ours.update([ts.tensor(g) for g in grads], state, mine)
        out.append([np.asarray(p) for p in mine])
    return out


if __name__ == "__main__":
    record = {
        f"{name} {seed}": [
            x for p in pytorch(name, seed, STEPS)[-1] for x in p.reshape(-1).tolist()
        ]
        for name in OPTIMIZERS
        for seed in SEEDS
    }
    RECORD.write_text(json.dumps(record, indent=0) + "\n")
