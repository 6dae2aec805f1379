"""Names of kernels that say what they are: "matmul 1024x64x64 + tanh", "softmax 32x128"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.source import Location
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.graph.op import Op

_MOST = 3  # ops that a label names beside the first

Written = Mapping[Location, tuple[frozenset[Op], str]]


def written_ops(traced: Graph, lowered: Graph) -> Written:
    """At each line, the ops that others stand for after the passes, and what the user wrote for them:
    softmax for max, sub, exp.
    """
    before, after = _by_line(traced), _by_line(lowered)
    found = {}
    for where, ops in before.items():
        new = [x for x in after.get(where, ()) if x not in ops]
        gone = [x for x in ops if x not in after.get(where, ())]
        if new and gone:
            found[where] = frozenset(new), "/".join(map(str, gone[:2]))
    return found


def _is_quiet(n: Node) -> bool:
    """Whether an op says nothing about a kernel that does anything else."""
    return n.op.casts or bool(n.op.makes) or n.op.view is not None


def _by_line(g: Graph) -> dict[Location, list[Op]]:
    lines: dict[Location, list[Op]] = {}
    for n in g.nodes:
        if n.location is not None and not _is_quiet(n):
            ops = lines.setdefault(n.location, [])
            if n.op not in ops:
                ops.append(n.op)
    return lines


def label_of(nodes: Sequence[Node], written: Written | None = None) -> str:
    """What a kernel computes, from the nodes that it computes, in order."""
    told = [n for n in nodes if not _is_quiet(n)] or list(nodes)
    if not told:
        return ""
    main = next((n for n in told if _is_contraction(n)), None) or told[-1]
    at = told.index(main)
    name = _name(main, written or {})
    before = _names(told[:at], written or {}, {name})
    after = _names(told[at + 1 :], written or {}, {name, *before})
    own = f"{name} {_sizes(main)}".rstrip()
    return " + ".join(x for x in (_few(before), own, _few(after)) if x)


def _name(n: Node, written: Written) -> str:
    """What the user called an op, or the op."""
    inner, name = (
        written.get(n.location, (frozenset(), "")) if n.location is not None else (frozenset(), "")
    )
    return name if n.op in inner else n.op.name


def _is_contraction(n: Node) -> bool:
    return n.op.combine is not None and len(n.operands) > 1


def _names(nodes: Sequence[Node], written: Written, known: set[str]) -> list[str]:
    """What nodes are called, each name once and none that is known."""
    return [x for x in dict.fromkeys(_name(n, written) for n in nodes) if x not in known]


def _few(names: Sequence[str]) -> str:
    more = f" + {len(names) - _MOST} more" if len(names) > _MOST else ""
    return " + ".join(names[:_MOST]) + more


def _sizes(n: Node) -> str:
    """The sizes of a result, and of the axis that is summed where there is one."""
    sizes = [str(s) for s in n.results[0].shape]
    if _is_contraction(n) and n.operands[0].shape:
        sizes.append(str(n.operands[0].shape[-1]))
    return "x".join(sizes)
