"""Graph -> Graph: inline, simplify, differentiate, batch."""

from tessera.transform import batch_control as batch_control  # enters its rules
from tessera.transform import control as control  # enters its rules
from tessera.transform import custom as custom  # enters its rules
from tessera.transform import remat as remat  # enters its rules
from tessera.transform import spectral as spectral  # enters its rules
from tessera.transform import tiles as tiles  # enters its rules
