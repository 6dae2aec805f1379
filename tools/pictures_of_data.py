"""Pictures of data and structure: batches by rank, indices at edges, a module as a tree, a witness, files."""

from __future__ import annotations

import dataclasses
import io
import os
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import Tensor, data, f32, nn, op
from tessera.core.dims import symbol
from tessera.core.types import TensorType
from tessera.deploy.container import Container
from tessera.ir.tile.ir import Builder
from tools.drawing import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, Drawing

_COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, GREY)

# Batches -----------------------------------------------------------------------------------------


def batches() -> Drawing:
    """Which samples are in which batch, epoch by epoch, and how ranks share a batch."""
    count, size = 12, 4
    d = Drawing(760, 300, "Batches by epoch and by rank")
    d.text(10, 20, f"{count} samples in batches of {size}, shuffled by a key", "head")
    loader = data.Loader(np.arange(count), batch=size, key=ts.key(0))
    each = count // size
    for epoch in range(3):
        d.text(10, 58 + 34 * epoch, f"epoch {epoch}", "code")
        for b in range(each):
            for j, sample in enumerate(np.asarray(loader.batch(each * epoch + b))):
                x = 90 + 164 * b + 38 * j
                d.box(x, 40 + 34 * epoch, 34, 27, _COLOURS[b])
                d.text(x + 17, 58 + 34 * epoch, str(int(sample)), "code", middle=True)
    for b in range(each):
        d.text(90 + 164 * b + 76, 156, f"batch {b} of the epoch", "note", middle=True)
    d.text(10, 190, "batch 0 on 1, 2 and 4 ranks: the same samples in the same order", "head")
    for row, ranks in enumerate((1, 2, 4)):
        y = 204 + 32 * row
        d.text(10, y + 18, f"ranks={ranks}", "code")
        x = 90.0
        for rank in range(ranks):
            share = data.Loader(np.arange(count), batch=size, key=ts.key(0), rank=rank, ranks=ranks)
            for sample in np.asarray(share.batch(0)):
                d.box(x, y, 34, 27, _COLOURS[rank])
                d.text(x + 17, y + 18, str(int(sample)), "code", middle=True)
                x += 38
        each_rank = f"{ranks} ranks with {size // ranks} each" if row else "one rank with all"
        d.text(x + 12, y + 18, each_rank, "note")
    return d


# Indices at edges --------------------------------------------------------------------------------


def indices() -> Drawing:
    """What reading, writing and a slice do where an index is outside of its axis."""
    n, side = 5, 44.0
    x = ts.tensor(np.arange(10.0, 10.0 * (n + 1), 10.0).astype(np.float32))
    places = (1, 7, -1, -9)
    i = ts.tensor(np.array(places))
    read = np.asarray(ts.jit(lambda x, i: x[i])(x, i))
    marks = ts.tensor(np.array([1.0, 2.0, 3.0, 4.0], np.float32))
    written = np.asarray(ts.jit(lambda x, i, v: x.at[i].set(v))(x, i, marks))
    d = Drawing(760, 262, "Indices outside of their axis")
    for part, (title, values) in enumerate(
        (("x[i]: read", read), ("x.at[i].set(v): write", written))
    ):
        x0 = 20.0 + 380 * part
        d.text(x0, 22, f"{title}, compiled", "head")
        for k in range(n):
            d.box(x0 + side * k, 46, side - 4, 34, BLUE)
            d.text(x0 + side * k + 20, 67, f"{x.numpy()[k]:g}", "code", middle=True)
            d.text(x0 + side * k + 20, 41, str(k), "note", middle=True)
        d.text(x0 + side * n + 8, 67, "x", "code")
        for j, place in enumerate(places):
            centre = x0 + side * j + 42
            inside = -n <= place < n
            colour = GREEN if inside else ORANGE
            d.box(x0 + side * j + 22, 128, side - 4, 34, colour)
            d.text(centre, 149, f"{place}", "code", middle=True)
            found = [k for k in range(n) if (x.numpy() == values[j])[k]] if not part else [
                k for k in range(n) if values[k] == j + 1]  # fmt: skip
            for k in found:
                d.line((centre, 128), (x0 + side * k + 20, 80))
            if part and not found:
                d.parts.append(
                    f'<path d="M{centre - 6:.0f} 108l12 12m0 -12l-12 12" stroke="{ORANGE}" stroke-width="2"/>'
                )
        d.text(x0 + side * 4 + 30, 149, "i", "code")
        for j, value in enumerate(values):
            d.box(x0 + side * j, 182, side - 4, 34, PINK if part and value < 10 else "")
            d.text(x0 + side * j + 20, 203, f"{value:g}", "code", middle=True)
        d.text(x0 + side * len(values) + 8, 203, "result", "code")
        words = (
            "a read outside (orange) takes the nearest element",
            "v is 1, 2, 3, 4; a write outside is dropped",
        )
        d.text(x0, 240, words[part], "note")
    return d


# A module as a tree ------------------------------------------------------------------------------


class Net(nn.Module):
    """The module of the picture: that of the page."""

    embed: nn.Embedding
    layers: list[nn.Linear]
    out: nn.Linear
    activation: Callable[..., Any] = op.tanh

    def __init__(self, width: int, depth: int, *, key: Any):
        a, b, *keys = ts.split(key, 2 + depth)
        self.embed = nn.Embedding(10, width, key=a)
        self.layers = [nn.Linear(width, width, key=k) for k in keys]
        self.out = nn.Linear(width, 3, key=b)


def module() -> Drawing:
    """The fields of a module, which of them are parameters, and the leaves that transforms see."""
    net = Net(8, 2, key=ts.key(0))
    names, leaves = ts.tree.names(net), ts.tree.leaves(net)
    rows: list[tuple[int, str, str]] = [(0, "Net", "a frozen dataclass")]
    places: dict[str, int] = {}
    for name in (f.name for f in dataclasses.fields(net)):
        value = getattr(net, name)
        parts = value if isinstance(value, list) else [value]
        if not any(n.startswith(f"{name}.") for n in names):
            rows.append((1, name, f"static: {value!r}".replace("<", "").replace(">", "")))
            continue
        rows.append((1, name, "list" if isinstance(value, list) else type(value).__name__))
        for i, part in enumerate(parts):
            path = f"{name}.{i}" if isinstance(value, list) else name
            if isinstance(value, list):
                rows.append((2, str(i), type(part).__name__))
            for leaf in (n for n in names if n.startswith(f"{path}.")):
                places[leaf] = len(rows)
                rows.append((2 + isinstance(value, list), leaf.rpartition(".")[2], ""))
    d = Drawing(760, 46 + 22 * len(rows), "A module as a tree")
    d.text(10, 20, "the module", "head")
    d.text(470, 20, "its leaves: what jit and grad see", "head")
    for i, (depth, name, note) in enumerate(rows):
        y, x = 34 + 22 * i, 10 + 26 * depth
        static = note.startswith("static")
        d.box(x, y, 120, 19, GREY if static else (ORANGE if i in places.values() else BLUE), rx=3)
        d.text(x + 8, y + 13, name, "code")
        if note:
            d.text(x + 130, y + 13, note, "note")
    start = 34 + 11 * (len(rows) - len(names))
    for k, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        y = start + 22 * k
        d.box(470, y, 280, 19, ORANGE, rx=3)
        d.text(478, y + 13, f"{name}: {leaf.type}", "code")
        i = places[name]
        x = 10 + 26 * rows[i][0] + 122
        d.parts.append(
            f'<path class="line" stroke-opacity=".5" d="M{x} {44 + 22 * i}C{x + 90} {44 + 22 * i} '
            f'{380} {y + 10:.0f} 468 {y + 10:.0f}"/>'
        )
    return d


# Witnesses ---------------------------------------------------------------------------------------


def witness() -> Drawing:
    """The two findings of a kernel that adds up a tensor, as what happens at their witnesses."""
    size = symbol("N")
    b = Builder("total")
    x = b.parameter("x", TensorType(f32, (size,)))
    y = b.parameter("y", TensorType(f32, (1,)), writable=True)
    at = b.program((size + 3) // 4) * 4
    b.store(y, b.fold("add", b.load(x, (at,), (4,)), 0), (0,), (1,))
    race, bounds = ts.check(b.finish(), tools=("races", "bounds")).findings
    n, instances = race.witness["N"], [i for (i,) in race.witness["instances"]]
    element, beyond = race.witness["element"][0], bounds.witness["index"]
    d = Drawing(760, 236, "Witnesses of two findings")
    d.text(10, 20, f"races: N = {n}, instances {instances[0]} and {instances[1]}", "head")
    for k in range(n):
        d.box(16 + 44 * k, 60, 40, 32, (BLUE, GREEN)[k // 4])
        d.text(36 + 44 * k, 80, f"x[{k}]", "code", middle=True)
    for i in instances:
        d.box(50 + 176 * i, 116, 120, 30, (BLUE, GREEN)[i])
        d.text(110 + 176 * i, 135, f"instance {i}: sum", "code", middle=True)
        d.line((110 + 176 * i, 92), (110 + 176 * i, 116))
        d.line((110 + 176 * i, 146), (192, 182))
    d.box(156, 182, 72, 32, ORANGE)
    d.text(192, 202, f"y[{element}]", "code", middle=True)
    d.text(240, 202, "written twice", "note")
    n = bounds.witness["N"]
    d.text(440, 20, f"bounds: N = {n}, instance {bounds.witness['instance'][0]}", "head")
    for k in range(4):
        there = k < n
        d.box(446 + 52 * k, 60, 48, 32, BLUE if there else (ORANGE if k == beyond else ""))
        d.text(470 + 52 * k, 80, f"x[{k}]" if there else "none", "code", middle=True)
    d.box(444, 56, 204, 40, "", rx=6)
    d.text(446, 118, "a block of 4 is loaded without a mask:", "note")
    d.text(446, 136, f"its element {beyond} is not there", "note")
    return d


# Files -------------------------------------------------------------------------------------------


def bundle() -> Drawing:
    """The sections of a bundle for three kinds of processors, with their bytes."""
    weights = {
        "w1": ts.ones((64, 128)), "b1": ts.zeros((128,)), "w2": ts.ones((128, 10)), "b2": ts.zeros((10,))
    }  # fmt: skip

    def forward(p: Any, x: Any) -> Any:
        return op.softmax(op.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"])

    kinds = ["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64"]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        path = Path(folder) / "forward.tess"
        ts.bundle.save(forward, path, Tensor["batch", 64], weights=weights, targets=kinds)
        sections, whole = Container(path).sections, os.path.getsize(path)
    groups: dict[str, dict[str, int]] = {}
    for s in sections:
        kind = next((k for k in kinds if s.name.endswith(k)), "")
        part = s.name.partition("/")[0]
        groups.setdefault(kind or part, {})[part] = s.size
    words = {
        "manifest": "names, types and sizes of what goes in and comes out",
        "graph": "Graph IR: what other processors compile from",
        "pieces": "digests of the weights, piece by piece",
        "weights": "a safetensors file, mapped and shared by processes",
    }
    rows = list(groups.items())
    d = Drawing(760, 68 + 30 * len(rows), "What a bundle holds")
    d.text(10, 20, f"forward.tess: {len(sections)} sections, {round(whole / 1024)} KiB", "head")
    d.text(10, 38, "each has a SHA-256 in the table at the start of the file", "note")
    most = max(sum(parts.values()) for parts in groups.values())
    for i, (name, parts) in enumerate(rows):
        y, x = 52 + 30 * i, 130.0
        d.text(10, y + 15, name, "code")
        for k, (part, size) in enumerate(parts.items()):
            w = max(2.0, 200 * size / most)
            colour = {"code": BLUE, "image": GREEN, "plan": PINK, "weights": ORANGE}.get(part, GREY)
            d.box(x, y, w, 22, colour, rx=2)
            x += w + 1
            if len(parts) == 1:
                d.text(x + 8, y + 15, f"{_bytes(size)}   {words.get(part, part)}", "note")
            elif k == len(parts) - 1:
                said = ", ".join(f"{p} {_bytes(n)}" for p, n in parts.items() if n > 100)
                d.text(x + 8, y + 15, said, "note")
    return d


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size / 1024:.0f} KiB"


def record() -> Drawing:
    """What a record of three training steps keeps: arrays once, results by digest."""

    @ts.jit
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * ts.grad(lambda w: op.mean(op.square(op.tanh(x @ w))))(w)

    r = np.random.default_rng(0)
    w, x = (ts.tensor(r.normal(size=s).astype(np.float32)) for s in ((6, 3), (9, 6)))
    with tempfile.TemporaryDirectory() as folder:
        with ts.record(Path(folder) / "run.tsr", ops=True) as run:
            for _ in range(3):
                w = step(w, x)
        calls = run.record.calls
    made: dict[str, int] = {}
    stored: dict[str, str] = {}
    d = Drawing(780, 240, "What a record keeps")
    d.text(10, 20, "three calls of step(w, x)", "head")
    d.text(
        10,
        38,
        "orange: arrays in the file; grey: digests alone, since the replay makes them",
        "note",
    )
    for i, c in enumerate(calls):
        x0 = 136.0 + 210 * i
        d.box(x0, 80, 130, 100, BLUE, rx=8)
        d.text(x0 + 65, 102, f"call {i}: {c.function}", "head", middle=True)
        d.text(
            x0 + 65, 124, "program: Graph IR" if i == 0 else "the same program", "note", middle=True
        )
        d.text(x0 + 65, 144, f"{len(c.ops)} ops, each with", "note", middle=True)
        d.text(x0 + 65, 162, "digest and line", "note", middle=True)
        for k, (name, value) in enumerate(zip(("w", "x"), c.inputs, strict=True)):
            if value.digest in made:
                continue
            if value.digest not in stored:
                stored[value.digest] = name
                size = ",".join(map(str, value.shape))
                d.box(10, 104 + 96 * k, 96, 28, ORANGE)
                d.text(58, 122 + 96 * k, f"{name}: {value.dtype}[{size}]", "code", middle=True)
            if name == "x":
                d.line((106, 214), (x0 + 30, 214), (x0 + 30, 180))
            else:
                d.line((106, 118), (x0, 118), arrow=True)
        made[c.outputs[0].digest] = i
        d.box(x0 + 146, 128, 48, 28, GREY)
        d.text(x0 + 170, 146, f"w{i + 1}", "code", middle=True)
        d.line((x0 + 130, 142), (x0 + 146, 142))
        if i + 1 < len(calls):
            d.line((x0 + 194, 142), (x0 + 210, 142), arrow=True)
    return d
