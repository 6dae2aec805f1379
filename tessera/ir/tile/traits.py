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
    by_data: bool = False  # tiles say which elements it touches
    flies: bool = False  # it ends later, at a wait
    waits: bool = False  # for what flies
    meets: bool = False  # the threads of an instance wait for each other
    makes: bool = False  # its memory begins here


_PURE, _PLAIN = Traits(pure=True), Traits()
TRAITS: dict[str, Traits] = {
    "alloc": Traits(makes=True),
    "for": _PLAIN,  # as its body
    "prefetch": _PLAIN,  # a hint: no result depends on it
    "load": Traits(reads=True),
    "gather": Traits(reads=True, by_data=True),
    "store": Traits(writes=True),
    "store_async": Traits(writes=True, flies=True),
    "scatter": Traits(writes=True, by_data=True),
    "wait": Traits(orders=True, waits=True),
    "barrier": Traits(orders=True, meets=True),
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
    "take": _PURE,
    "count": _PURE,
    "exchange": _PURE,
}
