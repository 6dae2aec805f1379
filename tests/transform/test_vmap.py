"""vmap is the Python loop: for every op and public function, operand by operand and all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import AxisError, OperandError, ShapeError, TreeError
from tessera.core.flags import override
from tessera.ops.custom import ForwardRule, LinearRule, ReverseRule
from tessera.transform.custom import batched_rule
from tests.support.cases.op_cases import Case, cases
from tests.support.runners.each import each
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"

SIZE = 3
RNG = np.random.default_rng(0)

every_case = each(cases(lambda c: bool(c.slots)))


CONDITIONS = {"ensure"}  # ops that refuse other truth values than those of their samples


def elements(case: Case, size: int, seed: int = 0) -> list[list[Any]]:
    """Operands for each element of a batch: drawn anew, or varied when the sample gives them."""
    drawn = [case.draw(seed=seed + i) for i in range(size)]
    kept = case.name in CONDITIONS
    return [
        [
            x if s.given is None or (kept and x.dtype.kind == "b") else varied(x, i)
            for x, s in zip(xs, case.slots, strict=True)
        ]
        for i, xs in enumerate(drawn)
    ]


def varied(x: Any, i: int) -> Any:
    """Another array that an op takes in the same place."""
    if x.dtype.kind == "b":
        return x if i % 2 == 0 else ~x
    if x.dtype.kind == "u":
        return (x + i).astype(x.dtype)
    if x.dtype.kind == "i":
        return np.flip(x) if i % 2 else x
    return x * (1 + i / 8)


def masks(count: int) -> list[list[bool]]:
    """Each operand alone, then all of them."""
    alone = [[i == k for i in range(count)] for k in range(count)]
    return alone if count == 1 else [*alone, [True] * count]


def batch(rows: Sequence[Sequence[Any]], mask: Sequence[bool]) -> list[ts.Tensor]:
    columns = zip(*rows, strict=True)
    return [ts.asarray(np.stack(c) if m else c[0]) for c, m in zip(columns, mask, strict=True)]


def picked(rows: Sequence[Sequence[Any]], mask: Sequence[bool], i: int) -> list[ts.Tensor]:
    """What element i of the batch sees."""
    return [ts.asarray((rows[i] if m else rows[0])[k]) for k, m in enumerate(mask)]


def assert_is_loop(got: Sequence[Any], want: Sequence[Sequence[Any]]) -> None:
    for g, ys in zip(got, zip(*want, strict=True), strict=True):
        assert g.dtype is ys[0].dtype
        assert_close(g, np.stack([np.asarray(y) for y in ys]), times=20)


@pytest.fixture
def by_reference() -> Iterator[None]:
    """Rules of batching are from Graph to Graph: the references tell whether they are right."""
    with override(target="numpy"):
        yield


@every_case
@pytest.mark.usefixtures("by_reference")
def test_vmap_is_the_loop(case: Case) -> None:
    rows = elements(case, SIZE)
    for mask in masks(len(case.slots)):
        axes = [0 if m else None for m in mask]
        got = ts.vmap(lambda *xs: case.run(xs), in_axes=axes)(*batch(rows, mask))
        assert_is_loop(got, [case.run(picked(rows, mask, i)) for i in range(SIZE)])


@every_case
@pytest.mark.usefixtures("by_reference")
def test_vmap_of_vmap_is_the_loop_of_loops(case: Case) -> None:
    """Outside all operands are batched, inside only the first: rules meet a batch of a batch."""
    rows = elements(case, SIZE)
    count = len(case.slots)
    first, *rest = batch(rows, [True] * count)
    pair = np.stack([first.numpy(), first.numpy()[::-1]])
    inner = ts.vmap(lambda *xs: case.run(xs), in_axes=[0, *(None for _ in rest)])
    got = ts.vmap(inner, in_axes=[1, *(0 for _ in rest)])(ts.asarray(pair), *rest)
    for g in (0, 1):
        others = [picked(rows, [True] * count, i)[1:] for i in range(SIZE)]
        want = [case.run([ts.asarray(pair[g, i]), *others[i]]) for i in range(SIZE)]
        assert_is_loop([y[:, g] for y in got], want)


# Compositions -----------------------------------------------------------------------------------


def tensor(*shape: int) -> ts.Tensor:
    return ts.tensor(RNG.normal(size=shape))


def loop(f: Any, *columns: Any) -> Any:
    """f on each element, the results stacked."""
    outs = [f(*row) for row in zip(*columns, strict=True)]
    return ts.tree.map(lambda *ys: np.stack([np.asarray(y) for y in ys]), *outs)


def energy(x: Any, w: Any) -> Any:
    """A scalar of a vector and a matrix, through control flow, sorting, solving and gathering."""
    h = op.tanh(x @ w)
    h = ts.cond(op.sum(h) > 0.0, lambda v: op.sort(v) * 2.0, lambda v: op.cumsum(v, 0), h)
    last, ys = ts.scan(lambda c, r: (op.sin(c + r), c * r), h[0], h)
    solved = op.solve(w @ w.mT + 4.0 * op.cast(ts.eye(w.shape[0]), w.dtype), x)
    return last + op.sum(ys * ys) + op.sum(solved * x) + op.logsumexp(h[op.argsort(h)[:2]])


XS, WS = tensor(4, 3), tensor(4, 3, 3)
NESTS: dict[str, Any] = {
    "value": energy,
    "grad": ts.grad(energy, argnums=(0, 1)),
    "jvp": lambda x, w: ts.jvp(energy, (x, w), (x * 0.5, w * w)),
    "hvp": lambda x, w: ts.jvp(lambda z: ts.grad(energy)(z, w), (x,), (x * x,))[1],
    "jit": ts.jit(ts.grad(energy)),
    "vjp": lambda x, w: ts.vjp(energy, x, w)[1](op.sum(w)),
}


@pytest.mark.parametrize("name", NESTS)
def test_vmap_of_transforms_is_the_loop(name: str) -> None:
    f = NESTS[name]
    want = loop(f, XS, WS)
    for g in (ts.vmap(f), ts.jit(ts.vmap(f)), ts.vmap(ts.jit(f))):
        for a, b in zip(ts.tree.leaves(g(XS, WS)), ts.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_transforms_of_vmap_are_the_sum_of_the_loop() -> None:
    def total(xs: Any, w: Any) -> Any:
        return op.sum(ts.vmap(energy, in_axes=(0, None))(xs, w))

    w = WS[0]
    gx, gw = ts.grad(total, argnums=(0, 1))(XS, w)
    each = [ts.grad(energy, argnums=(0, 1))(x, w) for x in XS]
    np.testing.assert_allclose(gx, np.stack([np.asarray(a) for a, _ in each]), rtol=1e-11)
    np.testing.assert_allclose(gw, sum(np.asarray(b) for _, b in each), rtol=1e-11)
    _, t = ts.jvp(total, (XS, w), (XS, w))
    np.testing.assert_allclose(float(t), float(op.sum(gx * XS) + op.sum(gw * w)), rtol=1e-11)


def test_each_key_of_a_batch_has_its_own_stream() -> None:
    keys = ts.split(ts.key(3), 4)
    got = ts.vmap(lambda k: op.random.normal(k, (5,), dtype=f64))(keys)
    want = [op.random.normal(k, (5,), dtype=f64).numpy() for k in keys]
    np.testing.assert_array_equal(got, np.stack(want))
    assert len(np.unique(got.numpy())) == 20


def test_a_shared_key_gives_one_mask_to_all() -> None:
    x = op.ones((4, 50))
    dropped = ts.vmap(lambda v: op.dropout(ts.key(0), v, p=0.5))(x).numpy()
    assert (dropped == dropped[0]).all()
    grads = ts.vmap(ts.grad(lambda v: op.sum(op.dropout(ts.key(0), v, p=0.5))))(x)
    np.testing.assert_array_equal(grads, dropped)


def test_elements_leave_a_loop_one_by_one() -> None:
    """Those that are done keep what they have, even where going on would give infinities."""
    f = ts.vmap(lambda x: ts.while_loop(lambda v: v < 1e3, lambda v: v * v, x))
    x = ts.tensor(np.array([2.0, 1e4, 1.5, 31.0]))
    np.testing.assert_allclose(f(x), [65536.0, 1e4, 1.5**32, 31.0**4])
    shared = ts.vmap(
        lambda x: ts.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2.0), (0, x))
    )
    count, y = shared(x)
    np.testing.assert_array_equal(count, [3, 3, 3, 3])
    np.testing.assert_array_equal(y, 8 * x.numpy())


def test_a_shared_condition_stays_a_branch() -> None:
    x = tensor(3, 2)
    f = ts.vmap(
        lambda p, v: ts.cond(p, lambda a: a * 2.0, lambda a: op.zeros((2,), f64), v),
        in_axes=(None, 0),
    )
    g = ts.jit(f).lower(ts.tensor(True), x).graph
    assert [n.op.name for n in g.nodes] == ["cond"]
    np.testing.assert_array_equal(f(True, x), 2 * x.numpy())
    np.testing.assert_array_equal(f(False, x), np.zeros((3, 2)))


def test_a_shared_matrix_is_one_product() -> None:
    w = tensor(3, 2)
    g = ts.jit(ts.vmap(lambda x: x @ w)).lower(tensor(5, 4, 3)).graph
    (product,) = [n for n in g.nodes if n.op.name == "matmul"]
    assert [v.shape for v in product.operands] == [(20, 3), (3, 2)]


# Axes and trees ---------------------------------------------------------------------------------


def test_axes_of_arguments_and_results() -> None:
    a, b = tensor(2, 5), tensor(5, 3)
    f = ts.vmap(lambda x, y: (x + y[0], y), in_axes=(1, 0), out_axes=(1, -1))
    s, t = f(a, b)
    assert (s.shape, t.shape) == ((2, 5), (3, 5))
    np.testing.assert_allclose(s, a.numpy() + b.numpy()[:, 0])
    np.testing.assert_array_equal(t, b.numpy().T)


def test_trees_of_axes() -> None:
    p = {"w": tensor(4, 3, 2), "b": tensor(2)}
    x = [tensor(3, 4), 2.0]

    def f(p: Any, x: Any, *, scale: Any) -> Any:
        return {"y": (x[0] @ p["w"] + p["b"]) * x[1] * scale, "b": p["b"]}

    mapped = ts.vmap(f, in_axes=({"w": 0, "b": None}, [1, None]), out_axes={"y": 0, "b": None})
    scale = tensor(4)
    out = mapped(p, x, scale=scale)
    want = [
        (x[0].numpy()[:, i] @ p["w"].numpy()[i] + p["b"].numpy()) * 2 * scale.numpy()[i]
        for i in range(4)
    ]
    np.testing.assert_allclose(out["y"], np.stack(want), rtol=1e-12)
    assert out["b"].shape == (2,)


def test_results_that_do_not_depend_on_the_batch_are_repeated() -> None:
    y = ts.vmap(lambda x: op.ones((2,)))(tensor(3))
    assert y.shape == (3, 2)


def test_symbolic_batches() -> None:
    @ts.jit
    def f(x: Tensor["B", "D", f64], w: Tensor["D", "D", f64]) -> Any:
        each = ts.vmap(ts.grad(lambda v: op.sum(op.tanh(v @ w) * op.sort(v))))(x)
        return each, ts.vmap(lambda v: op.searchsorted(op.sort(v), v))(x)

    for b in (2, 5):
        x, w = tensor(b, 3), tensor(3, 3)
        grads, places = f(x, w)
        want = loop(lambda v, w=w: ts.grad(lambda u: op.sum(op.tanh(u @ w) * op.sort(u)))(v), x)
        np.testing.assert_allclose(grads, want, rtol=1e-12)
        np.testing.assert_array_equal(places, np.argsort(np.argsort(x.numpy(), -1), -1))
    assert f.compiled == 1


def test_an_empty_batch() -> None:
    assert ts.vmap(lambda x: op.sum(x))(op.zeros((0, 3))).shape == (0,)


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "sizes": (
        lambda: ts.vmap(lambda x, y: x)(op.zeros((3, 2)), op.zeros((4,))),
        ShapeError,
        "vmap: the mapped axis is 3 in args[0] f32[3,2] (axis 0) but 4 in args[1] f32[4] (axis 0); "
        "map one of them with None, or give another axis",
    ),
    "range": (
        lambda: ts.vmap(lambda x: x, in_axes=2)(op.zeros((3, 2))),
        AxisError,
        "vmap: args[0] is f32[3,2], which has no axis 2; give in_axes an axis that it has, or None",
    ),
    "scalar": (
        lambda: ts.vmap(lambda x: x)(1.0),
        AxisError,
        "vmap: args[0] is f32[], which has no axis 0; give in_axes an axis that it has, or None",
    ),
    "nothing": (
        lambda: ts.vmap(lambda x: x, in_axes=None)(op.zeros((3,))),
        OperandError,
        "vmap: no argument is mapped; give at least one an axis with in_axes, or call the function",
    ),
    "count": (
        lambda: ts.vmap(lambda x, y: x, in_axes=(0,))(op.zeros((3,)), op.zeros((3,))),
        TreeError,
        "vmap: in_axes has 1 entries (0,) for 2 in (*, *)",
    ),
    "tree": (
        lambda: ts.vmap(lambda x: x, in_axes=({"a": 0},))([op.zeros((3,))]),
        TreeError,
        "vmap: in_axes has {'a': 0} where the tree is [*]; use an axis or None",
    ),
    "out": (
        lambda: ts.vmap(lambda x: x, out_axes=2)(op.zeros((3, 2))),
        AxisError,
        "vmap: out_axes 2 is out of range for result f32[3,2]; use -2 to 1",
    ),
    "out none": (
        lambda: ts.vmap(lambda x: x, out_axes=None)(op.zeros((3, 2))),
        AxisError,
        "vmap: result differs between the elements of the batch, so out_axes cannot be None for it",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind) as e:
        call()
    assert e.value.message == text
    assert "test_vmap.py" in str(e.value)


@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)], ids=str)
def test_a_batched_rule_is_the_rule_of_each_element(batched: tuple[bool, bool]) -> None:
    """Of x * a, in all three forms; what all elements share has the sum of their cotangents."""
    count = 2
    push = lambda xs, dxs: ([xs[0] * xs[1]], [dxs[0] * xs[1] + xs[0] * dxs[1]])  # noqa: E731
    back = lambda residuals, cts: [cts[0] * residuals[1], cts[0] * residuals[0]]  # noqa: E731
    x, a, dx, da = (RNG.normal(size=(SIZE, 4) if b else (4,)) for b in (*batched, *batched))
    ct = RNG.normal(size=(SIZE, 4))
    given, moved, turned = (tuple(map(ts.tensor, v)) for v in ((x, a), (dx, da), (ct,)))

    def shared(v: Any, b: bool) -> Any:
        return v if b else v.sum(0)

    linear = LinearRule("product", count, push, lambda values, ct: ct * values[1])
    for rule in (linear, ForwardRule("product", count, push)):
        made = batched_rule(rule, batched, SIZE)
        (y,), (dy,) = made.push(given, moved)
        assert_close(y, x * a)
        assert_close(dy, dx * a + x * da)
    made = batched_rule(linear, batched, SIZE)
    assert_close(made.transposed(given, turned[0]), shared(ct * a, batched[0]))
    reverse = ReverseRule("product", count, lambda xs: ([xs[0] * xs[1]], list(xs)), back)
    made = batched_rule(reverse, batched, SIZE)
    (y,), residuals = made.forward(given)
    assert_close(y, x * a)
    for got, want, b in zip(
        made.backward(residuals, turned), (ct * a, ct * x), batched, strict=True
    ):
        assert_close(got, shared(want, b))
