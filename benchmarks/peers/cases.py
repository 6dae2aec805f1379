"""What each kernel is run on: tensors of a size for a device, or of a few elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

B = "bf16"
F = "f32"


@dataclass(frozen=True)
class Case:
    """Shapes and dtypes of tensors (an int in place of a dtype: indices below it), numbers, keywords."""

    source: str  # what people know the kernel from
    large: tuple[Any, ...]
    small: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    same: bool = True  # whether both give the same numbers


def T(dtype: Any, *shape: int) -> tuple[Any, tuple[int, ...]]:  # noqa: N802
    """A tensor."""
    return dtype, shape


ROWS, NORM, MANY = (32768, 4096), (16384, 4096), 1 << 26
EPS = {"eps": 1e-5}
CASES: dict[str, Case] = {
    "add": Case("tutorial", (T(F, MANY),) * 2, (T(F, 1500),) * 2),
    "softmax": Case("tutorial", (T(F, *ROWS),), (T(F, 3, 100),)),
    "matmul": Case("tutorial", (T(B, 4096, 4096),) * 2, (T(B, 100, 70), T(B, 70, 90))),
    "dropout": Case("tutorial", (T(F, MANY),), (T(F, 1500),), {"p": 0.5, "seed": 3}, same=False),
    "layernorm": Case("tutorial", (T(B, *NORM), T(B, 4096), T(B, 4096)),
    (T(B, 3, 100), T(B, 100), T(B, 100)), EPS),
    "layernorm_backward": Case(
        "tutorial", (T(B, *NORM), T(B, 4096), T(F, 16384), T(F, 16384), T(B, *NORM)),
        (T(B, 3, 100), T(B, 100), T(F, 3), T(F, 3), T(B, 3, 100)),
    ),
    "attention": Case("tutorial", (T(B, 32, 4096, 64),) * 3, (T(B, 2, 70, 16),) * 3),
    "arcsine": Case("tutorial", (T("unit", MANY),), (T("unit", 1500),)),
    "rmsnorm": Case("layers", (T(B, *NORM), T(B, 4096)), (T(B, 3, 100), T(B, 100)), EPS),
    "rotary": Case(
        "layers", (T(B, 64, 4096, 128), T(F, 4096, 64), T(F, 4096, 64)),
        (T(B, 2, 9, 32), T(F, 9, 16), T(F, 9, 16))
    ),
    "swiglu": Case("layers", (T(B, MANY),) * 2, (T(B, 1500),) * 2),
    "geglu": Case("layers", (T(B, MANY),) * 2, (T(B, 1500),) * 2),
    "cross_entropy": Case("layers", (T(B, 8192, 50304), T(50304, 8192)), (T(B, 3, 100), T(100, 3))),
    "kl_divergence": Case("layers", (T("unit", 8192, 32768), T(F, 8192, 32768)),
    (T("unit", 3, 100), T(F, 3, 100))),
    "dynamic_tanh": Case(
        "layers", (T(B, *NORM), T(B, 4096), T(B, 4096), 0.5), (T(B, 3, 100), T(B, 100), T(B, 100), 0.5)
    ),
    "log_softmax": Case("library", (T(F, *ROWS),), (T(F, 3, 100),)),
    "cumsum": Case("library", (T(F, *ROWS),), (T(F, 3, 100),)),
    "argmax": Case("library", (T(F, *ROWS),), (T(F, 3, 100),)),
    "variance": Case("library", (T(F, *ROWS),), (T(F, 3, 100),)),
    "matvec": Case("library", (T(B, 16384, 16384), T(B, 16384)), (T(B, 9, 100), T(B, 100))),
    "outer": Case("library", (T(F, 16384), T(F, 16384)), (T(F, 40), T(F, 150))),
    "index_select": Case("library", (T(B, 50304, 4096), T(50304, 16384)), (T(B, 9, 64), T(9, 11))),
    "gelu": Case("library", (T(B, MANY),), (T(B, 1500),)),
    "addmm": Case(
        "library", (T(B, 8192), T(B, 4096, 4096), T(B, 4096, 8192)), (T(B, 90), T(B, 100, 70), T(B, 70, 90))
    ),
    "bmm": Case(
        "library", (T(B, 32, 1024, 1024), T(B, 32, 1024, 1024)), (T(B, 2, 40, 70), T(B, 2, 70, 50))
    ),
}  # fmt: skip


def drawn(spec: Any, rng: np.random.Generator) -> Any:
    """An array in f32 or i32, or the number itself."""
    if not isinstance(spec, tuple):
        return spec
    dtype, shape = spec
    if isinstance(dtype, int):
        return rng.integers(0, dtype, shape).astype(np.int32)
    return (
        rng.random(shape, np.float32) if dtype == "unit" else rng.standard_normal(shape, np.float32)
    )
