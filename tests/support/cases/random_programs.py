"""Random whole programs of what the compiler knows, each a function of one seed.

A program is a function of tensors and inputs for it: chains, broadcasts, views, folds, norms, contractions
with what follows them, attention, gathers, scatters, scans, sorts, transforms, convolutions, casts, and
gradients of these; sizes 0, 1 and primes, sometimes symbolic; inputs with any strides.  Numbers stay so tame
that two ways to compute them lie close together, and what jumps (comparisons, whole parts, orders) is asked
only of values that every way gives exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import DType, bf16, bool_, c64, f16, f32, f64, i8, i32, i64, u8
from tessera.ir.graph.ir import Graph
from tests.support.cases.random_steps import Item, Source, Steps

LONG = (127, 131, 251, 257, 511, 513, 1031, 1543)
FLOATS = (f32, f32, f32, f32, f64, f16, bf16)
WHOLE = (i8, u8, i32, i64)


@dataclass(frozen=True)
class Case:
    """A program: its graph, and inputs for it at one or two sets of sizes."""

    seed: int
    kind: str
    graph: Graph
    inputs: tuple[list[Any], ...]

    def __repr__(self) -> str:
        shapes = [[f"{x.dtype}{list(x.shape)}" for x in xs] for xs in self.inputs]
        return f"program({self.seed}), {self.kind}, {shapes}\n{self.graph.text}"


def program(seed: int, source: Source | None = None) -> Case:
    """The program of a seed."""
    return _Maker(seed, random.Random(seed) if source is None else source).case()


class _Maker(Steps):
    def __init__(self, seed: int, source: Source):
        super().__init__(source)
        self.seed = seed
        self.types: list[tuple[DType, tuple[Any, ...]]] = []
        self.smooth = False  # whether a derivative will be taken

    # The whole

    def case(self) -> Case:
        kind = self.pick([k for k, weight in KINDS.items() for _ in range(weight)])
        body: Callable[..., Any] = getattr(self, kind)()
        specs = [Tensor[(*shape, d)] for d, shape in self.types]
        if self.gradient(kind):
            kind = f"gradient of {kind}"
            body = self.differentiated(body)
        graph = ts.trace(body, *specs)
        data = np.random.default_rng(self.seed)
        return Case(self.seed, kind, graph, tuple(self.data(env, data) for env in self.envs))

    def gradient(self, kind: str) -> bool:
        """Whether the program becomes the gradient of what it was."""
        floats = [d for d, _ in self.types if d.kind == "f"]
        fits = kind in ("norm", "contraction", "attention", "convolution") and len(floats) > 0
        self.smooth = fits and self.envs == [{}] and self.often(0.15)
        return self.smooth

    def differentiated(self, body: Callable[..., Any]) -> Callable[..., Any]:
        numbers = [i for i, (d, _) in enumerate(self.types) if d.kind == "f"]

        def total(*xs: Any) -> Any:
            outs = body(*xs)
            parts = [op.sum(op.cast(y, f32)) for y in outs if y.dtype.kind == "f"]
            return sum(parts[1:], parts[0])

        return ts.grad(total, tuple(numbers))

    # Inputs

    def data(self, env: dict[str, int], rng: Any) -> list[Any]:
        shapes = [tuple(env.get(n, n) for n in shape) for _, shape in self.types]
        drawn = [self.numbers(d, s, rng) for (d, _), s in zip(self.types, shapes, strict=True)]
        return [self.strided(x) for x in drawn]

    def numbers(self, d: DType, shape: tuple[int, ...], rng: Any) -> Any:
        if d.kind == "b":
            return rng.random(shape) < 0.5
        if d.kind in "iu":
            return rng.integers(0 if d.kind == "u" else -7, 8, shape).astype(d.np)
        eighths = rng.integers(-16, 17, shape) / 8 + 0.0
        if d.kind == "c":
            return (eighths + 1j * rng.permutation(eighths.reshape(-1)).reshape(shape)).astype(d.np)
        return eighths.astype(d.np)

    def strided(self, x: Any) -> Any:
        """The same numbers with other strides."""
        how = self.pick(("plain", "plain", "turned", "gaps", "reversed", "inside"))
        if how == "turned" and x.ndim:
            return np.asfortranarray(x)
        if how == "gaps" and x.ndim:
            wide = np.repeat(x, 3, axis=-1)
            return wide[..., 1::3]
        if how == "reversed" and x.ndim:
            return np.ascontiguousarray(x[::-1])[::-1]
        if how == "inside" and x.ndim:
            around = np.pad(x, [(1, 2)] * x.ndim)
            return around[tuple(slice(1, 1 + n) for n in x.shape)]
        return x

    def input(self, d: DType, *shape: Any) -> int:
        self.types.append((d, shape))
        return len(self.types) - 1

    def shape(self, most: int | None = None, low: int = 1, high: int = 3) -> tuple[int, ...]:
        dims: list[int] = []
        most = most or self.most
        for _ in range(self.s.randint(low, high)):
            room = most // max(int(np.prod(dims, dtype=int)), 1)
            long = [n for n in LONG if n <= room]
            dims.append(self.pick(long) if long and self.often(0.15) else self.size(room))
        if self.often(0.04):
            dims[self.s.randint(0, len(dims) - 1)] = 0
        self.pick_order(dims)
        return tuple(dims)

    def pick_order(self, dims: list[int]) -> None:
        for i in range(len(dims) - 1, 0, -1):
            j = self.s.randint(0, i)
            dims[i], dims[j] = dims[j], dims[i]

    def symbolic(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """The shape with some axes of unknown size, and two sets of sizes."""
        if 0 in shape or not self.often(0.3):
            return shape
        names = [n if self.often(0.6) else None for n in ("N", "M", "K")[: len(shape)]]
        kept = {n: s for n, s in zip(names, shape, strict=True) if n is not None}
        other = {n: max(1, self.size(max(2 * s, 3))) for n, s in kept.items()}
        if not kept or int(np.prod([*other.values(), *shape], dtype=float)) > self.most * 4:
            return shape
        self.envs = [kept, other]
        return tuple(n or s for n, s in zip(names, shape, strict=True))

    # Programs

    def pooled(self, names: Sequence[str], count: int) -> Callable[..., Any]:
        """A body that runs random steps on its arguments."""

        def body(*xs: Any) -> Any:
            self.items = [Item(x, True) for x in xs]
            return tuple(self.steps(count, names))

        return body

    def mixed(self) -> Callable[..., Any]:
        shape = self.symbolic(self.shape(self.most // 2))
        self.input(self.pick((*FLOATS, *WHOLE, bool_)), *shape)
        for _ in range(self.s.randint(0, 2)):
            part = shape[self.s.randint(0, len(shape)) :]
            self.input(self.types[0][0] if self.often(0.6) else self.pick(FLOATS + WHOLE), *part)
        everything = ("unary", "unary", "arithmetic", "arithmetic", "compare", "select", "cast", "view",
                      "view", "pad", "concat", "fold", "fold", "normed", "product", "picked",
                      "scattered", "scanned", "sorted")  # fmt: skip
        return self.pooled(everything, self.s.randint(2, 8))

    def chain(self) -> Callable[..., Any]:
        shape = self.symbolic(self.shape())
        d = self.pick(FLOATS)
        self.input(d, *shape)
        self.input(d, *shape[self.s.randint(0, len(shape)) :])
        return self.pooled(
            ("unary", "arithmetic", "arithmetic", "view", "cast"), self.s.randint(2, 7)
        )

    def folds(self) -> Callable[..., Any]:
        shape = self.symbolic(self.shape())
        self.input(self.pick(FLOATS + WHOLE), *shape)
        return self.pooled(("unary", "fold", "fold", "arithmetic", "view"), self.s.randint(2, 5))

    def norm(self) -> Callable[..., Any]:
        shape = self.symbolic(self.shape(low=2))
        d = self.pick(FLOATS)
        self.input(d, *shape)
        self.input(d, shape[-1])
        count = self.s.randint(1, 3)

        def body(x: Any, g: Any) -> Any:
            self.items = [Item(x, True), Item(g, True)]
            self.steps(count, ("normed", "unary", "arithmetic"))
            y = self.items[-1].value
            if not self.smooth and self.often(0.3):
                return y, op.sum(x, self.axis(x))
            return (y,)

        return body

    def contraction(self) -> Callable[..., Any]:
        batch = tuple(self.size(5) for _ in range(self.pick((0, 0, 0, 1, 2))))
        m, n, k = (self.size(37 if self.most > 100 else 17) for _ in range(3))
        if self.most > 300 and self.often(0.4):
            k = self.pick((511, 513, 1031))
            m, n = self.size(7), self.size(7)
        if self.often(0.05):
            m, n, k = (0 if self.often(0.4) else x for x in (m, n, k))
        while max(m, 1) * n * k * int(np.prod(batch, dtype=int)) > 10 * self.most:
            m, n, k = m // 2, max(n // 2, 1), k if max(m, n) > 1 else k // 2
        d = self.pick((f32, f32, f32, f64, bf16, f16))
        left_turned, right_turned = self.often(0.4), self.often(0.4)
        dims: tuple[Any, ...] = (m, n, k)
        if not batch and 0 not in dims and self.often(0.25):
            dims = tuple(s if self.often(0.6) else x for s, x in zip("MNK", dims, strict=True))
            self.envs = [
                {s: x for s, x in zip(dims, (m, n, k), strict=True) if isinstance(s, str)},
                {s: self.size(23) for s in dims if isinstance(s, str)},
            ]
        lead = batch if self.often(0.7) else ()
        m_, n_, k_ = dims
        self.input(d, *batch, *((k_, m_) if left_turned else (m_, k_)))
        self.input(d, *lead, *((n_, k_) if right_turned else (k_, n_)))
        self.input(d, n_)

        def body(a: Any, b: Any, c: Any) -> Any:
            a = op.swapaxes(a, -1, -2) if left_turned else a
            b = op.swapaxes(b, -1, -2) if right_turned else b
            y = op.matmul(a, b)
            self.items = [Item(c, True), Item(y * (0.25 if self.often(0.5) else 1.0), False)]
            more = (
                ("unary", "arithmetic")
                if self.smooth
                else ("unary", "arithmetic", "fold", "normed", "view")
            )
            return (*self.steps(self.s.randint(1, 4), more), *([y] if self.often(0.2) else []))

        return body

    def attention(self) -> Callable[..., Any]:
        batch = tuple(self.pick((1, 2, 3)) for _ in range(self.s.randint(0, 2)))
        q, k = (self.size(37 if self.most > 100 else 13) for _ in range(2))
        if self.most > 1000 and self.often(0.4):
            q = self.pick((127, 131))
            k = self.pick((61, 131))
            batch = batch[:1]
        d, e = self.pick((1, 3, 8, 16)), self.pick((1, 5, 16))
        dtype = self.pick((f32, f32, f32, f64, bf16))
        dims: tuple[Any, ...] = (q, k)
        if self.often(0.2):
            dims = ("Q", "K")
            self.envs = [{"Q": q, "K": k}, {"Q": self.size(23), "K": self.size(23)}]
        for part in ((dims[0], d), (dims[1], d), (dims[1], e)):
            self.input(dtype, *batch, *part)
        form = self.pick(("softmax", "softmax", "causal", "causal", "at most", "above", "zeroed", "plain",
                          "scored"))  # fmt: skip
        offset, scale = self.pick((0, 1, 2, 5)), self.pick((1.0, 0.25, 0.5))

        def body(q: Any, k: Any, v: Any) -> Any:
            if form == "causal" and len(batch) > 0 and self.often(0.5):
                return (op.attention(q, k, v, causal=True),)
            s = op.matmul(q, op.swapaxes(k, -1, -2)) * scale
            row, column = (op.iota(s.shape[-2:], axis, i64) for axis in (0, 1))
            seen: dict[str, Callable[[], Any]] = {
                "causal": lambda: row >= column, "zeroed": lambda: row >= column,
                "at most": lambda: column <= row + offset,
                "above": lambda: row + offset + 1 > column,
            }  # fmt: skip
            if form in seen:
                s = op.where(seen[form](), s, 0.0 if form == "zeroed" else float("-inf"))
            p = {"plain": lambda x: x, "zeroed": lambda x: x, "scored": op.tanh}.get(
                form, self.pick((op.softmax, op.softmax_safe, _weights, _weights))
            )(s)
            y = op.matmul(p, v)
            return self.with_more(y, s, p) if not self.smooth else (y,)

        return body

    def with_more(self, y: Any, s: Any, p: Any) -> tuple[Any, ...]:
        """What attention gives, alone or with what stands on its way."""
        match self.pick(("alone", "alone", "alone", "after", "weights", "sums", "scores", "again")):
            case "after":
                return (op.tanh(y),)
            case "weights":
                return (y, p)
            case "sums":
                return (y, op.max(p, -1), op.sum(p, -1))
            case "scores":
                return (y, op.tanh(s) + 1.0)
            case "again":
                return (
                    op.matmul(
                        p, op.sin(y[..., :1, :]) + op.cumsum(op.swapaxes(p, -1, -2), -1)[..., :1]
                    ),
                )
        return (y,)

    def convolution(self) -> Callable[..., Any]:
        ndim = self.pick((1, 2, 2))
        groups = self.pick((1, 1, 1, 2, 3))
        c, o = groups * self.pick((1, 2, 3)), groups * self.pick((1, 3, 5))
        space = tuple(self.pick((1, 2, 5, 7, 11)) for _ in range(ndim))
        window = tuple(self.pick((1, 2, 3)) for _ in range(ndim))
        stride, dilation, around = self.pick((1, 1, 2)), self.pick((1, 1, 2)), self.pick((0, 1, 2))
        if any(n + 2 * around < (w - 1) * dilation + 1 for n, w in zip(space, window, strict=True)):
            around, dilation, window = 0, 1, (1,) * ndim
        d = self.pick((f32, f32, f64, bf16))
        self.input(d, self.pick((1, 2, 3)), c, *space)
        self.input(d, o, c // groups, *window)
        self.input(d, o)

        def body(x: Any, w: Any, b: Any) -> Any:
            y = op.conv(x, w, b if self.often(0.5) else None, stride, around, dilation, groups)
            return (op.relu(y * 0.5) if self.often(0.5) and not self.smooth else y,)

        return body

    def transform(self) -> Callable[..., Any]:
        n, other = self.pick((1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 17, 30, 32, 49, 60)), self.size(23)
        shape = (n, other) if self.often(0.5) else (other, n)
        axis = 0 if shape[0] == n else 1
        real = self.often(0.4)
        self.input(f32 if real else c64, *shape)
        norm = self.pick((None, "ortho", "forward"))

        def body(x: Any) -> Any:
            if real:
                y = op.rfft(x, axis=axis, norm=norm)
                return (op.irfft(y * y, n, axis, norm), op.real(y)) if n > 1 else (op.real(y),)
            y = self.pick((op.fft, op.ifft))(x, axis=axis, norm=norm)
            if self.often(0.4):
                y = op.fftn(x, norm=norm)
            y = y * op.conj(y) if self.often(0.5) else y + x
            return (op.ifft(y, axis=axis), op.imag(y)) if self.often(0.5) else (y,)

        return body

    def places(self) -> Callable[..., Any]:
        """Gathers, scatters, sorts and scans, with what surrounds them."""
        shape = self.symbolic(self.shape(self.most // 4, 1, 2))
        self.input(self.pick(FLOATS + WHOLE), *shape)
        self.input(self.pick((i32, i64)), self.size(19))
        names = (
            "picked",
            "scattered",
            "scanned",
            "sorted",
            "concat",
            "pad",
            "arithmetic",
            "fold",
            "view",
        )
        return self.pooled(names, self.s.randint(1, 4))


def _weights(s: Any) -> Any:
    """Weights that are 0 where a score is -inf, in the form that attention has."""
    top = op.max(s, -1, keepdims=True)
    return op.exp(s - op.where(top == float("-inf"), 0.0, top))


KINDS = {"mixed": 5, "chain": 3, "folds": 4, "norm": 3, "contraction": 4, "attention": 4,
         "convolution": 2, "transform": 1, "places": 3}  # fmt: skip
