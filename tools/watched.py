"""A plugin of pytest for random_mutants.py: which tests run which mutated lines, and which tests are asked.

With `TESSERA_WATCH` (a JSON file: for each file of the package its lines, and the numbers of the mutants there)
each test writes a line of JSON to `TESSERA_WATCHED`: its id, its seconds, the mutants whose lines it ran, and
whether it failed.  Lines that run while tests are collected are those of the test "".  The last line has all
lines of the package that ran.

With `TESSERA_ASKED` (a JSON file: ids of tests) only those tests run, in that order.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

WATCH, WATCHED, ASKED = "TESSERA_WATCH", "TESSERA_WATCHED", "TESSERA_ASKED"

Lines = Mapping[int, tuple[int, ...]]


class Watch:
    """The mutants whose lines ran since the last time that somebody asked."""

    def __init__(self, places: Mapping[str, Lines], package: str = ""):
        self.places = places  # whole paths of files
        self.package = package  # its folder
        self.ran: set[tuple[str, int]] = (
            set()
        )  # all lines of the package that ran, where Python tells
        self.hits: set[int] = set()
        self.codes: dict[CodeType, Lines | None] = {}

    def lines(self, code: CodeType) -> Lines | None:
        """The watched lines of a function; bodies of modules and classes run at import, whoever imports them."""
        if code not in self.codes:
            of = self.places.get(code.co_filename) if code.co_flags & inspect.CO_OPTIMIZED else None
            inside = of and {n: of[n] for *_, n in code.co_lines() if n in of}
            self.codes[code] = inside or None
        return self.codes[code]

    def taken(self) -> list[int]:
        """What was hit, which begins anew."""
        out = sorted(self.hits)
        self.hits.clear()
        return out

    def start(self) -> None:
        """Begin to watch, by sys.monitoring where Python has it: other lines then cost nothing."""
        if sys.version_info >= (3, 12):
            self._monitor()
            return
        threading.settrace(self._call)
        sys.settrace(self._call)

    def _monitor(self) -> None:
        m: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool, events = m.COVERAGE_ID, m.events
        m.use_tool_id(tool, "watched")

        def line(code: CodeType, number: int) -> object:
            file = code.co_filename
            if file.startswith(self.package):
                self.ran.add((file[len(self.package) :], number))
                ids = self.places.get(file, {}).get(number)
                if ids is not None and code.co_flags & inspect.CO_OPTIMIZED:
                    self.hits.update(ids)
                    return None
            return m.DISABLE

        m.register_callback(tool, events.LINE, line)
        m.set_events(tool, events.LINE)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        lines = self.lines(frame.f_code)
        if not lines:
            return None

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                self.hits.update(lines.get(frame.f_lineno, ()))
            return local

        return local


_watch: Watch | None = None
_failed = False


def _begin() -> None:
    """Begin to watch, before conftest.py imports the package."""
    global _watch
    package = Path.cwd() / "tessera"
    found = json.loads(Path(os.environ[WATCH]).read_text())
    places = {
        str(package / path): {int(n): tuple(ids) for n, ids in lines.items()}
        for path, lines in found.items()
    }
    _watch = Watch(places, f"{package}{os.sep}")
    _watch.start()


def pytest_unconfigure(config: Any) -> None:
    """Write which lines of the package ran."""
    if _watch is not None and _watch.ran:
        lines: dict[str, list[int]] = {}
        for file, n in sorted(_watch.ran):
            lines.setdefault(file, []).append(n)
        with open(os.environ[WATCHED], "a") as out:
            out.write(json.dumps({"ran": lines}) + "\n")


def _write(test: str, seconds: float) -> None:
    assert _watch is not None
    row = {"test": test, "seconds": round(seconds, 3), "hit": _watch.taken(), "failed": _failed}
    with open(os.environ[WATCHED], "a") as out:
        out.write(json.dumps(row) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the tests that are asked, in their order."""
    import tessera

    assert Path(tessera.__file__).is_relative_to(Path.cwd()), tessera.__file__
    if _watch is not None:
        _write("", 0.0)
    if ASKED in os.environ:
        order = {t: i for i, t in enumerate(json.loads(Path(os.environ[ASKED]).read_text()))}
        config.hook.pytest_deselected(items=[x for x in items if x.nodeid not in order])
        items[:] = sorted((x for x in items if x.nodeid in order), key=lambda x: order[x.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    """Write what a test ran."""
    global _failed
    _failed, begin = False, time.perf_counter()
    try:
        return (yield)
    finally:
        if _watch is not None:
            _write(item.nodeid, time.perf_counter() - begin)


def pytest_runtest_logreport(report: Any) -> None:
    """Notice that a test fails."""
    global _failed
    _failed = _failed or report.failed


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """What conftest.py imports runs lines, too."""
    if WATCH in os.environ:
        _begin()
