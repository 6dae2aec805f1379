"""Samples for public functions that are written with ops and so have no record to keep them in."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts
from tessera.ir.graph.op import Sample

_LABELS = np.array([2, 0])
_SIGNS = np.array([1.0, -1.0])
_BYTES = np.array([[0, 1, 0x7F], [0x80, 0xA5, 0xFF]], np.uint8)
_IDS = np.array([[0, 2], [3, 1]])
_KEY = np.array([1, 2], np.uint32)
_SQUARE = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
_LOSS = (Sample((2, 3), (2, 3)), Sample((4,), (4,), reduction="sum"))
_TARGETS = np.array([[0.0, 1.0, 0.3], [1.0, 0.5, 0.0]])
_GATED = (Sample((2, 4)), Sample((4, 2), axis=0))
_MASK = np.array([[True, False, True], [False, False, True]])

SAMPLES: dict[str, tuple[Sample, ...]] = {
    # shape
    "expand_dims": (Sample((2, 3)), Sample((2, 3), axis=(0, -1)), Sample(())),
    "squeeze": (Sample((1, 3, 1)), Sample((1, 3), axis=0), Sample(()), Sample((1, 0))),
    "flatten": (Sample((2, 3, 4)), Sample((2, 3, 4), start=1), Sample(()), Sample((0, 2))),
    "matrix_transpose": (Sample((2, 3)), Sample((2, 0, 1))),
    "swapaxes": (Sample((2, 3, 4), 0, 2),),
    "moveaxis": (Sample((2, 3, 4), 0, -1), Sample((2, 3, 4), (0, 1), (1, 2))),
    "shape.split": (Sample((6, 2), 3), Sample((2, 5), parts=(1, 4), axis=1), Sample((0,), 2)),
    "stack": (Sample([(2, 3), (2, 3)]), Sample([(2,)], axis=-1), Sample([(), (), ()])),
    # indexing
    "index": (
        Sample((4, 5), key=(1, slice(None, None, -2))), Sample((3, 4), key=(..., None, 2)),
        Sample((3, 4), key=np.array([[2, 0], [1, 1]])), Sample((2, 3, 4), key=(_LABELS % 2, 0, _LABELS)),
        Sample((2, 3), key=()), Sample((0, 3), key=(slice(None), 1)),
    ),
    "update": (
        Sample((4, 5), key=(1, slice(0, 4, 2)), value=(2,), how="set"),
        Sample((4, 3), key=np.array([2, 0, 2]), value=(3, 3), how="add"),
        Sample((2, 3), key=(..., 1), value=1.5, how="set"),
    ),
    "take": (Sample((3, 4), np.array([2, 0]), axis=1), Sample((3,), np.array([[1], [1]])),
    Sample((3, 2), np.array(1))),
    "take_along_axis": (Sample((2, 3), np.array([[2, 0], [1, 1]])),
    Sample((3, 2), np.array([[2, 0]]), axis=0)),
    "put_along_axis": (Sample((2, 3), np.array([[2], [1]]), (2, 1)),),
    "cast_like": (Sample((2, 3), (1,)), Sample((2, 3), np.array([1], np.int32))),
    # arranging, running folds, sets; a plain list of numbers is data that is never traced
    "repeat": (
        Sample((2, 3), 2), Sample((2, 3), 0, axis=1), Sample((3,), [1, 0, 2], axis=0), Sample((), 3),
    ),
    "unpack_ints": (
        Sample(_BYTES), Sample(_BYTES, 4, axis=0, signed=True), Sample(_BYTES, bits=2, axis=1),
        Sample(_BYTES, bits=1, signed=True),
    ),
    "meshgrid": (Sample((2,), np.arange(3.0)), Sample((2,), np.arange(3.0), indexing="ij"), Sample((0,))),
    "broadcast_arrays": (Sample((2, 1), np.arange(3.0)), Sample((0, 1))),
    "unstack": (Sample((1, 2)), Sample((3, 1), axis=-1), Sample((0, 2))),
    "rot90": (Sample((2, 3)), Sample((2, 3), k=2), Sample((2, 3, 1), k=3, axes=(1, 2)), Sample((0, 2), k=4)),
    "arange": (Sample(4), Sample(1, 7, 2), Sample(5, 0, -2), Sample(0.5, 2.0, 0.25), Sample(0)),
    "linspace": (Sample((), (), num=5), Sample(0, 1, num=1), Sample((2,), 1.0, num=3, endpoint=False)),
    "cumulative_sum": (Sample((3,)), Sample((2, 3), axis=1, include_initial=True), Sample((0,))),
    "cumulative_prod": (Sample((3,)), Sample((2, 3), axis=0, include_initial=True), Sample((0,))),
    "diff": (
        Sample((4,)), Sample((3, 4), axis=0, n=2), Sample((2, 3), prepend=(2, 1), append=(2, 2)),
        Sample((1,)), Sample((0,)), Sample((3,), n=0),
    ),
    "nonzero": (Sample((2, 3), size=4), Sample((3,), size=5, fill=-1), Sample([0, 3, 0, 1])),
    "unique": (Sample([3, 1, 3]),), "unique_values": (Sample([0.0, -0.0, 2.0]),),
    "unique_all": (Sample([3, 1, 3]),), "unique_counts": (Sample([True, False, True]),),
    "unique_inverse": (Sample([2.5, 1.5, 2.5]),),
    "isin": (Sample((3,), (2,)), Sample(_IDS, _LABELS), Sample(_IDS, _LABELS, invert=True),
    Sample((3,), (0,))),
    # contraction
    "einsum": (
        Sample("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), Sample("ii", (3, 3)), Sample("ij->ji", (2, 3)),
        Sample("...i,...i->...", (2, 1, 3), (4, 3)), Sample("i,j", (2,), (0,)),
    ),
    "vecdot": (Sample((2, 3), (2, 3)), Sample((2, 3), (2, 1), axis=0)),
    "tensordot": (Sample((2, 3, 4), (3, 4, 5)), Sample((2, 3), (3, 2), axes=([0, 1], [1, 0]))),
    "outer": (Sample((2,), (3,)), Sample((0,), (3,))),
    "kron": (Sample((2, 3), (2, 2)), Sample((2,), (2, 3))),
    # reduction
    "std": (Sample((2, 3), axis=1), Sample((5,), correction=1.0)),
    "count_nonzero": (Sample((2, 3)), Sample((0, 3), axis=0)),
    "norm": (
        Sample((2, 3)), Sample((2, 3), ord=1, axis=0), Sample((3,), ord=float("inf")),
        Sample((3,), ord=float("-inf")), Sample((3,), ord=3), Sample((3,), ord=0),
    ),
    # creation
    "zeros": (Sample((2, 0)), Sample((), dtype=ts.i32)),
    "ones": (Sample((2, 3)), Sample((), dtype=ts.bf16)),
    "empty": (Sample((2, 3)),),
    "full_like": (Sample((2, 3), 1.5), Sample((), 2, dtype=ts.i8)),
    "zeros_like": (Sample((2, 3)), Sample((0,), dtype=ts.bool_)),
    "ones_like": (Sample((2, 3)),),
    "empty_like": (Sample((2, 3)),),
    # neural
    "swish": (Sample((2, 3)), Sample((3,), beta=2.0)),
    "glu": _GATED, "swiglu": _GATED, "geglu": _GATED,
    "softmin": (Sample((2, 3)), Sample((2, 3), axis=0)),
    "batchnorm_train": (Sample((4, 3)), Sample((2, 3, 2), (3,), (3,))),
    "instancenorm": (Sample((2, 3, 4)), Sample((2, 3, 4), (3,), (3,))),
    "causal_mask": (Sample(2, 3), Sample(3, 3)),
    "embedding": (Sample((4, 3), _IDS),),
    "residual": (Sample((2, 3), (2, 3)), Sample((2, 3), (2, 3), dropout=0.5, key=_KEY)),
    "nll_loss": (Sample((2, 3), _LABELS), Sample((2, 3), _LABELS, ignore_index=2, reduction="none")),
    "binary_cross_entropy": (
        Sample((2, 3), _TARGETS), Sample(np.array([0.2, 0.9]), np.array([0.3, 0.8]), logits=False),
    ),
    "mse": _LOSS, "mae": _LOSS, "l1_loss": _LOSS, "hinge": _LOSS,
    "huber": (*_LOSS, Sample((2, 3), (2, 3), delta=0.5, reduction="none")),
    "smooth_l1": (*_LOSS, Sample((2, 3), (2, 3), beta=0.5), Sample((2, 3), (2, 3), beta=0.0)),
    "kl_div": (Sample((2, 3), _TARGETS), Sample((2, 3), (2, 3), log_target=True)),
    "cosine_similarity": (Sample((2, 3), (2, 3)), Sample((2, 3), (2, 3), axis=0)),
    "cosine_embedding": (Sample((2, 3), (2, 3), _SIGNS),
    Sample((2, 3), (2, 3), _SIGNS, margin=0.1, reduction="none")),
    "margin_ranking": (Sample((2,), (2,), _SIGNS), Sample((2,), (2,), _SIGNS, margin=0.3, reduction="sum")),
    "triplet_margin": (Sample((2, 3), (2, 3), (2, 3)),
    Sample((2, 3), (2, 3), (2, 3), margin=9.0, p=3.0, reduction="none")),
    "soft_margin": (Sample((2,), _SIGNS), Sample((2,), _SIGNS, reduction="none")),
    "hinge_embedding": (Sample((2,), _SIGNS), Sample((2,), _SIGNS, margin=2.0, reduction="none")),
    "multi_margin": (Sample((2, 3), _LABELS), Sample((2, 3), _LABELS, p=2, margin=0.5, reduction="none")),
    "poisson_nll": (Sample((2, 3), _TARGETS),
    Sample(np.array([0.2, 0.9]), np.array([1.0, 2.0]), log_input=False)),
    "gaussian_nll": (
        Sample((2, 3), (2, 3), _TARGETS + 0.5),
        Sample((2,), (2,), np.array([0.5, 2.0]), full=True, reduction="sum"),
    ),
    "ctc_loss": (
        Sample((2, 5, 4), np.array([[1, 1], [2, 3]])),
        Sample((2, 4, 3), np.array([[1, 2], [2, 0]]), np.array([4, 3]), np.array([2, 1]), reduction="none"),
    ),
    # linalg
    "sqrtm": (Sample(_SQUARE), Sample(np.full((2, 1, 1), 4.0))),
    "logm": (Sample(_SQUARE),),
    "signm": (Sample(_SQUARE - 3.0 * np.eye(3)),),
    "lstsq": (Sample(np.arange(6.0).reshape(3, 2) ** 2, (3,)), Sample(_SQUARE, (3, 2))),
    "matrix_rank": (Sample(_SQUARE), Sample(np.ones((2, 3, 3)))),
    "matrix_power": (Sample((3, 3), 3), Sample((2, 2, 2), 0), Sample(_SQUARE, -2)),
    "matrix_norm": (Sample((2, 3)), Sample((2, 3), ord=1), Sample((2, 3), ord="nuc"), Sample((2, 3), ord=2)),
    "vector_norm": (Sample((2, 3), ord=3, axis=1), Sample((3,), keepdims=True)),
    "trace": (Sample((3, 3)), Sample((2, 3, 4), offset=1)),
    # fft
    "fftn": (Sample((2, 3)), Sample((2, 3, 4), s=(4, 2), axes=(0, 2)), Sample((3,), axes=())),
    "ifftn": (Sample((2, 3)), Sample((2, 3, 4), s=(4, 5), norm="ortho")),
    "fft2": (Sample((2, 3)), Sample((2, 3, 4), axes=(0, 1))),
    "ifft2": (Sample((2, 3)), Sample((1, 1))),
    "rfftn": (Sample((2, 3)), Sample((2, 3, 4), axes=(2, 0), norm="forward"), Sample((1,))),
    "irfftn": (Sample((2, 3)), Sample((2, 3, 3), s=(4, 5)), Sample((2, 2), s=(2, 3), axes=(1, 0))),
    "hfft": (Sample((4,)), Sample((2, 3), n=5, norm="ortho")),
    "ihfft": (Sample((4,)), Sample((3, 2), axis=0)),
    "fftfreq": (Sample(n=5), Sample(n=6, d=0.5, dtype=ts.f64), Sample(n=1)),
    "rfftfreq": (Sample(n=5), Sample(n=6, d=0.5, dtype=ts.f64), Sample(n=1)),
    "fftshift": (Sample((5,)), Sample((2, 3), axes=1), Sample((0, 4)), Sample(())),
    "ifftshift": (Sample((5,)), Sample((2, 3), axes=(0, 1))),
    "hann_window": (Sample(n=5), Sample(n=4, periodic=False, dtype=ts.f64), Sample(n=1)),
    "stft": (Sample((12,), window=4), Sample((2, 9), np.array([0.5, 1.0, 0.5]), hop=2, center=False)),
    "istft": (
        Sample((3, 5), window=4), Sample((2, 4), np.array([0.5, 1.0, 0.5]), hop=2, length=6),
        Sample((4, 3), window=4, onesided=False, center=False),
    ),
    "idct": (Sample((4,)), Sample((3, 2), type=1, axis=0), Sample((5,), type=3, norm="ortho")),
    # random: the key is data, so that only its stream is tested here
    "random_bits.split": (Sample(_KEY), Sample(_KEY, 3)),
    "key": (Sample(7),),
    "fold_in": (Sample(_KEY, 3),),
    "bits": (Sample(_KEY, (2, 3)), Sample(_KEY, (0,)), Sample(_KEY, (4,), dtype=ts.u8)),
    "uniform": (Sample(_KEY, (2, 3), dtype=ts.f64), Sample(_KEY, (3,), (3,), 4.0), Sample(_KEY, (0,))),
    "normal": (Sample(_KEY, (2, 3), dtype=ts.f64), Sample(_KEY, (3,), (3,), (3,), dtype=ts.f64),
    Sample(_KEY, ())),
    "truncated_normal": (Sample(_KEY, (3,), 2.5, dtype=ts.f64),),
    "exponential": (Sample(_KEY, (3,), (3,), dtype=ts.f64),),
    "laplace": (Sample(_KEY, (3,), (3,), (3,), dtype=ts.f64),),
    "gumbel": (Sample(_KEY, (3,), (3,), (3,), dtype=ts.f64),),
    "bernoulli": (Sample(_KEY, 0.3, (2, 3)), Sample(_KEY, (3,))),
    "randint": (Sample(_KEY, (2, 3), -2, 9), Sample(_KEY, (4,), 0, 256, dtype=ts.u8)),
    "categorical": (Sample(_KEY, (2, 3)), Sample(_KEY, (3,), shape=(4,))),
    "permutation": (Sample(_KEY, 5), Sample(_KEY, (4, 2)), Sample(_KEY, (2, 3), axis=1)),
    "choice": (Sample(_KEY, 5, (3,)), Sample(_KEY, (4, 2), (2,), replace=False)),
    "dropout": (Sample(_KEY, (2, 3)), Sample(_KEY, (2, 3), p=0.0), Sample(_KEY, (3,), training=False)),
    "random_gamma.gamma": (Sample(_KEY, (3,)), Sample(_KEY, (3,), scale=(3,))),
    "loggamma": (Sample(_KEY, (3,)),),
    "beta": (Sample(_KEY, (3,), (3,)),),
    "dirichlet": (Sample(_KEY, (3,)), Sample(_KEY, (2, 3))),
    "poisson": (Sample(_KEY, (3,)), Sample(_KEY, 4.0, shape=(2,))),
}  # fmt: skip


# Control flow takes functions: they are named here so that the tests have readable names.


def _double(x: Any) -> Any:
    return x * 2.0


def _squared(x: Any) -> Any:
    return x * x


def _small(x: Any) -> Any:
    return ts.op.sum(x * x) < 100.0


def _running_sum(carry: Any, x: Any) -> Any:
    return carry + x, carry * x


def _step(i: Any, x: Any) -> Any:
    return x * 1.5 + i.astype(ts.f64)


SAMPLES |= {
    "bitcast": (
        Sample(np.array([0x3F800000, 0, 7], np.uint32), dtype="i32"),
        Sample(np.array([[1, -1]], np.int64), dtype="u64"),
    ),
    "cond": (
        Sample(np.array(True), _double, _squared, (3,)), Sample(np.array(False), _double, _squared, (3,)),
    ),
    "while_loop": (Sample(_small, _double, (3,)),),
    "scan": (
        Sample(_running_sum, (2,), (3, 2)), Sample(_running_sum, (), (4,), reverse=True),
        Sample(_running_sum, (2,), (0, 2)),
    ),
    "fori_loop": (Sample(0, 3, _step, (2,)), Sample(2, 2, _step, (2,))),
}  # fmt: skip
DOMAINS: dict[str, tuple[float, float]] = {
    "while_loop": (0.5, 2.0),
    "cosine_similarity": (0.5, 2.0),
    "truncated_normal": (-1.0, 1.0),
    "bernoulli": (0.0, 1.0),
    "exponential": (0.5, 3.0),
    "laplace": (0.5, 3.0),
    "gumbel": (0.5, 3.0),
    "random_gamma.gamma": (0.5, 3.0),
    "loggamma": (0.5, 3.0),
    "beta": (0.5, 3.0),
    "dirichlet": (0.5, 3.0),
    "poisson": (0.5, 3.0),
}

# Convolution, pooling, resize.
SAMPLES |= {
    "conv1d": (Sample((2, 3, 5), (4, 3, 3), (4,), padding="same"), Sample((1, 2, 6), (2, 1, 2), groups=2)),
    "conv2d": (Sample((1, 2, 4, 5), (3, 2, 3, 2), stride=(1, 2), padding=((1, 0), (0, 1))),),
    "conv3d": (Sample((1, 1, 3, 3, 4), (2, 1, 2, 2, 2), dilation=(1, 1, 2)),),
    "conv_transpose": (Sample((1, 2, 3), (2, 3, 2)), Sample((1, 2, 3), (2, 1, 3), (2,), groups=2, stride=2)),
    "conv_transpose1d": (Sample((1, 2, 3), (2, 3, 3), stride=2, padding=1, output_padding=1),),
    "conv_transpose2d": (Sample((1, 2, 2, 3), (2, 1, 2, 2), stride=(2, 1), dilation=(1, 2)),),
    "conv_transpose3d": (Sample((1, 1, 2, 2, 2), (1, 2, 1, 2, 2)),),
    "max_pool1d": (Sample((2, 1, 5), size=3, stride=2, padding=1),),
    "max_pool2d": (Sample((1, 2, 4, 5), size=2, ceil_mode=True),),
    "max_pool3d": (Sample((1, 1, 3, 3, 4), size=2, stride=1),),
    "avg_pool1d": (Sample((2, 1, 5), size=3, stride=2, padding=1, count_include_pad=False),),
    "avg_pool2d": (Sample((1, 2, 4, 5), size=2, ceil_mode=True),),
    "avg_pool3d": (Sample((1, 1, 3, 3, 4), size=2, stride=1),),
    "lp_pool": (Sample((1, 2, 5), size=2), Sample((1, 2, 6), size=3, p=3.0, stride=2)),
    "global_avg_pool": (Sample((2, 3, 4)), Sample((2, 3, 4, 2), keepdims=False)),
    "global_max_pool": (Sample((2, 3, 4)), Sample((2, 3, 4, 2), keepdims=False)),
    "adaptive_avg_pool": (Sample((2, 1, 5), size=3), Sample((0, 1, 4), size=2)),
    "adaptive_avg_pool1d": (Sample((2, 1, 3), size=5),),
    "adaptive_avg_pool2d": (Sample((1, 2, 4, 5), size=(3, 2)),),
    "adaptive_avg_pool3d": (Sample((1, 1, 3, 4, 5), size=2),),
    "resize": (
        Sample((1, 2, 4), size=6), Sample((1, 1, 3, 4), scale=1.7, mode="linear"),
        Sample((1, 2, 5), size=3, mode="cubic"), Sample((1, 2, 5), size=8, mode="linear", align_corners=True),
    ),
    "interpolate": (Sample((1, 2, 4), scale=2.0),),
    "grid_sample": (
        Sample((2, 1, 3, 4), (2, 2, 2, 2)),
        Sample((1, 2, 4), (1, 3, 1), padding="border", align_corners=True),
        Sample((1, 1, 4, 3), (1, 2, 1, 2), mode="cubic", padding="reflection"),
        Sample((1, 1, 4), (1, 2, 1), mode="nearest"),
    ),
    "affine_grid": (Sample((2, 2, 3), shape=(2, 1, 3, 4)),
    Sample((1, 1, 2), shape=(1, 2, 5), align_corners=True)),
}  # fmt: skip
DOMAINS |= {"lp_pool": (0.5, 2.0)}
