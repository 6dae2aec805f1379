"""How ops are written in StableHLO, a file for each family."""

from tessera.interop.stablehlo.rules import control as control
from tessera.interop.stablehlo.rules import convolution as convolution
from tessera.interop.stablehlo.rules import folds as folds
from tessera.interop.stablehlo.rules import linalg as linalg
from tessera.interop.stablehlo.rules import order as order
from tessera.interop.stablehlo.rules import places as places
from tessera.interop.stablehlo.rules import random as random
from tessera.interop.stablehlo.rules import shape as shape
from tessera.interop.stablehlo.rules import signal as signal
from tessera.interop.stablehlo.rules.table import RULES as RULES
from tessera.interop.stablehlo.rules.table import STANDS_FOR as STANDS_FOR
