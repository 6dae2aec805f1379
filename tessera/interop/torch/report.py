"""What PyTorch's graphs became: how many programs, ops that ours hold, and ops that PyTorch ran, by name
and reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Counts since the start or the last reset."""

    graphs: int = 0  # graphs that were given to the compiler
    programs: int = 0  # programs that were traced: one for each set of sizes
    translated: Counter[str] = field(default_factory=Counter)  # by the op's name
    fallbacks: Counter[str] = field(
        default_factory=Counter
    )  # ops that PyTorch runs inside programs
    reasons: dict[str, str] = field(default_factory=dict)  # of a fallback, the last one
    random: Counter[str] = field(default_factory=Counter)  # random numbers that PyTorch draws

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graphs, {self.programs} programs, {sum(self.translated.values())} ops "
            "translated, "
            f"{sum(self.fallbacks.values())} run by PyTorch, {sum(self.random.values())} draws of random "
            "numbers"
        ]
        lines += [
            f"  {name} x{k}: {self.reasons[name]}" for name, k in self.fallbacks.most_common()
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def clear(self) -> None:
        """Start counting anew."""
        fresh = Report()
        self.__dict__.update(fresh.__dict__)

    def fell_back(self, name: str, reason: str) -> None:
        """Note an op that PyTorch runs."""
        self.fallbacks[name] += 1
        self.reasons[name] = reason


COUNTS = Report()


def report(reset: bool = False) -> Report:
    """What PyTorch's graphs became; reset starts counting anew after this."""
    found = Report(**{k: type(v)(v) for k, v in COUNTS.__dict__.items()})
    if reset:
        COUNTS.clear()
    return found
