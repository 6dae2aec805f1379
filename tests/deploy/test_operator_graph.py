"""Operators across the boundary to C: their structure stays, and applying and solving agree with NumPy."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.deploy import operator_graph as og
from tessera.native import INCLUDE, SOURCE

COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
RNG = np.random.default_rng(21)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("library") / "libtessera.so"
    front = [str(COMPILER), "-std=c99", "-O0", "-D_GNU_SOURCE", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*front, "-I", str(INCLUDE), str(SOURCE), "-o", str(out)], check=True)
    made = ctypes.CDLL(str(out))
    made.tess_last_error.restype = ctypes.c_char_p
    return made


def matrix(n: int, m: int, dtype: Any = np.float64) -> Any:
    x = RNG.normal(size=(n, m))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RNG.normal(size=(n, m))
    return x.astype(dtype)


def run(library: Any, name: str, desc: Any, x: Any, y: Any) -> int:
    return int(
        getattr(library, name)(
            ctypes.byref(desc), ctypes.byref(og.tensor(x)), ctypes.byref(og.tensor(y))
        )
    )


def operators() -> dict[str, Any]:
    """Operators, and their matrices by NumPy."""
    a, b, c = (matrix(n, n) + 3 * np.eye(n) for n in (3, 4, 3))
    d = matrix(4, 1)[:, 0] + 5
    tall = matrix(3, 4)
    t = ts.tensor
    dense_a, dense_b, dense_c = (op.dense(t(x)) for x in (a, b, c))
    fourier = np.fft.fft(np.eye(6))
    column = matrix(5, 1)[:, 0] + np.array([9, 0, 0, 0, 0])
    wheel = np.array([[column[(i - j) % 5] for j in range(5)] for i in range(5)])
    return {
        "dense": (dense_a, a), "tall": (op.dense(t(tall)), tall),
        "kronecker": (op.kronecker(dense_a, dense_b), np.kron(a, b)),
        "compose": (op.compose(dense_a, op.adjoint(dense_c)), a @ c.T),
        "sum": (dense_a + 2.0 * dense_c, a + 2 * c),
        "direct_sum": (op.direct_sum(dense_a, dense_b),
        np.block([[a, np.zeros((3, 4))], [np.zeros((4, 3)), b]])),
        "inverse": (op.inverse(dense_a), np.linalg.inv(a)),
        "resolvent": (op.resolvent(dense_a, 9.5), np.linalg.inv(9.5 * np.eye(3) - a)),
        "diag": (op.diag(t(d)), np.diag(d)), "fft": (op.fft(6, dtype="c128"), fourier),
        "circulant": (op.circulant(t(column)), wheel),
        "nested": (
            op.kronecker(op.compose(dense_a, op.inverse(dense_c)), op.diag(t(d)) + dense_b),
            np.kron(a @ np.linalg.inv(c), np.diag(d) + b),
        ),
    }  # fmt: skip


OPERATORS = operators()


@pytest.mark.parametrize("name", OPERATORS)
def test_applying_and_solving_agree_with_numpy(library: Any, name: str):
    a, whole = OPERATORS[name]
    g = og.OperatorGraph(a)
    rows, columns = ctypes.c_int64(), ctypes.c_int64()
    assert library.tess_graph_validate(ctypes.byref(g.desc), ctypes.byref(rows),
        ctypes.byref(columns)) == 0  # fmt: skip
    assert (rows.value, columns.value) == whole.shape
    dtype = np.complex128 if np.iscomplexobj(whole) else np.float64
    for x in (matrix(whole.shape[1], 1, dtype)[:, 0], matrix(whole.shape[1], 3, dtype)):
        y = np.zeros((whole.shape[0], *x.shape[1:]), dtype)
        assert run(library, "tess_graph_apply", g.desc, x, y) == 0, library.tess_last_error()
        np.testing.assert_allclose(y, whole @ x, rtol=1e-9, atol=1e-9)
        if whole.shape[0] != whole.shape[1]:
            assert run(library, "tess_graph_solve", g.desc, y, x) == 7
            continue
        back = np.zeros_like(x)
        assert run(library, "tess_graph_solve", g.desc, y, back) == 0, library.tess_last_error()
        np.testing.assert_allclose(back, x, rtol=1e-7, atol=1e-9)


def test_structure_is_kept():
    a, _ = OPERATORS["nested"]
    assert sorted(og.OperatorGraph(a).kinds) == sorted(
        [og.KRONECKER, og.COMPOSE, og.INVERSE, og.SUM, *[og.LEAF] * 4]
    )
    kinds = og.OperatorGraph(OPERATORS["resolvent"][0]).kinds
    assert og.INVERSE in kinds
    assert og.SUM in kinds
    sizes = {og.TessTensorDesc: 168, og.TessOperatorDesc: 544, og.TessOperatorNode: 40,
        og.TessOperatorGraph: 48}  # fmt: skip
    assert {t: ctypes.sizeof(t) for t in sizes} == sizes


def leaf(x: Any, **fields: Any) -> og.TessOperatorDesc:
    d = og.TessOperatorDesc(repr=og.DENSE, rows=x.shape[0], columns=x.shape[1], **fields)
    d.payload[0] = og.tensor(x)
    return d


def test_factors_blocks_permutations_and_a_resolvent_node(library: Any):
    u, s, v = matrix(5, 2), matrix(2, 1)[:, 0], matrix(2, 4)
    d = og.TessOperatorDesc(repr=og.FACTOR, rows=5, columns=4)
    for i, x in enumerate((u, s, v)):
        d.payload[i] = og.tensor(x)
    x, y = matrix(4, 1)[:, 0], np.zeros(5)
    assert run(library, "tess_operator_apply", d, x, y) == 0, library.tess_last_error()
    np.testing.assert_allclose(y, u @ (s * (v @ x)))
    pointers, places, tiles = (
        np.array([0, 1, 3]),
        np.array([2, 0, 1], np.int32),
        RNG.normal(size=(3, 2, 2)),
    )
    d = og.TessOperatorDesc(repr=og.BLOCKSPARSE, rows=4, columns=6)
    for i, x in enumerate((pointers, places, tiles)):
        d.payload[i] = og.tensor(x)
    x, y = matrix(6, 1)[:, 0], np.zeros(4)
    whole = np.zeros((4, 6))
    whole[:2, 4:], whole[2:, :2], whole[2:, 2:4] = tiles
    assert run(library, "tess_operator_apply", d, x, y) == 0, library.tess_last_error()
    np.testing.assert_allclose(y, whole @ x)
    p = np.array([2, 0, 1])
    d = og.TessOperatorDesc(repr=og.IMPLICIT, tag=og.PERMUTATION, rows=3, columns=3)
    d.payload[0] = og.tensor(p)
    x, y, z = matrix(3, 1)[:, 0], np.zeros(3), np.zeros(3)
    assert run(library, "tess_operator_apply", d, x, y) == 0
    np.testing.assert_array_equal(y, x[p])
    assert run(library, "tess_operator_solve", d, y, z) == 0
    np.testing.assert_array_equal(z, x)
    a = matrix(3, 3)
    leaves, nodes = (og.TessOperatorDesc * 1)(leaf(a)), (og.TessOperatorNode * 2)(
        og.TessOperatorNode(kind=og.LEAF), og.TessOperatorNode(kind=og.RESOLVENT, count=1)
    )  # fmt: skip
    nodes[1].scalar[0], nodes[1].scalar[1] = 7.0, 1.0
    operands = (ctypes.c_uint32 * 1)(0)
    g = og.TessOperatorGraph(
        leaf_count=1, node_count=2, operand_count=1, root=1, leaves=leaves, nodes=nodes, operands=operands
    )  # fmt: skip
    x, y = matrix(3, 1, np.complex128)[:, 0], np.zeros(3, np.complex128)
    assert run(library, "tess_graph_apply", g, x, y) == 0
    np.testing.assert_allclose(y, np.linalg.solve((7 + 1j) * np.eye(3) - a, x))
    z = np.zeros(3, np.complex128)
    assert run(library, "tess_graph_solve", g, y, z) == 0
    np.testing.assert_allclose(z, x)


def test_wrong_operators_are_explained(library: Any):
    a = matrix(3, 3)
    y = np.zeros(3)
    said = library.tess_last_error
    assert run(library, "tess_operator_solve", leaf(np.ones((3, 3))), np.ones(3), y) == 10
    assert said() == b"operator: it is singular: column 1 has no pivot"
    assert run(library, "tess_operator_apply", leaf(a), np.ones(4), y) == 7
    assert said() == b"operator: x has 4 rows, expected 3"
    assert run(library, "tess_operator_apply", leaf(a), np.ones(3, np.int32), y) == 6
    assert run(library, "tess_operator_apply", leaf(a * 1j), np.ones(3), y) == 6
    assert said() == b"operator: the result is complex, give it a tensor of c64 or c128"
    g = og.OperatorGraph(op.kronecker(*[op.dense(ts.tensor(a))] * 2))
    g.operands[0] = 7
    assert library.tess_graph_validate(ctypes.byref(g.desc), None, None) == 1
    assert said() == b"operator graph: node 1 names node 7, which is not before it"


def damage(library: Any, seeds: range) -> int:
    """Change bytes of descriptors and give them to every function; how many were taken."""
    taken = 0
    for seed in seeds:
        r = random.Random(seed)
        name = r.choice([n for n in OPERATORS if n not in ("fft", "circulant")])
        a, whole = OPERATORS[name]
        g = og.OperatorGraph(a)
        x, y = np.ones(whole.shape[1]), np.zeros(whole.shape[0])
        parts = [g.desc, g.leaves[r.randrange(len(g.leaves))], g.nodes[r.randrange(len(g.nodes))],
            og.tensor(x)]  # fmt: skip
        which = r.randrange(4)
        raw = bytearray(bytes(parts[which]))
        pointers = {0: range(24, 48), 1: (), 2: (), 3: range(160, 168)}[which]
        for _ in range(r.randint(1, 3)):
            at = r.randrange(len(raw))
            inside = (
                which == 1 and (at - 40) % 168 >= 144 and at >= 40
            )  # bytes and address of a payload
            size = (which == 3 and 144 <= at < 152) or (which == 0 and 8 <= at < 24)
            if at in pointers or inside or size:
                continue  # a caller that lies about its memory cannot be found out
            raw[at] ^= 1 << r.randrange(8)
        ctypes.memmove(ctypes.addressof(parts[which]), bytes(raw), len(raw))
        given = parts[3] if which == 3 else og.tensor(x)
        status = library.tess_graph_apply(ctypes.byref(g.desc), ctypes.byref(given),
            ctypes.byref(og.tensor(y)))  # fmt: skip
        assert 0 <= status <= 10
        assert status == 0 or library.tess_last_error()
        taken += status == 0
        library.tess_operator_validate(ctypes.byref(parts[1]))
        library.tess_tensor_validate(ctypes.byref(given))
    return taken


def test_damaged_descriptors_are_refused_or_harmless(library: Any):
    assert 0 < damage(library, range(400)) < 400


@pytest.mark.deep
def test_thousands_of_damaged_descriptors(library: Any):
    assert 0 < damage(library, range(1000, 31000)) < 30000
