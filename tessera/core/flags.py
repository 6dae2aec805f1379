"""Every setting that comes from the environment, typed, in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tessera.core.blame import blames_arguments
from tessera.core.call_guard import SETTINGS
from tessera.core.errors import FlagError
from tessera.core.open_blocks import OpenBlocks


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tessera"


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings; the field `verify` is read from TESSERA_VERIFY, and so on."""

    cache_dir: Path  # where compiled code and tuned schedules are kept
    cache_limit: int  # bytes that it may grow to, about; 0: any number
    threads: int  # worker threads of the CPU target; 0: one per core
    memory: int  # bytes that a run may take; 0: what the machine has
    target: str  # what runs programs and single ops: cpu (machine code) or numpy (references)
    numerics: str  # deterministic, fast or strict
    log: str  # off, info or debug
    verify: bool  # verify IR after every pass
    strict: bool  # a fault of the compiler is an error, not a warning and a plainer lowering
    cpu_devices: int  # how many logical CPU devices there are
    matrix_units: bool  # use the processor's matrix registers (AMX) where it has some
    checked: bool  # look at every index, bound and number while programs run
    watchdog: int  # seconds that a rank waits for another at a collective
    gather_limit: (
        int  # bytes of a gather on a mesh, which no one asked for, beyond which it warns; 0: any
    )
    # Where the shards of a mesh lie: cpu, cuda or hip, a GPU with a number or not; "": as the engine says.
    mesh_device: str
    update_golden: bool  # whether ts.testing.golden writes its files instead of comparing


NUMERICS = ("deterministic", "fast", "strict")
_CHOICES = {
    "target": ("cpu", "numpy"),
    "numerics": NUMERICS,
    "log": ("off", "info", "debug"),
}
_TRUTH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}


def read(env: Mapping[str, str]) -> Flags:
    """The flags that an environment gives."""
    return Flags(
        cache_dir=Path(env["TESSERA_CACHE_DIR"])
        if env.get("TESSERA_CACHE_DIR")
        else _default_cache(),
        cache_limit=_number(env, "TESSERA_CACHE_LIMIT", 2 << 30, low=0),
        threads=_number(env, "TESSERA_THREADS", 0, low=0),
        memory=_number(env, "TESSERA_MEMORY", 0, low=0),
        target=_choice(env, "TESSERA_TARGET", "cpu", _CHOICES["target"]),
        numerics=_choice(env, "TESSERA_NUMERICS", "deterministic", _CHOICES["numerics"]),
        log=_choice(env, "TESSERA_LOG", "off", _CHOICES["log"]),
        verify=_truth(env, "TESSERA_VERIFY"),
        strict=_truth(env, "TESSERA_STRICT"),
        cpu_devices=_number(env, "TESSERA_CPU_DEVICES", 1, low=1),
        matrix_units=_truth(env, "TESSERA_MATRIX_UNITS", unset="1"),
        checked=_truth(env, "TESSERA_CHECKED"),
        watchdog=_number(env, "TESSERA_WATCHDOG", 300, low=1),
        gather_limit=_number(env, "TESSERA_GATHER_LIMIT", 256 << 20, low=0),
        mesh_device=mesh_device(env.get("TESSERA_MESH_DEVICE", ""), "TESSERA_MESH_DEVICE"),
        update_golden=_truth(env, "TESSERA_UPDATE_GOLDEN"),
    )


def _number(env: Mapping[str, str], name: str, default: int, low: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < low:
        raise FlagError(f"{name} is {text!r}, expected a whole number of at least {low}")
    return int(text)


def _choice(env: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    text = env.get(name) or default
    if text not in choices:
        raise FlagError(f"{name} is {text!r}, expected one of {', '.join(choices)}")
    return text


def mesh_device(text: str, name: str) -> str:
    """Where the shards of a mesh are to lie, checked; `name` is what says so."""
    if not re.fullmatch(r"|cpu|(cuda|hip)(:\d+)?", text):
        raise FlagError(
            f"{name} is {text!r}, expected cpu, cuda, hip or one GPU of these, such as cuda:0"
        )
    return text


def _truth(env: Mapping[str, str], name: str, unset: str = "0") -> bool:
    text = (env.get(name) or unset).lower()
    if text not in _TRUTH:
        raise FlagError(f"{name} is {text!r}, expected 0 or 1")
    return _TRUTH[text]


class _Settings(NamedTuple):
    """What a `with` has set, in one thread or task."""

    flags: Flags
    threads: int = 0  # of kernels, as ts.threads says; 0: as the flags say


_defaults: Flags | None = None  # read at first use: a wrong variable must not break the import
_MADE: dict[_Settings, _Settings] = {}  # equal settings are one object, which lives for ever
_P = ParamSpec("_P")
_R = TypeVar("_R")


def flags() -> Flags:
    """The flags in force in this thread or task."""
    found = SETTINGS.get()
    return _environment() if found is None else found.flags


def threads_wanted() -> int:
    """How many threads `ts.threads`, or else the flags, ask for here; 0: neither does."""
    found = SETTINGS.get()
    if found is None:
        return _environment().threads
    asked: int = found.threads or found.flags.threads
    return asked


def _stated() -> int:
    """How many threads `ts.threads` asks for here; 0: it does not."""
    found = SETTINGS.get()
    return 0 if found is None else found.threads


def _environment() -> Flags:
    global _defaults
    if _defaults is None:
        _defaults = read(os.environ)
    return _defaults


# What each open block changes: some flags, the number of threads, or all settings.
_Change = Mapping[str, Any] | int | _Settings
_BLOCKS: OpenBlocks[_Change] = OpenBlocks("tessera blocks")


def _settle() -> None:
    """Put in force what the open blocks say together."""
    made: _Settings | None = None
    for change in _BLOCKS:
        before = made or _Settings(_environment())
        if isinstance(change, _Settings):
            made = change
        elif isinstance(change, int):
            made = before._replace(threads=change)
        else:
            made = before._replace(flags=replace(before.flags, **change))
    SETTINGS.set(made if made is None else _MADE.setdefault(made, made))


@contextmanager
def _setting(change: _Change) -> Iterator[None]:
    block = _BLOCKS.open(change)
    _settle()
    try:
        yield
    finally:
        _BLOCKS.close(block)
        _settle()


@contextmanager
def override(**changes: Any) -> Iterator[Flags]:
    """Change flags while the block runs, for this thread or task alone."""
    unknown = set(changes) - {f.name for f in fields(Flags)}
    if unknown:
        raise FlagError(f"no flag is named {', '.join(sorted(unknown))}")
    for name, choices in _CHOICES.items():
        if changes.get(name, choices[0]) not in choices:
            raise FlagError(f"{name} is {changes[name]!r}, expected one of {', '.join(choices)}")
    mesh_device(changes.get("mesh_device", ""), "mesh_device")
    with _setting(changes):
        yield flags()


@contextmanager
def with_threads(n: int) -> Iterator[None]:
    """Ask for n threads while the block runs, for this thread or task alone."""
    with _setting(n):
        yield


def carried(f: Callable[_P, _R]) -> Callable[_P, _R]:
    """f with the settings in force here, whichever thread calls it."""
    now = _Settings(flags(), _stated())

    @wraps(f)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _setting(now):
            return f(*args, **kwargs)

    return run


@blames_arguments
def numerics(mode: str) -> AbstractContextManager[Flags]:
    """Compute under `deterministic`, `strict` or `fast` numerics while the block or function runs."""
    return override(numerics=mode)


_CHECKED: OpenBlocks[object | None] = OpenBlocks("tessera checked")  # blocks of ts.checked()


@blames_arguments
@contextmanager
def checked(on: bool = True) -> Iterator[Flags]:
    """Raise on every bad index, label, bound or number while the block or function runs, also in compiled
    code.
    """
    block = _CHECKED.open(object() if on else None)
    try:
        with override(checked=bool(on)) as found:
            yield found
    finally:
        _CHECKED.close(block)


def checked_block() -> object | None:
    """What stands for the block of ts.checked() that code runs in."""
    return _CHECKED.innermost()
