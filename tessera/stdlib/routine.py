"""Routines: functions on tensors whose kernels run under a schedule that a user may replace.

Each is shipped with two: one for processors, whose blocks fit caches, and one for GPUs, whose blocks fit
registers and shared memory.  The tensors of a call say which it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, update_wrapper
from typing import Any

from tessera.core.blame import MISFITS, blamed
from tessera.core.errors import TesseraError, located
from tessera.ir.graph.ir import Value
from tessera.lang.kernel.decorate import KernelFunction
from tessera.lang.schedule import Schedule, as_schedule


class Routine:
    """A function of the library; its first argument is the plan of its kernels, which users never pass."""

    __wrapped__: Callable[..., Any]

    def __init__(
        self, f: Callable[..., Any], plan: RoutinePlan, on_gpu: RoutinePlan | None = None,
        said: Schedule | None = None,
    ):  # fmt: skip
        update_wrapper(self, f)
        del self.__wrapped__  # users see the arguments after the plan
        whole = inspect.signature(f)
        self.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])
        self.function, self.plan, self.on_gpu = f, plan, on_gpu or plan
        self.schedule = said or plan.schedule  # as it was given, with what only GPUs have

    def with_schedule(self, schedule: Any) -> Routine:
        """The same function with other blocks; what the schedule does not say is inherited.

        A routine has a schedule for processors and one for GPUs: warps, which only GPUs have, go to that.
        """
        chosen = as_schedule(schedule)
        here = RoutinePlan(replace(chosen, warps=None).over(self.plan.schedule), fitted=False)
        there = RoutinePlan(chosen.over(self.on_gpu.schedule), fitted=False)
        return Routine(self.function, here, there, chosen.over(self.plan.schedule))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan = self.on_gpu if _is_on_gpu((*args, *kwargs.values())) else self.plan
        try:
            return self.function(plan, *args, **kwargs)
        except TesseraError as e:
            error: Exception = located(e)
        except MISFITS as e:
            error = blamed(self.function.__name__, self, args, kwargs, e)
        raise error

    def __repr__(self) -> str:
        there = "" if self.on_gpu is self.plan else f", on GPUs {self.on_gpu.schedule}"
        return f"<routine {self.function.__name__}, {self.plan.schedule}{there}>"


class RoutinePlan:
    """A schedule, whether its blocks shrink to fit small tensors, and whether it is the library's for a
    GPU.
    """

    def __init__(self, schedule: Schedule, fitted: bool = True, gpu: bool = False):
        self.schedule, self.fitted, self.gpu = schedule, fitted, gpu
        self._key = schedule, fitted, gpu

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoutinePlan) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def of(self, kernel: KernelFunction) -> KernelFunction:
        """A kernel under this schedule."""
        return _scheduled(kernel, self.schedule, self.fitted)


@lru_cache(maxsize=1024)
def _scheduled(kernel: KernelFunction, schedule: Schedule, fitted: bool) -> KernelFunction:
    return KernelFunction(kernel.function, schedule.over(kernel.schedule), auto=fitted)


def _is_on_gpu(given: Any) -> bool:
    """Whether a tensor among arguments, or in a tree of them, is on a GPU."""
    if isinstance(given, Value):
        return given.device.kind != "cpu"
    if isinstance(given, Mapping):
        return _is_on_gpu(tuple(given.values()))
    return isinstance(given, (tuple, list)) and any(_is_on_gpu(x) for x in given)


def routine(schedule: Any, gpu: Any = None) -> Callable[[Callable[..., Any]], Routine]:
    """Decorator: a function of the library with the schedules that it is shipped with."""
    here = RoutinePlan(as_schedule(schedule))
    return lambda f: Routine(
        f, here, None if gpu is None else RoutinePlan(as_schedule(gpu), gpu=True)
    )
