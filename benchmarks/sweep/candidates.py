"""Other schedules for the slowest cases: constants of the lowering with other values, to be chosen from
what is measured.

None of these numbers changes a bit of a result.  They are measured after the cases and are no part of the
summary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sweep.case import Case

GPU, BLOCKS = "tessera.ir.tile.gpu.", "tessera.ir.schedule.gpu_blocks"
ROWS = (("rows", "PIECE_WARPS"),)
FOLDED = ((BLOCKS, "EACH_FOLDED"),)
EACH = ((BLOCKS, "ELEMENTS"), (BLOCKS, "EACH"))
CANDIDATES: tuple[tuple[str, tuple[tuple[str, str], ...], tuple[tuple[Any, ...], ...]], ...] = (
    ("scan: cumsum axis 1 4096x4096 f32", (("scan", "EACH"), ("scan", "WHOLE")),
    ((16, 4096), (8, 4096), (32, 2048))),
    ("scan: cumsum axis 1 16384x1021 f32", (("scan", "EACH"),), ((16,), (8,))),
    ("scan: cumsum axis 1 64x300007 f32", (("scan", "PART"), ("scan", "EACH")),
    ((1024, 32), (2048, 16), (4096, 16))),
    ("scan: cumsum axis 0 16777216 f32", (("scan", "PART"), ("scan", "EACH")),
    ((1024, 32), (2048, 16), (4096, 16))),
    ("scan: cumsum axis 0 4096x4096 f32", (("scan", "STEPS"),), ((8,), (32,))),
    ("select: top 8 of 4096x4096 f32", (("topk", "CHUNK"),), ((2048,),)),
    ("select: top 50 of 64x50304 f32", (("topk", "CHUNK"),), ((2048,),)),
    ("sort: sort 1048576 f32", (("radix", "BLOCK"),), ((512,), (256,))),
    ("sort: sort 4194304 i32", (("radix", "BLOCK"),), ((512,), (256,))),
    ("sort: sort 4096x4096 bf16", (("radix", "BLOCK"),), ((512,), (256,))),
    ("sort: sort columns 3000x700 f32", (("radix", "BLOCK"),), ((512,),)),
    ("sort: argsort 2048x2047 f32", (("sort", "_LONGEST"),), ((1024,),)),
    ("select: median 4096x1025 f32", (("sort", "_LONGEST"),), ((1024,),)),
    ("count: histogram 4194304 f32", (("count", "TAKEN"), ("count", "SHARING")),
    ((1024, 1024), (1024, 2048), (2048, 512), (4096, 512))),
    ("count: bincount 16777216 of 256", (("count", "TAKEN"), ("count", "SHARING")),
    ((1024, 1024), (4096, 512), (4096, 1024))),
    ("gemm: 33x4096x4096 bf16", (("product_blocks", "_BLOCKS"),),
    ((((64, 64),),), (((64, 128),),), (((128, 32),),))),
    ("gemm: 1x4096x4096 f32", (("product_blocks", "_DEEP"),), ((1024,), (4096,))),
    ("gemm: 17x100000x19 f32", (("product_blocks", "_NARROW"),), ((4,), (16,))),
    ("conv: 32x64x56x56 f32 by 64x64x3x3/1", (("conv_plan", "_WIDE_STEP"),), ((16,), (64,))),
    ("count: bincount 4194304 of 50000", (("count", "COPIES"),), ((1,), (8,))),
    ("unary: abs 16777216 f32", EACH, ((2048, 16), (1024, 8), (4096, 8))),
    ("unary: relu 4099x2053 bf16", EACH, ((2048, 16), (1024, 8), (4096, 16))),
    ("unary: gelu 16777216 f32", ((BLOCKS, "EACH_LONG"),), ((4,), (16,))),
    ("random: normal 16777216", ((BLOCKS, "EACH_LONG"),), ((4,), (16,))),
    ("random: uniform 16777216", ((BLOCKS, "EACH_LONG"),), ((4,), (16,))),
    ("rows: softmax 4096x50304 bf16", ROWS, ((2,), (8,))),
    ("rows: softmax 4096x50304 f32", ROWS, ((2,), (8,))),
    ("rows: layernorm 4096x50304 f32", ROWS, ((2,), (8,))),
    ("loss: cross entropy gradient 4096x50304 bf16", ROWS, ((2,), (8,))),
    ("norms: group norm 16x96x127x129 bf16", ROWS, ((8,), (16,))),
    ("fold: sum axis 0 67108864 f32", ROWS, ((2,), (8,))),
    ("fold: var of everything 67108864 f32", ROWS, ((2,), (8,))),
    ("rows: softmax 1021x12289 bf16", FOLDED, ((16,), (64,))),
    ("rows: softmax 1021x12289 f32", FOLDED, ((16,), (64,))),
    ("rows: layernorm 1021x12289 bf16", FOLDED, ((16,), (64,))),
    ("fold: std rows 4096x4097 f32", FOLDED, ((16,), (64,))),
    ("fold: prod rows 4096x4097 f32", FOLDED, ((16,), (64,))),
    ("fold: sum axis 1 8192x8192 f32", FOLDED, ((16,), (64,))),
)  # fmt: skip


def candidates(cases: list[Case]) -> Iterator[Case]:
    """Cases again, each with other constants."""
    known = {str(c): c for c in cases}
    for name, places, sets in CANDIDATES:
        for values in sets:
            patch: tuple[tuple[str, str, Any], ...] = tuple(
                (m if "." in m else GPU + m, n, v) for (m, n), v in zip(places, values, strict=True)
            )
            told = " ".join(f"{n}={v}" for (_, n), v in zip(places, values, strict=True))
            yield replace(known[name], family="candidate", name=f"{name} {told}", patch=patch,
                          compiled=False, cached={})  # fmt: skip
