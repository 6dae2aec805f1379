"""Draws a program: one rule of the catalogue after another, on values whose numbers are known.

Each statement is run as it is drawn, on the references of the ops: what Tessera refuses leaves no trace,
sizes and numbers stay small, and a rule can look at the values that it takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import tessera as ts
from tessera.core.dtype import DType
from tessera.core.errors import TesseraError
from tessera.core.flags import override
from tests.fuzz.program import SCOPE, Input, Line, Program, dtype_of, first_free

LARGEST = 400  # elements of any value
SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
PALETTES = (
    *[("f64",)] * 5, *[("f32",)] * 5, ("f32", "f64"), ("bf16",), ("f16",), ("bf16", "f32"), ("f8e4m3", "f32"),
    ("f8e5m2",), ("bf16 @ accum(bf16)",), ("f16 @ saturate",), ("bf16 @ stochastic_round",),
    ("tf32",), ("f32 @ accum(f64)",), ("f16 @ loss_scale(8)",), ("bf16 @ saturate @ stochastic_round",),
)  # fmt: skip
WHOLE = (
    "i64",
    "i64",
    "i32",
    "i32",
    "i8",
    "u8",
    "i16",
    "u16",
    "u32",
    "u64",
    "i4",
    "i8 @ saturate",
    "u8 @ saturate",
)


class Drawer:
    """The program so far; rules ask it for operands and choices."""

    def __init__(
        self, seed: int, palettes: Sequence[Sequence[str]] = PALETTES, whole: Sequence[str] = WHOLE,
        plain: bool = False,
    ):  # fmt: skip
        self.seed, self.plain = seed, plain
        self.s = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.floats = self.pick(palettes)
        self.whole = self.pick(whole)
        self.complexes = "c128" if "f64" in self.floats[0] else "c64"
        self.sizes = [self.pick(SIZES) for _ in range(3)]
        if self.often(0.08):
            self.sizes[0] = 0
        self.special = self.often(0.12) and not plain
        self.inputs: list[Input] = []
        self.lines: list[Line] = []
        self.values: dict[str, Any] = {}
        self.used: set[str] = set()
        self.refusals: list[str] = []
        self.fault: Line | None = None

    # Choices

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.s.randrange(len(choices))]

    def often(self, p: float) -> bool:
        return self.s.random() < p

    def int(self, low: int, high: int) -> int:
        return self.s.randint(low, high)

    def size(self) -> int:
        return self.pick(self.sizes) if self.often(0.8) else self.pick(SIZES)  # type: ignore[no-any-return]

    def shape(self, low: int = 0, high: int = 3) -> tuple[int, ...]:
        """Sizes of a new tensor, most of them those of the program."""
        rank = min(max(low, self.pick((0, 1, 1, 2, 2, 2, 3))), high)
        made: list[int] = []
        for _ in range(rank):
            n = self.size()
            made.append(n if int(np.prod(made)) * n <= LARGEST // 2 else self.pick((1, 2, 3)))
        return tuple(made)

    # Operands

    def shape_of(self, x: str) -> tuple[int, ...]:
        return tuple(self.values[x].shape)

    def rank(self, x: str) -> int:
        return len(self.values[x].shape)

    def kind(self, x: str) -> str:
        return str(self.values[x].dtype.kind)

    def dtype(self, x: str) -> DType:
        return self.values[x].dtype  # type: ignore[no-any-return]

    def data(self, x: str) -> Any:
        return self.values[x].numpy()

    def take(
        self, kinds: str = "f", low: int = 0, high: int = 4,
        fits: Callable[[tuple[int, ...]], bool] = lambda s: True, fresh: float = 0.2,
    ) -> str:  # fmt: skip
        """A value of some kind and rank: the last ones first, sometimes a new input."""
        have = [
            n for n, v in self.values.items()
            if v.dtype.kind in kinds and low <= len(v.shape) <= high and fits(tuple(v.shape))
        ]  # fmt: skip
        if have and not self.often(fresh):
            unused = [n for n in have if n not in self.used]
            if unused and self.often(0.7):
                have = unused
            return have[-1 - min(int(self.s.expovariate(0.6)), len(have) - 1)]
        kind = self.kind_in(kinds)
        for _ in range(20):
            shape = self.shape(low, min(high, 3) if high >= low else high)
            if fits(shape):
                return self.new(kind, shape)
        raise Unfit

    def kind_in(self, kinds: str) -> str:
        weights = {"f": 12, "i": 3, "c": 2, "b": 1, "u": 1}
        return self.pick([k for k in kinds for _ in range(weights[k])])  # type: ignore[no-any-return]

    def new(
        self,
        kind: str,
        shape: Sequence[int],
        low: float = -2.0,
        high: float = 2.0,
        dtype: str | None = None,
    ) -> str:
        """A new input of some kind."""
        if dtype is None:
            dtype = {
                "f": lambda: self.pick(self.floats), "c": lambda: self.complexes, "b": lambda: "bool_",
                "i": lambda: self.whole if self.whole[0] == "i" else "i64",
                "u": lambda: self.whole if self.whole[0] == "u" else "u8",
            }[kind]()  # fmt: skip
        data = self.numbers(dtype_of(dtype), tuple(shape), low, high)
        return self.given(data, dtype)

    def given(self, data: Any, dtype: str) -> str:
        """A new input with these numbers."""
        made = Input(f"x{len(self.inputs)}", data, dtype)
        self.inputs.append(made)
        self.values[made.name] = made.tensor
        return made.name

    def numbers(self, d: DType, shape: tuple[int, ...], low: float, high: float) -> Any:
        if d.kind == "b":
            return self.rng.random(shape) < 0.5
        if d.kind in "iu":
            return self.whole_numbers(d, shape, low, high)
        if d.kind == "c":
            parts = [self.reals(d.real, shape, low, high) for _ in range(2)]
            return np.stack(parts, -1).view(d.np).reshape(shape)
        return self.reals(d, shape, low, high)

    def whole_numbers(self, d: DType, shape: tuple[int, ...], low: float, high: float) -> Any:
        if (low, high) == (-2.0, 2.0):
            low, high = (0, 5) if d.kind == "u" else (-4, 5)
        made = self.rng.integers(int(low), int(high) + 1, shape)
        if self.special and (low, high) in ((0, 5), (-4, 5)):
            info = ml_dtypes.iinfo(d.np)
            ends = np.array([int(info.min), int(info.max)], object)[self.rng.integers(0, 2, shape)]
            made = np.where(self.rng.random(shape) < 0.2, ends, made)
        return np.asarray(made).astype(np.uint64 if d.kind == "u" else np.int64).astype(d.np)

    def reals(self, d: DType, shape: tuple[int, ...], low: float, high: float) -> Any:
        made = self.rng.uniform(low, high, shape)
        if self.often(0.3) and not self.plain:  # ties, zeros
            made = np.clip(np.rint(made * 2) / 2, low, high)
        if self.special and (low, high) == (-2.0, 2.0):
            top = float(ml_dtypes.finfo(d.np).max)
            some = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, top, -top, 1e-40, 1e-310, 1.0])
            made = np.where(self.rng.random(shape) < 0.2, self.rng.choice(some, shape), made)
        with np.errstate(all="ignore"):
            return np.asarray(made).astype(d.np)

    def partner(self, x: str, fresh: float = 0.3) -> str:
        """Another operand for x that broadcasts with it: a value of its dtype, a number, a new input."""
        if self.often(0.25):
            return self.number(self.kind(x))
        shape = self.shape_of(x)
        have = [
            n for n, v in self.values.items()
            if v.dtype is self.dtype(x) and _broadcast(tuple(v.shape), shape)
        ]  # fmt: skip
        if have and not self.often(fresh):
            return self.pick(have)  # type: ignore[no-any-return]
        part = tuple(n if self.often(0.8) else 1 for n in shape[self.int(0, len(shape)) :])
        return self.new(self.kind(x), part, dtype=self.spelled_dtype(x))

    def spelled_dtype(self, x: str) -> str:
        return {"bool": "bool_"}.get(str(self.dtype(x)), str(self.dtype(x)))

    def number(self, kind: str) -> str:
        numbers = {
            "f": ("0.5", "2.0", "-1.5", "1.0", "0.0", "3", "-0.25"), "c": ("0.5", "1j", "(1-2j)"),
            "i": ("1", "2", "3", "-1", "0"), "u": ("1", "2", "3", "0"), "b": ("True", "False"),
        }  # fmt: skip
        return self.pick(numbers[kind])  # type: ignore[no-any-return]

    def same_shape(self, x: str, kinds: str) -> str:
        """A value of some kind and of the shape of x."""
        shape = self.shape_of(x)
        return (
            self.take(kinds, fits=lambda s: s == shape)
            if shape in self.shapes(kinds)
            else self.new(kinds[0], shape)
        )

    def shapes(self, kinds: str) -> list[tuple[int, ...]]:
        return [tuple(v.shape) for v in self.values.values() if v.dtype.kind in kinds]

    def within(self, x: str, low: float, high: float) -> str:
        """x, moved smoothly into an interval where it is not there."""
        v = self.values[x]
        if v.dtype.kind != "f" or self.often(0.06):
            return x
        data = v.numpy().astype(np.float64)
        if data.size == 0 or np.all(np.isnan(data) | ((data >= low) & (data <= high))):
            return x
        if not self.add(f"op.sigmoid({x}) * {high - low:.4g} + {low:.4g}", "sigmoid"):
            raise Unfit
        return self.lines[-1].targets[0]

    def axis(self, x: str) -> int:
        """One axis of x, counted from either end."""
        n = self.rank(x)
        if n == 0:
            raise Unfit
        a = self.int(0, n - 1)
        return a - n if self.often(0.3) else a

    def axes(self, x: str) -> str:
        """All axes, one of them, or some, as text."""
        n = self.rank(x)
        if n == 0 or self.often(0.2):
            return "None"
        if self.often(0.6):
            return str(self.axis(x))
        return str(tuple(sorted(self.s.sample(range(n), self.int(1, n)))))

    def indices(self, n: int, shape: Sequence[int], negative: bool = False) -> str:
        """Places along an axis of size n: an input, a constant, or what was computed."""
        if n == 0 and int(np.prod(shape)) > 0:
            raise Unfit
        fitting = [
            x for x, v in self.values.items()
            if v.dtype.kind in "i" and v.dtype.bits >= 32 and tuple(v.shape) == tuple(shape)
        ]  # fmt: skip
        if fitting and self.often(0.6) and n > 0:
            return f"op.remainder({self.pick(fitting)}, {n})"
        low = -n if negative and self.often(0.5) else 0
        data = self.rng.integers(low, max(n, 1), tuple(shape)).astype(
            self.pick((np.int64, np.int32))
        )
        if self.often(0.2):
            return f"np.array({data.tolist()}, dtype=np.{data.dtype.name}).reshape({tuple(shape)})"
        return self.given(data, {"int64": "i64", "int32": "i32"}[data.dtype.name])

    # Statements

    def add(self, text: str, name: str) -> bool:
        """Run a statement and keep it, if Tessera takes it and its values stay small."""
        with override(target="numpy"), np.errstate(all="ignore"):
            try:
                made = eval(text, {**SCOPE, **self.values})
            except TesseraError as e:
                self.refusals.append(f"{name}: {e}".splitlines()[0])
                return False
            except (
                Exception
            ):  # a fault of Tessera: the program ends here, and its checks will see it
                self.fault = Line((first_free(self.values, "v"),), text, name)
                return False
        leaves = [v for v in ts.tree.leaves(made) if isinstance(v, ts.Tensor)]
        if not leaves or not all(self.tame(v) for v in leaves):
            return False
        if isinstance(made, tuple | list) and len(leaves) != len(made):
            return False
        first = int(first_free(self.values, "v")[1:])
        targets = tuple(f"v{first + i}" for i in range(len(leaves)))
        alone = isinstance(made, tuple | list) and len(targets) == 1
        self.lines.append(Line(targets, f"{text}[0]" if alone else text, name))
        self.used |= set(self.lines[-1].uses)
        self.values |= dict(zip(targets, leaves, strict=True))
        return True

    def tame(self, v: Any) -> bool:
        """Whether a value is small and, unless the program has special numbers, finite."""
        data = v.numpy()
        if data.size > LARGEST:
            return False
        if self.special or v.dtype.kind not in "fc" or self.often(0.03):
            return True
        with np.errstate(all="ignore"):
            size = np.abs(data.astype(np.complex128))
        return bool(np.all(size < 1e4))

    def program(self) -> Program:
        """What was drawn, ending in the values that nothing uses and sometimes others."""
        if self.fault is not None:
            return self.ended([*self.lines, self.fault], list(self.fault.targets))
        made = [t for line in self.lines for t in line.targets]
        outputs = [t for t in made if t not in self.used][-self.int(1, 4) :]
        if self.often(0.25):
            outputs.append(self.pick(made))
        if self.often(0.03) and self.inputs:
            outputs.append(self.pick(self.inputs).name)
        return self.ended(self.lines, outputs)

    def ended(self, lines: Sequence[Line], outputs: Sequence[str]) -> Program:
        inputs = tuple(self.inputs)
        return Program(inputs, tuple(lines), tuple(outputs), self.special, self.seed).pruned()


class Unfit(Exception):
    """A rule finds no operands."""


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(a[::-1], b[::-1], strict=False))
