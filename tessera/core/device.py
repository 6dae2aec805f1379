"""Names of devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A place where tensors live."""

    kind: str  # "cpu", "cuda", ...
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"


CPU = Device("cpu", 0)
ANYWHERE = Device("cpu", 0)  # of constants: they go where the other operands are
