"""checkpoint: the same bits with less memory, by computing again what the policy does not keep."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op
from tessera.core.errors import OperandError, RuleError
from tessera.ir.graph.ir import bind
from tessera.ir.graph.op import Op
from tests.support.runners.tolerance import assert_same_bits

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
POLICIES: list[Any] = ["nothing", "dots", "everything", ["h"], ts.budget(100)]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)


def tensor(*shape: int) -> ts.Tensor:
    return ts.tensor(RNG.normal(size=shape))


X = tensor(3, 4)
WS = [tensor(4, 4) * 0.5 for _ in range(4)]


def layer(x: Any, w: Any) -> Any:
    return op.tanh(op.checkpoint_name(op.sin(x @ w), "h"))


def loss(block: Callable[..., Any]) -> Callable[[Any], Any]:
    def run(ws: Any) -> Any:
        h = X
        for w in ws:
            h = block(h, w)
        return op.sum(h * h)

    return run


def checkpointed(policy: Any) -> Callable[..., Any]:
    f: Callable[..., Any] = ts.checkpoint(layer, policy=policy)
    return f


def ops(f: Any, *args: Any) -> Counter[str]:
    """How often each op occurs in a compiled function."""
    return Counter(n.op.name for n in ts.jit(f).lower(*args).graph.nodes)


def assert_trees_same(a: Any, b: Any) -> None:
    for x, y in zip(ts.tree.leaves(a), ts.tree.leaves(b), strict=True):
        assert_same_bits(x, y)


# The same bits ----------------------------------------------------------------------------------


@every_policy
def test_gradients_have_the_same_bits(policy: Any) -> None:
    plain, again = ts.value_and_grad(loss(layer)), ts.value_and_grad(loss(checkpointed(policy)))
    assert_trees_same(again(WS), plain(WS))
    assert_trees_same(ts.jit(again)(WS), ts.jit(plain)(WS))


@every_policy
def test_other_transforms_do_not_mind(policy: Any) -> None:
    f, g = loss(layer), loss(checkpointed(policy))
    assert_same_bits(g(WS), f(WS))
    assert_same_bits(ts.jit(g)(WS), ts.jit(f)(WS))
    for a, b in zip(ts.jvp(g, (WS,), (WS,)), ts.jvp(f, (WS,), (WS,)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    v = [w * 0.1 for w in WS]
    want = ts.tree.leaves(ts.jvp(ts.grad(f), (WS,), (v,))[1])
    for a, b in zip(ts.tree.leaves(ts.jvp(ts.grad(g), (WS,), (v,))[1]), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)

    def slope(h: Any) -> Any:
        return ts.grad(lambda ws: sum(op.sum(d * d) for d in ts.grad(h)(ws)))

    for a, b in zip(slope(g)(WS), slope(f)(WS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@every_policy
def test_batches(policy: Any) -> None:
    xs = tensor(5, 3, 4)

    def f(block: Any) -> Any:
        return lambda x, w: op.sum(block(block(x, w), w) ** 2)

    plain, again = f(layer), f(checkpointed(policy))
    for order in (
        lambda h: ts.vmap(ts.grad(h, argnums=(0, 1)), (0, None)),
        lambda h: ts.grad(lambda x, w: op.sum(ts.vmap(h, (0, None))(x, w)), argnums=(0, 1)),
    ):
        for a, b in zip(order(again)(xs, WS[0]), order(plain)(xs, WS[0]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@every_policy
def test_inside_and_around_loops(policy: Any) -> None:
    def deep(block: Any) -> Any:
        def run(ws: Any) -> Any:
            y, _ = ts.scan(lambda h, w: (block(h, w), None), X, ws)
            return op.sum(y * y)

        return run

    ws = op.stack(WS)
    want = ts.grad(deep(layer))(ws)
    np.testing.assert_allclose(ts.grad(deep(checkpointed(policy)))(ws), want, rtol=1e-12)
    around = ts.checkpoint(deep(layer), policy=policy)
    np.testing.assert_allclose(ts.jit(ts.grad(around))(ws), want, rtol=1e-12)


def test_captured_values_have_gradients() -> None:
    def f(w: Any) -> Any:
        return op.sum(ts.checkpoint(lambda x: op.tanh(x @ w))(X))

    np.testing.assert_allclose(ts.grad(f)(WS[0]), ts.grad(lambda w: op.sum(op.tanh(X @ w)))(WS[0]))


def test_dropout_sees_the_same_mask_again() -> None:
    @ts.checkpoint
    def f(x: Any, key: Any) -> Any:
        return op.sin(op.dropout(key, x, p=0.5))

    g = ts.grad(lambda x: op.sum(f(x, ts.key(1))))(X)
    want = ts.grad(lambda x: op.sum(op.sin(op.dropout(ts.key(1), x, p=0.5))))(X)
    assert_same_bits(g, want)


def test_trees_keywords_and_static_arguments() -> None:
    @ts.checkpoint(policy="dots")
    def f(p: Any, mode: str, *, scale: Any) -> Any:
        return {"y": (op.sin if mode == "sin" else op.cos)(p["w"]) * scale}

    g = ts.grad(lambda p: op.sum(f(p, "cos", scale=2.0)["y"]))({"w": X})
    np.testing.assert_allclose(g["w"], -2 * np.sin(X.numpy()))


def test_symbolic_sizes() -> None:
    @ts.jit
    def g(x: Tensor["N", 4, f64], w: Tensor[4, 4, f64]) -> Any:
        return ts.grad(lambda w: op.sum(checkpointed("nothing")(x, w)))(w)

    for n in (2, 3):
        x = tensor(n, 4)
        np.testing.assert_allclose(g(x, WS[0]), ts.grad(lambda w, x=x: op.sum(layer(x, w)))(WS[0]))
    assert g.compiled == 1


# What is computed again -------------------------------------------------------------------------


def test_policies_say_what_is_computed_again() -> None:
    plain = ops(ts.grad(loss(layer)), WS)
    nothing, dots, everything, named, _ = (
        ops(ts.grad(loss(checkpointed(p))), WS) for p in POLICIES
    )
    for name in ("sin", "tanh"):
        assert nothing[name] == dots[name] == 2 * plain[name]
        assert everything[name] == plain[name]
    assert nothing["matmul"] == plain["matmul"] + 4
    assert dots["matmul"] == everything["matmul"] == plain["matmul"]
    assert named["sin"] == plain["sin"]
    assert named["tanh"] == 2 * plain["tanh"]


def test_without_a_derivative_nothing_is_left_of_it() -> None:
    assert ops(loss(checkpointed("nothing")), WS) == ops(loss(layer), WS)


def test_simplify_does_not_undo_it() -> None:
    def f(x: Any) -> Any:
        a = op.exp(x)
        (y,) = op.barrier(x)
        return a + op.exp(y)

    assert ops(f, X)["exp"] == 2
    assert ops(lambda x: op.exp(x) + op.exp(x), X)["exp"] == 1


def test_a_barrier_hands_on_tangents_and_cotangents() -> None:
    y = tensor(3, 4)

    def f(x: Any) -> Any:
        a, b = op.barrier(x * 2.0, y)
        return op.sum(a * b)

    np.testing.assert_allclose(ts.grad(f)(X), 2 * y.numpy())
    np.testing.assert_allclose(ts.jvp(f, (X,), (X,))[1], 2 * np.sum(X.numpy() * y.numpy()))
    mapped = ts.vmap(lambda x: op.barrier(x, y)[1] * op.barrier(x, y)[0][0])(X)
    np.testing.assert_allclose(mapped, X.numpy()[:, :1, None] * y.numpy())


def peak(f: Any, *args: Any) -> int:
    """The most bytes that a call by references held at once, after a first call."""
    run = ts.jit(f, target="numpy")
    run(*args)
    tracemalloc.start()
    run(*args)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_the_square_root_of_the_layers_needs_a_third_of_the_memory() -> None:
    """64 layers in 8 blocks of 8: 8 inputs of blocks and the inside of one instead of all."""
    x, w = tensor(512, 32), tensor(32, 32) * 0.2

    def plain(w: Any) -> Any:
        h = x
        for _ in range(64):
            h = op.tanh(h @ w)
        return op.sum(h)

    @ts.checkpoint
    def block(h: Any, w: Any) -> Any:
        for _ in range(8):
            h = op.tanh(h @ w)
        return h

    def blocks(w: Any) -> Any:
        h = x
        for _ in range(8):
            h = block(h, w)
        return op.sum(h)

    assert_same_bits(ts.jit(ts.grad(blocks))(w), ts.jit(ts.grad(plain))(w))
    assert peak(ts.grad(plain), w) > 3 * peak(ts.grad(blocks), w)


MEASURED = """
from pathlib import Path
import numpy as np
import tessera as ts
from tessera import op

rng = np.random.default_rng(0)
x = ts.tensor(rng.normal(size=(8192, 128)).astype("f"))
w = ts.tensor((rng.normal(size=(128, 128)) * 0.1).astype("f"))

def layers(h, w, count):
    for _ in range(count):
        h = op.tanh(h @ w)
    return h

block = ts.checkpoint(lambda h, w: layers(h, w, 8))

def blocks(w):
    h = x
    for _ in range(8):
        h = block(h, w)
    return op.sum(h)

def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

plain, again = (ts.jit(ts.grad(f), target="cpu") for f in (lambda w: op.sum(layers(x, w, 64)), blocks))
planned = again.lower(w).memory.peak  # built, not run
start = most()
found = again(w).numpy().tobytes()
less = most() - start
same = plain(w).numpy().tobytes() == found
print(less * 1024 / planned, (most() - start) / less, same)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_computes_again_holds_a_third() -> None:
    """The same as the system sees it, in machine code: the most memory that a process ever had."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    measured, ratio, same = done.stdout.split()
    assert 0.8 < float(measured) < 1.2
    assert float(ratio) > 3
    assert same == "True"


def test_errors() -> None:
    with pytest.raises(OperandError) as e:
        ts.checkpoint(layer, policy="all")
    assert e.value.message == (
        "checkpoint: policy is 'all', expected 'nothing', 'dots', 'everything', a list of names, "
        "budget(bytes) or offload(...)"
    )
    with pytest.raises(OperandError) as e:
        op.checkpoint_name(X, 3)  # type: ignore[arg-type]
    assert e.value.message == "checkpoint_name: the name is 3, expected a string"


@pytest.mark.parametrize("effect", ["io", "state"])  # a draw of the same key is the same again
def test_side_effects_inside_are_refused(effect: str) -> None:
    once = Op(
        "test_once", "x, told to the world", signature="... -> ...", call="test_once",
        numpy=lambda x: x, effects=frozenset((effect,)),
    )  # fmt: skip

    def f(x: Any) -> Any:
        return ts.scan(lambda c, row: (c, bind(once, row)), 0.0, x)[1]

    with pytest.raises(RuleError) as e:
        ts.grad(lambda x: op.sum(ts.checkpoint(f)(x)))(X)
    assert e.value.message == (
        f"checkpoint: test_once in f has the effect '{effect}', which computing again would repeat; "
        "move it out of the function and pass its result in"
    )
    assert e.value.location is not None
    assert "bind(once, row)" in str(e.value.location)


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, ::2], lambda x: op.flip(x, 1)])
def test_a_barrier_of_a_view_is_read_in_order(view: Any) -> None:
    x = ts.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    f = lambda x: op.barrier(view(x))[0] * 2.0  # noqa: E731
    np.testing.assert_array_equal(ts.jit(f)(x).numpy(), view(x).numpy() * 2)
    np.testing.assert_array_equal(
        ts.jit(ts.vmap(ts.checkpoint(op.sin), in_axes=1))(x).numpy(), op.sin(x.T).numpy()
    )
