"""Passes over Schedule IR, for the CPU and for GPUs; compile/pipeline.py says which run when."""

from __future__ import annotations

from typing import Never

# What this module had when it was a file.
_SWEEPS = frozenset({
    "by_pass", "folds_chains", "folds_lanes", "goes_together", "has_columns_alone", "has_few_rows",
    "is_uniform", "passes", "shares_folds",
})  # fmt: skip


def __getattr__(name: str) -> Never:
    if name in _SWEEPS:
        raise ImportError(
            f"{__name__}.{name} is tessera.ir.schedule.sweeps.{name} now; import that"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
