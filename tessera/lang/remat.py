"""checkpoint: a function whose derivative computes again what it would otherwise keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.errors import OperandError, RuleError, located
from tessera.ir.graph.ir import Graph, current_builder
from tessera.ir.graph.op import forbidden
from tessera.lang.trace import is_tensor, trace
from tessera.lang.transforms import guarded
from tessera.ops.define import as_value
from tessera.ops.remat import OFFLOAD, Policy
from tessera.ops.remat import checkpoint as bind_checkpoint

POLICIES = ("nothing", "dots", "everything")


@dataclass(frozen=True)
class Budget:
    """A policy of checkpoint: keep values of so many bytes in all."""

    bytes: int


@blames_arguments
def budget(nbytes: int) -> Budget:
    """A policy of checkpoint: keep at most so many bytes, chosen so that least is computed again."""
    if isinstance(nbytes, bool) or not hasattr(nbytes, "__index__") or int(nbytes) < 0:
        raise located(OperandError(f"budget: {nbytes!r:.40} is not a number of bytes"))
    return Budget(int(nbytes))


@dataclass(frozen=True)
class Offload:
    """A policy of checkpoint: keep what these policies keep, but elsewhere."""

    policy: tuple[str, ...]


@blames_arguments
def offload(policy: str | Sequence[str] = "dots") -> Offload:
    """A policy of checkpoint: what "dots", "everything" or a list of names keeps is written out until the
    derivative reads it back: from a GPU to the memory of the host, on a CPU to a temporary file.
    """
    listed = isinstance(policy, list | tuple)
    names: tuple[Any, ...] = tuple(policy) if listed else (policy,)
    if isinstance(policy, str) and policy not in POLICIES[1:]:
        raise located(
            OperandError(
                f"offload: policy is {policy!r}, expected {', '.join(map(repr, POLICIES[1:]))} or a list of "
                "names"
            )
        )
    if not names or not all(isinstance(n, str) for n in names):
        raise located(OperandError(f"offload: policy is {policy!r:.40}, expected names of values"))
    return Offload(names)


@blames_arguments
def checkpoint(
    f: Callable[..., Any] | None = None,
    *,
    policy: str | Sequence[str] | Budget | Offload = "nothing",
) -> Any:
    """f, of whose intermediate values reverse mode keeps only those that the policy names.

    "nothing" keeps none, "dots" the results of matrix products and convolutions, "everything" all;
    a list of names keeps what op.checkpoint_name(x, name) named so; budget(n) keeps what fits n bytes
    and saves most work, which is nothing when n is too small; offload(...) keeps values elsewhere.  The
    arguments of f are not counted, and a value of symbolic size is not kept under a budget.  The rest is
    computed again when the derivative needs it, with the same bits.
    """
    if f is None:
        return partial(checkpoint, policy=policy)
    demand_function("checkpoint", f)
    if isinstance(policy, str) and policy not in POLICIES:
        raise located(
            OperandError(
                f"checkpoint: policy is {policy!r}, expected {', '.join(map(repr, POLICIES))}, a list of "
                "names, budget(bytes) or offload(...)"
            )
        )
    chosen = _parameter(policy)
    name = getattr(f, "__name__", "function")

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        if current_builder() is None:
            return f(*args, **kwargs)
        leaves, _ = tree.flatten((args, kwargs))
        values = [as_value(x, name) for x in leaves if is_tensor(x)]
        t = trace(f, args, kwargs, [v.type for v in values], name, given=values)
        _check_effects(name, t.graph)
        out = bind_checkpoint(t.graph, *values, *t.outer, name=name, policy=chosen)
        return tree.unflatten(t.structure, out)

    return run


def _parameter(policy: str | Sequence[str] | Budget | Offload) -> Policy:
    if isinstance(policy, Budget):
        return policy.bytes
    if isinstance(policy, Offload):
        return (OFFLOAD, *policy.policy)
    if not isinstance(policy, str | Sequence):
        raise OperandError(
            f"checkpoint: policy is {type(policy).__name__} {policy!r:.40}, expected its name, names of "
            "values to keep, a Budget or an Offload"
        )
    return policy if isinstance(policy, str) else tuple(policy)


def _check_effects(name: str, g: Graph) -> None:
    """Refuse what would happen a second time when the derivative computes again."""
    for n in g.nodes:
        for effect in sorted(forbidden(n.op.effects, "repeat")):
            raise RuleError(
                f"checkpoint: {n.op.name} in {name} has the effect '{effect}', which computing again "
                "would repeat; move it out of the function and pass its result in"
            ).at(n.location)
        for r in n.regions:
            _check_effects(name, r)


remat = checkpoint
