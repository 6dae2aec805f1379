"""Calls that need no Python: jitted functions that are short, and eager functions that are called often.

Eager code and jit agree in every bit (docs/decisions/011), so a function of tensors that is called again and
again becomes a compiled program of its own.  One call in some hundreds is looked at; what is seen twice is
compiled, and its calls go to machine code at once (docs/decisions/013).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.compile import compile_graph
from tessera.compile.executable import Executable
from tessera.compile.fallback import Task, first_that_works
from tessera.core import call_guard
from tessera.core.device import CPU
from tessera.core.dtype import DType
from tessera.core.errors import CompilerFault, TesseraError
from tessera.core.flags import checked, flags
from tessera.eager import target_in_force
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.op import forbidden
from tessera.lang.tensor import Tensor
from tessera.lang.trace import trace
from tessera.ops.define import LOOK_AT_CALL, OpFunction
from tessera.ops.places import checked_index

# What a tensor with data has beside its type and its data.
_FIELDS = {"device": CPU, "node": None, "index": 0, "builder": None}
_MOST_SEEN = 4096  # calls that are remembered: bounds memory
_LARGEST = 1 << 16  # elements: what is computed from more of them takes longer than Python does


def follow(owner: Any, executable: Any, args: Any, kwargs: Any, data: Any, out: Any) -> Any:
    """Let calls of `owner` like this one skip Python; the record that they follow, None if they cannot.

    The class of `owner` gets a `__call__` of machine code, which calls the one that it had.
    """
    known = tuple(x.type if type(x) is Tensor else x for x in (*args, *kwargs.values()))
    record = executable.shortcut(data, (known, len(data), tuple(kwargs)), out)
    if record is None:
        return None
    if owner._caller is None:
        base = type(owner)  # asked at each call: observers stand in for its __call__

        def slow(*args: Any, **kwargs: Any) -> Any:
            return base.__call__(owner, *args, **kwargs)

        owner._caller = executable.caller(slow, owner.__name__, Tensor, _FIELDS)
        kept = {"__module__": base.__module__, "__doc__": vars(base).get("__doc__")}
        owner.__class__ = type(base.__name__, (base,), {"__call__": owner._caller.function, **kept})
    owner._caller.follow(record)
    return record


# Eager functions


_SEEN: dict[Any, Any] = {}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), DType)


def warm(f: OpFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Look at a call that is under way; the second time, compile it if that can be."""
    values = (*args, *kwargs.values())
    tensors = [x for x in values if type(x) is Tensor]
    small = all(_is_small(x) if type(x) is Tensor else _is_fixed(x) for x in values)
    if not tensors or not small or call_guard.is_busy() or target_in_force() != "cpu":
        return
    if flags().checked:
        return
    known = [x.type if type(x) is Tensor else id(x) for x in values]
    key = (f, call_guard.configuration(), tuple(kwargs), *known)
    if len(_SEEN) >= _MOST_SEEN:
        _SEEN.clear()
    if key not in _SEEN:
        # What is known by its address must live, so that nothing else gets that address.
        _SEEN[key] = [x for x in values if type(x) is not Tensor]
        return
    made = _compiled(f, args, kwargs, tensors)
    if made is not None:
        out, data = made.graph.outputs[0].type, [x.storage for x in tensors]
        task = Task(made.graph, "cpu", flags().numerics)
        fast = ("", lambda: follow(f, made, args, kwargs, data, out))
        first_that_works(task, fast, ("through Python", lambda: None))


def _is_small(x: Tensor) -> bool:
    return x.storage is not None and bool(x.size <= _LARGEST)


def _is_fixed(x: Any) -> bool:
    """Whether an argument is the same as long as it is the same object."""
    return isinstance(x, _PLAIN) or (type(x) is tuple and all(map(_is_fixed, x)))


def _compiled(
    f: OpFunction[..., Any], args: Any, kwargs: Any, tensors: Sequence[Tensor]
) -> Executable | None:
    """The function of its tensors as a program, if all it does is to compute one tensor."""

    def run(*xs: Any) -> Any:
        left = iter(xs)
        given = [next(left) if type(x) is Tensor else x for x in (*args, *kwargs.values())]
        named = dict(zip(kwargs, given[len(args) :], strict=True))
        return f.front(*given[: len(args)], **named)

    try:
        want = run(*tensors)
        with checked():  # so that what eager code looks at is in the graph
            t = trace(run, tuple(tensors), {}, [x.type for x in tensors], f.__name__)
        if type(want) is not Tensor or t.structure.kind is not None or _has_effects(t.graph):
            return None
        made = compile_graph(t.graph, "cpu")
        (got,) = made.run([x.numpy() for x in tensors])
    except CompilerFault:
        raise
    except TesseraError:
        return None
    kept = want.numpy()
    same = got.dtype == kept.dtype and got.shape == kept.shape
    return made if same and got.tobytes() == kept.tobytes() else None


def _has_effects(g: Graph) -> bool:
    return any(forbidden(n.op.effects, "merge") or n.op is checked_index.op for n in g.nodes)


LOOK_AT_CALL.provide(warm)
