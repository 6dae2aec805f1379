"""One test for many small cases: what pytest does for a test takes longer than most of them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(
    cases: Iterable[Any],
    by: Callable[[Any], str] = lambda c: str(c.name),
    told: Callable[[Any], str] = str,
) -> Callable[[Callable[..., None]], Any]:
    """In place of `parametrize`: a test for each group of cases, which checks all of them.

    What fails names its case in a note; several failures of a group are told together.  A case may be a
    tuple of arguments.  A group is skipped where all of its cases are.
    """
    groups: dict[str, list[Any]] = {}
    for c in cases:
        groups.setdefault(by(c), []).append(c)

    def decorate(check: Callable[..., None]) -> Any:
        def test(group: list[Any]) -> None:
            check_each(check, group, told)

        test.__name__, test.__doc__, test.__module__ = (
            check.__name__,
            check.__doc__,
            check.__module__,
        )
        test.pytestmark = list(getattr(check, "pytestmark", ()))  # type: ignore[attr-defined]
        return pytest.mark.parametrize("group", groups.values(), ids=groups.keys())(test)

    return decorate


def over(**values: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """In place of `parametrize`: one test checks every combination of these arguments; what fails names
    its own.
    """
    names, cases = list(values), list(itertools.product(*values.values()))

    def decorate(check: Callable[..., None]) -> Any:
        def test(**given: Any) -> None:
            def one(case: dict[str, Any]) -> None:
                check(**given, **case)

            check_each(one, [dict(zip(names, c, strict=True)) for c in cases], str)

        test.__name__, test.__doc__, test.__module__ = (
            check.__name__,
            check.__doc__,
            check.__module__,
        )
        test.pytestmark = list(getattr(check, "pytestmark", ()))  # type: ignore[attr-defined]
        signature = inspect.signature(check)
        left = [p for n, p in signature.parameters.items() if n not in values]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return test

    return decorate


def check_each(check: Callable[..., None], group: list[Any], told: Callable[[Any], str]) -> None:
    """Check every case of a group, whatever becomes of the others."""
    failed: list[Exception] = []
    skipped: list[BaseException] = []
    for c in group:
        try:
            check(*(c if isinstance(c, tuple) else (c,)))
        except pytest.skip.Exception as e:
            skipped.append(e)
        except Exception as e:
            e.add_note(f"case: {told(c)}")
            failed.append(e)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(group)} cases", failed)
    if len(skipped) == len(group):
        raise skipped[0]
