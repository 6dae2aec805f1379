"""tessera.array_api: the standard's names, dtype rules, copies and special values.

The public suite checks far more; tests/array_api/run.py runs it on a checkout of your own.
"""

from __future__ import annotations

import array
import inspect
import itertools
import math

import numpy as np
import pytest

import tessera as ts
import tessera.array_api as xp
from tessera.core.errors import CopyError, DTypeError, OperandError, ShapeError

RUNS_ON = "numpy"


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


DTYPES = words("""bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64
complex128""")
FUNCTIONS = words("""abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan
atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor
broadcast_arrays broadcast_to can_cast ceil clip concat conj copysign cos cosh count_nonzero
cumulative_prod cumulative_sum diff divide empty empty_like equal exp expand_dims expm1 eye finfo
flip floor floor_divide from_dlpack full full_like greater greater_equal hypot iinfo imag isdtype
isfinite isinf isnan less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not
logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min minimum moveaxis
multiply negative nextafter nonzero not_equal ones ones_like permute_dims positive pow prod real
reciprocal remainder repeat reshape result_type roll round searchsorted sign signbit sin sinh sort
sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu
trunc unique_all unique_counts unique_inverse unique_values unstack var vecdot where zeros
zeros_like""")
LINALG = words("""cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank
matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm""")
FFT = words("""fft fftfreq fftn fftshift hfft ifft ifftn ifftshift ihfft irfft irfftn rfft rfftfreq
rfftn""")
METHODS = words("""abs add and array_namespace bool complex dlpack dlpack_device eq float floordiv ge getitem
gt index int invert le lshift lt matmul mod mul ne neg or pos pow radd rand rfloordiv rlshift rmatmul
rmod rmul ror rpow rrshift rshift rsub rtruediv rxor setitem sub truediv xor""")


def test_names_are_those_of_the_standard() -> None:
    constants = ["e", "inf", "nan", "pi", "newaxis"]
    dunder = ["__array_api_version__", "__array_namespace_info__"]
    assert set(xp.__all__) == {*DTYPES, *FUNCTIONS, *constants, *dunder, "linalg", "fft"}
    assert all(hasattr(xp, name) for name in xp.__all__)
    assert set(LINALG) <= set(dir(xp.linalg))
    assert set(FFT) <= set(dir(xp.fft))
    x = xp.ones((1, 1))
    assert all(hasattr(x, f"__{m}__") for m in METHODS)
    assert all(hasattr(x, a) for a in words("dtype device mT ndim shape size T to_device"))


def test_every_function_has_a_docstring_and_a_signature() -> None:
    for module, names in ((xp, FUNCTIONS), (xp.linalg, LINALG), (xp.fft, FFT)):
        for name in names:
            f = getattr(module, name)
            assert f.__doc__, name
            assert inspect.signature(f).parameters, name


def test_a_tensor_knows_its_namespace() -> None:
    x = ts.tensor([1.0])
    assert x.__array_namespace__() is xp
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(OperandError, match=r"no version '2019.12' of the array API standard"):
        x.__array_namespace__(api_version="2019.12")


def test_info_agrees_with_what_creation_makes() -> None:
    info = xp.__array_namespace_info__()
    default = info.default_dtypes()
    assert xp.zeros(1).dtype == xp.asarray(1.0).dtype == default["real floating"] == xp.float32
    assert xp.asarray(1j).dtype == default["complex floating"] == xp.complex64
    assert xp.asarray(1).dtype == xp.arange(2).dtype == default["integral"] == xp.int64
    assert xp.argmax(xp.ones(2)).dtype == default["indexing"]
    assert info.default_device() == xp.zeros(1).device
    assert set(info.dtypes()) == set(DTYPES)
    assert info.dtypes(kind="real floating") == {"float32": xp.float32, "float64": xp.float64}
    assert info.capabilities()["boolean indexing"] is True


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations_with_replacement(DTYPES, 2)))
def test_dtypes_of_one_kind_meet_as_in_numpy(a: str, b: str) -> None:
    kinds = {np.dtype(n).kind for n in (a, b)}
    if kinds not in ({"b"}, {"i"}, {"u"}, {"f"}, {"c"}, {"i", "u"}, {"f", "c"}):
        return
    want = np.result_type(np.dtype(a), np.dtype(b))
    x, y = getattr(xp, a), getattr(xp, b)
    if want.kind == "f" and kinds == {"i", "u"}:  # NumPy leaves the integers, the standard does not
        with pytest.raises(DTypeError):
            xp.result_type(x, y)
        return
    assert xp.result_type(x, y) == xp.result_type(y, x) == getattr(xp, want.name)
    assert xp.can_cast(x, xp.result_type(x, y))


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES, DTYPES)))
def test_a_cast_is_possible_exactly_where_promotion_leads(a: str, b: str) -> None:
    x, y = getattr(xp, a), getattr(xp, b)
    try:
        leads = xp.result_type(x, y) == y
    except DTypeError:
        leads = False
    assert xp.can_cast(x, y) is leads
    assert xp.can_cast(xp.zeros(1, dtype=x), y) is leads
    if {np.dtype(n).kind for n in (a, b)} in ({"b"}, {"i"}, {"u"}, {"f"}, {"c"}):
        assert leads == np.can_cast(a, b)


def test_python_numbers_take_the_kind_of_the_array() -> None:
    assert (xp.ones(2) + 1).dtype == xp.float32
    assert (xp.ones(2, dtype=xp.float64) * 1j).dtype == xp.complex128
    assert xp.result_type(xp.int8, 3) == xp.int8
    assert xp.where(xp.asarray([True]), 1, xp.ones(1)).dtype == xp.float32
    with pytest.raises(DTypeError, match="add: the integer 300 does not fit i8"):
        xp.add(xp.ones(2, dtype=xp.int8), 300)
    with pytest.raises(OperandError, match="needs at least one array or dtype"):
        xp.result_type(1, 2.0)


@pytest.mark.parametrize("name", DTYPES)
def test_limits_are_numpys(name: str) -> None:
    d, n = getattr(xp, name), np.dtype(name)
    if n.kind in "fc":
        got, want = xp.finfo(d), np.finfo(n)
        assert (got.bits, got.eps, got.max, got.min) == (want.bits, want.eps, want.max, want.min)
        assert got.smallest_normal == want.smallest_normal
        assert xp.isdtype(d, ("real floating", "complex floating"))
    elif n.kind in "iu":
        assert (xp.iinfo(d).min, xp.iinfo(d).max) == (np.iinfo(n).min, np.iinfo(n).max)
        assert xp.isdtype(d, "integral")
    else:
        assert xp.isdtype(d, "bool")
        assert not xp.isdtype(d, "numeric")


def test_python_floats_keep_the_precision_of_the_array_they_enter() -> None:
    third = 1 / 3
    x = xp.zeros(2, dtype=xp.float64)
    x[0] = third
    x[1:] = [third]
    assert x.tolist() == [third, third]
    assert float(ts.op.cast(third, xp.float64)) == third
    assert ts.op.pad(x, 1, third).tolist() == [third] * 4
    assert complex(xp.full((), third, dtype=xp.complex128)) == third


def test_limits_of_the_wrong_kind() -> None:
    with pytest.raises(DTypeError, match="finfo: i64 is not a floating-point dtype; use iinfo"):
        xp.finfo(xp.int64)
    with pytest.raises(DTypeError, match="iinfo: f32 is not an integer dtype; use finfo"):
        xp.iinfo(xp.float32)
    with pytest.raises(OperandError, match="isdtype: 'float' is not a kind"):
        xp.isdtype(xp.float32, "float")


def test_asarray_copies_when_told_to() -> None:
    data = np.arange(3.0)
    shared, copied = xp.asarray(data, copy=False), xp.asarray(data, copy=True)
    data[0] = 7
    assert (float(shared[0]), float(copied[0])) == (7.0, 0.0)
    x = xp.asarray([1, 2])
    assert xp.asarray(x, copy=False) is x
    y = xp.asarray(x, copy=True)
    x[0] = 5
    assert (int(x[0]), int(y[0])) == (5, 1)
    with pytest.raises(CopyError, match="asarray: a list cannot be taken without a copy"):
        xp.asarray([1], copy=False)
    with pytest.raises(CopyError, match="needs a copy"):
        xp.asarray(x, dtype=xp.float32, copy=False)


def test_asarray_takes_buffers() -> None:
    numbers = array.array("d", [1.5, 2.5])
    x = xp.asarray(numbers, copy=False)
    numbers[0] = 9.5
    assert (x.dtype, x.tolist()) == (xp.float64, [9.5, 2.5])
    assert xp.asarray(b"ab").tolist() == [97, 98]
    assert xp.asarray(np.float32(0.5), dtype=xp.float64).tolist() == 0.5


def test_dlpack_both_ways_shares_memory() -> None:
    data = np.arange(4, dtype=np.int32)
    x = xp.from_dlpack(data)
    assert x.dtype == xp.int32
    assert np.shares_memory(np.from_dlpack(x), data)
    assert not np.shares_memory(np.from_dlpack(xp.from_dlpack(data, copy=True)), data)
    filled = xp.full((2, 2), 3)
    assert np.from_dlpack(filled).tolist() == [[3, 3], [3, 3]]


def test_reshape_without_a_copy() -> None:
    x = xp.reshape(xp.arange(6), (2, 3), copy=False)
    with pytest.raises(CopyError, match="needs a copy; pass copy=None"):
        xp.reshape(x.T, (6,), copy=False)
    assert xp.reshape(x.T, (6,)).tolist() == [0, 3, 1, 4, 2, 5]


def test_floor_divide_is_the_floor_of_the_quotient_at_infinity() -> None:
    values = [math.inf, -math.inf, 2.0, -2.0, 0.0, -0.0, math.nan]
    for a, b in itertools.product(values, values):
        if not (math.isinf(a) or math.isinf(b)):
            continue
        with np.errstate(all="ignore"):
            want = np.floor(np.float64(a) / np.float64(b))
        got = np.asarray(xp.asarray(a, dtype=xp.float64) // xp.asarray(b, dtype=xp.float64))
        np.testing.assert_array_equal(got, want)
        assert np.signbit(got) == np.signbit(want) or math.isnan(want)


def test_complex_limits() -> None:
    inf, nan = math.inf, math.nan
    for z, want in {complex(inf, 0): inf, complex(-inf, inf): -1, complex(-inf, nan): -1}.items():
        assert complex(xp.expm1(xp.asarray(z, dtype=xp.complex128))) == want
    for re, im in itertools.product((inf, -inf), (2.0, -2.0)):
        got = complex(xp.tanh(xp.asarray(complex(re, im), dtype=xp.complex128)))
        assert got == math.copysign(1, re)
        assert math.copysign(1, got.imag) == math.copysign(1, im)


def test_prefix_operators() -> None:
    x = xp.asarray([1, -2])
    assert ((-x).tolist(), (+x).tolist(), abs(x).tolist()) == ([-1, 2], [1, -2], [1, 2])
    assert (~xp.asarray([True, False])).tolist() == [False, True]


def test_edges() -> None:
    z = xp.asarray([0j, 1j])
    assert (bool(xp.any(z)), bool(xp.all(z)), xp.astype(z, xp.bool).tolist()) == (
        True, False, [False, True],
    )  # fmt: skip
    assert xp.arange(6)[-2:0:-2].tolist() == [4, 2]
    assert xp.arange(3)[xp.asarray([], dtype=xp.bool)].shape == (0,)
    assert xp.sum(xp.eye(2, k=2**63)) == 0
    assert xp.concat([xp.ones((1, 2)), xp.zeros(1)], axis=None).tolist() == [1, 1, 0]
    assert xp.sum(xp.ones(3, dtype=xp.int8)).dtype == xp.int64
    assert xp.sum(xp.ones(3, dtype=xp.int8), dtype=xp.float32).dtype == xp.float32
    assert xp.prod(xp.asarray([100, 100], dtype=xp.int8), dtype=xp.int8).tolist() == 16
    with pytest.raises(ShapeError, match="differ in size along axis -1, which does not broadcast"):
        xp.vecdot(xp.ones(3), xp.ones(1))


def test_linalg_results_have_the_standards_fields() -> None:
    x = xp.asarray([[2.0, 1.0], [1.0, 3.0]], dtype=xp.float64)
    q, r = xp.linalg.qr(x).Q, xp.linalg.qr(x).R
    u, s, vh = xp.linalg.svd(x).U, xp.linalg.svd(x).S, xp.linalg.svd(x).Vh
    e = xp.linalg.eigh(x)
    d = xp.linalg.slogdet(x)
    for back in (q @ r, (u * s) @ vh, (e.eigenvectors * e.eigenvalues) @ e.eigenvectors.mT):
        np.testing.assert_allclose(np.asarray(back), np.asarray(x), rtol=1e-14)
    np.testing.assert_allclose(float(d.sign * xp.exp(d.logabsdet)), 5.0)
    assert xp.linalg.trace(x, dtype=xp.float32).dtype == xp.float32


def test_fft_frequencies() -> None:
    f = xp.fft.fftfreq(4, d=0.5, device=xp.zeros(1).device)
    assert (f.dtype, f.tolist()) == (xp.float32, [0.0, 0.5, -1.0, -0.5])
    assert xp.fft.rfftfreq(4, dtype=xp.float64).dtype == xp.float64


def test_the_functions_trace() -> None:
    def f(x: ts.Tensor) -> ts.Tensor:
        both = xp.concat([xp.zeros_like(x), xp.flip(x, axis=0)], axis=1)
        return xp.sum(xp.reshape(both, (-1,))[1:] * 2, dtype=xp.float64)

    x = xp.reshape(xp.arange(6, dtype=xp.float32), (2, 3))
    assert float(ts.jit(f)(x)) == float(f(x)) == 30.0
