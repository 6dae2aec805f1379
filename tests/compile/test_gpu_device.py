"""Programs on a GPU: the catalog, random kernels bit by bit, and what never changes a bit."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tessera as ts
from tessera import op
from tessera.core.dims import product, substitute
from tessera.core.dtype import bf16, f16, f32
from tessera.ir.target.triton import dependent_launch
from tessera.ir.target.triton.emit import emit, scratch_bytes
from tessera.ir.target.triton.triton_source import source_of
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem
from tessera.ir.tile.interp import sizes_of
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Threads
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.launch import DeviceLaunch, FixedValue, Launcher, Pointer, i32
from tessera.runtime.cuda.memory import DeviceArray, empty, to_device
from tessera.runtime.cuda.module import DriverModule
from tessera.runtime.triton_builder import build
from tests.compile.test_gpu_programs import attention_in_f64, normal
from tests.support.cases.op_cases import Case, all_cases
from tests.support.cases.tile_kernels import Program, programs
from tests.support.fakes.gpu_fake import set_roles
from tests.support.runners.tolerance import TOLERANCE, assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not driver.available(), reason="there is no GPU"),
]


PLAIN = Threads()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some ops run on the host
        yield


def sorted_values(w: Any, v: Any) -> list[Any]:
    """Eigenvalues in an order, and the matrix that they and their vectors are of."""
    order = np.argsort(w.real + 1e-3 * w.imag, axis=-1)
    inverse = np.linalg.inv(v) if v.size else v
    return [np.take_along_axis(w, order, -1), (v * w[..., None, :]) @ inverse]


def of_matrix(u: Any, s: Any, vh: Any) -> list[Any]:
    n = s.shape[-1]
    return [s, (u[..., :n] * s[..., None, :]) @ vh[..., :n, :]]


# Vectors have the signs, and eig its values the order, of the library that computed them: what they
# stand for is one.
SAME: dict[str, Any] = {
    "eigh": lambda w, v: [w, (v * w[..., None, :]) @ np.conj(np.swapaxes(v, -1, -2))],
    "eig": sorted_values,
    "svd": of_matrix,
}


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_an_op_means_on_a_gpu_what_it_means_here(case: Case) -> None:
    xs = case.draw()
    want = ts.tree.leaves(case.call([ts.tensor(x) for x in xs]))
    got = ts.tree.leaves(ts.jit(lambda *a: case.call(a))(*(ts.tensor(x).to("cuda") for x in xs)))
    plain = [[a.numpy() for a in outs if isinstance(a, ts.Tensor)] for outs in (want, got)]
    if case.name in SAME:
        assert [(x.shape, x.dtype) for x in plain[0]] == [(y.shape, y.dtype) for y in plain[1]]
        plain = [SAME[case.name](*outs) for outs in plain]
    for x, y in zip(*plain, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if x.dtype.kind in "fc":
            scale = max(1.0, float(np.abs(np.nan_to_num(x)).max(initial=0))) if x.size else 1.0
            assert_close(y / scale, x / scale, times=8)
        else:
            np.testing.assert_array_equal(x, y)


def run(kernel: Kernel, arrays: list[Any], threads: Threads = PLAIN) -> list[Any]:
    """A Tile kernel on the device; the arrays after it."""
    g, sizes = gpu(), sizes_of(kernel, arrays)
    scratch = int(substitute(scratch_bytes(kernel), sizes))
    source = source_of(kernel, emit(kernel, threads), threads, ("cuda", 90, 32), scratch)
    (code,) = build([source])
    blocks = int(substitute(product(tuple(n for _, n in kernel.grid)), sizes))
    function = DriverModule(code.image, g).function(code.name, code.shared)
    held: list[DeviceArray] = [to_device(a) for a in arrays]
    given_: list[Pointer | FixedValue] = [Pointer(i) for i in range(len(held))]
    given_ += [i32(sizes[n]) for n in kernel.sizes]
    held.append(empty((max(blocks * max(scratch, code.scratch), 1),), np.int8))
    if scratch:
        given_.append(Pointer(len(arrays)))
    known = function.parameters
    rest: list[Pointer | FixedValue] = [
        FixedValue(bytes(8)) for _ in range(len(known or ()) - len(given_))
    ]
    if rest and code.scratch:
        rest[0] = Pointer(len(arrays))
    launcher = Launcher(
        [DeviceLaunch(function, (blocks, 1, 1), 32 * code.warps, (*given_, *rest))], g
    )
    launcher.run([a.ptr for a in held][: launcher.cells])
    return [a.numpy() for a in held[: len(arrays)]]


@settings(
    max_examples=200, deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(programs())
def test_random_kernels_have_the_bits_of_the_interpreter(p: Program) -> None:
    units = "tile.dot" in p.kernel.text  # whose sums of narrow numbers are their own
    for want, got in zip(p.run(), run(p.kernel, p.fresh()), strict=True):
        kind = want.dtype.name
        if want.dtype.kind in "biu" or kind == "int4":
            np.testing.assert_array_equal(got, want)
            continue
        x, y = want.astype(np.float64), got.astype(np.float64)
        if units:
            np.testing.assert_allclose(y, x, rtol=2e-2, atol=2e-2, equal_nan=True)
            continue
        same = (x == y) & (np.signbit(x) == np.signbit(y))
        assert (same | (np.isnan(x) & np.isnan(y))).all()


def digest(x: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(x.numpy()).tobytes()).hexdigest()


def test_a_row_has_its_bits_alone_in_a_batch_and_in_chunks() -> None:
    x = ts.tensor(normal(96, 1000)).to("cuda")
    w = ts.tensor(normal(1000, 300, seed=1)).to("cuda").astype(bf16)
    for f in (
        ts.jit(lambda x: op.softmax(x) * op.sum(x, 1, keepdims=True)),
        ts.jit(lambda x: x.astype(bf16) @ w),
        ts.jit(lambda x: op.layernorm(x)),
    ):
        whole = f(x)
        assert len({digest(f(x)) for _ in range(5)}) == 1
        for begin, end in ((7, 8), (0, 64), (64, 96)):
            assert digest(f(x[begin:end])) == digest(whole[begin:end])


def test_schedules_of_attention_have_one_hash() -> None:
    p = AttentionProblem(1, 2, 2, 200, 200, 64, 64, bf16, True, 0.125)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 200, 64)).astype(bf16.np) for _ in range(3))
    d = np.zeros_like(q)
    seen = set()
    for queries in (16, 64, 128):
        for warps in (4, 8):
            for descriptors in (False, True):
                o, logs = np.zeros_like(q), np.zeros((1, 2, 200), np.float32)
                kernel = AttentionForward(p, queries).kernel()
                made = run(kernel, [q, k, v, o, logs], Threads(warps, 2, descriptors, True))
                seen.add(made[3].tobytes())
                want = attention_in_f64(p, q, k, v, d)[0]
                assert_close(
                    made[3].astype(np.float32), want.astype(np.float32), TOLERANCE["bf16"], times=2
                )
    assert len(seen) == 1


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("f", "exact"),
    [
        (op.sigmoid, _logistic),
        (op.silu, lambda x: x * _logistic(x)),
        (op.tanh, np.tanh),
        (op.erf, np.vectorize(math.erf)),
        (op.gelu, lambda x: x / 2 * np.vectorize(math.erfc)(-x * 0.5**0.5)),
        (partial(op.gelu, approximate="tanh"),
        lambda x: x * _logistic(1.5957691216057308 * (x + 0.044715 * x**3))),
    ],
    ids=["sigmoid", "silu", "tanh", "erf", "gelu", "gelu by tanh"],
)  # fmt: skip
def test_functions_of_narrow_floats_are_right_to_the_last_place(f: Any, exact: Any) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(bf16.np)
    x = x[np.isfinite(x.astype(np.float32))]
    got = ts.jit(f)(ts.tensor(x, device="cuda")).numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        want = np.nan_to_num(exact(x.astype(np.float64)), nan=0.0)  # 0 times a number beyond all
    error = np.abs(got - np.clip(want, -3.4e38, 3.4e38))
    assert (error <= np.abs(want) * 2.0**-8 + 1e-35).all(), x[
        np.argmax(error / (np.abs(want) + 1e-35))
    ]


def test_training_gives_the_losses_of_the_cpu() -> None:
    x, w = normal(64, 32), normal(32, 48, seed=1) * 0.3

    def loss(w: Any, x: Any) -> Any:
        h = op.layernorm(op.gelu(x @ w))
        return op.mean(op.square(h - 0.5).astype(f32))

    optimizer = ts.optim.adam(1e-2)

    def train(place: str) -> list[float]:
        p = {"w": ts.tensor(w).to(place)}
        state = ts.tree.map(lambda t: t.to(place), optimizer.init({"w": ts.tensor(w)}))
        data = ts.tensor(x).to(place)

        @ts.jit
        def step(p: Any, state: Any) -> Any:
            value, g = ts.value_and_grad(lambda p: loss(p["w"], data))(p)
            return value, *optimizer.update(g, state, p)

        losses = []
        for _ in range(10):
            value, p, state = step(p, state)
            losses.append(float(value))
        return losses

    np.testing.assert_allclose(train("cuda"), train("cpu"), rtol=2e-5)


def test_memory_that_is_not_there_is_an_error_and_the_device_goes_on() -> None:
    x = ts.tensor(np.zeros(400_000, np.float32)).to("cuda")
    with pytest.raises(ts.core.errors.OutOfMemoryError, match="cuda"):
        ts.jit(lambda x: op.outer(x, x))(x)  # 640 GB
    assert float(op.sum(x + 1.0)) == 400_000


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=["bf16", "f16"])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [((2, 4, 512), (2, 4, 512)), ((1, 8, 256), (1, 2, 1024)), ((1, 1, 128), (1, 1, 128)),
    ((2, 2, 320), (2, 2, 1280))],
    ids=["heads", "groups", "one block", "an odd block"],
)  # fmt: skip
@pytest.mark.parametrize("columns", [64, 128])
def test_roles_of_threads_change_no_bit(
    columns: int, queries: tuple[int, ...], keys: tuple[int, ...], dtype: Any, causal: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Attention and its gradients by Gluon and by Triton; large scores, whose weights are 0, too."""

    def slopes(q: Any, k: Any, v: Any, w: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            o = op.attention(q, k, v, causal=causal)
            return op.sum(o.astype(f32) * w.astype(f32)), o

        return ts.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    for size in (1.0, 30.0):
        q, w = (ts.tensor(size * normal(*queries, columns, seed=i)).to("cuda") for i in (0, 3))
        k, v = (ts.tensor(normal(*keys, columns, seed=i)).to("cuda") for i in (1, 2))
        seen = set()
        for roles in (True, False):
            set_roles(monkeypatch, roles)
            made = ts.jit(lambda *xs: slopes(*xs))(*(x.astype(dtype) for x in (q, k, v, w)))
            seen.add(tuple(digest(x) for x in ts.tree.leaves(made)))
        assert len(seen) == 1


@pytest.mark.parametrize("dtype", [bf16, f16], ids=["bf16", "f16"])
@pytest.mark.parametrize("rows", [3072, 12288, 16384])
def test_a_product_with_its_vector_has_the_bits_of_separate_kernels(
    rows: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow and wide blocks, and rows of two parts with what reads both."""

    def norm(x: Any, g: Any) -> Any:
        w = x.astype(f32)
        return (w * op.rsqrt(op.mean(w * w) + 1e-5) * g).astype(x.dtype)

    def f(w: Any, x: Any, g: Any) -> Any:
        z, other = w @ norm(x, g), w @ (x + x)
        return z, op.silu(other[: rows // 2]) * other[rows // 2 :]

    w = ts.tensor(normal(rows, 2048) * 0.03).to("cuda").astype(dtype)
    x, g = (ts.tensor(normal(2048, seed=i)).to("cuda") for i in (1, 2))
    seen = set()
    for roles in (True, False):
        set_roles(monkeypatch, roles)
        seen.add(tuple(map(digest, ts.jit(lambda *xs: f(*xs))(w, x.astype(dtype), g))))
    assert len(seen) == 1


def test_launches_that_begin_early_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of products and small kernels that write over what others have just read, as a graph."""

    def f(w: Any, x: Any, memory: Any) -> Any:
        for _ in range(12):
            y = x.astype(f32)
            z = w @ (y * op.rsqrt(op.mean(y * y) + 1e-5)).astype(bf16)
            memory = op.softmax(memory * 0.5 + z[1024:].astype(f32))
            x = op.tanh(z[:2048].astype(f32) + memory).astype(bf16)
        return x, memory

    w = ts.tensor(normal(3072, 2048) * 0.03).to("cuda").astype(bf16)
    seen = []
    for early in (True, False):
        if not early:
            monkeypatch.setattr(dependent_launch, "early", lambda launch, *_: launch)
        g: Any = ts.jit(lambda w, x, memory: f(w, x, memory), donate=("memory",))
        x = ts.tensor(normal(2048, seed=1)).to("cuda").astype(bf16)
        memory, found = ts.tensor(normal(2048, seed=2)).to("cuda"), []
        for _ in range(20):
            x, memory = g(w, x, memory)
            found.append(digest(x))
        seen.append([*found, digest(memory)])
    assert seen[0] == seen[1]
