"""What the operations of Tile IR do, for passes and checks to ask instead of names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """The record of an operation."""

    reads: bool = False  # elements of its memory become tiles
    writes: bool = False  # tiles become elements of its memory
    pure: bool = False  # the results depend on operands and attributes alone
    orders: bool = False  # accesses of this instance or of others stay on their side of it


_PURE, _READS, _WRITES, _ORDERS, _PLAIN = (
    Traits(pure=True),
    Traits(reads=True),
    Traits(writes=True),
    Traits(orders=True),
    Traits(),
)
TRAITS: dict[str, Traits] = {
    "alloc": _PLAIN,
    "for": _PLAIN,  # as its body
    "prefetch": _PLAIN,  # a hint: no result depends on it
    "load": _READS,
    "gather": _READS,
    "store": _WRITES,
    "store_async": _WRITES,
    "scatter": _WRITES,
    "wait": _ORDERS,
    "barrier": _ORDERS,
    "full": _PURE,
    "index": _PURE,
    "apply": _PURE,
    "cast": _PURE,
    "fold": _PURE,
    "scan": _PURE,
    "dot": _PURE,
    "dot_parts": _PURE,
    "dot_words": _PURE,
    "words": _PURE,
    "reshape": _PURE,
    "broadcast": _PURE,
    "transpose": _PURE,
}
