"""Products, contractions, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from sweep.case import Case, Operand, size_name, slopes, torch_slopes
from tessera import op

GEMMS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "bf16": (
        (4096, 4096, 4096), (8192, 1024, 8192), (1000, 3000, 2000), (256, 8192, 8192), (1, 28672, 8192),
        (16, 8192, 8192), (33, 4096, 4096), (8192, 512, 8192), (127, 129, 131), (1021, 1031, 1033),
        (4096, 4096, 1), (65536, 64, 64), (64, 65536, 64), (8191, 8191, 17), (3, 5, 7), (512, 50304, 768),
    ),
    "f16": ((2048, 2048, 2048), (777, 778, 779)),
    "f32": ((2048, 2048, 2048), (1000, 1000, 1000), (1, 4096, 4096), (17, 100_000, 19), (4096, 64, 4096)),
}  # fmt: skip
EINSUMS: tuple[tuple[str, tuple[tuple[int, ...], ...], str], ...] = (
    ("etd,te->td", ((8, 4096, 512), (4096, 8)), "bf16"),
    ("bhqd,bhkd->bhqk", ((8, 16, 512, 64), (8, 16, 512, 64)), "bf16"),
    ("bqhd,bkhd->bhqk", ((8, 512, 16, 64), (8, 512, 16, 64)), "bf16"),
    ("bij,bjk->bik", ((100, 33, 65), (100, 65, 17)), "f32"),
    ("abc,cde->abde", ((16, 128, 256), (256, 32, 32)), "bf16"),
    ("ij,kj->ik", ((3000, 999), (2001, 999)), "bf16"),
    ("ij,ij->i", ((65536, 255), (65536, 255)), "f32"),
    ("i,j->ij", ((8191,), (4099,)), "f32"),
    ("bi,ij,bj->b", ((4096, 256), (256, 256), (4096, 256)), "f32"),
    ("bnd,bmd->bnm", ((64, 196, 100), (64, 50, 100)), "f32"),
    ("ii->i", ((4096, 4096),), "f32"),
    ("ijk->kij", ((256, 511, 257),), "f32"),
)


def cases() -> Iterator[Case]:
    """All of the family."""
    for dtype, shapes in GEMMS.items():
        for m, k, n in shapes:
            a, b = Operand((m, k), dtype), Operand((k, n), dtype)
            yield _product(f"{m}x{k}x{n} {dtype}", a, b, 2.0 * m * n * k)
    a, b, c = (
        Operand((2048, 1536), "bf16"),
        Operand((2560, 1536), "bf16"),
        Operand((1536, 2048), "bf16"),
    )
    yield Case("gemm", f"a b.T {size_name(a, b)}", lambda a, b: a @ b.T, lambda t, a, b: a @ b.T, (a, b),
               2.0 * 2048 * 1536 * 2560)  # fmt: skip
    d = Operand((1536, 2560), "bf16")
    yield Case("gemm", f"a.T b {size_name(c, d)}", lambda a, b: a.T @ b, lambda t, a, b: a.T @ b, (c, d),
               2.0 * 2048 * 1536 * 2560)  # fmt: skip
    for batch, m, k, n, dtype in ((64, 512, 512, 512, "bf16"), (128, 64, 64, 64, "bf16"),
        (1000, 17, 19, 23, "f32"),
                                  (16, 1000, 33, 1000, "bf16"), (4096, 1, 128, 128, "bf16"),
                                  (32, 256, 256, 256, "f32")):  # fmt: skip
        a, b = Operand((batch, m, k), dtype), Operand((batch, k, n), dtype)
        yield _product(f"batched {batch}x{m}x{k}x{n} {dtype}", a, b, 2.0 * batch * m * n * k)
    x, w, v = Operand((4096, 1024), "bf16"), Operand((1024, 4096), "bf16"), Operand((4096,), "bf16")
    gelu: Any = lambda t, x, w, v: t.nn.functional.gelu(t.addmm(v, x, w))  # noqa: E731
    yield Case("gemm", f"linear and gelu {size_name(x, w)}", lambda x, w, v: op.gelu(x @ w + v), gelu,
               (x, w, v), 2.0 * 4096 * 1024 * 4096, compiled=True)  # fmt: skip
    y = Operand((4096, 4096), "bf16")
    yield Case("gemm", f"product gradient {size_name(x, w)}", slopes(op.matmul, 2),
               torch_slopes(lambda t, a, b: a @ b, 2), (x, w, y), 4.0 * 4096 * 1024 * 4096)  # fmt: skip
    for spec, shapes2, dtype in EINSUMS:
        xs = tuple(Operand(s, dtype) for s in shapes2)
        sizes: dict[str, int] = {}
        for part, s in zip(spec.split("->")[0].split(","), shapes2, strict=True):
            sizes |= dict(zip(part, s, strict=True))
        flops = 2.0 * prod(sizes.values()) if len(xs) > 1 else 0.0
        yield Case("einsum", f"{spec} {size_name(*xs)}", lambda *xs, s=spec: op.einsum(s, *xs),
                   lambda t, *xs, s=spec: t.einsum(s, *xs).contiguous(), xs,
                   flops if len(xs) == 2 else 0.0)  # fmt: skip
    yield from _attention()
    yield from _convolutions()
    yield from _pooling()


def _product(name: str, a: Operand, b: Operand, flops: float) -> Case:
    return Case("gemm", name, op.matmul, lambda t, a, b: a @ b, (a, b), flops)


def _attention() -> Iterator[Case]:
    shapes = (
        (4, 16, 2048, 2048, 64), (4, 16, 2048, 2048, 128), (4, 16, 1024, 1024, 80), (4, 16, 1024, 1024, 96),
        (2, 8, 1024, 1024, 256), (8, 12, 197, 197, 64), (4, 8, 1001, 1001, 40), (16, 32, 1, 8192, 128),
        (2, 16, 77, 1999, 64), (4, 16, 1024, 1024, 32), (4, 8, 511, 511, 112),
    )  # fmt: skip
    for b, h, m, n, d in shapes:
        q, k = Operand((b, h, m, d), "bf16"), Operand((b, h, n, d), "bf16")
        for causal in (False, True) if m == n and d in (64, 80) else (False,):

            def sdpa(t, q, k, v, c=causal):
                return t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=c)

            ours: Any = lambda q, k, v, c=causal: op.attention(q, k, v, causal=c)  # noqa: E731
            flops = 4.0 * b * h * m * n * d * (0.5 if causal else 1)
            name = f"{'causal ' if causal else ''}{size_name(q)} keys {n}"
            yield Case(
                "attention", name, ours, sdpa, (q, k, k), flops, checked="same", tolerance=2e-2
            )
            if d in (64, 80, 96, 128) and m == n and not causal and m > 200:
                yield Case("attention", f"gradient {name}", slopes(ours, 3), torch_slopes(sdpa, 3),
                           (q, k, k, q), 3.5 * flops, checked="same", tolerance=3e-2)  # fmt: skip


CONVOLUTIONS: tuple[tuple[tuple[int, ...], tuple[int, ...], int, int, int], ...] = (
    ((32, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1), ((32, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1),
    ((32, 64, 56, 56), (256, 64, 1, 1), 1, 0, 1), ((32, 256, 56, 56), (128, 256, 1, 1), 2, 0, 1),
    ((32, 128, 28, 28), (128, 128, 3, 3), 2, 1, 1), ((32, 512, 7, 7), (512, 512, 3, 3), 1, 1, 1),
    ((8, 320, 64, 64), (320, 320, 3, 3), 1, 1, 1), ((32, 96, 56, 56), (96, 1, 7, 7), 1, 3, 96),
    ((16, 32, 33, 35), (48, 16, 5, 5), 1, 2, 2), ((1, 3, 511, 513), (16, 3, 3, 3), 1, 1, 1),
)  # fmt: skip


def _convolutions() -> Iterator[Case]:
    for shape, weights, stride, pad, groups in CONVOLUTIONS:
        for dtype in ("bf16", "f32") if shape[1] in (64, 32) else ("bf16",):
            x, w = Operand(shape, dtype), Operand(weights, dtype)
            n = (shape[2] + 2 * pad - weights[2]) // stride + 1
            m = (shape[3] + 2 * pad - weights[3]) // stride + 1
            flops = 2.0 * shape[0] * n * m * prod(weights)
            how = f"{size_name(x)} by {'x'.join(map(str, weights))}/{stride}"

            def ours(x, w, s=stride, p=pad, g=groups):
                return op.conv2d(x, w, stride=s, padding=p, groups=g)

            def theirs(t, x, w, s=stride, p=pad, g=groups):
                return t.nn.functional.conv2d(x, w, None, s, p, 1, g)

            yield Case("conv", how, ours, theirs, (x, w), flops, checked="same",
                tolerance=2e-2 if dtype == "bf16" else 2e-3)  # fmt: skip
            if dtype == "bf16" and shape[1] in (64, 128) and weights[2] == 3:
                y = Operand((shape[0], weights[0], n, m), dtype)
                yield Case("conv", f"gradient {how}", slopes(ours, 2), torch_slopes(theirs, 2), (x, w, y),
                           2 * flops, checked="same", tolerance=2e-2)  # fmt: skip
    x, w = Operand((16, 64, 4001), "bf16"), Operand((128, 64, 9), "bf16")
    yield Case("conv", f"1d {size_name(x)} by 128x64x9", lambda x, w: op.conv1d(x, w, padding=4),
               lambda t, x, w: t.nn.functional.conv1d(x, w, padding=4), (x, w),
               2.0 * 16 * 4001 * 128 * 64 * 9, checked="same", tolerance=2e-2)  # fmt: skip
    x, w = Operand((4, 16, 17, 63, 65), "bf16"), Operand((32, 16, 3, 3, 3), "bf16")
    yield Case("conv", f"3d {size_name(x)} by 32x16x3x3x3", lambda x, w: op.conv3d(x, w, padding=1),
               lambda t, x, w: t.nn.functional.conv3d(x, w, padding=1), (x, w),
               2.0 * 4 * 17 * 63 * 65 * 32 * 16 * 27, checked="same", tolerance=2e-2)  # fmt: skip
    x, w = Operand((16, 64, 32, 32), "bf16"), Operand((64, 32, 4, 4), "bf16")
    yield Case("conv", f"transposed {size_name(x)} by 64x32x4x4/2",
               lambda x, w: op.conv_transpose2d(x, w, stride=2, padding=1),
               lambda t, x, w: t.nn.functional.conv_transpose2d(x, w, None, 2, 1), (x, w),
               2.0 * 16 * 32 * 32 * 64 * 32 * 16, checked="same", tolerance=2e-2)  # fmt: skip


def _pooling() -> Iterator[Case]:
    for dtype in ("bf16", "f32"):
        x = Operand((32, 64, 112, 113), dtype)
        how = size_name(x)
        yield Case("pool", f"max 3/2 {how}", lambda x: op.max_pool2d(x, 3, 2, 1),
                   lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1), (x,))  # fmt: skip
        yield Case("pool", f"mean 2 {how}", lambda x: op.avg_pool2d(x, 2),
                   lambda t, x: t.nn.functional.avg_pool2d(x, 2), (x,))  # fmt: skip
        yield Case(
            "pool",
            f"global mean {how}",
            lambda x: op.mean(x, (2, 3)),
            lambda t, x: x.mean((2, 3)),
            (x,),
        )
    x, y = Operand((32, 64, 112, 112)), Operand((32, 64, 56, 56))
    yield Case("pool", f"max 3/2 gradient {size_name(x)}", slopes(lambda x: op.max_pool2d(x, 3, 2, 1)),
               torch_slopes(lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1)), (x, y))  # fmt: skip
    yield Case("pool", f"adaptive mean {size_name(x)}", lambda x: op.adaptive_avg_pool2d(x, 7),
               lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 7), (x,))  # fmt: skip
    x = Operand((16, 32, 65, 67))
    for mode in ("nearest", "bilinear"):
        yield Case("pool", f"resize {mode} {size_name(x)}", lambda x,
            m=mode: op.resize(x, (130, 134), mode=m.removeprefix("bi")),
                   lambda t, x, m=mode: t.nn.functional.interpolate(x, (130, 134), mode=m), (x,))  # fmt: skip
