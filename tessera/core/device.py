"""Names of devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A place where tensors live."""

    kind: str  # "cpu", "cuda" or "hip"
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"


GPUS = {"cuda": 2, "hip": 10}  # kinds, each with a driver, and their numbers in DLPack
GPU_OF_DLPACK = {number: kind for kind, number in GPUS.items()}
CPU = Device("cpu", 0)
ANYWHERE = Device("cpu", 0)  # of constants: they go where the other operands are
