"""The runtime of bundles in C: one header and one source file, which any C compiler builds."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
HEADER = INCLUDE / "tessera" / "tessera.h"
HEADERS = tuple(INCLUDE / "tessera" / name for name in ("tessera.h", "tensor.hpp", "ops.hpp"))
SOURCE = HERE / "tessera.c"
