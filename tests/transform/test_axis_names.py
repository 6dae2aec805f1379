"""Collectives over named axes of vmap: against NumPy on whole batches, nested, differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import OperandError, ShapeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3))
XS = ts.tensor(X)


def over(f: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    return ts.vmap(f, axis_name="b", **kwargs)


def every(x: Any) -> Any:
    """The same for all elements of the batch."""
    return np.broadcast_to(x, (4, *np.shape(x)))


COLLECTIVES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "psum": (lambda x: op.psum(x, "b"), lambda x: every(x.sum(0))),
    "pmean": (lambda x: op.pmean(x, "b"), lambda x: every(x.mean(0))),
    "pmax": (lambda x: op.pmax(x, "b"), lambda x: every(x.max(0))),
    "pmin": (lambda x: op.pmin(x, "b"), lambda x: every(x.min(0))),
    "all_gather": (lambda x: op.all_gather(x, "b"), every),
    "psum_scatter": (
        lambda x: op.psum_scatter(op.outer(op.arange(4).astype(f64) + x[0], x), "b"),
        lambda x: np.einsum("bi,bj->ij", np.arange(4.0) + x[:, :1], x),
    ),
    "ppermute": (
        lambda x: op.ppermute(x, "b", [(0, 1), (1, 3), (3, 0)]),
        lambda x: np.stack([x[3], x[0], 0 * x[0], x[1]]),
    ),
    "axis_index": (lambda x: x * op.axis_index("b"), lambda x: x * np.arange(4.0)[:, None]),
    "axis_size": (lambda x: x / op.axis_size("b"), lambda x: x / 4),
}
every_collective = pytest.mark.parametrize("name", COLLECTIVES)


@every_collective
def test_of_a_batch(name: str) -> None:
    f, want = COLLECTIVES[name]
    np.testing.assert_allclose(over(f)(XS), want(X), rtol=1e-13)
    np.testing.assert_allclose(ts.jit(over(f))(XS), want(X), rtol=1e-13)
    np.testing.assert_allclose(over(f, in_axes=1)(ts.tensor(X.T)), want(X), rtol=1e-13)


@every_collective
def test_of_what_all_elements_share(name: str) -> None:
    f, want = COLLECTIVES[name]
    got = over(lambda i, x: f(x), in_axes=(0, None))(op.arange(4), XS[0])
    np.testing.assert_allclose(got, want(every(X[0])), rtol=1e-13)


@every_collective
def test_under_another_batch_inside_and_outside(name: str) -> None:
    f, want = COLLECTIVES[name]
    stack = np.stack([X, 2 * X + 1])
    wanted = np.stack([want(x) for x in stack])
    outside = ts.vmap(over(f))(ts.tensor(stack))
    np.testing.assert_allclose(outside, wanted, rtol=1e-13)
    inside = over(ts.vmap(f), in_axes=1, out_axes=1)(ts.tensor(stack))
    np.testing.assert_allclose(inside, wanted, rtol=1e-13)


@every_collective
def test_gradients_of_the_mapped_and_mapped_gradients(name: str) -> None:
    """Mapped inside, a gradient is that of the sum over all elements: an adjoint is a dual."""
    f, _ = COLLECTIVES[name]
    loss = lambda x: op.sum(op.sin(f(x)) * x[0])  # noqa: E731
    whole = ts.grad(lambda x: op.sum(over(loss)(x)))(XS)
    np.testing.assert_allclose(over(ts.grad(loss))(XS), whole, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ts.jit(over(ts.grad(loss)))(XS), whole, rtol=1e-12, atol=1e-14)
    d = RNG.normal(size=X.shape)
    along = ts.jvp(lambda x: op.sum(over(loss)(x)), (XS,), (ts.tensor(d),))[1]
    np.testing.assert_allclose(np.sum(whole.numpy() * d), along, rtol=1e-11)
    high, low = (op.sum(over(loss)(ts.tensor(X + h * d))).item() for h in (1e-6, -1e-6))
    np.testing.assert_allclose(along, (high - low) / 2e-6, rtol=1e-6, atol=1e-8)


def test_nested_names() -> None:
    x = RNG.normal(size=(2, 3))

    def f(v: Any) -> Any:
        return op.psum(v, "i"), op.psum(v, "j"), op.psum(v,
            ("i", "j")), op.axis_index("i") * 10 + op.axis_index("j")  # fmt: skip

    rows = lambda row: ts.vmap(f, axis_name="j")(row)  # noqa: E731
    i, j, both, place = ts.vmap(rows, axis_name="i")(ts.tensor(x))
    np.testing.assert_allclose(i, np.broadcast_to(x.sum(0), (2, 3)), rtol=1e-13)
    np.testing.assert_allclose(j, np.broadcast_to(x.sum(1)[:, None], (2, 3)), rtol=1e-13)
    np.testing.assert_allclose(both, np.full((2, 3), x.sum()), rtol=1e-13)
    np.testing.assert_array_equal(place, [[0, 1, 2], [10, 11, 12]])


def test_the_inner_of_two_axes_of_one_name() -> None:
    f = ts.vmap(lambda row: over(lambda v: op.psum(v, "b"))(row), axis_name="b")
    np.testing.assert_allclose(f(XS), np.broadcast_to(X.sum(1)[:, None], X.shape), rtol=1e-13)


def test_inside_of_control_flow_checkpoints_and_calls() -> None:
    def looped(x: Any) -> Any:
        return ts.scan(lambda c, row: (c + op.psum(row, "b"), op.pmax(c, "b")), 0.0, x)

    total, tops = over(looped)(XS)
    sums = np.cumsum(X.sum(0))
    np.testing.assert_allclose(total, every(sums[-1]), rtol=1e-13)
    np.testing.assert_allclose(tops, every([0.0, *sums[:-1]]), rtol=1e-13)

    which = over(
        lambda x: ts.cond(True, lambda: op.axis_index("b"), lambda: op.axis_index("b") + 9)
    )
    np.testing.assert_array_equal(which(XS), np.arange(4))
    steps = over(lambda x: ts.fori_loop(0, 3, lambda i, c: c + op.axis_index("b"), 0))
    np.testing.assert_array_equal(steps(XS), 3 * np.arange(4))

    block = ts.checkpoint(lambda x: op.sin(x - op.pmean(x, "b")))
    inner = ts.jit(lambda x: op.sin(x - op.pmean(x, "b")))
    plain = over(ts.grad(lambda x: op.sum(op.sin(x - op.pmean(x, "b")) ** 2)))(XS)
    for f in (block, inner):
        np.testing.assert_allclose(
            over(ts.grad(lambda x, f=f: op.sum(f(x) ** 2)))(XS), plain, rtol=1e-12
        )


def test_trees_integers_and_symbolic_sizes() -> None:
    got = over(lambda t: op.psum(t, "b"))({"n": ts.tensor([1, 2, 3]), "x": (XS[:3],)})
    np.testing.assert_array_equal(got["n"], [6, 6, 6])
    assert got["n"].dtype is ts.i64
    np.testing.assert_allclose(got["x"][0], np.broadcast_to(X[:3].sum(0), (3, 3)), rtol=1e-13)

    @ts.jit
    def centred(x: Tensor["N", 3, f64]) -> Any:
        return over(lambda r: r - op.pmean(r, "b") + op.psum(0.0, "b") * op.axis_index("b"))(x)

    for n in (2, 4):
        np.testing.assert_allclose(centred(XS[:n]), X[:n] - X[:n].mean(0), rtol=1e-12, atol=1e-15)
    assert centred.compiled == 1


def test_synchronised_batch_statistics() -> None:
    """Normalising over a named axis is normalising the whole batch."""

    def norm(x: Any) -> Any:
        mean = op.pmean(x, "b")
        return (x - mean) / op.sqrt(op.pmean((x - mean) ** 2, "b") + 1e-5)

    want = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5)
    np.testing.assert_allclose(over(norm)(XS), want, rtol=1e-12)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "unbound": (
        lambda: op.psum(XS, "b"), OperandError,
        "psum: no axis is named 'b' here (named: none); name it with vmap(f, axis_name='b')",
    ),
    "another name": (
        lambda: over(lambda x: op.pmean(x, "c"))(XS), OperandError,
        "pmean: no axis is named 'c' here (named: 'b'); name it with vmap(f, axis_name='c')",
    ),
    "after the map": (
        lambda: op.axis_index("b") if over(op.sin)(XS) is not None else None, OperandError,
        "axis_index: no axis is named 'b' here (named: none); name it with vmap(f, axis_name='b')",
    ),
    "name is a number": (
        lambda: ts.vmap(op.sin, axis_name=3), OperandError,  # type: ignore[arg-type]
        "vmap: axis_name is 3, expected a string",
    ),
    "scatter of another size": (
        lambda: over(lambda x: op.psum_scatter(x, "b"))(XS), ShapeError,
        "psum_scatter: f64[3] must have the size 4 of axis 'b' along axis 0",
    ),
    "two senders": (
        lambda: over(lambda x: op.ppermute(x, "b", [(0, 1), (2, 1)]))(XS), OperandError,
        "ppermute: [(0, 1), (2, 1)] must name each sender and each receiver once, from 0 to 4 - 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_say_what_is_wrong(name: str) -> None:
    call, kind, text = WRONG[name]
    with pytest.raises(kind) as e:
        call()
    assert e.value.message == text  # type: ignore[attr-defined]
    assert e.value.location.file == __file__  # type: ignore[attr-defined]
