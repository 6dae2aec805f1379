"""Tracing, as the language layer calls it; regions of control flow are traced by the same code."""

from tessera.lang.number import Number
from tessera.ops.region import Traced, is_number, is_tensor, trace

__all__ = ["Number", "Traced", "is_number", "is_tensor", "trace"]
