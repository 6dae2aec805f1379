"""Expressions that algebra makes cheaper: common subexpressions, chains, distributivity, partial access,
structured products and loop-invariant code, after "Benchmarking the Linear Algebra Awareness of
TensorFlow and PyTorch" (arXiv 2202.09888).

    python benchmarks/algebra_awareness.py [--size N] [--times] [--only TOPIC] [--rounds N] [--record FILE]

Every case is written once, as a formula of matrices.  `flops` counts the scalar operations of the graph
that Tessera traces from it: as written, and after simplify and hoist; then what a person who knows the
algebra would spend.  --times runs both, and the same formula in torch, torch.compile, jax and CoLA, each
peer in a process of its own, where they are installed (BENCHMARK_THREADS threads, 2 unless said), in turn
and again; the fastest round counts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tessera as ts
from tessera.algebra.operator import FUNCTIONS, Operator
from tessera.ir.graph.ir import Graph
from tessera.transform.budget import flops
from tessera.transform.hoist import hoist
from tessera.transform.simplify import simplify as simplify_graph

THREADS = os.environ.get("BENCHMARK_THREADS", "2")
dense = FUNCTIONS["dense"]
# The words of formulas: what a library makes of matrices, diagonals, triangles, blocks.
TESSERA = SimpleNamespace(
    **{n: FUNCTIONS[n] for n in ("dense", "diag", "eye", "triangular", "tridiagonal", "block")}
)
Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """An expression of matrices, and the least that it has to cost."""

    name: str
    topic: str
    shapes: Callable[[int], list[tuple[int, ...]]]
    formula: Callable[..., Any]  # (words, *tensors) -> one expression
    least: Callable[[int], float]  # multiply-adds of someone who knows the algebra
    columns: int | None = None  # None: the matrix is wanted, else A @ x with so many columns
    loop: bool = False  # for each slice of the last tensor, in a loop

    def operators(self, *xs: Any) -> list[Operator]:
        """The expression as operators; of a loop, at its first step."""
        *outer, last = xs
        return [self.formula(TESSERA, *outer, last[0] if self.loop else last)]


def _square(count: int) -> Callable[[int], list[tuple[int, ...]]]:
    return lambda n: [(n, n)] * count


def _s(m: Any, a: Any, b: Any) -> Any:
    return m.dense(a).T @ m.dense(b)


CASES = (
    Case("S + S, S = A.T B", "common subexpressions", _square(2),
         lambda m, a, b: _s(m, a, b) + _s(m, a, b), lambda n: n**3),
    Case("S.T S", "common subexpressions", _square(2),
         lambda m, a, b: _s(m, a, b).T @ _s(m, a, b), lambda n: 2 * n**3),
    Case("S.T A.T B without brackets", "common subexpressions", _square(2),
         lambda m, a, b: _s(m, a, b).T @ m.dense(a).T @ m.dense(b), lambda n: 2 * n**3),
    Case("H.T H x", "chains", lambda n: [(n, n), (n, 1)],
         lambda m, h, x: m.dense(h).T @ m.dense(h) @ m.dense(x), lambda n: 2 * n**2),
    Case("y.T H.T H", "chains", lambda n: [(n, n), (n, 1)],
         lambda m, h, y: m.dense(y).T @ m.dense(h).T @ m.dense(h), lambda n: 2 * n**2),
    Case("H.T y x.T H", "chains", lambda n: [(n, n), (n, 1), (n, 1)],
         lambda m, h, y, x: m.dense(h).T @ m.dense(y) @ m.dense(x).T @ m.dense(h), lambda n: 3 * n**2),
    Case("A B C D, sizes n 8 n 4 n", "chains", lambda n: [(n, 8), (8, n), (n, 4), (4, n)],
         lambda m, a, b, c, d: m.dense(a) @ m.dense(b) @ m.dense(c) @ m.dense(d),
         lambda n: 8 * n * 4 + n * 8 * 4 + n * n * 4),
    Case("A B + A C", "distributivity", _square(3),
         lambda m, a, b, c: m.dense(a) @ m.dense(b) + m.dense(a) @ m.dense(c), lambda n: n**3),
    Case("A x - H.T (H x)", "distributivity", lambda n: [(n, n), (n, n)],
         lambda m, a, h: m.dense(a) - m.dense(h).T @ m.dense(h), lambda n: 3 * n**2, columns=1),
    Case("diag blocks", "distributivity", lambda n: [(n // 2, n // 2)] * 2 + [(n // 2, n)] * 2,
         lambda m, a, b, c, d: m.block([[m.dense(a), 0], [0, m.dense(b)]])
         @ m.block([[m.dense(c)], [m.dense(d)]]),
         lambda n: n**3 / 2),
    Case("(A + B)[i, j]", "partial access", _square(2),
         lambda m, a, b: (m.dense(a) + m.dense(b))[2:3, 2:3], lambda n: 1),
    Case("(A B)[i, j]", "partial access", _square(2),
         lambda m, a, b: (m.dense(a) @ m.dense(b))[2:3, 2:3], lambda n: n),
    Case("(A B)[i, :]", "partial access", _square(2),
         lambda m, a, b: (m.dense(a) @ m.dense(b))[2:3, :], lambda n: n**2),
    Case("diagonal times matrix", "structured products", lambda n: [(n,), (n, n)],
         lambda m, d, a: m.diag(d) @ m.dense(a), lambda n: n**2),
    Case("tridiagonal times matrix", "structured products", lambda n: [(n - 1,), (n,), (n - 1,), (n, n)],
         lambda m, low, d, up, a: m.tridiagonal(low, d, up) @ m.dense(a), lambda n: 3 * n**2),
    Case("triangle times matrix", "structured products", _square(2),
         lambda m, a, b: m.triangular(a) @ m.dense(b), lambda n: n**3 / 2),
    Case("A.T A, which is symmetric", "structured products", _square(1),
         lambda m, a: m.dense(a).T @ m.dense(a), lambda n: n**3 / 2),
    Case("identity times matrix", "structured products", _square(1),
         lambda m, a: m.eye(a.shape[0]) @ m.dense(a) @ m.eye(a.shape[1]), lambda n: 0),
    Case("A B + v v.T for each v", "loop-invariant code", lambda n: [(n, n)] * 2 + [(3, n, 1)],
         lambda m, a, b, v: m.dense(a) @ m.dense(b) + m.dense(v) @ m.dense(v).T,
         lambda n: n**3 + 6 * n**2, loop=True),
    Case("(A B) v for each v", "loop-invariant code", lambda n: [(n, n)] * 2 + [(3, n, 1)],
         lambda m, a, b, v: m.dense(a) @ m.dense(b) @ m.dense(v), lambda n: 6 * n**2, loop=True),
)  # fmt: skip


def arrays(case: Case, n: int, seed: int = 0) -> Arrays:
    """Random arguments of a case."""
    return tuple(ts.tensor(x) for x in plain_arrays(case, n, seed))


def plain_arrays(case: Case, n: int, seed: int = 0) -> Arrays:
    """Random arguments of a case as arrays of NumPy."""
    r = np.random.default_rng(seed)
    return tuple(r.standard_normal(s).astype(np.float32) for s in case.shapes(n))


# Tessera ------------------------------------------------------------------------------------------


def program(case: Case, aware: bool) -> Callable[..., Any]:
    """The case as a function of tensors: as written, or simplified."""

    def one(*xs: Any) -> Any:
        a = case.formula(TESSERA, *xs)
        if case.columns is None:
            return ts.simplify(a, columns=None).todense() if aware else _written(a)
        return (ts.simplify(a) if aware else dense(_written(a))) @ ts.ones((a.shape[1],))

    def run(*xs: Any) -> Any:
        if not case.loop:
            return one(*xs)
        *outer, rows = xs
        return ts.scan(lambda c, v: (c, one(*outer, v)), 0, rows)[1]

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


def count(f: Callable[..., Any], xs: Arrays, moved: bool = True) -> float:
    """Scalar operations of the graph of a function; a multiply-add is one."""
    graph: Graph = simplify_graph(ts.trace(f, *xs))
    nodes = (hoist(graph) if moved else graph).nodes
    return sum(flops(n) for n in nodes if n.op.view is None)


# Peers --------------------------------------------------------------------------------------------


def _rows(xp: Any) -> SimpleNamespace:
    """The words for a library of arrays."""

    def block(rows: Any) -> Any:
        sizes = [
            next(p for p in c if not isinstance(p, int)).shape[1] for c in zip(*rows, strict=True)
        ]
        whole = []
        for r in rows:
            height = next(p for p in r if not isinstance(p, int)).shape[0]
            parts = [
                xp.zeros((height, n)) if isinstance(p, int) else p
                for p, n in zip(r, sizes, strict=True)
            ]
            whole.append(xp.concatenate(parts, 1))
        return xp.concatenate(whole, 0)

    def tridiagonal(low: Any, d: Any, up: Any) -> Any:
        return xp.diag(d) + xp.diag(low, -1) + xp.diag(up, 1)

    return SimpleNamespace(
        dense=lambda a: a,
        diag=xp.diag,
        eye=xp.eye,
        triangular=xp.tril,
        tridiagonal=tridiagonal,
        block=block,
    )


def _torch() -> tuple[Any, Any, Any, Any]:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(int(THREADS))
    return torch, _rows(torch), torch.from_numpy, lambda out: out


def torch_peer(case: Case, xs: Arrays) -> Callable[[], Any]:
    """PyTorch as it is."""
    torch, words, tensor, _ = _torch()
    return _looped(case, words, [tensor(x) for x in xs], torch.ones, torch.stack)


def compiled_peer(case: Case, xs: Arrays) -> Callable[[], Any]:
    """torch.compile with its usual back end."""
    torch, words, tensor, _ = _torch()
    torch._dynamo.reset()  # else it gives up after eight cases, whose functions share a line
    run = torch.compile(lambda *ys: _looped(case, words, ys, torch.ones, torch.stack)())
    given = [tensor(x) for x in xs]
    return lambda: run(*given)


def jax_peer(case: Case, xs: Arrays) -> Callable[[], Any]:
    """jax.jit, a loop by scan."""
    jax: Any = importlib.import_module("jax")
    words = _rows(jax.numpy)

    def whole(*ys: Any) -> Any:
        if not case.loop:
            return _looped(case, words, ys, jax.numpy.ones, jax.numpy.stack)()
        *outer, rows = ys
        return jax.lax.scan(lambda c, v: (c, case.formula(words, *outer, v)), 0, rows)[1]

    run, given = jax.jit(whole), [jax.numpy.asarray(x) for x in xs]
    return lambda: run(*given).block_until_ready()


def cola_peer(case: Case, xs: Arrays) -> Callable[[], Any]:
    """CoLA on PyTorch: operators as in Tessera, then their matrix."""
    torch, _, tensor, _ = _torch()
    ops: Any = importlib.import_module("cola").ops
    # With the versions of today's plum and beartype its own + is ambiguous; this is what it would do.
    ops.LinearOperator.__add__ = lambda a, b: ops.Sum(a, b)
    ops.LinearOperator.__sub__ = lambda a, b: ops.Sum(a, -1 * b)

    def block(rows: Any) -> Any:
        if len(rows[0]) == 1:
            return ops.Concatenated(*(r[0] for r in rows), axis=0)
        return ops.BlockDiag(*(rows[i][i] for i in range(len(rows))))

    words = SimpleNamespace(
        dense=ops.Dense, diag=ops.Diagonal, triangular=lambda a: ops.Triangular(torch.tril(a)),
        tridiagonal=lambda low, d, up: ops.Tridiagonal(low[:, None], d[:, None], up[:, None]),
        eye=lambda n: ops.Identity((n, n), torch.float32), block=block,
    )  # fmt: skip
    return _looped(
        case, words, [tensor(x) for x in xs], torch.ones, torch.stack, lambda a: a.to_dense()
    )


def _looped(
    case: Case, words: Any, xs: Any, ones: Any, stack: Any, matrix: Any = lambda a: a
) -> Callable[[], Any]:
    """The formula, for each slice in a Python loop if it is one."""

    def one(*ys: Any) -> Any:
        a = case.formula(words, *ys)
        return matrix(a) if case.columns is None else a @ ones((a.shape[1],))

    *outer, last = xs
    return (lambda: stack([one(*outer, v) for v in last])) if case.loop else (lambda: one(*xs))


PEERS: dict[str, tuple[str, Callable[[Case, Arrays], Callable[[], Any]]]] = {
    "torch": ("torch", torch_peer), "torch.compile": ("torch", compiled_peer), "jax": ("jax", jax_peer),
    "cola": ("cola", cola_peer),
}  # fmt: skip


def tessera_times(case: Case, n: int) -> dict[str, Any]:
    """Seconds of Tessera, as written and simplified, and its result."""
    xs = arrays(case, n)
    out: dict[str, Any] = {}
    for name, flag in (("tessera written", False), ("tessera", True)):
        f = ts.jit(program(case, flag))
        out[name] = fastest(lambda f=f: f(*xs))
    return out


def fastest(f: Callable[[], Any], calls: int = 7) -> float:
    """The fastest of several calls in seconds."""
    f()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        f()
        times.append(time.perf_counter() - begin)
    return min(times)


def child(peer: str, n: int, only: str) -> None:
    """Print the seconds of one peer for each case, and how far its result is from Tessera's."""
    found = {}
    for case in _wanted(only):
        if peer == "tessera":
            found[case.name] = tessera_times(case, n)
            continue
        run = PEERS[peer][1](case, plain_arrays(case, n))
        want = np.asarray(ts.jit(program(case, False))(*arrays(case, n)))
        gap = np.abs(np.asarray(run()) - want).max() / max(np.abs(want).max(), 1e-30)
        assert gap < 1e-3, (peer, case.name, gap)
        found[case.name] = {peer: fastest(run)}
    print(json.dumps(found))


def _wanted(only: str) -> list[Case]:
    return [c for c in CASES if only in c.topic]


def _in_child(peer: str, n: int, only: str) -> dict[str, dict[str, float]]:
    """Seconds of one peer in a process of its own, case by case."""
    env = {**os.environ, "TESSERA_THREADS": THREADS, "OMP_NUM_THREADS": THREADS, "TESSERA_TARGET": "cpu",
           "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent),
           os.environ.get("PYTHONPATH", "")])}  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--child", peer, "--size", str(n), "--only",
        only]  # fmt: skip
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _merge(rows: list[dict[str, Any]], found: dict[str, dict[str, float]]) -> None:
    """The fastest of the rounds, and how much slower the slowest round was."""
    for row in rows:
        for peer, t in found.get(row["case"], {}).items():
            before = row["rounds"].setdefault(peer, [])
            before.append(t)
            row["seconds"][peer] = min(before)
            row["spread"][peer] = max(before) / min(before)


def measure(
    n: int, times: bool, only: str = "", peers: str = "", rounds: int = 1
) -> list[dict[str, Any]]:
    """Flops of every case, as written and simplified, and seconds of all peers if wanted."""
    rows = []
    for case in _wanted(only):
        xs = arrays(case, n)
        written, aware = (count(program(case, flag), xs, flag) for flag in (False, True))
        rows.append({"topic": case.topic, "case": case.name, "written": written, "simplified": aware,
                     "least": case.least(n), "seconds": {}, "spread": {}, "rounds": {}})  # fmt: skip
    able = [p for p, (package, _) in PEERS.items() if importlib.util.find_spec(package) is not None]
    for _ in range(
        rounds if times else 0
    ):  # peers in turn, so that no one has a loaded machine alone
        for peer in ["tessera", *able]:
            if not peers or peer in peers.split(","):
                _merge(rows, _in_child(peer, n, only))
    return rows


def show(row: dict[str, Any]) -> None:
    """One line of the table."""
    flop = "  ".join(f"{k} {row[k]:.4g}" for k in ("written", "simplified", "least"))
    seconds = "  ".join(f"{k} {v * 1e3:.3f} ms" for k, v in row["seconds"].items())
    print(f"{row['topic']:24}{row['case']:32}{flop}  {seconds}")


def main() -> None:
    """The table, printed and recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--only", default="", help="topics that hold this")
    parser.add_argument("--peers", default="", help="only these, with commas between them")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of all peers in turn; the fastest counts"
    )
    parser.add_argument("--record", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.size, args.only)
        return
    rows = measure(args.size, args.times, args.only, args.peers, args.rounds)
    if args.record:
        rows = merged(args.record, args.size, rows)
    for row in rows:
        show(row)


def merged(path: Path, size: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The record with new rows; times of other peers and cases of the same size stay."""
    names = ("numpy", "torch", "jax", "cola-ml")
    old = json.loads(path.read_text()) if path.exists() else {}
    kept = {r["case"]: r for r in old.get("rows", ()) if old.get("size") == size}
    for r in rows:
        del r["rounds"]
        for what in ("seconds", "spread"):
            r[what] = {**kept.get(r["case"], {}).get(what, {}), **r[what]}
        kept[r["case"]] = r
    ordered = [kept[c.name] for c in CASES if c.name in kept]
    where = {
        "machine": platform.machine(),
        "threads": int(THREADS),
        "python": platform.python_version(),
    }
    where |= {d.name: d.version for d in metadata.distributions() if d.name in names}
    path.write_text(json.dumps({"where": where, "size": size, "rows": ordered}, indent=1) + "\n")
    return ordered


if __name__ == "__main__":
    main()
