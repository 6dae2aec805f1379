"""Functional optimisers: state = opt.init(params); params, state = opt.update(grads, state, params).

An optimiser is a pair of functions on trees, so it works inside jit.  The learning rate is a number
or a function of the step (a schedule).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.core.counterparts import lacking
from tessera.core.modules import answer
from tessera.learn.clipping import clip_by_global_norm, clip_by_value, global_norm
from tessera.learn.combine import (
    accumulate,
    chain,
    clip_norm,
    clip_value,
    ema,
    groups,
    masked,
    weight_decay,
)
from tessera.learn.lbfgs import Minimum, lbfgs
from tessera.learn.optimizer import Optimizer
from tessera.learn.rules import (
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    adamw,
    lion,
    muon,
    nadam,
    radam,
    rmsprop,
    sgd,
)
from tessera.learn.scaling import loss_scaled
from tessera.learn.schedules import (
    constant,
    cosine,
    cosine_restarts,
    exponential,
    inverse_sqrt,
    join,
    linear,
    milestones,
    one_cycle,
    polynomial,
    staircase,
    warmup,
    warmup_cosine,
)
from tessera.learn.shampoo import shampoo

__all__ = [
    "Minimum",
    "Optimizer",
    "accumulate",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "chain",
    "clip_by_global_norm",
    "clip_by_value",
    "clip_norm",
    "clip_value",
    "constant",
    "cosine",
    "cosine_restarts",
    "ema",
    "exponential",
    "global_norm",
    "groups",
    "inverse_sqrt",
    "join",
    "lbfgs",
    "linear",
    "lion",
    "loss_scaled",
    "masked",
    "milestones",
    "muon",
    "nadam",
    "one_cycle",
    "polynomial",
    "radam",
    "rmsprop",
    "sgd",
    "shampoo",
    "staircase",
    "warmup",
    "warmup_cosine",
    "weight_decay",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> Any:
        raise lacking("optim", name, __all__)


answer(__name__, "optim")
