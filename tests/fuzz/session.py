"""What a worker of tools/fuzz.py does: from a seed to an answer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import catalogue, checks, run
from tests.fuzz.program import Program


def drawn(seed: int, only: str = "", jax: bool = False) -> Program:
    """The program of a seed, of some functions or of those that JAX has."""
    usual = _jax_names() if jax else catalogue.NAMES
    return catalogue.draw(seed, only.split(",") if only else usual, plain=jax)


def _jax_names() -> Sequence[str]:
    from tests.fuzz import jax_ops

    return jax_ops.NAMES


def examiner(only: str = "", jax: bool = False) -> Callable[[int], dict[str, Any]]:
    """Checks the program of a seed and says what it breaks."""
    checks.wake_threads()
    if jax:
        from tests.fuzz import against_jax

        run.CHECKS["jax"] = against_jax.check

    def examine(seed: int) -> dict[str, Any]:
        p = drawn(seed, only, jax)
        found = run.examine(p)
        if seed % 20 == 0:
            gc.collect()
        return {
            "seed": seed, "ops": list(p.ops), "checks": run.plan(p), "failures": [told(f) for f in found],
        }  # fmt: skip

    return examine


def told(f: run.Failure) -> dict[str, Any]:
    """A failure as JSON."""
    return {
        "check": f.check, "kind": f.kind, "message": f.message[:600], "ops": list(f.program.ops),
        "test": run.as_test(f), "known": f.reason,
    }  # fmt: skip


def file_of(tests: Sequence[str]) -> str:
    """A test file of these tests."""
    return run.HEAD + "".join(f"\n\n{t}" for t in tests)
