"""The store of tuned nests: one SQLite file beside the compiled code, shared by all processes.

    kernel (SHA-256 of its text without a nest), sizes, architecture, versions  ->  nest

The architecture of what was measured here names this processor; exported nests have in its place what
loops are chosen by (registers and caches), so that processors of other makers take them.  A kernel's text
holds its shapes, dtypes and policies; `sizes` is the class of the sizes that are symbolic in it.  Beside
the nests the store keeps every measurement, from which the cost model learns, and what the machine
reached at its best.  SQLite is loaded when the file exists or something is kept in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError
from tessera.core.flags import flags
from tessera.core.processor import assumed, first_bytes, near_bytes, registers
from tessera.ir.target.cpu.machine import architecture
from tessera.runtime.folder import UntrustedError, fault_of_file, private

VERSION = 1  # of the store
FORMAT = 2  # of exported files; those of format 1 name processors by all of their features
_WAIT = 10.0  # seconds that a process waits for another one that writes
_COLUMNS = {
    "tuned": ("kernel", "sizes", "architecture", "versions", "nest", "seconds", "before"),
    "measured": (
        "kernel", "sizes", "architecture", "versions", "nest", "seconds", "estimate", "features",
    ),
    "peaks": ("architecture", "threads", "flops", "bandwidth"),
    "roofs": ("architecture", "threads", "name", "size", "rate"),
}  # fmt: skip
_TABLES = """
create table if not exists tuned (
  kernel text, sizes text, architecture text, versions text, nest text, seconds real, before real,
  primary key (kernel, sizes, architecture, versions));
create table if not exists measured (
  kernel text, sizes text, architecture text, versions text, nest text, seconds real, estimate real,
  features text, primary key (kernel, sizes, architecture, versions, nest));
create table if not exists peaks (
  architecture text, threads integer, flops real, bandwidth real,
  primary key (architecture, threads));
create table if not exists roofs (
  architecture text, threads integer, name text, size integer, rate real,
  primary key (architecture, threads, name));
"""


@dataclass(frozen=True)
class Tuned:
    """What tuning found for a kernel at its sizes: the nest, its time, and the default's."""

    kernel: str
    sizes: str
    nest: str  # "" when the default is as fast as any
    seconds: float
    before: float


@dataclass(frozen=True)
class MeasuredNest:
    """The time of one nest, beside what the roofline said and the features of the nest."""

    kernel: str
    sizes: str
    nest: str
    seconds: float
    estimate: float
    features: tuple[float, ...]


def path() -> Path:
    """The file of the store."""
    return flags().cache_dir / "tune.sqlite"


def versions() -> str:
    """What a measurement depends on beside the architecture, which names LLVM and llvmlite."""
    from importlib import metadata

    try:
        return f"tessera {metadata.version('tessera')} store {VERSION}"
    except metadata.PackageNotFoundError:
        return f"tessera from its sources store {VERSION}"


def stamp() -> str:
    """A text that changes whenever the store does; empty when there is none."""
    try:
        s = os.stat(path())
    except OSError:
        return ""
    if _distrusted(s) is not None:
        return ""
    return f"{s.st_mtime_ns} {s.st_size} {s.st_ino}"


def _distrusted(s: os.stat_result) -> str | None:
    """Why a file is not opened, which is said once; a folder is left to SQLite to complain of."""
    fault = None if stat.S_ISDIR(s.st_mode) else fault_of_file(s, others_write=True)
    if fault is not None and path() not in _REFUSED:
        _REFUSED.add(path())
        warnings.warn(
            f"tune: the store {path()} {fault}; it is not used", RuntimeWarning, stacklevel=3
        )
    return fault


_REFUSED: set[Path] = set()


@contextlib.contextmanager
def tolerant() -> Iterator[None]:
    """While the block runs, a store that cannot be used is a warning: programs run without what was tuned."""
    try:
        yield
    except OperandError as e:
        warnings.warn(e.message, RuntimeWarning, stacklevel=3)


def size_class(sizes: Mapping[str, int]) -> str:
    """The class of symbolic sizes: each of them up to a power of two."""
    return ", ".join(f"{n}<={1 << (sizes[n] - 1).bit_length()}" for n in sorted(sizes))


def entries() -> Mapping[tuple[str, str], str]:
    """The nests of this machine, by kernel and class of sizes."""
    now, given = stamp(), _GIVEN.get()
    if assumed() is not None:  # what was tuned here says nothing of another processor
        return {} if given is None else given.nests()
    if not now:
        return {}
    found: dict[tuple[str, str], str] = {}
    with tolerant():
        found |= _entries(str(path()), now, architecture(), neutral())
    return found


class ExportedNests:
    """Nests of an exported file, for processors that code is compiled for elsewhere."""

    def __init__(self, file: str | os.PathLike[str]):
        self.rows = [r for r in _rows(file) if r[3] == versions() and r[4]]
        self.taken: set[tuple[str, str]] = set()  # kernels, and what they are compiled for

    def nests(self) -> dict[tuple[str, str], str]:
        """Those of processors with the same vectors; where one has the same caches, it stands over others."""
        vectors = neutral().partition(" caches=")[0] + " "
        fits = [r for r in self.rows if r[2].startswith(vectors)]
        return {(r[0], r[1]): r[4] for r in sorted(fits, key=lambda r: (r[2] == neutral(), r[2]))}


_GIVEN: ContextVar[ExportedNests | None] = ContextVar("nests", default=None)


@contextlib.contextmanager
def giving(given: ExportedNests | None) -> Iterator[None]:
    """While the block runs, kernels for processors that are not here take these nests."""
    token = _GIVEN.set(given)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def take(kernel: str) -> None:
    """Note that a kernel has a nest of those that are given."""
    given, p = _GIVEN.get(), assumed()
    if given is not None and p is not None:
        given.taken.add((kernel, p.name))


def neutral() -> str:
    """What the choice of nests depends on, whatever the vendor: instructions, vectors and caches.

    Caches count by powers of two.  The results of a nest do not depend on it, only its speed does.
    """
    r = registers()
    caches = [1 << (n - 1).bit_length() >> 10 for n in (first_bytes(), near_bytes())]
    return f"cpu vectors={r.total}x{r.bytes} caches={caches[0]}K,{caches[1]}K"


def has_sizes() -> bool:
    """Whether a kernel of symbolic sizes was tuned on this machine."""
    return any(sizes for _, sizes in entries())


@lru_cache(maxsize=4)
def _entries(where: str, now: str, arch: str, alike: str) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    with _opened() as db:
        for place in (alike, arch):  # what was measured here stands over what was imported
            rows = db.execute(
                "select kernel, sizes, nest from tuned where architecture = ? and versions = ?",
                (place, versions()),
            ).fetchall()
            found |= {(k, s): n for k, s, n in rows if {type(k), type(s), type(n)} == {str}}
    return {k: n for k, n in found.items() if n}


# Reading and writing ----------------------------------------------------------------------------


@contextlib.contextmanager
def _opened() -> Iterator[Any]:
    """The database in a transaction; a file that is damaged is put aside, with a warning."""
    import sqlite3

    file = path()
    try:
        private(file.parent)
        if file.exists() and (fault := _distrusted(os.stat(file))) is not None:
            raise UntrustedError(fault)
        if not file.exists():  # SQLite would follow the umask
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as e:
        raise OperandError(
            f"tune: the store {file} cannot be used ({e.strerror}); set TESSERA_CACHE_DIR to a "
            "writable folder"
        ) from None
    try:
        db = _connect(file)
    except sqlite3.DatabaseError as e:
        if isinstance(e, sqlite3.OperationalError):
            raise OperandError(f"tune: the store {file} cannot be used ({e})") from None
        aside = file.with_suffix(".damaged")
        warnings.warn(
            f"tune: the store {file} is damaged ({e}); beginning a new one, the old one is {aside}",
            RuntimeWarning,
            stacklevel=4,
        )
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.replace(file, aside)
        db = _connect(file)
    try:
        with db:
            yield db
    except (sqlite3.Error, UnicodeDecodeError) as e:
        raise OperandError(f"tune: the store {file} cannot be used ({e})") from None
    finally:
        db.close()


def _connect(file: Path) -> Any:
    import sqlite3

    db = sqlite3.connect(file, timeout=_WAIT)
    try:
        if db.execute("pragma quick_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("its check fails")
        names = {n for (n,) in db.execute("select name from sqlite_master where type = 'table'")}
        if not names.issuperset(_COLUMNS):
            db.executescript(_TABLES)
        for table, columns in _COLUMNS.items():
            found = tuple(row[1] for row in db.execute(f"pragma table_info({table})"))
            if found != columns:
                raise sqlite3.DatabaseError(f"its table {table} has other columns")
    except sqlite3.DatabaseError:
        db.close()
        raise
    except UnicodeDecodeError:  # of a name in the file, or in SQLite's message about it
        db.close()
        raise sqlite3.DatabaseError("its text is no UTF-8") from None
    return db


def keep(found: Tuned, measured: Iterable[MeasuredNest] = (), place: str | None = None) -> None:
    """Keep what tuning found, in one transaction; a place other than this machine's processor is named."""
    here = (place or architecture(), versions())
    with _opened() as db:
        _put(
            db, "tuned", (found.kernel, found.sizes, *here, found.nest, found.seconds, found.before)
        )
        for m in measured:
            features = json.dumps(m.features)
            _put(db, "measured",
                 (m.kernel, m.sizes, *here, m.nest, m.seconds, m.estimate, features))  # fmt: skip


def _put(db: Any, table: str, row: Sequence[Any]) -> None:
    marks = ", ".join("?" * len(row))
    db.execute(f"insert or replace into {table} values ({marks})", row)


def find(kernel: str, sizes: str, place: str | None = None) -> Tuned | None:
    """What is known of a kernel on this machine or one like it, or on the device that is named."""
    if not stamp():
        return None
    with _opened() as db:
        for there in (place,) if place else (architecture(), neutral()):
            row = db.execute(
                "select nest, seconds, before from tuned where kernel = ? and sizes = ? and "
                "architecture = ? and versions = ?",
                (kernel, sizes, there, versions()),
            ).fetchone()
            if row is not None and _fits(row, (str, float, float)):
                return Tuned(kernel, sizes, *row)
    return None


def _fits(row: Sequence[Any], kinds: Sequence[type]) -> bool:
    """Whether a row has values of these kinds; SQLite keeps whatever it is given."""
    return [*map(type, row)] == [*kinds]


def measurements() -> list[MeasuredNest]:
    """Every measurement on this machine, in a fixed order."""
    if not stamp():
        return []
    with _opened() as db:
        rows = db.execute(
            "select kernel, sizes, nest, seconds, estimate, features from measured where "
            "architecture = ? and versions = ? order by kernel, sizes, nest",
            (architecture(), versions()),
        ).fetchall()
    kinds = (str, str, str, float, float, str)
    return [
        MeasuredNest(k, s, n, t, e, features)
        for k, s, n, t, e, text in rows
        if _fits((k, s, n, t, e, text), kinds) and (features := _features(text)) is not None
    ]


def _features(text: str) -> tuple[float, ...] | None:
    """The features of a nest; None when the text is damaged."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    fits = isinstance(found, list) and all(isinstance(x, int | float) for x in found)
    return tuple(found) if fits else None


def peaks(threads: int) -> tuple[float, float] | None:
    """The most operations and bytes a second that this machine reached, if they were measured."""
    if not stamp():
        return None
    with _opened() as db:
        found: tuple[float, float] | None = db.execute(
            "select flops, bandwidth from peaks where architecture = ? and threads = ?",
            (architecture(), threads),
        ).fetchone()
    return found if found is not None and _fits(found, (float, float)) else None


def keep_peaks(threads: int, flops: float, bandwidth: float) -> None:
    """Keep what the machine reached."""
    with _opened() as db:
        _put(db, "peaks", (architecture(), threads, flops, bandwidth))


def roofs(threads: int) -> dict[str, tuple[int, float]]:
    """What was measured beside the peaks, by name: bytes of a cache, and its bytes a second."""
    if not stamp():
        return {}
    with _opened() as db:
        rows = db.execute(
            "select name, size, rate from roofs where architecture = ? and threads = ?",
            (architecture(), threads),
        ).fetchall()
    return {r[0]: (r[1], r[2]) for r in rows if _fits(r, (str, int, float))}


def keep_roofs(threads: int, found: Mapping[str, tuple[int, float]]) -> None:
    """Keep what was measured beside the peaks."""
    with _opened() as db:
        for name, (size, rate) in found.items():
            _put(db, "roofs", (architecture(), threads, name, size, rate))


# Exchange ---------------------------------------------------------------------------------------


_FILE = ("kernel", "sizes", "place", "versions", "nest", "seconds", "before")


@blames_arguments
def export(file: str | os.PathLike[str]) -> int:
    """Write the tuned nests as JSON, for machines of the same registers and caches; how many there are."""
    rows: list[Any] = []
    if stamp():
        with _opened() as db:
            rows = db.execute("select * from tuned order by 1, 2, 3, 4").fetchall()
    # What was measured here comes last, so that it stands over what was imported for such machines.
    rows.sort(key=lambda r: r[2] == architecture())
    found = {}
    for kernel, sizes, place, *rest in rows:
        where = neutral() if place == architecture() else place
        found[kernel, sizes, where, rest[0]] = (kernel, sizes, where, *rest)
    named = [dict(zip(_FILE, found[k], strict=True)) for k in sorted(found)]
    Path(file).write_text(json.dumps({"version": FORMAT, "tuned": named}, indent=1) + "\n")
    return len(named)


@blames_arguments
def load(file: str | os.PathLike[str]) -> int:
    """Add the tuned nests of a file that `export` wrote; how many there are."""
    rows = _rows(file)
    with _opened() as db:
        for row in rows:
            _put(db, "tuned", row)
    return len(rows)


def _rows(file: str | os.PathLike[str]) -> list[tuple[str, str, str, str, str, float, float]]:
    """The rows of a file that `export` wrote."""
    try:
        whole = json.loads(Path(file).read_text())
        at = {1: "architecture", FORMAT: "place"}.get(whole.get("version"), "place")
        rows = [
            (str(r["kernel"]), str(r["sizes"]), str(r[at]), str(r["versions"]),
             str(r["nest"]), float(r["seconds"]), float(r["before"]))
            for r in whole["tuned"]
        ]  # fmt: skip
    except OSError as e:
        raise OperandError(f"tune: {file} cannot be read ({e.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OperandError(f"tune: {file} is no file that tune has exported") from None
    if whole.get("version") not in (1, FORMAT):
        raise OperandError(
            f"tune: {file} has format version {whole.get('version')}, expected 1 or {FORMAT}"
        )
    return rows


@blames_arguments
def clear() -> None:
    """Forget all that was tuned."""
    path().unlink(missing_ok=True)
