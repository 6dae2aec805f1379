"""Control flow on a GPU: regions are programs in device memory, with the values of the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.compile.gpu import control
from tessera.compile.gpu.executable import GpuExecutable
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.gpu.bound_program import BoundProgram
from tests.support.fakes.gpu_fake import at
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"
on_device = pytest.mark.parametrize(
    "place", ["fake", pytest.param("device", marks=pytest.mark.gpu)], indirect=True
)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device, where an op that runs on the host is an error."""
    with at(request.param):
        yield


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


STEPS = 5
W = normal(32, 32, seed=2) / 6
H, XS = normal(4, 32), normal(STEPS, 4, 32, seed=1)


def same(f: Any, *xs: Any, exact: bool = False) -> None:
    want = ts.jit(f, target="numpy")(*map(ts.tensor, xs))
    got = ts.jit(f)(*(ts.tensor(x).to("cuda") for x in xs))
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
        assert a.device.kind == "cuda"
        x, y = a.numpy(), b.numpy()
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        if exact or x.dtype.kind in "biu":
            np.testing.assert_array_equal(x, y)
        else:
            assert_close(x, y, times=8)


def cell(w: Any, h: Any, x: Any) -> tuple[Any, Any]:
    h = op.tanh(h @ w + op.softmax(x))
    return h, op.sum(h * h, 1)


def nested(w: Any, h: Any, xs: Any) -> Any:
    def body(h: Any, x: Any) -> Any:
        h = op.cond(op.sum(x) > 0, lambda h: op.softmax(h), lambda h: op.tanh(h + x), h)
        return h, op.fori_loop(0, 2, lambda i, s: s + op.sum(op.exp(h), 0) * i, x[0])

    return op.scan(body, h, xs)


def until(w: Any, h: Any, xs: Any) -> Any:
    return op.while_loop(
        lambda c: op.sum(c[1]) < 40.0, lambda c: (c[0] + 1, op.softmax(c[1] @ w) + c[1]), (0, h)
    )


PROGRAMS: dict[str, Any] = {
    "scan": lambda w, h, xs: op.scan(lambda h, x: cell(w, h, x), h, xs),
    "scan in reverse": lambda w, h, xs: op.scan(lambda h, x: cell(w, h, x), h, xs, reverse=True),
    "carry that is a slice": lambda w, h, xs: op.scan(
        lambda h, x: ((y := op.tanh(h @ w + x)), y), h, xs
    ),
    "slice that is a carry": lambda w, h, xs: op.scan(lambda h, x: (x, h * 2.0), h, xs),
    "narrow slices": lambda w, h, xs: op.scan(lambda s, x: (s + x, s * x), h[0, 0], xs[:, 0, 0]),
    "fori_loop": lambda w, h, xs: op.fori_loop(
        0, STEPS, lambda i, h: op.layernorm(op.gelu(h) @ w) + op.mean(xs) * i, h
    ),
    "no steps": lambda w, h, xs: (
        op.fori_loop(0, 0, lambda i, h: h + 1.0, h),
        op.scan(lambda s, x: (s + 1.0, x), h, xs[:0]),
    ),
    "while_loop": until,
    "cond and a loop in a scan": nested,
    "gradient of a scan": lambda w, h, xs: ts.grad(
        lambda h: op.sum(op.scan(lambda h, x: cell(w, h, x), h, xs)[1])
    )(h),
    "carry passed around": lambda w, h, xs: op.fori_loop(
        0, 4, lambda i, c: (c[1], op.exp(c[0] * 0.1), c[1]), (h, h + 1.0, h)
    ),
    "carry twice": lambda w, h, xs: op.fori_loop(
        0, 4, lambda i, c: ((y := op.tanh(c[0] + c[1] @ w)), y * 1.0), (h, h)
    ),
    "sort in a loop": lambda w, h, xs: op.scan(lambda s, x: (op.sort(s * x), s), h, xs),
}


@on_device
@pytest.mark.parametrize("name", PROGRAMS)
def test_regions_run_on_the_device(name: str, place: None) -> None:
    same(PROGRAMS[name], W, H, XS)


@on_device
@pytest.mark.parametrize("name", [n for n in PROGRAMS if "sl" in n or "scan" in n])
def test_slices_at_one_address(name: str, place: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is done for steps of many launches, which are a graph then."""
    monkeypatch.setattr(control, "_MANY", 0)
    same(PROGRAMS[name], W, H, XS)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes in bytes of what travels to the host."""
    found: list[int] = []
    usual = DeviceArray.numpy
    monkeypatch.setattr(DeviceArray, "numpy", lambda x: (found.append(x.nbytes), usual(x))[1])
    return found


COUNTED: dict[str, tuple[Any, list[int]]] = {
    "scan": (PROGRAMS["scan"], []),
    "fori_loop": (PROGRAMS["fori_loop"], []),
    "cond": (lambda w, h, xs: op.cond(op.sum(h) > 0, lambda: h + 1.0, lambda: h), [1]),
    "bounds that are data": (
        lambda w, h, xs: op.fori_loop(
            op.argmax(xs[0, 0]) * 0, op.argmax(xs[0, 0]) * 0 + 3, lambda i, h: op.tanh(h @ w), h
        ),
        [8, 8],
    ),
    "below a number": (
        lambda w, h, xs: op.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2.0), (0, h)),
        [8],
    ),
    "not a count": (
        lambda w, h, xs: op.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 2, c[1] * 2.0), (0, h)),
        [1, 1, 1],
    ),
}  # fmt: skip


@on_device
@pytest.mark.parametrize("name", COUNTED)
def test_only_conditions_and_counts_travel(name: str, place: None, trips: list[int]) -> None:
    f, want = COUNTED[name]
    got = ts.jit(f)(*(ts.tensor(x).to("cuda") for x in (W, H, XS)))
    assert trips == want
    expected = ts.jit(f, target="numpy")(*map(ts.tensor, (W, H, XS)))
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(expected), strict=True):
        assert_close(a.numpy(), b.numpy(), times=8)


@on_device
def test_a_long_loop_takes_the_memory_of_two_steps(place: None) -> None:
    x = ts.tensor(normal(1 << 18)).to("cuda")  # 1 MiB
    f = ts.jit(lambda x: op.fori_loop(0, 50, lambda i, x: op.flip(x, 0) * 1.01, x))
    most = 0
    usual = BoundProgram.run

    def run(self: BoundProgram[Any], *given: Any) -> Any:
        nonlocal most
        most = max(most, gpu().pool.used)
        return usual(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundProgram, "run", run)
        before = gpu().pool.used
        y = f(x)
    assert most - before <= 3 * x.numpy().nbytes
    np.testing.assert_allclose(y.numpy(), x.numpy() * 1.01**50, rtol=1e-4)


@on_device
def test_a_step_writes_over_what_it_carries(place: None) -> None:
    """Rows that a loop sets in a table move no other row; the table of the caller stays."""
    table, rows = normal(64, 32), normal(7, 32, seed=1)

    def f(table: Any, rows: Any) -> Any:
        def body(t: Any, x: Any) -> Any:
            return t * 2.0 + x, None

        return op.scan(body, table, rows)[0]

    given = ts.tensor(table).to("cuda")
    jitted = ts.jit(f)
    got = jitted(given, ts.tensor(rows).to("cuda"))
    want = table
    for x in rows:
        want = want * np.float32(2) + x
    assert_close(got.numpy(), want, times=4)
    np.testing.assert_array_equal(given.numpy(), table)
    (e,) = _executables(jitted)
    (region,) = e._regions.values()
    assert region.at({}, frozenset([0])).planned.overwritten == {0}


def _executables(f: Any) -> list[GpuExecutable]:
    found = [entry.executable for entry in f._entries.values()]
    return [e for e in found if isinstance(e, GpuExecutable)]


@on_device
def test_symbolic_sizes_in_regions(place: None) -> None:
    @ts.jit
    def f(h: Tensor["B", 32, f32], xs: Tensor["T", "B", 32, f32]) -> Any:
        return op.scan(lambda h, x: (op.tanh(h + x), op.sum(h, 1)), h, xs)

    for b, t in ((4, 5), (7, 2)):
        h, xs = normal(b, 32), normal(t, b, 32, seed=1)
        got = f(*(ts.tensor(x).to("cuda") for x in (h, xs)))
        want = ts.jit(f, target="numpy")(ts.tensor(h), ts.tensor(xs))
        for x, y in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
            assert_close(x.numpy(), y.numpy(), times=4)


@on_device
def test_profiles_tell_regions_from_the_program_around_them(place: None) -> None:
    f = ts.jit(lambda h, xs: op.exp(op.scan(lambda h, x: (op.tanh(h + x), None), h, xs)[0]))
    given = [ts.tensor(x).to("cuda") for x in (H, XS)]
    f(*given)
    with ts.profile() as p:
        f(*given)
    assert len({k.program for k in p.kernels if k.kind == "kernel"}) == 2
