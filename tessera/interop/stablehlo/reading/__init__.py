"""Rules of StableHLO's ops, a file for each family."""

from tessera.interop.stablehlo.reading import calls as calls
from tessera.interop.stablehlo.reading import elementwise as elementwise
from tessera.interop.stablehlo.reading import regions as regions
from tessera.interop.stablehlo.reading import shape as shape
from tessera.interop.stablehlo.reading.table import RULES as RULES
