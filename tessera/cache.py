"""ts.cache: what the tuner found, as files to exchange."""

from __future__ import annotations

from tessera.runtime.tuned import clear, export, load

__all__ = ["clear", "export", "load"]
