"""What a command works on: functions of a file, with arguments that fit or those of the program's calls."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tessera.cli.programs import execute, found_in, member, sizes_of, specs_of
from tessera.cli.show import Console, UsageError, escape
from tessera.core.errors import TesseraError
from tessera.lang.annotation import TensorSpec
from tessera.lang.compilations import Compilation, compilations
from tessera.lang.jit import Jitted, jit
from tessera.lang.kernel.decorate import KernelFunction
from tessera.lang.methods import BoundMethod

Draw = Callable[[Jitted, Mapping[str, int]], Mapping[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A function and the arguments that a command calls, compiles or tunes it with."""

    function: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def specs(self) -> list[TensorSpec]:
        """The annotations of its parameters, for the names of sizes."""
        found = inspect.signature(self.function, eval_str=True).parameters.values()
        specs = [getattr(p.annotation, "spec", p.annotation) for p in found]
        return [s for s in specs if isinstance(s, TensorSpec)]


def subjects_of(
    path: str, name: str, sizes: Sequence[str], command: str, draw: Draw, rest: Sequence[str] = (),
    every: bool = False,
) -> list[Subject]:  # fmt: skip
    """The named function, the only one, or all that are jitted.

    A function whose parameters are annotated gets arguments from `draw`.  Any other one gets those of its
    first call while the file runs as a program.
    """
    with compilations() as seen:
        defined = execute(path, f"<tessera {command}>", [])
    jitted = [k for k, v in defined.items() if isinstance(v, Jitted)]
    names = [name] if name or not every else jitted or [""]
    functions: list[Jitted | UsageError] = [_annotated(path, n, defined) for n in names]
    drawn = [f for f in functions if isinstance(f, Jitted)]
    missing = [f for f in functions if not isinstance(f, Jitted)]
    if missing and not (every and not name) and not could_make(path, name, defined):
        raise missing[0]
    calls = [*seen, *calls_of(path, rest)] if missing else []
    known = {s: None for f in drawn for s in _symbols(f)}
    if not missing or known:
        values = sizes_of(sizes, drawn)
    elif sizes:
        raise UsageError(f"--size {sizes[0]}: the sizes are those of the calls in {path}")
    else:
        values = {}
    out = []
    for n, f in zip(names, functions, strict=True):
        found = (
            [Subject(f.keeping(), (), draw(f, values))]
            if isinstance(f, Jitted)
            else _called(calls, own_name(defined, n))
        )
        if not found and isinstance(f, UsageError):
            raise f
        out += found if every else found[:1]
    return out


def _annotated(path: str, name: str, defined: Mapping[str, Any]) -> Jitted | UsageError:
    """A function whose parameters are all annotated, or why there is none."""
    try:
        f = found_in(path, name, defined)
        specs_of(f)
    except UsageError as e:
        return e
    return f


def _symbols(f: Jitted) -> list[str]:
    return [n for s in specs_of(f).values() for n in s.symbols]


def could_make(path: str, name: str, defined: Mapping[str, Any]) -> bool:
    """Whether the function could be made when the program runs: some function in the file has its name."""
    if not name:
        return not any(isinstance(v, Jitted) for v in defined.values()) or _count(defined) == 1
    named = ast.walk(ast.parse(Path(path).read_bytes()))
    last = name.rpartition(".")[2]
    return callable(member(defined, name)) or any(
        isinstance(n, ast.FunctionDef) and n.name == last for n in named
    )


def _count(defined: Mapping[str, Any]) -> int:
    return sum(isinstance(v, Jitted) for v in defined.values())


def calls_of(path: str, rest: Sequence[str]) -> list[Compilation]:
    """What a program compiles when it runs, with the arguments of each first call."""
    say = Console(stderr=True).print
    say(
        f"running {escape(path)} for the arguments of its calls; Ctrl-C ends it",
        style="dim",
        soft_wrap=True,
    )
    # A program that ends by itself, by Ctrl-C or by an error has called what it has called.
    with compilations() as found, suppress(SystemExit, KeyboardInterrupt):
        try:
            execute(path, "__main__", rest)
        except TesseraError as e:
            say(f"the program ended with {escape(str(e))}", style="dim", soft_wrap=True)
    return found


def own_name(defined: Mapping[str, Any], name: str) -> str:
    """What a function of a file calls itself, as its compilations do: f = ts.jit(lambda x: ...) is
    <lambda>.
    """
    f = member(defined, name)
    if "." in name:
        f = f.function if isinstance(f, BoundMethod) else f
        return getattr(f, "__qualname__", name)
    return f.name if isinstance(f, Jitted | BoundMethod) else name


def full_name(c: Compilation) -> str:
    """What was compiled, with the class of a method."""
    return getattr(c.function, "__qualname__", None) or c.name


def is_of(c: Compilation, own: str) -> bool:
    """Whether a compilation is of the function that calls itself so."""
    return own == (full_name(c) if "." in own else c.name)


def _called(calls: Sequence[Compilation], name: str) -> list[Subject]:
    """The functions of these calls, each with the arguments of the first; kernels as jitted functions."""
    first: dict[str, Subject] = {}
    for c in calls:
        if c.function is None or (name and not is_of(c, name)) or full_name(c) in first:
            continue
        is_kernel = isinstance(c.function, KernelFunction)
        f = jit(c.function) if is_kernel else c.function.keeping()
        first[full_name(c)] = Subject(f, c.args, c.kwargs)
    return list(first.values())
