"""Random mutants of the package (mutants.py), each shown to the tests that run its lines.

    python tools/random_mutants.py --map FILE --map-only --jobs 16 --time 540
    python tools/random_mutants.py --map FILE --seed 7 --count 200 --jobs 16 --time 540 --record RECORD
    python tools/random_mutants.py --seed 7 --count 200 --list

The suite runs once without a fault (line_map.py): which tests run which lines, how long each takes, and
which fail anyhow (they are not asked).  The map is kept in a file, for other draws too; both commands go on
where they were cut. Each mutant is made in a copy of the project, and the tests that run its lines are
asked, those first that share its names (nearest.py); then files that share its names, since tests that
start processes are not seen; last, all other tests of files that run its lines, and of the folder of tests
that mirrors its package, since what one test computed and kept is not computed again for the next.  The
working tree is never changed.

A mutant is `caught` by a test that fails, `survived`, `unmapped` (it survived, and the map has not all
tests), a
`timeout` (the tests took four times as long as without it, and 40 s), or `unfinished` at the end of the time.
`left_out` of a survivor is the number of tests above that the budgets left out.
"""

from __future__ import annotations

import os

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # before NumPy is there

import argparse
import ast
import importlib
import inspect
import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import line_map
import mutants
import nearest
import watched
from copies import OUT_OF_LIMIT, OUT_OF_TIME, ROOT, Copy, Job, Steps, run_all
from line_map import LineMap

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
    """The lines that run when a mutant does: of its statement, or where a name or default that it gives
    is used.
    """
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


class Budget(NamedTuple):
    """Seconds of tests that a mutant may be shown to."""

    hits: float  # tests that run its lines
    last: float  # the others of their files, and of the folder that mirrors its package


class Asked(NamedTuple):
    """Tests for a mutant, in the order in which they are asked, and how many of them the budgets leave
    out.
    """

    groups: Sequence[Sequence[str]]
    left_out: int
    unmapped: Sequence[str]  # files that the map has not, and that are asked nothing


def mirror(path: str, files: Collection[str]) -> list[str]:
    """The test files of the folder that mirrors a module's package, or of the nearest one above it."""
    folder = Path("tests") / Path(path).parent
    while True:
        found = [f for f in files if Path(f).is_relative_to(folder)]
        if found or folder == Path("tests"):
            return found if folder != Path("tests") else []
        folder = folder.parent


def asked(
    m: mutants.Mutant, hits: Sequence[str], found: LineMap, names: nearest.Names, budget: Budget
) -> Asked:
    """Groups of tests for a mutant whose lines these tests run."""
    words = names.words(m.path, m.scope)
    order = {f: i for i, f in enumerate(names.files(m.path, words))}
    by_file: dict[str, list[str]] = defaultdict(list)
    for t in hits:
        by_file[t.split("::")[0]].append(t)

    def near(test: str) -> float:
        mine = set(re.findall(r"[A-Za-z0-9]+|[A-Za-z_][A-Za-z0-9_]+", test.partition("::")[2]))
        return -sum(x for w, x in words.items() if w in mine)

    groups: list[list[str]] = [[], []]
    spent = [0.0, 0.0]
    for f in sorted(by_file, key=lambda f: order.get(f, len(order))):
        here = 0.0
        for t in sorted(by_file[f], key=lambda t: (near(t), found.seconds[t], t)):
            cost = found.seconds[t] + 0.01
            first = here + cost < SHARE and spent[0] + cost < FIRST
            if not first and spent[1] + cost > budget.hits:
                continue
            groups[not first].append(t)
            spent[not first] += cost
            here += cost
    seen = {t for g in groups for t in g}
    mine = found.tests()

    def others(files: Sequence[str], limit: float) -> tuple[list[str], int]:
        total, out, left = 0.0, [], 0
        for f in files:
            for t in sorted(mine.get(f, ()), key=near):
                cost = found.seconds[t] + 0.01
                if t in seen:
                    continue
                if total + cost <= limit:
                    out.append(t)
                    total += cost
                else:
                    left += 1
        seen.update(out)
        return out, left

    named, _ = others(sorted(order, key=order.__getitem__)[:6], NAMED)
    mirrored = mirror(m.path, order)
    last = sorted(
        {*by_file, *mirrored}, key=lambda f: (f not in mirrored, order.get(f, len(order)))
    )
    rest, left_out = others(last, budget.last)
    unmapped = sorted(found.missing(list(order)))
    return Asked([g for g in (*groups, named, rest) if g], left_out, unmapped)


def _by(text: str, status: int) -> str:
    failed = [x for x in text.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else f"exit status {status}"


class Outcomes:
    """What became of the mutants, written when each is known."""

    def __init__(self, head: Mapping[str, Any], record: Path | None):
        self.head, self.record = dict(head), record
        self.rows: list[dict[str, Any]] = []
        if record and record.exists():
            before = json.loads(record.read_text())
            if all(before.get(k) == head[k] for k in ("seed", "count", "package")):
                self.rows = [r for r in before["outcomes"] if r["outcome"] != "unfinished"]
                print(f"{record} has {len(self.rows)} of them", flush=True)

    def add(self, row: dict[str, Any]) -> None:
        """Keep an outcome."""
        self.rows.append(row)
        print(
            f"{row['outcome']:10} {row['seconds']:6.1f} s  {row['mutant']}  [{row.get('by', '')}]",
            flush=True,
        )
        self.write()

    def write(self) -> None:
        """Write all."""
        if self.record:
            whole = {**self.head, "tried": len(self.rows), **self.counts(), "outcomes": self.rows}
            self.record.write_text(json.dumps(whole, indent=1) + "\n")

    def counts(self) -> dict[str, int]:
        """How many ended in each way."""
        found = Counter(r["outcome"] for r in self.rows)
        kinds = ("caught", "timeout", "survived", "unmapped", "unfinished")
        return {k: found[k] for k in kinds}


def tried(m: mutants.Mutant, ask: Asked, found: LineMap, out: Outcomes) -> Any:
    """The steps of a mutant."""

    def make(copy: Copy) -> Steps:
        right = (ROOT / "tessera" / m.path).read_text()
        copy.empty()
        copy.write(m.path, m.apply(right))
        row: dict[str, Any] = {
            "mutant": str(m),
            "outcome": "unmapped" if ask.unmapped else "survived",
            "seconds": 0.0,
            "left_out": ask.left_out,
        }
        row["tests"] = sum(map(len, ask.groups))
        try:
            for group in ask.groups:
                listed = copy.folder.with_suffix(".asked")
                listed.write_text(json.dumps(group))
                expected = sum(found.seconds[t] for t in group)
                files = list(dict.fromkeys(t.split("::")[0] for t in group))
                done = yield Job(files, {watched.ASKED: str(listed)}, 40 + 4 * expected)
                row["seconds"] = round(row["seconds"] + done.seconds, 1)
                if done.status in (0, 5):
                    continue
                ends = {OUT_OF_LIMIT: "timeout", OUT_OF_TIME: "unfinished"}
                row["outcome"] = ends.get(done.status, "caught")
                if row["outcome"] == "caught":
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
    p.add_argument("--map", type=Path, help="where the map is kept")
    p.add_argument("--map-only", action="store_true", help="draw nothing")
    p.add_argument("--map-time", type=float, default=1e9, help="seconds for the map")
    p.add_argument("--budget", type=float, default=45, help="seconds of tests that run its lines")
    p.add_argument("--last", type=float, default=150, help="seconds of other tests, for survivors")
    p.add_argument("--tests", nargs="+", default=[""], help="only test files that begin so")
    p.add_argument("--record", type=Path, help="where outcomes are written")
    p.add_argument("--never", type=Path, help="where lines that no test runs are written")
    given = p.parse_args()
    begin = time.monotonic()
    drawn = [] if given.map_only else mutants.draw(ROOT / "tessera", given.seed, given.count)
    drawn = [drawn[i] for i in given.only] if given.only else drawn
    if given.list:
        for i, m in enumerate(drawn):
            print(f"{i:3} {m}")
        return 0
    for name in LIBRARIES:
        importlib.import_module(name)  # once, before processes are forked; not the package
    names = nearest.Names(ROOT / "tessera", ROOT / "tests")
    names.tests = {f: w for f, w in names.tests.items() if f.startswith(tuple(given.tests))}
    files = list(names.tests)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        folder = Path(temporary)
        (folder / "code").mkdir()
        copies = [Copy(folder / str(i), folder / "code") for i in range(given.jobs)]
        print(f"{given.jobs} copies in {time.monotonic() - begin:.0f} s", flush=True)
        found = line_map.opened(given.map, files)
        if found.missing(files):
            line_map.mapped(found, copies, files, begin + min(given.time, given.map_time))
            if given.map:
                found.save(given.map)
        print(line_map.said(found, files), flush=True)
        if given.never:
            given.never.write_text(json.dumps(never_run(ROOT / "tessera", found.lines())))
        if given.map_only:
            return bool(found.missing(files))
        out = draw_all(drawn, found, files, names, copies, given, begin)
    print(f"{out.counts()} of {len(drawn)} in {time.monotonic() - begin:.0f} s")
    return 0


def draw_all(
    drawn: Sequence[mutants.Mutant], found: LineMap, files: Sequence[str], names: nearest.Names,
    copies: Sequence[Copy], given: argparse.Namespace, begin: float,
) -> Outcomes:  # fmt: skip
    """Show all mutants to tests."""
    head = {
        "seed": given.seed, "count": len(drawn), "package": line_map.digest_of(found.package),
        "tests": len(found.seconds), "map_is_whole": not found.missing(files),
        "fail_anyhow": found.failed, "files_unmapped": sorted(found.missing(files)),
        "map_seconds": {f: row["seconds"] for f, row in sorted(found.files.items())},
    }  # fmt: skip
    out = Outcomes(head, given.record)
    known = {r["mutant"] for r in out.rows}
    budget = Budget(given.budget, given.last)
    work: deque[Any] = deque()
    for m in drawn:
        if str(m) not in known:
            lines = {m.path: lines_of((ROOT / "tessera" / m.path).read_text(), m)}
            work.append(tried(m, asked(m, found.hits(lines), found, names, budget), found, out))
    run_all(copies, work, begin + given.time)
    out.write()
    return out


if __name__ == "__main__":
    sys.exit(main())
