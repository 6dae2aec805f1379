"""Dtypes and policies as types: interning, parsing, printing, pickling, and the errors."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core import dtype as d
from tessera.core.dtype import (
    FORMATS,
    accum,
    as_dtype,
    bf16,
    bool_,
    c64,
    c128,
    complex_of,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i4,
    i8,
    i32,
    i64,
    loss_scale,
    saturate,
    stochastic_round,
    tf32,
    u8,
)
from tessera.core.errors import DTypeError, PolicyError

every_format = pytest.mark.parametrize("x", FORMATS.values(), ids=str)


@st.composite
def dtypes(draw):
    """A format with some policy that fits it."""
    x = draw(st.sampled_from([*FORMATS.values(), tf32]))
    if x.kind == "f":
        if draw(st.booleans()):
            x = x @ accum(f64)
        if draw(st.booleans()):
            x = x @ stochastic_round
        if draw(st.booleans()):
            x = x @ loss_scale(draw(st.sampled_from([0.5, 8, 1024, 65536.0])))
    if x.kind in "iuf" and draw(st.booleans()):
        x = x @ saturate
    return x


@given(dtypes())
def test_the_text_of_a_dtype_names_it(x):
    assert as_dtype(str(x)) is x
    assert repr(x) == str(x)


@given(dtypes())
def test_copies_are_the_same_object(x):
    assert pickle.loads(pickle.dumps(x)) is x
    assert copy.deepcopy(x) is x


@given(dtypes(), dtypes())
def test_dtypes_are_equal_only_if_they_are_one(x, y):
    assert (x == y) == (x is y) == (str(x) == str(y))


@every_format
def test_a_format_is_found_by_numpys_dtype(x):
    assert as_dtype(x.np) is x
    assert as_dtype(x.name) is x
    assert x.base is x
    assert str(x) == x.name


@every_format
def test_bits_are_those_of_the_storage(x):
    assert x.bits == (4 if x is i4 else 8 * np.dtype(x.np).itemsize)
    assert x.itemsize == x.bits / 8


@every_format
def test_kinds_agree_with_the_predicates(x):
    assert x.is_float == (x.kind == "f")
    assert x.is_complex == (x.kind == "c")
    assert x.is_integer == (x.kind in "iu")
    assert x.is_narrow == (x.compute is not x)


@every_format
def test_the_accumulator_is_at_least_as_wide(x):
    assert x.accum.kind == x.kind
    assert x.accum.bits >= x.compute.bits or x.kind == "b"
    assert x.accum.accum is x.accum


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (float, f32), (int, i64), (bool, bool_), (complex, c64), (np.float64, f64), ("<i4", i32),
        (np.dtype("uint8"), u8), (ml_dtypes.bfloat16, bf16), ("bfloat16", bf16), ("half", f16),
        ("fp8_e4m3", f8e4m3), ("float8_e5m2", f8e5m2), ("int4", i4), ("tf32", tf32),
    ],
    ids=str,
)  # fmt: skip
def test_aliases(given, want):
    if given == "<i4":
        given = np.dtype(given)
    assert as_dtype(given) is want


# NumPy reads None as float64; a missing dtype must not become one silently.
@pytest.mark.parametrize("x", ["float128", "S3", object, 3, None, [f32]])
def test_what_is_no_dtype_says_so(x):
    with pytest.raises(DTypeError, match=r"is not a dtype; dtypes are bool, i4, .* and tf32"):
        as_dtype(x)


# Policies


def test_a_policy_that_restates_the_default_is_the_format():
    assert bf16 @ accum(f32) is bf16
    assert f8e4m3 @ accum("f32") is f8e4m3
    assert f64 @ accum(f64) is f64


def test_terms_commute():
    assert bf16 @ saturate @ stochastic_round is bf16 @ stochastic_round @ saturate
    assert bf16 @ accum(f64) @ loss_scale(8) is bf16 @ loss_scale(8) @ accum(f64)


def test_a_full_policy_prints_in_one_order():
    x = bf16 @ loss_scale(1024) @ saturate @ stochastic_round @ accum(f64)
    assert str(x) == "bf16 @ accum(f64) @ stochastic_round @ saturate @ loss_scale(1024)"
    assert x.base is bf16
    assert x.accum is f64
    assert x.policy.loss_scale == 1024


def test_tf32_is_a_mode_of_f32():
    assert tf32.base is f32
    assert tf32.np == np.float32
    assert str(tf32 @ saturate) == "tf32 @ saturate"


def test_complex_and_real_are_inverse():
    assert (complex_of(f32), complex_of(f64), complex_of(bf16)) == (c64, c128, c64)
    assert (c64.real, c128.real, f16.real) == (f32, f64, f16)
    assert complex_of(c128) is c128


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bf16 @ f32, "bf16 @ f32: expected a policy after '@'"),
        (lambda: f32 @ accum(bf16), "f32 @ accum(bf16): the accumulator must be of the same kind"),
        (lambda: i8 @ accum(f32), "i8 @ accum(f32): the accumulator must be of the same kind"),
        (lambda: accum(tf32), "accum(tf32): expected a plain dtype such as f32"),
        (lambda: i8 @ stochastic_round, "only floating-point dtypes take stochastic_round"),
        (lambda: i8 @ loss_scale(2), "only floating-point dtypes take loss_scale"),
        (lambda: bool_ @ saturate, "only real numeric dtypes saturate"),
        (lambda: c64 @ saturate, "only real numeric dtypes saturate"),
        (lambda: bf16 @ saturate @ saturate, "the policy already says saturate; start from bf16"),
        (lambda: loss_scale(0), "loss_scale(0): expected a positive finite number"),
        (lambda: loss_scale(True), "loss_scale(True): expected a positive finite number"),
        (lambda: loss_scale(float("inf")), "loss_scale(inf): expected a positive finite number"),
        (lambda: as_dtype("bf16 @ fast"), "'bf16 @ fast': 'fast' is not a policy"),
    ],
)  # fmt: skip
def test_contradictory_policies_say_so(make, message):
    with pytest.raises(PolicyError) as e:
        make()
    assert message in e.value.message


def test_the_package_exports_every_format():
    assert {getattr(d, n if n != "bool" else "bool_") for n in FORMATS} == set(FORMATS.values())
