"""Which tests run which lines of the package: the suite runs once, file by file, each in a process of its
own.

A file that takes longer than its limit goes on in parts, each with twice the limit; what its tests wrote
before is kept.  A test that ends its process counts as one that fails.  The map is a file: a later run adds
what is missing, maps changed test files anew, and begins from nothing when the package has changed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import watched
from copies import OUT_OF_LIMIT, OUT_OF_TIME, ROOT, Copy, Done, Job, Steps, run_all

LIMIT = 60.0  # seconds of the first run of a file
ENOUGH = 8 * LIMIT  # a test alone that takes longer is not asked


def digest(file: Path) -> str:
    """What a file says, in short."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def digests(package: Path) -> dict[str, str]:
    """Of all files of the package."""
    return {f.relative_to(package).as_posix(): digest(f) for f in sorted(package.rglob("*.py"))}


def digest_of(package: Mapping[str, str]) -> str:
    """What a package says, in short."""
    return hashlib.sha256(json.dumps(package, sort_keys=True).encode()).hexdigest()[:16]


class LineMap:
    """What the suite did without a fault."""

    def __init__(self, package: Mapping[str, str]) -> None:
        self.package = dict(package)  # digests of its files
        self.files: dict[
            str, dict[str, Any]
        ] = {}  # of tests: digest, seconds, parts, tests that are left
        self.seconds: dict[str, float] = {}  # of each test that passes
        self.failed: dict[str, str] = {}  # why, by test
        self.masks: list[tuple[str, str]] = []  # a file of the package and the lines that ran
        self.ran: dict[
            str, list[int]
        ] = {}  # masks by test, and by test file what ran when it was collected
        self._numbers: dict[tuple[str, str], int] = {}
        self._index: dict[str, dict[str, list[str]]] | None = None  # of a map that is whole

    def note(self, who: str, ran: Mapping[str, str]) -> None:
        """Keep what a test ran."""
        for pair in ran.items():
            if pair not in self._numbers:
                self._numbers[pair] = len(self.masks)
                self.masks.append(pair)
        self.ran[who] = [self._numbers[pair] for pair in ran.items()]

    def read(self, file: str, rows: Iterable[str]) -> list[str] | None:
        """Take what a run of a test file wrote; the tests that did not run, None when it did not begin."""
        left: list[str] | None = None
        for row in map(json.loads, rows):
            if "tests" in row:
                left = row["tests"]
                self.note(file, row["ran"])
                continue
            assert left is not None
            left.remove(row["test"])
            if row["failed"]:
                self.failed[row["test"]] = "fails"
                continue
            self.seconds[row["test"]] = row["seconds"]
            self.note(row["test"], row["ran"])
        return left

    def missing(self, files: Sequence[str]) -> dict[str, Any]:
        """Test files that the map has not, or not whole: the tests that are left, None for all."""
        return {
            f: self.files.get(f, {}).get("left")
            for f in files
            if self.files.get(f, {}).get("left", 1) != []
        }

    def tests(self) -> dict[str, list[str]]:
        """The tests of each file that pass."""
        out: dict[str, list[str]] = defaultdict(list)
        for t in self.seconds:
            out[t.split("::")[0]].append(t)
        return out

    def hits(self, lines: Mapping[str, Collection[int]]) -> list[str]:
        """The tests that run one of these lines of files."""
        if self._index is None:
            self._index = defaultdict(lambda: defaultdict(list))
            for who, mine in self.ran.items():
                for path, mask in map(self.masks.__getitem__, mine):
                    self._index[path][mask].append(who)
        wanted = {path: sum(1 << n for n in ns) for path, ns in lines.items()}
        found = {
            who
            for path, bits in wanted.items()
            for mask, of in self._index[path].items()
            if int(mask, 16) & bits
            for who in of
        }
        whole = {f for f in found if "::" not in f}
        return [t for t in self.seconds if t in found or t.split("::")[0] in whole]

    def lines(self) -> dict[str, set[int]]:
        """All lines of the package that ran."""
        masks: dict[str, int] = defaultdict(int)
        for path, mask in self.masks:
            masks[path] |= int(mask, 16)
        return {p: {n for n in range(m.bit_length()) if m >> n & 1} for p, m in masks.items()}

    def forget(self, file: str) -> None:
        """Drop a test file."""
        self.files.pop(file, None)
        for table in (self.seconds, self.failed, self.ran):
            for who in [t for t in table if t.split("::")[0] == file]:
                del table[who]  # type: ignore[attr-defined]

    def save(self, file: Path) -> None:
        """Write the map."""
        kept = {k: v for k, v in vars(self).items() if not k.startswith("_")}
        part = file.with_suffix(".part")
        part.write_bytes(gzip.compress(json.dumps(kept).encode(), 5))
        part.replace(file)

    @staticmethod
    def load(file: Path) -> LineMap:
        """Read what `save` wrote."""
        found = json.loads(gzip.decompress(file.read_bytes()))
        out = LineMap(found["package"])
        vars(out).update(found)
        out.masks = [(path, mask) for path, mask in found["masks"]]
        out._numbers = {pair: i for i, pair in enumerate(out.masks)}
        return out


def opened(file: Path | None, tests: Sequence[str]) -> LineMap:
    """The map of a file without what has changed since; an empty one where there is none."""
    now = digests(ROOT / "tessera")
    if file is None or not file.exists():
        return LineMap(now)
    found = LineMap.load(file)
    if found.package != now:
        print("the package is not the one of the map: all test files run again", flush=True)
        return LineMap(now)
    for f in [
        f for f in found.files if f not in tests or found.files[f]["digest"] != digest(ROOT / f)
    ]:
        found.forget(f)
    return found


class _Mapping:
    """The work of a map: files of tests, and parts of those that took too long."""

    def __init__(self, found: LineMap, copies: Sequence[Copy]):
        self.found, self.copies = found, copies
        self.work: deque[Any] = deque()

    def part(self, file: str, tests: Sequence[str] | None, limit: float) -> Any:
        """Run all tests of a file, or some."""

        def make(copy: Copy) -> Steps:
            copy.empty()  # a program of the cache is not compiled again: its lines would not run
            out, asked = copy.folder.with_suffix(".watched"), copy.folder.with_suffix(".asked")
            out.write_text("")
            env = {watched.WATCHED: str(out)}
            if tests is not None:
                asked.write_text(json.dumps(list(tests)))
                env[watched.ASKED] = str(asked)
            done = yield Job([file], env, limit)
            text = out.read_text()
            rows = text[: text.rfind("\n") + 1].splitlines()  # without one that was cut
            self.take(file, tests, rows, done)
            left = self.left(file, tests, rows, done, limit)
            if done.status != OUT_OF_TIME:
                self.more(file, left, limit, len(rows))

        return make

    def take(self, file: str, tests: Sequence[str] | None, rows: Sequence[str], done: Done) -> None:
        """Keep what tests wrote."""
        new = {"digest": digest(ROOT / file), "seconds": 0.0, "parts": 0, "left": None}
        whole = self.found.files.setdefault(file, new)
        whole["seconds"] = round(whole["seconds"] + done.seconds, 1)
        whole["parts"] += 1
        left = self.found.read(file, rows)
        if tests is None:
            whole["left"] = left
        elif left is not None:
            ran = set(tests) - set(left)
            whole["left"] = [t for t in whole["left"] if t not in ran]

    def left(
        self, file: str, tests: Sequence[str] | None, rows: Sequence[str], done: Done, limit: float
    ) -> list[str] | None:
        """What has to run again, None for the whole file: not a test that ended its process, or takes for
        ever.
        """
        ran = {json.loads(r).get("test") for r in rows}
        whole = self.found.files[file]
        if not rows:
            if done.status in (OUT_OF_LIMIT, OUT_OF_TIME):
                return None if tests is None else list(tests)
            whole["left"] = []
            self.found.failed[file] = f"exit status {done.status}: {done.text[-300:]}"
            return []
        left = [t for t in whole["left"] if t not in ran and (tests is None or t in tests)]
        if not left or done.status == OUT_OF_TIME:
            return left
        alone = len(tests or ()) == 1 and limit >= ENOUGH
        if done.status != OUT_OF_LIMIT or alone:
            self.found.failed[left[0]] = (
                f"more than {limit:.0f} s" if alone else f"exit status {done.status}"
            )
            whole["left"].remove(left[0])
            del left[0]
        return left

    def more(self, file: str, left: Sequence[str] | None, limit: float, ran: int) -> None:
        """Go on with a file, in parts that may take longer."""
        if left is None:
            self.work.appendleft(self.part(file, None, 2 * limit))
        elif left:
            pieces = min(len(left), len(self.copies), 1 + math.ceil(len(left) / max(ran, 1)))
            for i in range(pieces):
                self.work.appendleft(self.part(file, left[i::pieces], 2 * limit))


def mapped(found: LineMap, copies: Sequence[Copy], files: Sequence[str], until: float) -> None:
    """Run the test files that a map has not, until the end of the time; long ones first."""
    run = _Mapping(found, copies)
    missing = found.missing(files)
    for f in sorted(missing, key=lambda f: -(ROOT / f).stat().st_size):
        run.work.append(run.part(f, missing[f], LIMIT))
    run_all(copies, run.work, until)


def said(found: LineMap, files: Sequence[str]) -> str:
    """How whole a map is, and what took longest."""
    missing, failed = found.missing(files), len(found.failed)
    longest = sorted(found.files, key=lambda f: -found.files[f]["seconds"])[:12]
    lines = [
        f"map: {len(files) - len(missing)} of {len(files)} test files whole, {len(found.seconds)} tests "
        f"pass in "
        f"{sum(found.seconds.values()):.0f} s, {failed} fail anyhow and are not asked",
        *(f"  fails: {t} ({why})" for t, why in found.failed.items()),
        *(
            f"  longest: {f} {found.files[f]['seconds']:.0f} s in {found.files[f]['parts']} parts"
            for f in longest
        ),
        *(
            f"  NOT MAPPED: {f} ({'all' if left is None else len(left)} tests)"
            for f, left in missing.items()
        ),
    ]
    if missing:
        lines.append(
            "THE MAP IS INCOMPLETE: run again with --map-only, which goes on where this ended"
        )
    return "\n".join(lines)
