"""Expressions that algebra makes cheaper: common subexpressions, chains, distributivity, partial access,
structured products and loop-invariant code, after "Benchmarking the Linear Algebra Awareness of
TensorFlow and PyTorch" (arXiv 2202.09888).

    python benchmarks/algebra_awareness.py [--size N] [--times] [--record FILE]

Every case is written once as operators.  `flops` counts the scalar operations of the graph that is
traced from it: as written, and after simplify.  The last column is what a person who knows the algebra
would spend.  --times also runs both.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera.algebra.operator import FUNCTIONS, Operator
from tessera.ir.graph.ir import Graph
from tessera.transform.budget import flops
from tessera.transform.simplify import simplify as simplify_graph

dense, diag, eye, triangular, tridiagonal, kronecker, block = (
    FUNCTIONS[n]
    for n in ("dense", "diag", "eye", "triangular", "tridiagonal", "kronecker", "block")
)
Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """An expression of operators made of tensors, and the least that it has to cost."""

    name: str
    topic: str
    shapes: Callable[[int], list[tuple[int, ...]]]
    operators: Callable[..., list[Operator]]
    least: Callable[[int], float]  # multiply-adds of someone who knows the algebra
    columns: int | None = None  # None: the matrix is wanted, else A @ x with so many columns


def _square(count: int) -> Callable[[int], list[tuple[int, ...]]]:
    return lambda n: [(n, n)] * count


def _s(a: Any, b: Any) -> Operator:
    result: Operator = dense(a).T @ dense(b)
    return result


def _blocks(a: Any, b: Any, c: Any, d: Any) -> list[Operator]:
    return [block([[dense(a), 0], [0, dense(b)]]) @ block([[dense(c)], [dense(d)]])]


def _loop(a: Any, b: Any, *vs: Any) -> list[Operator]:
    return [dense(a) @ dense(b) + dense(v) @ dense(v).T for v in vs]


CASES = (
    Case("S + S, S = A.T B", "common subexpressions", _square(2),
         lambda a, b: [_s(a, b) + _s(a, b)], lambda n: n**3),
    Case("S.T S", "common subexpressions", _square(2),
         lambda a, b: [_s(a, b).T @ _s(a, b)], lambda n: 2 * n**3),
    Case("S.T A.T B without brackets", "common subexpressions", _square(2),
         lambda a, b: [_s(a, b).T @ dense(a).T @ dense(b)], lambda n: 2 * n**3),
    Case("H.T H x", "chains", lambda n: [(n, n), (n, 1)],
         lambda h, x: [dense(h).T @ dense(h) @ dense(x)], lambda n: 2 * n**2),
    Case("y.T H.T H", "chains", lambda n: [(n, n), (n, 1)],
         lambda h, y: [dense(y).T @ dense(h).T @ dense(h)], lambda n: 2 * n**2),
    Case("H.T y x.T H", "chains", lambda n: [(n, n), (n, 1), (n, 1)],
         lambda h, y, x: [dense(h).T @ dense(y) @ dense(x).T @ dense(h)], lambda n: 3 * n**2),
    Case("A B C D, sizes n 8 n 4 n", "chains", lambda n: [(n, 8), (8, n), (n, 4), (4, n)],
         lambda a, b, c, d: [dense(a) @ dense(b) @ dense(c) @ dense(d)],
         lambda n: 8 * n * 4 + n * 8 * 4 + n * n * 4),
    Case("A B + A C", "distributivity", _square(3),
         lambda a, b, c: [dense(a) @ dense(b) + dense(a) @ dense(c)], lambda n: n**3),
    Case("A x - H.T (H x)", "distributivity", lambda n: [(n, n), (n, n)],
         lambda a, h: [dense(a) - dense(h).T @ dense(h)], lambda n: 3 * n**2, columns=1),
    Case("diag blocks", "distributivity", lambda n: [(n // 2, n // 2)] * 2 + [(n // 2, n)] * 2,
         _blocks, lambda n: n**3 / 2),
    Case("(A + B)[i, j]", "partial access", _square(2),
         lambda a, b: [(dense(a) + dense(b))[2:3, 2:3]], lambda n: 1),
    Case("(A B)[i, j]", "partial access", _square(2),
         lambda a, b: [(dense(a) @ dense(b))[2:3, 2:3]], lambda n: n),
    Case("(A B)[i, :]", "partial access", _square(2),
         lambda a, b: [(dense(a) @ dense(b))[2:3, :]], lambda n: n**2),
    Case("diagonal times matrix", "structured products", lambda n: [(n,), (n, n)],
         lambda d, a: [diag(d) @ dense(a)], lambda n: n**2),
    Case("tridiagonal times matrix", "structured products", lambda n: [(n - 1,), (n,), (n - 1,), (n, n)],
         lambda low, d, up, a: [tridiagonal(low, d, up) @ dense(a)], lambda n: 3 * n**2),
    Case("triangle times matrix", "structured products", _square(2),
         lambda a, b: [triangular(a) @ dense(b)], lambda n: n**3 / 2),
    Case("A.T A, which is symmetric", "structured products", _square(1),
         lambda a: [dense(a).T @ dense(a)], lambda n: n**3 / 2),
    Case("identity times matrix", "structured products", _square(1),
         lambda a: [eye(a.shape[0]) @ dense(a) @ eye(a.shape[1])], lambda n: 0),
    Case("A B + v v.T for each v", "loop-invariant code", lambda n: [(n, n)] * 2 + [(n, 1)] * 3,
         _loop, lambda n: n**3 + 3 * n**2),
)  # fmt: skip


def arrays(case: Case, n: int, seed: int = 0) -> Arrays:
    """Random arguments of a case."""
    r = np.random.default_rng(seed)
    return tuple(ts.tensor(r.standard_normal(s).astype(np.float32)) for s in case.shapes(n))


def program(case: Case, aware: bool) -> Callable[..., Any]:
    """The case as a function of tensors: as written, or simplified."""

    def run(*xs: Any) -> Any:
        out = []
        for a in case.operators(*xs):
            if not aware and case.columns is None:
                out.append(_written(a))
            elif case.columns is None:
                out.append(ts.simplify(a, columns=None).todense())
            else:
                out.append(
                    (ts.simplify(a) if aware else dense(_written(a))) @ ts.ones((a.shape[1],))
                )
        return tuple(out)

    return run


def _written(a: Operator) -> Any:
    """The matrix as the formula says: every product is one, from the left to the right."""
    if a.kind == "compose":
        return _written(a.parts[0]) @ _written(a.parts[1])
    if a.kind == "plus":
        return _written(a.parts[0]) + _written(a.parts[1])
    if a.kind == "scale":
        return _written(a.parts[0]) * a.static[0]
    if a.kind in ("adjoint", "transpose"):
        return _written(a.parts[0]).mT
    return a.todense()


def count(f: Callable[..., Any], xs: Arrays) -> float:
    """Scalar operations of the graph of a function; a multiply-add is one."""
    graph: Graph = simplify_graph(ts.trace(f, *xs))
    return sum(flops(n) for n in graph.nodes if n.op.view is None)


def fastest(f: Callable[[], Any], calls: int = 7) -> float:
    """The fastest of several calls in seconds."""
    f()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        f()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(n: int, times: bool) -> list[dict[str, Any]]:
    """Flops of every case, as written and simplified, and seconds if wanted."""
    rows = []
    for case in CASES:
        xs = arrays(case, n)
        written, aware = (count(program(case, flag), xs) for flag in (False, True))
        row = {"topic": case.topic, "case": case.name, "written": written, "simplified": aware,
               "least": case.least(n)}  # fmt: skip
        if times:
            for name, flag in (("seconds written", False), ("seconds simplified", True)):
                f = ts.jit(program(case, flag))
                row[name] = fastest(lambda f=f, xs=xs: f(*xs))
        rows.append(row)
        print(
            "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float | int) else f"{v:32}" for k, v in row.items()
            )
        )
    return rows


def main() -> None:
    """The table, printed and recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    rows = measure(args.size, args.times)
    if args.record:
        where = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        record = {"where": where, "size": args.size, "rows": rows}
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
