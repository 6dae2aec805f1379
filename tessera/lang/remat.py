"""checkpoint: a function whose derivative computes again what it would otherwise keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from tessera.core import tree
from tessera.core.errors import OperandError, located
from tessera.ir.graph.ir import current_builder
from tessera.lang.trace import is_tensor, trace
from tessera.lang.transforms import guarded
from tessera.ops.define import as_value
from tessera.ops.remat import Policy
from tessera.ops.remat import checkpoint as bind_checkpoint

POLICIES = ("nothing", "dots", "everything")


def checkpoint(
    f: Callable[..., Any] | None = None, *, policy: str | Sequence[str] = "nothing"
) -> Any:
    """f, of whose intermediate values reverse mode keeps only those that the policy names.

    "nothing" keeps none, "dots" the results of matrix products and convolutions, "everything" all;
    a list of names keeps what op.checkpoint_name(x, name) named so.  The rest is computed again when
    the derivative needs it, with the same bits.
    """
    if f is None:
        return partial(checkpoint, policy=policy)
    if isinstance(policy, str) and policy not in POLICIES:
        raise located(
            OperandError(
                f"checkpoint: policy is {policy!r}, expected {', '.join(map(repr, POLICIES))} or a list "
                "of names"
            )
        )
    chosen: Policy = policy if isinstance(policy, str) else tuple(policy)
    name = getattr(f, "__name__", "function")

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        if current_builder() is None:
            return f(*args, **kwargs)
        leaves, _ = tree.flatten((args, kwargs))
        values = [as_value(x, name) for x in leaves if is_tensor(x)]
        t = trace(f, args, kwargs, [v.type for v in values], name)
        out = bind_checkpoint(t.graph, *values, *t.outer, name=name, policy=chosen)
        return tree.unflatten(t.structure, out)

    return run


remat = checkpoint
