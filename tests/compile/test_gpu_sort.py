"""Sorting on a GPU: networks in registers and passes over digits give NumPy's order, stable, NaN last."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import as_dtype, bf16, f32, i32, i64
from tessera.core.sorts import order
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu import radix, sort, topk
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tessera.runtime.cuda import driver
from tests.support.fakes.gpu_fake import at, fake_gpu

RUNS_ON = "numpy"
DTYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "bf16", "f4", "f8"]


def draw(shape: tuple[int, ...], kind: str, seed: int = 0) -> Any:
    """Few numbers that come often, and all that is special."""
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(bf16.np if kind == "bf16" else kind)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        far = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.5, far, rng.integers(0, 4, shape).astype(dtype))
    x = (rng.standard_normal(shape) * 2).round(1)
    for special in (np.nan, -np.nan, -0.0, 0.0, np.inf, -np.inf):
        x[rng.random(shape) < 0.06] = special
    return x.astype(dtype)


def launched(name: str, x: Any, axis: int, down: bool, k: int) -> list[Any]:
    """The results of the kernels, by the Tile interpreter."""
    t = TensorType(as_dtype(x.dtype), x.shape)
    out = t.with_shape((*x.shape[:axis], k, *x.shape[axis + 1 :]))
    types = {"x": t, "values": out, "indices": out.with_dtype(i64)}
    results = {"sort": ("values",), "argsort": ("indices",), "topk": ("values", "indices")}[name]
    params = {"axis": axis, "largest" if name == "topk" else "descending": down, "k": k}
    kernels = {**sort.SORTS, "topk": topk.topk}
    e = kernels[name](Primitive("s", name, params, ("x",), results), types)
    assert e is not None
    memory = {"x": x}
    for n, u in {**types, **e.between}.items():
        memory.setdefault(n, np.zeros(u.shape, u.dtype.np))  # type: ignore[arg-type]
    for launch in e.launches:
        verify(launch.kernel)
        ast.parse(emit(launch.kernel, launch.threads))
        names = (*launch.inputs, *launch.outputs)
        given = [
            memory[n].view(m.type.dtype.np).reshape(m.type.shape)
            for m, n in zip(launch.kernel.parameters, names, strict=True)
        ]
        interpret(launch.kernel, given)
    return [memory[n] for n in results]


def check(name: str, x: Any, axis: int, down: bool, k: int | None = None) -> None:
    if k is None:
        k = max(x.shape[axis] // 2, 1) if name == "topk" else x.shape[axis]
    where = np.take(order(x, axis, down), np.arange(k), axis)
    want = {"indices": where, "values": np.take_along_axis(x, where, axis)}
    found = {"sort": ["values"], "argsort": ["indices"], "topk": ["values", "indices"]}[name]
    for n, got in zip(found, launched(name, x, axis, down, k), strict=True):
        assert got.tobytes() == want[n].tobytes(), n


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("kind", DTYPES)
def test_lines_of_a_block(kind: str, down: bool) -> None:
    for i, (shape, axis) in enumerate([((1,), 0), ((9, 7), 1), ((33, 4), 0), ((2, 70, 3), 1)]):
        check(("sort", "argsort", "topk")[i % 3], draw(shape, kind), axis, down)


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("kind", ["bool", "f4", "u8"])
@pytest.mark.parametrize("short", [0, 1 << 15], ids=["long", "short"])
def test_lines_of_many_blocks(
    kind: str, down: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks so small that all kinds of passes take part."""
    for name, n in (("_BLOCK", 8), ("_LONGEST", 8)):
        monkeypatch.setattr(sort, name, n)
    for name, n in (("BLOCK", 16), ("SUMMED", 4), ("SHORT", short)):
        monkeypatch.setattr(radix, name, n)
    check("topk", draw((36,), kind), 0, down)
    check("sort", draw((2, 13), kind), 1, down)
    check("argsort", draw((2, 32, 2), kind), 1, down)


@pytest.mark.parametrize("bits", [1, 4, 6])
def test_of_small_whole_numbers_few_bits_are_looked_at(bits: int) -> None:
    t = TensorType(i32, (300,))
    made = radix.Radix(t, 0, False, {"values": 300, "indices": 300}, i32, bits)
    e = made.expansion("x", {"values": "v", "indices": "i"})
    assert len(e.launches) == -(-bits // 4)
    x = np.random.default_rng(bits).integers(0, 1 << bits, 300).astype("i4")
    memory = {"x": x, "v": np.zeros(300, "i4"), "i": np.zeros(300, "i4")}
    memory |= {n: np.zeros(u.shape, u.dtype.np) for n, u in e.between.items()}  # type: ignore[arg-type]
    for launch in e.launches:
        verify(launch.kernel)
        names = zip(launch.kernel.parameters, (*launch.inputs, *launch.outputs), strict=True)
        interpret(launch.kernel, [memory[n].reshape(m.type.shape) for m, n in names])  # type: ignore[arg-type]
    np.testing.assert_array_equal(memory["i"], np.argsort(x, stable=True))
    np.testing.assert_array_equal(memory["v"], np.sort(x))


def test_a_line_beyond_a_block_of_the_usual_size() -> None:
    check("sort", draw((4097,), "bf16"), 0, False)


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize(("kind", "n"), [("bf16", 2047), ("u1", 1025), ("f8", 1031), ("f4", 1021)])
def test_a_long_line_lies_in_registers_so_that_neighbours_of_the_order_meet(
    kind: str, n: int, down: bool
) -> None:
    check("argsort", draw((1, n), kind), 1, down)
    check("sort", draw((n, 1), kind), 0, down)


def test_lines_of_up_to_2048_elements_are_one_launch() -> None:
    """Lines a little longer than 1024 took sixteen launches, of which half counted digits."""
    for n, launches in ((1024, 1), (1025, 1), (2048, 1), (2049, 16)):
        t = TensorType(f32, (300, n))
        step = Primitive("s", "sort", {"axis": 1, "descending": False}, ("x",), ("v",))
        e = sort.SORTS["sort"](step, {"x": t, "v": t})
        assert e is not None
        assert len(e.launches) == launches
    made = sort.Sort(TensorType(f32, (300, 2048)), 1, False)
    made.small({"values": 2048})
    assert (made.threads.warps, made.held) == (2, 32)


@pytest.mark.parametrize("kind", ["f4", "i8"])
def test_a_comparison_exchanges_words_once(kind: str) -> None:
    """The smaller and the larger of two words come from one exchange of the bits in which they differ."""
    x = TensorType(as_dtype(np.dtype(kind)), (64, 8))
    made = sort.Sort(x, 1, False)
    text = made.small({"values": 8}).text
    steps = 6 * made.parts  # of a network of 8 words
    assert text.count('scalar = "xor"') >= steps
    assert 'scalar = "min"' not in text
    assert 'scalar = "max"' not in text


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("kind", ["u1", "bf16", "f4", "i8"])
def test_the_first_few_are_selected_in_rounds(
    kind: str, down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check("topk", draw((5, 70), kind), 1, down, 3)
    check("topk", draw((33, 4), kind), 0, down, 1)
    check("topk", draw((33, 4), kind), 0, down, 0)
    for name in ("CHUNK", "WHOLE"):
        monkeypatch.setattr(topk, name, 16)
    for k in (1, 4, 7):
        check("topk", draw((2, 130), kind), 1, down, k)
    check("topk", draw((40, 3), kind), 0, down, 2)


def test_a_long_line_is_selected_from_without_a_sort() -> None:
    t = TensorType(f32, (4, 50304))
    types = {"x": t, "v": t.with_shape((4, 50)), "i": t.with_shape((4, 50)).with_dtype(i64)}
    step = Primitive("s", "topk", {"axis": 1, "largest": True, "k": 50}, ("x",), ("v", "i"))
    e = topk.topk(step, types)
    assert e is not None
    names = [x.kernel.name for x in e.launches]
    assert names == ["topk_parts", "topk_rounds", "topk_final"]


@pytest.fixture
def cuda() -> Iterator[None]:
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def test_programs_sort_on_the_device(cuda: None) -> None:
    x = draw((4, 50), "f4")
    t = ts.tensor(x).to("cuda")
    f = ts.jit(lambda x: (op.sort(x, 0), op.argsort(x, descending=True), op.topk(x, 5), op.sort(x)))
    got = [y.numpy() for y in ts.tree.leaves(f(t))]
    want = [y.numpy() for y in ts.tree.leaves(f(ts.tensor(x)))]
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes()


def test_few_and_many_lines_and_symbolic_sizes(cuda: None) -> None:
    f = ts.jit(lambda x: op.sort(x * 2.0, 1))
    g = ts.jit(_annotated)
    for shape in ((2, 9), (12, 9), (1, 1), (3, 1100)):
        x = draw(shape, "f4")
        for h in (f, g):
            got = h(ts.tensor(x).to("cuda")).numpy()
            np.testing.assert_array_equal(got, np.sort(x * 2, 1))


def _annotated(x: ts.Tensor["R", "C", ts.f32]) -> Any:
    return op.sort(x * 2.0, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
@pytest.mark.parametrize("shape", [(7,), (100, 33), (3, 1000, 5), (5000,), (1 << 17,)], ids=str)
@pytest.mark.parametrize("kind", DTYPES)
def test_sorting_on_the_device(kind: str, shape: tuple[int, ...]) -> None:
    x = draw(shape, kind)
    axis = min(1, x.ndim - 1)
    for down in (False, True):
        f = ts.jit(lambda x, down=down: (op.sort(x, axis, down), op.argsort(x, axis, down)))
        values, indices = f(ts.tensor(x).to("cuda"))
        where = order(x, axis, down)
        np.testing.assert_array_equal(indices.numpy(), where)
        assert values.numpy().tobytes() == np.take_along_axis(x, where, axis).tobytes()


@pytest.mark.parametrize("where", ["fake", pytest.param("device", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", ["bool", "i1", "i8", "u4", "f2", "bf16", "f4", "f8"])
def test_distinct_and_nonzero_elements_are_found_on_the_device(kind: str, where: str) -> None:
    """No operand travels: an op that runs on the host would warn, which is an error here."""
    with at(where):
        for shape in ((1,), (2, 3), (400,)):
            x = ts.tensor(draw(shape, kind))
            far = x.to("cuda")
            got = [*op.unique_all(far), op.unique(far), *op.nonzero(far)]
            want = [*op.unique_all(x), op.unique(x), *op.nonzero(x)]
            for g, w in zip(got, want, strict=True):
                assert g.dtype is w.dtype
                assert str(g.device) == str(far.device)
                a, b = (
                    y.numpy().astype(np.float32) if y.dtype is bf16 else y.numpy() for y in (g, w)
                )
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("where", ["fake", pytest.param("device", marks=pytest.mark.gpu)])
def test_traces_close_over_what_is_found_on_the_device(where: str) -> None:
    x = np.array([3.0, 0.0, 3.0, 1.0], np.float32)
    with at(where):
        t = ts.tensor(x).to("cuda")

        def f(y: Any) -> Any:
            distinct = op.unique_all(t)
            return op.sum(op.take(y, op.nonzero(t)[0], 0)) * op.sum(op.unique(t) * distinct.counts)

        assert float(f(t)) == float(ts.jit(f)(t)) == 49.0
        np.testing.assert_array_equal(ts.grad(f)(t).numpy(), [7.0, 0.0, 7.0, 7.0])
        rows = ts.vmap(lambda y: y + op.unique(t)[1])(t)
        np.testing.assert_array_equal(rows.numpy(), x + 1)
