"""Finding where numbers go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.device import Device
from tessera.core.types import TensorType
from tessera.ir.graph.ir import holding, host_data
from tessera.ir.graph.numbers import check_numbers, has_nan
from tessera.ops.elementwise import isnan
from tessera.ops.reduction import any as any_of


@blames_arguments
def debug_nans(infinities: bool = True) -> AbstractContextManager[None]:
    """While the block runs, the first op that makes a NaN or an infinity raises NumericalError.

    It names the op, the element and the line of the program.  An op is to blame when it makes a NaN
    and no operand has one, or an infinity and all operands are finite; compiled functions run op by
    op meanwhile.  With infinities=False only NaN counts.
    """
    return check_numbers(infinities)


def blame(
    types: Sequence[TensorType], outs: Sequence[Any], device: Device, again: Callable[[], Any]
) -> None:
    """Raise if results have a NaN that some op made, which `again` finds; one that came with an argument is
    none.
    """
    if any(_has_nan(t, x, device) for t, x in zip(types, outs, strict=True)):
        with check_numbers(False, "checked"):
            again()


def _has_nan(t: TensorType, x: Any, device: Device) -> bool:
    if t.dtype.kind not in "fc":
        return False
    if device.kind == "cpu":
        return has_nan(x)
    there = holding(TensorType(t.dtype, x.shape), x, device)
    return bool(host_data(any_of(isnan(there))))
