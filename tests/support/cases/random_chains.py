"""Random programs that are aimed at one part of the compiler each, with what NumPy says of them.

views       chains of views (flips, rolls, reshapes, slices with steps, windows, diagonals, joins), then a use
epilogues   products and folds, followed by every read that can follow them: by data, by steps, backwards
sharing     intermediates that die at transforms, sorts, scans, norms and rows of odd sizes

A chain is a function of its seed.  The steps of views are written twice, once with NumPy's own functions;
the other kinds are checked against the references of the ops, one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, mul
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.verify import verify
from tests.support.runners.levels import by_schedule, prepared

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)
Function = Callable[..., Any]


@dataclass(frozen=True)
class Chain:
    """A program of some inputs: what the compiler sees, what NumPy sees, and its text."""

    text: str
    inputs: tuple[Any, ...]
    traced: Function  # of tensors
    wanted: Function  # of arrays


def chain(kind: str, seed: int) -> Chain:
    """The program of a seed."""
    return KINDS[kind](random.Random(f"{kind} {seed}"))


def failures(chains: Sequence[Chain], by: str = "code") -> list[str]:
    """What is wrong with the results of these programs, compiled as one.

    By machine code, or (quickly) by the Schedule IR, which is verified and interpreted.
    """
    ends = np.cumsum([0, *(len(c.inputs) for c in chains)])
    flat = [ts.tensor(x) for c in chains for x in c.inputs]

    def whole(*xs: Any) -> tuple[Any, ...]:
        return tuple(
            c.traced(*xs[a:b]) for c, a, b in zip(chains, ends, ends[1:], strict=False)
        )  # fmt: skip

    if by == "code":
        outs = [y.numpy() for y in ts.jit(whole)(*flat)]
    else:
        p = lower(prepared(ts.trace(whole, *flat)))
        verify(p)
        outs = by_schedule(p, [x.numpy() for x in flat])
    found = []
    for c, got in zip(chains, outs, strict=True):
        with override(target="numpy"):
            wanted = np.asarray(c.wanted(*c.inputs))
        if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=1e-9, atol=1e-9):
            found.append(c.text)
    return found


def by_references(f: Function) -> Function:
    """A function of arrays, each op by its own reference."""
    return lambda *xs: f(*map(ts.tensor, xs)).numpy()


# Views ------------------------------------------------------------------------------------------

Step = tuple[str, Function, Function]  # its text, on tensors, on arrays


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _reshape(r: random.Random, shape: tuple[int, ...]) -> Step:
    left, out = int(np.prod(shape)), []
    for _ in range(r.randint(0, 3)):
        out.append(r.choice(_divisors(left)))
        left //= out[-1]
    to = tuple(r.sample([*out, left], len(out) + 1))
    return f"reshape{to}", lambda x: op.reshape(x, to), lambda x: np.reshape(x, to)


def _flip(r: random.Random, shape: tuple[int, ...]) -> Step:
    axes = tuple(a for a in range(len(shape)) if r.random() < 0.6)
    return f"flip{axes}", lambda x: op.flip(x, axes) if axes else x, lambda x: np.flip(x, axes)


def _roll(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis, by = r.randrange(len(shape)), r.randint(-9, 9)
    return f"roll({by}, {axis})", lambda x: op.roll(x, by, axis), lambda x: np.roll(x, by, axis)


def _transpose(r: random.Random, shape: tuple[int, ...]) -> Step:
    axes = tuple(r.sample(range(len(shape)), len(shape)))
    return f"transpose{axes}", lambda x: op.transpose(x, axes), lambda x: np.transpose(x, axes)


def _slice(r: random.Random, shape: tuple[int, ...]) -> Step:
    key: list[Any] = []
    for n in shape:
        step = r.choice((1, 1, 2, 3, -1, -2))
        a, b = sorted((r.randint(0, n), r.randint(0, n)))
        a, b = (a, b) if b > a else (0, n)
        part = slice(a, b, step) if step > 0 else slice(b - 1, a - 1 if a else None, step)
        key.append(r.choice((part, part, slice(None), r.randrange(n) if n > 1 else slice(None))))
    k = tuple(key)
    return f"[{k}]", lambda x: x[k], lambda x: x[k]


def _pad(r: random.Random, shape: tuple[int, ...]) -> Step:
    widths = [(r.randint(0, 2), r.randint(0, 2)) for _ in shape]
    return f"pad{widths}", lambda x: op.pad(x, widths), lambda x: np.pad(x, widths)


def _broadcast(r: random.Random, shape: tuple[int, ...]) -> Step:
    to = (r.choice((1, 2, 3)), *(n if n > 1 else r.choice((1, 3)) for n in shape))
    return f"broadcast{to}", lambda x: op.broadcast_to(x, to), lambda x: np.broadcast_to(x, to)


def _repeat(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis, k = r.randrange(len(shape)), r.choice((2, 3))
    return f"repeat({k}, {axis})", lambda x: op.repeat(x, k, axis), lambda x: np.repeat(x, k, axis)


def _tile(r: random.Random, shape: tuple[int, ...]) -> Step:
    k = tuple(r.choice((1, 1, 2, 3)) for _ in shape)
    return f"tile{k}", lambda x: op.tile(x, k), lambda x: np.tile(x, k)


def _concat(r: random.Random, shape: tuple[int, ...]) -> Step:
    axis = r.randrange(len(shape))
    return (
        f"concat with its flip({axis})",
        lambda x: op.concat([x, op.flip(x, axis)], axis=axis),
        lambda x: np.concatenate([x, np.flip(x, axis)], axis=axis),
    )


def _diagonal(r: random.Random, shape: tuple[int, ...]) -> Step:
    if len(shape) < 2:
        return _flip(r, shape)
    k = r.randint(-shape[-2] + 1, shape[-1] - 1)
    return (
        f"diagonal({k})",
        lambda x: op.diagonal(x, k, -2, -1),
        lambda x: np.diagonal(x, k, -2, -1),
    )


def _windows(r: random.Random, shape: tuple[int, ...]) -> Step:
    n = shape[-1]
    size = r.randint(1, n)
    step = r.choice((1, 1, 2, 3))

    def traced(x: Any) -> Any:
        parts = [x[..., i : i + size] for i in range(0, n - size + 1, step)]
        return op.stack(parts, axis=-2)

    def wanted(x: Any) -> Any:
        return np.lib.stride_tricks.sliding_window_view(x, size, -1)[..., ::step, :]

    return f"windows({size}, {step})", traced, wanted


STEPS = (_reshape, _reshape, _flip, _flip, _roll, _transpose, _slice, _slice, _pad, _broadcast,
         _repeat, _tile, _concat, _diagonal, _windows)  # fmt: skip
_MOST = 3000


def _views(r: random.Random) -> Chain:
    shape = tuple(r.choice(SIZES) for _ in range(r.choice((1, 2, 2, 3))))
    x = np.random.default_rng(r.randrange(1 << 30)).standard_normal(shape)
    steps: list[Step] = []
    y = x
    for _ in range(r.randint(2, 6)):
        made = r.choice(STEPS)(r, y.shape) if y.ndim else _reshape(r, ())
        new = made[2](y)
        if 0 < new.size <= _MOST and new.ndim <= 6:
            steps.append(made)
            y = new
    use = r.choice(_USES)(r, y.shape)
    steps.append(use)

    def run(which: int) -> Function:
        def f(v: Any) -> Any:
            for s in steps:
                v = s[which](v)
            return v

        return f

    return Chain(f"{shape}: {' '.join(s[0] for s in steps)}", (x,), run(1), run(2))


def _pointwise(r: random.Random, shape: tuple[int, ...]) -> Step:
    return "* 2 + 1", lambda x: x * 2.0 + 1.0, lambda x: x * 2.0 + 1.0


def _folded(r: random.Random, shape: tuple[int, ...]) -> Step:
    if not shape:
        return _pointwise(r, shape)
    axis = r.randrange(len(shape))
    name = r.choice(("sum", "max", "cumsum"))
    return (
        f"{name}({axis})",
        lambda x: getattr(op, name)(x, axis),
        lambda x: getattr(np, name)(x, axis),
    )


def _multiplied(r: random.Random, shape: tuple[int, ...]) -> Step:
    if len(shape) < 2:
        return _pointwise(r, shape)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return (
        "@ its transpose",
        lambda x: x @ op.transpose(x, order),
        lambda x: x @ np.transpose(x, order),
    )


def _with_itself(r: random.Random, shape: tuple[int, ...]) -> Step:
    return "+ its flip", lambda x: x + op.flip(x), lambda x: x + np.flip(x)


_USES = (_pointwise, _pointwise, _folded, _multiplied, _with_itself)


# Epilogues --------------------------------------------------------------------------------------

_LARGE = (*SIZES, 31, 33, 48, 64, 65, 97, 128, 130)


def _epilogues(r: random.Random) -> Chain:
    m, k, n = (r.choice(_LARGE) for _ in range(3))
    draw = np.random.default_rng(r.randrange(1 << 30))
    batch = r.choice(((), (), (), (3,)))
    x, w = draw.standard_normal((*batch, m, k)), draw.standard_normal((*batch, k, n))
    tall, wide = max(2 * m, n) + 9, max(2 * n, m) + 9
    rows, matrix = draw.standard_normal((9, n)), draw.standard_normal((tall, wide))
    i, ids = draw.integers(0, 9), draw.integers(0, 9, m)
    columns, line = draw.integers(0, 2 * n + 9, n), draw.standard_normal(2 * n + 9)
    heads: dict[str, Function] = {
        "x @ w": lambda x, w: x @ w,
        "einsum": lambda x, w: op.einsum("...ij,...jk->...ik", x, w),
        "sum": lambda x, w: op.sum(x, -1, keepdims=True) + w[..., :1, :],
        "softmax": lambda x, w: op.softmax(x @ w, -1),
        "max": lambda x, w: op.max(x, -1, keepdims=True) * op.sum(w, -2, keepdims=True),
        "attention": lambda x, w: op.softmax(x @ op.transpose(x, _swap(x)) * 0.1, -1) @ (x @ w),
    }
    reads: dict[str, Function] = {
        "y[i]": lambda y: y["rows"][y["i"]],
        "embedding": lambda y: op.take(y["rows"], y["ids"], 0),
        "betas[t]": lambda y: y["line"][y["i"]],
        "columns": lambda y: op.take(y["line"], y["columns"], 0),
        "columns of rows": lambda y: op.take(op.take(y["matrix"], y["ids"], 0), y["columns"], 1),
        "dynamic_slice": lambda y: op.dynamic_slice(y["matrix"], (y["i"], 1), (m, n)),
        "slice": lambda y: y["matrix"][1 : 2 * m + 1 : 2, 2 : 2 * n + 2 : 2],
        "flip": lambda y: op.flip(y["matrix"][:m, :n], (0, 1)),
        "flipped line": lambda y: op.flip(y["line"][:n]),
        "stepped line": lambda y: y["line"][: 2 * n : 2],
        "transpose": lambda y: op.transpose(y["matrix"][:n, :m], (1, 0)),
        "roll": lambda y: op.roll(y["matrix"][:m, :n], 3, 1),
        "repeat": lambda y: op.repeat(y["line"][: (n + 1) // 2], 2, 0)[:n],
        "pad": lambda y: op.pad(y["line"][: n - 1], [(1, 0)]) if n > 1 else y["line"][:1],
        "iota": lambda y: op.arange(0, 3 * n, 3) * 1.0,
        "iota backwards": lambda y: op.flip(op.arange(n)) * 1.0,
        "triangle": lambda y: op.tril(y["matrix"][:m, :n]),
        "reshape": lambda y: op.reshape(y["matrix"][:n, :m], (m, n)),
        "mask": lambda y: op.where(y["matrix"][:m, :n] > 0.0, 1.0, op.take(y["line"], y["columns"], 0)),
    }  # fmt: skip
    joined: dict[str, Function] = {"+": add, "*": mul, "max": op.maximum}
    head, chosen = r.choice(list(heads)), r.sample(list(reads), r.choice((1, 1, 2)))
    joins = [r.choice(("+", "*", "max")) for _ in chosen]
    graded = r.random() < 0.25

    def value(x: Any, w: Any, *rest: Any) -> Any:
        names = ("rows", "matrix", "i", "ids", "columns", "line")
        y = dict(zip(names, rest, strict=True))
        out = heads[head](x, w)
        for name, how in zip(chosen, joins, strict=True):
            part = reads[name](y)
            out = joined[how](out, part)
        return out

    f = ts.grad(lambda *a: op.sum(value(*a) ** 2) * 0.01) if graded else value
    text = f"{'grad of ' if graded else ''}{head} {list(zip(joins, chosen, strict=True))} of {batch, m, k, n}"
    inputs = (x, w, rows, matrix, np.asarray(i), ids, columns, line)
    return Chain(text, inputs, f, by_references(f))


def _swap(x: Any) -> tuple[int, ...]:
    return (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


# Sharing ----------------------------------------------------------------------------------------

_INPLACE: dict[str, Function] = {
    "fft": lambda x: op.real(op.fft(x)) + op.imag(op.fft(x)),
    "fft there and back": lambda x: op.real(op.ifft(op.fft(x) * 2.0)),
    "rfft": lambda x: op.irfft(op.rfft(x) * 0.5, n=x.shape[-1]),
    "fft of columns": lambda x: op.real(op.fft(x * (1.0 + 0.5j), axis=0)),
    "fft2": lambda x: op.real(op.ifft2(op.fft2(x) * 3.0)),
    "sort": lambda x: op.sort(x, axis=-1),
    "sort of columns": lambda x: op.sort(x, axis=0),
    "cumsum": lambda x: op.cumsum(x, -1),
    "cumsum of columns": lambda x: op.cumsum(x, 0),
    "cummax": lambda x: op.cummax(x, 0),
    "softmax": lambda x: op.softmax(x, -1),
    "norm": lambda x: (
        (x - op.mean(x, -1, keepdims=True)) / (1.0 + op.max(x * x, -1, keepdims=True))
    ),
    "norm of columns": lambda x: x / (1.0 + op.sum(x * x, 0, keepdims=True)),
    "flip": lambda x: op.flip(x, 0) + 1.0,
    "roll": lambda x: op.roll(x, 3, -1) * 0.5,
    "transpose": lambda x: op.transpose(x, (1, 0)) * 2.0,
    "pointwise": lambda x: op.tanh(x) + 0.5,
    "product": lambda x: op.tanh(x @ op.transpose(x, (1, 0))) @ x,
    "gather": lambda x: op.take(x, op.flip(op.arange(x.shape[0])), 0) + x,
    "update": lambda x: x.at[0].set(x[-1] * 2.0),
}


def _sharing(r: random.Random) -> Chain:
    rows = r.choice((*range(1, 10), 15, 16, 17, 18, 20, 31, 32, 33, 40, 47, 63, 65, 100, 129))
    columns = r.choice((*range(1, 10), 15, 16, 17, 31, 33, 64, 100))
    x = np.random.default_rng(r.randrange(1 << 30)).standard_normal((rows, columns))
    names = [r.choice(list(_INPLACE)) for _ in range(r.randint(2, 6))]
    keeps = r.random() < 0.3

    def f(x: Any) -> Any:
        y = first = x * 2.0
        for name in names:
            y = _INPLACE[name](y) * 0.5
        return y + op.sum(first) if keeps else y

    return Chain(f"{rows, columns}: {names}{' and the first' if keeps else ''}", (x,), f,
        by_references(f))  # fmt: skip


KINDS: dict[str, Callable[[random.Random], Chain]] = {
    "views": _views,
    "epilogues": _epilogues,
    "sharing": _sharing,
}
