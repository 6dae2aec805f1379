"""What an optimiser is: a pair of functions on trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError
from tessera.lang import habits

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

    def __getattr__(self, name: str) -> Any:
        raise habits.absent("an optimiser", name, ("init", "update"))


def _on_states(
    step: Callable[[Tree, State, Tree], tuple[Tree, State]], mark: str
) -> Callable[[Tree, State, Tree], tuple[Tree, State]]:
    def update(grads: Tree, state: Any, params: Tree) -> tuple[Tree, State]:
        if not isinstance(state, dict) or mark not in state:
            raise OperandError(
                f"update: the state is {type(state).__name__} {state!r:.40}, expected what opt.init(params) gave"
            )
        return step(grads, state, params)

    return update
