"""Every setting that comes from the environment, typed, in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tessera.core.errors import FlagError
from tessera.core.usual import other_configuration


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


def _truth(env: Mapping[str, str], name: str, unset: str = "0") -> bool:
    text = (env.get(name) or unset).lower()
    if text not in _TRUTH:
        raise FlagError(f"{name} is {text!r}, expected 0 or 1")
    return _TRUTH[text]


_current: Flags | None = None  # read at first use: a wrong variable must not break the import


def flags() -> Flags:
    """The flags in force."""
    global _current
    if _current is None:
        _current = read(os.environ)
    return _current


@contextmanager
def override(**changes: Any) -> Iterator[Flags]:
    """Change flags while the block runs."""
    global _current
    before = flags()
    unknown = set(changes) - {f.name for f in fields(Flags)}
    if unknown:
        raise FlagError(f"no flag is named {', '.join(sorted(unknown))}")
    for name, choices in _CHOICES.items():
        if changes.get(name, choices[0]) not in choices:
            raise FlagError(f"{name} is {changes[name]!r}, expected one of {', '.join(choices)}")
    with other_configuration():
        _current = replace(before, **changes)
        try:
            yield _current
        finally:
            _current = before


def numerics(mode: str) -> AbstractContextManager[Flags]:
    """Compute under `deterministic`, `strict` or `fast` numerics while the block or function runs."""
    return override(numerics=mode)
