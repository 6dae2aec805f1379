"""StableHLO text as it is written: values, types, constants, ops in MLIR's generic form, regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dtype import DType, as_dtype, bool_, i64
from tessera.core.errors import TesseraError
from tessera.ir.graph.ir import Value

Shape = tuple[int, ...]
_LISTED = 16  # elements up to which a constant is written as numbers; more are hexadecimal


class StableHloError(TesseraError, ValueError):
    """What StableHLO cannot say."""


_ELEMENTS = {
    "bool": "i1", "i4": "i4", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64",
    "u8": "ui8", "u16": "ui16", "u32": "ui32", "u64": "ui64",
    "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64", "f8e4m3": "f8E4M3FN", "f8e5m2": "f8E5M2",
    "c64": "complex<f32>", "c128": "complex<f64>",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ssa:
    """A value of the text: its name and type."""

    name: str
    dtype: DType
    shape: Shape

    @property
    def type(self) -> str:
        """The type as MLIR writes it."""
        return type_text(self.dtype, self.shape)


def type_text(dtype: DType, shape: Sequence[int]) -> str:
    """tensor<2x3xf32>."""
    if dtype.name not in _ELEMENTS:
        raise StableHloError(f"stablehlo: there is no StableHLO type for {dtype}")
    return f"tensor<{''.join(f'{n}x' for n in shape)}{_ELEMENTS[dtype.name]}>"


def ints(numbers: Sequence[int]) -> str:
    """An attribute of whole numbers."""
    return f"array<i64: {', '.join(map(str, numbers))}>" if len(numbers) else "array<i64>"


def listed(numbers: Sequence[int]) -> str:
    """Whole numbers in brackets."""
    return f"[{', '.join(map(str, numbers))}]"


class StableHloWriter:
    """The body of a function under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[Value, Ssa] = {}
        self._count = 0
        self._depth = 2
        self._constants: list[dict[Any, Ssa]] = [{}]

    def fresh(self, dtype: DType, shape: Sequence[int]) -> Ssa:
        """A value with a name that nothing has."""
        self._count += 1
        return Ssa(f"%{self._count}", dtype.base, tuple(shape))

    def line(self, text: str) -> None:
        """Append a line at the depth of the region."""
        self.lines.append("  " * self._depth + text)

    def many(
        self,
        op: str,
        operands: Sequence[Ssa],
        types: Sequence[tuple[DType, Sequence[int]]],
        properties: Mapping[str, str] | None = None,
        regions: Sequence[str] = (),
    ) -> list[Ssa]:
        """Append an op of several results."""
        out = [self.fresh(d, s) for d, s in types]
        held = ", ".join(f"{k} = {v}" for k, v in (properties or {}).items())
        left = f"{out[0].name}:{len(out)} = " if len(out) > 1 else f"{out[0].name} = "
        names, ins = (
            ", ".join(x) for x in ([v.name for v in operands], [v.type for v in operands])
        )
        result = ", ".join(v.type for v in out)
        body = f" ({', '.join(regions)})" if regions else ""
        self.line(
            f'{left}"{op}"({names}){f" <{{{held}}}>" if held else ""}{body} : ({ins}) -> '
            + (f"({result})" if len(out) != 1 else result)
        )
        if len(out) > 1:
            return [Ssa(f"{out[0].name}#{i}", v.dtype, v.shape) for i, v in enumerate(out)]
        return out

    def op(
        self,
        name: str,
        *operands: Ssa,
        dtype: DType | None = None,
        shape: Sequence[int] | None = None,
        properties: Mapping[str, str] | None = None,
        regions: Sequence[str] = (),
    ) -> Ssa:
        """Append an op of one result, of the type of the first operand unless given."""
        name = name if "." in name else f"stablehlo.{name}"
        to = operands[0].dtype if dtype is None else dtype
        sizes = operands[0].shape if shape is None else shape
        return self.many(name, operands, [(to, sizes)], properties, regions)[0]

    @contextmanager
    def _inside(self) -> Iterator[list[str]]:
        outer, self.lines = self.lines, []
        self._depth += 1
        self._constants.append({})
        try:
            yield self.lines
        finally:
            self._constants.pop()
            self._depth -= 1
            self.lines = outer

    def region(
        self,
        types: Sequence[tuple[DType, Sequence[int]]],
        body: Callable[..., Sequence[Ssa]],
        end: str = "stablehlo.return",
    ) -> str:
        """The text of a region: the block of a function of values."""
        args = [self.fresh(d, s) for d, s in types]
        with self._inside() as lines:
            out = body(*args)
            names, ins = ", ".join(v.name for v in out), ", ".join(v.type for v in out)
            self.line(f'"{end}"({names}) : ({ins}) -> ()')
        pad = "  " * self._depth
        head = f"{pad}^bb0({', '.join(f'{a.name}: {a.type}' for a in args)}):\n" if args else ""
        return "{\n" + head + "\n".join(lines) + "\n" + pad + "}"

    # Constants

    def constant(self, data: Any, dtype: DType | None = None) -> Ssa:
        """The given data; equal ones are written once in a region."""
        array = np.asarray(data)
        d = as_dtype(array.dtype) if dtype is None else dtype.base
        array = array.astype(d.np, copy=False)
        key = (d, array.shape, array.tobytes())
        found = self._constants[-1].get(key)
        if found is None:
            value = f"dense<{_elements(array, d)}> : {type_text(d, array.shape)}"
            (found,) = self.many("stablehlo.constant", [], [(d, array.shape)], {"value": value})
            self._constants[-1][key] = found
        return found

    def full(self, number: Any, dtype: DType, shape: Sequence[int]) -> Ssa:
        """A tensor of one number."""
        x = self.constant(np.asarray(number).astype(dtype.np), dtype)
        return self.broadcast(x, shape, ())

    def like(self, number: Any, x: Ssa) -> Ssa:
        """A tensor of one number with the type of x."""
        return self.full(number, x.dtype, x.shape)

    # Shapes

    def broadcast(self, x: Ssa, shape: Sequence[int], dims: Sequence[int]) -> Ssa:
        """x with axis i at axis dims[i] of the result."""
        if x.shape == tuple(shape):
            return x
        return self.op(
            "broadcast_in_dim", x, shape=shape, properties={"broadcast_dimensions": ints(dims)}
        )

    def reshape(self, x: Ssa, shape: Sequence[int]) -> Ssa:
        """x in another shape."""
        return x if x.shape == tuple(shape) else self.op("reshape", x, shape=shape)

    def transpose(self, x: Ssa, order: Sequence[int]) -> Ssa:
        """x with its axes in another order."""
        if tuple(order) == tuple(range(len(x.shape))):
            return x
        shape = [x.shape[a] for a in order]
        return self.op("transpose", x, shape=shape, properties={"permutation": ints(order)})

    def slice(self, x: Ssa, start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> Ssa:
        """The part of x from start up to stop."""
        ends = zip(start, stop, step, strict=True)
        shape = [max(-(-(b - a) // s), 0) for a, b, s in ends]
        held = {"start_indices": ints(start), "limit_indices": ints(stop), "strides": ints(step)}
        return self.op("slice", x, shape=shape, properties=held)

    def concat(self, xs: Sequence[Ssa], axis: int) -> Ssa:
        """Tensors end to end."""
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        return self.op("concatenate", *xs, shape=shape, properties={"dimension": f"{axis} : i64"})

    def iota(self, shape: Sequence[int], axis: int, dtype: DType = i64) -> Ssa:
        """Each element's own index along an axis."""
        held = {"iota_dimension": f"{axis} : i64"}
        return self.many("stablehlo.iota", [], [(dtype, shape)], held)[0]

    # Arithmetic

    def cast(self, x: Ssa, dtype: DType) -> Ssa:
        """x in another dtype; the real part of a complex number."""
        to = dtype.base
        if x.dtype is to:
            return x
        if x.dtype.kind == "c" and to.kind not in "cb":
            x = self.op("real", x, dtype=x.dtype.real)
        if to is bool_:
            return self.compare("NE", x, self.like(0, x))
        return x if x.dtype is to else self.op("convert", x, dtype=to)

    def compare(self, way: str, a: Ssa, b: Ssa) -> Ssa:
        """A comparison: EQ, NE, LT, LE, GT or GE."""
        kind = {"f": "FLOAT", "c": "FLOAT", "i": "SIGNED"}.get(a.dtype.kind, "UNSIGNED")
        held = {
            "comparison_direction": f"#stablehlo<comparison_direction {way}>",
            "compare_type": f"#stablehlo<comparison_type {kind}>",
        }
        return self.op("compare", a, b, dtype=bool_, properties=held)

    def select(self, test: Ssa, a: Ssa, b: Ssa) -> Ssa:
        """a where the test holds, else b."""
        return self.op("select", test, a, b, dtype=a.dtype, shape=a.shape)

    def reduce(
        self, x: Ssa, axes: Sequence[int], start: Any, fold: Callable[[Ssa, Ssa], Ssa]
    ) -> Ssa:
        """A fold over axes."""
        shape = [n for a, n in enumerate(x.shape) if a not in axes]
        body = self.region([(x.dtype, ())] * 2, lambda a, b: [fold(a, b)])
        first = self.constant(np.asarray(start).astype(x.dtype.np), x.dtype)
        held = {"dimensions": ints(sorted(axes))}
        return self.op("reduce", x, first, shape=shape, properties=held, regions=[body])


def _elements(array: np.ndarray[Any, Any], dtype: DType) -> str:
    """The elements of a constant between dense< and >."""
    if array.size == 0:
        return ""
    if array.size <= _LISTED or dtype is bool_:
        return _nested(array, dtype)
    raw = np.ascontiguousarray(array)
    return f'"0x{raw.tobytes().hex().upper()}"'


def _nested(array: np.ndarray[Any, Any], dtype: DType) -> str:
    if array.ndim == 0:
        return _element(array, dtype)
    return f"[{', '.join(_nested(a, dtype) for a in array)}]"


def _element(x: Any, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if x else "false"
    if dtype.kind in "iu":
        return str(int(x))
    if dtype.kind == "c":
        return f"({_element(x.real, dtype.real)}, {_element(x.imag, dtype.real)})"
    number = np.asarray(x, dtype.np)
    if np.isfinite(number.astype(np.float64)):
        return f"{float(number):.17e}"
    return "0x" + number.tobytes()[::-1].hex().upper()
