"""Schedules: block sizes, warps, stages and layouts, as values that print, hash, inherit and save.

    Schedule(block=(128, 128), k=64, warps=8, stages=3)      block(128, 128).k(64).warps(8).stages(3)

Given a list, a method makes the set of all choices: block(m=[64, 128], n=[64]).warps([4, 8]).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from tessera.core.blame import constructor_blames_arguments
from tessera.core.errors import ScheduleError, located
from tessera.core.picture import Pictured

SWIZZLES = ("none", "xor")
_BLOCK = (64, 64)  # rows and columns of a tile where a schedule says nothing
_DEPTH = 64  # k of a tile where a schedule says nothing
_WARPS, _STAGES = 4, 2  # where a schedule says only one of them


@constructor_blames_arguments
@dataclass(frozen=True)
class Schedule(Pictured):
    """How a kernel is cut up; what is None is chosen by the compiler."""

    block: Any = ()  # rows, columns, and the summed axis
    k: int | None = None
    d: int | None = None  # the most elements of the last axis that a tile covers
    warps: int | None = None
    stages: int | None = None
    vector: int | None = None
    swizzle: str | None = None
    tma: bool | None = None  # whether factors of products are fetched by the copy engine
    specialise: bool | None = None  # whether warps of a loop have roles: some fetch, some multiply
    registers: int | None = None  # of a thread, at most

    def __post_init__(self) -> None:
        sizes = (self.block,) if isinstance(self.block, int) else tuple(self.block)
        if len(sizes) == 3 and self.k is None:
            object.__setattr__(self, "k", sizes[2])
            sizes = sizes[:2]
        object.__setattr__(self, "block", sizes)
        try:
            _check(self)
        except ScheduleError as e:
            raise located(e) from None

    @property
    def m(self) -> int:
        """Rows of a tile."""
        return int(self.block[0]) if self.block else _BLOCK[0]

    @property
    def n(self) -> int:
        """Columns of a tile."""
        return int(self.block[1]) if len(self.block) > 1 else _BLOCK[1]

    @property
    def depth(self) -> int:
        """How many elements of a summed axis are taken at a time."""
        return _DEPTH if self.k is None else self.k

    @property
    def threads(self) -> tuple[int, ...] | None:
        """Warps and stages on a GPU, and TMA, roles and registers if said; None where nothing is."""
        more = (int(bool(self.tma)), int(bool(self.specialise)), self.registers or 0)
        if self.warps is None and self.stages is None and not any(more):
            return None
        both = self.warps or _WARPS, self.stages or _STAGES
        return (*both, *more) if any(more) else both

    # Variations

    def _with(self, **said: Any) -> Schedule:
        return Schedule(**{f.name: getattr(self, f.name) for f in fields(self)} | said)

    def with_block(self, *sizes: int) -> Schedule:
        """This schedule with other block sizes."""
        return self._with(block=sizes)

    def with_k(self, k: int) -> Schedule:
        """This schedule with another step along the summed axis."""
        return self._with(k=k)

    def with_d(self, d: int) -> Schedule:
        """This schedule with another limit of the last axis."""
        return self._with(d=d)

    def with_warps(self, n: int) -> Schedule:
        """This schedule with another number of warps."""
        return self._with(warps=n)

    def with_stages(self, n: int) -> Schedule:
        """This schedule with another number of stages."""
        return self._with(stages=n)

    def with_vector(self, n: int) -> Schedule:
        """This schedule with another width of vectors."""
        return self._with(vector=n)

    def with_swizzle(self, kind: str) -> Schedule:
        """This schedule with another layout of shared memory."""
        return self._with(swizzle=kind)

    def with_tma(self, on: bool = True) -> Schedule:
        """This schedule with factors of products fetched by the copy engine, or not."""
        return self._with(tma=on)

    def with_specialise(self, on: bool = True) -> Schedule:
        """This schedule with roles for warps, or without."""
        return self._with(specialise=on)

    def with_registers(self, n: int) -> Schedule:
        """This schedule with another limit of the registers of a thread."""
        return self._with(registers=n)

    def over(self, base: Schedule) -> Schedule:
        """What this schedule says, and where it says nothing what the base says."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        said = {n: x for n, x in mine.items() if x is not None and x != ()}
        return base._with(**said)

    # Text

    def __str__(self) -> str:
        parts = [f"block({', '.join(map(str, self.block))})"] if self.block else ["Schedule()"]
        rest = {n: x for n, x in asdict(self).items() if n != "block" and x is not None}
        parts += [f"{n}({x!r})" if isinstance(x, str) else f"{n}({x})" for n, x in rest.items()]
        return ".".join(parts)

    @property
    def hash(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """What the schedule says, for JSON."""
        return {n: x for n, x in asdict(self).items() if x is not None and x != ()}

    @staticmethod
    def from_dict(said: Mapping[str, Any]) -> Schedule:
        """The schedule that says this."""
        unknown = set(said) - {f.name for f in fields(Schedule)}
        if unknown:
            raise ScheduleError(f"Schedule has no {', '.join(sorted(unknown))}")
        made = dict(said)
        if "block" in made:
            made["block"] = tuple(made["block"])
        return Schedule(**made)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule to a file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Schedule:
        """The schedule in a file that `save` wrote."""
        try:
            said = json.loads(Path(path).read_text())
            if not isinstance(said, dict):
                raise ValueError
        except (OSError, ValueError):
            raise located(ScheduleError(f"Schedule.load: {path} holds no schedule")) from None
        return Schedule.from_dict(said)


_WHOLE = "a whole number of at least 1"
_POWERS = {"warps": 32, "vector": 16}  # the most warps of a block; the widest access, in elements
_MOST_STAGES = 16  # more is taken for a mistake


def setting_error(name: str, x: Any) -> str | None:
    """What a setting was expected to be; None if it may be x."""
    if name == "swizzle":
        return None if x in SWIZZLES else f"one of {', '.join(SWIZZLES)}"
    if name in ("tma", "specialise"):
        return None if isinstance(x, bool) else "True or False"
    if isinstance(x, bool) or not isinstance(x, int) or x < 1:
        return _WHOLE
    if name == "registers":
        return None if x % 8 == 0 and 16 <= x <= 255 else "a multiple of 8 from 16 to 248"
    if name in _POWERS and (x > _POWERS[name] or x & (x - 1)):
        return f"a power of two up to {_POWERS[name]}"
    return f"at most {_MOST_STAGES}" if name == "stages" and x > _MOST_STAGES else None


def _check(s: Schedule) -> None:
    if len(s.block) > 2:
        raise ScheduleError(f"Schedule: block is {s.block}, expected rows, columns and k")
    _demand("block", s.block)
    for name in _NAMES[2:]:
        if getattr(s, name) is not None:
            _demand(name, (getattr(s, name),))


def _demand(name: str, values: Sequence[Any]) -> None:
    """Raise ScheduleError at a value that a setting cannot have."""
    for x in values:
        wrong = setting_error(name, x)
        if wrong is not None:
            raise ScheduleError(f"Schedule: {name} is {x!r}, expected {wrong}")


# Choices --------------------------------------------------------------------------------------

_SHORT = {"BM": "m", "BN": "n", "BK": "k", "BD": "d"}
_NAMES = (
    "m",
    "n",
    "k",
    "d",
    "warps",
    "stages",
    "vector",
    "swizzle",
    "tma",
    "specialise",
    "registers",
)


@dataclass(frozen=True)
class Space:
    """Schedules to choose from: for each setting the values that it may have."""

    choices: tuple[tuple[str, tuple[Any, ...]], ...]

    @staticmethod
    def of(given: Mapping[str, Any] | Space | Schedule) -> Space:
        """The space that a dictionary such as {"BM": [64, 128], "warps": [4, 8]} describes."""
        if isinstance(given, Space):
            return given
        if isinstance(given, Schedule):
            return Space(()).product(**given.to_dict() | dict(zip("mn", given.block, strict=False)))
        if not isinstance(given, Mapping):
            raise located(
                ScheduleError(
                    f"space: got {type(given).__name__} {given!r:.40}, expected settings and their values, "
                    "as in "
                    '{"BM": [64, 128], "warps": [4, 8]}'
                )
            )
        return Space(()).product(**given)

    def product(self, **more: Any) -> Space:
        """This space with further settings, each a value or a list of values."""
        known = dict(self.choices)
        for name, values in more.items():
            short = _SHORT.get(name, name)
            if short == "block":
                continue
            if short not in _NAMES:
                raise located(
                    ScheduleError(
                        f"space: {name} is no setting; it has {', '.join([*_SHORT, *_NAMES])}"
                    )
                )
            listed = isinstance(values, Sequence) and not isinstance(values, str)
            known[short] = tuple(values) if listed else (values,)
            try:
                _demand("block" if short in ("m", "n") else short, known[short])
            except ScheduleError as e:
                raise located(e) from None
        return Space(tuple((n, known[n]) for n in _NAMES if n in known))

    def __len__(self) -> int:
        total = 1
        for _, values in self.choices:
            total *= len(values)
        return total

    def __iter__(self) -> Iterator[Schedule]:
        names = [n for n, _ in self.choices]
        for values in product(*(v for _, v in self.choices)):
            said = dict(zip(names, values, strict=True))
            sizes = (said.pop("m", None), said.pop("n", None))
            block = () if sizes == (None, None) else (sizes[0] or _BLOCK[0],)
            if sizes[1] is not None:
                block = (*block, sizes[1])
            yield Schedule(block=block, **said)

    def __str__(self) -> str:
        said = ", ".join(f"{n}={list(v)}" for n, v in self.choices)
        return f"{len(self)} schedules: {said}"


class Fluent:
    """A schedule or a space being written: block(128, 128).k(64).warps([4, 8])."""

    def __init__(self, space: Space):
        self._space = space

    def _with(self, **said: Any) -> Fluent:
        return Fluent(self._space.product(**said))

    def block(self, *sizes: int, **named: Any) -> Fluent:
        """Rows and columns of a tile, and the step along the summed axis."""
        if len(sizes) > 3:
            raise located(
                ScheduleError(f"Schedule: block is {sizes}, expected rows, columns and k")
            )
        return self._with(**dict(zip("mnk", sizes, strict=False)), **named)

    def k(self, k: Any) -> Fluent:
        """The step along the summed axis."""
        return self._with(k=k)

    def d(self, d: Any) -> Fluent:
        """The most elements of the last axis."""
        return self._with(d=d)

    def warps(self, n: Any) -> Fluent:
        """How many warps."""
        return self._with(warps=n)

    def stages(self, n: Any) -> Fluent:
        """How many stages."""
        return self._with(stages=n)

    def vector(self, n: Any) -> Fluent:
        """The width of vectors."""
        return self._with(vector=n)

    def swizzle(self, kind: Any) -> Fluent:
        """The layout of shared memory."""
        return self._with(swizzle=kind)

    def tma(self, on: Any = True) -> Fluent:
        """Fetch the factors of products by the copy engine of the GPU."""
        return self._with(tma=on)

    def specialise(self, on: Any = True) -> Fluent:
        """Give the warps of a loop roles: some fetch, some multiply."""
        return self._with(specialise=on)

    def registers(self, n: Any) -> Fluent:
        """The most registers of a thread."""
        return self._with(registers=n)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._space)

    def __len__(self) -> int:
        return len(self._space)

    @property
    def space(self) -> Space:
        """All the schedules."""
        return self._space

    @property
    def schedule(self) -> Schedule:
        """The schedule, if there is one choice for everything."""
        made = list(self._space)
        if len(made) != 1:
            raise located(
                ScheduleError(f"got {self._space}, expected one; name one value for each")
            )
        return made[0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Fluent):
            return self._space == other._space
        return isinstance(other, Schedule) and list(self._space) == [other]

    def __hash__(self) -> int:
        return hash(self.schedule) if len(self) == 1 else hash(self._space)

    def __str__(self) -> str:
        return str(self.schedule) if len(self) == 1 else str(self._space)

    __repr__ = __str__


def block(*sizes: int, **named: Any) -> Fluent:
    """The beginning of a schedule: block(128, 128), or of a space: block(m=[64, 128], n=[64])."""
    return Fluent(Space(())).block(*sizes, **named)


def as_schedule(given: Any) -> Schedule:
    """A schedule, or one written in the fluent form."""
    if isinstance(given, Schedule):
        return given
    if isinstance(given, Fluent):
        return given.schedule
    raise located(
        ScheduleError(
            f"schedule: got {type(given).__name__} {given!r:.40}, expected a Schedule, "
            "as in Schedule(block=(64, 64))"
        )
    )
