"""Inline assembly: an instruction or a few, by target, under a contract that says what they compute.

A contract has a name, the dtypes that go in and come out, a text for each target, and a reference: a function
of NumPy arrays that says what the text means.  Interpreters run the reference, targets run their text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dtype import DType
from tessera.core.errors import OperandError, VerifyError

PREFIX = "asm."
# The register that holds an operand of a dtype, by target: what LLVM and PTX call it.
REGISTERS: Mapping[str, Mapping[str, str]] = {
    "x86_64": {"f32": "x", "f64": "x", "i32": "r", "i64": "r", "u32": "r", "u64": "r"},
    "aarch64": {"f32": "w", "f64": "w", "i32": "r", "i64": "r", "u32": "r", "u64": "r"},
    "ptx": {"f32": "f", "f64": "d", "i32": "r", "i64": "l", "u32": "r", "u64": "l"},
    "amdgcn": {"f32": "v", "f64": "v", "i32": "v", "i64": "v", "u32": "v", "u64": "v"},
}
_GIVEN = re.compile(r"\$(\d+)|\$\{(\d+)[^}]*\}")


@dataclass(frozen=True, eq=False)
class Contract:
    """What a piece of assembly promises: pure, total, and equal to its reference up to `within`."""

    name: str
    takes: tuple[DType, ...]
    gives: DType
    texts: Mapping[str, str]  # by target: $0 is the result, $1 the first operand
    clobbers: tuple[str, ...]
    reference: Callable[..., Any]
    within: float  # how far the text may be from the reference, relative
    like: str | None  # the scalar op whose derivative it has

    @property
    def scalar(self) -> str:
        """The name under which Tile IR applies it: another text has another name."""
        said = repr((self.takes, self.gives, sorted(self.texts.items()), self.clobbers))
        return f"{PREFIX}{self.name}.{hashlib.sha256(said.encode()).hexdigest()[:12]}"

    def constraints(self, target: str) -> str:
        """Where result and operands are, as LLVM writes it; the result has a register of its own."""
        kinds, alone = REGISTERS[target], "" if target == "ptx" else "&"
        lost = [f"~{{{c}}}" for c in self.clobbers]
        made = f"={alone}{kinds[self.gives.name]}"
        return ",".join([made, *(kinds[d.name] for d in self.takes), *lost])

    def evaluate(self, xs: Sequence[Any]) -> Any:
        """What the reference gives, in the dtype that was promised."""
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        y = np.asarray(self.reference(*xs))
        if y.shape != shape:
            raise OperandError(
                f"assembly {self.name}: its reference gives shape {y.shape} for operands of shape {shape}; "
                "it works on every element alone"
            )
        return y.astype(self.gives.np)

    def lacks(self, target: str) -> str | None:
        """Why a target cannot run it."""
        if target in self.texts:
            return None
        known = ", ".join(self.texts) or "no target"
        return f"assembly {self.name} has a text for {known}, none for {target}"


CONTRACTS: dict[str, Contract] = {}  # by the name in Tile IR


def contract(
    name: Any, takes: Sequence[Any], gives: Any, texts: Mapping[str, Any], clobbers: Sequence[str],
    reference: Any, within: Any, like: str | None = None,
) -> Contract:  # fmt: skip
    """A contract, after its parts are looked at."""
    what = f"assembly {name}"
    if not (isinstance(name, str) and name.isidentifier()):
        raise OperandError(f"assembly: the name is {name!r}, expected a word")
    for d in (*takes, gives):
        if not isinstance(d, DType) or d.name not in REGISTERS["ptx"]:
            known = ", ".join(REGISTERS["ptx"])
            raise OperandError(f"{what}: takes and gives {known}, got {d}; cast before and after")
    if not takes:
        raise OperandError(f"{what}: takes nothing, expected one dtype at least")
    if not callable(reference):
        raise OperandError(
            f"{what}: reference is {reference!r}, expected a function of NumPy arrays"
        )
    if not isinstance(within, int | float) or isinstance(within, bool) or not within >= 0:
        raise OperandError(f"{what}: within is {within!r}, expected a number of 0 or more")
    for target, text in texts.items():
        _check_text(f"{what}, {target}", text, len(takes))
    made = Contract(
        name, tuple(takes), gives, dict(texts), tuple(clobbers), reference, float(within), like
    )
    CONTRACTS[made.scalar] = made
    return made


def _check_text(what: str, text: Any, operands: int) -> None:
    if not isinstance(text, str) or not text.strip():
        raise OperandError(f"{what}: the text is {text!r}, expected a string of instructions")
    used = {int(a or b) for a, b in _GIVEN.findall(text.replace("$$", ""))}
    if used and max(used) > operands:
        raise OperandError(
            f"{what}: ${max(used)} is used, and there are {operands} operands, $1 to ${operands}"
        )
    if 0 not in used:
        raise OperandError(f"{what}: $0, the result, is not written")


def found(scalar: str) -> Contract:
    """The contract of a name in Tile IR."""
    made = CONTRACTS.get(scalar)
    if made is None:
        raise VerifyError(
            f"apply: {scalar} is inline assembly that this process has not defined by kernel.assembly"
        )
    return made


def result_dtype(scalar: str, dtypes: Sequence[DType]) -> DType:
    """What a piece of assembly gives for operands of these dtypes."""
    c = found(scalar)
    if tuple(dtypes) != c.takes:
        got, want = (", ".join(map(str, x)) for x in (dtypes, c.takes))
        raise VerifyError(f"assembly {c.name}: got {got}, expected {want}")
    return c.gives
