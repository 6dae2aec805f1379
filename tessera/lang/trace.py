"""Tracing, as the language layer calls it; regions of control flow are traced by the same code."""

from tessera.ops.region import Traced as Traced
from tessera.ops.region import is_tensor as is_tensor
from tessera.ops.region import trace as trace
