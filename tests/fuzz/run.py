"""Checks the program of a seed, makes what fails small, and writes it as a test."""

from __future__ import annotations

import hashlib
import random
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

import tessera as ts
from tessera import op
from tessera.core.errors import NumericalError, TesseraError
from tessera.core.flags import flags, override
from tests.fuzz import checks
from tests.fuzz.known import allowed, known
from tests.fuzz.program import SCOPE, Input, Line, Program, dtype_of
from tests.fuzz.shrink import shrink

Check = Callable[[Program], None]


@dataclass(frozen=True)
class Failure:
    """A law that a program breaks."""

    check: str
    kind: str  # Broken, Refused, or the name of an exception
    message: str
    program: Program

    @property
    def reason(self) -> str | None:
        """Where it is explained: an item of the list of known faults."""
        return known(self.check, self.kind, self.message, self.program.ops)

    def __str__(self) -> str:
        return f"{self.check}: {self.kind}: {self.message}\n{self.program}"


def by_line(p: Program) -> None:
    """Each statement gives what the references give on the same operands."""
    env: dict[str, Any] = {x.name: x.tensor for x in p.inputs}
    for line in p.lines:
        try:
            with override(target="numpy"):
                want = eval(line.text, {**SCOPE, **env})
        except NumericalError:  # it says so: NaN or infinities where a factorisation must converge
            return
        with checks.refusals("eager"):
            got = eval(line.text, {**SCOPE, **env})
        operands = [np.asarray(env[n]) for n in line.uses]
        made, meant = checks.arrays(got), checks.arrays(want)
        peak = checks.peak_of([*operands, *meant])
        for a, b, defined in zip(made, meant, _defined(line, env, meant), strict=True):
            checks.near(f"eager and reference of {line.op}", a[defined], b[defined], peak)
        env |= dict(zip(line.targets, ts.tree.leaves(got), strict=True))


def _defined(line: Line, env: dict[str, Any], meant: Sequence[Any]) -> list[Any]:
    """Which elements of the results have one value however they are computed.

    Sums of infinities and of numbers near the largest, and products of complex ones, depend on their order:
    left out are elements that become NaN in the reference when these numbers are NaN.
    """
    wild = {n: x for n in line.uses if (x := _without_extremes(env[n])) is not None}
    if not wild or _one_way(line, env):
        return [np.ones(y.shape, bool) for y in meant]
    factors = getattr(getattr(getattr(op, line.op, None), "op", None), "small", None) is not None
    # SciPy's transforms pass some elements by; which row of NaN is a pivot, LAPACK does not say.
    if factors or re.search(r"fft[2n]?$|stft$", line.op):
        return [np.zeros(y.shape, bool) for y in meant]
    try:
        with override(target="numpy"):
            probed = checks.arrays(eval(line.text, {**SCOPE, **env, **wild}))
    except NumericalError:  # a factorisation refuses NaN as a whole
        return [np.zeros(y.shape, bool) for y in meant]
    with np.errstate(all="ignore"):
        return [~np.isnan(y.astype(np.complex128)) for y in probed]


def _without_extremes(x: Any) -> Any:
    """A tensor with NaN for its extremes; None if it has none."""
    a = np.asarray(x)
    if x.dtype.kind not in "fc":
        return None
    with np.errstate(all="ignore"):
        large = np.abs(a.astype(np.complex128)) > float(ml_dtypes.finfo(x.dtype.real.np).max) ** 0.5
        extreme = large | ~np.isfinite(a.astype(np.complex128))
    if not extreme.any():
        return None
    return ts.tensor(np.where(extreme, np.asarray(np.nan, a.dtype), a), dtype=x.dtype)


def _one_way(line: Line, env: dict[str, Any]) -> bool:
    """Whether a statement rounds each element once: it moves real numbers, or computes them one by one."""
    record = getattr(getattr(op, line.op, None), "op", None)
    if record is None or any(env[n].dtype.kind == "c" for n in line.uses):
        return False
    return (
        record.moves
        or bool(record.view or record.pick)
        or (record.body is not None and record.combine in (None, "max", "min"))
    )


def axes_of(p: Program) -> list[int | None]:
    """Which arguments a batch is made of: most of them, along some axis."""
    s = random.Random(p.seed + 1)
    return [None if s.random() < 0.3 else s.randint(0, x.data.ndim) for x in p.inputs]


def names_of(p: Program) -> list[list[str | None]]:
    """Names for sizes: equal sizes above 1 share one."""
    return [[f"N{n}" if n > 1 else None for n in x.data.shape] for x in p.inputs]


CHECKS: dict[str, Check] = {
    "references": by_line,
    "jitted": lambda p: checks.jitted(p.function(), p.tensors),
    "levels": lambda p: checks.levels(p.function(), p.tensors),
    "batched": lambda p: checks.batched(p.function(), p.tensors, axes_of(p)),
    "differentiated": lambda p: checks.differentiated(p.function(), p.tensors),
    "differences": lambda p: None if p.may_cut else checks.differences(p.function(), p.tensors),
    "symbolic": lambda p: checks.symbolic(p.function(), p.tensors, names_of(p)),
    "donated": lambda p: checks.donated(p.function(), p.tensors),
    "looped": lambda p: checks.looped(p.function(), p.tensors),
}
# How often a check that is not made for every program is made.
SHARE = {
    "levels": 0.3, "batched": 0.25, "differentiated": 0.3, "differences": 0.3, "symbolic": 0.2,
    "donated": 0.3, "looped": 0.3,
}  # fmt: skip


def plan(p: Program) -> list[str]:
    """The checks of a program."""
    s = random.Random(p.seed + 2)
    return [name for name in CHECKS if s.random() < SHARE.get(name, 1.0) and fits(name, p)]


def fits(check: str, p: Program) -> bool:
    """Whether a law is one of this program's dtypes and ops."""
    if check == "levels" and flags().target == "numpy":
        return False
    dtypes = " ".join([*(x.dtype for x in p.inputs), *(line.text for line in p.lines)])
    if check == "batched":  # rounding at random goes by an element's place in its tensor
        return "stochastic_round" not in dtypes
    if check == "differences":
        return not p.special and not set(p.ops) & NOT_THE_SLOPE and not _has_roots_of_zeros(p)
    if check == "symbolic":  # which axes go without being named follows from numbers
        return not re.search(r"squeeze\(\w+\)", dtypes)
    return True


def _has_roots_of_zeros(p: Program) -> bool:
    """Whether a root may be taken of the zeros of a triangle, where the slope is no number."""
    triangles = {"cholesky", "tril", "triu", "eye", "diagflat", "lu", "qr"}
    return bool(set(p.ops) & triangles) and bool(set(p.ops) & {"sqrt", "pow", "cbrt", "rsqrt"})


NOT_THE_SLOPE = {
    "stop_gradient",
    "loggamma",
    "random_gamma.gamma",
    "beta",
    "dirichlet",
    "own_kernel",
}


def failure_of(p: Program, check: str) -> Failure | None:
    """What a check says of a program, if anything."""
    try:
        CHECKS[check](p)
    except Exception as e:
        kind = type(e).__name__
        message = str(e) if isinstance(e, AssertionError) else f"{e} {_where(e)}"
        if isinstance(e, checks.Refused) and allowed(check, message, p.ops):
            return None
        return Failure(check, kind, message, p)
    return None


def _where(e: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(e.__traceback__) if "/tessera/" in f.filename]
    return " ".join(f"{f.filename.rpartition('/tessera/')[2]}:{f.lineno}" for f in frames[-3:])


def examine(p: Program, small: bool = True) -> list[Failure]:
    """What a program breaks, made small."""
    found = []
    for check in plan(p):
        failure = failure_of(p, check)
        if failure is None:
            continue
        if small and failure.reason is None:
            failure = smaller(failure)
        found.append(failure)
        if check == "references" and failure.kind not in ("Broken", "Refused"):
            break  # it does not run at all
    return found


def smaller(failure: Failure) -> Failure:
    """The same failure of a smaller program."""
    seen = {id(failure.program): failure}

    def fails(p: Program) -> bool:
        if not fits(failure.check, p) or not _runs(p, failure):
            return False
        again = failure_of(p, failure.check)
        if again is None or again.kind != failure.kind or _sort(again) != _sort(failure):
            return False
        seen[id(p)] = again
        return True

    small = seen[id(shrink(failure.program, fails))]
    return replace(small, program=renumbered(small.program))


def _sort(f: Failure) -> str:
    """What failures of one cause have in common."""
    return re.sub(r"[^a-zA-Z ].*", "", f.message.split(":")[0])


def _runs(p: Program, failure: Failure) -> bool:
    """Whether the program still runs on the references, as it did unless that was what failed."""
    if failure.check == "references" and failure.kind not in ("Broken", "Refused"):
        return True
    try:
        with override(target="numpy"):
            p.function()(*p.tensors)
    except (TesseraError, IndexError, TypeError, ValueError, AttributeError):
        return False
    return True


# As a test

HEAD = '''"""Programs that broke a law, made small."""

import numpy as np

import tessera as ts
from tessera import *
from tessera import op
from tests.fuzz import checks, parts
'''
_LAWS = {"references": "references(f, xs)", "jitted": "jitted(f, xs)", "levels": "levels(f, xs)"}


def as_test(failure: Failure) -> str:
    """A pytest function that fails as the program does."""
    p = failure.program
    digest = hashlib.sha256(p.source.encode()).hexdigest()[:6]
    name = "_".join(dict.fromkeys(re.sub(r"\W", "_", n) for n in p.ops[:4]))
    law = _LAWS.get(failure.check) or {
        "batched": f"batched(f, xs, {axes_of(p)})", "symbolic": f"symbolic(f, xs, {names_of(p)})",
    }.get(failure.check, f"{failure.check}(f, xs)")  # fmt: skip
    body = "\n".join("    " + line for line in p.source.splitlines())
    first = failure.message.splitlines()[0].replace('"', "'")[:140]
    given = "\n".join(f"        {_tensor(x)}," for x in p.inputs)
    if failure.check == "jax":
        body += f"\n\n    source = {p.source!r}"
        law = "compared(source, xs)"
    home = "against_jax" if failure.check == "jax" else "checks"
    return (
        f"def test_{name}_{failure.check}_{digest}() -> None:\n"
        f'    """Seed {p.seed}: {failure.kind}: {first}"""\n\n'
        f"{body}\n\n    xs = [\n{given}\n    ]\n    {home}.{law}\n"
    )


def _tensor(x: Input) -> str:
    """An input as Python."""
    d = dtype_of(x.dtype)
    wide: Any = np.asarray(x.data)
    if d.kind not in "biu":
        wide = wide.astype(np.complex128 if d.kind == "c" else np.float64)
    elif d.name == "i4":
        wide = wide.astype(np.int64)
    text = re.sub(r"\b(nan|inf)\b", r"np.\1", repr(wide.tolist()))
    storage = {"bool": "bool"}.get(wide.dtype.name, f"np.{wide.dtype.name}")
    return f"ts.tensor(np.array({text}, {storage}).reshape({wide.shape}), dtype={x.dtype})"


def renumbered(p: Program) -> Program:
    """The same program with names in order."""
    names = [x.name for x in p.inputs]
    targets = [t for line in p.lines for t in line.targets]
    new = {n: f"x{i}" for i, n in enumerate(names)} | {t: f"v{i}" for i, t in enumerate(targets)}
    swap = lambda text: re.sub(r"\b[xv]\d+\b", lambda m: new.get(m[0], m[0]), text)  # noqa: E731
    return replace(
        p, inputs=tuple(replace(x, name=new[x.name]) for x in p.inputs),
        lines=tuple(replace(q, targets=tuple(new[t] for t in q.targets), text=swap(q.text)) for q in p.lines),
        outputs=tuple(new[n] for n in p.outputs),
    )  # fmt: skip
