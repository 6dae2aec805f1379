"""The cores, vector registers and caches of this processor, by which loops and stores are chosen.

What is chosen changes speed alone: the order of a fold belongs to core/folds.py.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tessera.core.flags import flags


@dataclass(frozen=True)
class Registers:
    """Vectors of so many bytes, those that can hold sums, how many of them a row of a block takes, and all
    there are.

    The others hold factors; where a scalar takes a vector (asimd) there are more of those.
    """

    sums: int
    bytes: int
    across: int
    total: int = 32


# Instruction sets, the best first, and the word by which a processor says that it has one.
SETS: dict[str, Registers] = {
    "avx512f": Registers(24, 64, 4),
    "avx2": Registers(12, 32, 2, total=16),
    "asimd": Registers(20, 16, 4),
}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_OTHERS = {"x86_64": "avx2", "AMD64": "avx2", "aarch64": "asimd", "arm64": "asimd"}


@dataclass(frozen=True)
class Processor:
    """A kind of processor that code is compiled for elsewhere: what lowering asks of it."""

    name: str
    triple: str
    cpu: str  # LLVM's name
    registers: Registers
    words: frozenset[str]
    features: frozenset[str]  # LLVM's names
    vector: int  # bytes of a vector that a Fourier transform computes on at once
    first: int = 1 << 15  # bytes of the first cache, of data
    near: int = 1 << 20  # bytes of the second one
    threads: int = 4

    @property
    def line(self) -> str:
        """The first line of its LLVM IR, which says what it is built for."""
        return f"; target {self.triple} {self.cpu}\n"


_ASSUMED: ContextVar[Processor | None] = ContextVar("processor", default=None)


@contextmanager
def assume(processor: Processor) -> Iterator[None]:
    """While the block runs, lowering is for this processor and not for the one that it runs on."""
    token = _ASSUMED.set(processor)
    try:
        yield
    finally:
        _ASSUMED.reset(token)


def assumed() -> Processor | None:
    """The processor that lowering is for; None: the one that it runs on."""
    return _ASSUMED.get()


def machine() -> str:
    """The architecture that lowering is for, as LLVM calls it: x86_64, aarch64, ..."""
    p = _ASSUMED.get()
    own = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return own if p is None else p.triple.split("-")[0]


def registers() -> Registers:
    """The registers of the processor that lowering is for."""
    p = _ASSUMED.get()
    return _own_registers() if p is None else p.registers


@cache
def _own_registers() -> Registers:
    found = next((r for name, r in SETS.items() if name in _own_words()), None)
    return found or SETS[_OTHERS.get(platform.machine(), "avx2")]


def transform_vector() -> int:
    """Bytes of the vectors on which Fourier transforms compute: their passes hold 16 numbers and the roots
    in registers at once, of which processors with vectors of 16 bytes have too few for wider ones."""
    p = _ASSUMED.get()
    if p is not None:
        return p.vector
    return 16 if registers().bytes == 16 else 64


@cache
def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def expected_threads() -> int:
    """How many threads loops are chosen for: as the flags say, and no more than there are cores."""
    p = _ASSUMED.get()
    if p is not None:
        return p.threads
    return min(flags().threads or cores(), cores())


def first_bytes() -> int:
    """Bytes of the first cache of a core, of data; 32 KiB where the system does not tell."""
    p = _ASSUMED.get()
    return (_cache_bytes(0) or 1 << 15) if p is None else p.first


def near_bytes() -> int:
    """Bytes of the second cache of a core; 1 MiB where the system does not tell."""
    p = _ASSUMED.get()
    return (_cache_bytes(2) or 1 << 20) if p is None else p.near


def last_bytes() -> int:
    """Bytes of the third cache, which cores share; 0 where the system tells of none."""
    return _cache_bytes(3)


@cache
def _cache_bytes(index: int) -> int:
    """What the system tells of a cache; 0 if nothing."""
    try:
        text = (_CACHES / f"index{index}" / "size").read_text().strip()  # such as 2048K
    except OSError:
        return 0
    digits = text.removesuffix("K")
    return int(digits) << 10 if digits.isdecimal() else 0


def uncached_bytes() -> int:
    """Bytes from which a result is stored past the caches.

    Measured where the second cache has 2 MiB: also a result that is read next gains from 4 MiB on.
    """
    return 2 * near_bytes()


def words() -> frozenset[str]:
    """What the processor that lowering is for says about itself, on Linux."""
    p = _ASSUMED.get()
    return _own_words() if p is None else p.words


@cache
def _own_words() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    return frozenset(info.read_text().split()) if info.exists() else frozenset()


def multiplies_bytes() -> bool:
    """Whether an instruction adds up the products of four bytes and four bytes."""
    return "avx512_vnni" in words()
