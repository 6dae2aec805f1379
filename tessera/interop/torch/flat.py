"""A function of ours on a flat list of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.interop.torch.exchange import from_torch, is_torch, to_torch
from tessera.ir.graph.ir import Value
from tessera.lang.create import asarray
from tessera.lang.jit import Jitted
from tessera.lang.transforms import jvp, vjp
from tessera.lang.vmap import vmap

PLACE = object()  # where a tensor goes among other arguments


def is_differentiable(t: TensorType) -> bool:
    """Whether derivatives flow through tensors of a type."""
    return t.dtype.kind in "fc"


class Flat:
    """A jitted function of tensors in order; `structure` is that of what it returned last."""

    def __init__(self, f: Callable[..., Any], name: str):
        self.name, self.program = name, Jitted(_named(f, name))
        self.traced = f
        self.structure: tree.Structure | None = None
        self._others: dict[tuple[str, tuple[Any, ...]], Flat] = {}

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The results for tensors of PyTorch, as such in memory of their own."""
        given = [from_torch(x) for x in tensors]
        leaves, self.structure = tree.flatten(self.program(*given))
        return [to_torch(v) for v in owned(given, [_result(x) for x in leaves])]

    def pullback(self, wanted: tuple[bool, ...]) -> Flat:
        """The function from the inputs and the cotangents of the outputs to those of the wanted inputs."""
        return self._other("pullback", wanted, self._pulled)

    def pushforward(self, wanted: tuple[bool, ...]) -> Flat:
        """The function from the inputs and the tangents of the wanted ones to the tangents of the outputs."""
        return self._other("pushforward", wanted, self._pushed)

    def batched(self, axes: tuple[int | None, ...]) -> Flat:
        """The function of batches along these axes of the inputs; results have theirs in front."""
        return self._other("batched", axes, lambda axes: vmap(self.traced, axes))

    def _other(
        self, what: str, key: tuple[Any, ...], make: Callable[[Any], Callable[..., Any]]
    ) -> Flat:
        if (what, key) not in self._others:
            self._others[what, key] = Flat(make(key), f"{self.name}.{what}")
        return self._others[what, key]

    def _pulled(self, wanted: tuple[bool, ...]) -> Callable[..., Any]:
        def pulled(*args: Any) -> list[Any]:
            f, moved = self._of_wanted(wanted, args[: len(wanted)])
            _, pull = vjp(f, *moved)
            return list(pull(args[len(wanted) :]))

        return pulled

    def _pushed(self, wanted: tuple[bool, ...]) -> Callable[..., Any]:
        def pushed(*args: Any) -> list[Any]:
            f, moved = self._of_wanted(wanted, args[: len(wanted)])
            return list(jvp(f, moved, tuple(args[len(wanted) :]))[1])

        return pushed

    def _of_wanted(
        self, wanted: tuple[bool, ...], args: Sequence[Any]
    ) -> tuple[Callable[..., tuple[Any, ...]], tuple[Any, ...]]:
        """The differentiable results as a function of the wanted inputs alone, and those inputs."""
        at = [i for i, w in enumerate(wanted) if w]

        def f(*moved: Any) -> tuple[Any, ...]:
            xs = list(args)
            for i, x in zip(at, moved, strict=True):
                xs[i] = x
            found = tree.leaves(self.traced(*xs))
            return tuple(v for v in found if is_differentiable(_result(v).type))

        return f, tuple(args[i] for i in at)


def _named(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    def run(*xs: Any) -> Any:
        return f(*xs)

    run.__name__ = name
    return run


def _result(x: Any) -> Value:
    return x if isinstance(x, Value) else asarray(x)


def owned(given: Sequence[Value], found: Sequence[Any]) -> list[Any]:
    """Results that share no memory with the arguments or with each other; what shares is copied."""
    taken = [v.storage for v in given if isinstance(v.storage, np.ndarray)]
    made: list[Any] = []
    for v in found:
        data = v.storage
        if isinstance(data, np.ndarray) and data.size:
            if any(np.may_share_memory(data, x) for x in taken):
                v = asarray(np.array(data), v.dtype)
            taken.append(v.storage)
        made.append(v)
    return made


def leaves_of(name: str, args: Any) -> tuple[list[Any], list[Any], tree.Structure]:
    """The tensors among the leaves of arguments, the leaves with PLACE in theirs, and the structure."""
    leaves, structure = tree.flatten(args)
    tensors = [x for x in leaves if is_torch(x)]
    rest = [PLACE if is_torch(x) else x for x in leaves]
    for x in rest:
        if isinstance(x, Value):
            raise OperandError(
                f"{name}: got a tensor of Tessera {x.type}, expected tensors of PyTorch; call the function "
                "itself, "
                "or pass ts.torch.to_torch(x)"
            )
    return tensors, rest, structure
