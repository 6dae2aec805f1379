"""Draws the pictures of the documentation from the code: docs/images/*.svg.

Each picture is made of what the compiler, the algebra or a mesh says about a small program, so it cannot
grow old in silence:
`python -m tools.pictures --check` fails where one has changed, and so does a test.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import bf16, dist, op
from tessera.core.folds import LANES
from tessera.ir.tile.ir import Block, Operation
from tessera.train.history import History
from tools.drawing import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, Drawing
from tools.pictures_of_data import batches, bundle, indices, module, record, witness
from tools.pictures_of_methods import derivation, levels, passes, solvers
from tools.pictures_of_programs import grid, schedules
from tools.pictures_of_runs import gpu, profile, slots, streams
from tools.pictures_of_state import kernels, ring, sizes

FOLDER = Path(__file__).parent.parent / "docs" / "images"
# The four levels of one program ------------------------------------------------------------------

SOURCE = """@ts.jit
def layer(x, w, b):
    return op.relu(x @ w + b)"""


def layer(x: Any, w: Any, b: Any) -> Any:
    """The program of the first picture."""
    return op.relu(x @ w + b)


def four_levels() -> Drawing:
    """One program in Python and at the four levels, shortened to what matters."""
    given = [op.ones(shape, bf16) for shape in ((4096, 1024), (1024, 512), (512,))]
    low = ts.jit(layer, target="cuda:sm_90").lower(*given)
    panels = [
        ("Python", "what you write", SOURCE.split("\n"), (10, 10, 310)),
        ("Graph IR", "what is computed", list(_graph_lines(low.graph)), (10, 118, 310)),
        ("Schedule IR", "which kernels, which loops", list(_schedule_lines(low.schedule)), (345, 10, 330)),
        ("Tile IR", "one instance of a kernel", _tile_lines(low.tile), (345, 133, 330)),
        ("Target IR", "Triton here, LLVM on CPUs", _target_lines(low.target), (700, 10, 380)),
    ]  # fmt: skip
    tall = max(y + 44 + 15 * len(lines) for _, _, lines, (_, y, _) in panels)
    d = Drawing(1090, tall + 10, "One program at four levels")
    for name, what, lines, (x, y, w) in panels:
        d.box(x, y, w, 40 + 15 * len(lines), rx=8)
        d.text(x + 12, y + 20, name, "head")
        d.text(x + w - 12 - 6.2 * len(what), y + 20, what, "note")
        for i, line in enumerate(lines):
            d.text(x + 12, y + 42 + 15 * i, line, "code")
    d.line((165, 95), (165, 118))
    d.line((320, 180), (332, 180), (332, 60), (345, 60), arrow=True)
    d.line((510, 110), (510, 133))
    d.line((675, 180), (687, 180), (687, 60), (700, 60), arrow=True)
    return d


def _graph_lines(g: Any) -> Iterator[str]:
    names = dict(zip(g.inputs, g.input_names, strict=True))
    yield from (f"{names[v]}: {v.type}" for v in g.inputs)
    for i, n in enumerate(g.nodes):
        names[n.results[0]] = f"%{i}"
        words = ", ".join(names[v] for v in n.operands)
        yield f"%{i} = {n.op.name}({words}) : {n.results[0].type}"
    yield f"return {names[g.outputs[0]]}"


def _schedule_lines(p: Any) -> Iterator[str]:
    for step in p.steps:
        yield f"kernel {step.name}"
        for s in step.stages:
            yield _cut(f"  {re.sub(r'_(?:t[0-9]+_|r)', '', str(s))}", 47)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _tile_lines(kernels: Any) -> list[str]:
    return list(_operations(next(iter(kernels.values())).body, 0))


def _operations(block: Block, depth: int) -> Iterator[str]:
    for o in block.operations:
        yield "  " * depth + _operation(o)
        if o.block is not None:
            yield from _operations(o.block, depth + 1)


def _operation(o: Operation) -> str:
    shape = "x".join(map(str, o.results[0].shape)) if o.results else ""
    if o.name == "for":
        name, stop, step = (o.attributes[k] for k in ("variable", "stop", "step"))
        return f"for {name.strip('_')} in 0..{stop} by {step}:"
    word = o.attributes["scalar"] if o.name == "apply" else o.name
    return f"{word:10} {shape}".rstrip()


def _target_lines(modules: Any) -> list[str]:
    """The body of the kernel."""
    text = str(modules)
    lines = text[text.rindex("@triton.jit") :].rstrip().split("\n")
    return [_cut(line, 54) for line in lines]


# Structure of operators --------------------------------------------------------------------------


def operators() -> Drawing:
    """Where the entries of some operators are, and what is kept of each."""
    n = 16
    row = ts.tensor(np.exp(-np.arange(n) / 5.0))
    band = (op.full((n - 1,), -1.0), op.full((n,), 2.0), op.full((n - 1,), -1.0))
    shown: list[tuple[str, Any, str]] = [
        ("toeplitz(c, r)", op.toeplitz(row, row), "31 numbers, fast solver"),
        ("circulant(c)", op.circulant(row), "16 numbers, FFT"),
        ("tridiagonal(l, d, u)", op.tridiagonal(*band), "46 numbers, one sweep"),
        ("kronecker(A, B)", op.kronecker(op.dense(_noise(4, 4)),
        op.tridiagonal(*(x[:k] for x, k in zip(band, (3, 4, 3), strict=True)))),
        "26 numbers, factor by factor"),
        ("low_rank(U, V)", op.low_rank(_noise(n, 2), _noise(n, 2)), "64 numbers, two thin products"),
    ]  # fmt: skip
    d = Drawing(190 * len(shown) + 10, 240, "Structured operators")
    for k, (name, a, note) in enumerate(shown):
        matrix = np.abs(np.asarray(a.todense().numpy()))
        top, x0, side = matrix.max(), 15 + 190 * k, 168 / n
        d.text(x0 + 84, 20, name, "head", middle=True)
        for i, j in np.ndindex(n, n):
            if matrix[i, j] > 0.01 * top:
                opacity = 0.15 + 0.85 * matrix[i, j] / top
                d.parts.append(
                    f'<rect x="{x0 + side * j:.1f}" y="{32 + side * i:.1f}" width="{side:.1f}" '
                    f'height="{side:.1f}" '
                    f'fill="{BLUE}" fill-opacity="{opacity:.2f}"/>'
                )
        d.parts.append(f'<rect x="{x0}" y="32" width="168" height="168" class="line"/>')
        d.text(x0 + 84, 222, note, "note", middle=True)
    return d


def _noise(*shape: int) -> Any:
    return ts.tensor(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


# Layouts on a mesh -------------------------------------------------------------------------------


def mesh() -> Drawing:
    """Which part of a matrix each device of a 2 x 4 mesh holds, for three layouts."""
    m = dist.Mesh(["dp", "tp"], shape=(2, 4))
    layouts = [
        ("rows over dp", dist.ShardSpec((0,), ("dp",))),
        ("columns over tp", dist.ShardSpec((1,), ("tp",))),
        ("rows over dp, columns over tp", dist.ShardSpec((0, 1), ("dp", "tp"))),
    ]
    d = Drawing(760, 250, "Layouts on a mesh")
    for k, (name, spec) in enumerate(layouts):
        t = dist.tensor(np.arange(16.0 * 16, dtype=np.float32).reshape(16, 16), layout=spec, mesh=m)
        x0, side = 20 + 250 * k, 13.0
        d.text(x0 + 104, 20, name, "head", middle=True)
        owners: dict[tuple[int, ...], list[int]] = {}
        for device in range(8):
            part = np.asarray(t.local(device).numpy())
            first, last = divmod(int(part.flat[0]), 16), divmod(int(part.flat[-1]), 16)
            owners.setdefault((*first, *last), []).append(device)
        for i, ((top, left, bottom, right), devices) in enumerate(owners.items()):
            colour = (BLUE, ORANGE, GREEN, PINK, YELLOW, GREY, "#56b4e9", "#f0e442")[i]
            w, h = side * (right - left + 1), side * (bottom - top + 1)
            d.box(x0 + side * left, 34 + side * top, w, h, colour, rx=2)
            words = (
                ", ".join(map(str, devices))
                if w > 60 or len(devices) < 3
                else f"{devices[0]}, {devices[-1]}"
            )
            d.text(x0 + side * left + w / 2, 38 + side * top + h / 2, words, "", middle=True)
    return d


# The tree of a sum -------------------------------------------------------------------------------


def tree() -> Drawing:
    """How the terms of a leaf are paired: 16 lanes, then halves, whatever the threads and blocks are."""
    d = Drawing(720, 300, "The order of a sum")
    step = 700 / LANES
    d.text(
        10,
        18,
        f"a leaf of a sum: {LANES} lanes in order, then the upper half onto the lower",
        "head",
    )
    level = [(10 + step * (i + 0.5), 92.0) for i in range(LANES)]
    for i, (x, y) in enumerate(level):
        for k in range(3):
            d.box(x - 17, y - 58 + 16 * k, 34, 13, BLUE, rx=2)
            d.text(x, y - 48 + 16 * k, f"x{i + LANES * k}", "note", middle=True)
        d.text(x, y + 2, "…", "note", middle=True)
    while len(level) > 1:
        half = len(level) // 2
        low = [(x, y + 50) for x, y in level[:half]]
        for i, (x, y) in enumerate(low):
            for px, py in (level[i], level[i + half]):
                d.line((px, py + 8), (x, y - 7))
            d.box(x - 9, y - 7, 18, 15, ORANGE, rx=7)
            d.text(x, y + 4, "+", "", middle=True)
        level = low
    return d


# Reverse mode as a program -----------------------------------------------------------------------


def loss(x: Any, w: Any) -> Any:
    """The function of the picture of derivatives."""
    return op.sum(op.tanh(x @ w))


def gradient() -> Drawing:
    """A function and its gradient, both as graphs: reverse mode is a transformation of programs."""
    given = op.ones((4, 3)), op.ones((3, 2))
    graphs = [
        ("loss", "what you write", ts.trace(loss, *given)),
        ("ts.grad(loss, argnums=1)", "what is made of it", ts.trace(ts.grad(loss, argnums=1), *given)),
    ]  # fmt: skip
    texts = [list(_graph_lines(g)) for _, _, g in graphs]
    tall = 40 + 15 * max(map(len, texts))
    d = Drawing(800, tall + 20, "A function and its gradient")
    for k, ((name, what, _), lines) in enumerate(zip(graphs, texts, strict=True)):
        x = 10 + 400 * k
        d.box(x, 10, 370, tall, rx=8)
        d.text(x + 12, 30, name, "head")
        d.text(x + 358 - 6.2 * len(what), 30, what, "note")
        for i, line in enumerate(lines):
            d.text(x + 12, 52 + 15 * i, line, "code")
    d.line((380, 60), (410, 60), arrow=True)
    return d


# Memory of a program -----------------------------------------------------------------------------


def chain(x: Any, w: Any) -> Any:
    """The program of the picture of memory."""
    for _ in range(6):
        x = op.tanh(x @ w)
    return x


def memory() -> Drawing:
    """Which buffer is where, from which step to which: six products share the memory of two."""
    given = op.ones((128, 128)), op.ones((128, 128))
    plan = ts.jit(chain, target="cuda:sm_90").lower(*given).memory
    own = [s for s in plan.storages if s.kind != "input"]
    places = list(dict.fromkeys((s.space, s.offset) for s in own))
    results = {s.space for s in own if s.kind == "result"}
    d = Drawing(760, 46 + 62 * len(places), "Where the values of a program are")
    count = len(plan.steps)
    wide = 620 / count
    for i, step in enumerate(plan.steps):
        d.text(120 + wide * (i + 0.5), 20, step.name, "note", middle=True)
    for k, (space, _) in enumerate(places):
        what = "the result" if space in results else "the arena"
        d.text(10, 62 + 62 * k, what, "note")
    for j, s in enumerate(own):
        y = 34 + 62 * places.index((s.space, s.offset))
        for name, (first, last) in s.lives.items():
            begin, end = max(first, 0), min(last, count - 1) + 1
            colour = (BLUE, ORANGE, GREEN, PINK, YELLOW, GREY)[j % 6]
            d.box(122 + wide * begin, y, wide * (end - begin) - 4, 48, colour, rx=4)
            d.text(120 + wide * (begin + end) / 2, y + 28, name, "code", middle=True)
    return d


# Curves of a run ---------------------------------------------------------------------------------


def curves() -> Drawing:
    """What the dashboard draws: a curve that is longer than its points, with mean and range."""
    run = History("descent", lambda: 0.0)
    w = 2.0
    for step in range(
        1, 4001
    ):  # whole numbers of a generator, so that every machine draws the same
        noise = (step * step * 7919 % 101 - 50) / 100
        w -= 0.0005 * (2 * (w - 1) + noise)
        run.add(step, {"loss": (w - 1) * (w - 1) + 0.25 + noise / 5}, {})
    points = run.curves["loss"].points
    d = Drawing(720, 240, "The curve of a run")
    top = max(p.high for p in points)

    def at(step: int, value: float) -> tuple[float, float]:
        return 50 + 650 * step / 4000, 200 - 165 * value / top

    band = [*(at(p.step, p.high) for p in points), *(at(p.step, p.low) for p in reversed(points))]
    shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in band)
    mean = " ".join("{:.1f},{:.1f}".format(*at(p.step, p.mean)) for p in points)
    d.text(50, 20, f"loss: 4,000 steps in {len(points)} points", "head")
    d.line((50, 30), (50, 200), (700, 200))
    d.parts.append(f'<polygon points="{shape}" fill="{BLUE}" fill-opacity=".25"/>')
    d.parts.append(f'<polyline points="{mean}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    for step in range(0, 4001, 1000):
        d.text(50 + 650 * step / 4000, 218, str(step), "note", middle=True)
    d.text(700 - 6.2 * 50, 60, "the line is the mean, the band minimum to maximum", "note")
    return d


PICTURES: dict[str, Callable[[], Drawing]] = {
    "four-levels": four_levels,
    "operators": operators,
    "mesh": mesh,
    "sum-tree": tree,
    "gradient": gradient,
    "memory": memory,
    "curves": curves,
    "grid": grid,
    "schedules": schedules,
    "ring": ring,
    "kernels": kernels,
    "sizes": sizes,
    "batches": batches,
    "bundle": bundle,
    "indices": indices,
    "module": module,
    "record": record,
    "witness": witness,
    "derivation": derivation,
    "levels": levels,
    "fourier": passes,
    "solvers": solvers,
    "gpu": gpu,
    "profile": profile,
    "slots": slots,
    "streams": streams,
}


def main(words: Sequence[str] | None = None) -> int:
    """Write the pictures, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a picture has changed")
    check, old = parser.parse_args(words).check, []
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        path, text = FOLDER / f"{name}.svg", str(draw())
        if check and (not path.exists() or path.read_text() != text):
            old.append(name)
        elif not check:
            path.write_text(text)
    print("\n".join(f"{name}: run python -m tools.pictures" for name in old), end="")
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
