"""StableHLO: `ts.stablehlo.export` writes a function as a module that XLA and its relatives run, and
`ts.stablehlo.load` reads one.
"""

from __future__ import annotations

from typing import Any

from tessera.core.counterparts import lacking
from tessera.core.deferred import Deferred
from tessera.core.modules import answer
from tessera.interop.stablehlo.export import export as export
from tessera.interop.stablehlo.writer import StableHloError as StableHloError

load = Deferred("tessera.interop.stablehlo.imported:load")


def __getattr__(name: str) -> Any:
    raise lacking("stablehlo", name, ("export", "load"))


answer(__name__, "stablehlo")
