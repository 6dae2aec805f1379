"""Schedules: rates as functions of the step, which counts from 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.core.blame import wanting
from tessera.core.errors import OperandError
from tessera.lang import op

Schedule = Callable[[Any], Any]


def _demand_steps(name: str, steps: int) -> None:
    """Refuse a number of steps below zero."""
    if steps < 0:
        raise OperandError(f"{name}: steps is {steps}, expected 0 or more")


def _demand_period(name: str, parameter: str, every: float) -> None:
    """Refuse a period that the step cannot be divided by."""
    if not every > 0:
        raise OperandError(f"{name}: {parameter} is {every}, expected more than 0")


@wanting
def constant(value: float) -> Schedule:
    """The same rate at every step."""
    return lambda step: op.full_like(step, value)


@wanting
def linear(start: float, stop: float, steps: int) -> Schedule:
    """A rate that goes from start to stop in so many steps and stays there."""
    _demand_steps("linear", steps)
    return lambda step: start + (stop - start) * op.clip(step / max(steps, 1), 0.0, 1.0)


@wanting
def exponential(start: float, factor: float, every: float = 1.0) -> Schedule:
    """A rate that is multiplied by a factor in the course of `every` steps, evenly."""
    _demand_period("exponential", "every", every)
    return lambda step: start * op.pow(factor, step / every)


@wanting
def staircase(start: float, factor: float, every: int) -> Schedule:
    """A rate that is multiplied by a factor after each `every` steps."""
    _demand_period("staircase", "every", every)
    return lambda step: start * op.pow(factor, op.floor(step / every))


@wanting
def milestones(start: float, factors: Mapping[int, float]) -> Schedule:
    """A rate that is multiplied by a factor at each of some steps: {1000: 0.1, 2000: 0.1}."""
    for at, factor in factors.items():
        if not (hasattr(at, "__index__") and hasattr(factor, "__float__")):
            raise OperandError(
                f"milestones: factors has {at!r:.20}: {factor!r:.20}, expected steps and factors, as in "
                "{1000: 0.1, 2000: 0.1}"
            )

    def rate(step: Any) -> Any:
        r = op.full_like(step, start)
        for at, factor in factors.items():
            r = op.where(step >= at, r * factor, r)
        return r

    return rate


@wanting
def polynomial(start: float, steps: int, power: float = 1.0, stop: float = 0.0) -> Schedule:
    """stop + (start - stop) * (1 - step / steps) ** power, and stop from `steps` on."""
    _demand_steps("polynomial", steps)

    def rate(step: Any) -> Any:
        left = 1 - op.clip(step / max(steps, 1), 0.0, 1.0)
        return stop + (start - stop) * op.pow(left, power)

    return rate


@wanting
def cosine(start: float, steps: int, floor: float = 0.0) -> Schedule:
    """A rate that falls along a half cosine from start to floor in so many steps."""
    _demand_steps("cosine", steps)

    def rate(step: Any) -> Any:
        share = op.clip(step / max(steps, 1), 0.0, 1.0)
        return floor + (start - floor) * 0.5 * (1 + op.cos(share * math.pi))

    return rate


@wanting
def cosine_restarts(start: float, steps: int, floor: float = 0.0) -> Schedule:
    """cosine that begins anew every `steps` steps (Loshchilov and Hutter 2017)."""
    _demand_period("cosine_restarts", "steps", steps)
    fall = cosine(start, steps, floor)
    return lambda step: fall(op.remainder(step, float(steps)))


@wanting
def warmup_cosine(peak: float, warmup: int, total: int, floor: float = 0.0) -> Schedule:
    """A rate that rises linearly for `warmup` steps and then falls along a half cosine."""

    def rate(step: Any) -> Any:
        rising = peak * (step + 1) / max(warmup, 1)
        share = op.clip((step - warmup) / max(total - warmup, 1), 0.0, 1.0)
        falling = floor + (peak - floor) * 0.5 * (1 + op.cos(share * math.pi))
        return op.where(step < warmup, rising, falling)

    return rate


@wanting
def inverse_sqrt(peak: float, warmup: int) -> Schedule:
    """A rate that rises linearly for `warmup` steps and then falls as 1 / sqrt(step)."""

    def rate(step: Any) -> Any:
        n = step + 1
        return peak * op.minimum(n / max(warmup, 1), op.sqrt(max(warmup, 1) / n))

    return rate


@wanting
def warmup(schedule: float | Schedule, steps: int, start: float = 0.0) -> Schedule:
    """A linear rise from a share `start` over so many steps, then the schedule from its step 0."""
    _demand_steps("warmup", steps)
    after = schedule if callable(schedule) else constant(schedule)

    def rate(step: Any) -> Any:
        rising = after(op.zeros_like(step)) * (start + (1 - start) * step / max(steps, 1))
        return op.where(step < steps, rising, after(op.maximum(step - steps, 0.0)))

    return rate


@wanting
def one_cycle(
    peak: float, steps: int, rise: float = 0.3, first: float = 25.0, last: float = 1e4
) -> Schedule:
    """Up from peak / first along a cosine for a share of the steps, then down to peak / first / last (Smith
    2018).
    """
    _demand_period("one_cycle", "steps", steps)
    low, top, end = peak / first, rise * steps - 1, steps - 1

    def rate(step: Any) -> Any:
        def between(a: float, b: float, share: Any) -> Any:
            return b + (a - b) / 2 * (1 + op.cos(math.pi * op.clip(share, 0.0, 1.0)))

        up = between(low, peak, step / max(top, 1e-9))
        down = between(peak, low / last, (step - top) / max(end - top, 1e-9))
        return op.where(step <= top, up, down)

    return rate


@wanting
def join(schedules: Sequence[Any], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after the other, each from its step 0; boundaries are where the next one begins."""
    if len(boundaries) != len(schedules) - 1 or list(boundaries) != sorted(boundaries):
        raise OperandError(
            f"join: got {len(schedules)} schedules and boundaries {list(boundaries)}, expected rising "
            "boundaries, "
            "one less than schedules"
        )
    if any(b < 0 for b in boundaries):
        raise OperandError(f"join: boundaries are {list(boundaries)}, expected steps from 0 on")
    for i, schedule in enumerate(schedules):
        if not callable(schedule):
            raise OperandError(
                f"join: schedule {i} is {type(schedule).__name__} {schedule!r:.40}, expected a function of "
                "the step; a constant rate is optim.constant(rate)"
            )

    def rate(step: Any) -> Any:
        r = schedules[0](step)
        for schedule, at in zip(schedules[1:], boundaries, strict=True):
            r = op.where(step >= at, schedule(op.maximum(step - at, 0.0)), r)
        return r

    return rate
