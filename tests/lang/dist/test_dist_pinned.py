"""What layouts, strategies, reports and plans of functions say, over all of their forms."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import TesseraError
from tessera.core.shardspec import ShardSpec
from tessera.lang.dist import strategy
from tessera.lang.dist.alpa import alpa_shard
from tessera.lang.dist.planning import plan, strategy_of
from tessera.lang.dist.scope import mesh as scope
from tessera.plan.machine import ranks
from tests.support.pinned import pinned, short

RUNS_ON = "numpy"
GRID, LINE = dist.Mesh(("dp", "tp"), shape=(2, 4)), dist.Mesh(("dp",), shape=(4,))
SPEC = ShardSpec


def said(f: Callable[[], Any]) -> str:
    """A result, or what an error says."""
    try:
        return str(f())
    except TesseraError as e:
        return str(e).splitlines()[0]


def layout(x: Any) -> str:
    """The type of a tensor with its layout."""
    return str(x.layout)


# Layouts ------------------------------------------------------------------------------------------

SPECS = [
    SPEC(), SPEC("row", "dp"), SPEC("col", "tp"), SPEC((0,), ("dp",)), SPEC((-1, 0), ("tp", "dp")),
    SPEC((1,), (("dp", "tp"),)), SPEC((0, 1), (None, "dp")), SPEC((0, 0), ("dp", "tp")), SPEC((0, 1),
    ("dp", "dp")),
    SPEC((2,), ("dp",)), SPEC((-3,), ("dp",)), SPEC("a", "dp"), SPEC("b", "tp"), SPEC((0,), ("x",)),
    SPEC((1.5,), ("dp",)),
]  # fmt: skip
SCOPES: list[dict[str, str | None]] = [
    {}, {"batch": "dp"}, {"batch": "dp", "wide": "tp"}, {"batch": "replicate", "wide": "tp"},
    {"batch": None}, {"batch": "x"},
]  # fmt: skip


def layouts() -> Iterator[str]:
    for spec, shape, names in itertools.product(
        SPECS, ((8, 8), (6, 4), (8,), ()), ((), ("a", "b"))
    ):
        names = names[: len(shape)]
        yield f"{spec} {shape} {names}: {said(lambda s=spec, h=shape, n=names: s.layout(h, GRID, n).cuts)}"
    yield said(lambda: SPEC((0, 1), ("dp",)))
    for given, on in itertools.product(SCOPES, (GRID, LINE, 4, [3, 1])):
        yield f"scope {given} {on}: {said(lambda g=given, o=on: scope(o, g))}"
    made = scope(GRID, {"batch": "dp", "wide": "tp", "deep": None})
    for names in ((), ("batch",), ("x", "wide"), ("wide", "deep", "batch")):
        yield f"{names}: {made.spec(names)}"
    for f in (lambda: made.shard("rows"), lambda: made.shard(rows="tp"), lambda: made.shard(batch="tp",
    rows="dp"),
              lambda: scope(LINE).shard("rows", "columns"), lambda: scope(LINE).shard("rows",
              columns="dp"),
              lambda: scope(3, {"x": None}), lambda: scope(8, {"x": "a", "y": "b"}, (2, 4))):  # fmt: skip
        yield said(f)


def test_layouts_and_scopes() -> None:
    pinned("dist_layouts", layouts())


# Strategies ---------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[int, ...]] = {
    "embed": (16, 8), "layers[0].mlp.up": (8, 32), "layers[0].mlp.down": (32, 8), "layers[0].up": (8, 3),
    "experts.up": (4, 8, 8),
    "bias": (8,), "scale": (), "odd": (7, 3), "blocks.w": (2, 4, 8, 8),
}  # fmt: skip
MADE: dict[str, Callable[[], Any]] = {
    "data": lambda: strategy.data(GRID), "zero1": lambda: strategy.zero1(GRID),
    "zero2": lambda: strategy.zero2(GRID),
    "zero3": lambda: strategy.zero3(GRID), "zero3 tp": lambda: strategy.zero3(GRID, "tp"),
    "tensor": lambda: strategy.tensor(GRID, rules={"up": 1, "down": 0, "embed": None}),
    "labels": lambda: strategy.tensor(GRID, "dp", {"mlp.up": "col", "mlp.down": "row", "bias": -1}),
    "sequence": lambda: strategy.sequence(GRID, "tp"), "expert": lambda: strategy.expert(GRID, "tp"),
    "pipeline": lambda: strategy.pipeline(GRID, "tp"),
    "both": lambda: strategy.zero3(GRID) + strategy.tensor(GRID, rules={"up": 1, "down": 0}),
    "all": lambda: strategy.zero2(GRID) + strategy.expert(GRID, "tp") + strategy.sequence(GRID, "tp"),
    "meshes": lambda: strategy.data(GRID) + strategy.data(LINE), "axis": lambda: strategy.data(GRID, "x"),
    "rules": lambda: strategy.tensor(GRID), "label": lambda: strategy.tensor(GRID, rules={"up": "x"}),
    "number": lambda: strategy.tensor(GRID, rules={"up": 1.5}),  # type: ignore[dict-item]
}  # fmt: skip


def strategies() -> Iterator[str]:
    for name, make in MADE.items():
        text = said(make)
        yield f"{name}: {text}"
        if not text.startswith("Strategy"):
            continue
        s = make()
        for path, shape in SHAPES.items():
            specs = [
                s.spec(path, shape, axes) for axes in ((), s.of_params, s.of_grads, s.of_state)
            ]
            yield f"  {path}: " + " ".join(short([x.partition, x.mesh_axes]) for x in specs)
        for shape in ((8, 8), (8,), ()):
            yield f"  batch {shape}: " + said(lambda h=shape, s=s: layout(s.batch(np.zeros(h))))
    params = {"up": np.zeros((4, 8)), "deep": {"down": np.zeros((8, 4))}, "bias": np.zeros(4)}
    for rules in (
        {"up": 1},
        {"x": 1},
        {"bias": 1},
        {"bias": -2},
        {"deep.down": 0},
        {"down.deep": 0},
        {"up": 2},
    ):
        yield f"{rules}: " + said(lambda r=rules: {k: layout(v) for k, v in strategy.tensor(GRID, "dp", r).params(params).items() if k != "deep"})  # fmt: skip
    many = {f"p{k}": np.zeros(4) for k in range(9)}
    yield said(lambda: strategy.tensor(GRID, "dp", {"x": 0}).params(many))
    yield said(
        lambda: strategy.tensor(GRID, "dp", {"x": 0}).params(
            {k: v for k, v in many.items() if k != "p8"}
        )
    )
    yield said(lambda: strategy.data(GRID).step(lambda p: 0, 3))


def test_strategies() -> None:
    pinned("dist_strategies", strategies())


# Reports ------------------------------------------------------------------------------------------

LAYOUTS = {
    "whole": SPEC(),
    "rows": SPEC((0,), ("dp",)),
    "columns": SPEC((1,), ("tp",)),
    "both": SPEC((0, 1), ("dp", "tp")),
}
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "sum": (lambda x: op.sum(x), (8, 8)), "rows": (lambda x: op.sum(x, axis=1), (8, 8)),
    "softmax": (op.softmax, (8, 8)),
    "matmul": (lambda x, y: x @ y, (8, 8), (8, 8)), "gram": (lambda x: op.transpose(x) @ x, (8, 8)),
    "sort": (lambda x: op.sort(x, axis=0), (8, 8)),
    "cumsum": (lambda x: op.cumsum(x, axis=1), (8, 8)), "max": (lambda x: op.max(x, axis=0), (8, 8)),
    "reshape": (lambda x: op.reshape(x, (4, 16)), (8, 8)),
    "concat": (lambda x, y: op.concat([x, y], axis=0), (8, 8), (8, 8)), "slice": (lambda x: x[1:5], (8,
    8)), "roll": (lambda x: op.roll(x, 1, 0), (8, 8)),
    "scan": (lambda x: op.scan(lambda c, r: (c + op.sum(r), c), op.sum(x[0]), x)[0], (8, 8)),
    "flip": (lambda x: op.flip(x, 0), (8, 8)),
    "take": (lambda x: op.take(x, np.array([0, 3]), axis=0), (8, 8)), "argmax": (lambda x: op.argmax(x,
    axis=1), (8, 8)),
    "odd": (lambda x: op.sum(x * 2, axis=0), (6, 8)), "grad": (ts.grad(lambda x,
    y: op.sum(op.tanh(x @ y))), (8, 8), (8, 8)),
}  # fmt: skip


def reports() -> Iterator[str]:
    for name, (f, *shapes) in FUNCTIONS.items():
        for specs in itertools.product(LAYOUTS, repeat=len(shapes)):
            xs = [dist.tensor(s, LAYOUTS[k], GRID) for s, k in zip(shapes, specs, strict=True)]
            text = said(lambda f=f, xs=xs: dist.explain(f, *xs))
            yield f"{name} {' '.join(specs)}: " + re.sub(r"  at \S+:\d+(: .*)?", "", text)
            if text.startswith(("<lambda>", "softmax")):
                r = dist.explain(f, *xs)
                yield f"  {r.bytes} {r.counts} {len(r)} " + " ".join(
                    f"{c.bytes} {c.times} {c.is_asked}" for c in r
                )


@pytest.mark.filterwarnings("ignore")
def test_reports_of_programs() -> None:
    pinned("dist_reports", reports())


# Plans of functions -------------------------------------------------------------------------------


def loss(params: Any, x: Any) -> Any:
    return op.mean(op.square(op.tanh(x @ params["up"]) @ params["down"] - x))


def plans() -> Iterator[str]:
    types = {"up": ts.Tensor[64, 256, ts.f32], "down": ts.Tensor[256, 64, ts.f32]}
    for rows, more in itertools.product(
        (4, 64), ({}, {"zero": 1}, {"zero": 3, "tp": 1}, {"tp": 2}, {"rules": {"up": 1, "down": 0}})
    ):
        p = plan(loss, ranks(4), types, ts.Tensor[rows, 64, ts.f32], **more)
        yield f"{rows} {more}: {p.explain()}"
        yield short([p.step, p.flops, p.rules]) + " " + str(strategy_of(p))
    for args, named in (
        (("gpt-oss-20b", "8xh100"), {"zero": 0}), (("gpt-oss-20b", "8xh100"), {"tp": 2,
        "rules": {"x": 1}}),
        (("gpt-oss-20b", "8xh100", types), {}), ((loss, "8xh100"), {}), ((3, "8xh100", types), {}),
        ((loss, ranks(4), types, ts.Tensor[6, 64, ts.f32]), {"tp": 3}), ((loss, ranks(4), types,
        ts.Tensor[6, 64, ts.f32]), {"zero": 4}),
        *(((loss, ranks(4), types, ts.Tensor[6, 64, ts.f32]), w)
          for w in ({"zero": -1}, {"zero": "x"}, {"tp": 0}, {"tp": "x"})),
    ):  # fmt: skip
        yield f"{len(args)} {named}: {said(lambda a=args, n=named: plan(*a, **n))}"
    yield said(lambda: strategy_of(plan("gpt-oss-20b", "8xh100", batch=64)))


def test_plans_of_functions() -> None:
    pinned("dist_plans", plans())


def test_choices_of_layouts() -> None:
    made = []
    for rows, columns in ((4, 64), (64, 4), (16, 16), (3, 5)):
        f = alpa_shard(lambda x, w: op.sum(x @ w), LINE)
        c = f.choice(np.zeros((rows, 16), np.float32), np.zeros((16, columns), np.float32))
        made.append(f"{rows} {columns}: {c} {short(c.cost)} {c.tried}")
    pinned("dist_choices", made)


def test_a_scalar_stays_one_over_ranks() -> None:
    """Arrays that are made contiguous had an axis more."""
    x = ts.tensor(3.0)
    for f, shape in ((dist.broadcast, ()), (dist.all_reduce, ()), (dist.all_gather, (1,))):
        assert f(x).shape == shape, f
        assert float(op.sum(f(x))) == 3.0
