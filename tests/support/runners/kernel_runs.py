"""Random kernels, run in every way there is and compared; one that fails is made smaller."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tests.support.cases.random_kernels import HEAD, Case, numpy_dtype
from tests.support.runners import kernel_model

_NAME = itertools.count()


def load(cases: Sequence[Case], folder: Path) -> list[tuple[Any, Callable[..., Any]]]:
    """The kernels of a module, each with the plain function that takes `tile` first."""
    name = f"random_kernels_{next(_NAME)}"
    path = folder / f"{name}.py"
    parts = [HEAD]
    for i, c in enumerate(cases):
        inner = "\n".join(f"    {x}" for x in c.body())
        names = ", ".join(p.split(":")[0] for p in c.parameters)
        parts += [c.source(f"k{i}"), f"def m{i}(tile, {names}):\n{inner}\n"]
    path.write_text("\n\n".join(parts))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [(getattr(module, f"k{i}"), getattr(module, f"m{i}")) for i in range(len(cases))]


def arrays_of(x: Any) -> list[Any]:
    """Results as arrays."""
    return [t.numpy() for t in (x if isinstance(x, tuple) else (x,))]


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same bits, up to the payload of NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "iub":
        return bool((a == b).all())
    x, y = a.astype(np.float64), b.astype(np.float64)
    return bool((((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))).all())


_CLOSE = {"float16": 2e-2, "bfloat16": 1e-1, "float64": 1e-4}


def close(got: Any, want: Any, worst: float) -> bool:
    """Whether results agree with the model: its sums have another order."""
    if got.shape != want.shape:
        return False
    x, y = got.astype(np.float64), want.astype(np.float64)
    if got.dtype.kind in "iub" and want.dtype.kind in "iub":
        return bool(
            (got == want.astype(got.dtype)).all()
        )  # sums of narrow integers wrap where they do
    return bool(np.isclose(x, y, rtol=worst, atol=worst, equal_nan=True).all())


def ways_of(f: Any, args: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """What every way of running a kernel gives."""
    yield "machine code", arrays_of(f(*args))
    for name, step in (("interpreter", False), ("steps", True)):
        with ts.interpret(step=step):
            yield name, arrays_of(f(*args))


def compare(case: Case, f: Any, plain: Callable[..., Any]) -> str | None:
    """What differs between the ways of running a kernel; 'refused: ...' where it has no meaning."""
    args = case.arguments()
    try:
        ways = dict(ways_of(f, args))
    except ts.TesseraError as e:
        return f"refused: {str(e).splitlines()[0]}"
    first = ways["machine code"]
    for name, other in ways.items():
        if len(other) != len(first) or not all(map(same, first, other)):
            return f"machine code and {name} differ"
    if not case.modelled:
        return None
    m, n, k = case.blocks
    want = kernel_model.run(plain, {"m": m, "n": n, "k": k}, args, case.stored)
    return None if all_close(case, first, want) else "machine code and the model differ"


def all_close(case: Case, got: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether all results agree to the tolerance of the widest rounding among the arguments."""
    worst = max(
        (_CLOSE.get(numpy_dtype(d).name, 2e-3) for d in case.dtypes if d != "ids"), default=0
    )
    return len(want) == len(got) and all(close(a, b, worst) for a, b in zip(got, want, strict=True))


def indices(case: Case) -> int:
    """How many numbers of the arguments of a kernel are indices."""
    return sum(
        math.prod(shape) for shape, d in zip(case.shapes, case.dtypes, strict=True) if d == "ids"
    )


def device_verdict(case: Case, folder: Path, device: str = "cuda") -> str | None:
    """What differs between a kernel on a device and its machine code, or what went wrong there."""
    ((f, _),) = load([case], folder)
    args = case.arguments()
    try:
        there = arrays_of(f(*(ts.tensor(a).to(device) for a in args)))
    except ts.TesseraError as e:
        return f"the device refuses: {str(e).splitlines()[0]}"
    except Exception as e:
        return f"{type(e).__name__} on the device: {e}"[:300]
    return (
        None
        if all_close(case, there, arrays_of(f(*args)))
        else "the device and machine code differ"
    )


def verdict(case: Case, folder: Path) -> str | None:
    """As compare, of one kernel; a failure of ours that is no error of ours is one too."""
    ((f, plain),) = load([case], folder)
    try:
        return compare(case, f, plain)
    except Exception as e:
        return f"{type(e).__name__}: {e}"[:300]


def failed(said: str | None) -> bool:
    """Whether a verdict is a fault."""
    return said is not None and not said.startswith("refused")


def shrunk(case: Case, folder: Path, tries: int = 80) -> Case:
    """A smaller kernel that still fails: fewer lines, one result, smaller sizes."""
    for _ in range(4):
        smaller = next(
            (c for c in _smaller(case) if (tries := tries - 1) > 0 and failed(verdict(c, folder))),
            None,
        )
        if smaller is None:
            break
        case = smaller
        while again := next(
            (c for c in _smaller(case) if (tries := tries - 1) > 0 and failed(verdict(c, folder))),
            None,
        ):
            case = again
    return case


def _smaller(case: Case) -> Iterator[Case]:
    parts = case.returned.split(", ")
    if len(parts) > 1:
        for p in parts:
            yield replace(case, returned=p)
    for i in reversed(range(len(case.lines))):
        if not case.lines[i].endswith(":"):
            yield replace(case, lines=case.lines[:i] + case.lines[i + 1 :])
    for b in (1, 2, 4):
        for i in range(3):
            if case.blocks[i] > b and case.family in ("lines", "loops"):
                yield replace(case, blocks=(*case.blocks[:i], b, *case.blocks[i + 1 :]))
