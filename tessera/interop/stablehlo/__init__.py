"""StableHLO: `ts.stablehlo.export` writes a function as a module that XLA and its relatives run."""

from __future__ import annotations

from typing import Any

from tessera.core.counterparts import lacking
from tessera.interop.stablehlo.export import export as export
from tessera.interop.stablehlo.writer import StableHloError as StableHloError


def __getattr__(name: str) -> Any:
    raise lacking("stablehlo", name, ("export",))
