"""Observers of calls: what stands around every call of a jitted function, for profiles and records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tessera.core.observe import Observed

if TYPE_CHECKING:
    from tessera.lang.jit import Jitted

# (what calls it, the function, arguments, keywords) -> the result; what calls it takes the last three
Around = Callable[[Callable[..., Any], "Jitted", tuple[Any, ...], dict[str, Any]], Any]
CALLS: Observed[Around] = Observed("calls", "calls of jitted functions through Python", skips=True)
