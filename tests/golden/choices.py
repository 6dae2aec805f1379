"""What the compiler chooses over a range of sizes: blocks, nests, roles of threads; thresholds show where
they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from tessera import op
from tessera.core.dtype import bf16, f16
from tessera.ir.target.gluon import flash_forward_emit as gluon
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem
from tessera.ir.tile.gpu.attention_backward import Delta, KeysBackward, QueriesBackward
from tessera.ir.tile.gpu.flash_backward_match import double
from tessera.ir.tile.gpu.flash_forward_match import pipeline
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Threads
from tests.golden.programs import Program


def _product(dtype: str, turned: str = "") -> Callable[..., Program]:
    def of(m: int, n: int, k: int) -> Program:
        a = f"{dtype}[{k},{m}]" if "a" in turned else f"{dtype}[{m},{k}]"
        b = f"{dtype}[{n},{k}]" if "b" in turned else f"{dtype}[{k},{n}]"
        return Program(
            lambda x, y: (x.T if "a" in turned else x) @ (y.T if "b" in turned else y), f"{a} {b}"
        )

    return of


def _rows(f: Callable[..., Any], dtype: str = "f32") -> Callable[..., Program]:
    return lambda m, n: Program(f, f"{dtype}[{m},{n}]")


_SIZES = [(1, 64, 300), (2, 300, 64), (5, 17, 33), (16, 16, 16), (17, 33, 513), (48, 64, 64), (64, 64, 1),
          (100, 1, 100), (128, 128, 128), (200, 500, 70), (256, 1024, 64), (1024, 1024, 512),
          (1024, 31, 2048),
          (4096, 16, 16), (12, 8192, 256), (512, 512, 4096)]  # fmt: skip
_SHAPES = [
    (1, 7),
    (1, 5000),
    (3, 64),
    (7, 300),
    (33, 33),
    (64, 1024),
    (100, 1),
    (1000, 16),
    (5000, 3),
    (4096, 4096),
]
# A kind of program, and the sizes that it is looked at for.
CHOICES: dict[str, tuple[Callable[..., Program], list[tuple[int, ...]]]] = {
    "products of f32": (_product("f32"), _SIZES),
    "products of bf16": (_product("bf16"), _SIZES),
    "products of f64": (_product("f64", "b"), _SIZES[::2]),
    "products of turned f32": (_product("f32", "a"), _SIZES[::2]),
    "products of turned f16": (_product("f16", "ab"), _SIZES[1::2]),
    "softmax": (_rows(op.softmax), _SHAPES),
    "sums of rows": (_rows(lambda x: op.sum(x * x, 1)), _SHAPES),
    "sums of columns": (_rows(lambda x: op.sum(x, 0), "bf16"), _SHAPES),
    "chains": (_rows(lambda x: op.exp(x) * 2.0 + x), _SHAPES),
    "turns": (_rows(lambda x: x.T * 2.0), _SHAPES),
    "scans": (_rows(lambda x: op.cumsum(x, 1)), _SHAPES[:8]),
    "sorts": (_rows(lambda x: op.sort(x, 1)), _SHAPES[:8]),
    "transforms": (_rows(op.fft, "c64"),
    [(m, n) for m in (1, 20) for n in (2, 3, 8, 30, 49, 64, 97, 128, 1000, 1024)]),
    "convolutions": (
        lambda n, c, o, s, w: Program(lambda x, y: op.conv(x, y, None, 1, w // 2),
        f"f32[{n},{c},{s},{s}] f32[{o},{c},{w},{w}]"),
        [(1, 1, 1, 16, 3), (1, 3, 16, 15, 3), (2, 16, 16, 8, 1), (2, 16, 32, 9, 3), (4, 64, 64, 7, 3),
        (1, 8, 8, 30, 5)],
    ),
}  # fmt: skip


def attentions() -> Iterator[tuple[str, AttentionProblem]]:
    """Attentions of many sizes, around those that threads with roles compute."""
    lengths = [
        (64, 64),
        (128, 128),
        (100, 100),
        (256, 512),
        (512, 256),
        (576, 640),
        (128, 131),
        (1, 300),
    ]
    for (queries, keys), size, causal in product(lengths, (32, 64, 128), (False, True)):
        groups = 2 if queries % 128 else 4
        p = AttentionProblem(
            2, 4, groups, queries, keys, size, size, bf16 if causal else f16, causal, 0.125
        )
        yield f"{queries} {keys} {size} {causal}", p
    yield "values", AttentionProblem(1, 2, 2, 128, 128, 64, 32, bf16, False, 0.5)


def texts_of(p: AttentionProblem) -> list[str]:
    """The code of an attention and of its slopes, with roles where they can have some."""
    kernels = [AttentionForward(p, 64, 128).kernel(), AttentionForward(p, 128, 128).kernel(),
        Delta(p).kernel(),
               KeysBackward(p, 64, 64).kernel(), QueriesBackward(p, 64, 64).kernel()]  # fmt: skip
    return [_text(k, 2 if p.size > 64 else 4) for k in kernels]


def _text(k: Kernel, stages: int) -> str:
    if pipeline(k) is not None:
        return gluon.emit(k, Threads(4, stages, approximate=True, roles=True))
    if double(k) is not None:
        return gluon.emit(k, Threads(4, 4, approximate=True, roles=True))
    return emit(k, Threads(4, 2))
