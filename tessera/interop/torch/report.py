"""What PyTorch's graphs became: how many programs, ops that ours hold, and by name and reason the ops that
PyTorch ran, the sizes that were fixed and the breaks between graphs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tessera.core.blame import blames_arguments
from tessera.interop.torch.library import not_traced


@dataclass
class Report:
    """Counts since the start or the last reset."""

    graphs: int = 0  # graphs that were given to the compiler
    programs: int = 0  # programs that were traced: one for all sizes, or one for each set of them
    translated: Counter[str] = field(default_factory=Counter)  # by the op's name
    fallbacks: Counter[str] = field(
        default_factory=Counter
    )  # ops that PyTorch runs inside programs
    reasons: dict[str, str] = field(default_factory=dict)  # of a fallback, the last one
    random: Counter[str] = field(default_factory=Counter)  # random numbers that PyTorch draws
    fixed: dict[str, str] = field(
        default_factory=dict
    )  # ops that need numbers for sizes, and why: their graphs get a program for each set of sizes

    breaks: Counter[str] = field(
        default_factory=Counter
    )  # places where Python went on between two graphs, by TorchDynamo's reason
    skipped: Counter[str] = field(
        default_factory=Counter
    )  # functions that TorchDynamo left to Python whole, by its reason, whatever their backend
    before: Counter[str] = field(default_factory=not_traced, repr=False)  # of the last reset

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
        lines += [
            f"  {name} makes a program for each set of sizes: {why}"
            for name, why in self.fixed.items()
        ]
        lines += [f"  graph break x{k}: {why}" for why, k in self.breaks.most_common()]
        lines += [f"  left to Python x{k}: {why}" for why, k in self.skipped.most_common()]
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

    def broke(self, reason: str) -> None:
        """Note that a graph ends before its function does, with the first line of TorchDynamo's reason."""
        self.breaks[reason.strip().partition("\n")[0]] += 1

    def copy(self) -> Report:
        """The same counts, apart from what is counted from now on."""
        return Report(**{k: type(v)(v) for k, v in self.__dict__.items()})

    def take_back(self, before: Report) -> None:
        """Forget what was counted since a copy was made."""
        self.__dict__.update(before.__dict__)


COUNTS = Report()


@blames_arguments
def report(reset: bool = False) -> Report:
    """What PyTorch's graphs became; reset starts counting anew after this."""
    found = COUNTS.copy()
    for why, k in (not_traced() - found.before).items():
        found.skipped[_shortly(why)] += k
    if reset:
        COUNTS.clear()
    return found


def _shortly(reason: str) -> str:
    """The first line of TorchDynamo's reason, with the first of its hints."""
    first, _, rest = reason.strip().partition("\n")
    hints = [line.strip() for line in rest.splitlines() if line.strip().startswith("Hint: ")]
    return f"{first} ({hints[0].removeprefix('Hint: ')})" if hints else first
