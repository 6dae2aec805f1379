"""What programs are made of and the catalogue of ops does not hold: functions with rules, kernels,
watchers.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera import op


@ts.custom_jvp
def sine(x: Any) -> Any:
    """sin, with a derivative of its own."""
    return op.sin(x)


@sine.defjvp
def _cosine(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return op.sin(x), op.cos(x) * t


@ts.custom_vjp
def cube(x: Any) -> Any:
    """x * x * x, with a reverse rule of its own."""
    return x * x * x


def _cubed(x: Any) -> Any:
    return x * x * x, x


def _cubed_back(x: Any, ct: Any) -> Any:
    return (3.0 * x * x * ct,)


cube.defvjp(_cubed, _cubed_back)


@ts.kernel
def squared(x: ts.KTile["N"]) -> Any:
    """Squares of a vector, by a kernel."""
    t = ts.tile.load(x)
    return t * t


def unseen(*values: Any) -> None:
    """What `watch` calls: nothing."""
