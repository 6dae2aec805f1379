"""The GPU target without a GPU: programs as on a device, their kernels run by the Tile interpreter."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile import passes_of
from tessera.compile.gpu import executable
from tessera.core.dtype import bf16, f32
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import ProductBlock, RowsBlock
from tessera.ir.schedule.interp import interpret as run_schedule
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.passes.specialize import specialize
from tessera.ir.schedule.passes.split_kernel import split_kernel
from tessera.ir.schedule.rename import renamed
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem
from tessera.ir.tile.gpu.attention_backward import Delta, KeysBackward, QueriesBackward
from tessera.ir.tile.gpu.contraction import Contraction
from tessera.ir.tile.gpu.lower import expand
from tessera.ir.tile.gpu.rows import Rows
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.verify import verify
from tessera.ops.toeplitz import toeplitz_slogdet
from tests.support.cases.op_cases import Case, all_cases
from tests.support.fakes.gpu_fake import BUILT, fake_gpu
from tests.support.runners.tolerance import TOLERANCE, assert_close, assert_same_bits

RUNS_ON = "numpy"
EVERY = 3  # of the catalog; the device runs all of it (test_gpu_device.py)


@pytest.fixture
def cuda() -> Iterator[None]:
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some ops run on the host
        yield


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# The catalog


@pytest.mark.parametrize("case", all_cases()[::EVERY], ids=str)
def test_an_op_means_on_a_gpu_what_it_means_here(case: Case, cuda: None) -> None:
    xs = case.draw()
    want = ts.tree.leaves(case.call([ts.tensor(x) for x in xs]))
    got = ts.tree.leaves(ts.jit(lambda *a: case.call(a))(*(ts.tensor(x).to("cuda") for x in xs)))
    for a, b in zip(want, got, strict=True):
        if isinstance(a, ts.Tensor):
            x, y = a.numpy(), b.numpy()
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            scale = max(1.0, float(np.abs(np.nan_to_num(x)).max(initial=0))) if x.size else 1.0
            assert_close(
                y / scale, x / scale, times=4
            ) if x.dtype.kind in "fc" else np.testing.assert_array_equal(x, y)


# What people do with tensors


def test_tensors_live_where_they_are_put(cuda: None) -> None:
    x = normal(6, 5)
    t = ts.tensor(x).to("cuda")
    assert str(t.device) == "cuda:0"
    assert [str(d) for d in ts.devices()] == ["cpu:0", "cuda:0"]
    np.testing.assert_array_equal((t + 1.0).numpy(), x + 1)
    np.testing.assert_array_equal(t[2:4].numpy(), x[2:4])
    np.testing.assert_array_equal(t[t > 0].numpy(), x[x > 0])
    np.testing.assert_array_equal(t.T.numpy(), x.T)
    np.testing.assert_array_equal(t.at[1].set(0.0).numpy()[1], np.zeros(5))
    np.testing.assert_array_equal(np.stack([r.numpy() for r in t]), x)
    assert float(op.max(t)) == x.max()
    assert "cuda:0" in repr(t)
    assert t.to("cpu").device == ts.devices()[0]
    made = ts.tensor(x, device="cuda")
    assert made.device == t.device
    with ts.device("cuda"):
        assert ts.tensor(x).device == t.device


def test_tensors_of_two_devices_do_not_meet(cuda: None) -> None:
    t = ts.tensor(normal(3))
    with pytest.raises(ts.core.errors.DeviceError, match=r"is on cpu:0.*move one with x.to"):
        op.add(t.to("cuda"), t)


def test_a_gpu_that_is_not_there_is_named(cuda: None) -> None:
    with pytest.raises(ts.core.errors.DeviceError, match="no device cuda:3"):
        ts.tensor(1.0).to("cuda:3")


def test_without_a_driver_the_error_says_so() -> None:
    with pytest.raises(ts.core.errors.DeviceError, match="there is no NVIDIA driver here"):
        ts.tensor(1.0).to("cuda")


def test_transforms_follow_the_device(cuda: None) -> None:
    w, x = normal(4, 3), normal(5, 4)

    def loss(w: Any, x: Any) -> Any:
        return op.sum(op.tanh(x @ w) ** 2)

    want = ts.grad(loss)(ts.tensor(w), ts.tensor(x)).numpy()
    a, b = (ts.tensor(v).to("cuda") for v in (w, x))
    for f in (ts.grad(loss), ts.jit(ts.grad(loss))):
        got = f(a, b)
        assert got.device == a.device
        assert_close(got.numpy(), want)
    _, tangent = ts.jvp(loss, (a, b), (a, b))
    assert tangent.device == a.device
    assert ts.vmap(op.sum)(b).device == a.device


def test_numbers_constants_and_captured_tensors_go_along(cuda: None) -> None:
    table = ts.tensor(normal(100)).to("cuda")

    @ts.jit
    def f(x: Any, factor: Any) -> Any:
        return x * factor + table + np.arange(100, dtype=np.float32)

    x = normal(100, seed=1)
    want = x * np.float32(0.5) + table.numpy() + np.arange(100, dtype=np.float32)
    assert_close(f(ts.tensor(x).to("cuda"), 0.5).numpy(), want)


def test_one_function_serves_both_devices_and_all_sizes(cuda: None) -> None:
    @ts.jit
    def f(x: ts.Tensor["R", "C"]) -> Any:
        return op.softmax(x * 2.0)

    for shape in ((3, 5), (2, 7), (3, 5)):
        x = normal(*shape)
        here, there = f(ts.tensor(x)), f(ts.tensor(x).to("cuda"))
        assert (here.device.kind, there.device.kind) == ("cpu", "cuda")
        assert_close(there.numpy(), here.numpy())


def test_what_has_no_gpu_form_warns_and_is_right() -> None:
    a = normal(40, 40) + 40 * np.eye(40, dtype=np.float32)
    with fake_gpu():
        executable._WARNED.clear()
        with pytest.warns(RuntimeWarning, match="inv: has no GPU form yet"):
            got = ts.jit(op.inv)(ts.tensor(a).to("cuda")).numpy()
    assert_close(got, np.linalg.inv(a))


def test_every_level_can_be_looked_at(cuda: None, tmp_path: Path) -> None:
    table = ts.tensor(normal(100)).to("cuda")

    @ts.jit
    def f(x: ts.Tensor["R", 100]) -> Any:
        return op.softmax(x + table)

    x = ts.tensor(normal(3, 100)).to("cuda")
    seen = f.lower(x)
    assert seen.sizes == {"R": 3}
    assert len(seen.schedule.steps) == len(seen.tile) == 1
    assert "@triton.jit" in seen.target.text
    assert seen.memory.peak == 3 * 100 * 4
    assert ts.jit(op.softmax).inspect(x, path=tmp_path / "page.html").exists()


def test_nans_are_found_on_the_device(cuda: None) -> None:
    x = ts.tensor(np.array([1.0, -1.0], np.float32)).to("cuda")
    with ts.debug_nans():
        assert ts.jit(lambda x: x + 1.0)(x).device == x.device
        for f in (ts.jit(op.log), op.log):
            with pytest.raises(ts.core.errors.NumericalError, match=r"log made nan at \[1\]"):
                f(x)


def test_a_stream_of_the_host_refuses_functions_of_a_gpu_by_name(cuda: None) -> None:
    """It was taken and ignored: its events and synchronize() knew nothing of the GPU's work."""
    x = ts.tensor(normal(4)).to("cuda")

    @ts.jit
    def double(x: ts.Tensor) -> ts.Tensor:
        return x * 2.0

    text = r"Stream: double runs on cuda:0, but the stream is of cpu:0; use ts.Stream\(device='cuda:0'\)"
    with ts.Stream(), pytest.raises(ts.core.errors.OperandError, match=text):
        double(x)
    np.testing.assert_array_equal(double(x).numpy(), x.numpy() * 2)


def test_strict_numerics_are_for_cpus(cuda: None) -> None:
    x = ts.tensor(normal(4)).to("cuda")
    with pytest.raises(ts.core.errors.OperandError, match="another order on cuda:0"):
        ts.jit(op.sum, numerics="strict")(x)


def test_host_calls_and_views_know_symbolic_sizes(cuda: None) -> None:
    @ts.jit
    def f(x: ts.Tensor["R", "C"]) -> Any:
        r, c = x.shape
        return (
            op.sort(x, 1),
            op.broadcast_to(x[0], (r, c)),
            op.reshape(x.T, (c * r,)),
            op.pad(x, ((0, 1), (0, 0))),
        )

    for shape in ((3, 5), (2, 4)):
        x = normal(*shape)
        got = [y.numpy() for y in f(ts.tensor(x).to("cuda"))]
        for y, want in zip(
            got, (np.sort(x, 1), np.broadcast_to(x[0], shape), x.T.reshape(-1), np.pad(x, ((0, 1), (0, 0)))),
            strict=True,
        ):  # fmt: skip
            np.testing.assert_array_equal(y, want)


@pytest.mark.filterwarnings("error")
def test_convolutions_of_symbolic_channels_have_the_bits_of_known_ones(cuda: None) -> None:
    """What sizes decide is decided at the sizes of a call, on the device."""

    @ts.jit
    def named(x: ts.Tensor["B", "C", "N"], w: ts.Tensor["O", "C", 3]) -> Any:
        return ts.grad(lambda w: op.sum(op.sin(op.conv(x, w))))(w)

    def known(x: Any, w: Any) -> Any:
        return ts.grad(lambda w: op.sum(op.sin(op.conv(x, w))))(w)

    for batch, channels in ((2, 200), (1, 3)):
        x, w = (ts.tensor(normal(*s)).to("cuda") for s in ((batch, channels, 5), (2, channels, 3)))
        assert_same_bits(named(x, w).numpy(), ts.jit(known)(x, w).numpy())
    shown = ts.jit(named._f, target="cuda:sm_90").lower(
        ts.tensor(normal(2, 200, 5)), ts.tensor(normal(2, 200, 3))
    )
    assert any("conv" in name for name in shown.target), list(shown.target)


def test_kernels_of_the_library_run_there(cuda: None) -> None:
    x, q = normal(20, 30), normal(1, 2, 40, 16)
    for f, given in (
        (ts.stdlib.stable_softmax, (x,)),
        (lambda q: ts.stdlib.flash_attention_2(q, q, q, causal=True), (q,)),
    ):
        want = f(*(ts.tensor(v) for v in given)).numpy()
        got = f(*(ts.tensor(v).to("cuda") for v in given))
        assert got.device.kind == "cuda"
        assert_close(got.numpy(), want, times=4)


def test_a_training_step_of_a_transformer(cuda: None) -> None:
    """Attention and its derivative by their own kernels, in bf16, beside the CPU's decomposition."""
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((32, 96)) * 0.2).astype(np.float32)
    x = rng.standard_normal((2, 24, 32)).astype(np.float32)

    def loss(w: Any, x: Any) -> Any:
        qkv = op.reshape(x.astype(bf16) @ w.astype(bf16), (2, 24, 3, 2, 16))
        q, k, v = (op.transpose(qkv[:, :, i], (0, 2, 1, 3)) for i in range(3))
        y = op.attention(q, k, v, causal=True)
        return op.mean(op.square(y.astype(f32)))

    f = ts.jit(ts.value_and_grad(loss))
    BUILT.clear()
    there = f(ts.tensor(w).to("cuda"), ts.tensor(x).to("cuda"))
    here = f(ts.tensor(w), ts.tensor(x))
    assert {"attention", "attention_keys", "attention_queries"} <= {k.name for k in BUILT.values()}
    assert_close(there[0].numpy(), here[0].numpy(), TOLERANCE["bf16"])
    size = float(np.abs(here[1].numpy()).max())
    assert_close(there[1].numpy() / size, here[1].numpy() / size, TOLERANCE["bf16"], times=3)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: op.reshape(x + 1.0, (2, 12)),
        lambda x: (x + 1.0, op.reshape(x + 1.0, (24,))),
        lambda x: (x + 1.0, x),
        lambda x: (x * 2.0, op.sum(x, 1), op.transpose(x) - 1.0),
        lambda x: op.softmax(x @ op.transpose(x)),
    ],
    ids=["a view", "twice", "an input", "several", "a chain"],
)
def test_results_are_what_a_run_allocates_or_parts_of_it(f: Any, cuda: None) -> None:
    x = normal(4, 6)
    found = ts.tree.leaves(ts.jit(f)(ts.tensor(x).to("cuda")))
    for got, want in zip(found, ts.tree.leaves(ts.jit(f)(ts.tensor(x))), strict=True):
        assert got.shape == got.numpy().shape == want.shape
        assert got.device.kind == "cuda"
        assert_close(got.numpy(), want.numpy())


@pytest.mark.parametrize("held", [ts.tensor, np.asarray], ids=["tensors", "arrays"])
def test_what_the_host_holds_has_the_derivatives_of_the_target(held: Any, cuda: None) -> None:
    """Inputs and what a function closes over go to the GPU that is named: attention's derivative is its
    kernels.
    """
    q, k, v = (held(normal(1, 2, 64, 16, seed=i).astype(bf16.np)) for i in range(3))
    large, small = ts.tensor(normal(1, 2, 64, 16, seed=3)), ts.tensor(np.float32(0.5))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return op.sum(op.attention(q, k, v).astype(f32) * large * small)

    def slopes(q: Any, k: Any, v: Any) -> Any:
        return ts.grad(loss, argnums=(0, 1, 2))(q, k, v)

    BUILT.clear()
    found = ts.jit(slopes, target="cuda")(q, k, v)
    assert {"attention_keys", "attention_queries"} <= {s.name for s in BUILT}
    there = [ts.tensor(x).to("cuda") for x in (q, k, v)]
    with pytest.raises(ts.core.errors.DeviceError, match="move one"):  # no target says where
        ts.jit(slopes)(*there)
    large, small = large.to("cuda"), small.to("cuda")
    for a, b in zip(found, ts.jit(slopes)(*there), strict=True):
        assert np.array_equal(a.numpy().view(np.uint16), b.numpy().view(np.uint16))


# Lowering


def schedule(f: Any, *shapes: tuple[int, ...], dtype: Any = f32) -> Program:
    g = ts.trace(f, *(ts.Tensor[(*s, dtype)] for s in shapes))
    for p in passes_of("cpu"):
        g = p.run(g)
    return lower(g)


def run_tiles(p: Program, arrays: list[Any], made: Any = expand) -> list[Any]:
    """A program by its Tile kernels for a GPU."""
    types = {n: b.type for n, b in p.buffers.items()}
    memory = dict(zip(p.inputs, arrays, strict=True))
    for s in p.steps:
        e = made(s, types)
        for launch in e.launches:
            verify(launch.kernel)
            ast.parse(emit(launch.kernel, launch.threads))
            for n in launch.outputs:
                t = {**types, **e.between}[n]
                memory.setdefault(n, np.zeros(t.shape, t.dtype.np))  # type: ignore[arg-type]
            interpret(launch.kernel, [memory[n] for n in (*launch.inputs, *launch.outputs)])
    return [memory[n] for n in p.outputs]


LOWERED: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "softmax": (op.softmax, [(9, 100)]),
    "long rows": (op.softmax, [(2, 40000)]),
    "layernorm": (op.layernorm, [(33, 200), (200,), (200,)]),
    "product": (lambda a, b: op.gelu(a @ b), [(70, 50), (50, 40)]),
    "products": (lambda a, b: a @ b + 1.0, [(3, 20, 17), (3, 17, 33)]),
    "column sums": (lambda a: op.sum(a, 0), [(1500, 70)]),
    "sum": (op.sum, [(40003,)]),
    "middle axis": (lambda a: op.sum(a * 2.0, 1), [(3, 70, 40)]),
    "turned": (lambda a: a.T + 1.0, [(30, 40)]),
    "mirrored": (lambda a: op.flip(a, 1) * 2.0, [(30, 40)]),
    "attention": (lambda q, k, v: op.attention(q, k, v, causal=True), [(2, 33, 16)] * 3),
    "variance": (op.var, [(7, 9, 11)]),
    "every other": (lambda a: a[:, ::2] + a[:, 1::2], [(7, 90)]),
    "largest": (lambda a: op.argmax(a, 1), [(7, 90)]),
    "empty": (lambda a: op.sum(a, 1), [(3, 0)]),
    "scalar": (lambda a: op.exp(a) * 2.0, [()]),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "widths", [(1, 1), (3, 5, 2), (17, 300), (1023, 2049), (2048, 33), (129, 128, 4097), (7,) * 20]
)
@pytest.mark.parametrize("dtype", [f32, bf16, ts.bool_], ids=str)
def test_tensors_of_odd_widths_are_put_together(
    widths: tuple[int, ...], axis: int, dtype: Any
) -> None:
    rows = 1 if max(widths) > 2000 and axis else 5
    shapes = [(rows, w) if axis else (w, rows) for w in widths]
    p = schedule(lambda *xs: op.concat(list(xs), axis), *shapes, dtype=dtype)
    xs = [normal(*s, seed=i).astype(dtype.np) for i, s in enumerate(shapes)]
    (step,) = p.steps
    (launch,) = expand(step, {n: b.type for n, b in p.buffers.items()}).launches  # type: ignore[arg-type]
    verify(launch.kernel)
    ast.parse(emit(launch.kernel, launch.threads))
    want = np.concatenate(xs, axis)
    memory = [*xs, np.zeros_like(want)]
    flat = [x.reshape(m.type.shape) for x, m in zip(memory, launch.kernel.parameters, strict=True)]  # type: ignore[arg-type]
    interpret(launch.kernel, flat)
    assert flat[-1].tobytes() == want.tobytes()


@pytest.mark.parametrize("name", LOWERED)
def test_tiles_mean_what_the_schedule_means(name: str) -> None:
    f, shapes = LOWERED[name]
    p = schedule(f, *shapes)
    xs = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    for got, want in zip(run_tiles(p, xs), run_schedule(p, xs), strict=True):
        assert_close(got, want, times=4)


def test_no_block_changes_a_bit() -> None:
    """A fold is a tree: any number of rows, columns and steps at once gives its bits."""
    p = schedule(lambda x: op.softmax(x) * op.sum(x, 1, keepdims=True), (21, 300))
    x = normal(21, 300)
    blocks = [RowsBlock(r, c) for r in (1, 2, 8, 32) for c in (16, 64, 512)]
    seen = {run_tiles(p, [x], _rows_with(b))[0].tobytes() for b in blocks}
    assert len(seen) == 1
    q = schedule(lambda x: op.sum(x, 0), (200, 40))
    y = normal(200, 40)
    chains = [RowsBlock(1, c, k) for c in (8, 32, 64) for k in (4, 16, 256)]
    assert len({run_tiles(q, [y], _rows_with(b))[0].tobytes() for b in chains}) == 1


@pytest.mark.parametrize("columns", [16385, 40000, 40003])
def test_long_rows_have_the_bits_of_a_row_alone(columns: int) -> None:
    """Whether blocks share a row or not follows from the number of rows, which changes no bit."""
    p = schedule(lambda x: op.softmax(x) * op.sum(x, 1, keepdims=True), (2, columns))
    x = normal(2, columns)
    shared, alone = (
        run_tiles(p, [x], *made)[0] for made in ((), (_rows_with(RowsBlock(1, 4096)),))
    )
    assert shared.tobytes() == alone.tobytes()


@pytest.mark.parametrize("columns", [3001, 3000])
def test_a_row_that_is_read_number_by_number_is_halved_to_the_width_of_a_warp(columns: int) -> None:
    """The order of a fold, written with NumPy; it is part of what a GPU promises."""
    x = normal(3, columns)
    y = np.concatenate([x, np.full((3, 4096 - columns), -0.0, np.float32)], 1)
    while y.shape[1] > 128 and columns % 8:
        y = y[:, : y.shape[1] // 2] + y[:, y.shape[1] // 2 :]
    while y.shape[1] > 1:
        y = y[:, ::2] + y[:, 1::2]
    (got,) = run_tiles(schedule(lambda x: op.sum(x, 1), (3, columns)), [x])
    assert got.tobytes() == y[:, 0].tobytes()


def _rows_with(block: RowsBlock) -> Any:
    def made(s: Kernel, types: Any) -> Any:
        rows = Rows(s, types, block)
        return Expansion((Launch(rows.kernel(), tuple(s.inputs()), s.outputs, rows.threads),))

    return made


def test_no_block_of_a_product_changes_a_bit() -> None:
    p = schedule(lambda a, b: op.tanh(a @ b), (70, 96), (96, 50))
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    types = {n: b.type for n, b in p.buffers.items()}
    a, b = normal(70, 96), normal(96, 50)
    seen = set()
    for block in (
        ProductBlock(16, 16, 16), ProductBlock(64, 32, 32, 2), ProductBlock(32, 64, 16, 8, 3),
        ProductBlock(128, 64, 128, 1),
    ):  # fmt: skip
        made = Contraction(kernel, types, block).kernel()
        verify(made)
        out = np.zeros((70, 50), np.float32)
        order = {"x0": a, "x1": b}
        interpret(made, [*(order[n] for n in kernel.inputs()), out])
        seen.add(out.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("stays", [0, 1, 4, 50])
def test_blocks_that_stay_take_every_block_of_every_product(stays: int, batch: Any) -> None:
    shapes = (*batch, 40, 24), (*batch, 24, 35)
    p = schedule(lambda a, b: op.relu(a @ b), *shapes)
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    types = {n: b.type for n, b in p.buffers.items()}
    made = Contraction(kernel, types, ProductBlock(16, 16, 16, 2, stays)).kernel()
    verify(made)
    given = dict(zip(("x0", "x1"), (normal(*s) for s in shapes), strict=True))
    out = np.full((*batch, 40, 35), np.nan, np.float32)
    interpret(made, [*(given[n] for n in kernel.inputs()), out])
    want = np.maximum(given["x0"].astype("f8") @ given["x1"].astype("f8"), 0)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_variables_that_begin_alike_are_told_apart() -> None:
    """Triton drops a carried variable that takes over another one which began with the same value."""
    b = Builder("swap")
    x = b.parameter("x", TensorType(f32, (4,)))
    y = b.parameter("y", TensorType(f32, (4,)), writable=True)
    first = b.load(x, (0,), (4,))
    with b.loop(0, 3, 1, [first, first]) as loop:
        loop.carry(b.apply("neg", first), loop.carried[0])
    b.store(y, loop.results[1], (0,), (4,))
    assert len(re.findall(r"= tl.where\(\w+, v1, v1\)", emit(b.finish()))) == 1


# Attention


def attention_in_f64(p: AttentionProblem, q: Any, k: Any, v: Any, d: Any) -> tuple[Any, ...]:
    q, k, v, d = (x.astype(np.float64) for x in (q, k, v, d))
    keys, values = (np.repeat(x, p.share, 1) for x in (k, v))
    s = q @ np.swapaxes(keys, -1, -2) * p.scale
    if p.causal:
        s = np.where(np.tri(p.queries, p.keys, p.offset, dtype=bool), s, -np.inf)
    w = np.exp(s - s.max(-1, keepdims=True))
    w /= w.sum(-1, keepdims=True)
    slopes = d @ np.swapaxes(values, -1, -2)
    ds = w * (slopes - (slopes * w).sum(-1, keepdims=True)) * p.scale

    def joined(x: Any) -> Any:
        return x.reshape(p.batch, p.groups, p.share, *x.shape[2:]).sum(2)

    turned = np.swapaxes(ds, -1, -2)
    return w @ values, ds @ keys, joined(turned @ q), joined(np.swapaxes(w, -1, -2) @ d)


@pytest.mark.parametrize(
    "p",
    [
        AttentionProblem(1, 2, 2, 64, 64, 16, 16, f32, False, 0.25),
        AttentionProblem(2, 2, 2, 64, 64, 16, 16, f32, True, 0.25),
        AttentionProblem(1, 2, 1, 50, 70, 16, 32, f32, True, 0.25),
        AttentionProblem(1, 4, 2, 50, 37, 16, 16, f32, False, 0.25),
    ],
    ids=["full", "causal", "ragged and shared", "few keys"],
)
def test_attention_and_its_derivative(p: AttentionProblem) -> None:
    q, d = (
        normal(p.batch, p.heads, p.queries, p.size),
        normal(p.batch, p.heads, p.queries, p.values, seed=1),
    )
    k, v = (
        normal(p.batch, p.groups, p.keys, p.size, seed=2),
        normal(p.batch, p.groups, p.keys, p.values, seed=3),
    )
    outs = set()
    for m in (16, 32, 64):  # queries of a block, which change no bit
        o, logs = np.zeros_like(d), np.zeros(d.shape[:3], np.float32)
        delta, d_q, d_k, d_v = (np.zeros_like(x) for x in (logs, q, k, v))
        for kernel, given in (
            (AttentionForward(p, m, 16), (q, k, v, o, logs)), (Delta(p, 16), (o, d, delta)),
            (KeysBackward(p, m, 32), (q, k, v, d, logs, delta, d_k, d_v)),
            (QueriesBackward(p, m, 16), (q, k, v, d, logs, delta, d_q)),
        ):  # fmt: skip
            made = kernel.kernel()
            verify(made)
            interpret(made, list(given))
        outs.add(b"".join(x.tobytes() for x in (o, d_q, d_k, d_v)))
        for got, want in zip((o, d_q, d_k, d_v), attention_in_f64(p, q, k, v, d), strict=True):
            assert_close(got, want.astype(np.float32), times=2)
    assert len(outs) == 1


# Schedules


def test_renamed_kernels_are_equal() -> None:
    def twice(x: Any, y: Any) -> Any:
        (a,) = op.barrier(op.softmax(x))
        (b,) = op.barrier(op.softmax(y))
        return a + b

    p = schedule(twice, (5, 7), (5, 7))
    first, second = (renamed(s) for s in p.steps[:3] if isinstance(s, Kernel) and len(s.stages) > 1)
    assert str(first[0]) == str(second[0])
    assert list(first[1].values()) != list(second[1].values())


def test_sizes_become_numbers() -> None:
    p = schedule(op.softmax, ("R", "C"))  # type: ignore[arg-type]
    q = specialize(p, {"R": 3, "C": 5})
    x = normal(3, 5)
    np.testing.assert_array_equal(run_schedule(q, [x])[0], run_schedule(p, [x])[0])
    assert "R" not in str(q).split("program", 1)[1].split("softmax", 1)[1]


def test_columns_that_have_nothing_in_common_run_apart() -> None:
    def many(*xs: Any) -> Any:
        scale = 1.0 / (xs[0][0] + 2.0)
        return [op.tanh(x * scale) + i for i, x in enumerate(xs)]

    p = schedule(lambda *xs: tuple(many(*xs)), *[(40 + i,) for i in range(12)])
    (kernel,) = [s for s in p.steps if isinstance(s, Kernel) and len(s.stages) > 8]
    parts = split_kernel(kernel)
    assert len(parts) > 8
    assert {n for k in parts for n in k.outputs} >= set(kernel.outputs)


def test_a_number_that_the_host_makes_has_no_axes() -> None:
    f = ts.jit(lambda x: toeplitz_slogdet(x)[1])
    with fake_gpu():
        x = ts.tensor([1.0, 3.0, 2.0]).to("cuda")
        with pytest.warns(RuntimeWarning, match="toeplitz_slogdet"):
            y = f(x)
        assert y.shape == y.storage.shape == ()
        assert float(y.numpy()) == pytest.approx(math.log(7.0), rel=1e-6)
