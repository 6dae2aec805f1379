"""The line search of Moré and Thuente (1994): a step with sufficient decrease and a small slope.

The minimiser is bracketed by an interval with the best point so far at one end; trial points come from
cubic and quadratic interpolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

DECREASE = 1e-3  # f must fall by this share of the first slope (L-BFGS-B's ftol)
CURVATURE = 0.9  # the slope must shrink to this share (L-BFGS-B's gtol)
NARROW = 0.1  # the relative width at which the interval is given up (L-BFGS-B's xtol)
LONGEST = 1e10  # the longest step (`big` of L-BFGS-B)
TRIALS = 20  # evaluations in one search, as in L-BFGS-B


@dataclass(frozen=True)
class SearchPoint:
    """A step, the value and the slope there."""

    t: float
    f: float
    d: float

    def less(self, slope: float) -> SearchPoint:
        """The same point of f(t) - slope * t."""
        return replace(self, f=self.f - slope * self.t, d=self.d - slope)

    def more(self, slope: float) -> SearchPoint:
        return self.less(-slope)


def search(at: Callable[[float], SearchPoint], zero: SearchPoint, first: float) -> float | None:
    """A step from `first` on along a line where at(t) gives value and slope; None when there is none."""
    wanted = DECREASE * zero.d
    best, other, bracketed, early = zero, zero, False, True
    width, last_width = LONGEST, 2 * LONGEST
    low, high, t = 0.0, first + 4.0 * first, first
    for _ in range(TRIALS):
        p = at(t)
        limit = zero.f + t * wanted
        if not math.isfinite(p.f):
            return None
        early = early and not (p.f <= limit and p.d >= 0)
        if p.f <= limit and abs(p.d) <= CURVATURE * -zero.d:
            return t
        if bracketed and (t <= low or t >= high or high - low <= NARROW * high):
            return t if p.f < zero.f else None  # rounding leaves no better one
        if t >= LONGEST and p.f <= limit and p.d <= wanted:
            return t
        if early and limit < p.f <= best.f:
            # The modified function brings the trial where the decrease is sufficient.
            b, o, t, bracketed = step(
                best.less(wanted), other.less(wanted), p.less(wanted), bracketed, low, high
            )
            best, other = b.more(wanted), o.more(wanted)
        else:
            best, other, t, bracketed = step(best, other, p, bracketed, low, high)
        if bracketed:
            if abs(other.t - best.t) >= 0.66 * last_width:
                t = best.t + 0.5 * (other.t - best.t)
            last_width, width = width, abs(other.t - best.t)
            low, high = min(best.t, other.t), max(best.t, other.t)
        else:
            low, high = t + 1.1 * (t - best.t), t + 4.0 * (t - best.t)
        t = min(max(t, 0.0), LONGEST)
        if bracketed and (t <= low or t >= high or high - low <= NARROW * high):
            t = best.t
    return None


def step(
    best: SearchPoint, other: SearchPoint, p: SearchPoint, bracketed: bool, low: float, high: float
) -> tuple[SearchPoint, SearchPoint, float, bool]:
    """The next interval and trial from a new point: best, other, trial, and whether a minimiser is
    bracketed.
    """
    opposite = p.d * math.copysign(1.0, best.d) < 0
    if p.f > best.f:
        t, bracketed = _above(best, p), True
    elif opposite:
        t, bracketed = _turned(best, p), True
    elif abs(p.d) < abs(best.d):
        t = _flatter(best, other, p, bracketed, low, high)
    elif bracketed:
        t = p.t + _cubic(p, other)
    else:
        t = high if p.t > best.t else low
    if p.f > best.f:
        return best, p, t, bracketed
    return p, best if opposite else other, t, bracketed


def _root(a: SearchPoint, b: SearchPoint, theta: float) -> float:
    """sqrt(theta**2 - a.d * b.d) without overflow, 0 where it is not real."""
    s = max(abs(theta), abs(a.d), abs(b.d))
    return s * math.sqrt(max(0.0, (theta / s) ** 2 - a.d / s * (b.d / s)))


def _theta(a: SearchPoint, b: SearchPoint) -> float:
    return 3 * (a.f - b.f) / (b.t - a.t) + a.d + b.d


def _above(best: SearchPoint, p: SearchPoint) -> float:
    """The value is higher: the cubic step if it is nearer to the best point, else the mean with the
    quadratic one.
    """
    theta = _theta(best, p)
    gamma = math.copysign(_root(best, p, theta), p.t - best.t)
    r = (gamma - best.d + theta) / (gamma - best.d + gamma + p.d)
    cubic = best.t + r * (p.t - best.t)
    share = best.d / ((best.f - p.f) / (p.t - best.t) + best.d) / 2
    quadratic = best.t + share * (p.t - best.t)
    if abs(cubic - best.t) <= abs(quadratic - best.t):
        return cubic
    return cubic + (quadratic - cubic) / 2


def _turned(best: SearchPoint, p: SearchPoint) -> float:
    """The slope changed its sign: the cubic or the secant step, the one further from the new point."""
    theta = _theta(best, p)
    gamma = math.copysign(_root(best, p, theta), best.t - p.t)
    r = (gamma - p.d + theta) / (gamma - p.d + gamma + best.d)
    cubic = p.t + r * (best.t - p.t)
    secant = p.t + p.d / (p.d - best.d) * (best.t - p.t)
    return cubic if abs(cubic - p.t) > abs(secant - p.t) else secant


def _flatter(
    best: SearchPoint, other: SearchPoint, p: SearchPoint, bracketed: bool, low: float, high: float
) -> float:
    """The slope shrank: the cubic step where it has a minimum beyond, or the secant one."""
    theta = _theta(best, p)
    gamma = math.copysign(_root(best, p, theta), best.t - p.t)
    r = (gamma - p.d + theta) / (gamma + (best.d - p.d) + gamma)
    far = high if p.t > best.t else low
    cubic = p.t + r * (best.t - p.t) if r < 0 and gamma != 0 else far
    secant = p.t + p.d / (p.d - best.d) * (best.t - p.t)
    if bracketed:
        t = cubic if abs(cubic - p.t) < abs(secant - p.t) else secant
        edge = p.t + 0.66 * (other.t - p.t)
        return min(edge, t) if p.t > best.t else max(edge, t)
    t = cubic if abs(cubic - p.t) > abs(secant - p.t) else secant
    return min(max(t, low), high)


def _cubic(p: SearchPoint, other: SearchPoint) -> float:
    """The way from the new point to the minimum of the cubic through it and the other end."""
    theta = _theta(p, other)
    gamma = math.copysign(_root(other, p, theta), other.t - p.t)
    r = (gamma - p.d + theta) / (gamma - p.d + gamma + other.d)
    return r * (other.t - p.t)
