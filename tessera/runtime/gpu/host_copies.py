"""Copies of a program between a device and pinned memory of the host, which run beside its kernels.

compile/gpu/offload.py says where each begins and at which step it is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from tessera.core.offloaded import keep, take
from tessera.runtime.cuda.memory import DeviceArray, to_device
from tessera.runtime.gpu.bound_program import Find, PendingCopies

_NUMBERS: WeakKeyDictionary[DeviceArray, int] = WeakKeyDictionary()  # that need not travel


@dataclass(frozen=True)
class Put:
    """Begin to write a value out; the copies of other values are over afterwards."""

    value: str
    over: tuple[str, ...] = ()
    engine = "copies out"

    @property
    def copies(self) -> tuple[str, ...]:
        """The values that begin to move."""
        return (self.value,)

    def run(self, find: Find, m: PendingCopies) -> list[DeviceArray]:
        """The number under which it is kept."""
        m.settle([n for n in self.over if n != self.value])
        x = find(self.value)
        kept = m.gpu.engines.out(x.ptr, x.nbytes)
        m.events[self.value] = kept.there
        if self.value in self.over:
            m.settle([self.value])
        number = keep(kept)
        made = to_device(np.array(number, np.float64), m.gpu)
        _NUMBERS[made] = number
        return [made]


@dataclass(frozen=True)
class Get:
    """Let kernels wait for a value that is read back, and begin to read others."""

    value: str
    over: tuple[str, ...] = ()  # values that are out by now
    begins: tuple[tuple[str, str], ...] = ()  # numbers and values
    engine = "copies back"

    @property
    def copies(self) -> tuple[str, ...]:
        """The values that begin to move."""
        return tuple(value for _, value in self.begins)

    def run(self, find: Find, m: PendingCopies) -> list[DeviceArray]:
        """Nothing new: its value has a place."""
        m.settle(self.over)
        for number, value in self.begins:
            kept = take(_number(find(number)))
            m.events[value] = m.gpu.engines.back(kept, find(value).ptr)
        m.settle([self.value])
        return []


def _number(x: DeviceArray) -> int:
    known = _NUMBERS.get(x)
    return int(x.numpy()) if known is None else known
