"""StableHLO: `ts.stablehlo.export` writes a function as a module that XLA and its relatives run."""

from __future__ import annotations

from tessera.interop.stablehlo.export import export as export
from tessera.interop.stablehlo.writer import StableHloError as StableHloError
