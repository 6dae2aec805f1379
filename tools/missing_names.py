"""List the functions of NumPy, SciPy, JAX and PyTorch that `op` neither has nor answers with what to write.

    python -m tools.missing_names [LIBRARY ...]

Runs where those libraries are installed.  A name is there, or asking for it says what to write, or it is
missing.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

import tessera as ts
from tessera import op

LIBRARIES: dict[str, Any] = {
    "numpy": op, "numpy.linalg": op, "numpy.fft": op, "jax.numpy": op, "jax.nn": op, "jax.lax": op,
    "jax.scipy.special": op, "jax.scipy.signal": op, "jax.random": ts, "jax": ts, "scipy.special": op,
    "torch.nn.functional": op, "torch.linalg": op, "torch.special": op,
}  # fmt: skip


def functions(module: ModuleType) -> list[str]:
    """The public functions of a module, and no classes or modules."""
    found = {n: getattr(module, n) for n in dir(module) if not n.startswith("_")}
    return sorted(
        n
        for n, f in found.items()
        if callable(f) and not inspect.isclass(f) and not n.endswith("_")
    )


def answer(root: Any, name: str) -> str | None:
    """What asking for a name says, "" where it is there, and None where nothing helps."""
    try:
        getattr(root, name)
    except AttributeError as e:
        text = str(e).partition("\n")[0]
        said = text.partition("; ")[2]
        return said if said and "did you mean" not in said else None
    return ""


def missing(library: str) -> tuple[list[str], int, int]:
    """The names that are missing, and how many are there and are answered."""
    root, names = LIBRARIES[library], functions(importlib.import_module(library))
    told = {n: answer(root, n) for n in names}
    there = sum(x == "" for x in told.values())
    lost = [n for n, x in told.items() if x is None]
    return lost, there, len(names) - there - len(lost)


def main(args: list[str]) -> None:
    """Print the list of each library."""
    for library in args or LIBRARIES:
        lost, there, answered = missing(library)
        print(f"{library}: {there} there, {answered} answered, {len(lost)} missing")
        print("  " + " ".join(lost))


if __name__ == "__main__":
    main(sys.argv[1:])
