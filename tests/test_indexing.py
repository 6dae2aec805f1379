"""x[key] and x.at[key] against NumPy on random keys, eager and traced."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts

SIZES = st.integers(0, 4)


@st.composite
def _slices(draw: st.DrawFn) -> slice:
    end = st.none() | st.integers(-6, 6)
    step = draw(st.sampled_from([None, 1, 2, 3, -1, -2, -3]))
    return slice(draw(end), draw(end), step)


@st.composite
def _keys(draw: st.DrawFn, shape: tuple[int, ...], repeats: bool = True) -> tuple[object, ...]:
    """A key that fits a shape; its index arrays broadcast together."""
    common = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    key: list[object] = []
    axis = 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["slice", "slice", "int", "array", "mask", "new", "stop"]))
        if kind == "stop":
            break
        if kind == "new":
            key.append(None)
            continue
        if kind == "int" and n:
            key.append(draw(st.integers(-n, n - 1)))
        elif kind == "array" and n and repeats:
            part = common[draw(st.integers(0, len(common))) :]
            data = draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(part, dtype=int)),
                                 max_size=int(np.prod(part, dtype=int))))  # fmt: skip
            key.append(np.array(data, dtype=int).reshape(part))
        elif kind == "mask" and common == ():
            data = draw(st.lists(st.booleans(), min_size=n, max_size=n))
            if sum(data) == 1:  # broadcasts with every other index
                key.append(np.array(data))
            else:
                key.append(slice(None))
        else:
            key.append(draw(_slices()))
        axis += 1
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), Ellipsis)
    return tuple(key)


def _tail_fits(x: np.ndarray, key: tuple[object, ...]) -> bool:
    """An Ellipsis moves later entries to other axes, where they may not fit."""
    try:
        x[key]
    except IndexError:
        return False
    return True


@st.composite
def _cases(draw: st.DrawFn, repeats: bool = True) -> tuple[np.ndarray, tuple[object, ...]]:
    shape = tuple(draw(st.lists(SIZES, max_size=4)))
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    key = draw(_keys(shape, repeats).filter(lambda k: _tail_fits(x, k)))
    return x, key


@given(_cases())
@settings(max_examples=600, deadline=None)
def test_index_equals_numpy(case):
    x, key = case
    want = x[key]
    got = ts.asarray(x)[key]
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.asarray(got), want)


@given(_cases())
@settings(max_examples=200, deadline=None)
def test_jit_equals_eager(case):
    x, key = case
    t = ts.asarray(x)
    arrays = [k for k in key if isinstance(k, np.ndarray) and k.dtype != bool]

    def f(x, arrays):
        given_ = iter(arrays)
        is_array = [isinstance(k, np.ndarray) and k.dtype != bool for k in key]
        return x[tuple(next(given_) if a else k for k, a in zip(key, is_array, strict=True))]

    np.testing.assert_array_equal(np.asarray(ts.jit(f)(t, arrays)), x[key])


@given(_cases(repeats=False), st.sampled_from(["set", "add", "max", "min"]), st.booleans())
@settings(max_examples=600, deadline=None)
def test_update_equals_numpy(case, how, scalar):
    x, key = case
    want = x.copy()
    shape = () if scalar else x[key].shape
    value = (np.arange(np.prod(shape, dtype=int), dtype=np.float32) * 1.5 + 2).reshape(shape)
    f = {"set": lambda a, b: b, "add": np.add, "max": np.maximum, "min": np.minimum}[how]
    want[key] = f(want[key], value)
    t = ts.asarray(x)
    eager = getattr(t.at[key], how)(value)
    np.testing.assert_array_equal(np.asarray(eager), want)
    traced = ts.jit(lambda t, v: getattr(t.at[key], how)(v))(t, value)
    np.testing.assert_array_equal(np.asarray(traced), want)
    np.testing.assert_array_equal(np.asarray(t), x)  # the source is left alone


_UFUNCS = {"add": np.add, "max": np.maximum, "min": np.minimum}


@given(_cases(), st.sampled_from(["set", "add", "max", "min"]))
@settings(max_examples=600, deadline=None)
def test_repeated_indices_update_in_order(case, how):
    x, key = case
    want, value = x.copy(), (np.arange(x[key].size, dtype=np.float32) % 7).reshape(x[key].shape)
    if how == "set":
        want[key] = value
    else:
        _UFUNCS[how].at(want, key, value)
    got = getattr(ts.asarray(x).at[key], how)(value)
    np.testing.assert_array_equal(np.asarray(got), want)
