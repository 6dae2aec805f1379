"""Training: a small loop with checkpoints, metrics and resumption to the bit.  Nothing else depends on it."""

from typing import TYPE_CHECKING

from tessera.core.counterparts import lacking
from tessera.core.modules import answer
from tessera.train.checkpoints import Checkpoints
from tessera.train.dashboard import Dashboard, log
from tessera.train.fit import Result, fit
from tessera.train.metrics import CSV, JSONLines
from tessera.train.stop import EarlyStop
from tessera.train.tensorboard import TensorBoard

__all__ = [
    "CSV",
    "Checkpoints",
    "Dashboard",
    "EarlyStop",
    "JSONLines",
    "Result",
    "TensorBoard",
    "fit",
    "log",
]


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> object:
        raise lacking("train", name, __all__)


answer(__name__, "train")
