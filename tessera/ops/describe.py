"""What help() shows of an op: its sentence, how it is called, axes, dtypes, an example and its
counterparts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tessera.core.counterparts import NAMES
from tessera.ir.graph.op import KIND_NAMES, Op, Sample

# What parameters of ops mean, where the name does not say it all.
PARAMETERS = {
    "x": "a tensor, an array or a number", "y": "as x; shapes broadcast",
    "axis": "one axis, several, or None for all", "keepdims": "keep folded axes with size 1",
    "dtype": "such as f32, bf16 or a policy", "shape": "a size or a tuple of sizes",
    "key": "a key of ts.key or ts.split", "eps": "added before a division or root",
    "gain": "multiplies the result, of the shape of the last axis", "bias": "is added to the result",
    "tile_shape": "the block of a kernel, as (m, n, k)",
    "schedule": "a Schedule: the block of a kernel, and on a GPU warps and stages",
    "causal": "hide what comes later", "scale": "multiplies the scores; 1/sqrt(dim) unless given",
    "mask": "True where a value counts", "groups": "how many groups channels are cut into",
    "stride": "one step for all axes, or one for each",
    "padding": 'a number, one pair for each axis, "same" or "valid"',
    "correction": "subtracted from the count of elements",
}  # fmt: skip


def described(op: Op, front: Callable[..., Any]) -> str:
    """The text of help() for an op."""
    name = front.__name__.rstrip("_")
    parts = [op.doc.strip(), f"op.{name}{_call(front)}"]
    parts += [
        _lines("Parameters:", _parameters(front)),
        _lines("Shapes:", _axes(op)),
        _lines("Dtypes:", _dtypes(op)),
    ]
    parts += [_lines("Example:", _example(name, op)), _lines("Also called:", _also(name))]
    return "\n\n".join(p for p in parts if p)


def _lines(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"    {x}" for x in lines)]) if lines else ""


def _call(f: Callable[..., Any]) -> str:
    plain = [p.replace(annotation=p.empty) for p in inspect.signature(f).parameters.values()]
    return str(inspect.Signature(plain))


def _parameters(f: Callable[..., Any]) -> list[str]:
    found = []
    for p in inspect.signature(f).parameters.values():
        kind = "" if p.annotation is p.empty else str(p.annotation)
        said = PARAMETERS.get(p.name, "")
        default = "" if p.default is p.empty else f", {p.default!r} unless given"
        found.append(f"{p.name}: {kind}{default}{'; ' + said if said else ''}")
    return found


def _axes(op: Op) -> list[str]:
    if isinstance(op.signature, str):
        return [op.signature]
    return ["depend on the parameters"] if op.signature is not None else []


def _dtypes(op: Op) -> list[str]:
    kinds = (op.kinds,) if isinstance(op.kinds, str) else tuple(op.kinds)
    return [
        f"operand {i}: " + ("all" if k == "buifc" else ", ".join(KIND_NAMES[c] for c in k)) for i,
        k in enumerate(kinds)
    ]  # fmt: skip


def _example(name: str, op: Op) -> list[str]:
    """The first sample of the op as a call; operands that are shapes stand as tensors of them."""
    sample = next(iter(op.samples), None) if not callable(op.samples) else None
    if not isinstance(sample, Sample):
        return []
    given = [*map(_operand, sample.operands), *(f"{k}={v!r}" for k, v in sample.kwargs.items())]
    text = f"op.{name}({', '.join(given)})"
    return [text] if len(text) < 200 and "\n" not in text and " at 0x" not in text else []


def _operand(x: Any) -> str:
    whole = isinstance(x, tuple) and all(isinstance(n, int) for n in x)
    return f"ts.ones({x})" if whole else repr(x)


def _also(name: str) -> list[str]:
    names = [
        n
        for n, ours in NAMES.items()
        if ours.partition("(")[0] == f"op.{name}" and not n.endswith("_")
    ]
    return [", ".join(names)] if names else []
