"""What jit takes: inputs, statics, and objects that it refuses instead of freezing them."""

from __future__ import annotations

import enum
import functools
import sys
import warnings
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError, TraceError

RUNS_ON = "numpy"


class Lent:
    """An array of another library, known by one protocol alone."""

    __hash__ = None

    def __init__(self, data):
        self.data = data

    def __array__(self, dtype=None, copy=None):
        return self.data


class Config:
    """A plain object of the user's."""

    def __init__(self, scale):
        self.scale = scale


class Model:
    """A plain class with a jitted method."""

    def __init__(self, w):
        self.w = w

    @ts.jit
    def apply(self, x):
        return x * self.w

    @functools.partial(ts.jit, static_argnames=("self",))
    def fixed(self, x):
        return x * 2

    def plain(self, x):
        return x * self.w

    def __call__(self, x):
        return x * self.w


@dataclass
class Layer:
    """A tree with jitted methods."""

    w: object
    power: int = field(default=1, metadata={"static": True})

    @ts.jit
    def apply(self, x):
        return x * self.w**self.power

    def plain(self, x):
        return x * self.w

    def __call__(self, x):
        return x * self.w


class Mode(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


@pytest.fixture
def x():
    return ts.tensor([1.0, 2.0])


def test_weights_that_change_later_are_seen(x):
    layer = Layer(ts.tensor([3.0, 3.0]))
    whole, method = ts.jit(layer), ts.jit(layer.plain)
    for w in (3.0, 5.0, 7.0):
        layer.w = ts.tensor([w, w])
        for f in (layer.apply, whole, method):
            assert f(x).tolist() == [w, 2 * w]
    assert Layer.apply.compiled == 1
    layer.power = 2
    assert layer.apply(x).tolist() == [49, 98]


@dataclass
class Heads:
    """A tree with a number that decides what is traced."""

    w: object
    heads: int = 2

    @ts.jit
    def apply(self, x):
        return (x * self.w).reshape(self.heads, -1)

    def plain(self, x):
        return (x * self.w).reshape(self.heads, -1)


def test_numbers_of_self_decide_and_tensors_are_inputs(x):
    h = Heads(ts.tensor([3.0, 4.0]))
    plain = ts.jit(h.plain)
    for f in (h.apply, plain):
        h.heads, h.w = 2, ts.tensor([3.0, 4.0])
        assert f(x).tolist() == [[3], [8]]
        h.w = ts.tensor([1.0, 1.0])
        assert f(x).tolist() == [[1], [2]]
        h.heads = 1
        assert f(x).tolist() == [[1, 2]]
    assert Heads.apply.compiled == 2


def test_self_that_is_no_tree_is_refused(x):
    m = Model(ts.tensor([3.0, 3.0]))
    for f, name in ((m.apply, "apply"), (ts.jit(m.plain), "plain"), (ts.jit(m), "__call__")):
        with pytest.raises(OperandError) as e:
            f(x)
        assert e.value.message == (
            f"{name}: 'self' is Model, which is no tree, so that its tensors would be constants and changes "
            f"to them "
            "would not show; make Model a dataclass, register it with ts.tree.register(Model, flatten, "
            "unflatten), "
            'or declare it static: ts.jit(static_argnames=("self",))'
        )
    assert m.fixed(x).tolist() == [2, 4]


def test_an_unknown_object_is_refused(x):
    f = ts.jit(lambda x, cfg: x * cfg["a"].scale)
    with pytest.raises(OperandError) as e:
        f(x, {"a": Config(2.0)})
    assert e.value.message == (
        "<lambda>: 'cfg['a']' of argument 'cfg' is Config, which is no tensor, number, array or tree of "
        "them; declare "
        'it static: ts.jit(static_argnames=("cfg",)), make Config a dataclass, or register it with '
        "ts.tree.register(Config, flatten, unflatten)"
    )
    g = ts.jit(lambda x, cfg: x * cfg.scale, static_argnames="cfg")
    c = Config(2.0)
    assert g(x, c).tolist() == [2, 4]
    assert g(x, c).tolist() == [2, 4]
    assert g.compiled == 1


@pytest.mark.parametrize("bad", [{1, 2}, object(), iter([1]), bytearray(b"a"), Config(1).__init__])
def test_objects_that_may_change_are_refused(x, bad):
    with pytest.raises(OperandError, match=r"argument 'y' is .*, which is no tensor"):
        ts.jit(lambda x, y: x)(x, bad)


def test_arrays_of_other_libraries_are_inputs(x):
    f = ts.jit(lambda x, y: x * y)
    for k in range(3):
        assert f(x, Lent(np.array([k, k], np.float32))).tolist() == [k, 2 * k]
    held = Lent(np.array([1, 1], np.float32))
    f(x, held)
    held.data[:] = 9
    assert f(x, held).tolist() == [9, 18]
    assert f.compiled == 1


def test_every_kind_of_tree_is_taken(x):
    class Point(NamedTuple):
        a: object
        b: object

    @dataclass(frozen=True)
    class Frozen:
        a: object
        b: object

    def double(t):
        return ts.tree.map(lambda v: v * 2, t)

    for t in (
        {"a": x, "b": 3.0}, OrderedDict(b=x, a=x), defaultdict(int, a=x), [x, (x, None)], Point(x, 1.0),
        Frozen(x, {"c": x}),
    ):  # fmt: skip
        f = ts.jit(double)
        for _ in range(2):
            got = f(t)
            assert type(got) is type(t)
            for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(double(t)), strict=True):
                np.testing.assert_array_equal(a, b)
        assert f.compiled == 1


def test_values_that_cannot_change_are_part_of_the_key(x):
    def f(x, mode, how, dtype, then):
        y = x * mode.value if how == "times" else x
        return then(y.astype(dtype))

    jitted = ts.jit(f)
    for mode in Mode:
        for how in ("times", "not"):
            given = (x, mode, how, ts.f64, op.exp)
            np.testing.assert_array_equal(jitted(*given), f(*given))
            np.testing.assert_array_equal(jitted(*given), f(*given))
    assert jitted.compiled == 4


def test_static_argnums_are_names_by_position(x):
    f = ts.jit(lambda x, n, m: x.reshape(n, m), static_argnums=(1, -1))
    assert f(x, 2, 1).shape == (2, 1)
    assert f(x, 1, 2).shape == (1, 2)
    assert f.compiled == 2
    with pytest.raises(OperandError) as e:
        ts.jit(lambda x, n: x, static_argnums=2)
    assert e.value.message == "jit: static_argnums has 2, but <lambda> has 2 parameters: x, n"


def test_a_static_tensor_is_refused(x):
    with pytest.raises(OperandError, match="static argument 'x' is a tensor f32"):
        ts.jit(lambda x: x, static_argnames="x")(x)


def test_a_static_field_that_cannot_be_hashed_is_named(x):
    with pytest.raises(OperandError) as e:
        Layer(x, [1]).apply(x)
    assert e.value.message == (
        "apply: argument 'self' is a tree with a static field or a key that cannot be hashed; make the "
        "field a tuple "
        "or a frozen value, or leave out metadata static=True"
    )


def test_many_variants_for_python_values_warn_once_and_name_what_changed(x):
    f = ts.jit(lambda x, *, n, name: x * n)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(7):
            f(x, n=n, name="a")
    with pytest.warns(
        RuntimeWarning,
        match=r"<lambda> was compiled 8 times for the same types, since 'n' changed \(last: 5, 6, 7\); pass",
    ) as w:
        f(x, n=7, name="a")
    assert "f(x, n=7" in str(w[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(8, 20):
            f(x, n=n, name="a")
            f(ts.tensor([1.0] * n), n=1, name="b")  # other types are other programs


def test_a_fresh_function_for_each_call_is_warned_of(x):
    f = ts.jit(lambda x, g: g(x))
    for _ in range(7):
        f(x, lambda v: v + 1)
    with pytest.warns(RuntimeWarning, match="since 'g' changed"):
        f(x, lambda v: v + 1)


def test_what_a_function_closes_over_is_read_when_it_is_traced(x):
    held = np.array([1.0, 1.0], np.float32)
    f = ts.jit(lambda x: x * held)
    assert f(x).tolist() == [1, 2]
    held[:] = 5
    assert f(x).tolist() == [1, 2]
    f.forget()
    assert f(x).tolist() == [5, 10]


def test_a_function_that_calls_itself_without_end_is_named(x):
    @ts.jit
    def f(x):
        return f(x)

    with pytest.raises(TraceError) as e:
        f(x)
    assert e.value.message == (
        "f: functions, branches or loops are nested too deep, past 64 levels, or a function calls itself "
        "without end; "
        "write a loop with ts.fori_loop or ts.scan"
    )


def test_python_that_calls_itself_without_end_is_named(x):
    def f(x):
        return f(x + 1)

    with pytest.raises(TraceError, match=r"Python's recursion limit of .* was reached"):
        ts.jit(f)(x)


def chained(depth):
    f = ts.jit(lambda x: x + 1)
    for _ in range(depth):
        f = ts.jit(lambda x, g=f: g(x) * 1)
    return f


def branches(depth):
    f = lambda v: v + 1  # noqa: E731
    for _ in range(depth):
        f = lambda v, g=f: ts.cond(op.sum(v) > 0, g, lambda u: u, v)  # noqa: E731
    return f


def test_what_is_nested_within_the_limit_works_and_past_it_is_refused(x):
    """The limit is counted: it does not depend on the interpreter or on what stands on its stack."""
    assert chained(63)(x).tolist() == [2, 3]
    assert branches(63)(x).tolist() == ts.jit(branches(63))(x).tolist() == [2, 3]
    slope = lambda depth: ts.grad(lambda v: op.sum(branches(depth)(v)))  # noqa: E731
    assert slope(16)(x).tolist() == [1, 1]
    for f in (chained(65), chained(300), *(m(d) for d in (66, 150) for m in (branches, slope))):
        with pytest.raises(TraceError, match="nested too deep, past 64 levels"):
            f(x)
        with pytest.raises(TraceError, match="nested too deep, past 64 levels"):
            ts.jit(f)(x)


def test_the_work_of_a_transform_does_not_double_with_each_level(x):
    """Calls of Python functions, which are the same on every machine."""

    def nested(depth):
        f = op.sin
        for i in range(depth):
            f = [
                lambda v, g=f: ts.cond(op.sum(v) > 0, g, lambda u: u, v),
                lambda v, g=f: ts.scan(lambda c, _: (g(c) * 0.5, ()), v, length=2)[0],
                lambda v, g=f: ts.remat(g)(v),
            ][i % 3]
        return f

    def work(f, *xs):
        calls = 0

        def count(frame, event, arg):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            ts.trace(f, *xs)
        finally:
            sys.setprofile(None)
        return calls

    def costs(depth):
        f, m = nested(depth), ts.tensor([[1.0, 2.0]])
        yield work(ts.grad(lambda v: op.sum(f(v))), x)
        yield work(ts.vmap(f), m)
        yield work(lambda v, t: ts.jvp(f, (v,), (t,)), x, x)

    for small, large in zip(costs(4), costs(8), strict=True):
        assert large < 6 * small  # 16 and more where each level asks its region twice
