"""Pictures of methods: residuals of solvers, passes of a Fourier transform, a derivation and its costs."""

from __future__ import annotations

import contextlib
import io
import math
from collections import Counter
from typing import Any

import numpy as np

import tessera as ts
from tessera import f64, op
from tessera.compile import REGISTRY
from tessera.core.fourier import FourierPlan
from tools.drawing import BLUE, GREEN, GREY, ORANGE, PINK, YELLOW, Drawing

_SIZE = 400


def system() -> tuple[Any, Any]:
    """A diffusion with jumps of the coefficient, positive and badly scaled, and its right-hand side."""
    r = np.random.default_rng(0)
    main = op.full((_SIZE,), 2.02, dtype=f64)
    side = op.full((_SIZE - 1,), -1.0, dtype=f64)
    scale = op.diag(ts.tensor(np.exp(r.uniform(-1, 1, _SIZE))))
    a = (scale @ op.tridiagonal(side, main, side) @ scale).assume("positive")
    return a, ts.tensor(r.normal(size=_SIZE))


def solvers() -> Drawing:
    """Residuals of the solvers on one system, step by step."""
    a, b = system()
    values = np.linalg.eigvalsh(np.asarray(a.todense()))
    bounds = (float(values[0]), float(values[-1]))
    shown: list[tuple[str, Any, dict[str, Any], str]] = [
        ("cg, jacobi", op.cg, {"precondition": op.jacobi(a)}, BLUE),
        ("cg", op.cg, {}, ORANGE),
        ("minres", op.minres, {}, GREEN),
        ("bicgstab", op.bicgstab, {}, PINK),
        ("gmres(restart=40)", op.gmres, {"restart": 40}, YELLOW),
        ("chebyshev", op.chebyshev, {"bounds": bounds}, GREY),
    ]
    d = Drawing(760, 290, "Residuals of solvers")
    words = (
        f"|b - A x| / |b| by step: {_SIZE} unknowns, condition {bounds[1] / bounds[0]:,.0f}, f64"
    )
    d.text(10, 20, words, "head")
    x0, y0, wide, tall, most, floor = 60.0, 40.0, 470.0, 210.0, 320, -10.0
    for power in range(0, -11, -2):
        y = y0 + tall * (1 - power) / 11
        d.text(18, y + 4, f"1e{power}", "note")
        d.parts.append(f'<path class="line" stroke-opacity=".25" d="M{x0} {y:.1f}h{wide}"/>')
    d.line((x0, y0), (x0, y0 + tall), (x0 + wide, y0 + tall))
    size = float(op.norm(b))
    for k, (name, solve, options, colour) in enumerate(shown):
        seen: list[tuple[float, float]] = []

        def tell(step: Any, residual: Any, wanted: Any, seen: list[Any] = seen) -> None:
            seen.append((float(np.asarray(step)), float(np.asarray(residual)) / size))

        _, info = solve(a, b, tol=1e-10, limit=3000, check=False, progress=tell, **options)
        points = [(s, r) for s, r in seen if s <= most]
        path = " ".join(
            f"{x0 + wide * s / most:.0f},{y0 + tall * (1 - max(math.log10(r), floor)) / 11:.0f}"
            for s, r in points[:: 1 if len(points) < 120 else 2]
        )
        d.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        y = 64 + 27 * k
        d.parts.append(f'<path d="M548 {y - 4}h22" stroke="{colour}" stroke-width="3"/>')
        d.text(576, y, name, "code")
        d.text(752 - 6.2 * 10, y, f"{int(info.iterations):>4} steps", "note")
    for step in range(0, most + 1, 80):
        d.text(x0 + wide * step / most, y0 + tall + 18, str(step), "note", middle=True)
    return d


def passes() -> Drawing:
    """Which element goes where in the passes of a transform, and the passes of some lengths."""
    plan = FourierPlan(12)
    d = Drawing(760, 300, "Passes of Fourier transforms")
    d.text(10, 20, "12 elements: " + " then ".join(f"radix {p.radix}" for p in plan.passes), "head")
    step, x0, y0 = 150.0, 24.0, 44.0
    for k, p in enumerate(plan.passes):
        for i in range(p.count):
            for q in range(p.stride):
                bold = i == 0 and q == 0
                for j in range(p.radix):
                    for h in range(p.radix):
                        a = y0 + 20 * (q + p.stride * (i + p.count * j))
                        b = y0 + 20 * (q + p.stride * (p.radix * i + h))
                        colour = (BLUE, ORANGE)[k % 2] if bold else GREY
                        d.parts.append(
                            f'<path d="M{x0 + step * k + 8:.0f} {a:.0f}L{x0 + step * (k + 1) - 8:.0f} '
                            f'{b:.0f}" stroke="{colour}" stroke-opacity="{0.9 if bold else 0.25}" '
                            f'stroke-width="{1.6 if bold else 1}"/>'
                        )
    for k in range(len(plan.passes) + 1):
        for i in range(12):
            d.text(x0 + step * k, y0 + 20 * i + 4, str(i), "code", middle=True)
    d.text(10, 290, "one butterfly of each pass in colour: the result is in order", "note")
    d.text(390, 20, "radices by length", "head")
    for i, n in enumerate((60, 128, 1000, 1024, 65536, 1009)):
        plan, y = FourierPlan(n), 44.0 + 34 * i
        d.text(390, y + 16, str(n), "code")
        x = 440.0
        for p in plan.passes:
            wide = 13 * math.log2(p.radix)
            d.box(
                x,
                y,
                wide - 2,
                22,
                (BLUE, ORANGE, GREEN, PINK, YELLOW)[(8, 4, 5, 3, 2).index(p.radix)],
            )
            d.text(x + wide / 2 - 1, y + 15, str(p.radix), "code", middle=True)
            x += wide
        if plan.chirped:
            d.text(x + 8, y + 15, f"a convolution of {plan.length}", "note")
    return d


def derivation() -> Drawing:
    """A derivation: the forms of an operator, the law of each step, and what each form costs."""
    r = np.random.default_rng(0)
    k, m = (op.dense(ts.tensor(r.standard_normal((8, 8)).astype(np.float32))) for _ in range(2))
    f = op.fft(1024)
    whole = op.kronecker(k, f.H) @ op.kronecker(m, f)
    with contextlib.redirect_stdout(io.StringIO()):
        found = ts.explain(whole)
    forms = [("kron(A, F.H) @ kron(B, F)", "", found.start)]
    names = {
        "mixed product": "kron(A @ B, F.H @ F)",
        "transform and adjoint": "kron(A @ B, 1024 I)",
        "multiple of a right Kronecker factor": "1024 kron(A @ B, I)",
    }
    forms += [(names[s.law.name], f"{s.law.name}: {s.law.equation}", s.whole) for s in found.steps]
    costs = [found.cost(x).flops for _, _, x in forms]
    d = Drawing(760, 24 + 62 * len(forms), "A derivation and its costs")
    d.text(490, 20, "operations for one column", "note")
    d.text(10, 20, "A and B of 8 x 8, F a Fourier transform of 1024", "head")
    for i, ((form, law, _), cost) in enumerate(zip(forms, costs, strict=True)):
        y = 30 + 62 * i
        d.box(10, y, 400, 32, rx=6)
        d.text(22, y + 21, form, "code")
        d.box(490, y + 3, 170 * cost / max(costs), 26, BLUE, rx=2)
        d.text(498 + 170 * cost / max(costs), y + 21, f"{cost:,.0f}", "note")
        if law:
            d.line((30, y - 30), (30, y))
            d.text(42, y - 11, law, "note")
    return d


def levels() -> Drawing:
    """The levels of the compiler, and how many passes of each a target runs."""
    shown = [
        ("graph", "Graph IR", "what is computed", "trace"),
        ("schedule", "Schedule IR", "which kernels, which loops", "fuse, plan"),
        ("tile", "Tile IR", "one instance of a kernel", "lower"),
        ("target", "Target IR", "LLVM or Triton", "emit"),
    ]
    d = Drawing(760, 96 + 58 * len(shown), "The levels of the compiler")
    sources = (
        "tensors, op, nn",
        "linear operators",
        "kernels over tiles",
        "meshes",
        "PyTorch, JAX, ONNX",
    )
    x = 10.0
    for name in sources:
        w = 22 + 6.9 * len(name)
        d.box(x, 10, w, 30, ORANGE, rx=6)
        d.text(x + w / 2, 29, name, "", middle=True)
        x += w + 10
    found = [
        (name, t, Counter(p.level for p in t.passes)) for name, t in REGISTRY.items() if t.listed
    ]  # fmt: skip
    for k, (name, _, _) in enumerate(found):
        d.text(480 + 74 * k, 70, name, "code", middle=True)
    d.text(450, 54, "passes for each target", "note")
    for i, (level, name, what, verb) in enumerate(shown):
        y = 80 + 58 * i
        d.line((50, y - (40 if i == 0 else 18)), (50, y))
        d.text(60, y - 6, verb, "note")
        d.box(10, y, 400, 40, BLUE, rx=6)
        d.text(24, y + 25, name, "head")
        d.text(130, y + 25, what, "note")
        for k, (_, _, counts) in enumerate(found):
            count = counts[level]
            d.box(480 + 74 * k - 30, y, 60, 40, GREEN if count else "", rx=6)
            d.text(480 + 74 * k, y + 25, str(count), "code", middle=True)
    return d
