"""Convolutions on a GPU: implicit products equal the definitions, whatever the block, and leave nothing
to the host.
"""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import as_dtype, bf16
from tessera.core.primitives import PRIMITIVES
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu import conv_weights, implicit_gemm
from tessera.ir.tile.gpu.implicit_gemm import ConvBlock
from tessera.ir.tile.gpu.primitives import expand_primitive
from tessera.ir.tile.inside import verify_inside
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tests.support.fakes.gpu_fake import BUILT, fake_gpu

RUNS_ON = "numpy"
UNIT = {"f4": 2.0**-23, "bf16": 2.0**-8}


def launched(name: str, arrays: list[Any], params: dict[str, Any]) -> Any:
    """The result of the launches of a primitive, by the Tile interpreter."""
    names = ("a", "b")
    types = {n: TensorType(as_dtype(a.dtype), a.shape) for n, a in zip(names, arrays, strict=True)}
    (out,) = PRIMITIVES[name].infer(list(types.values()), params)
    step = Primitive("s", name, params, names, ("y",))
    e = expand_primitive(step, types | {"y": out})
    memory = dict(zip(names, arrays, strict=True))
    for n, t in {"y": out, **e.between}.items():
        memory[n] = np.full(t.shape, 9, t.dtype.np)  # type: ignore[arg-type]
    for launch in e.launches:
        verify(launch.kernel)
        verify_inside(launch.kernel)
        ast.parse(emit(launch.kernel, launch.threads))
        buffers = zip((*launch.inputs, *launch.outputs), launch.kernel.parameters, strict=True)
        interpret(launch.kernel, [memory[n].reshape(m.type.shape) for n, m in buffers])
    return memory["y"]


def problem(seed: int, kind: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """x, w, a cotangent and parameters of a random convolution."""
    rng = np.random.default_rng(seed)
    rank, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    into, made = int(rng.integers(1, 20)), int(rng.integers(1, 12))
    window, stride, dilation = (
        tuple(int(n) for n in rng.integers(1, most, rank)) for most in (4, 4, 3)
    )
    padding = tuple((int(rng.integers(-1, 3)), int(rng.integers(0, 3))) for _ in range(rank))
    sizes = tuple(
        (k - 1) * d + 2 + int(rng.integers(0, 4)) for k, d in zip(window, dilation, strict=True)
    )
    dtype = np.dtype(bf16.np if kind == "bf16" else kind)
    x = rng.standard_normal((int(rng.integers(1, 3)), groups * into, *sizes)).astype(dtype)
    w = rng.standard_normal((groups * made, into, *window)).astype(dtype)
    p = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    types = [TensorType(as_dtype(dtype), a.shape) for a in (x, w)]
    shape: Any = PRIMITIVES["conv"].infer(types, p)[0].shape
    return x, w, rng.standard_normal(shape).astype(dtype), p


def cases(seed: int, kind: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """The convolution and both derivatives, where they are primitives."""
    x, w, ct, p = problem(seed, kind)
    inner = {"inner": (1,) * (x.ndim - 2)}
    found = [
        ("conv", [x, w], p | inner),
        ("conv_weights", [x, ct], p | inner | {"window": w.shape[2:]}),
        ("conv_input", [ct, w], p | {"size": x.shape[2:]}),
    ]
    return [
        (name, xs, q)
        for name, xs, q in found
        if PRIMITIVES[name].supports([TensorType(as_dtype(a.dtype), a.shape) for a in xs], q)
    ]


def agrees(name: str, xs: list[Any], p: dict[str, Any], kind: str) -> bool:
    """Whether the launches are right, up to a rounding and what sums in f32 may differ by from those in f64."""
    exact = [np.float64(a) for a in xs]
    wanted = PRIMITIVES[name].evaluate(exact, p)[0]
    room = PRIMITIVES[name].evaluate([np.abs(a) for a in exact], p)[0]
    error = np.abs(np.float64(launched(name, xs, p)) - wanted)
    return bool(np.all(error <= 1.01 * UNIT[kind] * np.abs(wanted) + 2.0**-21 * room))


@pytest.mark.parametrize("kind", UNIT)
@pytest.mark.parametrize("seed", range(3))
def test_implicit_products_are_the_definition(seed: int, kind: str) -> None:
    for name, xs, p in cases(seed, kind):
        assert agrees(name, xs, p, kind), (name, p)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3, 60))
def test_more_implicit_products_are_the_definition(seed: int) -> None:
    kind = ["f4", "bf16"][seed % 2]
    for name, xs, p in cases(seed, kind):
        assert agrees(name, xs, p, kind), (name, p)


def test_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [launched(name, xs, p) for name, xs, p in cases(1, "f4")]
    for block in (ConvBlock(16, 32), ConvBlock(32, 16)):
        monkeypatch.setattr(implicit_gemm, "default_block", lambda p, b=block: b)
        monkeypatch.setattr(conv_weights, "default_block", lambda p, b=block: b)
        for (name, xs, p), y in zip(cases(1, "f4"), usual, strict=True):
            assert launched(name, xs, p).tobytes() == y.tobytes(), name


def test_an_image_has_the_same_bits_alone() -> None:
    x, w, _, p = problem(5, "f4")
    p |= {"inner": (1,) * (x.ndim - 2)}
    both = np.concatenate([x, x[:1] * 3, x])
    together = launched("conv", [both, w], p)
    assert together[: len(x)].tobytes() == launched("conv", [x, w], p).tobytes()


def test_what_is_outside_of_a_window_does_not_reach_it() -> None:
    """Channels and windows that fill a block up must not multiply an infinity by 0."""
    x = np.ones((1, 5, 4, 6), np.float32)
    x[0, 2, 3, 5] = np.inf
    w, ct = np.ones((3, 5, 2, 3), np.float32), np.ones((1, 3, 3, 4), np.float32)
    p: dict[str, Any] = {
        "stride": (1, 1),
        "padding": ((0, 0), (0, 0)),
        "dilation": (1, 1),
        "groups": 1,
    }
    p["inner"] = (1, 1)
    assert np.isinf(launched("conv", [x, w], p)).sum() == 3
    found = launched("conv_weights", [x, ct], p | {"window": (2, 3)})
    assert np.isinf(found).sum() == 3
    assert not np.isnan(found).any()


def layers(x: Any, w: Any, b: Any) -> Any:
    y = op.relu(op.conv2d(x, w, b, stride=2, padding=1))
    return op.sum(op.square(y))


def test_programs_with_convolutions_run_on_the_device() -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((2, 9, 7, 8), (6, 9, 3, 3), (6,))]
    wanted = ts.jit(ts.grad(layers, argnums=(0, 1, 2)))(*map(ts.tensor, given))
    with fake_gpu():
        found = ts.jit(ts.grad(layers, argnums=(0, 1, 2)))(
            *(ts.tensor(a).to("cuda") for a in given)
        )
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-4)
    low = ts.jit(ts.grad(layers, argnums=(0, 1, 2)), target="cuda:sm_90").lower(
        *map(ts.tensor, given)
    )
    assert low.host_steps == {}


def test_copies_are_made_once() -> None:
    """The derivative in the kernel reads the images that the convolution turned, and the cotangents of
    the one in x.
    """

    def both(x: Any, w: Any, ct: Any) -> Any:
        y, back = ts.vjp(lambda x, w: op.conv2d(x, w, padding=1), x, w)
        return y, back(ct)

    shapes = ((2, 9, 5, 6), (10, 9, 3, 3), (2, 10, 5, 6))
    given = [ts.tensor(np.ones(s, np.float32)) for s in shapes]
    low = ts.jit(both, target="cuda:sm_90").lower(*given)
    names = [k.name for k in low.tile.values()]
    assert sorted(names) == sorted(
        ["channels_last", "pack", "conv", "channels_last", "pack_turned", "conv", "conv_weights",
        "join_leaves"]
    )  # fmt: skip


# Depthwise


@pytest.mark.parametrize("made", [1, 2])
def test_depthwise_convolutions_are_the_definition(made: int) -> None:
    rng = np.random.default_rng(made)
    x = rng.standard_normal((2, 5, 6, 11)).astype(np.float32)
    w = rng.standard_normal((5 * made, 1, 2, 5)).astype(np.float32)
    p: dict[str, Any] = {
        "stride": (2, 1),
        "padding": ((1, 2), (2, 0)),
        "dilation": (1, 2),
        "groups": 5,
    }
    p["inner"] = (1, 1)
    y = PRIMITIVES["conv"].evaluate([x, w], p)[0]
    assert launched("conv", [x, w], p).tobytes() == y.tobytes()  # one chain of taps, as on a CPU
    ct = rng.standard_normal(y.shape).astype(np.float32)
    assert agrees("conv_weights", [x, ct], p | {"window": (2, 5)}, "f4")


# Pooling

POOLS = {
    "max": (lambda x: op.max_pool2d(x, 3, 2, 1), (2, 3, 9, 8)),
    "max, dilated": (lambda x: op.max_pool1d(x, 2, dilation=3), (2, 2, 17)),
    "max, in three axes": (lambda x: op.max_pool3d(x, 2, 1, 1), (1, 2, 3, 4, 5)),
    "max, large": (lambda x: op.max_pool2d(x, 7, 1, 3), (1, 2, 9, 10)),
    "mean": (lambda x: op.avg_pool2d(x, 3, 1, 1), (2, 3, 5, 6)),
    "mean, without padding": (lambda x: op.avg_pool2d(x, 3, 2, 1, True, False), (1, 2, 6, 8)),
    "mean, rounded up": (lambda x: op.avg_pool1d(x, 3, 2, 1, True), (1, 2, 12)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_and_its_gradient_on_the_device(name: str) -> None:
    f, shape = POOLS[name]
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, shape).astype(np.float32)  # many are largest
    ct = rng.standard_normal(f(ts.tensor(x)).shape).astype(np.float32)

    def both(x: Any, ct: Any) -> Any:
        y, back = ts.vjp(f, x)
        return y, *back(ct)

    wanted = ts.jit(both)(ts.tensor(x), ts.tensor(ct))
    BUILT.clear()
    with fake_gpu():
        found = ts.jit(both)(ts.tensor(x).to("cuda"), ts.tensor(ct).to("cuda"))
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-6)
    assert {s.name.split("_")[1] for s in BUILT} == {"pool"}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_blocks_of_weights_are_powers_of_two_of_some_size(dtype: str) -> None:
    for made in (1, 3, 15, 16, 17, 64, 65, 500):
        for taps in (1, 9, 27):
            for depth in (1, 16, 48):
                piece: Any = SimpleNamespace(
                    results=SimpleNamespace(made=made), taps=SimpleNamespace(count=taps),
                    images=SimpleNamespace(depth=depth, dtype=as_dtype(dtype)),
                )  # fmt: skip
                block = conv_weights.default_block(piece)
                for size, wanted in ((block.made, made), (block.windows, taps * depth)):
                    assert 16 <= size <= 128
                    assert size & (size - 1) == 0
                    assert size <= max(16, 2 * wanted - 1)


@pytest.mark.parametrize("shape", [(3, 16, 6, 10), (3, 16, 20)], ids=str)
def test_a_window_of_one_place_is_one_product_of_narrow_numbers(shape: tuple[int, ...]) -> None:
    """Neither the image nor the result exists in f32: the product casts what it reads and writes."""
    x = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape)
    w = np.linspace(-1, 1, 32 * 16).reshape(32, 16, *(1,) * (len(shape) - 2))
    with fake_gpu():
        BUILT.clear()
        given = [ts.tensor(a).astype("bf16").to("cuda") for a in (x, w)]
        y = ts.jit(op.conv)(*given).numpy().astype(np.float64)
        kernels = list(BUILT.values())
        image, matrix = (g.numpy().astype(np.float64) for g in given)
    want = np.einsum("nc...,oc->no...", image, matrix.reshape(32, 16))
    np.testing.assert_allclose(y, want, rtol=2e-2, atol=2e-2)
    assert len(kernels) == 1
    assert {m.type.dtype for m in kernels[0].parameters} == {bf16}
