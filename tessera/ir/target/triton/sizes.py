"""Sizes and positions as Python expressions over the scalars of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import Dim, Size, SizeFunction, Symbol, bounds, symbols

# Quotients in Triton round toward zero.
HELPERS = {
    "floor_quotient": """
@triton.jit
def floor_quotient(a, b):
    return (a - floor_rest(a, b)) // b
""",
    "floor_rest": """
@triton.jit
def floor_rest(a, b):
    return (a % b + b) % b
""",
}
NEEDS = {"floor_quotient": ("floor_rest",)}


class SizeWriter:
    """Writes sizes; `names` gives the scalar of each symbol, `used` collects the helpers."""

    def __init__(self, names: Mapping[str, str], used: dict[str, None]):
        self.names, self.used = names, used
        self.signed: set[str] = set()  # counters that begin below 0

    def least(self, x: Size) -> float:
        """A number that a size is at least."""
        return float("-inf") if symbols(x) & self.signed else bounds(x)[0]

    def most(self, x: Size) -> float:
        """A number that a size is at most."""
        return float("inf") if symbols(x) & self.signed else bounds(x)[1]

    def write(self, x: Size, wide: bool = False) -> str:
        """An expression, in 64 bits if it may not fit in 32."""
        if isinstance(x, int):
            return str(x)
        text = ""
        for monomial, factor in x.terms:
            parts = [self._atom(a, wide) for a, power in monomial for _ in range(power)]
            if abs(factor) != 1 or not parts:
                parts.append(str(abs(factor)))
            sign = "-" if factor < 0 else "+"
            joined = " * ".join(parts)
            text = f"{text} {sign} {joined}" if text else ("-" if factor < 0 else "") + joined
        return text

    def inner(self, x: Size, wide: bool = False) -> str:
        """An expression that other signs may stand beside."""
        text = self.write(x, wide)
        return f"({text})" if " " in text or text.startswith("-") else text

    def _atom(self, a: Symbol | SizeFunction, wide: bool) -> str:
        if isinstance(a, Symbol):
            name = self.names[a.name]
            return f"tl.cast({name}, tl.int64)" if wide else name
        left, right = self.inner(a.left, wide), self.inner(a.right, wide)
        if a.function in ("min", "max"):
            return f"tl.{a.function}imum({left}, {right})"
        if self.least(a.left) >= 0 and self.least(a.right) >= 0:
            return f"({left} {a.function} {right})"
        helper = "floor_quotient" if a.function == "//" else "floor_rest"
        for name in (*NEEDS.get(helper, ()), helper):
            self.used[name] = None
        return f"{helper}({left}, {right})"


def is_wide(count: Size) -> bool:
    """Whether places in a memory of so many elements may need more than 31 bits."""
    return isinstance(count, Dim) or count >= 1 << 31
