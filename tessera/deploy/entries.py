"""Entry points: functions traced for a bundle, with names for what goes in and comes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.dims import Size
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.deploy.calls import dotted, fixed_text
from tessera.ir.graph.ir import Graph, Value, data_of, on_host
from tessera.lang.arguments import Call
from tessera.lang.jit import Jitted, jit
from tessera.lang.methods import BoundMethod
from tessera.lang.placeholders import placed
from tessera.lang.trace import is_tensor

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
Node = Any  # the structure of a result in JSON


@dataclass(frozen=True)
class TracedEntry:
    """An entry point: its graph, whose last inputs are weights, and what they and the results are called."""

    name: str
    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    structure: Node
    weights: tuple[tuple[str, Any, TensorType], ...]  # name, array and type, in the order of inputs
    numerics: str
    fixed: Mapping[str, str] = field(default_factory=dict)  # arguments that are no tensors, as text

    def manifest(self) -> dict[str, Any]:
        """What the manifest says of the entry point."""
        own = self.graph.inputs[: len(self.inputs)]
        return {
            "inputs": [_value(n, v) for n, v in zip(self.inputs, own, strict=True)],
            "outputs": [_value(n, v) for n, v in zip(self.outputs, self.graph.outputs, strict=True)],
            "returns": self.structure,
            "guards": [[c.kind, str(c.left), str(c.right), c.reason] for c in self.graph.guards],
            "numerics": self.numerics,
            "graph": self.graph.hash,
            **({"fixed": dict(self.fixed)} if self.fixed else {}),
        }  # fmt: skip


def _value(name: str, v: Value) -> dict[str, Any]:
    return {"name": name, "dtype": str(v.type.dtype), "shape": [size_text(n) for n in v.shape]}


def size_text(n: Size) -> int | str:
    """A size in JSON."""
    return n if isinstance(n, int) else str(n)


def entries_of(f: Any, args: Sequence[Any], weights: Any) -> list[TracedEntry]:
    """The entry points that the user gave: one function with arguments, or a dict of (function,
    *arguments).
    """
    if not isinstance(f, Mapping):
        return [trace_entry(getattr(f, "__name__", None) or "main", f, args, weights)]
    if args:
        raise OperandError(
            "bundle: with a dict of entry points the arguments stand beside each function: "
            '{"step": (f, x)}'
        )
    out: dict[str, TracedEntry] = {}
    for name, given in f.items():
        g, *own = given if isinstance(given, tuple | list) else (given,)
        made = trace_entry(str(name), g, own, weights)
        if made.name in out:
            raise OperandError(
                f"bundle: two entry points would be called {made.name!r}; a name has at most 32 letters, "
                "digits and underscores"
            )
        out[made.name] = made
    return list(out.values())


def trace_entry(name: str, f: Any, args: Sequence[Any], weights: Any) -> TracedEntry:
    """One entry point, traced; with weights the function takes them before its arguments."""
    called = _identifier(name)
    if not callable(f):
        raise OperandError(f"bundle: entry {called!r} is {type(f).__name__}, expected a function")
    jitted = f if isinstance(f, Jitted | BoundMethod) else jit(f)
    taken = [placed(a) for a in args]
    given = taken if weights is None else [weights, *taken]
    t, call = jitted.traced_call(*given)
    bound = isinstance(jitted, BoundMethod)
    held = int(bound) + int(weights is not None)
    sizes = [s.count for s in call.structure.children]
    owners = [k for k, n in enumerate(sizes) for _ in range(n)]
    of_tensors = [k for k, x in zip(owners, call.leaves, strict=True) if is_tensor(x)]
    count = sum(k < held for k in of_tensors)
    paths = [p for p, x in zip(call.paths, call.leaves, strict=True) if is_tensor(x)]
    own = _own_values(call, call.names[:held])
    return _entry(
        called, t.graph, t.structure, count, list(map(dotted, paths)), call.tensors, jitted.mode, own
    )  # fmt: skip


def _own_values(call: Call, held: Sequence[str]) -> dict[str, str]:
    """The arguments that are no tensors as text, but for those of what a bundle holds."""
    own = ((dotted(p), x) for p, x in call.values().items())
    return {p: fixed_text(x) for p, x in own if p.partition(".")[0] not in held}


def _entry(
    name: str, g: Graph, structure: tree.Structure, count: int, paths: Sequence[str],
    tensors: Sequence[Value],
    numerics: str,
    fixed: Mapping[str, str],
) -> TracedEntry:  # fmt: skip
    own = len(g.inputs) - len(g.captured)
    inputs, held = g.inputs[count:own], g.inputs[:count]
    concrete = [*tensors[:count], *g.captured]
    names = [*paths[:count], *(f"captured.{i}" for i in range(len(g.captured)))]
    ordered = (*inputs, *held, *g.inputs[own:])
    made = Graph(
        ordered, g.nodes, g.outputs, g.name, [*paths[count:], *names], (), g.guards
    )  # fmt: skip
    arrays = [_host(v) for v in concrete]
    types = [v.type for v in ordered[len(inputs) :]]
    outs = [dotted(p) or f"output{i}" for i, p in enumerate(tree.structure_paths(structure))]
    return TracedEntry(
        name, made, tuple(paths[count:own]), tuple(outs), _node(structure),
        tuple(zip(names, arrays, types, strict=True)), numerics, fixed,
    )  # fmt: skip


def _host(v: Value) -> Any:
    return np.asarray(on_host(data_of(v, "bundle")))


def _identifier(name: str) -> str:
    if not _NAME.fullmatch(name):
        made = re.sub(r"\W", "_", name, flags=re.ASCII)[:31]
        return made if _NAME.fullmatch(made) else f"f{made}"
    return name


# Results --------------------------------------------------------------------------------------


def _node(s: tree.Structure) -> Node:
    """The structure of a result: 0 is a tensor; classes become dicts of their fields.

    The items of a dict stand in the order of the tensors; "order" has its keys as they were written, where
    that is another order.
    """
    if s.kind is None:
        return 0
    if s.kind is type(None):
        return None
    inner = [_node(c) for c in s.children]
    if s.kind in (list, tuple):
        return {s.kind.__name__: inner}
    keys, written = tree.keys(s), tree.written_keys(s)
    node = {"dict": [[str(k), n] for k, n in zip(keys, inner, strict=True)]}
    return node if keys == written else {**node, "order": [str(k) for k in written]}


def rebuilt(node: Node, take: Callable[[], Any]) -> Any:
    """A result of this structure."""
    if node is None:
        return None
    if not isinstance(node, dict):
        return take()
    if "dict" in node:
        found = {k: rebuilt(n, take) for k, n in node["dict"]}
        return {k: found[k] for k in node.get("order", found)}
    word, inner = next(iter(node.items()))
    made = [rebuilt(n, take) for n in inner]
    return tuple(made) if word == "tuple" else made


__all__ = ["TracedEntry", "entries_of", "rebuilt", "size_text"]
