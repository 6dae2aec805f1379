"""Graph -> Graph: inline, simplify, differentiate."""

from tessera.transform import control as control  # enters its rules
