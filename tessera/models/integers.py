"""Grammars of the integers between two bounds."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import OperandError
from tessera.models.grammar import Alt, Bytes, Repeat, Seq, literal

_DIGIT = Bytes(frozenset(range(0x30, 0x3A)))


def integers(low: int | None, high: int | None, digits: int = 15) -> Any:
    """Integers from low to high in decimal; a bound that is None is that of so many digits."""
    low = -(10**digits) + 1 if low is None else low
    high = 10**digits - 1 if high is None else high
    if low > high:
        raise OperandError(f"schema: no integer is at least {low} and at most {high}")
    options = []
    if low < 0:
        options.append(Seq((literal("-"), _positive(max(-high, 1), -low))))
    if low <= 0 <= high:
        options.append(literal("0"))
    if high > 0:
        options.append(_positive(max(low, 1), high))
    return Alt(options)


def _positive(low: int, high: int) -> Any:
    """Integers from 1 on, those of each length apart."""
    options = []
    for size in range(len(str(low)), len(str(high)) + 1):
        first, last = max(low, 10 ** (size - 1)), min(high, 10**size - 1)
        options.append(_same_length(str(first), str(last)))
    return Alt(options)


def _same_length(low: str, high: str) -> Any:
    """Digits from low to high, both of one length."""
    if len(low) == 1:
        return _between(low, high)
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return Seq((_between(low[0], high[0]), Repeat(_DIGIT, rest, rest)))
    if low[0] == high[0]:
        return Seq((literal(low[0]), _same_length(low[1:], high[1:])))
    options = [Seq((literal(low[0]), _same_length(low[1:], "9" * rest)))]
    if ord(high[0]) - ord(low[0]) > 1:
        inner = _between(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        options.append(Seq((inner, Repeat(_DIGIT, rest, rest))))
    options.append(Seq((literal(high[0]), _same_length("0" * rest, high[1:]))))
    return Alt(options)


def _between(low: str, high: str) -> Bytes:
    return Bytes(frozenset(range(ord(low), ord(high) + 1)))
