"""Random mutants of the package (mutants.py), each shown to the tests that run its lines.

    python tools/random_mutants.py --seed 7 --count 200 --jobs 16 --time 470 --record FILE
    python tools/random_mutants.py --seed 7 --count 200 --list

The suite runs once without a fault, with watched.py: which tests run which mutated lines, how long each takes,
and which fail anyhow (they are not asked).  Then each mutant is made in a copy of the project, and the tests that
run its lines are asked, those first that share its names (nearest.py); then files that share its names, since
tests that start processes are not seen.  The working tree is never changed.

A mutant is `caught` by a test that fails, `survived`, a `timeout` (the tests took four times as long as without
it, and 40 s), or `unfinished` at the end of the time.  `whole` says whether all tests that run the line were asked.
"""

from __future__ import annotations

import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # before NumPy is there

import argparse
import ast
import contextlib
import importlib
import inspect
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import mutants
import nearest
import watched

ROOT = Path(__file__).parent.parent
MEMORY = 32 << 30  # bytes that a run of tests may ask for
FIRST = 12.0  # seconds of tests that are asked first
SHARE = 6.0  # of which one file takes at most so many
LIBRARIES = (
    "pytest",
    "hypothesis",
    "numpy",
    "scipy.linalg",
    "scipy.special",
    "ml_dtypes",
    "llvmlite.binding",
    "rich",
)
NAMED = 30.0  # seconds of tests of files that share names


class Job(NamedTuple):
    """A run of pytest."""

    tests: Sequence[str]
    env: Mapping[str, str]
    limit: float


class Done(NamedTuple):
    """How it ended: the exit status, -1 for out of time."""

    status: int
    text: str
    seconds: float


Steps = Generator[Job, Done, None]


class Copy:
    """A copy of the project, with a cache of its own that shares machine code by the text of its LLVM IR."""

    def __init__(self, folder: Path, code: Path):
        self.folder, self.log = folder, folder.with_suffix(".log")
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False,
        ).stdout.split("\n")  # fmt: skip
        kept = [x for x in listed if x and (ROOT / x).is_file()] or _listed()
        for name in kept:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self.cache = folder.with_suffix(".cache")
        self.code, self.moment = code, time.time()
        self.empty()

    def empty(self) -> None:
        """Forget programs, which a mutant may have made."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.cache.mkdir(mode=0o700)
        (self.cache / "code").symlink_to(self.code)

    def write(self, path: str, text: str) -> None:
        """Change a file of the package so that Python sees it, however soon after the last change."""
        file = self.folder / "tessera" / path
        file.write_text(text)
        self.moment += 10
        os.utime(file, (self.moment, self.moment))

    def start(self, job: Job) -> int:
        """Fork a process that runs the tests of a job."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(self.folder)
            tools = str(self.folder / "tools")
            os.environ |= {
                "TESSERA_CACHE_DIR": str(self.cache), "PYTHONPATH": f"{self.folder}{os.pathsep}{tools}", **job.env,
            }  # fmt: skip
            sys.path[:] = [str(self.folder), tools] + [
                x for x in sys.path if Path(x).name != "tools"
            ]
            sys.argv = ["pytest"]
            import pytest

            status = int(pytest.main([
                "-x", "-q", "-p", "no:cacheprovider", "-p", "watched", "--tb=line", "--hypothesis-profile=mutations",
                "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not oracle and not gpu and not deep",
                *(["--maxfail=1000000"] if watched.WATCH in job.env else []), *job.tests,
            ]))  # fmt: skip
            sys.stdout.flush()
        finally:
            os._exit(status)


def _listed() -> list[str]:
    """The files of a project that is no checkout."""
    skipped = {
        ".git",
        ".venv",
        "build",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
    }
    found = (f.relative_to(ROOT) for f in ROOT.rglob("*") if f.is_file())
    return [f.as_posix() for f in found if not skipped & set(f.parts)]


def run_all(copies: Sequence[Copy], work: Iterable[tuple[Any, Any]], until: float) -> None:
    """Do `make(copy)` for every (name, make) of the work, whose steps are jobs; stop all at the end of the time."""
    queue, idle = list(work)[::-1], list(copies)
    running: dict[int, tuple[Copy, Steps, float, float]] = {}

    def go(copy: Copy, steps: Steps, done: Done | None) -> None:
        try:
            job = next(steps) if done is None else steps.send(done)
        except StopIteration:
            idle.append(copy)
            return
        now = time.monotonic()
        running[copy.start(job)] = copy, steps, now, now + job.limit

    while (queue and time.monotonic() < until) or running:
        while queue and idle and time.monotonic() < until:
            copy = idle.pop()
            go(copy, queue.pop()[1](copy), None)
        ended = {pid: os.waitpid(pid, os.WNOHANG) for pid in running}
        for pid, (found, raw) in ended.items():
            copy, steps, begin, limit = running[pid]
            now = time.monotonic()
            if not found and now < min(limit, until):
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it started, too
            if not found:
                os.waitpid(pid, 0)
            del running[pid]
            status = os.waitstatus_to_exitcode(raw) if found else -1 if now < until else -2
            text = copy.log.read_text(errors="replace") if copy.log.exists() else ""
            go(copy, steps, Done(status, text, now - begin))
        time.sleep(0.02)


def _statements(tree: ast.AST) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Every statement with the function, class or module whose body has it, outer ones first."""
    todo: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while todo:
        node, owner = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield child, owner
            opens = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            todo.append((child, child if opens else owner))


def lines_of(text: str, m: mutants.Mutant) -> set[int]:
    """The lines that run when a mutant does: of its statement, or where a name or default that it gives is used."""
    inner: tuple[ast.stmt, ast.AST] | None = None
    for s, owner in _statements(ast.parse(text)):
        if s.lineno <= m.line <= (s.end_lineno or s.lineno):
            if inner is None or s.lineno >= inner[0].lineno:
                inner = s, owner
    if inner is None:
        return {m.line}
    s, owner = inner
    last = s.end_lineno or s.lineno
    if isinstance(s, ast.FunctionDef):  # a default: whoever calls the function
        return set(range(s.lineno, last + 1))
    body = getattr(s, "body", None)
    lines = set(range(s.lineno, max(s.lineno, body[0].lineno - 1) + 1 if body else last + 1))
    if not isinstance(owner, ast.FunctionDef):
        targets = s.targets if isinstance(s, ast.Assign) else [getattr(s, "target", None)]
        for name in (x.id for x in targets if isinstance(x, ast.Name)):
            word = re.compile(rf"\b{re.escape(name)}\b")
            lines |= {i for i, line in enumerate(text.splitlines(), 1) if word.search(line)}
    return lines


def places(drawn: Sequence[mutants.Mutant]) -> dict[str, dict[int, list[int]]]:
    """For each file its watched lines, and the numbers of the mutants there."""
    out: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, m in enumerate(drawn):
        for n in lines_of((ROOT / "tessera" / m.path).read_text(), m):
            out[m.path][n].append(i)
    return out


def _lines(code: CodeType) -> Iterator[int]:
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield from (n for *_, n in code.co_lines() if n and n != code.co_firstlineno)
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _lines(x)


def never_run(package: Path, ran: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
    """Lines of functions of the package that no test runs, by file."""
    out = {}
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package).as_posix()
        lines = set(_lines(compile(file.read_text(), path, "exec"))) - set(ran.get(path, ()))
        if lines:
            out[path] = sorted(lines)
    return out


class Map:
    """What the suite did without a fault."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # of each test
        self.failed: list[str] = []
        self.hit: dict[int, set[str]] = defaultdict(set)  # tests by mutant
        self.unfinished: list[str] = []  # files
        self.ran: dict[str, set[int]] = defaultdict(set)  # lines of the package

    def read(self, file: str, out: Path, ended: bool) -> None:
        """Take what a file of tests wrote."""
        whole: list[int] = []
        tests: list[str] = []
        for line in out.read_text().splitlines() if out.exists() else ():
            row = json.loads(line)
            for path, lines in row.get("ran", {}).items():
                self.ran[path].update(lines)
            if "ran" in row:
                continue
            if row["test"] == "":
                whole = row["hit"]
                continue
            if row["failed"]:
                self.failed.append(row["test"])
                continue
            tests.append(row["test"])
            self.seconds[row["test"]] = row["seconds"]
            for i in row["hit"]:
                self.hit[i].add(row["test"])
        for i in whole:
            self.hit[i].update(tests)
        if not ended:
            self.unfinished.append(file)

    def files(self) -> dict[str, list[str]]:
        """The tests of each file."""
        out: dict[str, list[str]] = defaultdict(list)
        for t in self.seconds:
            out[t.split("::")[0]].append(t)
        return out


def mapped(
    copies: Sequence[Copy], files: Sequence[str], watch: Path, folder: Path, until: float
) -> Map:
    """Run the suite once."""
    found = Map()

    def maker(i: int, file: str) -> Any:
        def make(copy: Copy) -> Steps:
            out = folder / f"map{i}"
            env = {watched.WATCH: str(watch), watched.WATCHED: str(out)}
            done = yield Job([file], env, 600)
            found.read(file, out, done.status in (0, 1, 5))

        return make

    run_all(copies, [(f, maker(i, f)) for i, f in enumerate(files)], until)
    return found


def asked(
    m: mutants.Mutant, number: int, found: Map, names: nearest.Names, budget: float
) -> tuple[list[list[str]], bool]:
    """Groups of tests for a mutant, and whether all tests that run its lines are among them."""
    words = names.words(m.path, m.scope)
    order = {f: i for i, f in enumerate(names.files(m.path, words))}
    by_file: dict[str, list[str]] = defaultdict(list)
    for t in found.hit.get(number, ()):
        by_file[t.split("::")[0]].append(t)

    def near(test: str) -> float:
        mine = set(re.findall(r"[A-Za-z0-9]+|[A-Za-z_][A-Za-z0-9_]+", test.partition("::")[2]))
        return -sum(x for w, x in words.items() if w in mine)

    groups: list[list[str]] = [[], []]
    spent = [0.0, 0.0]
    left = 0
    for f in sorted(by_file, key=lambda f: order.get(f, len(order))):
        here = 0.0
        for t in sorted(by_file[f], key=lambda t: (near(t), found.seconds[t], t)):
            cost = found.seconds[t] + 0.01
            first = here + cost < SHARE and spent[0] + cost < FIRST
            if not first and spent[1] + cost > budget:
                left += 1
                continue
            groups[not first].append(t)
            spent[not first] += cost
            here += cost
    seen = {t for g in groups for t in g}
    named: list[str] = []
    total, mine = 0.0, found.files()
    for f in sorted(order, key=order.__getitem__)[:6]:
        for t in sorted(mine.get(f, ()), key=near):
            cost = found.seconds[t] + 0.01
            if t not in seen and total + cost <= NAMED:
                named.append(t)
                total += cost
    return [g for g in (*groups, named) if g], left == 0


def _by(text: str, status: int) -> str:
    failed = [x for x in text.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit status {status}"


class Outcomes:
    """What became of the mutants, written when each is known."""

    def __init__(self, head: Mapping[str, Any], record: Path | None):
        self.head, self.record = dict(head), record
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Keep an outcome."""
        self.rows.append(row)
        print(
            f"{row['outcome']:10} {row['seconds']:6.1f} s  {row['mutant']}  [{row.get('by', '')}]",
            flush=True,
        )
        if self.record:
            counts = defaultdict(int)
            for r in self.rows:
                counts[r["outcome"]] += 1
            whole = {**self.head, "tried": len(self.rows), **counts, "outcomes": self.rows}
            self.record.write_text(json.dumps(whole, indent=1) + "\n")


def tried(
    m: mutants.Mutant, groups: Sequence[Sequence[str]], whole: bool, found: Map, out: Outcomes,
    folder: Path,
) -> Any:  # fmt: skip
    """The steps of a mutant."""

    def make(copy: Copy) -> Steps:
        right = (ROOT / "tessera" / m.path).read_text()
        copy.empty()
        copy.write(m.path, m.apply(right))
        row: dict[str, Any] = {
            "mutant": str(m),
            "outcome": "survived",
            "seconds": 0.0,
            "whole": whole,
        }
        row["tests"] = sum(map(len, groups))
        try:
            for group in groups:
                listed = folder / f"{copy.folder.name}.asked"
                listed.write_text(json.dumps(group))
                expected = sum(found.seconds[t] for t in group)
                files = list(dict.fromkeys(t.split("::")[0] for t in group))
                done = yield Job(files, {watched.ASKED: str(listed)}, 40 + 4 * expected)
                row["seconds"] = round(row["seconds"] + done.seconds, 1)
                if done.status in (0, 5):
                    continue
                row["outcome"] = {-1: "timeout", -2: "unfinished"}.get(done.status, "caught")
                if done.status not in (-1, -2):
                    row["by"] = _by(done.text, done.status)
                break
        finally:
            copy.write(m.path, right)
        out.add(row)

    return make


def main() -> int:
    """Run what the command line asks for."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--count", type=int, default=200)
    p.add_argument("--only", type=int, nargs="+", help="numbers of mutants of the draw")
    p.add_argument("--list", action="store_true", help="print the mutants")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--time", type=float, default=1e9, help="seconds for all")
    p.add_argument(
        "--map-time", type=float, default=1e9, help="seconds for the run without a fault"
    )
    p.add_argument("--budget", type=float, default=45, help="seconds of tests for a mutant")
    p.add_argument(
        "--files", type=int, help="only so many test files that share names with a mutant"
    )
    p.add_argument("--record", type=Path, help="where outcomes are written")
    p.add_argument(
        "--never", type=Path, help="where lines that no test runs are written (Python 3.12)"
    )
    given = p.parse_args()
    begin = time.monotonic()
    drawn = mutants.draw(ROOT / "tessera", given.seed, given.count)
    drawn = [drawn[i] for i in given.only] if given.only else drawn
    if given.list:
        for i, m in enumerate(drawn):
            print(f"{i:3} {m}")
        return 0
    for name in LIBRARIES:
        importlib.import_module(name)  # once, before processes are forked; not the package
    names = nearest.Names(ROOT / "tessera", ROOT / "tests")
    near = {
        f for m in drawn for f in names.files(m.path, names.words(m.path, m.scope))[: given.files]
    }
    files = sorted(near, key=lambda f: -(ROOT / f).stat().st_size)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        folder = Path(temporary)
        (folder / "code").mkdir()
        copies = [Copy(folder / str(i), folder / "code") for i in range(given.jobs)]
        (folder / "watch.json").write_text(json.dumps(places(drawn)))
        print(
            f"{len(files)} test files, {given.jobs} copies in {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        until = begin + min(given.time, given.map_time)
        found = mapped(copies, files, folder / "watch.json", folder, until)
        took = time.monotonic() - begin
        print(f"{len(found.seconds)} tests pass in {took:.0f} s; {len(found.failed)} fail, {len(found.unfinished)} "
              "files did not end:", *found.failed, *found.unfinished, sep="\n  ", flush=True)  # fmt: skip
        head = {"seed": given.seed, "count": len(drawn), "tests": len(found.seconds), "map_seconds": round(took),
                "fail_anyhow": found.failed, "files_unfinished": found.unfinished}  # fmt: skip
        out = Outcomes(head, given.record)
        work = []
        for i, m in enumerate(drawn):
            groups, whole = asked(m, i, found, names, given.budget)
            work.append((str(m), tried(m, groups, whole, found, out, folder)))
        run_all(copies, work, begin + given.time)
    if given.never and found.ran:
        given.never.write_text(json.dumps(never_run(ROOT / "tessera", found.ran)))
    counts = {
        k: sum(r["outcome"] == k for r in out.rows)
        for k in ("caught", "timeout", "survived", "unfinished")
    }
    print(f"{counts} of {len(drawn)} in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
