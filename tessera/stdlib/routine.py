"""Routines: functions on tensors whose kernels run under a schedule that a user may replace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import Any

from tessera.lang.kernel.decorate import KernelFunction
from tessera.lang.schedule import Schedule, as_schedule


class Routine:
    """A function of the library; its first argument is the plan of its kernels, which users never pass."""

    __wrapped__: Callable[..., Any]

    def __init__(self, f: Callable[..., Any], plan: Plan):
        update_wrapper(self, f)
        del self.__wrapped__  # users see the arguments after the plan
        whole = inspect.signature(f)
        self.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])
        self.function, self.plan = f, plan

    @property
    def schedule(self) -> Schedule:
        """The schedule of its kernels."""
        return self.plan.schedule

    def with_schedule(self, schedule: Any) -> Routine:
        """The same function with other blocks; what the schedule does not say is inherited."""
        return Routine(self.function, Plan(as_schedule(schedule).over(self.schedule), fitted=False))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.plan, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<routine {self.function.__name__}, {self.schedule}>"


class Plan:
    """A schedule, and whether its blocks shrink to fit small tensors."""

    def __init__(self, schedule: Schedule, fitted: bool = True):
        self.schedule, self.fitted = schedule, fitted

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and (self.schedule, self.fitted) == (
            other.schedule,
            other.fitted,
        )

    def __hash__(self) -> int:
        return hash((self.schedule, self.fitted))

    def of(self, kernel: KernelFunction) -> KernelFunction:
        """A kernel under this schedule."""
        return _scheduled(kernel, self.schedule, self.fitted)


@lru_cache(maxsize=1024)
def _scheduled(kernel: KernelFunction, schedule: Schedule, fitted: bool) -> KernelFunction:
    return KernelFunction(kernel.function, schedule.over(kernel.schedule), auto=fitted)


def routine(schedule: Any) -> Callable[[Callable[..., Any]], Routine]:
    """Decorator: a function of the library with the schedule that it is shipped with."""
    return lambda f: Routine(f, Plan(as_schedule(schedule)))
