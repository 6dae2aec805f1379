"""tile.dot_scaled: products of mxfp8, mxfp4 and nvfp4, against the numbers of ml_dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f8e4m3, f32, kernel, tile, u8
from tessera.runtime.cuda import driver

RUNS_ON = "cpu"
M, N, K = 8, 16, 64
E2M1, E8M0, E4M3 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn


def packed(codes: Any, axis: int) -> Any:
    """Codes of four bits, two in a byte along an axis."""
    moved = np.moveaxis(codes, axis, 0)
    return np.ascontiguousarray(np.moveaxis(moved[0::2] | moved[1::2] << 4, 0, axis))


@kernel.schedule(block(8, 16))
def mxfp4(a: KTile[8, 32, u8], sa: KTile[8, 2, u8], b: KTile[32, 16, u8], sb: KTile[16, 2, u8]):
    return tile.dot_scaled(tile.load(a), tile.load(sa), "e2m1", tile.load(b), tile.load(sb), "e2m1")


@kernel.schedule(block(8, 16))
def nvfp4(a: KTile[8, 32, u8], sa: KTile[8, 4, f8e4m3], b: KTile[64, 16, f32]):
    return tile.dot_scaled(tile.load(a), tile.load(sa), "e2m1", tile.load(b), None, "bf16")


@kernel.schedule(block(8, 16))
def mxfp8(a: KTile[8, 64, u8], sa: KTile[8, 2, u8], b: KTile[64, 16, u8], sb: KTile[16, 2, u8]):
    acc = tile.full((8, 16), 1.0, f32)
    return tile.dot_scaled(
        tile.load(a), tile.load(sa), "e4m3", tile.load(b), tile.load(sb), "e5m2", acc
    )


def draw(seed: int) -> tuple[Any, Any, Any, Any]:
    r = np.random.default_rng(seed)
    codes = r.integers(0, 16, (M, K)).astype(np.uint8), r.integers(0, 16, (K, N)).astype(np.uint8)
    scales = (r.integers(120, 134, (n, 2)).astype(np.uint8) for n in (M, N))
    return (*codes, *scales)


def spread(s: Any, k: int = K) -> Any:
    return np.repeat(s.astype(np.float64), k // s.shape[1], 1)


@pytest.mark.parametrize("seed", range(3))
def test_mxfp4_has_the_numbers_of_its_codes(seed: int) -> None:
    a, b, sa, sb = draw(seed)
    want = (a.view(E2M1).astype(float) * spread(sa.view(E8M0))) @ (
        b.view(E2M1).astype(float) * spread(sb.view(E8M0)).T
    )
    args = (packed(a, 1), sa, packed(b, 0), sb)
    got = mxfp4(*args).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    for step in (False, True):
        with ts.interpret(step=step):
            np.testing.assert_allclose(mxfp4(*args).numpy(), got, rtol=1e-6)


def test_nvfp4_has_scales_of_eight_bits_for_sixteen_numbers() -> None:
    r = np.random.default_rng(0)
    a, *_ = draw(4)
    sa, b = r.uniform(0.25, 2, (M, 4)).astype(E4M3), r.normal(size=(K, N)).astype(np.float32)
    want = (a.view(E2M1).astype(float) * spread(sa)) @ b
    np.testing.assert_allclose(nvfp4(packed(a, 1), sa, b).numpy(), want, rtol=1e-5, atol=1e-5)


def test_all_codes_of_mxfp8_and_of_their_scales() -> None:
    a = np.resize(np.arange(256, dtype=np.uint8), (M, K))
    a[(a & 127) == 127] = 1  # NaN
    b = np.eye(K, N, dtype=np.float32).astype(ml_dtypes.float8_e5m2).view(np.uint8)
    sa, sb = np.full((M, 2), 127, np.uint8), np.full((N, 2), 130, np.uint8)
    got = mxfp8(a, sa, b, sb).numpy()
    np.testing.assert_array_equal(got, a.view(E4M3).astype(np.float32)[:, :N] * 8 + 1)
    sa[3] = 255
    assert np.isnan(mxfp8(a, sa, b, sb).numpy()).all(1).tolist() == [i == 3 for i in range(M)]


@pytest.mark.parametrize(
    ("form", "scale", "message"),
    [
        ("e3m2", (8, 2), "dot_scaled: the format of a is 'e3m2', expected one of"),
        ("e4m3", (8, 3), "dot_scaled: the scale of a is u8[8,3], expected 8 rows and a column for each"),
    ],
)  # fmt: skip
def test_mistakes_name_the_operand(form: str, scale: Any, message: str) -> None:
    @kernel.schedule(block(8, 16))
    def wrong(a: KTile[8, 64, u8], s: KTile[scale[0], scale[1], u8], b: KTile[64, 16, f32]):
        return tile.dot_scaled(tile.load(a), tile.load(s), form, tile.load(b), None, "bf16")

    with pytest.raises(ts.TesseraError) as e:
        wrong(
            np.zeros((8, 64), np.uint8), np.zeros(scale, np.uint8), np.zeros((64, 16), np.float32)
        )
    assert message in str(e.value)


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
def test_mxfp4_on_a_gpu() -> None:
    a, b, sa, sb = draw(0)
    args = (packed(a, 1), sa, packed(b, 0), sb)
    got = mxfp4(*(ts.tensor(x).to("cuda") for x in args))
    np.testing.assert_allclose(got.numpy(), mxfp4(*args).numpy(), rtol=1e-3, atol=1e-3)
