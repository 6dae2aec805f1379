"""TSOL, the operator library: a bundle with an entry point for each call of an op, for tessera/ops.hpp.

A call is written `softmax(f32[n,m], axis=-1)`: operands by dtype and sizes, then the rest by name.
It is looked up by its key, which has ranks in place of sizes.  Ops that work element by element have one
entry of rank 1, marked by a star, that serves all shapes.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.core.dtype import as_dtype, f32
from tessera.core.errors import OperandError, TesseraError
from tessera.core.evaluate import is_portable
from tessera.core.parse_sizes import parse_dim
from tessera.core.scalar import Expr
from tessera.core.types import TensorType
from tessera.deploy import bundle
from tessera.deploy.entries import trace_entry
from tessera.ir.graph.op import REGISTRY
from tessera.lang import op as namespace

_CALL = re.compile(r"(\*?)(\w+)\((.*)\)")
_OPERAND = re.compile(r"\s*(\w+)\[([^\]]*)\]\s*")


class OpCall(NamedTuple):
    """A call of an op on tensors of some sizes."""

    name: str
    operands: tuple[tuple[str, tuple[int | str, ...]], ...]  # dtype and sizes
    params: tuple[tuple[str, Any], ...]
    each: bool  # element by element, for all shapes

    @property
    def key(self) -> str:
        """What a caller looks it up by; ops.hpp makes the same text."""
        ranks = [f"{d}[{len(shape)}]" for d, shape in self.operands]
        given = [f"{n}={_value(x)}" for n, x in sorted(self.params)]
        return f"{'*' if self.each else ''}{self.name}({','.join([*ranks, *given])})"

    @property
    def entry(self) -> str:
        """The name of its entry point."""
        code = 14695981039346656037  # FNV-1a
        for byte in self.key.encode():
            code = (code ^ byte) * 1099511628211 % (1 << 64)
        return f"op_{code:016x}"

    @property
    def types(self) -> list[TensorType]:
        """What stands for its operands."""
        return [
            TensorType(as_dtype(d), tuple(n if isinstance(n, int) else parse_dim(n) for n in shape))
            for d, shape in self.operands
        ]


def _value(x: Any) -> str:
    return repr(x).replace(" ", "")


def parse_call(text: str) -> OpCall:
    """A call from its text."""
    found = _CALL.fullmatch(text.strip())
    if found is None:
        raise _wrong(text)
    star, name, rest = found.groups()
    if not hasattr(namespace, name):
        raise OperandError(f"tsol: no op is named {name!r}; `tessera ops` lists them")
    operands: list[tuple[str, tuple[int | str, ...]]] = []
    while (m := _OPERAND.match(rest)) is not None:
        dtype = as_dtype(m[1]).name
        sizes = [s.strip() for s in m[2].split(",") if s.strip()]
        operands.append((dtype, tuple(int(s) if s.isdecimal() else s for s in sizes)))
        rest = rest[m.end() :].lstrip().removeprefix(",")
    try:
        tree = ast.parse(f"f({rest})", mode="eval").body
        assert isinstance(tree, ast.Call)
        params = tuple((k.arg or "", ast.literal_eval(k.value)) for k in tree.keywords)
    except (SyntaxError, ValueError):
        raise _wrong(text) from None
    if tree.args or not all(n for n, _ in params):
        raise _wrong(text)
    return OpCall(name, tuple(operands), params, bool(star))


def _wrong(text: str) -> OperandError:
    return OperandError(
        f"tsol: {text!r} is no call of an op; write it as softmax(f32[n,m], axis=-1)"
    )


def function_of(c: OpCall) -> Callable[..., Any]:
    """The function of an entry point."""
    made: Callable[..., Any] = getattr(namespace, c.name)
    params = dict(c.params)
    return lambda *xs: made(*xs, **params)


# What a library has unless its maker says otherwise: everything that works element by element, and these.
USUAL = (
    "matmul({t}[m,k], {t}[k,n])", "matmul({t}[b,m,k], {t}[b,k,n])", "softmax({t}[n,m], axis=-1)",
    "log_softmax({t}[n,m], axis=-1)", "sum({t}[n,m], axis=-1)", "sum({t}[n,m], axis=0)",
    "mean({t}[n,m], axis=-1)", "max({t}[n,m], axis=-1)", "min({t}[n,m], axis=-1)",
    "prod({t}[n,m], axis=-1)", "argmax({t}[n,m], axis=-1)", "argmin({t}[n,m], axis=-1)",
    "var({t}[n,m], axis=-1)", "std({t}[n,m], axis=-1)", "logsumexp({t}[n,m], axis=-1)",
    "cumsum({t}[n,m], axis=-1)", "layernorm({t}[n,m])", "rmsnorm({t}[n,m])",
    "transpose({t}[n,m], axes=(1, 0))", "take({t}[n,m], i32[k], axis=0)", "outer({t}[n], {t}[m])",
    "dot({t}[n], {t}[n])", "sum({t}[n])", "mean({t}[n])", "where(bool[n], {t}[n], {t}[n])",
    "attention({t}[h,s,8], {t}[h,s,8], {t}[h,s,8], causal=True)",
)  # fmt: skip


def operands_each(name: str) -> int:
    """How many operands an op has that it works on element by element; 0: it does not, or it wants more."""
    o = REGISTRY.get(name)
    if o is None or o.combine is not None or o.body is None or o.effects or o.multiple:
        return 0
    if isinstance(o.body, Expr) and not is_portable(o.body, f32):
        return 0  # only Python computes it
    count = {"... -> ...": 1, "..., ... -> ...": 2}.get(str(o.signature), 0)
    public = getattr(namespace, name, None)
    if public is None or not count:
        return 0
    given = inspect.signature(public).parameters.values()
    return count if sum(p.default is p.empty for p in given) == count else 0


def usual_calls(dtype: str = "f32") -> list[OpCall]:
    """The calls that a library has unless its maker says otherwise."""
    each = [
        OpCall(name, ((dtype, ("n",)),) * operands_each(name), (), True)
        for name in sorted(REGISTRY)
        if operands_each(name)
    ]
    return [
        *filter(_can_be, each), *(parse_call(text.format(t=dtype)) for text in USUAL)
    ]  # fmt: skip


def _can_be(c: OpCall) -> bool:
    """Whether the op takes this dtype."""
    try:
        trace_entry("f", function_of(c), c.types, None)
    except TesseraError:
        return False
    return True


def save(
    path: str | os.PathLike[str],
    calls: Sequence[OpCall] | None = None,
    targets: Sequence[str] | None = None,
) -> list[OpCall]:
    """Write a library of these calls, or of the usual ones in f32; the calls that it has."""
    wanted = usual_calls() if calls is None else list(calls)
    entries = {c.entry: (function_of(c), *c.types) for c in wanted}
    if len(entries) != len({c.key for c in wanted}):
        raise OperandError("tsol: two calls have one hash; leave one of them out")
    bundle.save(entries, path, targets=targets)
    return wanted
