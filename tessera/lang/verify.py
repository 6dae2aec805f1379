"""verify: what is promised of a function, proved or refuted by a witness when it is first called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import numpy as np

from tessera.checks.faults import edges
from tessera.checks.findings import Finding, Report, Verdict
from tessera.checks.numerics import Analysis, ErrorBound, analyse, check_numerics
from tessera.checks.specialise import specialise
from tessera.core import tree
from tessera.core.dims import substitute
from tessera.core.dtype import complex_of
from tessera.core.errors import NumericalError, OperandError, TesseraError, located
from tessera.core.flags import checked, flags
from tessera.core.modules import answer
from tessera.ir.graph.ir import Value, host_data
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.tile.cpu.lower import expand
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Kernel, Memory
from tessera.lang.checks import Checked, kernels_of


def numerics(
    stable: bool = True,
    bounded: Sequence[float] | Mapping[str, Sequence[float]] = (-1e3, 1e3),
    sizes: Mapping[str, int] | None = None,
) -> Callable[[Any], Verified]:
    """Decorator: for inputs within bounds nothing overflows, is NaN or is divided by zero.

    `bounded` is one range for all floating-point inputs, or one for each by name.  The proof is made at
    the first call with arguments of new types, at their sizes or those given; an input that breaks the
    promise raises NumericalError if `stable`, and is in `report()` in any case.
    """
    ranges: Mapping[str, Any] = bounded if isinstance(bounded, Mapping) else {"": bounded}
    for name, r in ranges.items():
        if not isinstance(r, Sequence) or len(r) != 2 or not float(r[0]) <= float(r[1]):
            raise located(
                OperandError(
                    f"verify.numerics: the bounds {name or 'given'} are {r}, expected [low, high]"
                )
            )
    return lambda f: Verified(f, stable, ranges, sizes or {})


class Verified:
    """A kernel or a jitted function with a promise about its numbers."""

    def __init__(
        self, f: Any, stable: bool, ranges: Mapping[str, Sequence[float]], sizes: Mapping[str, int]
    ):
        if not hasattr(f, "lower"):
            raise located(
                OperandError(
                    f"verify.numerics: got {getattr(f, '__name__', f)!r}, expected a kernel or a jitted "
                    "function; put the decorator above @kernel or @jit"
                )
            )
        update_wrapper(self, f)
        self.function, self._stable, self._ranges, self._sizes = f, stable, ranges, sizes
        self._kept: dict[Any, Report] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with checked(False):  # the proof is about what runs otherwise
                found = self.report(*args, **kwargs).findings
            if flags().checked:
                self._demand(args, kwargs)
            if found and self._stable:
                raise NumericalError(str(found[0])).at(found[0].location)
        except TesseraError as e:
            error = located(e)
        else:
            return self.function(*args, **kwargs)
        raise error

    def _demand(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise if an argument is not within its bounds, without which nothing is promised."""
        given = inspect.signature(self.function).bind(*args, **kwargs).arguments
        for name, x in given.items():
            for v in tree.leaves(x):
                if isinstance(v, Value) and v.storage is not None and v.dtype.kind in "fc":
                    _demand_within(name, v, self._range(name))

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What is proved and found for arguments of these types."""
        key = tuple(_type(a) for a in (*args, *kwargs.values()))
        if key not in self._kept:
            self._kept[key] = self._examine(args, kwargs)
        return self._kept[key]

    def _examine(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Report:
        lowered = (
            None if isinstance(self.function, Kernel) else self.function.lower(*args, **kwargs)
        )
        if lowered is None or isinstance(lowered, Kernel):
            return Report(self._kernels(kernels_of(self.function, args, kwargs)))
        names = dict(zip(lowered.schedule.inputs, lowered.traced.input_names, strict=False))
        self._demand_names(names.values())
        sizes = {**lowered.sizes, **self._sizes}
        return Report(self._launches(lowered.schedule, sizes, names))

    def _demand_names(self, names: Collection[str]) -> None:
        """Raise if bounds are of an argument that there is none of."""
        known = {n for name in names for n in (name, name.partition(".")[0])}
        for n in self._ranges:
            if n and n not in known:
                raise OperandError(
                    f"verify.numerics: bounds are given for {n!r}, expected names among {', '.join(names)}"
                )

    def _range(self, name: str) -> ErrorBound:
        found = self._ranges.get(name) or self._ranges.get(name.partition(".")[0])
        lo, hi = found or self._ranges.get("", (-np.inf, np.inf))
        return ErrorBound(float(lo), float(hi))

    def _kernels(self, kernels: Sequence[Checked]) -> Iterator[Verdict]:
        for k, found, _, _ in kernels:
            self._demand_names([m.name for m in k.parameters if _is_input(m)])
            sizes = {**dict.fromkeys(k.sizes, _EXAMPLE), **found, **self._sizes}
            inputs = {m.name: self._range(m.name) for m in k.parameters if _is_input(m)}
            yield check_numerics(specialise(k, sizes), {}, inputs)

    def _launches(
        self, program: Program, sizes: Mapping[str, int], names: Mapping[str, str]
    ) -> list[Verdict]:
        """The kernels of a program one after another; a call of the host may give anything."""
        return _Chain(program, sizes, lambda n: self._range(names.get(n, n))).verdicts()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def _demand_within(name: str, v: Value, b: ErrorBound) -> None:
    x = host_data(v)
    wide = np.abs(x) if x.dtype.kind == "c" else x.astype(np.float64)
    bad = ~((wide >= b.lo) & (wide <= b.hi))
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        place = f" at {[int(n) for n in at]}" if x.ndim else ""
        raise NumericalError(
            f"verify.numerics: argument '{name}' {v.type} has {x[at]}{place}, outside its bounds [{b.lo:g}, "
            f"{b.hi:g}]; "
            "the promise holds for numbers within them"
        )


_EXAMPLE = 16  # for sizes that arguments do not give


def _is_input(m: Any) -> bool:
    return not m.writable and m.type.dtype.kind == "f"


def _type(a: Any) -> Any:
    return (tuple(a.shape), str(a.dtype)) if hasattr(a, "shape") else (type(a), repr(a))


@dataclass(frozen=True)
class _Launched:
    """A kernel, the buffers of its parameters, and tables that it reads."""

    kernel: Kernel
    buffers: tuple[str, ...]
    tables: Mapping[str, Any]


class _Chain:
    """The launches of a program, on bounds and on numbers."""

    def __init__(
        self, program: Program, sizes: Mapping[str, int], within: Callable[[str], ErrorBound]
    ):
        self.program, self.within = program, within
        self.sizes = sizes
        self.launches: list[_Launched] = []
        self.hosted: list[str] = []
        for s in program.steps:
            if isinstance(s, HostCall):
                self.hosted.append(s.node.op.name)
            else:
                self.launches += self.launched(s)

    def launched(self, step: Any) -> Iterator[_Launched]:
        types = {n: b.type for n, b in self.program.buffers.items()}
        e = expand(step, types)
        tables = {n: t.array() for n, t in e.tables.items()}
        own = {n: f"{step.name}.{n}" for n in e.between}
        for launch in e.launches:
            k = specialise(launch.kernel, self.sizes)
            k = specialise(k, dict.fromkeys(k.sizes, _EXAMPLE))
            buffers = tuple(own.get(n, n) for n in (*launch.inputs, *launch.outputs))
            yield _Launched(k, buffers, tables)

    def verdicts(self) -> list[Verdict]:
        known = self.bounds()
        analyses = []
        for x in self.launches:
            pairs = list(zip((m.name for m in x.kernel.parameters), x.buffers, strict=True))
            all_ = {**known, **{n: _bound_of(t) for n, t in x.tables.items()}}
            a = analyse(x.kernel, {}, {m: all_[b] for m, b in pairs if b in all_})
            analyses.append(a)
            for m, b in pairs:
                if m in a.outs:
                    known[b] = a.outs[m].join(known[b]) if b in known else a.outs[m]
        found = self.witness(analyses) if any(a.doubts for a in analyses) else {}
        out = [a.verdict(found.get(i, ())) for i, a in enumerate(analyses)]
        return out + [Verdict("numerics", n, unproved=("runs on the host",)) for n in self.hosted]

    def bounds(self) -> dict[str, ErrorBound]:
        """What is known of the inputs."""
        constants = {n: _bound_of(x) for n, x in _constants(self.program).items()}
        floats = [n for n in self.program.inputs if self.program.buffers[n].type.dtype.kind in "fc"]
        return {n: self.within(n) for n in floats} | constants

    def witness(self, analyses: Sequence[Analysis]) -> dict[int, list[Finding]]:
        """An input of the whole program on which a kernel in doubt goes wrong."""
        if self.hosted:
            return {}  # what the host makes is not followed
        tensors = []
        for n in self.program.inputs:
            t, b = self.program.buffers[n].type, self.within(n)
            shape = tuple(int(substitute(s, self.sizes)) for s in t.shape)
            b = b if t.dtype.kind in "fc" else ErrorBound(0.0, 1.0)
            tensors.append((shape, t.dtype.real, b.lo, b.hi))
        for label, data in edges(tensors):
            buffers = dict(zip(self.program.inputs, data, strict=True)) | _constants(self.program)
            found = self.run(buffers, analyses, label)
            if found:
                return found
        return {}

    def run(
        self, buffers: dict[str, Any], analyses: Sequence[Analysis], label: str
    ) -> dict[int, list[Finding]]:
        found = {}
        for i, (x, a) in enumerate(zip(self.launches, analyses, strict=True)):
            data = [self.argument(m, b, x, buffers) for m, b in zip(x.kernel.parameters, x.buffers,
                                                                    strict=True)]  # fmt: skip
            faults = a.faults(data, label) if a.doubts else []
            if faults:
                found[i] = faults
            interpret(x.kernel, data, {})
            buffers.update(zip(x.buffers, data, strict=True))
        return found

    def argument(self, m: Memory, b: str, x: _Launched, buffers: Mapping[str, Any]) -> Any:
        """A buffer as a parameter sees it: row-major, complex numbers as pairs of real ones."""
        shape, dtype = tuple(int(n) for n in m.type.shape), m.type.dtype
        data = x.tables.get(b, buffers.get(b))
        if data is None:
            return np.zeros(shape, dtype.np)
        flat = np.ascontiguousarray(data)
        if flat.dtype.kind == "c" or flat.size * 2 == int(np.prod(shape)):
            flat = flat.astype(complex_of(dtype).np).view(dtype.np)
        return flat.reshape(shape).copy()


def _constants(program: Program) -> dict[str, Any]:
    """The numbers of tensors that a program holds."""
    held = program.inputs[len(program.inputs) - len(program.captured) :]
    out = {}
    for name, x in zip(held, program.captured, strict=True):
        data = getattr(x, "storage", x)
        if data is not None and np.asarray(data).size:
            out[name] = np.asarray(data)
    return out


def _bound_of(x: Any) -> ErrorBound:
    wide = np.asarray(x).astype(np.float64) if x.dtype.kind != "c" else np.abs(x).astype(np.float64)
    low = float(wide.min()) if x.dtype.kind != "c" else -float(wide.max())
    return ErrorBound(low, float(wide.max()))


answer(__name__, "verify")
