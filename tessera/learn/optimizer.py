"""What an optimiser is: a pair of functions on trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from html import escape
from typing import Any, ClassVar

from tessera.core.blame import blames_arguments, brief
from tessera.core.errors import OperandError
from tessera.lang import habits
from tessera.lang.linear_state import successor

Tree = Any
State = dict[str, Any]


@dataclass(frozen=True)
class Optimizer:
    """init(params) -> state;  update(grads, state, params) -> (params, state)."""

    init: Callable[[Tree], State]
    update: Callable[[Tree, State, Tree], tuple[Tree, State]]

    _mark: ClassVar[str] = "step"  # what each state has

    def __post_init__(self) -> None:
        object.__setattr__(self, "init", blames_arguments(self.init))
        object.__setattr__(self, "update", blames_arguments(_on_states(self.update, self._mark)))

    def __repr__(self) -> str:
        return f"<optimiser {self._title()}: state = init(params); params, state = update(grads, state, params)>"

    def _title(self) -> str:
        """The name of the function that made it."""
        made = getattr(self.update, "__qualname__", "")
        return made.partition(".")[0] or type(self).__name__

    def _repr_html_(self) -> str:
        """The optimiser, for a notebook."""
        return f"<code>{escape(repr(self))}</code>"

    def __getattr__(self, name: str) -> Any:
        raise habits.absent("an optimiser", name, ("init", "update"))


def _on_states(
    step: Callable[[Tree, State, Tree], tuple[Tree, State]], mark: str
) -> Callable[[Tree, State, Tree], tuple[Tree, State]]:
    @wraps(step)
    def update(grads: Tree, state: Any, params: Tree) -> tuple[Tree, State]:
        if not isinstance(state, dict) or mark not in state:
            raise OperandError(
                f"update: the state is {type(state).__name__} {brief(state, 40)}, expected what opt.init(params) gave; "
                "the order is update(grads, state, params)"
            )
        new, after = step(grads, state, params)
        return new, successor(state, after)

    return update
