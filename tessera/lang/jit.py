"""jit: a function traced once per argument types, compiled, and run from a cache."""

from __future__ import annotations

import inspect
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, update_wrapper
from html import escape
from pathlib import Path
from types import MethodType
from typing import Any

from tessera.algebra.annotation import OperatorSpec
from tessera.algebra.laws.log import rewrites
from tessera.compile import compile_graph, demand_target
from tessera.compile.executable import Executable
from tessera.compile.fallback import Task, first_that_works
from tessera.core import call_guard, tree
from tessera.core.blame import blames_arguments, demand_function
from tessera.core.deferred import Deferred
from tessera.core.device import CPU, Device
from tessera.core.during import During
from tessera.core.errors import (
    AnnotationError,
    OperandError,
    ScheduleError,
    TesseraError,
    located,
    too_deep,
)
from tessera.core.flags import NUMERICS, flags, override
from tessera.core.garbage import collected_later
from tessera.core.spans import span
from tessera.core.statics import static_key
from tessera.core.types import TensorType
from tessera.eager import refuse_hosted, target_in_force
from tessera.ir.graph.ir import (
    Graph,
    Value,
    current_builder,
    data_of,
)
from tessera.ir.graph.numbers import checking
from tessera.ir.graph.scheduled import with_schedules
from tessera.lang import linear_state
from tessera.lang.annotation import StateSpec, TensorSpec
from tessera.lang.arguments import (
    PLAIN,
    Call,
    Variants,
    check_statics,
    copied,
    fixed_token,
    leaf_names,
    method_of,
    names_in,
    numbers_of,
    unsettled,
)
from tessera.lang.call_device import device_of
from tessera.lang.compilations import COMPILATIONS, Compilation, note, reason
from tessera.lang.device import gpu_of
from tessera.lang.donation import run_donating, tell_kept
from tessera.lang.habits import FunctionHabits
from tessera.lang.lowered import Lowered
from tessera.lang.methods import BoundMethod
from tessera.lang.observe import CALLS
from tessera.lang.placeholders import placed
from tessera.lang.results import Returns
from tessera.lang.schedules import schedules_of
from tessera.lang.shortcut import follow
from tessera.lang.state_marks import check_device
from tessera.lang.stream import Stream, current_stream
from tessera.lang.tensor import Tensor
from tessera.lang.trace import Traced, is_tensor, trace
from tessera.lang.variant import Variant, apart, queued, results, wrap
from tessera.ops.control import call
from tessera.ops.define import showing_layouts

_write_page = Deferred("tessera.inspect.page:write_page")


def _token(x: Tensor) -> Any:
    """The type of a tensor, and where it is, unless here."""
    d = x.device
    return x.type if d is CPU else (x.type, d.kind, d.index)


def _name_of(f: Any) -> str:
    """The name of a function, of what a functools.partial calls, or of the class of another callable."""
    if isinstance(f, partial):
        return _name_of(f.func)
    return getattr(f, "__name__", None) or type(f).__name__


class Jitted(FunctionHabits):
    """A function that compiles itself for the types it is called with."""

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnames: Sequence[str] = (),
        donate: Sequence[str] = (),
        numerics: str | None = None,
        target: str | None = None,
        static_argnums: int | Sequence[int] = (),
        schedules: Any = None,
    ):
        demand_function("jit", f)
        self._numerics, self._target = numerics, target
        try:
            self._schedules = schedules_of(schedules)
        except ScheduleError as e:
            raise located(e) from None
        update_wrapper(self, f)
        self._f = f
        self._name = self.__name__ = _name_of(f)
        try:
            self._signature = inspect.signature(f, eval_str=True)
        except NameError:
            self._signature = inspect.signature(f)
        names = tuple(self._signature.parameters)
        given = names_in("static_argnames", static_argnames)
        donated = names_in("donate", donate)
        for n in (*given, *donated):
            if n not in names:
                raise located(
                    OperandError(
                        f"jit: {self._name} has no parameter '{n}'; it has {', '.join(names)}"
                    )
                )
        try:
            given += numbers_of(self._name, names, static_argnums)
        except OperandError as e:
            raise located(e) from None
        try:
            demand_target(target or "cpu")
        except OperandError as e:
            raise located(e) from None
        if numerics is not None and numerics not in NUMERICS:
            wanted = ", ".join(NUMERICS)
            raise located(OperandError(f"jit: numerics is {numerics!r}, expected one of {wanted}"))
        self._static, self._donate = frozenset(given), frozenset(donated)
        self._keyword_order = names
        self._keyword_only = frozenset(
            p.name for p in self._signature.parameters.values() if p.kind is p.KEYWORD_ONLY
        )
        self._specs = {
            p.name: p.annotation
            for p in self._signature.parameters.values()
            if isinstance(p.annotation, TensorSpec) and not hasattr(f, "keeps_sizes")
        }
        self._states = {
            p.name: p.annotation
            for p in self._signature.parameters.values()
            if isinstance(p.annotation, StateSpec)
        }
        self._operators = {
            p.name: p.annotation
            for p in self._signature.parameters.values()
            if isinstance(p.annotation, OperatorSpec)
        }
        self._caller: Any = None  # calls this function without Python where a record allows it
        self._quick: dict[Any, Variant] = {}  # by the tokens of a call
        self._entries: dict[Any, Variant] = {}  # by actual types
        self._variants: dict[Any, Variant] = {}  # by the types that are compiled for
        self._counted = Variants(self._name)
        self._is_method, self._first = False, next(iter(names), "")
        self._returns = Returns(f, self._name, self._signature)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:  # here, so that a traceback shows one frame of ours
            if CALLS.observers and current_builder() is None:
                return CALLS.around(Jitted._call)(self, args, kwargs)
            return self._call(args, kwargs)
        except TesseraError as e:
            error = located(e)
        except RecursionError:
            error = located(too_deep(self._name))
        raise error

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = current_stream()
        if stream is None and current_builder() is None:
            key, data, tensors = self._tokens(args, kwargs)
            try:
                entry = self._quick.get(key)
            except TypeError:  # a static field that cannot be hashed: said below
                entry = key = None
            if entry is not None:
                donates = entry.donated and type(entry.executable) is not Executable
                if donates and not checking():
                    return results(entry, run_donating(entry, tensors, data))
                if entry.record is not False and not entry.donated:
                    self._prepare_calls(entry, args, kwargs, data)
                return wrap(entry, data)
        else:
            key = None
        c = self._take_apart(args, kwargs)
        if current_builder() is not None:
            return self._inline(c)
        entry = self._entry(c)
        if key is not None and len(data) == len(c.tensors):
            self._quick[key] = entry
        data, tensors = [], []  # a donated array is free when nothing else holds it
        return self._started(entry, c, stream, key is not None)

    def _started(self, entry: Variant, c: Call, stream: Stream | None, usual_call: bool) -> Any:
        """The results of a call whose entry was looked up by its types."""
        if stream is not None and entry.device != stream.device:
            raise OperandError(
                f"Stream: {self._name} runs on {entry.device}, but the stream is of {stream.device}; "
                f"use ts.Stream(device={str(entry.device)!r})"
            )
        if stream is not None and not entry.donated and not checking():
            return queued(stream, entry, c.tensors, self._name)
        if entry.donated and type(entry.executable) is not Executable and not checking():
            data = [data_of(v, self._name) for v in c.tensors]
            return results(entry, run_donating(entry, c.tensors, data))
        result = wrap(entry, [data_of(v, self._name) for v in c.tensors])
        return result if usual_call else apart(result, c)

    def _prepare_calls(self, entry: Variant, args: Any, kwargs: Any, data: Sequence[Any]) -> None:
        """Let calls like this one, which came twice, skip Python from now on."""
        if call_guard.is_busy():
            return
        now = call_guard.configuration()
        if entry.seen != now:
            entry.seen = now
        elif entry.record is None or entry.record.configuration != now:
            alone = entry.single and entry.types[0].static and len(data) == len(args)
            entry.record = (alone and self._followed(entry, args, kwargs, data)) or False
        elif not self._caller.follows(entry.record):
            self._caller.follow(entry.record)

    def _followed(self, entry: Variant, args: Any, kwargs: Any, data: Sequence[Any]) -> Any:
        """The record of calls that need no Python; None where there is none."""
        written, (target, numerics, _) = entry.executable.written, self._mode()
        task = Task(written, target, numerics, [v.type for v in written.inputs])

        def followed() -> Any:
            with During("call"):
                return follow(self, entry.executable, args, kwargs, data, entry.types[0])

        return first_that_works(task, ("", followed), ("through Python", lambda: None))

    def _tokens(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Any], list[Tensor]]:
        """A key for the usual call, tensors in trees and plain keywords; None for other calls."""
        out: list[Any] = []
        data: list[Any] = []
        tensors: list[Tensor] = []

        def leaf(x: Any) -> Any:
            if type(x) is not Tensor or x.storage is None:
                return fixed_token(x)
            data.append(x.storage)
            tensors.append(x)
            return x.type if x.device is CPU else _token(x)

        out += self._mode()
        for x in args:
            if type(x) is Tensor and x.storage is not None:
                data.append(x.storage)
                tensors.append(x)
                out.append(_token(x))
            elif not tree.tokens(x, leaf, out):
                return None, data, tensors
        left = len(kwargs)
        for n in self._keyword_order if kwargs else ():
            if n not in kwargs:
                continue
            left -= 1
            out.append(n)
            x = kwargs[n]
            if n in self._keyword_only and type(x) in PLAIN:
                out.append(static_key(x))
            elif not tree.tokens(x, leaf, out):
                return None, data, tensors
        # A name that the function does not have, or takes by ** alone, is not in the key.
        return None if left else tuple(out), data, tensors

    def _mode(self) -> tuple[str, str, bool]:
        """Target and numerics of a call, as jit was told or the flags say, and whether it is checked."""
        mode = flags()
        return self._target or mode.target, self._numerics or mode.numerics, mode.checked

    def _take_apart(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seen: Callable[[Any], Any] = lambda x: x,
    ) -> Call:
        """A call taken apart; `seen` is what an argument that is not static is taken for."""
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as e:
            raise OperandError(f"{self._name}: {e}") from None
        for n in self._operators.keys() & given.keys():
            self._operators[n].check(n, given[n])
        static = {
            n: v
            for n, v in given.items()
            if n in self._static or (n in self._keyword_only and isinstance(v, PLAIN))
        }
        check_statics(self._name, static)
        dynamic = {n: seen(v) for n, v in given.items() if n not in static}
        return Call(self._name, dynamic, static, self._is_method and self._first in dynamic)

    def _entry(self, c: Call) -> Variant:
        target, numerics, checked = self._mode()
        device = device_of(self._name, c, target)
        if numerics == "strict" and device.kind != "cpu":
            raise OperandError(
                f"{self._name}: numerics 'strict' needs the same bits on every machine, but sums have "
                "another "
                f"order on {device} than on a CPU; use 'deterministic'"
            )
        chosen = (target, numerics, checked, c.key, device)
        key = (chosen, c.types)
        try:
            entry = self._entries.get(key)
        except TypeError:
            raise c.unhashable(self._name) from None
        if entry is not None:
            return entry
        types = self._trace_types(c)
        entry = self._variants.get((chosen, types))
        if entry is None:
            place = self._target or target_in_force() if device.kind == "cpu" else str(device)
            begin = time.perf_counter()
            with collected_later():
                t = self._trace(c, types, gpu_of(target, device))
                executable = compile_graph(self._assigned(t.graph, place), place, numerics)
            if numerics == "strict":
                refuse_hosted(executable)
            entry = Variant(executable, t.structure, self._donated(c), device, checked)
            self._variants[chosen, types] = entry
            self._counted.add(c, (target, numerics, device, types))
            tell_kept(self._name, entry.donated, executable)
            if COMPILATIONS:
                self._note(c, executable, (chosen, types), time.perf_counter() - begin)
        self._entries[key] = entry
        return entry

    def _assigned(self, g: Graph, place: str) -> Graph:
        """The graph with the schedules of its kernels."""
        kind = place.partition(":")[0]
        if self._schedules and kind in ("numpy", "mesh"):
            raise ScheduleError(
                f"{self._name}: schedules do nothing on {kind}: name them for cpu or a GPU"
            )
        return with_schedules(g, self._schedules)

    def _note(self, c: Call, executable: Executable, key: Any, seconds: float) -> None:
        """Tell those who watch what was compiled, and on what it was called."""
        names = leaf_names(c.names, tree.unflatten(c.structure, c.leaves))
        why = reason(names, list(self._variants)[:-1], key)
        taken, leaves = set(self._donated(c)), list(c.leaves)  # what the call takes over is copied
        tensors = [copied(v) if i in taken else v for i, v in enumerate(c.tensors)]
        places = [i for i, x in enumerate(leaves) if is_tensor(x)]
        for i in taken:
            leaves[places[i]] = tensors[i]
        data = [data_of(v, self._name) for v in tensors]
        values = tree.unflatten(c.structure, leaves)
        given = self._arguments(dict(zip(c.names, values, strict=True)) | c.static)
        called = (self, given.args, given.kwargs)
        executable, blocks = executable.of_rank(data)
        note(Compilation(self._name, executable, blocks, why, seconds, None, *called))

    def _arguments(self, given: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = inspect.BoundArguments(self._signature, OrderedDict())
        bound.arguments.update({n: given[n] for n in self._signature.parameters if n in given})
        return bound

    def _donated(self, c: Call) -> tuple[int, ...]:
        """The numbers of the tensors in arguments that are donated."""
        parts = zip(c.names, c.structure.children, strict=True)
        names = [name for name, s in parts for _ in range(s.count)]
        owners = [n for n, x in zip(names, c.leaves, strict=True) if is_tensor(x)]
        return tuple(i for i, n in enumerate(owners) if n in self._donate)

    def _trace_types(self, c: Call) -> tuple[TensorType, ...]:
        if not self._specs and not self._states:
            return c.types
        types, leaves, tensors = [], iter(c.leaves), iter(c.tensors)
        for name, s in zip(c.names, c.structure.children, strict=True):
            spec = self._specs.get(name)
            mine = [next(leaves) for _ in range(s.count)]
            if spec is not None and (s.kind is not None or not is_tensor(mine[0])):
                raise AnnotationError(
                    f"argument '{name}' of {self._name} is {s if s.kind else type(mine[0]).__name__}, "
                    f"expected {spec}"
                )
            held = [next(tensors) for x in mine if is_tensor(x)]
            own = [v.type for v in held]
            state = self._states.get(name)
            if state is not None:
                check_device(name, state, held)
                types += state.types_for(name, tree.structure_paths(s), own)
            else:
                types += own if spec is None else [spec.type_for(name, t) for t in own]
        # A symbolic size stands for one or more elements: empty axes get a variant of their own.
        empty = any(0 in t.shape and t is not s for t, s in zip(c.types, types, strict=True))
        return c.types if empty else tuple(types)

    def _trace(self, c: Call, types: Sequence[TensorType], place: Device | None = None) -> Traced:
        values = tree.unflatten(c.structure, c.leaves)
        names, f = leaf_names(c.names, values), self._bound(c)
        # What refuses to be cut by a schedule asks for the target.
        bare = override(target="numpy") if self._mode()[0] == "numpy" else nullcontext()
        with bare, span("trace", self._name), showing_layouts(c.tensors):
            return trace(f, values, {}, types, self._name, names, weak_numbers=True, place=place)

    def _bound(self, c: Call) -> Callable[..., Any]:
        """The function of the dynamic arguments alone."""

        def run(*dynamic: Any) -> Any:
            given = dict(zip(c.names, dynamic, strict=True)) | c.static
            for n in self._states.keys() & given.keys():
                self._states[n].check(n, given[n], given)
                given[n] = linear_state.begin(given[n])
            if self._is_method and self._first in c.names:
                given[self._first] = unsettled(given[self._first])
            bound = self._arguments(given)
            result = self._f(*bound.args, **bound.kwargs)
            if self._returns.checks:
                self._returns.check(result, given)
            return result

        return run

    def _inline(self, c: Call) -> Any:
        """Inside another trace: a call node around this function's graph."""
        self._trace_types(c)  # check the annotations
        t = self._trace(c, c.types)
        outs = call(t.graph, *c.tensors, *t.outer, name=self._name)
        return tree.unflatten(t.structure, outs)

    def program(self, *args: Any, **kwargs: Any) -> tuple[Executable, list[Value]]:
        """The program for these arguments, and the tensors among them."""
        c = self._take_apart(args, kwargs)
        return self._entry(c).executable, c.tensors

    def mode_of(self, tensors: Sequence[Value]) -> tuple[str, str]:
        """The target and the numerics of a call on these tensors."""
        place = next((str(v.device) for v in tensors if v.device.kind != "cpu"), "")
        return place or self._target or target_in_force(), self._mode()[1]

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """This function at every level of the compiler, for these arguments or types (Tensor["B", 64])."""
        try:
            c = self._take_apart(args, kwargs, placed)
            executable = self._entry(c).executable
            if not executable.is_whole:
                data = [data_of(v, self._name) for v in c.tensors]
                own, blocks = executable.of_rank(data)
                return Lowered(own, [x.shape for x in blocks])
            return Lowered(executable, [t.shape for t in c.types])  # type: ignore[misc]
        except TesseraError as e:
            error = located(e)
        raise error

    def traced(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of this function for these arguments or types, before any pass."""
        try:
            c = self._take_apart(args, kwargs, placed)
            return self._trace(c, self._trace_types(c)).graph
        except TesseraError as e:
            error = located(e)
        raise error

    def traced_call(self, *args: Any, **kwargs: Any) -> tuple[Traced, Call]:
        """The graph for these arguments before any pass, and the call taken apart."""
        c = self._take_apart(args, kwargs)
        return self._trace(c, self._trace_types(c)), c

    def inspect(
        self, *args: Any, path: str | os.PathLike[str] | None = None, gpu: Sequence[str] = (), **kwargs: Any
    ) -> Path:  # fmt: skip
        """Write a page that shows this function at every level; `path` is NAME.html unless given.

        `gpu` names GPUs that its code is shown for, such as "sm_90" or "gfx942"; none needs to be there.
        """
        try:
            f = self.keeping("cpu")
            c = f._take_apart(args, kwargs)
            data = [data_of(v, self._name) for v in c.tensors]
            with rewrites() as log:
                executable, blocks = f._entry(c).executable.of_rank(data)
            shown = (gpu,) if isinstance(gpu, str) else tuple(gpu)
            written: Path = _write_page(executable, blocks, path, log, shown)
            return written
        except TesseraError as e:
            error = located(e)
        raise error

    def keeping(self, target: str | None = None) -> Jitted:
        """The same function, which takes no argument over: calls may be repeated."""
        f = Jitted(self._f, sorted(self._static), (), self._numerics, target or self._target)
        f._schedules = self._schedules
        f._is_method = self._is_method
        return f

    @property
    def name(self) -> str:
        """What the function is called."""
        return self._name

    @property
    def target(self) -> str:
        """What runs this function."""
        return self._mode()[0]

    @property
    def mode(self) -> str:
        """The numerics of a call."""
        return self._mode()[1]

    def forget(self) -> None:
        """Compile anew at the next call."""
        for kept in (self._quick, self._entries, self._variants):
            kept.clear()
        if self._caller is not None:
            self._caller.forget()

    @property
    def compiled(self) -> int:
        """How many variants have been compiled."""
        return len(self._variants)

    def __repr__(self) -> str:
        target, numerics, _ = self._mode()
        count = len(self._variants)
        made = f"{count} variant{'s' * (count != 1)} compiled" if count else "not compiled yet"
        return f"<jit {self._name}({', '.join(self._keyword_order)}): {made}, for {target}, {numerics}>"

    def _repr_html_(self) -> str:
        """The function with its variants, for a notebook."""
        rows = "".join(
            f"<li><code>{escape(', '.join(map(str, types)))}</code></li>"
            for _, types in self._variants
        )
        return f"<div><code>{escape(repr(self))}</code><ul>{rows}</ul></div>"

    def __dir__(self) -> list[str]:
        shown = [n for n in object.__dir__(self) if n.startswith("__") or not n.startswith("_")]
        return [n for n in shown if n not in vars(FunctionHabits)]

    def __set_name__(self, owner: Any, name: str) -> None:
        self._is_method = True

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundMethod(self, instance)


@blames_arguments
def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    donate: Sequence[str] = (),
    numerics: str | None = None,
    target: str | None = None,
    schedules: Any = None,
) -> Any:
    """Compile a function for the types it is called with.

    Arguments are trees of tensors, numbers and arrays.  Parameters in static_argnames and static_argnums, and
    keyword-only parameters that are given plain Python values, are part of the key instead: a new value
    compiles anew.  Text, enums, dtypes and functions are part of the key wherever they are; other objects
    are an error. What f closes over is read once, when it is traced. The target is `cpu` (machine code),
    `numpy` (the references of the ops) or a GPU (`cuda`, `cuda:1`, `hip`); unless given, the one that
    TESSERA_TARGET sets, or the device of the tensors.  For an architecture (`hip:gfx942`) a program is
    compiled and not run: see `lower`.  `numerics` is one of `deterministic`, `strict` and `fast`;
    docs/numerics.md says what each promises.  `donate` names arguments whose memory results may take on the
    target `cpu`; tensors that were passed for them cannot be used afterwards.  `schedules` are those of
    its kernels, by the names that `f.lower(...).schedule` has, or a file of them (docs/scheduling.md).
    """
    if f is None:
        return lambda g: jit(
            g, static_argnames=static_argnames, static_argnums=static_argnums, donate=donate,
            numerics=numerics, target=target, schedules=schedules,
        )  # fmt: skip
    given = (static_argnames, donate, numerics, target, static_argnums, schedules)
    method = method_of(f)
    if method is None:
        return Jitted(f, *given)
    return BoundMethod(Jitted(method, *given), f.__self__ if isinstance(f, MethodType) else f)
