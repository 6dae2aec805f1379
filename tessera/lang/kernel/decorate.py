"""@kernel: a function over tiles as a value that is called, scheduled, tuned and looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any

from tessera.core.blame import brief, demand_function
from tessera.core.constraints import solve
from tessera.core.deferred import Deferred
from tessera.core.device import CPU, GPUS, Device
from tessera.core.dims import Dim, Size
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.flags import flags
from tessera.core.looking import is_looking
from tessera.ir.graph.ir import Value, concrete, current_builder, data_of
from tessera.lang.compilations import COMPILATIONS, Compilation, note
from tessera.lang.kernel.hints import LACKS, refuse, space_of, threads, unused
from tessera.lang.kernel.inline_assembly import Assembly, assemblies, assembly, probe
from tessera.lang.kernel.launch import covered, interpreting, is_stepping, launch
from tessera.lang.kernel.lowered import LoweredKernel
from tessera.lang.kernel.plan import KernelPlan, heard, token
from tessera.lang.kernel.reports import speak
from tessera.lang.kernel.signature import BoundArguments, KernelSignature
from tessera.lang.kernel.step import step_through
from tessera.lang.kernel.traced import require_equal, sizes_in, text_of, types
from tessera.lang.kernel.translate import Translated, demand_sizes, translate
from tessera.lang.kernel.tune import AutotuneSearch, FoundSchedule, by_sizes, look, remembered
from tessera.lang.kernel.values import LIVE
from tessera.lang.schedule import Schedule, as_schedule
from tessera.ops.creation import zeros
from tessera.ops.define import as_value
from tessera.ops.tiles import kernel as kernel_op
from tessera.runtime.tuned import size_class

_GPU = Device("cuda")  # that Triton source is shown for
_MOST = 512  # translations that a kernel keeps
# Loaded when a kernel is first tuned on a GPU.
_watch = Deferred("tessera.lang.debugging:callback")
_place_of = Deferred("tessera.lang.kernel.tune_gpu:place_of")
_look_there = Deferred("tessera.lang.kernel.tune_gpu:look_there")


class KernelFunction:
    """A kernel: call it on tensors."""

    keeps_sizes = (
        True  # jit leaves the sizes of its annotations to it: tiles may need their numbers
    )

    def __init__(
        self, f: Callable[..., Any], schedule: Schedule | None = None, auto: bool = False,
        gpu: Schedule | None = None,
    ):  # fmt: skip
        update_wrapper(self, f)
        self.function, self.signature = f, KernelSignature(f)
        self.schedule, self.auto = schedule or Schedule(), auto
        self.on_gpu = gpu or self.schedule
        self._kept: dict[Any, list[Translated]] = {}
        self._plans: dict[Any, KernelPlan] = {}

    def __repr__(self) -> str:
        there = "" if self.on_gpu == self.schedule else f", on GPUs {self.on_gpu}"
        return f"<kernel {self.signature.name}, {self.schedule}{there}>"

    def with_schedule(self, schedule: Any = None, *, gpu: Any = None) -> KernelFunction:
        """The same kernel under another schedule, on GPUs under `gpu`; what they do not say is inherited."""
        said = Schedule() if schedule is None else as_schedule(schedule)
        more = Schedule() if gpu is None else as_schedule(gpu)
        there = more.over(said.over(self.on_gpu))
        return KernelFunction(self.function, said.over(self.schedule), gpu=there)

    def scheduled(self, device: Device) -> Schedule:
        """The schedule on a device."""
        return self.schedule if device.kind == "cpu" else self.on_gpu

    def __getitem__(self, grid: Any) -> Any:
        name = self.signature.name
        raise located(
            OperandError(
                f"{name}[{brief(grid, 40)}]: a kernel has no grid of its own; call {name}(...): "
                "tile.program() and the loops over "
                "tiles say how many instances there are"
            )
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if LIVE.session is not None:  # a kernel that calls this one is stepped through
            return LIVE.session.enter(self.function, args, kwargs)
        key = token(args, kwargs, self.signature.keyword_only)
        plan = self._plans.get(key)
        try:
            if plan is not None and plan.t.is_current():
                return plan.run(args)
            return self._run(args, kwargs, key)
        except TesseraError as e:
            error = located(e)
        raise error

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: Any) -> Any:
        bound = self.signature.bind(args, kwargs)
        if current_builder() is not None or any(map(_is_on_gpu, bound.arrays)):
            return self._traced(bound)
        arrays = [_data(a, self.signature.name) for a in bound.arrays]
        sizes = _sizes(bound)
        schedule = self.chosen(bound, sizes, arrays)
        t = self.translated(bound, sizes, schedule)
        self._refuse(t, schedule, CPU)
        if COMPILATIONS and all(c.kernel is not self for c in COMPILATIONS[-1]):
            name = self.signature.name
            note(Compilation(name, None, arrays, "first call", 0.0, self, self, args, kwargs))
        if is_stepping():
            demand_sizes(t, sizes)
            return _wrapped(t, step_through(t, bound, arrays, sizes, schedule, self.function))
        if key is not None and sum(x is not None for x in args) == len(arrays):
            if len(self._plans) >= _MOST:
                self._plans.clear()
            plan = self._plans[key] = KernelPlan(t, sizes, _is_single(t))
            return plan.run(args)
        return _wrapped(t, launch(t, arrays, sizes))

    def chosen(
        self, bound: BoundArguments, sizes: Mapping[str, Size], arrays: Sequence[Any] | None,
        device: Device = CPU
    ) -> Schedule:  # fmt: skip
        """The schedule of a call; there are no arrays while a program is traced."""
        base = self.scheduled(device)
        return by_sizes(base, self.translated(bound, sizes, base), sizes) if self.auto else base

    def _traced(self, bound: BoundArguments) -> Any:
        """A node of the function being traced."""
        name = self.signature.name
        values = [as_value(a, name) for a in bound.arrays]
        known = sizes_in(bound, [v.type for v in values], name)
        device = next((v.device for v in values if v.device.kind != "cpu"), CPU)
        here = None if current_builder() is not None else values
        schedule = self.chosen(bound, known, here, device)
        # Code for a GPU is made for the sizes of a call: whole blocks need no masks then.
        t = self.translated(bound, known, schedule, fixed=device.kind != "cpu")
        self._refuse(t, schedule, device)
        require_equal(t, known, name)
        demand_sizes(t, known)
        if not all(covered(t.kernel, len(values))):
            # Results of which some elements may stay unwritten are operands that begin as zeros.
            made = types(text_of(t.kernel), [v.type for v in values])[len(t.written) :]
            values += [zeros(r.shape, r.dtype) for r in made]
        out = kernel_op(*values, program=text_of(t.kernel), threads=threads(t.hints, schedule))
        if t.reports:
            kept = len(t.written) + t.shown
            _watch(partial(_spoken, name, t.reports), *out[kept:])
            out = out[:kept]
        return out[0] if _is_single(t) else out

    def _refuse(self, t: Translated, schedule: Schedule, device: Device) -> None:
        """Raise where a device lacks what the kernel asks for; the interpreter is for kernels of all."""
        kind = flags().target if device.kind == "cpu" else device.kind
        if kind in LACKS and not interpreting() and not is_looking():
            refuse(self.signature.name, t.hints, schedule, kind)
            for c in assemblies(t.hints) if kind == "cpu" else ():
                probe(c)  # an error of the text, not of the kernel

    def translated(
        self, bound: BoundArguments, sizes: Mapping[str, Size], s: Schedule, fixed: bool = False
    ) -> Translated:
        """The translation for a call, from those that were made before if one serves it."""
        kept = self._kept.setdefault((bound.key, s, flags().numerics, fixed), [])
        for t in kept:
            numbers = t.assumed.numbers.items()
            if all(sizes[n] == k for n, k in numbers) and t.is_current():
                return t
        made = translate(self.function, bound, sizes, s, inlined, fixed)
        if len(kept) >= _MOST:
            kept.clear()
        kept.append(made)
        return made

    def lower(self, *args: Any, **kwargs: Any) -> LoweredKernel:
        """The Tile IR of this kernel for these arguments: .tile .llvm .triton .ptx .amdgcn are its texts."""
        try:
            bound = self.signature.bind(args, kwargs)
            sizes = _sizes(bound)
            return self._lowered(bound, sizes)
        except TesseraError as e:
            error = located(e)
        raise error

    def _lowered(self, bound: BoundArguments, sizes: Mapping[str, Size]) -> LoweredKernel:
        t, here = self._at(bound, sizes, CPU)

        def refused(target: str) -> None:
            found, s = self._at(bound, sizes, _GPU) if target in GPUS else (t, here)
            refuse(self.signature.name, found.hints, s, target)

        def there() -> tuple[Any, ...]:
            found, s = self._at(bound, sizes, _GPU)
            return found.kernel, threads(found.hints, s), sizes

        made = LoweredKernel(t.kernel.name, t.kernel.parameters, t.kernel.grid, t.kernel.body)
        object.__setattr__(made, "refuse", refused)
        object.__setattr__(made, "there", there)
        return made

    def _at(
        self, bound: BoundArguments, sizes: Mapping[str, Size], device: Device
    ) -> tuple[Translated, Schedule]:
        """The kernel of a call on a device, and its schedule there."""
        s = self.chosen(bound, sizes, None, device)
        return self.translated(bound, sizes, s, fixed=device.kind != "cpu"), s

    def hints(self, *args: Any, target: str = "cpu", **kwargs: Any) -> list[str]:
        """What this kernel and its schedule ask for that a target refuses, each with its reason."""
        try:
            if target not in LACKS:
                raise OperandError(
                    f"hints: target is {target!r}, expected one of {', '.join(LACKS)}"
                )
            bound = self.signature.bind(args, kwargs)
            sizes = _sizes(bound)
            schedule = self.chosen(bound, sizes, None, Device(target.replace("numpy", "cpu")))
            return unused(self.translated(bound, sizes, schedule).hints, schedule, target)
        except TesseraError as e:
            error = located(e)
        raise error


class TunedKernel(KernelFunction):
    """A kernel whose schedule is the fastest of a space on this machine, at the sizes of a call."""

    def __init__(
        self, f: Callable[..., Any], search: AutotuneSearch, schedule: Schedule | None = None,
        gpu: Schedule | None = None,
    ):  # fmt: skip
        super().__init__(f, schedule, gpu=gpu)
        self.search = search
        self.found: dict[Any, FoundSchedule] = {}  # by the sizes of calls

    def chosen(
        self, bound: BoundArguments, sizes: Mapping[str, Size], arrays: Sequence[Any] | None,
        device: Device = CPU
    ) -> Schedule:  # fmt: skip
        """The best schedule that is known; on data a new one is searched for."""
        if any(isinstance(n, Dim) for n in sizes.values()) or interpreting():
            return self._first(bound, sizes, device)
        known: dict[str, int] = {n: int(k) for n, k in sizes.items()}
        label = (bound.key, size_class(known), device)
        if label not in self.found:
            first = self._first(bound, known, device)
            found = self._found(bound, known, first, arrays, device)
            if found is None:
                return first
            self.found[label] = found
        return self.found[label].schedule

    def _found(
        self, bound: BoundArguments, sizes: Mapping[str, int], first: Schedule, arrays: Sequence[Any] | None,
        device: Device,
    ) -> FoundSchedule | None:  # fmt: skip
        """What the store knows, or what a search finds where there is data."""

        def made(s: Schedule) -> Translated:
            return self.translated(bound, sizes, s, fixed=on_gpu)

        on_gpu, base = device.kind != "cpu", self.scheduled(device)
        search = self._search(device)
        key = made(first).kernel.hash
        found = remembered(search, key, sizes, _place_of(device) if on_gpu else None)
        if found is not None or arrays is None:
            return found
        if on_gpu:
            seen: FoundSchedule = _look_there(search, base, made, arrays, device, sizes, key)
            return seen
        return look(search, base, made, arrays, sizes, key)

    def _search(self, device: Device) -> AutotuneSearch:
        """The search among what a device has."""
        if device.kind not in LACKS:
            return self.search
        return replace(self.search, space=space_of(self.search.space, device.kind))

    def _first(self, bound: BoundArguments, sizes: Mapping[str, Size], device: Device) -> Schedule:
        """The first schedule of the space that fits."""
        error: TesseraError | None = None
        base = self.scheduled(device)
        for s in self._search(device).space:
            try:
                self.translated(bound, sizes, s.over(base))
            except TesseraError as e:
                error = error or e
                continue
            return s.over(base)
        assert error is not None
        raise error


def inlined(f: Any) -> Any:
    """The function of a kernel, or None."""
    return f.function if isinstance(f, KernelFunction) else None


def _sizes(bound: BoundArguments) -> dict[str, int]:
    shapes = zip(bound.parameters, bound.shapes, strict=True)
    return solve([(p.name, p.type.shape, shape) for p, shape in shapes], ())


def _spoken(name: str, reports: Sequence[Any], *arrays: Any) -> None:
    speak(name, reports, arrays)


def _data(a: Any, name: str) -> Any:
    return data_of(a, name) if isinstance(a, Value) else a


def _wrapped(t: Translated, made: list[Any]) -> Any:
    made = heard(t, made)
    dtypes = [t.inputs[i].dtype for i in t.written] + [r.dtype for r in t.results[: t.shown]]
    out = tuple(concrete(a, d) for a, d in zip(made, dtypes, strict=True))
    return out[0] if _is_single(t) else out


def _is_on_gpu(x: Any) -> bool:
    return isinstance(x, Value) and x.device.kind != "cpu"


def _is_single(t: Translated) -> bool:
    """Whether a call gives one tensor, not a tuple."""
    return len(t.written) + t.shown == 1 and (t.single or not t.shown)


class _Decorator:
    """kernel, kernel.auto, kernel.schedule(s), kernel.autotune(...), kernel.assembly(...)."""

    def __call__(self, f: Callable[..., Any]) -> KernelFunction:
        """A function over tiles as a kernel, with the default schedule."""
        demand_function("kernel", f)
        return self._made(f)

    def auto(self, f: Callable[..., Any]) -> KernelFunction:
        """A kernel whose blocks are no larger than the tensors that it is called on."""
        return KernelFunction(getattr(f, "function", f), auto=True)

    def autotune(
        self, space: Any = None, metric: str = "latency_ms", budget_ms: float = 200.0,
        cache: Any = None,
    ) -> Callable[[Callable[..., Any]], TunedKernel]:  # fmt: skip
        """A kernel with the fastest schedule of a space, which is searched for when it is first called.

        The space is a dictionary {"BM": [64, 128], "warps": [4, 8]} or block(m=[64, 128]).warps([4, 8]);
        `cache` is a folder for what is found, beside the compiled code if not given.
        """
        try:
            search = AutotuneSearch.of(space, metric, budget_ms, cache)
        except TesseraError as e:
            error = located(e)
        else:
            return lambda f: TunedKernel(
                getattr(f, "function", f), search, getattr(f, "schedule", None),
                getattr(f, "on_gpu", None),
            )  # fmt: skip
        raise error

    def schedule(
        self, s: Any = None, *, gpu: Any = None
    ) -> Callable[[Callable[..., Any]], KernelFunction]:
        """A kernel with a schedule, and on GPUs with what `gpu` says beside it."""
        chosen = Schedule() if s is None and gpu is not None else as_schedule(s)
        there = None if gpu is None else as_schedule(gpu)
        return lambda f: self._made(f).with_schedule(chosen, gpu=there)

    def assembly(
        self, name: str, takes: Any, gives: Any, reference: Callable[..., Any], *, ptx: str | None = None,
        amdgcn: str | None = None, x86_64: str | None = None, aarch64: str | None = None, within: float = 0.0,
        like: str | None = None, clobbers: Sequence[str] = (), pure: bool = True,
    ) -> Assembly:  # fmt: skip
        """Instructions of a target as a function of tiles, under a contract.

        The contract: for elements of the dtypes `takes` ($1, $2, ...) the text of a target computes one of
        `gives` ($0), for every element alone, also for those past an edge; it reads and writes nothing else
        but `clobbers`, never traps, and differs from `reference`, a function of NumPy arrays, by at most
        `within` of it.  Interpreters run the reference.  On a target without a text a call is an error.
        x86_64 is in AT&T's syntax.  With `like="rsqrt"` it has the derivative of that function.
        """
        texts = {"ptx": ptx, "amdgcn": amdgcn, "x86_64": x86_64, "aarch64": aarch64}
        try:
            return assembly(
                name,
                takes,
                gives,
                reference,
                like=like,
                within=within,
                clobbers=clobbers,
                pure=pure,
                texts=texts,
            )
        except TesseraError as e:
            error = located(e)
        raise error

    def _made(self, f: Any) -> KernelFunction:
        return f if isinstance(f, KernelFunction) else KernelFunction(f)


kernel = _Decorator()
