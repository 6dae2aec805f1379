"""Indexing: x[key], updates at an index, gather, scatter, take."""

from __future__ import annotations

from typing import Any

from tessera.ir.graph.ir import Value
from tessera.ops.define import ArrayLike


def index(x: Value, key: Any) -> Value:
    raise TypeError(key)


def update(x: Value, key: Any, value: ArrayLike, how: str) -> Value:
    raise TypeError(key)
