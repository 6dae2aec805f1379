"""Modules: bundles that import from others are linked into one, which has the bits of the whole function."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, cli, op
from tessera.core.errors import OperandError, ShapeError
from tessera.deploy.targets import usable
from tests.deploy.test_bundle_c import COMPILER, build, record

RNG = np.random.default_rng(8)


def normal(*shape: int) -> Any:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


TABLE, W, HEAD = normal(40, 24), normal(24, 16), normal(16, 9)
WEIGHTS = {"table": TABLE, "w": W}


def encode(p: Any, ids: Tensor["n", "s", ts.i32]) -> Any:
    """The mean of what words stand for: a loop over the words, and a layer."""
    rows = op.transpose(op.take(p["table"], ids, axis=0), (1, 0, 2))
    zero = ts.zeros((ids.shape[0], 24))
    carry, _ = ts.scan(lambda c, x: (c * 0.5 + x, op.sum(x)), zero, rows)
    return op.gelu(op.matmul(carry, p["w"]))


def pooled(p: Any, x: Tensor["k", 16]) -> Any:
    return {
        "best": op.argmax(op.matmul(x, p)),
        "all": op.reshape(op.matmul(x, p), (x.shape[0] * 9,)),
    }


encoded = ts.bundle.imported("text.encode", Tensor["m", 16])
pool = ts.bundle.imported("head.pooled", Tensor["9*m"], Tensor[ts.i64])


def pipeline(ids: Tensor["m", 5, ts.i32], bias: Tensor["m", 16]) -> Any:
    every, best = pool(encoded(ids) + bias)
    return op.softmax(op.reshape(every, (ids.shape[0], 9))), best


def whole(ids: Any, bias: Any) -> Any:
    found = pooled(HEAD, encode(WEIGHTS, ids) + bias)
    return op.softmax(op.reshape(found["all"], (ids.shape[0], 9))), found["best"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("parts")
    ids, x = Tensor["n", "s", ts.i32], Tensor["k", 16]
    ts.bundle.save(encode, folder / "text.tess", ids, weights=WEIGHTS)
    ts.bundle.save(pooled, folder / "head.tess", x, weights=HEAD)
    ts.bundle.save(pipeline, folder / "main.tess", Tensor["m", 5, ts.i32], Tensor["m", 16])
    return {n: folder / f"{n}.tess" for n in ("main", "text", "head")}


def given(n: int) -> tuple[Any, Any]:
    ids = RNG.integers(0, 40, (n, 5)).astype(np.int32)
    return ts.tensor(ids), normal(n, 16)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in ts.tree.leaves(tree)]


def test_a_linked_bundle_has_the_bits_of_the_whole_function(parts: dict[str, Path], tmp_path: Path):
    ts.bundle.link(tmp_path / "all.tess", parts)
    b = ts.bundle.load(tmp_path / "all.tess")
    assert sorted(b.entries) == ["encode", "pipeline", "pooled"]
    assert len(b.weights) == 3
    for n in (1, 4):
        args = given(n)
        assert bits(b.entry("pipeline").run(*args)) == bits(ts.jit(whole)(*args))
        x = normal(n, 16)
        assert bits(b.entry("pooled").run(x)) == bits(ts.jit(pooled)(HEAD, x))
    again = ts.bundle.link(
        tmp_path / "again.tess", {n: ts.bundle.load(p) for n, p in parts.items()}
    )
    assert again == b.digest


@pytest.mark.skipif(not (COMPILER and usable()), reason="no C compiler for this processor")
def test_c_runs_what_was_linked(parts: dict[str, Path], tmp_path: Path):
    ts.bundle.link(tmp_path / "all.tess", parts, exports={"run": "main.pipeline"})
    args = given(3)
    record(tmp_path / "record", [*args, *ts.jit(whole)(*args)])
    program = build(tmp_path / "run", "run.c", "-O0")
    run = [str(program), str(tmp_path / "all.tess"), str(tmp_path / "record"), "run", "2"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "the same bits" in done.stderr, done.stderr


def test_an_entry_point_is_part_of_a_function_that_calls_it(parts: dict[str, Path], tmp_path: Path):
    text = ts.bundle.load(parts["text"]).entry("encode")

    def twice(ids: Any) -> Any:
        return op.sum(text(ids) * text(op.flip(ids, axis=1)), axis=-1)

    def by_hand(ids: Any) -> Any:
        return op.sum(encode(WEIGHTS, ids) * encode(WEIGHTS, op.flip(ids, axis=1)), axis=-1)

    ids = given(4)[0]
    assert bits(ts.jit(twice)(ids)) == bits(ts.jit(by_hand)(ids))
    ts.bundle.save(twice, tmp_path / "f", Tensor["a", 3, ts.i32])
    short = ts.tensor(np.asarray(ids)[:, :3])
    assert bits(ts.bundle.load(tmp_path / "f").run(short)) == bits(ts.jit(by_hand)(short))
    head = ts.bundle.load(parts["head"]).entry("pooled")
    x = normal(2, 16)
    got = ts.grad(lambda x: op.sum(head(x)["all"]))(x)
    assert bits(got) == bits(ts.grad(lambda x: op.sum(pooled(HEAD, x)["all"]))(x))


def test_the_command_links(
    parts: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "all.tess")
    given = [f"{n}={p}" for n, p in parts.items()]
    assert cli.main(["bundle", "link", *given, "--out", out, "--export", "main.pipeline"]) == 0
    assert ts.bundle.load(out).entries == ("pipeline",)
    assert cli.main(["bundle", "link", "main", "--out", out]) == 2
    assert "main is expected to be NAME=PATH" in capsys.readouterr().err


def test_wrong_links_are_explained(parts: dict[str, Path], tmp_path: Path):
    out = tmp_path / "f"
    with pytest.raises(
        OperandError,
        match=r"pipeline: it imports text.encode, head.pooled and has no code; link it",
    ):
        ts.bundle.load(parts["main"]).run(*given(2))
    with pytest.raises(
        OperandError,
        match=r"main.pipeline imports head.pooled, which no bundle that is linked exports",
    ):
        ts.bundle.link(out, {n: parts[n] for n in ("main", "text")})
    with pytest.raises(
        OperandError, match=r"a.pooled and b.pooled have one name; give them others"
    ):
        ts.bundle.link(out, {"a": parts["head"], "b": parts["head"]})
    with pytest.raises(
        OperandError, match=r"no bundle that is linked exports head.other; they export head.pooled"
    ):
        ts.bundle.link(out, {"head": parts["head"]}, exports=["head.other"])
    with pytest.raises(OperandError, match=r"an import is named 'encode', expected"):
        ts.bundle.imported("encode", Tensor[3])
    with pytest.raises(OperandError, match=r"text.encode: it is imported and has no code here"):
        encoded(given(2)[0])
    other = ts.bundle.imported("head.pooled", Tensor[8])
    ts.bundle.save({"f": (lambda x: other(x), ts.zeros((1, 16)))}, tmp_path / "g.tess")
    with pytest.raises(
        OperandError,
        match=r"m.f states that head.pooled gives f32\[8\], it gives f32\[9\], i64\[\]",
    ):
        ts.bundle.link(out, {"m": tmp_path / "g.tess", "head": parts["head"]})
    ts.bundle.save({"f": (lambda x: other(x), ts.zeros((1, 17)))}, tmp_path / "g.tess")
    with pytest.raises(
        ShapeError, match=r"head.pooled: p?x? ?is? ?.*f32\[1,17\], expected f32\[1,16\]"
    ):
        ts.bundle.link(out, {"m": tmp_path / "g.tess", "head": parts["head"]})


def test_imports_that_lead_back_and_those_in_loops_are_refused(tmp_path: Path):
    one, two = ts.bundle.imported("two.g", Tensor[4]), ts.bundle.imported("one.f", Tensor[4])
    ts.bundle.save({"f": (lambda x: one(x), ts.zeros((4,)))}, tmp_path / "one")
    ts.bundle.save({"g": (lambda x: two(x), ts.zeros((4,)))}, tmp_path / "two")
    with pytest.raises(OperandError, match=r"one.f imports two.g imports one.f, which never ends"):
        ts.bundle.link(tmp_path / "f", {"one": tmp_path / "one", "two": tmp_path / "two"})

    def looped(x: Any) -> Any:
        return ts.scan(lambda c, r: (one(c), r), x, ts.zeros((3,)))

    with pytest.raises(OperandError, match=r"h imports two.g in a loop or a branch"):
        ts.bundle.save({"h": (looped, ts.zeros((4,)))}, tmp_path / "three")
