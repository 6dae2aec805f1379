"""ts.cache: what is kept on disk.  `clear`, `export` and `load` are of what the tuner found, as files to
exchange; `entries`, `trim`, `clear_code`, `export_all` and `load_all` are of the whole folder.
"""

from __future__ import annotations

from tessera.core.modules import answer
from tessera.runtime.archive import export_all, load_all
from tessera.runtime.folder import clear_code, entries, trim
from tessera.runtime.tuned import clear, export, load

__all__ = ["clear", "clear_code", "entries", "export", "export_all", "load", "load_all", "trim"]


answer(__name__, "cache")
