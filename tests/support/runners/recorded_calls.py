"""Calls of another library's primitives with its answers, as JSON: arrays, numbers, dtypes of ours, trees
of these.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tessera.core.dtype import DType
from tessera.core.dtype import as_dtype as dtype_of

DATA = Path(__file__).parents[1] / "data"


class Unwritable(Exception):
    """A call that has what no record holds."""


def written(x: Any) -> Any:
    """A tree as JSON."""
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, DType):
        return {"dtype": str(x)}
    if isinstance(x, complex):
        return {"complex": [x.real, x.imag]}
    if isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x)
        if x.dtype.kind not in "bifuc":
            raise Unwritable(x.dtype)
        return {"array": [x.dtype.str, list(x.shape), base64.b64encode(x.tobytes()).decode()]}
    if isinstance(x, list | tuple):
        return {type(x).__name__ if type(x) is list else "tuple": [written(v) for v in x]}
    if isinstance(x, dict):
        return {"dict": {k: written(v) for k, v in x.items()}}
    if isinstance(x, SimpleNamespace):
        return {"fields": {k: written(v) for k, v in vars(x).items()}}
    raise Unwritable(type(x))


def read(x: Any) -> Any:
    """What `written` wrote."""
    if not isinstance(x, dict):
        return x
    ((kind, inner),) = x.items()
    match kind:
        case "array":
            dtype, shape, data = inner
            return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
        case "dtype":
            return dtype_of(inner)
        case "complex":
            return complex(*inner)
        case "list":
            return [read(v) for v in inner]
        case "tuple":
            return tuple(read(v) for v in inner)
        case "dict":
            return {k: read(v) for k, v in inner.items()}
    return SimpleNamespace(**{k: read(v) for k, v in inner.items()})


def save(name: str, head: dict[str, Any], calls: list[Any]) -> None:
    """Write calls, one a line."""
    lines = [json.dumps(head), *(json.dumps(written(c), separators=(",", ":")) for c in calls)]
    (DATA / name).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))


def load(name: str) -> Iterator[Any]:
    """The calls of a record."""
    for line in gzip.decompress((DATA / name).read_bytes()).decode().splitlines()[1:]:
        yield read(json.loads(line))


def map_arrays(x: Any, f: Any) -> Any:
    """A tree with something else for each array."""
    if isinstance(x, np.ndarray):
        return f(x)
    if isinstance(x, list | tuple):
        return type(x)(map_arrays(v, f) for v in x)
    return {k: map_arrays(v, f) for k, v in x.items()} if isinstance(x, dict) else x


def difference(want: Any, got: Any, rtol: float, atol: float) -> str:
    """What of the results is not as the record says; nothing where all is."""
    if not isinstance(want, list | tuple):
        want, got = [want], [got]
    if len(want) != len(got):
        return f"{len(got)} results, expected {len(want)}"
    for i, (w, g) in enumerate(zip(want, got, strict=True)):
        if w is None or g is None:
            if w is not None or g is not None:
                return f"result {i} is {g}, expected {w}"
            continue
        if isinstance(w, list | tuple):
            inner = difference(w, g, rtol, atol)
            if inner:
                return inner
            continue
        a = np.asarray(g)
        w = np.asarray(w)
        if a.shape != w.shape or a.dtype != w.dtype:
            return f"result {i} is {a.dtype}{a.shape}, expected {w.dtype}{w.shape}"
        if not np.allclose(a, w, rtol=rtol, atol=atol, equal_nan=w.dtype.kind in "fc"):
            return f"result {i} is {a.ravel()[:9]}, expected {w.ravel()[:9]}"
    return ""
