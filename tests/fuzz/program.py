"""A random program as text: inputs, one statement for each node, outputs.

The text is what is run, by Tessera and (with another `op`) by JAX, what is made smaller when a law does not
hold, and what goes into the test that is written then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tests.fuzz import parts

NAME = re.compile(r"\b[xv]\d+\b")
SCOPE: dict[str, Any] = {
    "np": np, "ts": ts, "op": op, "parts": parts, "nan": np.nan, "inf": np.inf,
    "accum": ts.accum, "saturate": ts.saturate, "stochastic_round": ts.stochastic_round,
    "loss_scale": ts.loss_scale, "tf32": ts.tf32,
    **{n: getattr(ts, n) for n in (
        "bool_", "i4", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f8e4m3", "f8e5m2",
        "bf16", "f16", "f32", "f64", "c64", "c128",
    )},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Input:
    """An argument: its numbers, its dtype as text (with a policy), and names for some of its sizes."""

    name: str
    data: Any
    dtype: str
    sizes: tuple[str | None, ...] = ()

    @property
    def tensor(self) -> Any:
        return ts.tensor(self.data, dtype=dtype_of(self.dtype))


@dataclass(frozen=True)
class Line:
    """One statement: the names that it defines, what it computes, and the catalogue's name for it."""

    targets: tuple[str, ...]
    text: str
    op: str

    @property
    def uses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(NAME.findall(self.text)))

    def __str__(self) -> str:
        return f"{', '.join(self.targets)} = {self.text}"


@dataclass(frozen=True)
class Program:
    """A function of tensors as text, and numbers to call it with."""

    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    special: bool = False  # whether NaN, infinities and extremes are among the numbers
    seed: int = -1

    @property
    def source(self) -> str:
        """The function as Python."""
        body = [f"    {line}" for line in self.lines] + [f"    return {', '.join(self.outputs)},"]
        return "\n".join([f"def f({', '.join(x.name for x in self.inputs)}):", *body])

    def function(self, scope: Mapping[str, Any] = SCOPE) -> Callable[..., Any]:
        """The function; a tuple of tensors comes out."""
        made = dict(scope)
        exec(compile(self.source, f"<program {self.seed}>", "exec"), made)
        return made["f"]  # type: ignore[no-any-return]

    @property
    def tensors(self) -> list[Any]:
        return [x.tensor for x in self.inputs]

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(line.op for line in self.lines)

    @property
    def may_cut(self) -> bool:
        """Whether slopes may lie on a branch cut of a complex function, whose side the last bits decide."""
        cut = {"acos", "asin", "acosh", "asinh", "atan", "atanh", "sqrt", "log", "pow", "angle"}
        return bool(set(self.ops) & cut) and bool(re.search(r"\bc(64|128)\b|complex", self.source))

    def pruned(self) -> Program:
        """Without what no output needs."""
        needed, lines = set(self.outputs), []
        for line in reversed(self.lines):
            if needed & set(line.targets):
                needed |= set(line.uses)
                lines.append(line)
        inputs = tuple(x for x in self.inputs if x.name in needed)
        return replace(self, inputs=inputs, lines=tuple(reversed(lines)))

    def __str__(self) -> str:
        shapes = [f"{x.name}: {x.dtype}{list(x.data.shape)}" for x in self.inputs]
        return f"seed {self.seed}, {', '.join(shapes)}\n{self.source}"


def dtype_of(text: str) -> Any:
    """The dtype that a text names."""
    return eval(text, dict(SCOPE))


def spelled(name: str) -> str:
    """How a program calls a function of the catalogue."""
    home, _, short = name.rpartition(".")
    return f"op.random.{short}" if home.startswith("random") or name in _RANDOM else f"op.{short}"


_RANDOM = frozenset(
    [
        "bernoulli",
        "beta",
        "bits",
        "categorical",
        "choice",
        "dirichlet",
        "exponential",
        "fold_in",
        "gumbel",
        "key",
        "laplace",
        "loggamma",
        "normal",
        "permutation",
        "poisson",
        "randint",
        "truncated_normal",
        "uniform",
    ]
)


def first_free(names: Iterable[str], letter: str) -> str:
    """A name that is not taken yet."""
    taken = {int(n[1:]) for n in names if n[0] == letter}
    return f"{letter}{max(taken, default=-1) + 1}"
