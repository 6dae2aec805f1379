"""What checks say: findings with their place, witness and advice, and what was proved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tessera.core.source import Location
from tessera.ir.tile.ir import Operation

LEVELS = ("error", "warning", "hint")  # hints do not fail a check


@dataclass(frozen=True)
class Finding:
    """Something that a check found at an operation of a kernel."""

    tool: str
    level: str
    kernel: str
    message: str
    operation: str = ""
    location: Location | None = None
    witness: Mapping[str, Any] = field(default_factory=dict)
    suggestion: str = ""
    confirmed: bool = False  # the witness was run and showed what it should

    def __str__(self) -> str:
        text = f"{self.level}: {self.tool}: {self.kernel}: {self.message}"
        if self.location is not None:
            text += f"\n  at {self.location}"
        if self.witness:
            shown = ", ".join(f"{k} = {v}" for k, v in self.witness.items())
            text += f"\n  witness: {shown}{' (confirmed)' if self.confirmed else ''}"
        if self.suggestion:
            text += f"\n  try: {self.suggestion}"
        return text


def finding(
    tool: str,
    level: str,
    kernel: str,
    op: Operation | None,
    message: str,
    witness: Mapping[str, Any] | None = None,
    suggestion: str = "",
    confirmed: bool = False,
) -> Finding:
    """A finding at an operation."""
    if op is None:
        return Finding(tool, level, kernel, message, "", None, witness or {}, suggestion, confirmed)
    text = op.name if op.memory is None else f"{op.name} {op.memory.name}"
    return Finding(
        tool, level, kernel, message, text, op.location, witness or {}, suggestion, confirmed
    )


@dataclass(frozen=True)
class Verdict:
    """What one tool says of one kernel: how many facts it proved, which it did not, what it found."""

    tool: str
    kernel: str
    proved: int = 0
    unproved: tuple[str, ...] = ()  # neither proved nor refuted
    findings: tuple[Finding, ...] = ()
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is no error and no warning."""
        return all(f.level == "hint" for f in self.findings)

    @property
    def is_proof(self) -> bool:
        """Whether everything that the tool asks of the kernel is proved."""
        return self.ok and not self.unproved

    def __str__(self) -> str:
        asked = self.proved + len(self.unproved)
        state = "found" if not self.ok else "proved" if self.is_proof else "nothing found"
        state = "nothing to prove" if self.ok and not asked else state
        text = f"{self.tool}: {self.kernel}: {self.note or state}"
        if not self.note and self.ok and asked:
            text += f" ({self.proved} of {self.proved + len(self.unproved)} facts proved)"
        return "\n".join([text, *map(str, self.findings)])


class Report(Sequence[Verdict]):
    """The verdicts of all tools on some kernels; prints as their lines."""

    def __init__(self, verdicts: Iterable[Verdict]):
        self._verdicts = tuple(verdicts)

    def __len__(self) -> int:
        return len(self._verdicts)

    def __getitem__(self, i: Any) -> Any:
        return self._verdicts[i]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors and warnings."""
        return tuple(f for v in self._verdicts for f in v.findings if f.level != "hint")

    @property
    def hints(self) -> tuple[Finding, ...]:
        """What may be worth a look and is no fault."""
        return tuple(f for v in self._verdicts for f in v.findings if f.level == "hint")

    @property
    def ok(self) -> bool:
        """Whether there is no error and no warning."""
        return not self.findings

    def of(self, tool: str) -> tuple[Verdict, ...]:
        """The verdicts of one tool."""
        return tuple(v for v in self._verdicts if v.tool == tool)

    def __str__(self) -> str:
        return "\n".join(map(str, self._verdicts))

    __repr__ = __str__

    def json(self) -> list[dict[str, Any]]:
        """The verdicts as plain values."""
        return [asdict(v) | {"ok": v.ok, "is_proof": v.is_proof} for v in self._verdicts]
