"""The processors that a bundle has machine code for, and which of them this machine can run."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from tessera.core.errors import OperandError
from tessera.core.processor import SETS, Processor
from tessera.ir.target.cpu.machine import host_features, llvm_version

_V3 = frozenset(
    ["avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.1", "sse4.2"]
)
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_LINUX = "unknown-linux-gnu"
_FLAGS = frozenset(["avx2"])  # words of /proc/cpuinfo that lowering asks for

# Kinds of processors by name, the best of each machine last.  Neoverse and Apple have first caches of 64
# KiB or more.
PROCESSORS = {
    p.name: p
    for p in (
        Processor("x86-64-v3", f"x86_64-{_LINUX}", "x86-64-v3", SETS["avx2"], _FLAGS, _V3, 64),
        Processor(
            "x86-64-v4", f"x86_64-{_LINUX}", "x86-64-v4", SETS["avx512f"], _FLAGS | {"avx512f"},
            _V4, 64,
        ),
        Processor(
            "aarch64", f"aarch64-{_LINUX}", "generic", SETS["asimd"], frozenset(["asimd"]),
            frozenset(["neon"]), 16, first=1 << 16,
        ),
    )
}  # fmt: skip
_MOST_THREADS = 1024  # more is taken for a mistake
_GPU = re.compile(r"cuda:sm_\d+a?|hip:gfx[0-9a-f]+")


def tools_of(targets: Sequence[str]) -> dict[str, str]:
    """The versions of what makes the code of targets: the same ones make the same bytes on every machine."""
    made = {"llvm": llvm_version()}
    if any(not t.startswith("cpu:") for t in targets):
        from importlib import (
            metadata,  # with the library's e-mail: a tenth of the import of tessera
        )

        with contextlib.suppress(metadata.PackageNotFoundError):  # where tests stand in for it
            made["triton"] = metadata.version("triton")
    return made


def usable() -> list[str]:
    """The processors whose code this machine can run, the best first."""
    if sys.platform != "linux":
        return []
    machine, found = platform.machine(), host_features()
    fits = [
        p.name
        for p in PROCESSORS.values()
        if p.triple.startswith(f"{machine}-") and p.features <= found
    ]
    return fits[::-1]


def processor(name: str, threads: int | None = None) -> Processor:
    """A kind of processor by its name, with loops for so many threads."""
    found = PROCESSORS[name]
    return found if threads is None else replace(found, threads=threads)


def check_threads(threads: object) -> None:
    """Refuse a number of threads that no machine has."""
    if threads is None:
        return
    if (
        not isinstance(threads, int)
        or isinstance(threads, bool)
        or not 1 <= threads <= _MOST_THREADS
    ):
        raise OperandError(
            f"bundle: threads is {threads!r}, expected how many threads will run it: 1 to {_MOST_THREADS}"
        )


def default_targets() -> list[str]:
    """What a bundle is built for unless the user says: the best that this machine can run."""
    return [f"cpu:{name}" for name in usable()[:1]]


def check_targets(targets: object) -> list[str]:
    """The targets as a list, each of them one that bundles can be built for."""
    if targets is None:
        return default_targets()
    if isinstance(targets, str) or not isinstance(targets, list | tuple):
        raise OperandError(
            f'bundle: targets is {targets!r}, expected a list such as ["cpu:x86-64-v3"]'
        )
    for t in targets:
        known = isinstance(t, str) and (t.removeprefix("cpu:") in PROCESSORS and t[:4] == "cpu:")
        if not known and not (isinstance(t, str) and _GPU.fullmatch(t)):
            names = ", ".join(f"cpu:{n}" for n in PROCESSORS)
            raise OperandError(
                f"bundle: target {t!r} is unknown, expected one of {names}, cuda:sm_NN, hip:gfxNNN"
            )
    return sorted(set(targets))
