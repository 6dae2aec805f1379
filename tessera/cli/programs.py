"""Python files that commands take, the functions in them, and arguments that fit."""

from __future__ import annotations

import argparse
import inspect
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.cli.show import UsageError
from tessera.core import tree
from tessera.core.deferred import Deferred
from tessera.core.dims import substitute
from tessera.core.dtype import f32
from tessera.ir.graph.ir import concrete
from tessera.lang.annotation import TensorSpec
from tessera.lang.jit import Jitted, jit
from tessera.lang.kernel.signature import TileSpec
from tessera.lang.methods import BoundMethod
from tessera.lang.tensor import Tensor

_run_model = Deferred("tessera.cli.onnx:run_model")
_kernel_function = Deferred("tessera.lang.kernel.decorate:KernelFunction")


def found_in(path: str, name: str, defined: Mapping[str, Any]) -> Jitted:
    """A function of a file by its name, or the only one that is jitted."""
    jitted = {k: v for k, v in defined.items() if isinstance(v, Jitted)}
    kernel: Any = _kernel_function.function()
    jitted = jitted or {k: jit(v) for k, v in defined.items() if isinstance(v, kernel)}
    if not name:
        if len(jitted) == 1:
            return next(iter(jitted.values()))
        found = f"has {', '.join(jitted)}" if jitted else "has no jitted function"
        raise UsageError(f"{path} {found}; name one: {path}:function")
    found = member(defined, name)
    if found is None:
        raise UsageError(
            f"{path} defines no '{name}'; it has {', '.join(jitted) or 'no functions'}"
        )
    if not callable(found):
        raise UsageError(f"'{name}' in {path} is {type(found).__name__}, not a function")
    if isinstance(found, BoundMethod):
        raise UsageError(f"{name} is a method of a value in {path}; call {name} when the file runs")
    f: Jitted = found if isinstance(found, Jitted) else jit(found)
    return f


def member(defined: Mapping[str, Any], name: str) -> Any:
    """What a file defines by a name, or by one such as Class.method; None without it."""
    first, *rest = name.split(".")
    found = defined.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def specs_of(f: Jitted) -> dict[str, TensorSpec]:
    """The annotation of every parameter that has no default."""
    specs, bare = {}, []
    for p in inspect.signature(f, eval_str=True).parameters.values():
        spec = p.annotation.spec if isinstance(p.annotation, TileSpec) else p.annotation
        if isinstance(spec, TensorSpec):
            specs[p.name] = spec
        elif p.default is p.empty:
            bare.append(p.name)
    name = getattr(f, "name", None) or getattr(f, "__name__", "the function")
    if bare:
        raise UsageError(
            f"{name} has parameters without a Tensor annotation: {', '.join(bare)}; "
            f'write {bare[0]}: Tensor["B", 64, f32], or call {name} when the file runs'
        )
    return specs


def example(spec: TensorSpec, sizes: Mapping[str, int] | None = None) -> Any:
    """An argument that fits: zeros that take no memory, of f32 where any dtype will do."""
    values = dict.fromkeys(spec.symbols, 64) | dict(sizes or {})
    shape = tuple(substitute(n, values) for n in spec.shape)
    dtype = spec.dtype or f32
    return concrete(np.broadcast_to(np.zeros((), dtype.np), shape), dtype)  # type: ignore[arg-type]


def drawn(spec: TensorSpec, sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    """An argument that fits, of random numbers from -1 to 1, or of zeros where they are not floats."""
    shape = example(spec, sizes).shape
    dtype = spec.dtype or f32
    data = rng.uniform(-1, 1, shape) if dtype.kind in "fc" else np.zeros(shape)
    return concrete(data.astype(dtype.np), dtype)


def arguments_of(f: Jitted, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any]:
    """Arguments that fit a function, on the device that its own tensors are on."""
    given = {n: drawn(s, sizes, rng) for n, s in specs_of(f).items()}
    place = _place_of(f)
    return given if place is None else {n: x.to(place) for n, x in given.items()}


def _place_of(f: Jitted) -> str | None:
    """The GPU that tensors outside of a function are on; None where there are no such tensors."""
    names = inspect.getclosurevars(inspect.unwrap(f))
    for v in (*names.nonlocals.values(), *names.globals.values()):
        for x in tree.leaves(v):
            if isinstance(x, Tensor) and x.device.kind != "cpu":
                return str(x.device)
    return None


def size_of(text: str) -> tuple[str, int]:
    """A symbolic size and its value, written NAME=N."""
    name, _, value = text.partition("=")
    if not (name.isidentifier() and value.isdecimal() and int(value)):
        raise UsageError(f"--size is {text!r}, expected one like B=32")
    return name, int(value)


def sizes_of(texts: Sequence[str], functions: Sequence[Jitted]) -> dict[str, int]:
    """The values of `--size`, of sizes that the functions have."""
    sizes = dict(map(size_of, texts))
    known = dict.fromkeys(n for f in functions for s in specs_of(f).values() for n in s.symbols)
    for name, value in sizes.items():
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "every size is a number"
            raise UsageError(f"--size {name}={value}: no size is called {name}; {there}")
    return sizes


def run_alone(args: argparse.Namespace) -> int:
    """Run a Python file or an ONNX model; errors of Tessera show the user's line and no traceback."""
    if args.file.endswith(".onnx"):
        status: int = _run_model(args.file, args.rest)
        return status
    execute(args.file, "__main__", args.rest)
    return 0


def execute(path: str, name: str, argv: Sequence[str]) -> dict[str, Any]:
    """The names that a Python file defines when it is run as module `name`."""
    _check(path)
    before, sys.argv = sys.argv, [path, *argv]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        return runpy.run_path(path, run_name=name)
    except SystemExit as e:
        if name == "__main__":
            raise
        raise UsageError(
            f"{path} ends with exit status {e.code or 0} while it is read; put what it does under "
            'if __name__ == "__main__":'
        ) from None
    finally:
        sys.argv = before
        sys.path.pop(0)


def _check(path: str) -> None:
    """Raise when a file is no Python program."""
    if not Path(path).is_file():
        file, colon, name = path.rpartition(":")
        inner = (
            f"; {name} is no name: name a function, as {file}:function or {file}:Class.method"
            if (colon and Path(file).is_file())
            else ""
        )
        raise UsageError(f"there is no file {path}{inner}")
    try:
        text = Path(path).read_bytes()
        if b"\0" in text:
            raise UsageError(f"{path} is no Python file: it holds null bytes")
        compile(text, path, "exec", dont_inherit=True)
    except OSError as e:
        raise UsageError(f"{path} cannot be read ({e.strerror})") from None
    except SyntaxError as e:
        line = "" if e.lineno is None else f", line {e.lineno}"
        raise UsageError(f"{path}{line}: {e.msg}") from None
