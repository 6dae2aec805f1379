"""Calls of ATen ops that no sample of PyTorch reaches, for record_torch.py: each with its defaults, and with
its flags changed one by one.  Sizes tell axes apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

Call = tuple[str, tuple[Any, ...]]


def _drawn(*shape: int, kind: str = "f") -> torch.Tensor:
    if kind == "i":
        return torch.randint(-9, 9, shape)
    x = torch.randn(shape)
    return torch.complex(x, torch.randn(shape)) if kind == "c" else x


def _of(name: str, *calls: tuple[Any, ...]) -> Iterator[Call]:
    return ((f"aten.{name}", c) for c in calls)


def chosen_calls() -> Iterator[Call]:
    """Names of ops with operands; a dict at the end holds keywords."""
    yield from _products()
    yield from _scalars()
    yield from _moves()
    yield from _folds()
    yield from _windows()
    yield from _attention()
    yield from _norms()
    yield from _resizes()
    yield from _lists()
    yield from _layers()


def _products() -> Iterator[Call]:
    x, row, batch = _drawn(3, 4), _drawn(4), _drawn(2, 3, 4)
    w, b = _drawn(5, 4), _drawn(5)
    yield from _of("linear.default", (x, w), (x, w, b), (batch, w, b), (row, w))
    yield from _of(
        "matmul.default", (x, _drawn(4, 5)), (row, _drawn(4)), (x, row), (_drawn(3), x),
        (batch, _drawn(4, 5)), (_drawn(5, 1, 3, 4), _drawn(2, 4, 3)),
        (_drawn(3, 4, kind="i"), _drawn(4, 2, kind="i")),
    )  # fmt: skip
    left, right = _drawn(5, 3, 2), _drawn(5, 2, 4)
    yield from _of(
        "addbmm.default", (x, left, right), (row, left, right, {"beta": 0.5, "alpha": 2}),
        (x, left, right, {"beta": 0}),
    )  # fmt: skip
    yield from _of(
        "cross.default", (x, _drawn(3, 4)), (_drawn(3, 3), _drawn(3, 3), 1),
        (_drawn(2, 4, 3), _drawn(2, 4, 3), -1), (_drawn(2, 3, 3), _drawn(2, 3, 3)),
    )  # fmt: skip


def _scalars() -> Iterator[Call]:
    x, y, row, z = _drawn(3, 4), _drawn(3, 4), _drawn(4), _drawn(3, 4, kind="c")
    n, m = _drawn(3, 4, kind="i"), _drawn(4, kind="i")
    few = m.abs() % 5
    for name in ("atan2", "hypot", "nextafter", "logaddexp", "maximum", "minimum"):
        yield from _of(f"{name}.default", (x, y), (x, row))
    yield from _of("copysign.Tensor", (x, y), (x, row))
    yield from _of("copysign.Scalar", (x, -2.0), (x, 0.0))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield from _of(f"{name}.Tensor", (n, m), (n > 0, m > 0))
        yield from _of(f"{name}.Scalar", (n, 6))
        yield from _of(f"{name}.Scalar_Tensor", (5, n))
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield from _of(f"{name}.Tensor", (n, few))
        yield from _of(f"{name}.Tensor_Scalar", (n, 2))
        yield from _of(f"{name}.Scalar_Tensor", (100, few))
    for name in ("__lshift__", "__rshift__"):
        yield from _of(f"{name}.Tensor", (n, few))
        yield from _of(f"{name}.Scalar", (n, 2), (few, 1))
    for name in ("gcd", "lcm"):
        yield from _of(f"{name}.default", (n, m))
    for name in ("i0", "special_i0e", "special_i1", "special_i1e", "sinc", "special_erfcx"):
        yield from _of(f"{name}.default", (x,), (n,))
    yield from _of("special_ndtri.default", (torch.sigmoid(x),))
    yield from _of("special_log_ndtr.default", (x,))
    for name in ("igamma", "igammac"):
        yield from _of(f"{name}.default", (x.abs(), y.abs()), (x.abs(), row.abs()))
    yield from _of("special_zeta.default", (x.abs() + 2, y.abs() + 1))
    yield from _of("special_zeta.self_scalar", (2.5, y.abs() + 1))
    yield from _of("special_zeta.other_scalar", (x.abs() + 2, 1.0))
    yield from _of("polygamma.default", (1, x.abs() + 1), (3, x.abs() + 1))
    yield from _of("ldexp.Tensor", (x, m), (x, few))
    for mode in (None, "trunc", "floor"):
        yield from _of("div.Scalar_mode", (x, 0.7, {"rounding_mode": mode}))
        yield from _of("div.Tensor_mode", (n, m.abs() + 2, {"rounding_mode": mode}))
    yield from _of("square.default", (x,), (n,), (z,))
    yield from _of("positive.default", (x,), (n,))
    yield from _of("real.default", (z,), (x,))
    yield from _of("imag.default", (z,))
    yield from _of("conj.default", (x,), (z,))
    yield from _of("resolve_conj.default", (z,))
    yield from _of("view_as_complex_copy.default", (_drawn(3, 4, 2),))
    yield from _of("view.dtype", (x, torch.int32), (n, torch.float64))


def _moves() -> Iterator[Call]:
    x, y, batch, block = _drawn(3, 4), _drawn(3, 4), _drawn(2, 3, 4), _drawn(1, 2, 3, 4, 5)
    at = _drawn(4, kind="i").abs()
    yield from _of("concat.default", ([x, y],), ([x, _drawn(3, 2)], 1), ([x, _drawn(3, 2)], -1))
    yield from _of("repeat_interleave.self_int", (x, 2), (x, 2, 0), (x, 3, 1), (batch, 2, -2))
    yield from _of("_reshape_alias.default", (x, [2, 6], [6, 1]))
    yield from _of("reflection_pad3d.default", (block, [1, 2, 0, 1, 1, 0]))
    yield from _of("replication_pad3d.default", (block, [1, 2, 0, 1, 1, 3]))
    yield from _of(
        "scatter.value_reduce", (x, 1, at[None] % 4, 2.5, {"reduce": "add"}),
        (x, 0, at[None] % 3, 2.5, {"reduce": "multiply"}),
    )  # fmt: skip
    for own in (True, False):
        yield from _of(
            "scatter_reduce.two", (x, 1, at[None] % 4, _drawn(1, 4), "mean", {"include_self": own})
        )
    yield from _of(
        "_index_put_impl.default", (x, [at % 3], _drawn(4, 4)), (x, [None, at % 4], _drawn(3, 4), True),
        (x, [at % 3, at % 4], _drawn(4), True), (batch, [None, at % 3, at % 4], _drawn(2, 4)),
    )  # fmt: skip
    whole = _drawn(3, 9, kind="i") % 3
    yield from _of(
        "sort.stable", (x, {"stable": True, "dim": 0}), (x, {"stable": True, "dim": 1, "descending": True}),
        (whole, {"stable": True, "dim": -1, "descending": True}), (whole, {"stable": True}),
    )  # fmt: skip


def _folds() -> Iterator[Call]:
    x, batch = _drawn(3, 4), _drawn(2, 3, 4)
    ties = _drawn(3, 8, kind="i") % 4
    for name in ("cummax", "cummin"):
        yield from _of(f"{name}.default", (x, 0), (batch, -1), (ties, 1), (ties > 1, 0))
    for name in ("log_softmax.int", "softmax.int"):
        yield from _of(name, (x, 0), (x, 1), (batch, -2), (x, -1, torch.float64))
    for name in ("std", "var"):
        yield from _of(f"{name}.default", (x,), (x, False))
        yield from _of(
            f"{name}.dim", (batch, [1]), (batch, [0, 2], False), (batch, [-1], True, True)
        )
        yield from _of(
            f"{name}.correction", (batch,), (batch, [1]), (batch, [0, 2], {"correction": 0}),
            (batch, [1], {"correction": 2, "keepdim": True}),
        )  # fmt: skip


def _windows() -> Iterator[Call]:
    line, image, block = _drawn(2, 3, 5), _drawn(2, 4, 5, 6), _drawn(1, 2, 3, 4, 5)
    yield from _of(
        "avg_pool1d.default", (line, [2]), (line, [3], [2]), (line, [3], [1], [1]),
        (line, [2], [2], [1], True), (line, [3], [2], [1], False, False),
    )  # fmt: skip
    two, one, none = [2, 2, 2], [1, 1, 1], [0, 0, 0]
    yield from _of(
        "avg_pool3d_backward.default",
        (_drawn(1, 2, 1, 2, 2), block, two, two, none, False, True, None),
        (_drawn(1, 2, 2, 3, 3), block, two, two, one, False, False, None),
        (_drawn(1, 2, 2, 3, 4), block, two, one, none, False, True, 3),
    )  # fmt: skip
    top, at = torch.nn.functional.max_pool3d(block, 2, 2, return_indices=True)
    ct = _drawn(*top.shape)
    yield from _of(
        "max_pool3d_with_indices_backward.default", (ct, block, two, two, none, one, False, at)
    )
    yield from _of(
        "convolution.default", (line, _drawn(4, 3, 2), None, [1], [0], [1], False, [0], 1)
    )
    for transposed, gap, groups in itertools.product((False, True), (1, 2), (1, 2)):
        sizes = (4, 6 // groups) if transposed else (6, 4 // groups)
        out = [1, 0] if transposed else [0, 0]
        rest = ([2, 1], [1, 0], [gap, 1], transposed, out, groups, False, False, False, False)
        for bias in (None, _drawn(6)):
            yield from _of("_convolution.default", (image, _drawn(*sizes, 3, 2), bias, *rest))
    grid = torch.rand(2, 3, 4, 2) * 2.4 - 1.2
    for mode, pad, corners in itertools.product((0, 1, 2), (0, 1, 2), (False, True)):
        rest = (mode, pad, corners)
        yield from _of("grid_sampler_2d.default", (image[:, :2], grid, *rest))
        if (mode + pad) % 2 == corners:
            ct = _drawn(2, 2, 3, 4)
            yield from _of(
                "grid_sampler_2d_backward.default", (ct, image[:, :2], grid, *rest, [True, True])
            )


def _attention() -> Iterator[Call]:
    q, k, v = _drawn(2, 4, 3, 5), _drawn(2, 4, 6, 5), _drawn(2, 4, 6, 7)
    yield from _of(
        "scaled_dot_product_attention.default", (q, k, v), (q, k, v, {"scale": 0.3}),
        (q, q, q, {"is_causal": True}), (q, k, v, _drawn(3, 6)), (q, k, v, _drawn(2, 1, 3, 6) > 0),
        (q, k[:, :2], v[:, :2], {"enable_gqa": True}),
    )  # fmt: skip


def _norms() -> Iterator[Call]:
    x, w, b = _drawn(2, 4, 5, 6), _drawn(4), _drawn(4)
    mean, var = _drawn(4), torch.rand(4) + 0.5
    for eps in (1e-5, 0.5):
        yield from _of(
            "_native_batch_norm_legit_no_training.default", (x, w, b, mean, var, 0.1, eps),
            (x, None, None, mean, var, 0.3, eps),
        )  # fmt: skip
        yield from _of(
            "_native_batch_norm_legit.no_stats", (x, w, b, True, 0.1, eps),
            (x, None, None, True, 0.1, eps),
        )  # fmt: skip
    for momentum in (0.1, 0.6):
        yield from _of(
            "_native_batch_norm_legit_functional.default", (x, w, b, mean, var, True, momentum, 1e-5),
            (x, w, None, mean, var, True, momentum, 1e-3), (x, w, b, mean, var, False, momentum, 1e-5),
        )  # fmt: skip
        yield from _of(
            "_batch_norm_with_update_functional.default", (x, w, b, mean, var, momentum, 1e-5)
        )


def _resizes() -> Iterator[Call]:
    line, image, block = _drawn(2, 3, 5), _drawn(2, 2, 5, 6), _drawn(1, 2, 3, 4, 5)
    kinds = (
        (line, [7], "linear1d"),
        (image, [9, 4], "bilinear2d"),
        (block, [5, 3, 7], "trilinear3d"),
    )
    for x, sizes, smooth in kinds:
        factors, rank = [1.5] * len(sizes), len(sizes)
        yield from _of(f"upsample_nearest{rank}d.vec", (x, sizes, None), (x, None, factors))
        ct = _drawn(*x.shape[:2], *sizes)
        yield from _of(f"upsample_nearest{rank}d_backward.default", (ct, sizes, list(x.shape)))
        for corners in (False, True):
            yield from _of(
                f"upsample_{smooth}.vec", (x, sizes, corners, None), (x, None, corners, factors)
            )
            yield from _of(
                f"upsample_{smooth}_backward.default", (ct, sizes, list(x.shape), corners)
            )


_OF_EACH = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc", "zero",
)  # fmt: skip


def _lists() -> Iterator[Call]:
    """Ops on lists of tensors, with numbers between 0 and 1."""
    xs, ys, zs = ([torch.rand(3, 2), torch.rand(4)] for _ in range(3))
    one = torch.tensor(0.5)
    for name in _OF_EACH:
        yield from _of(f"_foreach_{name}.default", (xs,))
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow"):
        yield from _of(f"_foreach_{name}.Scalar", (xs, 0.5))
        yield from _of(f"_foreach_{name}.List", (xs, ys))
        yield from _of(f"_foreach_{name}.ScalarList", (xs, [0.5, 2.0]))
    for name in ("add", "mul", "div"):
        yield from _of(f"_foreach_{name}.Tensor", (xs, one))
    yield from _of("_foreach_add.List", (xs, ys, {"alpha": 3}))
    yield from _of("_foreach_pow.ScalarAndTensor", (2.0, xs))
    yield from _of("_foreach_lerp.Scalar", (xs, ys, 0.2), (xs, ys, 0.7))
    yield from _of("_foreach_lerp.ScalarList", (xs, ys, [0.2, 0.7]))
    yield from _of("_foreach_lerp.List", (xs, ys, zs))
    for name in ("addcmul", "addcdiv"):
        yield from _of(f"_foreach_{name}.Scalar", (xs, ys, zs), (xs, ys, zs, 0.5))
        yield from _of(f"_foreach_{name}.ScalarList", (xs, ys, zs, [0.5, 2.0]))
        yield from _of(f"_foreach_{name}.Tensor", (xs, ys, zs, torch.tensor([0.5, 2.0])))
    yield from _of("_foreach_norm.Scalar", (xs,), (xs, 1), (xs, float("inf")))
    yield from _of("_foreach_copy.default", (xs, ys))
    yield from _of(
        "_foreach_mm.default", ([_drawn(2, 3), _drawn(1, 2)], [_drawn(3, 2), _drawn(2, 2)])
    )


def _layers() -> Iterator[Call]:
    """Layers that PyTorch runs whole."""
    x, wide, norm = _drawn(2, 3, 4), (_drawn(12, 4), _drawn(12)), (_drawn(4), _drawn(4))
    rest = (_drawn(4, 4), _drawn(4))
    ends = (*norm, *norm, _drawn(6, 4), _drawn(6), _drawn(4, 6), _drawn(4))
    for gelu, first in ((True, False), (False, True)):
        yield from _of(
            "_transformer_encoder_layer_fwd.default",
            (x, 4, 2, *wide, *rest, gelu, first, 1e-3, *ends),
        )
