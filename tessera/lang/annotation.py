"""Annotations: Tensor["B", "S", 64, bf16 @ accum(f32)] states sizes and a dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from tessera.core.dims import Dim, Shape, symbols
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import AnnotationError, OperandError, TesseraError, located
from tessera.core.parse_sizes import parse_dim
from tessera.core.types import LARGEST_SIZE, TensorType, check_rank


@dataclass(frozen=True)
class TensorSpec:
    """What an annotation says of a tensor."""

    shape: Shape
    dtype: DType | None  # None: any

    def __str__(self) -> str:
        sizes = [repr(str(s)) if isinstance(s, Dim) else str(s) for s in self.shape]
        return f"Tensor[{', '.join([*sizes, *([str(self.dtype)] if self.dtype else [])])}]"

    __repr__ = __str__

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise located(
            OperandError(f"{self} is an annotation and makes no tensors; write ts.tensor(data)")
        )

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbolic sizes."""
        return frozenset().union(*(symbols(s) for s in self.shape))

    def type_for(self, name: str, actual: TensorType) -> TensorType:
        """The type to trace an argument of this actual type with."""
        if actual.rank != len(self.shape):
            raise AnnotationError(
                f"argument '{name}' is {actual} of rank {actual.rank}, expected {self}"
            )
        if self.dtype is not None and actual.dtype is not self.dtype:
            raise AnnotationError(
                f"argument '{name}' is {actual}, expected dtype {self.dtype} as in {self}; "
                f"cast it: {name}.astype({self.dtype})"
            )
        for i, (want, got) in enumerate(zip(self.shape, actual.shape, strict=True)):
            if isinstance(want, int) and isinstance(got, int) and want != got:
                raise AnnotationError(
                    f"argument '{name}' is {actual}: axis {i} is {got}, expected {want} as in {self}"
                )
        return TensorType(actual.dtype, self.shape)


def spec_of(items: tuple[Any, ...]) -> TensorSpec:
    """The annotation with these items: sizes, then at most one dtype."""
    try:
        *front, last = items or ("",)
        dtype = None
        if isinstance(last, DType) or last in (bool, int, float, complex):
            dtype, sizes = as_dtype(last), front
        else:
            sizes = list(items)
        return TensorSpec(check_rank("Tensor[...]", tuple(_size(s) for s in sizes)), dtype)
    except TesseraError as e:
        error = located(e)
    raise error


def _number(s: int) -> int:
    if s < 0:
        raise AnnotationError(f"Tensor[...]: size {s} is negative")
    if s > LARGEST_SIZE:
        raise AnnotationError(f"Tensor[...]: a size of {s.bit_length()} bits is beyond 2**63 - 1")
    return s


def _size(s: Any) -> Any:
    if isinstance(s, Dim):
        return s
    if isinstance(s, int) and not isinstance(s, bool):
        return _number(s)
    if isinstance(s, str):
        size = parse_dim(s)
        if isinstance(size, int):
            return _number(size)
        if any(name.startswith("_") for name in symbols(size)):
            raise AnnotationError(f"Tensor[...]: the name of a size cannot start with '_': {s!r}")
        return size
    if isinstance(s, DType):
        raise AnnotationError(f"Tensor[...]: the dtype {s} must come last")
    raise AnnotationError(f"Tensor[...]: {s!r} is neither a size nor a dtype")


@dataclass(frozen=True)
class StateSpec:
    """What an annotation says of a state: the tensors that some of its fields hold.  The state is linear."""

    spec: TensorSpec | None
    fields: tuple[str, ...]

    def check(self, name: str, state: Any, given: dict[str, Any]) -> None:
        """Refuse an argument that is not as its annotation says; the types are checked apart."""

    def stand_in(self, made: Callable[[TensorType], Any]) -> Any:
        """A state of values of the types that the annotation says, to be traced with."""
        raise OperandError(
            f"{self} says no shapes by itself; pass the state, such as opt.init(params)"
        )

    def __str__(self) -> str:
        return f"KVCache{str(self.spec).removeprefix('Tensor')}"

    __repr__ = __str__

    def types_for(self, name: str, paths: list[str], actual: list[TensorType]) -> list[TensorType]:
        """The types to trace the tensors of an argument with, reached by these paths."""
        assert self.spec is not None
        named = {f".{f}" for f in self.fields}
        if not named <= set(paths):
            raise AnnotationError(
                f"argument '{name}' has the tensors {', '.join(paths) or 'none'}, expected a cache as in "
                f"{self}"
            )
        return [
            self.spec.type_for(f"{name}{p}", t) if p in named else t
            for p, t in zip(paths, actual, strict=True)
        ]
