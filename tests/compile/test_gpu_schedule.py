"""How a program becomes fewer GPU kernels: kernels that merge, products that close, attention without
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, op
from tessera.compile import passes_of
from tessera.compile.gpu.executable import GpuExecutable
from tessera.compile.pipeline import PIPELINES
from tessera.core.types import TensorType
from tessera.ir.schedule.interp import interpret
from tessera.ir.schedule.ir import Group, Kernel, Program
from tessera.ir.schedule.lower import CHEAP_ON_GPU, lower
from tessera.ir.schedule.passes.collapse_axes import collapse_axes
from tessera.ir.schedule.passes.fuse_horizontal import fuse_horizontal
from tessera.ir.schedule.passes.strided import strided
from tessera.runtime.gpu.bound_program import BoundProgram
from tests.support.cases.random_graphs import same_bits
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"
HEADS, SIZE, ROWS = 2, 16, 24


@pytest.fixture
def cuda() -> Iterator[None]:
    with fake_gpu():
        yield


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def plain(f: Callable[..., Any], *xs: Any) -> Program:
    """A function as a program for a GPU, before kernels merge."""
    g = ts.trace(f, *(TensorType(x.type.dtype, x.shape) for x in map(ts.tensor, xs)))
    for p in passes_of("cuda"):
        g = p.run(g)
    return lower(g, CHEAP_ON_GPU)


def kernels(p: Program) -> list[Kernel]:
    groups = [s.kernels if isinstance(s, Group) else [s] for s in p.steps]
    return [k for g in groups for k in g if isinstance(k, Kernel)]


# Merging


def corrected(x: Any, y: Any) -> Any:
    s, t = op.sum(x, 1, keepdims=True), op.sum(x * y, 1, keepdims=True)
    return x - s - y * t


def two_sums(x: Any, y: Any) -> Any:
    return op.sum(x, 0), op.sum(x * y, 0)


def moments(x: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * x, 0.99 * v + 0.01 * x * x
    return m, v, x - m / (op.sqrt(v) + 1e-8)


@pytest.mark.parametrize(
    ("f", "xs", "before", "after"),
    [
        (corrected, (normal(20, 48), normal(20, 49)[:, 1:]), 2, 1),
        (two_sums, (normal(40, 30), normal(40, 31)[:, 1:]), 2, 1),
        (moments, (normal(9, 8), normal(9, 7)[:, :1] + normal(9, 8), normal(9, 8) ** 2), 2, 1),
    ],
    ids=["sums of rows", "sums of columns", "moments"],
)
def test_kernels_merge_and_keep_their_bits(f: Any, xs: Any, before: int, after: int) -> None:
    p = plain(f, *xs)
    q = fuse_horizontal(p)
    assert (len(kernels(p)), len(kernels(q))) == (before, after)
    for a, b in zip(interpret(p, xs), interpret(q, xs), strict=True):
        assert a.tobytes() == b.tobytes()
    with fake_gpu():
        want = ts.tree.leaves(f(*map(ts.tensor, xs)))
        got = ts.tree.leaves(ts.jit(f)(*(ts.tensor(x).to("cuda") for x in xs)))
        for a, b in zip(want, got, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=2e-5)


def test_a_kernel_that_others_wait_for_stays_where_it_is() -> None:
    def f(x: Any, w: Any) -> Any:
        s = op.sum(x, 1)
        y = x @ w  # reads nothing of s, and z needs both
        return op.sum(y * op.reshape(s, (-1, 1)), 1) + op.sum(x * y, 1), s

    xs = normal(32, 32), normal(32, 33)[:, 1:]
    p = plain(f, *xs)
    q = fuse_horizontal(p)
    for a, b in zip(interpret(p, xs), interpret(q, xs), strict=True):
        assert a.tobytes() == b.tobytes()


# What follows a product


def test_what_follows_a_product_is_computed_there_once() -> None:
    def f(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = r + (x @ w + b)
        return op.layernorm(y), y * 2.0

    p = plain(f, normal(64, 32), normal(32, 48), normal(48), normal(64, 48))
    product, *rest = kernels(p)
    assert product.contracts
    assert len(product.outputs) == 2, "the sum, and twice the sum"
    assert all("x3" not in k.inputs() for k in rest), "the sum is read, not computed again"


def test_matrices_that_find_no_registers_wait_for_the_product() -> None:
    def f(x: Any, w: Any, m: Any, v: Any) -> Any:
        y = (x @ w).astype(ts.f32)
        return 0.9 * m + y, 0.9 * v + y * y

    xs = [normal(32, 32 + i)[:, i:] for i in range(4)]
    xs[:2] = [x.astype(bf16.np) for x in xs[:2]]
    product, moments = kernels(fuse_horizontal(plain(f, *xs)))
    assert product.contracts
    assert len(moments.stages) == 2


def test_a_number_is_computed_once_and_early() -> None:
    def f(x: Any, w: Any, step: Any) -> Any:
        y = x @ w
        rate = 1.0 / (1.0 - 0.9**step)
        return y * rate, op.sum(x, 1) * rate

    first, *others = kernels(plain(f, normal(8, 8), normal(8, 8), np.float32(3)))
    assert len(first.stages) == 1
    assert not first.stages[0].axes
    assert all("pow" not in str(k) for k in others)


def test_picked_elements_are_cast_after_they_are_picked() -> None:
    def f(x: Any, i: Any) -> Any:
        wide = x.astype(ts.f32)
        return op.cross_entropy(wide, i, reduction="none")

    x, i = normal(6, 10).astype(bf16.np), np.array([1, 9, 0, 3, 3, 7])
    p = plain(f, x, i)
    assert not any(b.type.rank == 2 and b.type.dtype is ts.f32 for b in p.buffers.values())
    got = interpret(p, [x, i])[0]
    w = x.astype(np.float64)
    want = np.log(np.exp(w).sum(1)) - w[np.arange(6), i]
    np.testing.assert_allclose(got, want, rtol=1e-6)


# Attention


def attend(qkv: Any, causal: bool = True) -> Any:
    """Heads from one matrix, and back into one."""
    b, s, _ = qkv.shape
    parts = op.reshape(qkv, (b, s, 3, HEADS, SIZE))
    q, k, v = (op.transpose(parts[:, :, j], (0, 2, 1, 3)) for j in range(3))
    y = op.transpose(op.attention(q, k, v, causal=causal), (0, 2, 1, 3))
    return op.reshape(y, (b, s, HEADS * SIZE)) * 2.0


def with_slope(qkv: Any, ct: Any) -> Any:
    y, pull = ts.vjp(attend, qkv)
    return y, pull(ct)[0] * 1.5


def test_attention_reads_and_writes_columns(cuda: None) -> None:
    qkv = ts.tensor(normal(2, ROWS, 3 * HEADS * SIZE)).astype(bf16)
    ct = ts.tensor(normal(2, ROWS, HEADS * SIZE)).astype(bf16)
    step = ts.jit(with_slope)
    want = [t.astype(ts.f32).numpy() for t in with_slope(qkv, ct)]
    got = [t.astype(ts.f32).numpy() for t in step(qkv.to("cuda"), ct.to("cuda"))]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=0.05, atol=0.05)
    (variant,) = step._variants.values()
    made = variant.executable
    assert isinstance(made, GpuExecutable)
    (program,) = made._prepared.values()
    assert isinstance(program, BoundProgram)
    assert len(program.planned.lowered.laid) == 7, "q, k, v, o, and the cotangents of q, k and v"
    rest = [n for n in program.planned.lowered.tiles if not n.startswith("attention")]
    assert len(rest) == 3, f"what is computed beside attention, and no copy: {rest}"


def test_heads_that_others_read_are_copied(cuda: None) -> None:
    def f(qkv: Any) -> Any:
        parts = op.reshape(qkv, (2, ROWS, 3, HEADS, SIZE))
        q, k, v = (op.transpose(parts[:, :, j], (0, 2, 1, 3)) for j in range(3))
        return op.attention(q, k, v), q

    x = normal(2, ROWS, 3 * HEADS * SIZE).astype(bf16.np)
    p = plain(f, x)
    found = strided(p).laid
    assert len(found) == 2, "k and v: q is a result"
    want = [t.astype(ts.f32).numpy() for t in f(ts.tensor(x))]
    got = [t.astype(ts.f32).numpy() for t in ts.jit(f)(ts.tensor(x).to("cuda"))]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=0.03, atol=0.03)


# Donation


def test_donated_tensors_are_written_over_in_place(cuda: None) -> None:
    def descend(p: Any, m: Any) -> Any:
        m = 0.9 * m + 1.0
        return p - 0.1 * m, m

    step = ts.jit(descend, donate=("p", "m"))
    p, m = (ts.tensor(normal(64, 32 + i)[:, i:]).to("cuda") for i in range(2))
    want = [p.numpy(), m.numpy()]
    places = [p.storage.ptr, m.storage.ptr]
    for _ in range(3):  # the first call compiles, later ones find it
        gone = p
        want = descend(*want)
        p, m = step(p, m)
        assert [p.storage.ptr, m.storage.ptr] == places
        with pytest.raises(ts.TesseraError, match="donated"):
            gone.numpy()
    for a, b in zip(want, (p, m), strict=True):
        np.testing.assert_allclose(b.numpy(), a, rtol=1e-5)


def test_donated_memory_that_somebody_else_holds_stays(cuda: None) -> None:
    step = ts.jit(lambda p: p + 1.0, donate=("p",))
    x = normal(8, 8)
    p = ts.tensor(x).to("cuda")
    held = p.storage
    q = step(p)
    assert q.storage.ptr != held.ptr
    np.testing.assert_array_equal(held.numpy(), x)
    np.testing.assert_array_equal(q.numpy(), x + 1)


@pytest.mark.parametrize("rows", [40, 129, 1000, 1024, 3 * 4096 + 8])
def test_long_columns_are_folded_to_their_end_and_no_further(rows: int, cuda: None) -> None:
    x = normal(rows, 20)
    got = ts.jit(lambda x: (op.sum(x, 0), op.sum(x * x, 0), op.max(x, 0)))(ts.tensor(x).to("cuda"))
    wide = x.astype(np.float64)
    for a, b in zip((wide.sum(0), (wide**2).sum(0), wide.max(0)), got, strict=True):
        np.testing.assert_allclose(b.numpy(), a, rtol=1e-5, atol=1e-4)


# Products in one launch


def test_products_that_wait_for_each_other_run_in_one_launch(cuda: None) -> None:
    def f(x: Any, h: Any, dy: Any) -> Any:
        return x.T @ dy, op.sum(dy, 0), h.T @ dy

    xs = [ts.tensor(normal(128, 128 * n)).astype(bf16) for n in (1, 2, 2)]
    step = ts.jit(f)
    want = [t.astype(ts.f32).numpy() for t in f(*xs)]
    got = [t.astype(ts.f32).numpy() for t in step(*(t.to("cuda") for t in xs))]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=0.02, atol=0.1)
    (variant,) = step._variants.values()
    (program,) = variant.executable._prepared.values()
    (name,) = [n for n, k in program.planned.lowered.tiles.items() if k.name == "products"]
    assert program.planned.lowered.tiles[name].grid[0][1] == 3
    assert program.planned.lowered.sources[name].count("    if ") == 2
    assert list(program.planned.lowered.tiles)[-1] == name, "it waits to the end"


def test_folds_behind_each_other_become_one() -> None:
    def f(x: Any, y: Any) -> Any:
        z = op.reshape(x, (8, 16, 12))
        return op.sum(z, (0, 1)), op.sum(
            op.transpose(z, (1, 0, 2)) * op.reshape(y, (16, 8, 1)), (0, 1)
        )

    xs = normal(128, 12), normal(128)
    p = plain(f, *xs)
    q = collapse_axes(p)
    assert (len(kernels(p)), len(kernels(q))) == (4, 3), "the second one does not lie in order"
    for a, b in zip(interpret(p, xs), interpret(q, xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_copy_that_is_not_alone_in_reading_is_made(cuda: None) -> None:
    """As many heads as rows: what reads a tensor in its own order merges with what turns it."""
    n = SIZE

    def f(qkv: Any) -> Any:
        q, k, v = (op.transpose(qkv[:, :, j], (0, 2, 1, 3)) for j in range(3))
        o = op.attention(q, k, v)
        turned = op.reshape(op.transpose(o, (0, 2, 1, 3)), (2, n, n * SIZE))
        return turned * 2.0, o * 3.0, q * 4.0

    x = normal(2, n, 3, n, SIZE).astype(bf16.np)
    want = [t.astype(ts.f32).numpy() for t in f(ts.tensor(x))]
    got = [t.astype(ts.f32).numpy() for t in ts.jit(f)(ts.tensor(x).to("cuda"))]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=0.03, atol=0.03)


def test_a_fold_of_folds_that_somebody_else_reads_stays() -> None:
    def f(x: Any) -> Any:
        inner = op.sum(op.reshape(x, (8, 16, 12)), 1)
        return op.sum(inner, 0), op.sum(inner * inner, 0)

    x = normal(128, 12)
    p = plain(f, x)
    for q in (
        collapse_axes(p),
        fuse_horizontal(collapse_axes(p)),
        collapse_axes(fuse_horizontal(p)),
    ):
        for a, b in zip(interpret(p, [x]), interpret(q, [x]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_sums_of_columns_that_rows_are_folded_from(cuda: None) -> None:
    def f(x: Any, w: Any) -> Any:
        s = op.sum(x, 0)
        return op.softmax(s * w), op.sum(s * s)

    x, w = normal(700, 90), normal(90)
    s = x.astype(np.float64).sum(0)
    e = np.exp(s * w - (s * w).max())
    got = ts.jit(f)(*(ts.tensor(a).to("cuda") for a in (x, w)))
    np.testing.assert_allclose(got[0].numpy(), e / e.sum(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(got[1].numpy(), (s * s).sum(), rtol=1e-4)


# Random programs


def random_function(seed: int, n: int) -> Callable[..., Any]:
    """A function of n by n matrices, in which much has the same rows."""
    steps: list[Callable[[Any, Any], Any]] = [
        lambda a, b: a + b,
        lambda a, b: a * b * 0.5,
        lambda a, b: a - op.sum(a * b, 1, keepdims=True) * 0.1,
        lambda a, b: a + op.mean(b, 0, keepdims=True),
        lambda a, b: op.transpose(a, (1, 0)) * 0.9,
        lambda a, b: (a @ b) * 0.2,
        lambda a, b: op.tanh(a) + b,
        lambda a, b: a - op.max(b, 1, keepdims=True),
        lambda a, b: a * op.sum(op.reshape(b, (2, n // 2, n)), (0, 1)) * 0.1,
        lambda a, b: op.layernorm(a) * b,
    ]

    def f(*xs: Any) -> Any:
        rng, v = np.random.default_rng(seed), list(xs)
        for _ in range(rng.integers(4, 16)):
            a, b = (v[rng.integers(len(v))] for _ in range(2))
            v.append(steps[rng.integers(len(steps))](a, b))
        return v[-1], v[rng.integers(len(v))] * 2.0, op.sum(v[-2], 0), op.sum(v[-1] * v[-2], 1)

    return f


def test_random_programs_keep_their_meaning(cuda: None) -> None:
    fewer, n = 0, 8
    for seed in range(40):
        f = random_function(seed, n)
        xs = [normal(n, n + i)[:, i:] for i in range(3)]
        p = plain(f, *xs)
        q, r = fuse_horizontal(p), fuse_horizontal(collapse_axes(p))
        want = interpret(p, xs)
        assert same_bits(want, interpret(q, xs)), seed
        got = [interpret(r, xs)]
        if seed % 10 == 0:
            got.append([t.numpy() for t in ts.jit(f)(*(ts.tensor(x).to("cuda") for x in xs))])
        for outs in got:
            for a, b in zip(want, outs, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-3, err_msg=str(seed))
        fewer += len(p.steps) - len(r.steps)
    assert fewer > 40, "there was something to merge"


@pytest.mark.parametrize("shape", [(8, 16, 12), (3, 512, 5), (7, 2048, 3)])
def test_a_fold_on_a_gpu_has_the_bits_of_its_folds(
    shape: tuple[int, ...], cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ts.tensor(normal(shape[0] * shape[1], shape[2])).to("cuda")

    def run() -> Any:
        return ts.jit(lambda x: op.sum(op.reshape(x, shape), (0, 1)))(x).numpy()

    one = run()
    without = tuple(p for p in PIPELINES["cuda"] if p.name != "collapse_axes")
    monkeypatch.setitem(PIPELINES, "cuda", without)
    assert run().tobytes() == one.tobytes()
