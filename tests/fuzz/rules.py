"""The table of rules: how each function of the catalogue is called in a random program.

A rule takes the drawer and the function's name and gives the text of a call.  Functions without a rule of
their own are called as their samples say, so that a new op is in the programs as soon as it has a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.draw import Drawer, Unfit
from tests.fuzz.program import spelled
from tests.support.cases.op_cases import Case, Slot, all_cases

Rule = Callable[[Drawer, str], str]
RULES: dict[str, Rule] = {}

# Functions that no random program calls by their name, and why.
EXCEPTIONS = {
    "bitcast": "drawn as float_bits and from_bits",
    "checked_index": "made by other functions under ts.checked()",
    "toeplitz_solve": "drawn as operators by tools/fuzz_operators.py",
    "toeplitz_slogdet": "as toeplitz_solve",
    "adjugate_slope": "reached by the derivative of adjugate",
    "avg_pool_grad": "reached by the derivative of avg_pool on a GPU",
    "max_pool_grad": "reached by the derivative of max_pool on a GPU",
    "max_pool_tangent": "as max_pool_grad",
    "clusters": "reached by the derivatives of eigh and svd",
    "cluster_turn": "reached by the derivatives of eigh",
    "singular_follow": "reached by the derivatives of svd",
    "gauged": "reached by the derivatives of eigh and svd",
    "same_in_every_gauge": "reached by the derivatives of eigh and svd",
    "host_call": "calls a function of the user, which ts.callback and its tests give it",
    "constant": "reached by every array in a program's text",
    "call": "reached by `nested`",
    "custom": "reached by `own_rule`",
    "checkpoint": "reached by `checkpointed`",
    "kernel": "reached by `own_kernel`",
    "random_bits": "reached by random.bits and all other random functions",
    "loggamma_sample": "reached by random.gamma",
    "loggamma_slope": "reached by the derivative of random.gamma",
    "unique": "its result is as long as its data say: it is called on lists, which no program computes",
    "unique_all": "as unique",
    "unique_counts": "as unique",
    "unique_inverse": "as unique",
    "unique_values": "as unique",
    "empty": "its numbers are anything",
    "empty_like": "its numbers are anything",
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule under these names."""

    def enter(f: Rule) -> Rule:
        for n in names:
            assert n not in RULES, n
            RULES[n] = f
        return f

    return enter


def options(d: Drawer, often: float = 0.5, **choices: Any) -> str:
    """Some of these keyword arguments, with a leading comma."""
    chosen = {k: d.pick(v) for k, v in choices.items() if d.often(often)}
    return "".join(
        f", {k}={v if isinstance(v, str) and v[:1] in '(NTF' else repr(v)}"
        for k, v in chosen.items()
    )


def from_samples(name: str) -> Rule:
    """A rule that calls a function as one of its samples does, on values of the program where they fit."""
    mine = [c for c in all_cases() if c.name == name]

    def draw(d: Drawer, name: str) -> str:
        c = d.pick(mine)
        args = [_argument(d, c, a) for a in c.args]
        named = [f"{k}={_argument(d, c, v)}" for k, v in c.kwargs.items()]
        return f"{spelled(name)}({', '.join([*args, *named])})"

    return draw


def _argument(d: Drawer, c: Case, a: Any) -> str:
    if isinstance(a, list):
        return f"[{', '.join(_argument(d, c, x) for x in a)}]"
    if isinstance(a, Slot):
        return _operand(d, c, a)
    if callable(a):
        raise Unfit
    return str(a) if type(a).__name__ == "DType" else repr(a)


def _operand(d: Drawer, c: Case, slot: Slot) -> str:
    if slot.given is not None:
        kind = slot.given.dtype.kind
        name = {"b": "bool_", "f": d.pick(d.floats), "c": d.complexes}.get(
            kind, f"{kind}{slot.given.dtype.itemsize * 8}"
        )
        return d.given(slot.given, name)
    low, high = c.domain
    kinds = "".join(k for k in slot.kinds if k in "fic") or slot.kinds
    have = [
        n for n, v in d.values.items()
        if v.dtype.kind in slot.kinds and tuple(v.shape) == slot.shape
        and (v.dtype.kind not in "c" or "c" in kinds)
    ]  # fmt: skip
    if have and d.often(0.6):
        return d.within(d.pick(have), low, high)
    return d.new("f" if "f" in kinds else kinds[0], slot.shape, low, high)


def finite(d: Drawer, x: str) -> bool:
    """Whether all numbers of a value are finite."""
    data = d.data(x)
    with np.errstate(all="ignore"):
        return bool(np.isfinite(data.astype(np.complex128)).all())
