"""Random programs over the whole catalogue: every public function has a rule, samples, or a reason."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz import rules_neural, rules_numbers, rules_science, rules_shape
from tests.fuzz.draw import Drawer, Unfit
from tests.fuzz.program import Program
from tests.fuzz.rules import EXCEPTIONS, RULES, Rule, from_samples
from tests.support.cases.op_cases import public_functions

HOMES = (rules_neural, rules_numbers, rules_science, rules_shape)  # which enter their rules

# By home, so that a seed draws the same program whichever home another test imports first.
_PLACE = {home.__name__: i for i, home in enumerate(HOMES)}
MADE: dict[str, Rule] = {
    **dict(sorted(RULES.items(), key=lambda r: _PLACE.get(r[1].__module__, len(HOMES)))),
    **{
        n: from_samples(n)
        for n in sorted(public_functions())
        if n not in RULES and n not in EXCEPTIONS
    },
}
# Functions that programs call more often than others: what the compiler joins with other ops.
_OFTEN = (
    *("matmul", "einsum", "take", "gather", "index", "embedding", "dynamic_slice", "scatter_add", "where",
    "sum") * 2,
    *("add", "mul", "reshape", "transpose", "flip", "roll", "pad", "concat", "repeat", "slice_",
    "broadcast_to") * 3,
    *("softmax", "layernorm", "cumsum", "sort", "conv", "max_pool", "cast", "attention", "sin", "tanh",
    "max") * 2,
)  # fmt: skip
NAMES = (*MADE, *_OFTEN)
TRIES = 40


def draw(seed: int, names: Sequence[str] = NAMES, plain: bool = False) -> Program:
    """The program of a seed, of 3 to 15 nodes; a plain one in f64, without special numbers or ties."""
    d = Drawer(seed, (("f64",),), ("i64",), plain) if plain else Drawer(seed)
    wanted = d.pick((3, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12, 15))
    for _ in range(TRIES * wanted):
        if len(d.lines) >= wanted or d.fault is not None:
            break
        step(d, d.pick(names))
    return d.program()


def step(d: Drawer, name: str) -> bool:
    """One more statement that calls a function, if it fits."""
    before = list(d.inputs), list(d.lines), dict(d.values), set(d.used)
    try:
        kept = d.add(MADE[name](d, name), name)
    except Unfit:
        kept = False
    if not kept and d.fault is None:
        d.inputs, d.lines, d.values, d.used = before
    return kept
