"""Arguments of entry points: by position or name, trees by the names of their leaves, what is no tensor as it was fixed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import FileError, OperandError
from tessera.deploy import container, ed25519

RNG = np.random.default_rng(4)


def normal(*shape: int) -> Any:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in ts.tree.leaves(tree)]


@dataclass
class Batch:
    a: Any
    b: Any


def weighted(batch: Any, scale: Tensor[()]) -> Any:
    return batch["a"] * 2.0 - batch["b"] * scale


A, B, S = normal(3), normal(3), normal()


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("calls") / "f.tess"
    ts.bundle.save(weighted, path, {"a": A, "b": B}, S)
    return ts.bundle.load(path)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (({"a": A, "b": B}, S), {}),
        (({"b": B, "a": A}, S), {}),
        ((OrderedDict([("b", B), ("a", A)]), S), {}),
        ((Batch(A, B), S), {}),
        ((A, B, S), {}),
        (({"a": A, "b": B},), {"scale": S}),
        ((S,), {"batch": {"a": A, "b": B}}),
        ((), {"scale": S, "batch": OrderedDict([("b", B), ("a", A)])}),
    ],
)
def test_arguments_reach_their_inputs(entry: Any, args: Any, named: Any):
    assert bits(entry.run(*args, **named)) == bits(ts.jit(weighted)({"a": A, "b": B}, S))


@pytest.mark.parametrize(
    ("args", "named", "text"),
    [
        (({"a": A, "c": B}, S), {}, "weighted: batch has a, c, expected a, b"),
        (({"a": A}, S), {}, "weighted: batch has a, expected a, b"),
        (({"a": A, "b": {"x": B}}, S), {}, "weighted: batch has a, b.x, expected a, b"),
        ((A, [S]), {}, "weighted: batch has no parts, expected a, b"),
        (({"a": A, "b": B}, S, S), {}, "weighted: got 3 arguments, expected 2: batch, scale"),
        (({"a": A, "b": B},), {}, "weighted: got 1 arguments, expected 2: batch, scale"),
        ((A, B), {}, r"weighted: got 2 tensors, expected 3: batch.a: f32\[3\], batch.b: f32\[3\]"),
        ((A, B, S, S), {}, "weighted: got 4 tensors, expected 3"),
        ((), {}, "weighted: got 0 tensors, expected 3"),
        ((), {"scal": S}, "weighted: there is no argument 'scal'; it takes batch, scale"),
        (({"a": A, "b": B}, S, "mean"), {}, "weighted: got 'mean', which is no tensor and was fixed"),
        (({"a": A, "b": B}, {"s": S}), {}, "weighted: scale has s, expected no parts"),
        (({"a": [0.5] * 40, "b": B}, S), {}, r"batch has a.0, .*, a.11 and 29 more, expected a, b"),
    ],
)  # fmt: skip
def test_other_arguments_are_refused(entry: Any, args: Any, named: Any, text: str):
    with pytest.raises(OperandError, match=text):
        entry.run(*args, **named)


def test_what_is_no_tensor_is_fixed(tmp_path: Path):
    @ts.jit(static_argnames=("power",))
    def f(x: Any, power: int, mode: str = "sum") -> Any:
        y = x**power
        return op.sum(y) if mode == "sum" else op.mean(y)

    x = normal(5)
    ts.bundle.save(f, tmp_path / "f", x, 3, "mean")
    e = ts.bundle.load(tmp_path / "f").entry("f")
    want = bits(f(x, 3, "mean"))
    assert bits(e.run(x)) == want
    assert bits(e.run(x, "mean", power=3)) == want
    assert bits(e.run(x=x, mode="mean")) == want
    told = "; the bundle was made for mode='mean', power=3"
    with pytest.raises(OperandError, match=f"f: got 'sum', which is no tensor.*{told}"):
        e.run(x, "sum")
    with pytest.raises(OperandError, match="f: power is 4, but was fixed at 3"):
        e.run(x, power=4)
    with pytest.raises(OperandError, match=f"f: got 2 tensors, expected 1: .*{told}"):
        e.run(x, 4)


def test_a_function_of_any_number_of_trees(tmp_path: Path):
    def total(*xs: Any) -> Any:
        return xs[0]["a"] * 2.0 + xs[1]["a"]

    ts.bundle.save(total, tmp_path / "f", {"a": A}, {"a": B})
    b = ts.bundle.load(tmp_path / "f")
    assert (
        bits(b.run({"a": A}, {"a": B}))
        == bits(b.run(A, B))
        == bits(ts.jit(total)({"a": A}, {"a": B}))
    )


def test_two_entry_points_of_one_name_are_refused(tmp_path: Path):
    name = "a_long_name_of_an_entry_point_that_is"
    with pytest.raises(OperandError, match="two entry points would be called 'a_long_name_of_an"):
        ts.bundle.save({f"{name}_1": (op.exp, A), f"{name}_2": (op.sin, A)}, tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_what_changes_after_it_was_opened_is_not_run(tmp_path: Path):
    """The file of an open bundle is written over in place: code and plans are verified as they are copied."""
    ts.bundle.save(op.exp, tmp_path / "f", A)
    b = ts.bundle.load(tmp_path / "f")
    for s in b.container.sections:
        if s.kind in ("code", "image", "graph"):
            with (tmp_path / "f").open("r+b") as f:
                f.seek(s.offset)
                f.write(b"\0" * 16)
    with pytest.raises(FileError, match="was changed after it was opened: section"):
        b.run(A)


def test_a_file_that_no_reader_takes_is_not_written(tmp_path: Path):
    sections = [("graph", f"graph/f{i}", b"") for i in range(4097)]
    with pytest.raises(OperandError, match="4097 sections, at most 4096 fit; make several"):
        container.write(tmp_path / "f", sections)
    assert not (tmp_path / "f").exists()


def test_keys_are_bytes(tmp_path: Path):
    with pytest.raises(OperandError, match="key is str of 32, expected 32 secret bytes"):
        ts.bundle.save(op.exp, tmp_path / "f", A, key="k" * 32)  # type: ignore[arg-type]
    ts.bundle.save(op.exp, tmp_path / "f", A, key=bytes(range(32)))
    public = ed25519.public(bytes(range(32)))
    assert ts.bundle.load(tmp_path / "f", trusted=(public,)).entries == ("exp",)
    for wrong in ([public.hex()], [public[:31]], public):
        with pytest.raises(OperandError, match="a list of public keys of 32 bytes"):
            ts.bundle.load(tmp_path / "f", trusted=wrong)  # type: ignore[arg-type]


def test_a_signature_needs_digests(tmp_path: Path):
    key = bytes(range(32))
    ts.bundle.save(op.exp, tmp_path / "f", A, key=key)
    with pytest.raises(OperandError, match="with trusted= leave out verify=False"):
        ts.bundle.load(tmp_path / "f", verify=False, trusted=[ed25519.public(key)])
