"""A plugin of pytest for random_mutants.py: which tests run which lines of the package, and which tests are
asked.

With `TESSERA_WATCHED` (a file) lines of JSON are written there: first the ids of all tests that were
collected, with what ran while they were; then for each test its id, its seconds, the lines that it ran, and
whether it failed. Lines of a file are a mask, bit n for line n.  Python 3.11 tells functions only: their
lines are taken for run.

With `TESSERA_ASKED` (a JSON file: ids of tests) only those tests run, in that order.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

WATCHED, ASKED = "TESSERA_WATCHED", "TESSERA_ASKED"


class Watch:
    """The lines of functions of a package that ran since the last time that somebody asked."""

    def __init__(self, package: str):
        self.package = package  # its folder, with a slash at its end
        self.masks: dict[str, int] = {}  # of files
        self.codes: dict[CodeType, int] = {}  # lines of functions

    def lines(self, code: CodeType) -> int:
        """The lines of a function; bodies of modules and classes run at import, whoever imports them."""
        if code not in self.codes:
            mine = (
                code.co_filename.startswith(self.package) and code.co_flags & inspect.CO_OPTIMIZED
            )
            self.codes[code] = (
                sum(1 << n for n in {n for *_, n in code.co_lines() if n}) if mine else 0
            )
        return self.codes[code]

    def add(self, code: CodeType, mask: int) -> None:
        """Lines of a function ran."""
        path = code.co_filename[len(self.package) :]
        self.masks[path] = self.masks.get(path, 0) | mask

    def taken(self) -> dict[str, str]:
        """What ran, which begins anew."""
        out = {path: f"{mask:x}" for path, mask in self.masks.items()}
        self.masks = {}
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()  # type: ignore[attr-defined,unused-ignore]
        return out

    def start(self) -> None:
        """Begin to watch, by sys.monitoring where Python has it: a line costs once a test."""
        if sys.version_info >= (3, 12):
            self._monitor()
            return
        threading.settrace(self._call)
        sys.settrace(self._call)

    def _monitor(self) -> None:
        m: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        m.use_tool_id(m.COVERAGE_ID, "watched")

        def line(code: CodeType, number: int) -> object:
            if self.lines(code):
                self.add(code, 1 << number)
            return m.DISABLE

        m.register_callback(m.COVERAGE_ID, m.events.LINE, line)
        m.set_events(m.COVERAGE_ID, m.events.LINE)

    def _call(self, frame: FrameType, event: str, arg: Any) -> None:
        mask = self.lines(frame.f_code)
        if mask:
            self.add(frame.f_code, mask)


_watch: Watch | None = None
_failed = False


def _write(**row: Any) -> None:
    assert _watch is not None
    with open(os.environ[WATCHED], "a") as out:
        out.write(json.dumps({**row, "ran": _watch.taken()}) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the tests that are asked, in their order."""
    import tessera

    assert Path(tessera.__file__).is_relative_to(Path.cwd()), tessera.__file__
    if ASKED in os.environ:
        order = {t: i for i, t in enumerate(json.loads(Path(os.environ[ASKED]).read_text()))}
        config.hook.pytest_deselected(items=[x for x in items if x.nodeid not in order])
        items[:] = sorted((x for x in items if x.nodeid in order), key=lambda x: order[x.nodeid])


def pytest_collection_finish(session: Any) -> None:
    """Write which tests will run: those that marks leave."""
    if _watch is not None:
        _write(tests=[x.nodeid for x in session.items])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    """Write what a test ran."""
    global _failed
    _failed, begin = False, time.perf_counter()
    try:
        return (yield)
    finally:
        if _watch is not None:
            _write(test=item.nodeid, seconds=round(time.perf_counter() - begin, 3), failed=_failed)


def pytest_runtest_logreport(report: Any) -> None:
    """Notice that a test fails."""
    global _failed
    _failed = _failed or report.failed


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Begin before conftest.py imports the package, which runs lines, too."""
    global _watch
    if WATCHED in os.environ:
        _watch = Watch(f"{Path.cwd() / 'tessera'}{os.sep}")
        _watch.start()
