"""Tables: numbers that kernels read beside their operands, by name so that an image can keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.fourier import FourierPlan
from tessera.core.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]

MAKERS: dict[str, Callable[..., Array]] = {
    "fourier": lambda dtype, n, real: FourierPlan(n, bool(real)).table(dtype),
    "fourier_by_root": lambda dtype, n, real: FourierPlan(n, bool(real)).table_by_root(dtype),
}


@dataclass(frozen=True)
class Table:
    """A table: who makes it, from which numbers, and what it is."""

    maker: str
    arguments: tuple[int, ...]
    type: TensorType

    def array(self) -> Array:
        """Its numbers, row-major and read-only."""
        made = MAKERS[self.maker](self.type.dtype.np, *self.arguments)
        assert made.shape == self.type.shape, f"{self}: got {made.shape}"
        return made


def fourier_table(plan: FourierPlan, t: TensorType, by_root: bool = False) -> Table:
    """The table of a Fourier transform for real numbers of a type's dtype."""
    return Table("fourier_by_root" if by_root else "fourier", (plan.n, int(plan.real)), t)
