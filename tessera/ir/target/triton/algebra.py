"""The primitives of approximations as lines of Triton."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager

from tessera.core.approximate.algebra import F32, BinaryFormat

_TEMPLATES = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{divide}",
    "fma": "tl.fma({0}, {1}, {2})",
    "neg": "{0} * -1.0",  # Triton's sign would subtract from 0
    "abs": "tl.abs({0})",
    "sqrt": "{root}",
    "floor": "tl.floor({0})",
    "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",
    "round": "round_even({0}, {magic})",
    "copysign": "copy_sign({0}, {1}, {i}, {f}, {most})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "where": "tl.where({0}, {1}, {2})",
    "bits": "{0}.to({i}, bitcast=True)",
    "int_real": "{0}.to({f})",
    "int_from_bits": "{0}.to({f}, bitcast=True)",
    "int_add": "{0} + {1}",
    "int_sub": "{0} - {1}",
    "int_and": "{0} & {1}",
    "int_or": "{0} | {1}",
    "int_left": "{0} << {1}",
    "int_right": "{0} >> {1}",
    "int_lt": "{0} < {1}",
    "int_eq": "{0} == {1}",
    "int_where": "tl.where({0}, {1}, {2})",
    "mask_and": "{0} & {1}",
    "mask_or": "{0} | {1}",
    "mask_not": "{0} == 0",
}
HELPERS = {
    "copy_sign": """
@triton.jit
def copy_sign(x, y, i: tl.constexpr, f: tl.constexpr, most: tl.constexpr):
    size = x.to(i, bitcast=True) & most
    sign = y.to(i, bitcast=True) & (-most - 1)
    return (size | sign).to(f, bitcast=True)
""",
    # A number has no axis to fold; one beside it has.
    "holds_anywhere": """
@triton.jit
def holds_anywhere(x):
    return tl.max(x.to(tl.int32) + tl.zeros((1,), tl.int32)) > 0
""",
    # Adding the number from which on there are no fractions rounds to nearest even.
    "round_even": """
@triton.jit
def round_even(x, magic: tl.constexpr):
    size = tl.abs(x)
    near = (size + magic) - magic
    signed = tl.where(x < 0, -near, tl.where(near == 0, x * 0.0, near))
    return tl.where(size < magic, signed, x)
""",
}


Branch = Callable[[str], AbstractContextManager[Callable[[str], None]]]


class TritonAlgebra:
    """Writes primitives; a value is the name of a variable.

    `put` writes a line and gives its variable; `constant` does so once for a number and its type;
    `branch`, where there can be one, writes what follows behind a condition.
    """

    def __init__(
        self,
        put: Callable[[str], str],
        constant: Callable[[str, str], str],
        format: BinaryFormat,
        used: dict[str, None],
        branch: Branch | None = None,
    ):
        self.put, self.constant, self.format, self.used = put, constant, format, used
        self.branch = branch
        single = format is F32
        self.words = {
            "f": "tl.float32" if single else "tl.float64",
            "i": "tl.int32" if single else "tl.int64",
            "most": str((1 << format.bits - 1) - 1),
            "magic": repr(float(2**format.fraction)),
        }

    def real(self, value: float) -> str:
        """A constant, rounded to the format."""
        if self.format is F32:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        return self.constant(literal(value), self.words["f"])

    def integer(self, value: int) -> str:
        """An integer constant."""
        return self.constant(str(value), self.words["i"])

    def apply(self, operation: str, *operands: str) -> str:
        """One operation."""
        x, y = (*operands, "", "")[:2]
        words = self.words | {"divide": divide(x, y, self.format), "root": root(x, self.format)}
        name = {"copysign": "copy_sign", "round": "round_even"}.get(operation)
        if name is not None:
            self.used[name] = None
        return self.put(_TEMPLATES[operation].format(*operands, **words))

    def lookup(self, table: tuple[float, ...], index: str) -> str:
        """table[index]: one entry after the other, since Triton has no constant memory."""
        found = self.real(table[-1])
        for i, x in reversed(list(enumerate(table[:-1]))):
            found = self.put(f"tl.where({index} == {i}, {self.real(x)}, {found})")
        return found

    def rare(
        self, condition: str, slow: Callable[[], tuple[str, ...]], usual: tuple[str, ...]
    ) -> tuple[str, ...]:
        """slow() where the condition holds: a branch that a block takes where it holds anywhere in a tile."""
        if self.branch is None:
            pairs = zip(slow(), usual, strict=True)
            return tuple(self.put(f"tl.where({condition}, {x}, {y})") for x, y in pairs)
        self.used["holds_anywhere"] = None
        made = tuple(self.put(f"tl.where({condition}, {y}, {y})") for y in usual)  # in its shape
        with self.branch(f"holds_anywhere({condition})") as write:
            for name, x in zip(made, slow(), strict=True):
                write(f"{name} = tl.where({condition}, {x}, {name})")
        return made


def literal(value: float) -> str:
    """A float as Python writes it, inside Triton too."""
    return repr(value) if abs(value) < float("inf") else f'float("{value}")'


def divide(x: str, y: str, format: BinaryFormat) -> str:
    """A quotient, rounded correctly."""
    return f"tl.div_rn({x}, {y})" if format is F32 else f"{x} / {y}"


def root(x: str, format: BinaryFormat) -> str:
    """A square root, rounded correctly."""
    return f"tl.sqrt_rn({x})" if format is F32 else f"tl.sqrt({x})"
