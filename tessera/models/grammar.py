"""Grammars over bytes, recognised byte by byte: what may come next, and how many bytes an end needs at least.

A grammar is a tree of nodes; `NodeRef` closes cycles.  The state of a reader is a set of stacks of nodes that
are still to come, each with a set of bytes on top; the empty stack is an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

NEVER = 1 << 30  # bytes that an end needs where there is none
# Nodes of a stack, beyond which only the shortest choice is left: readers of JSON have bounds, too.
DEEPEST = 200


@dataclass(eq=False)
class Bytes:
    """One byte of a set."""

    allowed: frozenset[int]


@dataclass(eq=False)
class Seq:
    """Nodes one after the other."""

    parts: Sequence[Any]
    size: int | None = None


@dataclass(eq=False)
class Alt:
    """One of several nodes."""

    options: Sequence[Any]
    size: int | None = None


@dataclass(eq=False)
class Repeat:
    """A node several times: `least`, and up to `most` where that is given."""

    part: Any
    least: int = 0
    most: int | None = None
    size: int | None = None
    fewer: Any = None  # the same with one time less


@dataclass(eq=False)
class NodeRef:
    """A node that is known later."""

    to: Any = None
    shortest: int = NEVER


EMPTY = Seq(())


def literal(text: str) -> Any:
    """The bytes of a text."""
    return Seq([one(b) for b in text.encode()])


_ONE = [Bytes(frozenset([b])) for b in range(256)]


def one(byte: int) -> Bytes:
    """A single byte."""
    return _ONE[byte]


def optional(node: Any) -> Any:
    """A node or nothing."""
    return Alt((EMPTY, node))


def shortest(node: Any) -> int:
    """The fewest bytes of a node, given those of its Refs so far."""
    return _fewest(node, shortest)


def _fewest(node: Any, of: Callable[[Any], int]) -> int:
    """The fewest bytes of a node by those of its parts."""
    if isinstance(node, Bytes):
        return 1
    if isinstance(node, Seq):
        return min(sum(of(p) for p in node.parts), NEVER)
    if isinstance(node, Alt):
        return min((of(o) for o in node.options), default=NEVER)
    if isinstance(node, Repeat):
        return min(node.least * of(node.part), NEVER) if node.least else 0
    found: int = node.shortest
    return found


def settle(refs: Sequence[NodeRef]) -> None:
    """Find the fewest bytes of all Refs: the least fixed point."""
    changed = True
    while changed:
        changed = False
        for ref in refs:
            n = shortest(ref.to)
            if n < ref.shortest:
                ref.shortest, changed = n, True


class Stack:
    """Nodes still to come, the first on top, with the fewest bytes that they need; None is the empty stack.

    Equal stacks are one object.
    """

    __slots__ = ("__weakref__", "depth", "needed", "rest", "top")

    def __init__(self, top: Any, rest: Stack | None):
        self.top, self.rest = top, rest
        self.depth: int = 1 if rest is None else rest.depth + 1
        self.needed: int = min(_size(top) + (0 if rest is None else rest.needed), NEVER)


_KNOWN: WeakValueDictionary[tuple[int, int], Stack] = WeakValueDictionary()


def pushed(node: Any, rest: Stack | None) -> Stack:
    """A node on a stack."""
    at = (id(node), id(rest))
    found = _KNOWN.get(at)
    if found is None:
        found = _KNOWN[at] = Stack(node, rest)
    return found


def _size(node: Any) -> int:
    """The fewest bytes of a node once all Refs are settled."""
    if isinstance(node, Bytes | NodeRef):
        return _fewest(node, _size)
    if node.size is None:
        node.size = _fewest(node, _size)  # its parts once each: values share theirs many times over
    size: int = node.size
    return size


State = frozenset[Stack | None]


def start(node: Any) -> State:
    """The state before the first byte."""
    return frozenset(_opened(pushed(node, None)))


def _opened(stack: Stack | None) -> Iterator[Stack | None]:
    """Stacks with bytes on top, or none, that a stack stands for."""
    work, known = [stack], set()
    while work:
        s = work.pop()
        if s in known:
            continue
        known.add(s)
        if s is None or isinstance(s.top, Bytes):
            if s is None or s.needed < NEVER:
                yield s
            continue
        work += _choices(s)


def _choices(s: Stack) -> list[Stack | None]:
    node, rest = s.top, s.rest
    if isinstance(node, Seq):
        for part in reversed(node.parts):
            rest = pushed(part, rest)
        return [rest]
    deep = s.depth > DEEPEST
    if isinstance(node, Alt):
        options = [min(node.options, key=_size)] if deep else node.options
        return [pushed(o, rest) for o in options]
    if isinstance(node, NodeRef):
        return [pushed(node.to, rest)]
    assert isinstance(node, Repeat), node
    if node.most == 0 or (deep and not node.least):
        return [rest]
    once = pushed(node.part, pushed(_fewer(node), rest))
    return [once] if node.least else [rest, once]


def _fewer(node: Repeat) -> Repeat:
    if node.most is None and node.least == 0:
        return node
    if node.fewer is None:
        most = None if node.most is None else node.most - 1
        node.fewer = Repeat(node.part, max(node.least - 1, 0), most)
    found: Repeat = node.fewer
    return found


def after(state: State, byte: int) -> State:
    """The state after one more byte; empty where it may not come."""
    out: set[Stack | None] = set()
    for s in state:
        if s is not None and byte in s.top.allowed:
            out.update(_opened(s.rest))
    return frozenset(out)


def needed(state: State) -> int:
    """The fewest bytes to an end, NEVER where there is none."""
    return min((0 if s is None else s.needed for s in state), default=NEVER)
