"""StableHLO: `ts.stablehlo.export` writes a function as a module that XLA and its relatives run, and
`ts.stablehlo.load` reads one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tessera.core.counterparts import lacking
from tessera.core.modules import answer
from tessera.interop.stablehlo.export import export as export
from tessera.interop.stablehlo.writer import StableHloError as StableHloError

__all__ = ["StableHloError", "export", "load"]

if TYPE_CHECKING:
    from tessera.interop.stablehlo.imported import load as load
else:

    def __getattr__(name: str) -> object:
        if name != "load":
            raise lacking("stablehlo", name, __all__)
        found = importlib.import_module(f"{__name__}.imported").load  # the reader is not small
        globals()[name] = found
        return found


answer(__name__, "stablehlo")
