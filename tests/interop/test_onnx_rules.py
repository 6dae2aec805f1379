"""Rules of ONNX nodes beside their formulas: what no published case has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.interop.onnx.rules.cast import _to_small
from tests.support.runners.tolerance import assert_close

onnx = pytest.importorskip("onnx")
helper = onnx.helper
RUNS_ON = "numpy"
RNG = np.random.default_rng(0)


def outputs(
    kind: str, *xs: Any, count: int = 1, domain: str = "", opset: int = 21, **attributes: Any
) -> list[Any]:
    """What a model of one node gives."""
    names, results = [f"x{i}" for i in range(len(xs))], [f"y{i}" for i in range(count)]
    given = [(n, x) for n, x in zip(names, xs, strict=True) if x is not None]
    node = helper.make_node(
        kind,
        [n if x is not None else "" for n, x in zip(names, xs, strict=True)],
        results,
        domain=domain,
        **attributes,
    )
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given
    ]
    out = [helper.make_tensor_value_info(n, 0, None) for n in results]
    graph = helper.make_graph([node], "g", infos, out)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    f = ts.onnx.load(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    found = f(*(x for _, x in given))
    return [np.asarray(y) for y in (found if isinstance(found, list | tuple) else [found])]


SAME = np.zeros((40, 50), np.float32)


@pytest.mark.parametrize(
    ("kind", "xs", "attributes", "draw"),
    [
        ("RandomNormal", (), {"shape": [40, 50], "mean": 2.0, "scale": 3.0},
        lambda r: r.normal(2.0, 3.0, (40, 50))),
        ("RandomUniform", (), {"shape": [40, 50], "low": -1.0, "high": 3.0},
        lambda r: r.uniform(-1.0, 3.0, (40, 50))),
        ("RandomNormalLike", (SAME,), {"mean": 2.0}, lambda r: r.normal(2.0, 1.0, (40, 50))),
        ("RandomUniformLike", (SAME,), {"high": 3.0}, lambda r: r.uniform(0.0, 3.0, (40, 50))),
        ("Bernoulli", (SAME + np.float32(0.25),), {}, lambda r: r.uniform(0, 1, (40, 50)) < 0.25),
    ],
)  # fmt: skip
def test_random_nodes_with_a_seed_draw_the_numbers_of_the_reference(
    kind: str, xs: Any, attributes: Any, draw: Any
) -> None:
    (got,) = outputs(kind, *xs, seed=7.0, **attributes)
    want = draw(np.random.RandomState(7)).astype(np.float32)
    assert got.dtype == np.float32
    assert_close(got, want)


@pytest.mark.parametrize("norm", [0.0, 0.125])
@pytest.mark.parametrize("step", [0, 3])
def test_adam_without_attributes_has_the_defaults_of_the_standard(norm: float, step: int) -> None:
    x, g, v = RNG.standard_normal((3, 5)).astype(np.float32)
    h = np.abs(RNG.standard_normal(5)).astype(np.float32)
    rate = np.float32(0.1)
    given = {"norm_coefficient": norm} if norm else {}
    got = outputs(
        "Adam",
        rate,
        np.int64(step),
        x,
        g,
        v,
        h,
        count=3,
        domain="ai.onnx.preview.training",
        **given,
    )
    g = g + norm * x
    v, h = 0.9 * v + 0.1 * g, 0.999 * h + 0.001 * g * g
    warm = np.sqrt(1 - 0.999**step) / (1 - 0.9**step) if step else 1.0
    for a, b in zip(got, (x - rate * warm * v / np.sqrt(h), v, h), strict=True):
        assert_close(a, b.astype(np.float32), times=8)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_small_integers_have_the_low_bits(name: str) -> None:
    x = np.arange(-40, 41).astype(np.float32) + np.float32(0.25)
    whole, bits = np.trunc(x).astype(int), int(name[-1])
    want = whole % (1 << bits)
    if name.startswith("int"):
        want = np.where(want >= 1 << (bits - 1), want - (1 << bits), want)
    got = _to_small(x, np.dtype(getattr(ml_dtypes, name)))
    np.testing.assert_array_equal(got.astype(int), want)


@pytest.mark.parametrize("form", ["apart", "keys and values in one", "all in one"])
def test_attention_is_the_same_however_its_operands_are_packed(form: str) -> None:
    batch, length, heads, size = 2, 3, 2, 4
    q, k, v = RNG.standard_normal((3, batch, length, heads, size)).astype(np.float32)
    if form == "apart":
        given = [x.reshape(batch, length, heads * size) for x in (q, k, v)]
    elif form == "all in one":
        given = [np.stack([q, k, v], 3)]
    else:
        given = [q.reshape(batch, length, heads * size), np.stack([k, v], 3)]
    got = outputs("MultiHeadAttention", *given, domain="com.microsoft", num_heads=heads)[0]
    score = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(size)
    e = np.exp(score - score.max(-1, keepdims=True))
    want = np.einsum("bhij,bjhd->bihd", e / e.sum(-1, keepdims=True), v)
    assert_close(got, want.reshape(batch, length, heads * size).astype(np.float32), times=4)


@pytest.mark.parametrize(
    ("kind", "domain"), [("Sigmoid", ""), ("QuickGelu", "com.microsoft"), ("Swish", "")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_sigmoid_gives_subnormal_numbers(kind: str, domain: str, dtype: Any) -> None:
    """What reads them would multiply them, which takes a processor a hundred times as long."""
    tiny = np.finfo(dtype).tiny
    x = np.linspace(1.2 * np.log(tiny), 0, 1001).astype(dtype)
    (y,) = outputs(kind, x, domain=domain)
    assert not np.any((y != 0) & (np.abs(y) < tiny))
    assert np.isnan(outputs(kind, np.array([np.nan], dtype), domain=domain)[0]).all()
    wanted = 1 / (1 + np.exp(-np.longdouble(x)))
    if kind != "Sigmoid":
        wanted = x / (1 + np.exp(-np.longdouble(x) * (1.702 if domain else 1.0)))
    np.testing.assert_allclose(
        y, wanted, rtol=3e-5 if dtype is np.float32 else 1e-12, atol=tiny * 800
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_a_sigmoid_of_narrow_numbers_is_rounded_once(dtype: Any) -> None:
    """Also where it is subnormal, since narrow numbers are computed as wide ones."""
    tiny = float(ml_dtypes.finfo(dtype).tiny)
    x = np.linspace(np.log(tiny / 100), 9, 1001).astype(dtype)
    (y,) = outputs("Sigmoid", x)
    want = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(dtype)
    assert y.dtype == dtype
    if dtype is np.float16:
        assert np.any((y != 0) & (y < tiny))
    close = np.abs(y.astype(float) - want.astype(float)) <= np.spacing(want).astype(float)
    assert np.all(close)


@pytest.mark.parametrize("alpha", [None, 0.5])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_products_of_transposed_matrices(left: int, right: int, alpha: float | None) -> None:
    a, b, c = (RNG.normal(size=s).astype(np.float32) for s in ((2, 3, 4), (2, 4, 5), (3, 5)))
    x = np.swapaxes(a, 1, 2).copy() if left else a
    y = np.swapaxes(b, 1, 2).copy() if right else b
    given = {"transA": left, "transB": right} | ({} if alpha is None else {"alpha": alpha})
    factor = 1.0 if alpha is None else alpha
    for kind in ("TransposeMatMul", "FusedMatMul"):
        (got,) = outputs(kind, x, y, domain="com.microsoft", **given)
        assert_close(got, (factor * (a.astype(float) @ b)).astype(np.float32), times=4)
    plain = factor * (a[0].astype(float) @ b[0])
    for beta in (None, 0.25):
        more = given if beta is None else given | {"beta": beta}
        full = (plain + (1.0 if beta is None else beta) * c).astype(np.float32)
        (got,) = outputs("Gemm", x[0], y[0], c, **more)
        assert_close(got, full, times=4)
        (got,) = outputs(
            "FusedGemm", x[0], y[0], c, domain="com.microsoft", activation="Relu", **more
        )
        assert_close(got, np.maximum(full, 0), times=4)
    (got,) = outputs("FusedGemm", x[0], y[0], domain="com.microsoft", **given)
    assert_close(got, plain.astype(np.float32), times=4)


@pytest.mark.parametrize(
    ("opset", "dtype"),
    [(v, d) for v in (1, 2, 10, 11, 13, 18, 21) for d in (np.float32, np.int64, np.float16)
     if v >= 11 or d is not np.int64],
)  # fmt: skip
def test_padding_is_that_of_numpy_in_every_version(opset: int, dtype: Any) -> None:
    """Widths and the number are attributes before version 11, and operands since; a negative width cuts."""
    x = np.arange(1, 13).reshape(3, 4).astype(dtype)
    for mode in ("constant", "edge", "reflect"):
        for value in (None, 7.0) if mode == "constant" else (None,):
            given: dict[str, Any] = {"mode": mode}
            if opset < 11:
                given |= {"paddings" if opset == 1 else "pads": [1, 0, 2, 3]}
                given |= {} if value is None else {"value": value}
                (got,) = outputs("Pad", x, opset=opset, **given)
            else:
                number = [] if value is None else [np.array(value, dtype)]
                (got,) = outputs("Pad", x, np.array([1, 0, 2, 3]), *number, opset=opset, **given)
            fill = {"constant_values": value or 0} if mode == "constant" else {}
            np.testing.assert_array_equal(got, np.pad(x, [(1, 2), (0, 3)], mode, **fill))
            assert got.dtype == dtype
    for low, high in [
        ((0, -1), (1, 2)),
        ((0, 0), (-1, -2)),
        ((-2, 1), (0, -1)),
        ((2, -1), (-1, -1)),
    ]:
        if opset < 11:
            name = "paddings" if opset == 1 else "pads"
            (cut,) = outputs("Pad", x, opset=opset, **{name: [*low, *high]})
        else:
            (cut,) = outputs("Pad", x, np.array([*low, *high]), opset=opset)
        kept = x[
            tuple(
                slice(max(-i, 0), n - max(-j, 0))
                for n, i, j in zip(x.shape, low, high, strict=True)
            )
        ]
        around = [(max(i, 0), max(j, 0)) for i, j in zip(low, high, strict=True)]
        np.testing.assert_array_equal(cut, np.pad(kept, around))
    if opset >= 18:  # widths of some axes
        at = [np.array([2, 1]), np.array(5, dtype), np.array([-1])]
        (some,) = outputs("Pad", x, *at, opset=opset)
        np.testing.assert_array_equal(some, np.pad(x, [(0, 0), (2, 1)], constant_values=5))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 3), (2, 1, 3)])
def test_each_element_must_be_a_category_where_zeros_are_not_allowed(
    shape: tuple[int, ...],
) -> None:
    cats, domain = [0, 2, 4], "ai.onnx.ml"
    for given in ({"cats_int64s": cats}, {"cats_strings": ["0", "2", "4"]}):
        x = np.resize(np.array([4, 0, 2]), shape)
        named = x.astype(object if "cats_strings" in given else np.int64)
        if named.dtype == object:
            named = np.array([str(i) for i in x.reshape(-1)], object).reshape(shape)
        for zeros in (0, 1):
            (got,) = outputs("OneHotEncoder", named, domain=domain, zeros=zeros, **given)
            np.testing.assert_array_equal(got, x[..., None] == np.array(cats))
        named.reshape(-1)[-1] = "3" if named.dtype == object else 3
        (got,) = outputs("OneHotEncoder", named, domain=domain, **given)
        assert not got.reshape(-1, 3)[-1].any()
        with pytest.raises(ts.onnx.OnnxError, match="an element is none of the categories"):
            outputs("OneHotEncoder", named, domain=domain, zeros=0, **given)


def test_a_node_that_asks_for_too_much_memory_is_named() -> None:
    """Found by damage: 2^40 bins of a box ended in an error of NumPy's allocation."""
    image, boxes = np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 4), np.float32)
    sizes = {"output_height": 2**40, "output_width": 1, "sampling_ratio": 1}
    with pytest.raises(ts.TesseraError, match=r"onnx: .*RoiAlign.*: there is not enough memory"):
        outputs("RoiAlign", image, boxes, np.zeros(1, np.int64), **sizes)
