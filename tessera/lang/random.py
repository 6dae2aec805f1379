"""Random draws outside of jit: a draw that is repeated runs as one compiled program instead of some thirty
ops.

    op.random.normal(key, (8,))     # 256 calls: op by op;  from then on: one program

Both have the same bits.  Where an argument but the key holds data, or results are checked, ops run one by
one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from tessera.core.counterparts import lacking
from tessera.core.dtype import DType
from tessera.core.flags import flags
from tessera.ir.graph.ir import Value, current_builder
from tessera.ir.graph.numbers import checking
from tessera.lang.jit import jit
from tessera.lang.stream import current_stream
from tessera.ops import random

P = ParamSpec("P")
_OFTEN = (
    256  # draws of one kind before a program is made, which takes as long as some hundred of them
)
_MOST = 256  # kinds that a function remembers before it starts anew
_PLAIN = frozenset((int, float, bool, str, tuple, type(None), type, DType))


def repeated(draw: Callable[P, Value], often: int = _OFTEN) -> Callable[P, Value]:
    """A function of random numbers whose calls are one program once they came often."""
    counts: dict[Any, int] = {}
    programs: dict[Any, Callable[[Any], Value]] = {}

    @wraps(draw)
    def run(*args: P.args, **kwargs: P.kwargs) -> Value:
        rest: Any = args[1:]
        if not args or not _is_usual(args[0]) or not _are_plain(rest, kwargs):
            return draw(*args, **kwargs)
        key: Any = args[0]
        kind = (key.type, repr(rest), repr(kwargs))
        found = programs.get(kind)
        if found is not None:
            return found(key)
        if len(counts) >= _MOST:
            counts.clear()
            programs.clear()
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] == often:
            programs[kind] = jit(lambda k: draw(k, *rest, **kwargs))
        return draw(*args, **kwargs)

    return run


def _is_usual(key: Any) -> bool:
    """Whether a key is a tensor of the CPU, in code that programs may serve in place of ops."""
    if not isinstance(key, Value) or key.storage is None or key.device.kind != "cpu":
        return False
    mode = flags()
    usual = mode.target == "cpu" and not mode.checked and not checking()
    return usual and current_builder() is None and current_stream() is None


def _are_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether no argument holds data."""
    return all(x.__class__ in _PLAIN for x in (*args, *kwargs.values()))


# Every function that draws, and those that make keys as they are.
bits = repeated(random.bits)
uniform = repeated(random.uniform)
bernoulli = repeated(random.bernoulli)
randint = repeated(random.randint)
normal = repeated(random.normal)
truncated_normal = repeated(random.truncated_normal)
exponential = repeated(random.exponential)
laplace = repeated(random.laplace)
gumbel = repeated(random.gumbel)
permutation = repeated(random.permutation)
gamma = repeated(random.gamma)
loggamma = repeated(random.loggamma)
beta = repeated(random.beta)
dirichlet = repeated(random.dirichlet)
poisson = repeated(random.poisson)
categorical, choice = random.categorical, random.choice
dropout, key, split, fold_in = random.dropout, random.key, random.split, random.fold_in
__all__ = list(random.__all__)


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> Any:
        raise lacking("op.random", name, __all__)
