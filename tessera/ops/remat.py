"""What makes a program compute again rather than keep: checkpoint, names for values, barriers."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.errors import OperandError
from tessera.core.scalar import arg
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops.batching import leading
from tessera.ops.contraction import contract, matmul
from tessera.ops.control import call_types
from tessera.ops.convolution import conv
from tessera.ops.define import ArrayLike, as_value, define

DOTS = frozenset((matmul.op, contract.op, conv.op))
Policy = str | tuple[str, ...] | int  # nothing, dots, everything, names of values, or bytes


@define(
    infer=lambda types, p: types, multiple=True, call="barrier", moves=True,
    numpy=lambda *xs: xs, samples=(Sample((3,)), Sample((2,), (0, 3))),
    jvp=lambda n, ts: _tangents(ts), batch=leading,
)  # fmt: skip
def barrier(*xs: ArrayLike) -> tuple[Value, ...]:
    """The same values, which no pass may take for those that went in or compute before all of them."""
    return barrier.bind_many(*(as_value(x, "barrier") for x in xs))


def _tangents(ts: Sequence[Value | None]) -> list[Value | None]:
    moved = iter(barrier.bind_many(*(t for t in ts if t is not None)))
    return [None if t is None else next(moved) for t in ts]


@define(
    signature="... -> ...", body=arg(0), numpy=lambda x, name: x, moves=True, linear=(0,),
    transpose=lambda n, ct, k: ct, samples=(Sample((3,), name="h"), Sample((), name="h")),
)  # fmt: skip
def checkpoint_name(x: ArrayLike, name: str) -> Value:
    """x, named so that a policy of checkpoint can keep it."""
    if not isinstance(name, str):
        raise OperandError(f"checkpoint_name: the name is {name!r:.40}, expected a string")
    return checkpoint_name.bind(as_value(x, "checkpoint_name"), name=name)


@define(
    infer=call_types, multiple=True, call="checkpoint", moves=True,
    numpy=lambda *xs, regions, name, policy, again: regions[0](*xs),
)  # fmt: skip
def checkpoint(
    region: Graph, *operands: Value, name: str, policy: Policy, again: bool = False
) -> tuple[Value, ...]:
    """The outputs of a graph whose derivative computes again what the policy does not keep.

    `again` marks a graph that computes again: compiling puts a barrier before it.
    """
    return checkpoint.bind_many(*operands, regions=(region,), name=name, policy=policy, again=again)


OFFLOAD = "offload"  # what a policy begins with that keeps values elsewhere


def offloads(policy: Policy) -> bool:
    """Whether a policy keeps values elsewhere than in the memory of the program."""
    return isinstance(policy, tuple) and policy[:1] == (OFFLOAD,)


def keeps(policy: Policy, n: Node) -> bool:
    """Whether the results of a node are kept for the derivative, by a policy that tells by the node."""
    if isinstance(policy, tuple) and offloads(policy):
        rest = policy[1:]
        policy = rest[0] if len(rest) == 1 and rest[0] in ("dots", "everything") else rest
    if isinstance(policy, tuple):
        return n.op is checkpoint_name.op and n.params["name"] in policy
    return policy == "everything" or (policy == "dots" and n.op in DOTS)
