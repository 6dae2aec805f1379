"""Rotary positions: pairs of elements turned by an angle that grows with the position.

Frequencies are base**(-2i/dim), stretched for contexts longer than those trained on by one of

    linear   every frequency divided by the factor (position interpolation, Chen et al. 2023)
    ntk      a larger base, so that the slowest frequency is divided by the factor and the fastest kept
    yarn     slow frequencies divided, fast ones kept, a ramp between, and larger logits (Peng et al. 2023)
    llama3   the same with a ramp in the wavelength and no change of the logits
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dtype import f32, f64
from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.linear import sized
from tessera.nn.module import Module

SCALINGS = (None, "linear", "ntk", "yarn", "llama3")


class Rope(Module):
    """Turn x (..., seq, dim) by its positions; the first `dim` of a wider last axis."""

    dim: int
    base: float = 10000.0
    scaling: str | None = None
    factor: float = 1.0
    trained: int = 4096  # positions that the model was trained on (yarn, llama3)
    interleaved: bool = (
        False  # pairs are neighbours (x[2i], x[2i + 1]), not halves (x[i], x[i + dim/2])
    )
    # Turns within `trained` positions from which on a frequency is kept (yarn; llama3's high).
    fast: float = 32.0
    slow: float = 1.0  # turns up to which it is divided (yarn; llama3's low)
    strength: float | None = (
        None  # yarn's factor of cosines and sines, 0.1 ln(factor) + 1 unless given
    )

    def __post_init__(self) -> None:
        sized("Rope", dim=self.dim, trained=self.trained)
        if self.dim % 2 or self.scaling not in SCALINGS or self.factor < 1:
            raise located(
                OperandError(
                    f"nn.Rope: got dim {self.dim}, scaling {self.scaling!r}, factor {self.factor}; expected "
                    "an even "
                    "dim, scaling None, 'linear', 'ntk', 'yarn' or 'llama3', and a factor of at least 1"
                )
            )

    @property
    def frequencies(self) -> Any:
        """Radians per position of each pair, float64 (dim / 2,)."""
        steps = np.arange(0, self.dim, 2) / self.dim
        if self.scaling == "ntk":
            base = self.base * self.factor ** (self.dim / max(self.dim - 2, 1))
            return base**-steps
        plain = self.base**-steps
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "yarn":
            return self._yarn(plain)
        return self._llama3(plain) if self.scaling == "llama3" else plain

    def _yarn(self, plain: Any) -> Any:
        def place(turns: float) -> float:
            """The index of the pair that makes so many turns within the trained positions."""
            return (
                self.dim
                * math.log(self.trained / (turns * 2 * math.pi))
                / (2 * math.log(self.base))
            )

        low, high = (
            max(math.floor(place(self.fast)), 0),
            min(math.ceil(place(self.slow)), self.dim - 1),
        )
        ramp = (np.arange(self.dim // 2) - low) / max(high - low, 1e-3)
        slow = np.clip(ramp, 0, 1)
        return plain / self.factor * slow + plain * (1 - slow)

    def _llama3(self, plain: Any) -> Any:
        turns = self.trained * plain / (2 * math.pi)
        kept = np.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        return plain / self.factor * (1 - kept) + plain * kept

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.scaling != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1 if self.strength is None else self.strength

    def angles(self, positions: Any) -> tuple[Any, Any]:
        """Cosines and sines (..., dim / 2) of positions, in f32 or in f64 for f64 positions."""
        dtype = f64 if getattr(positions, "dtype", None) is f64 else f32
        turned = op.expand_dims(op.cast(positions, dtype), -1) * op.cast(self.frequencies, dtype)
        return op.cos(turned) * self.amplitude, op.sin(turned) * self.amplitude

    def __call__(self, x: Any, positions: Any = None) -> Any:
        """x with the positions (seq,) or (..., seq), which count 0, 1, ... unless given."""
        places = op.arange(x.shape[-2]) if positions is None else positions
        if x.dtype.bits > 32:
            places = op.cast(places, f64)
        return self.turn(x, *self.angles(places))

    def turn(self, x: Any, cos: Any, sin: Any) -> Any:
        """x turned by angles (seq, dim / 2), or any shape that broadcasts."""
        part = x if x.shape[-1] == self.dim else x[..., : self.dim]
        wide = op.cast(part, cos.dtype)
        turned = _neighbours(wide, cos, sin) if self.interleaved else _halves(wide, cos, sin)
        turned = op.cast(turned, x.dtype)
        if x.shape[-1] == self.dim:
            return turned
        return op.concat([turned, x[..., self.dim :]], axis=-1)


def _halves(x: Any, cos: Any, sin: Any) -> Any:
    a, b = op.split(x, 2, axis=-1)
    return op.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _neighbours(x: Any, cos: Any, sin: Any) -> Any:
    pairs: Any = op.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return op.reshape(op.stack([a * cos - b * sin, b * cos + a * sin], axis=-1), x.shape)
