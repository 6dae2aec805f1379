"""Control flow of the Graph IR as If, Loop and Scan; calls are inlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.interop.onnx.model import OnnxGraph as Record
from tessera.interop.onnx.model import OnnxInfo
from tessera.interop.onnx.writer import OnnxWriter, info_of
from tessera.ir.graph.ir import Graph, Node

Inside = Callable[[OnnxWriter, Sequence[Node]], None]


def _inline(w: OnnxWriter, n: Node, names: list[str], inside: Inside) -> Any:
    (g,) = n.regions[:1]
    w.names.update(zip(g.inputs, names, strict=False))
    inside(w, g.nodes)
    return tuple(w.names[v] for v in g.outputs)


def _region(
    w: OnnxWriter, g: Graph, inputs: Sequence[OnnxInfo], names: Sequence[str], inside: Inside
) -> Any:
    """The nodes of a region, in a writer of their own; outputs have names of their own."""
    inner = OnnxWriter(w.opset, w)
    inner.names.update(zip(g.inputs, names, strict=True))
    inside(inner, g.nodes)
    outputs = []
    for v in g.outputs:
        name = inner.emit("Identity", inner.names[v])
        outputs.append(info_of(name, v))
    return inner, list(inputs), outputs


def _record(w: OnnxWriter, part: Any, extra: Sequence[OnnxInfo] = ()) -> Record:
    inner, inputs, outputs = part
    return Record(w.fresh("body"), tuple(inputs), (*extra, *outputs), tuple(inner.nodes), {})


def _cond(w: OnnxWriter, n: Node, names: list[str], inside: Inside) -> Any:
    yes, no = (_record(w, _region(w, g, (), names[1:], inside)) for g in n.regions)
    found = w.emit("If", names[0], outputs=len(n.results), then_branch=yes, else_branch=no)
    return found if len(n.results) > 1 else (found,)


def _scan(w: OnnxWriter, n: Node, names: list[str], inside: Inside) -> Any:
    """A scan; without rows to go along it counts them."""
    (g,), p = n.regions, n.params
    carry, count = p["carry"], p["xs"]
    rows = names[carry : carry + count]
    own = [w.fresh("row") for _ in g.inputs[: carry + count]]
    infos = [info_of(x, v) for x, v in zip(own, g.inputs, strict=False)]
    inner = _region(w, g, infos, [*own, *names[carry + count :]], inside)
    if not rows:
        steps = w.emit("Squeeze", w.size(p["length"]))
        rows = [w.emit("Range", w.constant(np.array(0)), steps, w.constant(np.array(1)))]
        inner[1].append(OnnxInfo(w.fresh("step"), "tensor", np.dtype(np.int64), ()))
        count = 1
    way = [int(p["reverse"])]
    found = w.emit(
        "Scan", *names[:carry], *rows, outputs=len(n.results), body=_record(w, inner),
        num_scan_inputs=count, scan_input_directions=way * count,
        scan_output_directions=way * (len(n.results) - carry) or None,
    )  # fmt: skip
    return found if len(n.results) > 1 else (found,)


def _while(w: OnnxWriter, n: Node, names: list[str], inside: Inside) -> Any:
    """The test runs before the loop and at the end of each step."""
    test, body = n.regions
    count = len(n.results)
    outer = names[count:]
    w.names.update(zip(test.inputs, names, strict=True))
    inside(w, test.nodes)
    first = w.names[test.outputs[0]]
    own = [w.fresh("state") for _ in range(count)]
    infos = [info_of(x, v) for x, v in zip(own, body.inputs, strict=False)]
    step = OnnxInfo(w.fresh("step"), "tensor", np.dtype(np.int64), ())
    go = OnnxInfo(w.fresh("go"), "tensor", np.dtype(np.bool_), ())
    part = _region(w, body, [step, go, *infos], [*own, *outer], inside)
    inner, _, outputs = part
    inner.names.update(zip(test.inputs, [*(o.name for o in outputs), *outer], strict=True))
    inside(inner, test.nodes)
    again = inner.emit("Identity", inner.names[test.outputs[0]])
    record = _record(w, part, [OnnxInfo(again, "tensor", np.dtype(np.bool_), ())])
    found = w.emit("Loop", "", first, *names[:count], outputs=count, body=record)
    return found if count > 1 else (found,)


CONTROL: dict[str, Callable[..., Any]] = {
    "call": _inline, "checkpoint": _inline, "custom": _inline, "cond": _cond, "scan": _scan,
    "while_loop": _while,
}  # fmt: skip
