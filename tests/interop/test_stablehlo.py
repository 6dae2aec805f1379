"""ts.stablehlo.export: the text of a module, and what it cannot say.  What XLA makes of it:
oracles/test_stablehlo.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import Tensor, bf16, f32, f64, op
from tessera.core.dtype import saturate
from tessera.core.flags import override
from tessera.interop.stablehlo.export import module_text
from tessera.interop.stablehlo.reading.calls import _CALLS
from tessera.ir.graph.ir import concrete
from tests.support.cases.stablehlo_cases import chosen, differ

X = np.ones((2, 3), np.float32)

WANTED = """\
"builtin.module"() <{sym_name = "f"}> ({
  "func.func"() <{function_type = (tensor<2x3xf32>) -> (tensor<2x3xf32>), sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%1: tensor<2x3xf32>):
    %2 = "stablehlo.multiply"(%1, %1) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    "func.return"(%2) : (tensor<2x3xf32>) -> ()
  }) : () -> ()
}) {stablehlo.version = "1.4.0"} : () -> ()\
"""  # noqa: E501


def test_the_text_of_a_module() -> None:
    def f(x: Any) -> Any:
        return x * x

    assert ts.stablehlo.export(f, X) == WANTED
    assert ts.stablehlo.export(ts.jit(f), Tensor[2, 3, f32]) == WANTED


def test_a_loop_is_a_while_and_a_branch_a_case() -> None:
    text = ts.stablehlo.export(lambda x: ts.scan(lambda c, r: (c + r, c), op.zeros(3), x), X)
    assert text.count('"stablehlo.while"') == 1
    text = ts.stablehlo.export(lambda x: ts.cond(op.sum(x) > 0, lambda: x, lambda: -x), X)
    assert text.count('"stablehlo.case"') == 1


def test_large_constants_are_hexadecimal_and_equal_ones_written_once() -> None:
    w = np.arange(100, dtype=np.float32).reshape(50, 2)
    text = ts.stablehlo.export(
        lambda x: x @ ts.tensor(w) + x @ ts.tensor(w), np.ones((2, 50), np.float32)
    )
    assert f'dense<"0x{w.tobytes().hex().upper()}"> : tensor<50x2xf32>' in text
    assert text.count("tensor<50x2xf32>}>") == 1


@pytest.mark.parametrize(
    ("f", "x", "message"),
    [
        (lambda x: op.eig(x)[0], np.eye(3), "stablehlo: eig has no StableHLO form"),
        (
            lambda x: x.astype(bf16 @ saturate) + 1, X,
            "stablehlo: cast computes in bf16 @ saturate, but StableHLO has no rounding nor clamping of its "
            "own; cast "
            "to bf16 first",
        ),
        (
            lambda x: x + 1, Tensor["N", f32],
            "stablehlo: <lambda> has symbolic sizes; export it on arrays or on types with known sizes",
        ),
    ],
    ids=["op", "policy", "sizes"],
)  # fmt: skip
def test_what_stablehlo_cannot_say_is_an_error(f: Any, x: Any, message: str) -> None:
    with pytest.raises(ts.stablehlo.StableHloError) as e:
        ts.stablehlo.export(f, x)
    assert e.value.message == message


def test_a_module_is_read_as_a_function() -> None:
    def f(x: Any, n: Any) -> Any:
        y = ts.fori_loop(0, 3, lambda i, c: c + op.sin(c), x)
        z = ts.cond(op.sum(x) > 0, lambda: y, lambda: -y)
        return (
            op.softmax(z @ op.transpose(z)),
            op.sort(x, 1),
            op.cumsum(n),
            op.argmax(x, 1),
            x[:, ::-1],
        )

    x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    n = np.array([3, -1, 2], np.int32)
    g = ts.stablehlo.load(ts.stablehlo.export(f, x, n))
    for a, b in zip(g(x, n), f(ts.tensor(x), ts.tensor(n)), strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)


SHORT = """
module @m attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32> {jax.arg_info = "x"}) -> (tensor<3xf32> {jax.result_info = ""}, tensor<i32>) {
    %c = stablehlo.constant dense<[[1.0, 2.0, 3.0], [-1.5, 0x7F800000, 0.0]]> : tensor<2x3xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = call @twice(%arg0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.minimum %0, %c : tensor<2x3xf32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.maximum across dimensions = [0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %c_0 = stablehlo.constant dense<4> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %3:2 = stablehlo.while(%i = %c_1, %s = %c_1) : tensor<i32>, tensor<i32>
     cond {
      %5 = stablehlo.compare LT, %i, %c_0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
    } do {
      %c_2 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %s, %i : tensor<i32>
      %6 = stablehlo.add %i, %c_2 : tensor<i32>
      stablehlo.return %6, %5 : tensor<i32>, tensor<i32>
    }
    return %2, %3#1 : tensor<3xf32>, tensor<i32>
  }
  func.func private @twice(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"""  # noqa: E501


def test_the_short_form_is_read() -> None:
    m = ts.stablehlo.load(SHORT)
    assert repr(m) == "<StableHloModule m: (f32[2,3]) -> (f32[3], i32[])>"
    y, total = m(np.array([[0, 1, 2], [3, 4, 5]], np.float32))
    np.testing.assert_array_equal(y, [0, 8, 3])
    assert int(total) == 6
    g = ts.grad(lambda x: op.sum(m(x)[0]))(np.array([[0, 1, 2], [3, 4, 5]], np.float32))
    np.testing.assert_array_equal(g, [[2, 0, 0], [0, 2, 0]])


WRONG = {
    "": "line 1 has 'the end of the text', expected a module: the text of jax.jit(f).lower(...).as_text()",
    SHORT.replace("stablehlo.minimum",
    "stablehlo.frobnicate"): "line 7: there is no rule for stablehlo.frobnicate",
    SHORT.replace("call @twice", "call @thrice"): "the module has no function 'thrice'",
    SHORT.replace("%1 = stablehlo.minimum %0",
    "%1 = stablehlo.minimum %9"): "%9 is used before an op makes it",
    SHORT.replace("tensor<2x3xf32> {jax", "tensor<?x3xf32> {jax"): (
        "line 3 has the type tensor<?x3xf32>, but sizes must be known; lower the function for arrays of "
        "known sizes"
    ),
    SHORT.replace("xf32>", "xf7>"): "line 3: elements of tensor<2x3xf7> have no dtype here",
    SHORT.replace("dimensions = [0]", "dimensions = [7]"): "line 8: stablehlo.reduce",
    SHORT[:400]: "the end of the text",
    "module {" + '"a"() ({' * 500: "regions nested less than 60 levels deep",
    SHORT.replace("dense<4>", "dense<[4, 5, 6]>"): "line 9: a constant of i32[] has 3 elements",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_with_a_module_is_named(text: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        ts.stablehlo.load(text)(np.zeros((2, 3), np.float32))
    assert WRONG[text] in e.value.message


def test_arguments_of_a_module_are_checked() -> None:
    m = ts.stablehlo.load(SHORT)
    for args, text in (
        ((), "m: got 0 arguments, expected 1"),
        (
            (np.zeros((3, 2), np.float32),),
            "m: argument 0 is f32[3,2], but the module takes f32[2,3]",
        ),
        (
            (np.zeros((2, 3)),),
            "m: argument 0 is f64[2,3], but the module takes f32[2,3]; cast it with astype",
        ),
    ):
        with pytest.raises(ts.TesseraError) as e:
            m(*args)
        assert e.value.message == text
    with pytest.raises(ts.TesseraError, match="got int, expected the text of a module or a Path"):
        ts.stablehlo.load(3)


def test_damaged_modules_are_errors_of_ours() -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        text = bytearray(SHORT.encode())
        for _ in range(int(rng.integers(1, 6))):
            at = int(rng.integers(len(text)))
            text[at : at + int(rng.integers(0, 3))] = bytes(
                rng.integers(32, 127, int(rng.integers(0, 3))).astype(np.uint8)
            )
        try:
            m = ts.stablehlo.load(text.decode(errors="replace"))
            m(*(np.zeros(t.shape, t.dtype.np) for t in m.inputs if np.prod(t.shape) < 10**6))
        except ts.TesseraError:
            continue


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("f_1", "f_1"), ("<lambda>", "_lambda_"), ('a"b\\c', "a_b_c"), ("x y", "x_y"), ("", "graph")],
)
def test_the_name_of_a_module_is_a_word(name: str, wanted: str) -> None:
    def f(x: Any) -> Any:
        return x + x

    f.__name__ = name
    first = ts.stablehlo.export(f, X).splitlines()[0]
    assert first == f'"builtin.module"() <{{sym_name = "{wanted}"}}> ({{'


@pytest.mark.parametrize("part", range(4))
def test_what_is_written_is_read_again(part: int) -> None:
    """Every op of the catalogue: the module that we write is the function that we read."""
    cases = chosen(6)
    assert len(cases) > 700
    wrong = []
    with override(target="numpy"):
        for c in cases[part::4]:
            given = c.draw(f64)
            f = ts.stablehlo.load(module_text(c.trace([concrete(x).type for x in given])))
            xs = [ts.tensor(x) for x in given]
            got, want = f(*xs), c.run(xs)
            got = got if isinstance(got, tuple | list) else [got]
            if len(got) != len(want) or any(
                differ(np.asarray(a), np.asarray(b)) for a, b in zip(got, want, strict=True)
            ):
                wrong.append(str(c))
    assert not wrong


def test_orders_of_polygamma_are_one_number_of_the_module() -> None:
    text = ts.stablehlo.export(lambda x: op.polygamma(2, x), X)
    f = ts.stablehlo.load(text)
    want = op.polygamma(2, ts.tensor(X)).numpy()
    for g in (f, ts.jit(f)):
        np.testing.assert_allclose(g(ts.tensor(X)).numpy(), want, rtol=1e-6)
    for old, new in (
        ("dense<2.", "dense<2.5"),
        ('"chlo.polygamma"(%3, %1)', '"chlo.polygamma"(%1, %1)'),
    ):
        assert old in text
        with pytest.raises(
            ts.stablehlo.StableHloError, match=r"line 6: chlo.polygamma has the order"
        ):
            ts.jit(ts.stablehlo.load(text.replace(old, new)))(ts.tensor(X))


def test_a_convolution_may_cut_its_operand() -> None:
    """Negative padding, which gradients of convolutions have."""
    x, w = np.arange(24.0).reshape(1, 2, 12), np.ones((3, 2, 3))

    def f(x: Any, w: Any) -> Any:
        return op.conv(x, w, padding=((1, 2),))

    text = ts.stablehlo.export(f, x, w)
    cut = text.replace("[[1, 2]]", "[[-1, -2]]").replace("tensor<1x3x13xf64>", "tensor<1x3x7xf64>")
    got = ts.stablehlo.load(cut)(x, w)
    np.testing.assert_allclose(got, op.conv(x[:, :, 1:-2], w))


@pytest.mark.parametrize(
    "target",
    ["Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"],
)
def test_calls_that_say_where_tensors_lie_change_nothing(target: str) -> None:
    text = f"""
module @m {{
  func.func public @main(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {{
    %0 = stablehlo.custom_call @{target}(%arg0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.add %0, %0 : tensor<2x3xf32>
    return %1 : tensor<2x3xf32>
  }}
}}
"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(ts.stablehlo.load(text)(x), 2 * x)
    with pytest.raises(ts.stablehlo.StableHloError, match="the call of 'Elsewhere' has no rule"):
        ts.stablehlo.load(text.replace(f"@{target}", "@Elsewhere"))(x)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 3), (3, 5), (4, 1), (1, 4)], ids=str)
def test_reflectors_are_those_of_lapack(m: int, n: int, batch: Any) -> None:
    rng = np.random.default_rng([m, n])
    a = rng.standard_normal((*batch, m, n))
    a[..., :, -1] = 0 if n > 2 else a[..., :, -1]  # nothing to reflect
    packed, taus = (np.asarray(v) for v in _CALLS["geqrf"]({}, ts.tensor(a)))
    k = min(m, n)
    for at in np.ndindex(*batch):
        want, tau, _, info = scipy.linalg.lapack.dgeqrf(a[at])
        assert info == 0
        np.testing.assert_allclose(packed[at], want, atol=1e-12)
        np.testing.assert_allclose(taus[at], tau, atol=1e-12)
    q = np.asarray(_CALLS["orgqr"]({}, ts.tensor(packed[..., :k]), ts.tensor(taus)))
    np.testing.assert_allclose(q @ np.triu(packed)[..., :k, :], a, atol=1e-12)
    np.testing.assert_allclose(
        np.swapaxes(q, -1, -2) @ q, np.broadcast_to(np.eye(k), (*batch, k, k)), atol=1e-12
    )
    with pytest.raises(ts.stablehlo.StableHloError, match="reflectors"):
        _CALLS["geqrf"]({}, ts.tensor(a + 0j))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_what_is_empty_has_no_window(name: str, shape: Any) -> None:
    for axis in range(len(shape)):
        x = np.zeros(shape, np.float32)
        text = ts.stablehlo.export(lambda x, axis=axis: getattr(op, name)(x, axis), x)
        assert "reduce_window" not in text
        assert ts.stablehlo.load(text)(x).shape == shape
