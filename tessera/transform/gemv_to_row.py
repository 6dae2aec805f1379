"""turn: a product with one column becomes a row times the transpose.

    %2 = matmul(%a, %x)   ->   %1 = reshape(%x); %2 = transpose(%a); %3 = matmul(%1, %2); %4 = reshape(%3)

A CPU computes the elements of a row at once.  Each element is the same sum of the same products in the same
order, so no bit changes.
"""

from __future__ import annotations

from tessera.core.folds import LANES
from tessera.core.rewrite import Rule
from tessera.ir.graph.ir import Node, Value
from tessera.transform.identities import plain
from tessera.transform.maker import Found, Maker


def _turn(n: Node, m: Maker) -> Found:
    a, x = n.operands
    known = a.ndim == 2 and all(isinstance(size, int) for size in (*a.shape, *x.shape))
    if not known or n.params or not plain(a.dtype) or x.shape[1] != 1 or a.shape[0] < LANES:
        return None
    row = m.apply("reshape", x, shape=(1, a.shape[1]))
    columns = m.apply("transpose", a, axes=(1, 0))
    product = m.apply("matmul", *row, *columns) if row and columns else None
    return m.apply("reshape", *product, shape=n.results[0].shape) if product else None


TURNS: tuple[Rule[Node, Value], ...] = (
    Rule("turn", "matmul(a, one column) -> matmul(row, transpose(a))", ("matmul",), _turn),
)
