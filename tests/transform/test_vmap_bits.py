"""vmap has the bits of a loop, also where an operand is not batched: an element does not know its
neighbours.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

SIZES = {"a": 3, "b": 4, "c": 37}
BATCH = 3


def drawn(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def forms() -> Iterator[str]:
    """Every einsum of two operands of up to two axes, three in all, named in the order in which they
    appear.
    """
    orders = [o for r in range(3) for o in itertools.product("abc", repeat=r)]
    for left, right in itertools.product(orders, orders):
        names = "".join(dict.fromkeys((*left, *right)))
        if names != "abc"[: len(names)]:
            continue
        for r in range(len(names) + 1):
            for out in itertools.combinations(names, r):
                yield f"{''.join(left)},{''.join(right)}->{''.join(out)}"


def masks(n: int) -> list[tuple[bool, ...]]:
    return [m for m in itertools.product((True, False), repeat=n) if any(m)]


def same_as_a_loop(
    f: Callable[..., Any], xs: list[Any], mask: tuple[bool, ...], jitted: bool
) -> None:
    """xs are single operands; those that the mask names are batched here."""
    tall = [
        np.stack([x * (1 + i) for i in range(BATCH)]) if b else x
        for x, b in zip(xs, mask, strict=True)
    ]
    if all(x.dtype.kind == "f" for x in tall):
        tall = [x.astype(xs[0].dtype) for x in tall]
    values = [ts.tensor(x) for x in tall]
    axes = tuple(0 if b else None for b in mask)
    one = ts.jit(f) if jitted else f
    rows = [[v[i] if b else v for v, b in zip(values, mask, strict=True)] for i in range(BATCH)]
    want = [ts.tree.leaves(one(*r)) for r in rows]
    g = ts.vmap(f, in_axes=axes)
    got = ts.tree.leaves((ts.jit(g) if jitted else g)(*values))
    for k, y in enumerate(got):
        for i in range(BATCH):
            assert np.asarray(y[i]).tobytes() == np.asarray(want[i][k]).tobytes(), (mask, i, k)


FORMS = sorted(forms())


@pytest.mark.parametrize("part", range(8))
def test_every_einsum_of_two_operands(part):
    assert len(FORMS) == 145
    for spec in FORMS[part::8]:
        left, right = spec.split("->")[0].split(",")
        xs = [drawn(*(SIZES[a] for a in left)), drawn(*(SIZES[a] for a in right), seed=1)]
        for mask in masks(2):
            jitted = zlib.crc32(f"{spec} {mask}".encode()) % 6 == 0
            same_as_a_loop(lambda x, y, s=spec: op.einsum(s, x, y), xs, mask, jitted)


@pytest.mark.parametrize(
    "spec",
    ["ab,bc,c->a", "ab,bc,cd->ad", "a,a,a->", "ab,a,b->", "abc->b", "aab->b", "ab->", "aa->"],
)
def test_einsums_of_one_and_three_operands(spec):
    sizes = {**SIZES, "d": 5}
    ins = spec.split("->")[0].split(",")
    xs = [drawn(*(sizes[a] for a in p), seed=i) for i, p in enumerate(ins)]
    for mask in masks(len(ins)):
        same_as_a_loop(lambda *x: op.einsum(spec, *x), xs, mask, jitted=sum(mask) == 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
@pytest.mark.parametrize(
    "spec", ["ac,c->a", "ac,bc->ab", "c,c->", "ac,ac->a", "ab,c->abc", "ab,bc->ca"]
)
def test_other_dtypes(spec, dtype):
    left, right = spec.split("->")[0].split(",")
    xs = [
        drawn(*(SIZES[a] for a in left), dtype=dtype),
        drawn(*(SIZES[a] for a in right), dtype=dtype, seed=1),
    ]
    for mask in masks(2):
        same_as_a_loop(lambda x, y: op.einsum(spec, x, y), xs, mask, jitted=False)


def _solvable(n: int) -> Any:
    return drawn(n, n) + np.eye(n, dtype=np.float32) * 9


OTHERS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "matmul": (op.matmul, [drawn(5, 37), drawn(37, 4, seed=1)]),
    "matmul of a vector": (op.matmul, [drawn(5, 37), drawn(37, seed=1)]),
    "vector by matrix": (op.matmul, [drawn(37), drawn(37, 5, seed=1)]),
    "vectors": (op.matmul, [drawn(600), drawn(600, seed=1)]),
    "stack of matrices": (op.matmul, [drawn(2, 5, 37), drawn(37, 4, seed=1)]),
    "vecdot": (op.vecdot, [drawn(3, 37), drawn(3, 37, seed=1)]),
    "tensordot": (lambda x, y: op.tensordot(x, y, 2), [drawn(3, 4, 5), drawn(4, 5, 6, seed=1)]),
    "outer": (op.outer, [drawn(5), drawn(6, seed=1)]),
    "kron": (op.kron, [drawn(2, 3), drawn(3, 2, seed=1)]),
    "conv": (lambda x, w: op.conv(x, w, padding=1), [drawn(2, 3, 9), drawn(4, 3, 3, seed=1)]),
    "conv of images": (lambda x, w: op.conv(x, w, stride=2), [drawn(1, 3, 8, 8), drawn(4, 3, 3, 3, seed=1)]),
    "conv_transpose": (lambda x, w: op.conv_transpose(x, w, stride=2),
    [drawn(1, 3, 5), drawn(3, 4, 3, seed=1)]),
    "attention": (op.attention, [drawn(2, 5, 8), drawn(2, 7, 8, seed=1), drawn(2, 7, 8, seed=2)]),
    "solve": (op.solve, [_solvable(5), drawn(5, 2, seed=1)]),
    "solve of a vector": (op.solve, [_solvable(5), drawn(5, seed=1)]),
    "linear": (lambda x, w, b: x @ w + b, [drawn(5, 37), drawn(37, 4, seed=1), drawn(4, seed=2)]),
    "embedding": (lambda t: op.embedding(t, ts.tensor(np.array([1, 0, 2]))), [drawn(4, 37)]),
    "softmax of scores": (lambda x, w: op.softmax(x @ w), [drawn(5, 37), drawn(37, 40, seed=1)]),
    "layernorm": (op.layernorm, [drawn(5, 37), drawn(37, seed=1), drawn(37, seed=2)]),
}  # fmt: skip


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_products(name, jitted):
    f, xs = OTHERS[name]
    for mask in masks(len(xs)):
        same_as_a_loop(f, xs, mask, jitted)


@pytest.mark.parametrize("name", ["matmul", "tensordot", "conv", "attention", "linear"])
def test_gradients_of_other_products(name):
    f, xs = OTHERS[name]
    g = ts.grad(lambda *x: op.sum(op.sin(f(*x))), argnums=tuple(range(len(xs))))
    for mask in masks(len(xs)):
        same_as_a_loop(g, xs, mask, jitted=False)


def test_an_einsum_of_vectors_is_no_call_of_the_host():
    """Its order was NumPy's, which depends on the batch."""
    x = ts.tensor(drawn(40))
    for spec in ("a,a->", "a,b->ab", "a,a->a", "a->"):
        f = ts.jit(lambda *v, s=spec: op.einsum(s, *v), target="cpu")
        e = f.lower(*[x] * (spec.count(",") + 1))._executable
        hosted = {n.op.name for n in e.host_nodes}
        assert hosted <= {"reshape", "broadcast_to", "transpose"}, spec  # views


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("ij,jk->ik", np.complex64),
        ("i,ij,j->", np.complex128),
        *(pytest.param(f, d, marks=pytest.mark.deep)
          for f in ("i,i->", "ij,kj->ik", "bij,bjk->bik") for d in (np.complex64, np.complex128)),
    ],
)  # fmt: skip
def test_complex_products_of_a_batch_have_the_bits_of_a_loop(form, dtype):
    """Four real products in our own order, whatever a library's order for complex matrices is."""
    rng, sizes = np.random.default_rng(5), dict(zip("ijkb", (7, 33, 5, 2), strict=True))
    terms = form.split("->")[0].split(",")
    data = [rng.normal(size=(2, 3, *(sizes[a] for a in t))) for t in terms]
    xs = [ts.tensor((a + 1j * b).astype(dtype)) for a, b in data]

    def f(*operands):
        return op.einsum(form, *operands)

    for mask in range(1, 1 << len(xs)):
        moving = [mask >> i & 1 for i in range(len(xs))]
        given = [x if m else x[0] for x, m in zip(xs, moving, strict=True)]
        rows = [[x[k] if m else x for x, m in zip(given, moving, strict=True)] for k in range(3)]
        want = np.stack([np.asarray(f(*row)) for row in rows])
        got = ts.vmap(f, in_axes=tuple(0 if m else None for m in moving))(*given)
        assert np.asarray(got).tobytes() == want.tobytes()
        plain = np.stack([np.einsum(form, *map(np.asarray, row)) for row in rows])
        np.testing.assert_allclose(want, plain, rtol=tolerance(dtype), atol=tolerance(dtype))
    jitted = ts.jit(ts.vmap(f))(*xs)
    assert np.asarray(jitted).tobytes() == np.asarray(ts.vmap(f)(*xs)).tobytes()


def tolerance(dtype: Any) -> float:
    return 1e-4 if dtype is np.complex64 else 1e-12
