"""Makes a failing program small: fewer outputs, fewer nodes, smaller sizes, simpler numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import tessera as ts
from tessera.core.flags import override
from tests.fuzz.program import SCOPE, Input, Line, Program, dtype_of, first_free

Fails = Callable[[Program], bool]
TRIES = 150


def shrink(p: Program, fails: Fails, tries: int = TRIES) -> Program:
    """The smallest program found that still fails."""
    left = [tries]
    smaller = True
    while smaller:
        smaller = False
        for made in candidates(p):
            if left[0] <= 0:
                return p
            left[0] -= 1
            if fails(made):
                p, smaller = made, True
                break
    return p


def candidates(p: Program) -> Iterator[Program]:
    """Programs a step smaller, the boldest steps first."""
    yield from fewer_outputs(p)
    yield from cut(p)
    yield from skipped(p)
    yield from smaller_sizes(p)
    yield from simpler_numbers(p)


def fewer_outputs(p: Program) -> Iterator[Program]:
    """One output alone, or one output less; or an end that an output comes from."""
    if len(p.outputs) > 1:
        for n in dict.fromkeys(p.outputs):
            yield replace(p, outputs=(n,)).pruned()
        for i in range(len(p.outputs)):
            yield replace(p, outputs=p.outputs[:i] + p.outputs[i + 1 :]).pruned()
    else:
        for line in reversed(p.lines[:-1]):
            for t in line.targets:
                yield replace(p, outputs=(t,)).pruned()


def values_of(p: Program) -> dict[str, Any]:
    """Every value of the program, by the references; none where it does not run."""
    env: dict[str, Any] = {x.name: x.tensor for x in p.inputs}
    with override(target="numpy"), np.errstate(all="ignore"):
        for line in p.lines:
            try:
                made = ts.tree.leaves(eval(line.text, {**SCOPE, **env}))
            except Exception:  # the fault that is being made small
                break
            env |= dict(zip(line.targets, made, strict=True))
    return env


def cut(p: Program) -> Iterator[Program]:
    """What a statement gives becomes an input, the last statements first."""
    env = values_of(p)
    for i in reversed(range(len(p.lines))):
        line = p.lines[i]
        if not all(t in env for t in line.targets):
            continue
        inputs, names = list(p.inputs), {}
        for t in line.targets:
            name = first_free((x.name for x in inputs), "x")
            names[t] = name
            inputs.append(Input(name, env[t].numpy(), spelled_dtype(env[t])))
        rest = [*p.lines[:i], *(_renamed(q, names) for q in p.lines[i + 1 :])]
        if set(p.outputs) & set(names) or not rest:
            continue
        yield replace(p, inputs=tuple(inputs), lines=tuple(rest)).pruned()


def spelled_dtype(v: Any) -> str:
    return {"bool": "bool_"}.get(str(v.dtype), str(v.dtype))


def _renamed(line: Line, names: dict[str, str]) -> Line:
    text = line.text
    for old, new in names.items():
        parts = [(new if part == old else part) for part in _tokens(text)]
        text = "".join(parts)
    return replace(line, text=text)


def _tokens(text: str) -> list[str]:
    return re.split(r"(\b[xv]\d+\b)", text)


def skipped(p: Program) -> Iterator[Program]:
    """A statement's result is replaced by one of its operands."""
    for i, line in enumerate(p.lines):
        for used in line.uses:
            rest = [
                *p.lines[:i],
                *(_renamed(q, dict.fromkeys(line.targets, used)) for q in p.lines[i + 1 :]),
            ]
            outputs = tuple(used if n in line.targets else n for n in p.outputs)
            yield replace(p, lines=tuple(rest), outputs=outputs).pruned()


def smaller_sizes(p: Program) -> Iterator[Program]:
    """All axes of one size become shorter; or one axis does."""
    sizes = sorted({n for x in p.inputs for n in x.data.shape if n > 1}, reverse=True)
    for n in sizes:
        for m in dict.fromkeys((1, 2, n // 2, n - 1)):
            if 0 < m < n:
                yield replace(
                    p, inputs=tuple(replace(x, data=_cropped(x.data, n, m)) for x in p.inputs)
                )
    for k, x in enumerate(p.inputs):
        for axis, n in enumerate(x.data.shape):
            for m in (1, n // 2):
                if 0 < m < n:
                    data = np.take(x.data, range(m), axis)
                    yield replace(
                        p, inputs=(*p.inputs[:k], replace(x, data=data), *p.inputs[k + 1 :])
                    )


def _cropped(x: Any, n: int, m: int) -> Any:
    return x[tuple(slice(0, m) if s == n else slice(None) for s in x.shape)]


def simpler_numbers(p: Program) -> Iterator[Program]:
    """Zeros, ones, small whole numbers, or numbers of few digits."""
    for k, x in enumerate(p.inputs):
        for data in _simpler(x):
            if data.tobytes() != np.ascontiguousarray(x.data).tobytes():
                yield replace(p, inputs=(*p.inputs[:k], replace(x, data=data), *p.inputs[k + 1 :]))


def _simpler(x: Input) -> Iterator[Any]:
    d = dtype_of(x.dtype)
    if d.kind == "b" or x.data.size == 0:
        return
    yield np.zeros_like(x.data)
    yield np.ones_like(x.data)
    if d.kind == "f":
        with np.errstate(all="ignore"):
            rounded = np.round(x.data.astype(np.float64), 1).astype(d.np)
        yield rounded
