"""vmap of transposed convolutions: the bits of a loop, also beside weights that are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.flags import override

SPECIAL = [0.0, -0.0, 1.0, -1.5, 6.0, np.inf, np.nan]
AXES = [(0, 0), (0, None), (None, 0)]


def compare(
    rng: np.random.Generator, special: bool, axes: tuple[Any, Any], least: float = 0.0
) -> None:
    """vmap beside a loop; products of NumPy promise no bits, which `least` allows for."""
    groups, window = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    channels, out = groups * int(rng.integers(1, 3)), int(rng.integers(1, 6))
    shapes = (3, 2, channels, int(rng.integers(2, 5))), (3, channels, out, window)
    x, w = (
        (rng.choice(SPECIAL, s) if special else rng.standard_normal(s)).astype(np.float32)
        for s in shapes
    )
    options = {"stride": int(rng.integers(1, 3)), "padding": (window - 1) // 2, "groups": groups}
    given = [ts.tensor(v if a == 0 else v[0]) for v, a in zip((x, w), axes, strict=True)]
    loop = [
        op.conv_transpose1d(
            *(v if a is None else v[i] for v, a in zip(given, axes, strict=True)), **options
        )
        for i in range(3)
    ]
    got = ts.vmap(lambda a, b: op.conv_transpose1d(a, b, **options), in_axes=axes)(*given)
    np.testing.assert_allclose(got.numpy(), np.stack([y.numpy() for y in loop]), least, least)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("special", [False, True])
def test_on_the_references(axes: tuple[Any, Any], special: bool) -> None:
    rng = np.random.default_rng(0)
    with override(target="numpy"):
        for _ in range(40):
            compare(rng, special, axes, 1e-5)


@pytest.mark.parametrize("axes", AXES)
def test_on_the_machine(axes: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(2):
        compare(rng, False, axes)


@pytest.mark.parametrize("axes", AXES)
def test_on_the_machine_beside_special_values(axes: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(2)
    for _ in range(3):
        compare(rng, True, axes)


def test_eager_and_jitted_calls_agree_beside_special_values() -> None:
    """Where a weight that is not finite spreads is one rule of the target (docs/numerics.md)."""
    rng = np.random.default_rng(3)
    for i in range(6):
        groups, window = int(rng.integers(1, 3)), int(rng.integers(1, 4))
        channels = groups * (9 if i % 2 else int(rng.integers(1, 4)))
        x = rng.choice(SPECIAL, (2, channels, 4)).astype(np.float32)
        w = rng.choice(SPECIAL, (channels, 3, window)).astype(np.float32)
        options = {
            "stride": int(rng.integers(1, 4)),
            "padding": (window - 1) // 2,
            "groups": groups,
        }

        def f(x: Any, w: Any, options: Any = options) -> Any:
            return op.conv_transpose1d(x, w, **options)

        eager, jitted = (g(ts.tensor(x), ts.tensor(w)).numpy() for g in (f, ts.jit(f)))
        np.testing.assert_array_equal(eager, jitted)
        for k in range(2):  # a NaN or an infinity of x stays in its own image
            alone = f(ts.tensor(x[k : k + 1]), ts.tensor(w)).numpy()
            np.testing.assert_array_equal(alone[0], eager[k])


@pytest.mark.parametrize("stride", [2, 3, 5])
def test_results_shorter_than_the_stride(stride: int) -> None:
    """Of the phases of a stride some have no place in a short axis."""
    rng = np.random.default_rng(stride)
    for n, window, short in [(1, 1, 0), (1, 2, 0), (2, 1, 0), (1, 3, 1), (2, 2, 1)]:
        x, w = rng.standard_normal((2, 3, n)), rng.standard_normal((3, 4, window))

        def f(x: Any, w: Any, cut: int = short) -> Any:
            return op.conv_transpose1d(x, w, stride=stride, padding=cut)

        got = ts.jit(f)(ts.tensor(x), ts.tensor(w)).numpy()
        with override(target="numpy"):
            want = f(ts.tensor(x), ts.tensor(w)).numpy()
        np.testing.assert_allclose(got, want, 1e-14, 1e-14)
