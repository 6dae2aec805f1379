"""ts.stablehlo.load: the text of a StableHLO module as a function of tensors.

Ops go by the rules that functions of JAX go by, since their meaning is that of JAX's primitives; what only
StableHLO has (regions that say how to fold, compare or write) is in `reading`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, ShapeError, TesseraError, TreeError, located
from tessera.core.types import TensorType
from tessera.interop.stablehlo.reading import RULES
from tessera.interop.stablehlo.reading.table import OpFrame
from tessera.interop.stablehlo.text import parse
from tessera.interop.stablehlo.tree import HloFunction, HloModule, HloOp, HloRegion
from tessera.interop.stablehlo.writer import StableHloError
from tessera.ir.graph.ir import Value
from tessera.ops.define import as_value, cast_to

# What a rule raises on attributes that do not fit.
_MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError)
_DEEPEST = 100  # calls of functions inside functions


class _HloScope(OpFrame):
    """Names and their values, inside of the scope around them."""

    def __init__(self, module: HloModule, depth: int = 0, outer: _HloScope | None = None):
        self.module, self.depth, self.outer = module, depth, outer
        self.values: dict[str, Value] = {}

    def find(self, name: str) -> Value:
        scope: _HloScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise StableHloError(f"stablehlo: {name} is used before an op makes it")

    def run(self, region: HloRegion, args: Sequence[Any]) -> list[Value]:
        inner = _HloScope(self.module, self.depth, self)
        return _evaluate(inner, region, args)

    def call(self, name: str, args: Sequence[Any]) -> list[Value]:
        if name not in self.module.functions:
            raise StableHloError(f"stablehlo: the module has no function '{name}'")
        if self.depth >= _DEEPEST:
            raise StableHloError(
                f"stablehlo: functions call each other deeper than {_DEEPEST} levels"
            )
        inner = _HloScope(self.module, self.depth + 1)
        return _evaluate(inner, self.module.functions[name].body, args)


def _evaluate(scope: _HloScope, region: HloRegion, args: Sequence[Any]) -> list[Value]:
    if len(region.arguments) != len(args):
        raise StableHloError(f"stablehlo: {len(args)} values for {len(region.arguments)} arguments")
    scope.values.update(zip(region.arguments, args, strict=True))
    for op in region.ops:
        if op.name in ("stablehlo.return", "func.return"):
            return [scope.find(x) for x in op.operands]
        found = _applied(scope, op)
        results = found if isinstance(found, list | tuple) else [found]
        if len(results) != len(op.results):
            raise StableHloError(f"stablehlo: line {op.line}: {op.name} has {len(results)} results")
        scope.values.update(zip(op.results, results, strict=True))
    raise StableHloError("stablehlo: a region ends without a return")


def _applied(scope: _HloScope, op: HloOp) -> Any:
    rule = RULES.get(op.name)
    if rule is None:
        raise StableHloError(f"stablehlo: line {op.line}: there is no rule for {op.name}")
    args = [scope.find(x) for x in op.operands]
    try:
        return rule(scope, op, *args)
    except StableHloError:
        raise
    except TesseraError as e:
        raise StableHloError(f"stablehlo: line {op.line}: {op.name}: {e.message}") from None
    except _MISFITS as e:
        what = f"{type(e).__name__}: {e}".partition("\n")[0]
        raise StableHloError(
            f"stablehlo: line {op.line}: {op.name} cannot take its operands or attributes ({what})"
        ) from None


class StableHloModule:
    """A StableHLO module as a function of its arguments in order, for jit, grad and vmap."""

    def __init__(self, module: HloModule, main: HloFunction):
        self._module, self._main = module, main
        self.name = module.name
        self.inputs: tuple[TensorType, ...] = main.inputs
        self.outputs: tuple[TensorType, ...] = main.outputs

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, t)) for t in (self.inputs, self.outputs))
        return f"<StableHloModule {self.name}: ({ins}) -> ({outs})>"

    def __call__(self, *args: Any) -> Any:
        """The result, or a tuple of them."""
        try:
            found = self._run(args)
        except TesseraError as e:
            error = located(e)
        else:
            return found[0] if len(found) == 1 else tuple(found)
        raise error

    def _run(self, args: Sequence[Any]) -> list[Value]:
        if len(args) != len(self.inputs):
            raise TreeError(f"{self.name}: got {len(args)} arguments, expected {len(self.inputs)}")
        values = [
            self._value(i, x, t) for i, (x, t) in enumerate(zip(args, self.inputs, strict=True))
        ]
        return _HloScope(self._module).call(self._main.name, values)

    def _value(self, i: int, x: Any, wanted: TensorType) -> Value:
        v = as_value(x, self.name)
        if v.shape != wanted.shape:
            raise ShapeError(
                f"{self.name}: argument {i} is {v.type}, but the module takes {wanted}"
            )
        if isinstance(x, int | float | complex):
            return cast_to(v, wanted.dtype)
        if v.dtype is not wanted.dtype:
            raise OperandError(
                f"{self.name}: argument {i} is {v.type}, but the module takes {wanted}; cast it with astype"
            )
        return v


@blames_arguments
def load(source: str | Path) -> StableHloModule:
    """A StableHLO module, given as its text or as the path of a file, as a function of tensors."""
    if isinstance(source, Path):
        text = source.read_text()
    elif isinstance(source, str):
        text = source
    else:
        raise OperandError(
            f"stablehlo.load: got {type(source).__name__}, expected the text of a module or a Path; for a "
            "function of JAX pass jax.jit(f).lower(*args).as_text()"
        )
    try:
        module = parse(text)
        main = module.functions.get("main") or next(iter(module.functions.values()))
        _check(module)
        return StableHloModule(module, main)
    except TesseraError as e:
        error = located(e)
    raise error


def _check(module: HloModule) -> None:
    """Every op has a rule."""

    def walk(region: HloRegion) -> None:
        for op in region.ops:
            if op.name not in RULES and op.name not in ("stablehlo.return", "func.return"):
                raise StableHloError(f"stablehlo: line {op.line}: there is no rule for {op.name}")
            for inner in op.regions:
                walk(inner)

    for f in module.functions.values():
        walk(f.body)
