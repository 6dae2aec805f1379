"""Finding where numbers go wrong."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tessera.core.blame import checked
from tessera.ir.graph.numbers import check_numbers


@checked
def debug_nans(infinities: bool = True) -> AbstractContextManager[None]:
    """While the block runs, the first op that makes a NaN or an infinity raises NumericalError.

    It names the op, the element and the line of the program.  An op is to blame when it makes a NaN
    and no operand has one, or an infinity and all operands are finite; compiled functions run op by
    op meanwhile.  With infinities=False only NaN counts.
    """
    return check_numbers(infinities)
