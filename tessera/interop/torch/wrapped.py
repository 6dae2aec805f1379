"""ts.torch.wrap: a function of ours that PyTorch calls, maps and differentiates, any number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, update_wrapper
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.statics import static_key
from tessera.interop.torch.flat import PLACE, Flat, leaves_of
from tessera.interop.torch.library import torch


@blames_arguments
def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, jitted, as a function on trees of PyTorch's tensors, through which autograd goes, twice too.

    Tensors cross without a copy.  Numbers, strings and None among the arguments are constants of f.
    """
    demand_function("torch.wrap", f)
    name = getattr(f, "__name__", "function")
    flats: dict[Any, Flat] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            tensors, rest, structure = leaves_of(name, (args, kwargs))
            key = (
                tree.token(structure),
                static_key(tuple((i, x) for i, x in enumerate(rest) if x is not PLACE)),
            )
            flat = flats.get(key)
            if flat is None:
                flat = flats[key] = Flat(_merged(f, rest, structure), name)
            return _applied(flat, tensors)
        except TesseraError as e:
            error = located(e)
        raise error

    update_wrapper(call, f)
    return torch().compiler.disable(call)  # type: ignore[no-any-return]


def _merged(f: Callable[..., Any], rest: list[Any], structure: tree.Structure) -> Any:
    """f on the tensors alone."""
    empty = sum(x is PLACE for x in rest)

    def merged(*xs: Any) -> Any:
        assert len(xs) == empty, (len(xs), empty)
        given = iter(xs)
        args, kwargs = tree.unflatten(structure, [next(given) if x is PLACE else x for x in rest])
        return f(*args, **kwargs)

    return merged


def _applied(flat: Flat, tensors: list[Any]) -> Any:
    found = _leaves(flat, tensors)
    assert flat.structure is not None
    return tree.unflatten(flat.structure, found)


def _leaves(flat: Flat, tensors: Sequence[Any]) -> list[Any]:
    """The results of a Flat, recorded where PyTorch differentiates or maps."""
    t = torch()
    recorded = t.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if recorded or t._C._are_functorch_transforms_active() or _has_tangents(t, tensors):
        return list(_function().apply(flat, *tensors))
    return list(flat(tensors))


def _has_tangents(t: Any, tensors: Sequence[Any]) -> bool:
    """Whether a level of forward mode is open, and a tensor has a tangent in it."""
    forward = t.autograd.forward_ad
    if forward._current_level < 0:
        return False
    return any(forward.unpack_dual(x).tangent is not None for x in tensors)


@cache
def _function() -> Any:
    """The autograd function that runs a Flat; what differentiates or maps it runs one too."""
    t = torch()

    class Run(t.autograd.Function):  # type: ignore[misc, name-defined]
        """A Flat as PyTorch records it, and as torch.func transforms it."""

        @staticmethod
        def forward(flat: Flat, *tensors: Any) -> Any:
            return tuple(flat(tensors))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.flat, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.mark_non_differentiable(*(x for x in output if not _flows(x)))
            ctx.outputs = tuple(map(_flows, output))

        @staticmethod
        def backward(ctx: Any, *cts: Any) -> Any:
            flat, tensors = ctx.flat, ctx.saved_tensors
            wanted = tuple(
                need and _flows(x)
                for need, x in zip(ctx.needs_input_grad[1:], tensors, strict=True)
            )
            given = [c for c, flows in zip(cts, ctx.outputs, strict=True) if flows]
            conjugate = [c.conj() if c.is_complex() else c for c in given]
            found = iter(_gradients(flat.pullback(wanted), [*tensors, *conjugate]))
            return None, *(next(found) if w else None for w in wanted)

        @staticmethod
        def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
            tensors = ctx.saved_tensors
            wanted = tuple(
                d is not None and _flows(x) for d, x in zip(tangents, tensors, strict=True)
            )
            given = [d for d, w in zip(tangents, wanted, strict=True) if w]
            found = iter(_leaves(ctx.flat.pushforward(wanted), [*tensors, *given]))
            return tuple(next(found) if flows else None for flows in ctx.outputs)

        @staticmethod
        def vmap(_: Any, axes: Any, flat: Flat, *tensors: Any) -> Any:
            batched = flat.batched(tuple(axes[1:]))
            found = _leaves(batched, tensors)
            flat.structure = batched.structure
            return tuple(found), (0,) * len(found)

    return Run


def _flows(x: Any) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def _gradients(pullback: Flat, tensors: list[Any]) -> list[Any]:
    """PyTorch's gradients: the conjugates of our cotangents."""
    found = _applied(pullback, tensors)
    return [g.conj() if g.is_complex() else g for g in found]


def demand_name(name: Any) -> None:
    """Refuse what is no name of an op with its namespace."""
    parts = name.split("::") if isinstance(name, str) else []
    if len(parts) != 2 or not all(p.isidentifier() for p in parts):
        raise located(
            OperandError(f'torch.custom_op: the name is {name!r:.40}, expected "namespace::name"')
        )
