"""Operators beside CoLA, linear_operator, and the same algebra written by hand in NumPy and SciPy.

    python benchmarks/operators.py [--small] [--only NAME] [--rounds N] [--record FILE]

BENCHMARK_THREADS says how many threads each peer has (2 unless said otherwise).

Every (case, peer) runs in a process of its own, peers in turn, and the round is repeated; a row shows
the fastest time, the spread of the rounds, the ratio of the best other peer to Tessera, and how far
Tessera's result is from the others'.  `hand` is Tessera's ops without an operator.  CoLA (cola-ml) and
linear_operator take part where they are installed and can do what is asked: CoLA has no circulants,
and determinants of low rank on a diagonal only by chance.
"""

from __future__ import annotations

import argparse
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
from typing import Any

import numpy as np

THREADS = os.environ.get("BENCHMARK_THREADS", "2")
RNG = np.random.default_rng(0)
Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One problem: its size, a small size to try the script with, and how often it is timed."""

    make: Callable[[int], dict[str, Callable[[], Run]]]  # size -> peers
    size: int
    small: int
    repeat: int


def available(**peers: Callable[[], Run]) -> dict[str, Callable[[], Run]]:
    """The peers that are packages and are installed."""
    return {k: v for k, v in peers.items() if importlib.util.find_spec(k) is not None}


def torch_tensor(x: Any) -> Any:
    """An array as a tensor of PyTorch, which has the threads of the others."""
    import torch

    torch.set_num_threads(int(THREADS))
    return torch.from_numpy(np.asarray(x))


# The problems: each peer is prepared outside of the clock and returns what is timed -----------------


def kronecker(n: int) -> dict[str, Callable[[], Run]]:
    a, b = (RNG.normal(size=(n, n)).astype(np.float32) / n**0.5 for _ in range(2))
    x = RNG.normal(size=n * n).astype(np.float32)

    def tessera() -> Run:
        import tessera as ts
        from tessera import op

        big = op.kronecker(op.dense(ts.tensor(a)), op.dense(ts.tensor(b)))
        run, v = ts.jit(lambda k, v: k @ v), ts.tensor(x)
        return lambda: run(big, v)

    def hand() -> Run:
        import tessera as ts
        from tessera import op

        run = ts.jit(lambda a, b, v: op.reshape(a @ op.reshape(v, (n, n)) @ b.T, (n * n,)))
        left, right, v = ts.tensor(a), ts.tensor(b), ts.tensor(x)
        return lambda: run(left, right, v)

    def cola() -> Run:
        import cola

        left, right, v = map(torch_tensor, (a, b, x))
        big = cola.ops.Kronecker(cola.ops.Dense(left), cola.ops.Dense(right))
        return lambda: big @ v

    def linear_operator() -> Run:
        from linear_operator import operators as lo

        left, right, v = map(torch_tensor, (a, b, x))
        big = lo.KroneckerProductLinearOperator(
            lo.DenseLinearOperator(left), lo.DenseLinearOperator(right)
        )
        return lambda: big @ v

    plain = {"tessera": tessera, "hand": hand, "numpy": lambda: lambda: a @ x.reshape(n, n) @ b.T}
    return plain | available(cola=cola, linear_operator=linear_operator)


def circulant(n: int) -> dict[str, Callable[[], Run]]:
    c = RNG.normal(size=n).astype(np.float32) / n**0.5
    c[1:] += c[:0:-1]  # symmetric, since linear_operator has only such
    x = RNG.normal(size=n).astype(np.float32)

    def tessera() -> Run:
        import tessera as ts
        from tessera import op

        run, v, ring = ts.jit(lambda a, v: a @ v), ts.tensor(x), op.circulant(ts.tensor(c))
        return lambda: run(ring, v)

    def scipy() -> Run:
        from scipy import fft

        workers = int(THREADS)
        return lambda: fft.irfft(
            fft.rfft(c, workers=workers) * fft.rfft(x, workers=workers), n, workers=workers
        )

    def linear_operator() -> Run:
        from linear_operator import operators as lo

        ring, v = lo.ToeplitzLinearOperator(torch_tensor(c)), torch_tensor(x)
        return lambda: ring @ v

    return {"tessera": tessera, "scipy": scipy} | available(linear_operator=linear_operator)


def low_rank_plus_diagonal(n: int) -> dict[str, Callable[[], Run]]:
    d, u = 1 + RNG.random(n), RNG.normal(size=(n, 4))
    b = RNG.normal(size=n)

    def tessera() -> Run:
        import tessera as ts
        from tessera import op

        a = op.diag(ts.tensor(d)) + op.low_rank(ts.tensor(u))
        run, v = ts.jit(lambda a, v: (a.solve(v), a.logdet())), ts.tensor(b)
        return lambda: run(a, v)

    def numpy() -> Run:
        def run() -> Any:
            scaled = u / d[:, None]
            core = np.eye(4) + u.T @ scaled
            x = b / d - scaled @ np.linalg.solve(core, u.T @ (b / d))
            return x, np.log(d).sum() + np.linalg.slogdet(core)[1]

        return run

    def linear_operator() -> Run:
        from linear_operator import operators as lo

        scale, factor, v = map(torch_tensor, (d, u, b))

        def run() -> Any:  # made anew: it keeps the factorisation
            low = lo.LowRankRootLinearOperator(factor)
            a = lo.LowRankRootAddedDiagLinearOperator(low, lo.DiagLinearOperator(scale))
            return a.solve(v), a.logdet()

        return run

    return {"tessera": tessera, "numpy": numpy} | available(linear_operator=linear_operator)


def force(side: int) -> Any:
    """The right-hand side of Poisson's equation on a grid."""
    t = np.arange(1, side + 1) / (side + 1)
    return np.kron(t * (1 - t), np.exp(t)) + RNG.normal(size=side * side) * 0.1


def poisson(side: int) -> dict[str, Callable[[], Run]]:
    rhs = force(side)

    def tessera() -> Run:
        import tessera as ts
        from tessera import f64, op

        a = (-op.laplacian((side, side), dtype=f64)).assume("positive")
        run = ts.jit(lambda a, b: op.cg(a, b, tol=1e-8, limit=20 * side, progress=True)[0])
        b = ts.tensor(rhs)
        return lambda: run(a, b)

    def scipy() -> Run:
        from scipy import sparse
        from scipy.sparse import linalg

        line = sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (side, side))
        a = sparse.kronsum(line, line).tocsr()
        return lambda: linalg.cg(a, rhs, rtol=1e-8, maxiter=20 * side)[0]

    def cola() -> Run:
        import cola
        import torch

        b, ones = torch_tensor(rhs), torch.ones(side, 1, dtype=torch.float64)
        line = cola.ops.Tridiagonal(-ones[1:], 2 * ones, -ones[1:])
        a = cola.PSD(cola.ops.KronSum(line, line))
        solver = cola.CG(tol=1e-8, max_iters=20 * side)
        return lambda: cola.inv(a, solver) @ b

    small = side <= 256  # CoLA takes minutes on larger grids
    return {"tessera": tessera, "scipy": scipy} | (available(cola=cola) if small else {})


def poisson_by_law(side: int) -> dict[str, Callable[[], Run]]:
    rhs = force(side)

    def tessera() -> Run:
        import tessera as ts
        from tessera import f64, op

        a = -op.laplacian((side, side), dtype=f64)
        run, b = ts.jit(lambda a, b: a.solve(b)), ts.tensor(rhs)
        return lambda: run(a, b)

    def scipy() -> Run:
        from scipy import fft

        workers = int(THREADS)
        line = 2 - 2 * np.cos(np.pi * np.arange(1, side + 1) / (side + 1))
        values = line[:, None] + line

        def run() -> Any:
            waves = fft.dstn(rhs.reshape(side, side), type=1, workers=workers)
            return fft.idstn(waves / values, type=1, workers=workers).reshape(-1)

        return run

    return {"tessera": tessera, "scipy": scipy}


CASES = {
    "kronecker 1000 x 1000": Case(kronecker, 1000, 60, 100),
    "circulant 2^22": Case(circulant, 1 << 22, 1 << 10, 10),
    "low rank + diagonal 10^7": Case(low_rank_plus_diagonal, 10_000_000, 2000, 3),
    "Poisson 256 x 256 by cg": Case(poisson, 256, 16, 2),
    "Poisson 1024 x 1024 by cg": Case(poisson, 1024, 24, 1),
    "Poisson 1024 x 1024 by law": Case(poisson_by_law, 1024, 24, 5),
}


# One peer in a process of its own -------------------------------------------------------------------


def measured(name: str, peer: str, small: bool) -> dict[str, Any]:
    """Times of one peer, and a short sketch of its result."""
    case = CASES[name]
    run = case.make(case.small if small else case.size)[peer]()
    times = []
    if peer in ("tessera", "hand") or case.repeat > 1:
        out = run()  # compiles
    for _ in range(1 if small else case.repeat):
        start = time.perf_counter()
        out = run()
        times.append(time.perf_counter() - start)
    parts = out if isinstance(out, tuple) else (out,)
    flat = np.concatenate([np.asarray(p, np.float64).reshape(-1) for p in parts])
    places = np.linspace(0, flat.size - 1, 64).astype(int)
    return {"times": times, "sketch": [*flat[places], np.linalg.norm(flat)]}


def child(name: str, peer: str, small: bool) -> dict[str, Any]:
    env = {**os.environ, "TESSERA_THREADS": THREADS, "OPENBLAS_NUM_THREADS": THREADS,
        "OMP_NUM_THREADS": THREADS,
           "TESSERA_TARGET": "cpu", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent),
           os.environ.get("PYTHONPATH", "")])}  # fmt: skip
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        "--child",
        name,
        "--peer",
        peer,
        *(["--small"] * small),
    ]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, rounds: int, small: bool) -> dict[str, Any]:
    """All peers of a case, in turn."""
    case = CASES[name]
    peers = case.make(case.small if small else case.size)
    found: dict[str, list[dict[str, Any]]] = {p: [] for p in peers}
    for _ in range(rounds):
        for peer, results in found.items():
            results.append(child(name, peer, small))
    best = {p: min(t for r in rs for t in r["times"]) for p, rs in found.items()}
    spread = {p: max(min(r["times"]) for r in rs) / best[p] for p, rs in found.items()}
    mine = np.array(found["tessera"][0]["sketch"])
    others = [p for p in found if p != "tessera"]
    gap = max(np.abs(mine - np.array(found[p][0]["sketch"])).max() for p in others)
    return {
        "case": name, "seconds": best, "spread": spread,
        "ratio": min(best[p] for p in others) / best["tessera"],
        "difference": float(gap / np.abs(mine).max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny problems, to try the script")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.child, options.peer, options.small)))
        return
    rows = []
    for name in CASES:
        if options.only not in name:
            continue
        r = row(name, options.rounds, options.small)
        rows.append(r)
        times = "  ".join(f"{p} {t * 1e3:.2f} ms" for p, t in r["seconds"].items())
        print(f"{name:26} {times}  ratio {r['ratio']:.2f}  difference {r['difference']:.1e}")
    if options.record:
        names = ("numpy", "scipy", "torch", "cola-ml", "linear_operator")
        versions = {d.name: d.version for d in metadata.distributions() if d.name in names}
        machine = {
            "machine": platform.machine(),
            "threads": int(THREADS),
            "python": platform.python_version(),
        }
        if options.record.exists():  # rows of other cases stay
            told = {r["case"] for r in rows}
            rows += [
                r for r in json.loads(options.record.read_text())["rows"] if r["case"] not in told
            ]
        options.record.write_text(
            json.dumps({**machine, "versions": versions, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
