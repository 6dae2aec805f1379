"""Movement of data, transforms, linear algebra and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2, prod
from typing import Any

import tessera as ts
from sweep.case import Case, Operand, size_name
from tessera import op


def cases() -> Iterator[Case]:
    """All of the family."""
    for dtype in ("f32", "bf16"):
        for shape in ((4096, 4096), (8191, 4093), (1 << 20, 17), (17, 1 << 20)):
            x = Operand(shape, dtype)
            yield Case("move", f"transpose {size_name(x)}", lambda x: x.T * 1.0,
                       lambda t, x: (x.T * 1.0).contiguous(), (x,))  # fmt: skip
    perms: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((32, 128, 57, 59), (0, 2, 3, 1)), ((8, 1024, 16, 64), (0, 2, 1, 3)), ((129, 257, 513), (2, 1, 0)),
    )  # fmt: skip
    for shape, order in perms:
        x = Operand(shape, "bf16")
        yield Case("move", f"permute {order} {size_name(x)}", lambda x, o=order: op.transpose(x, o) * 1.0,
                   lambda t, x, o=order: (x.permute(o) * 1.0).contiguous(), (x,))  # fmt: skip
    yield from _moved()
    yield from _transforms()
    yield from _algebra()
    yield from _random()


def _moved() -> Iterator[Case]:
    x, y = Operand((4097, 2049)), Operand((4097, 1023))
    one: list[tuple[str, Any, Any]] = [
        ("flip rows", lambda x: op.flip(x, 0), lambda t, x: x.flip(0)),
        ("flip columns", lambda x: op.flip(x, 1), lambda t, x: x.flip(1)),
        ("roll", lambda x: op.roll(x, 5, 1), lambda t, x: x.roll(5, 1)),
        ("pad", lambda x: op.pad(x, ((3, 4), (5, 6))), lambda t, x: t.nn.functional.pad(x, (5, 6, 3, 4))),
        ("tril", op.tril, lambda t, x: x.tril()),
        ("tile", lambda x: op.tile(x, (2, 3)), lambda t, x: x.repeat(2, 3)),
        ("repeat", lambda x: op.repeat(x, 3, 1), lambda t, x: x.repeat_interleave(3, 1)),
        ("diagonal", lambda x: op.diagonal(x) * 1.0, lambda t, x: x.diagonal() * 1.0),
        ("rot90", op.rot90, lambda t, x: x.rot90().contiguous()),
        ("diff", lambda x: op.diff(x, axis=1), lambda t, x: x.diff(dim=1)),
    ]  # fmt: skip
    for name, f, g in one:
        moved = 8.0 * 2049 if name == "diagonal" else None
        yield Case("move", f"{name} {size_name(x)}", f, g, (x,), moved=moved)
    for axis in (0, 1):
        z = y if axis else Operand((123, 2049))
        yield Case("move", f"concat axis {axis} {size_name(x, z)}", lambda x, y, a=axis: op.concat([x, y], a),
                   lambda t, x, y, a=axis: t.cat([x, y], a), (x, z))  # fmt: skip
        yield Case("move", f"stack axis {axis} {size_name(x)}", lambda x, y, a=axis: op.stack([x, y], a),
                   lambda t, x, y, a=axis: t.stack([x, y], a), (x, x))  # fmt: skip
    x = Operand((64, 4096, 128), "bf16")

    def turned(x: Any) -> Any:
        """Rotary embeddings of halves, with tables."""
        a, b = x[..., :64], x[..., 64:]
        return a, b

    c = Operand((4096, 64), "bf16")

    def ours(x: Any, c: Any, s: Any) -> Any:
        a, b = turned(x)
        return op.concat([a * c - b * s, b * c + a * s], -1)

    def theirs(t: Any, x: Any, c: Any, s: Any) -> Any:
        a, b = turned(x)
        return t.cat([a * c - b * s, b * c + a * s], -1)

    yield Case("move", f"rotary embedding {size_name(x)}", ours, theirs, (x, c, c), compiled=True)
    s = Operand((16, 64, 56, 56), "bf16")
    yield Case("move", f"unfold 3x3 {size_name(s)}", lambda x: op.unfold(x, 3, padding=1),
               lambda t, x: t.nn.functional.unfold(x, 3, padding=1), (s,))  # fmt: skip
    yield Case("move", f"pixel shuffle {size_name(s)}", lambda x: op.pixel_shuffle(x, 2),
               lambda t, x: t.nn.functional.pixel_shuffle(x, 2).contiguous(), (s,))  # fmt: skip


def _fft_flops(shape: tuple[int, ...], axes: int) -> float:
    return 5.0 * prod(shape) * log2(prod(shape[-axes:]))


def _transforms() -> Iterator[Case]:
    lines: tuple[tuple[int, ...], ...] = (
        (4096, 1024),
        (1024, 4096),
        (64, 65536),
        (16, 1 << 20),
        (4096, 1000),
        (512, 1021),
    )
    for shape in lines:
        x = Operand(shape, "c64")
        yield Case("fft", f"fft {size_name(x)}", op.fft, lambda t, x: t.fft.fft(x), (x,),
                   _fft_flops(shape, 1), checked="same", tolerance=1e-4)  # fmt: skip
    for shape in ((4096, 1024), (333, 1001)):
        x = Operand(shape)
        yield Case("fft", f"rfft {size_name(x)}", op.rfft, lambda t, x: t.fft.rfft(x), (x,),
                   _fft_flops(shape, 1) / 2, checked="same", tolerance=1e-4)  # fmt: skip
        yield Case("fft", f"irfft of rfft {size_name(x)}", lambda x: op.irfft(op.rfft(x), x.shape[-1]),
                   lambda t, x: t.fft.irfft(t.fft.rfft(x), x.shape[-1]), (x,), _fft_flops(shape, 1),
                   checked="same", tolerance=1e-4)  # fmt: skip
    for shape3 in ((64, 512, 512), (16, 1000, 1000)):
        x = Operand(shape3, "c64")
        yield Case("fft", f"fft2 {size_name(x)}", op.fft2, lambda t, x: t.fft.fft2(x), (x,),
                   _fft_flops(shape3, 2), checked="same", tolerance=1e-4)  # fmt: skip
    x, k = Operand((64, 1024, 1024)), Operand((1024, 1024))

    def convolved(x: Any, k: Any) -> Any:
        spectrum = op.rfftn(x, axes=(-2, -1)) * op.rfftn(k, axes=(-2, -1))
        return op.irfftn(spectrum, s=(1024, 1024), axes=(-2, -1))

    yield Case("fft", f"2d convolution {size_name(x)}", convolved,
               lambda t, x, k: t.fft.irfft2(t.fft.rfft2(x) * t.fft.rfft2(k), s=x.shape[-2:]), (x, k),
               2 * _fft_flops((64, 1024, 1024), 2) / 2, checked="same", tolerance=1e-4)  # fmt: skip
    x = Operand((64, 64, 64, 4), "c64")
    yield Case("fft", f"fftn {size_name(x)}", lambda x: op.fftn(x, axes=(0, 1, 2)),
               lambda t, x: t.fft.fftn(x, dim=(0, 1, 2)), (x,), checked="same", tolerance=1e-4)  # fmt: skip


def _algebra() -> Iterator[Case]:
    one: list[tuple[str, Any, Any, tuple[int, ...]]] = [
        ("cholesky", op.cholesky, lambda t, x: t.linalg.cholesky(x), (1024, 1024)),
        ("cholesky", op.cholesky, lambda t, x: t.linalg.cholesky(x), (4096, 16, 16)),
        ("inverse", op.inv, lambda t, x: t.linalg.inv(x), (512, 512)),
        ("inverse", op.inv, lambda t, x: t.linalg.inv(x), (10_000, 4, 4)),
        ("determinant", op.det, lambda t, x: t.linalg.det(x), (10_000, 3, 3)),
    ]  # fmt: skip
    for name, f, g, shape in one:
        x = Operand(shape, "f32", "spd")
        yield Case("linalg", f"{name} {size_name(x)}", f, g, (x,), prod(shape) * shape[-1] / 1.5,
                   checked="same", tolerance=1e-3, captured=False, known_host=True)  # fmt: skip
    for shape in ((1024, 1024), (2048, 32, 32)):
        a, b = Operand(shape, "f32", "spd"), Operand((*shape[:-1], 8))
        yield Case("linalg", f"solve {size_name(a)}", op.solve, lambda t, a, b: t.linalg.solve(a, b), (a, b),
                   prod(shape) * shape[-1] / 1.5, checked="same", tolerance=1e-3, captured=False,
                   known_host=True)  # fmt: skip
        yield Case("linalg", f"triangular solve {size_name(a)}", lambda a,
            b: op.triangular_solve(op.tril(a), b),
                   lambda t, a, b: t.linalg.solve_triangular(a.tril(), b, upper=False), (a, b),
                   checked="same", tolerance=1e-3, captured=False, known_host=True)  # fmt: skip


def _random() -> Iterator[Case]:
    n = 1 << 24
    key = Operand((2,), "i64", "index", 1 << 30)
    kinds: list[tuple[str, Any, Any]] = [
        ("uniform", lambda k: op.random.uniform(op.cast(k, ts.u32), (n,)), lambda t,
        k: t.rand(n, device=k.device)),
        ("normal", lambda k: op.random.normal(op.cast(k, ts.u32), (n,)), lambda t,
        k: t.randn(n, device=k.device)),
        ("bernoulli", lambda k: op.random.bernoulli(op.cast(k, ts.u32), 0.3, (n,)), lambda t,
        k: t.rand(n, device=k.device) < 0.3),
    ]  # fmt: skip
    for name, f, g in kinds:
        yield Case(
            "random",
            f"{name} {n}",
            f,
            g,
            (key,),
            checked="no",
            moved=n * (1.0 if name == "bernoulli" else 4.0),
        )
    x = Operand((8192, 4096), "bf16")
    yield Case("random", f"dropout {size_name(x)}", lambda x, k: op.dropout(op.cast(k, ts.u32), x, 0.1),
               lambda t, x, k: t.nn.functional.dropout(x, 0.1, True), (x, key), checked="no",
               compiled=True)  # fmt: skip
