"""What an optimiser is: a pair of functions on trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from html import escape
from inspect import signature
from typing import Any, ClassVar, ParamSpec

from tessera.core import tree
from tessera.core.blame import blames_arguments, brief, constructor_blames_arguments, wanting
from tessera.core.errors import OperandError, located
from tessera.core.public import public
from tessera.core.source import during
from tessera.lang import habits
from tessera.lang.linear_state import successor

P = ParamSpec("P")
Tree = Any
State = dict[str, Any]

# What numbers of an optimiser may be, in words; a rate may be a function of the step too.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda x: x >= 0, "0 or more, or a function of the step"),
    "momentum": (lambda x: x >= 0, "0 or more"),
    "decay": (lambda x: x >= 0, "0 or more"),
    "l2": (lambda x: x >= 0, "0 or more"),
    "eps": (lambda x: x >= 0, "0 or more"),
    "b1": (lambda x: 0 <= x < 1, "0 to less than 1"),
    "b2": (lambda x: 0 <= x < 1, "0 to less than 1"),
    "rho": (lambda x: 0 <= x <= 1, "0 to 1"),
}


def in_range(make: Callable[P, Optimizer]) -> Callable[P, Optimizer]:
    """Decorator: a function that makes an optimiser and refuses numbers with which none can step."""
    name, own = make.__name__, signature(make)
    checked = wanting(make)

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Optimizer:
        given = {**dict(zip(own.parameters, args, strict=False)), **kwargs}
        for n, x in given.items():
            fits, text = _RANGES.get(n, (None, ""))
            if fits is not None and isinstance(x, int | float) and not fits(x):
                raise located(OperandError(f"{name}: {n} is {x}, expected {text}"))
        return checked(*args, **kwargs)

    return made


_INSTEAD = {
    "__call__": "params, state = opt.update(grads, state, params); opt = optim.adam(lr) takes no parameters",
    "__setattr__": "another optimiser, or a schedule as lr: optim.adam(optim.cosine(1e-3, steps))",
}


@public("an optimiser", _INSTEAD)
@constructor_blames_arguments
@dataclass(frozen=True)
class Optimizer:
    """init(params) -> state;  update(grads, state, params) -> (params, state)."""

    init: Callable[[Tree], State]
    update: Callable[[Tree, State, Tree], tuple[Tree, State]]

    _mark: ClassVar[str] = "step"  # what each state has

    def __post_init__(self) -> None:
        if (
            self._mark == "step"
        ):  # a group of those that combine others may hold what is not trained
            object.__setattr__(self, "init", _on_floats(self._title(), self.init))
        object.__setattr__(self, "init", blames_arguments(self.init))
        object.__setattr__(self, "update", blames_arguments(_on_states(self.update, self._mark)))

    def __repr__(self) -> str:
        return (
            f"<optimiser {self._title()}: state = init(params); params, state = update(grads, state, "
            "params)>"
        )

    def _title(self) -> str:
        """The name of the function that made it."""
        made = getattr(self.update, "__qualname__", "")
        return made.partition(".")[0] or type(self).__name__

    def _repr_html_(self) -> str:
        """The optimiser, for a notebook."""
        return f"<code>{escape(repr(self))}</code>"

    def __getattr__(self, name: str) -> Any:
        raise habits.absent("an optimiser", name, ("init", "update"))


def _on_floats(name: str, init: Callable[[Tree], State]) -> Callable[[Tree], State]:
    """Whole numbers have no gradient, and steps on them are cut to whole numbers."""

    @wraps(init)
    def checked(params: Tree) -> State:
        for path, p in zip(tree.paths(params), tree.leaves(params), strict=True):
            kind = "i" if isinstance(p, int) else getattr(getattr(p, "dtype", None), "kind", "f")
            if kind in "iub":
                given = getattr(p, "type", None) or f"{type(p).__name__} {brief(p, 40)}"
                raise OperandError(
                    f"{name}: the parameter{path and f' {path}'} is {given}; only floating-point parameters "
                    "are trained: cast it, or freeze it with optim.masked"
                )
        return init(params)

    return checked


def _on_states(
    step: Callable[[Tree, State, Tree], tuple[Tree, State]], mark: str
) -> Callable[[Tree, State, Tree], tuple[Tree, State]]:
    @wraps(step)
    def update(grads: Tree, state: Any, params: Tree) -> tuple[Tree, State]:
        if not isinstance(state, dict) or mark not in state:
            raise OperandError(
                f"update: the state is {type(state).__name__} {brief(state, 40)}, expected what "
                "opt.init(params) gave; "
                "the order is update(grads, state, params)"
            )
        with during("update"):
            new, after = step(grads, state, params)
        return new, successor(state, after)

    return update
