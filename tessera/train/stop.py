"""Early stop: end a run when a metric no longer gets better."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError
from tessera.core.public import public

_INSTEAD = {
    "step": "stop.is_over({'loss': loss}), or ts.train.fit(..., stop=stop)",
    "update": "stop.is_over({'loss': loss}), or ts.train.fit(..., stop=stop)",
    "should_stop": "stop.is_over({'loss': loss})",
    "early_stop": "stop.is_over({'loss': loss})",
    "__call__": "stop.is_over({'loss': loss}), or ts.train.fit(..., stop=stop)",
}


@public("an early stop", _INSTEAD)
class EarlyStop:
    """Stop when a metric was not better by `least` for `patience` values in a row."""

    @blames_arguments
    def __init__(self, metric: str, patience: int, least: float = 0.0, mode: str = "min"):
        if mode not in ("min", "max"):
            raise OperandError(f"EarlyStop: mode is {mode!r}, expected 'min' or 'max'")
        if patience < 1:
            raise OperandError(f"EarlyStop: patience is {patience}, expected at least 1")
        self.metric, self.patience, self.least, self.mode = metric, patience, least, mode
        self.best, self.since = math.inf, 0
        self._asked = self._seen = False

    @property
    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"best": self.best, "since": self.since}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        self.best, self.since = float(state["best"]), int(state["since"])

    @property
    def is_blind(self) -> bool:
        """Whether values came, and the metric never with them."""
        return self._asked and not self._seen

    def is_over(self, values: Mapping[str, float]) -> bool:
        """Whether the run should end after these values."""
        self._asked = True
        if self.metric not in values:
            return False
        self._seen = True
        x = values[self.metric] * (1 if self.mode == "min" else -1)
        if x < self.best - self.least:
            self.best, self.since = x, 0
        else:
            self.since += 1
        return self.since >= self.patience
