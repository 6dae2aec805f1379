"""tile: the functions of the kernel language; docs/kernels.md says what each of them does."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import NoAttributeError
from tessera.lang.kernel import attention as _attention  # noqa: F401  fills the table
from tessera.lang.kernel import compute as _compute  # noqa: F401
from tessera.lang.kernel import memory as _memory  # noqa: F401
from tessera.lang.kernel import parts as _parts  # noqa: F401
from tessera.lang.kernel import random as _random  # noqa: F401
from tessera.lang.kernel import reports as _reports  # noqa: F401
from tessera.lang.kernel import scaled as _scaled  # noqa: F401
from tessera.lang.kernel.kernel_habits import no_function
from tessera.lang.kernel.table import INTRINSICS


def __getattr__(name: str) -> Any:
    if name in INTRINSICS:
        return INTRINSICS[name]
    if name.startswith("_"):
        raise AttributeError(f"tile has no {name!r}")
    raise NoAttributeError(no_function(name))


def __dir__() -> list[str]:
    return sorted(INTRINSICS)
