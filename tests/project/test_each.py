"""Cases that share a test: each is checked, and a failure names its case."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest

from tests.support.runners.each import check_each, each, over


class Number(NamedTuple):
    name: str
    value: int


def test_cases_of_one_name_share_a_test() -> None:
    checked: list[Number] = []

    def check(name: str, value: int) -> None:
        checked.append(Number(name, value))

    test = each([Number("a", 1), Number("b", 2), Number("a", 3)])(check)
    (mark,) = test.pytestmark
    assert list(mark.kwargs["ids"]) == ["a", "b"]
    for group in mark.args[1]:
        test(group)
    assert checked == [Number("a", 1), Number("a", 3), Number("b", 2)]


def test_combinations_share_a_test_of_what_is_left() -> None:
    checked: list[tuple[int, str, bool]] = []

    def check(n: int, name: str, flag: bool) -> None:
        checked.append((n, name, flag))
        assert (n, name) != (2, "b")

    test = over(n=[1, 2], name="ab")(pytest.mark.parametrize("flag", [True])(check))
    assert list(inspect.signature(test).parameters) == ["flag"]
    assert [m.name for m in test.pytestmark] == ["parametrize"]
    with pytest.raises(AssertionError) as found:
        test(flag=True)
    assert found.value.__notes__ == ["case: {'n': 2, 'name': 'b'}"]
    assert checked == [(n, name, True) for n in (1, 2) for name in "ab"]


def odd(x: int) -> None:
    if x == 0:
        pytest.skip("neither")
    assert x % 2


def test_one_failure_is_told_with_its_case() -> None:
    with pytest.raises(AssertionError) as found:
        check_each(odd, [1, 4, 0, 3], str)
    assert found.value.__notes__ == ["case: 4"]


def test_several_failures_are_told_together() -> None:
    with pytest.raises(ExceptionGroup, match="2 of 4 cases") as found:
        check_each(odd, [2, 1, 4, 3], str)
    assert [e.__notes__ for e in found.value.exceptions] == [["case: 2"], ["case: 4"]]


def test_a_group_is_skipped_where_all_of_it_is() -> None:
    check_each(odd, [0, 1], str)
    with pytest.raises(pytest.skip.Exception, match="neither"):
        check_each(odd, [0, 0], str)
