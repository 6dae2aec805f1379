"""Marks of states in annotations: KVCache["B", "H", "S", "D", bf16] @ rolling_window @ device(gpu).

A mark is a demand on the argument.  It is checked when a function is traced; an argument that does not meet
it is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.core.blame import brief
from tessera.core.device import Device
from tessera.core.dtype import f32
from tessera.core.errors import AnnotationError, OperandError, located
from tessera.ir.graph.ir import Value
from tessera.lang.annotation import StateSpec
from tessera.lang.device import as_device, device


@dataclass(frozen=True)
class Mark:
    """A demand on a state, by name, with a number for some."""

    name: str
    number: int | None = None

    def __call__(self, number: Any = None, *more: Any, **named: Any) -> Mark:
        if more or named or self.name != "rolling_window" or type(number) is not int or number < 1:
            given = ", ".join(brief(x) for x in (number, *more, *named.values()))
            raise located(
                OperandError(
                    f"{self.name}({given}): only rolling_window takes a number, that of the "
                    "positions a query sees"
                )
            )
        return Mark(self.name, number)

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name}({self.number})"

    __repr__ = __str__


rolling_window = Mark("rolling_window")
paged = Mark("paged")
fp32_master = Mark("fp32_master")
checkpointable = Mark("checkpointable")


def marked(spec: Any, mark: Any, known: tuple[Mark, ...]) -> tuple[Any, ...]:
    """The marks of an annotation with one more."""
    names = tuple(m.name for m in known)
    fits = isinstance(mark, device) or (isinstance(mark, Mark) and mark.name in names)
    if not fits:
        raise located(
            AnnotationError(
                f"{spec} @ {mark!r:.40}: expected one of {', '.join(names)}, device(...)"
            )
        )
    if str(mark) in map(str, spec.marks):
        raise located(AnnotationError(f"{spec} @ {mark}: the mark is given twice"))
    return (*spec.marks, mark)


def shown(marks: tuple[Any, ...]) -> str:
    """Marks as they are written."""
    return "".join(f" @ {m}" for m in marks)


def check_device(name: str, spec: Any, held: list[Value]) -> None:
    """The tensors of an argument lie where its annotation says."""
    for mark in spec.marks:
        if isinstance(mark, device):
            want: Device = as_device(mark.wanted)
            for v in held:
                if v.device != want:
                    raise AnnotationError(
                        f"argument '{name}' is on {v.device}, expected {want} as in {spec}; move it there "
                        "first: "
                        f"{name} = {name}.prefetch('{want}')"
                    )


# The states of optimisers -------------------------------------------------------------------------


@dataclass(frozen=True)
class OptimizerSpec(StateSpec):
    """What an annotation says of the state of an optimiser."""

    of: Any = None  # the name of the argument with the parameters, or the parameters
    marks: tuple[Any, ...] = ()

    def __str__(self) -> str:
        of = self.of if isinstance(self.of, str) else "..."
        return f"OptimizerState[{of}]{shown(self.marks)}"

    __repr__ = __str__

    def __matmul__(self, mark: Any) -> OptimizerSpec:
        marks = marked(self, mark, (fp32_master, paged, checkpointable))
        return OptimizerSpec(None, (), self.of, marks)

    def types_for(self, name: str, paths: list[str], actual: list[Any]) -> list[Any]:
        """The types to trace the tensors with: their own."""
        return actual

    def check(self, name: str, state: Any, given: dict[str, Any]) -> None:
        """The state belongs to the parameters and meets the marks."""
        params = self._params(name, given)
        if not isinstance(state, dict):
            raise AnnotationError(
                f"argument '{name}' is {type(state).__name__}, expected the state of an optimiser, as "
                "opt.init(params) "
                "gives"
            )
        masters = _belongs(self, name, state, params)
        names = {m.name for m in self.marks if isinstance(m, Mark)}
        if "fp32_master" in names:
            _check_masters(self, name, params, masters)
        if "paged" in names or "checkpointable" in names:
            _check_leaves(self, name, state, "paged" in names)

    def _params(self, name: str, given: dict[str, Any]) -> Any:
        if not isinstance(self.of, str):
            return self.of
        if self.of not in given:
            raise AnnotationError(
                f"argument '{name}' is annotated {self}, but there is no argument '{self.of}'; there are "
                f"{', '.join(given)}"
            )
        return given[self.of]


def _belongs(spec: Any, name: str, state: dict[str, Any], params: Any) -> list[Any]:
    """The masters in a state, once every part of it has the structure of the parameters."""
    structure, found = tree.flatten(params)[1], []
    for key, part in state.items():
        if isinstance(part, dict) and ("step" in part or "inner" in part):
            found += _belongs(spec, f"{name}[{key!r}]", part, params)
        elif tree.structure(part).kind is not None and isinstance(part, type(params)):
            held = tree.parts(structure, part)
            if held is None:
                raise AnnotationError(
                    f"{key!r} of argument '{name}' is {tree.structure(part)}, expected {structure} as in "
                    f"{spec}; make "
                    "the state anew: opt.init(params)"
                )
            _check_shapes(spec, name, key, held, tree.leaves(params))
            found += held if key == "master" else []
    return found


def _check_shapes(spec: Any, name: str, key: str, held: list[Any], params: list[Any]) -> None:
    for h, p in zip(held, params, strict=True):
        if key in ("master", "velocity", "mean") and h is not None and h.shape != p.shape:
            raise AnnotationError(
                f"{key!r} of argument '{name}' has {h.type} for a parameter {p.type} in {spec}; make the "
                "state anew: "
                "opt.init(params)"
            )


def _check_masters(spec: Any, name: str, params: Any, masters: list[Any]) -> None:
    leaves = tree.leaves(params)
    kept = masters or [None] * len(leaves)
    for p, m in zip(leaves, kept, strict=False):
        narrow = p.dtype.kind == "f" and p.dtype.bits < f32.bits
        if narrow and (m is None or m.dtype is not f32):
            raise AnnotationError(
                f"argument '{name}' has no f32 master for a parameter {p.type}, as {spec} wants; make the "
                "state with an "
                "optimiser of ts.optim, which keep one"
            )


def _check_leaves(spec: Any, name: str, state: Any, host: bool) -> None:
    leaves, structure = tree.flatten(state)
    for path, x in zip(tree.structure_paths(structure, name), leaves, strict=True):
        if not isinstance(x, Value) and not isinstance(x, bool | int | float):
            raise AnnotationError(
                f"{path} is {type(x).__name__}, which ts.save cannot write, as {spec} wants; keep tensors "
                "and numbers in "
                "the state"
            )
        if host and isinstance(x, Value) and x.device.kind != "cpu":
            raise AnnotationError(
                f"{path} is on {x.device}, expected memory of the host as in {spec}; a step on another "
                "device fetches "
                f"its state itself: keep {name} with .to('cpu') between steps"
            )


class OptimizerState:
    """The annotation of an optimiser's state: OptimizerState["params"] @ fp32_master @ paged @
    checkpointable.
    """

    def __class_getitem__(cls, of: Any) -> OptimizerSpec:
        return OptimizerSpec(None, (), of)
