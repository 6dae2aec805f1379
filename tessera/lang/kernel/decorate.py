"""@kernel: a function over tiles as a value that is called, scheduled, tuned and looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

from tessera.core.constraints import solve
from tessera.core.dims import Size
from tessera.core.errors import TesseraError, located
from tessera.ir.graph.ir import Value, concrete, current_builder, data_of
from tessera.ir.tile.ir import Kernel
from tessera.lang.kernel.launch import launch
from tessera.lang.kernel.signature import Bound, Signature
from tessera.lang.kernel.traced import require_equal, sizes_in
from tessera.lang.kernel.translate import Translated, translate
from tessera.lang.schedule import Schedule, as_schedule
from tessera.ops.define import as_value
from tessera.ops.tiles import kernel as kernel_op

_MOST = 512  # translations that a kernel keeps


class KernelFunction:
    """A kernel: call it on tensors."""

    def __init__(self, f: Callable[..., Any], schedule: Schedule | None = None):
        update_wrapper(self, f)
        self.function, self.signature = f, Signature(f)
        self.schedule = schedule or Schedule()
        self._kept: dict[Any, list[Translated]] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.signature.name}, {self.schedule}>"

    def with_schedule(self, schedule: Any) -> KernelFunction:
        """The same kernel under another schedule; what it does not say is inherited."""
        return KernelFunction(self.function, as_schedule(schedule).over(self.schedule))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._run(args, kwargs)
        except TesseraError as e:
            error = located(e)
        raise error

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = self.signature.bind(args, kwargs)
        if current_builder() is not None:
            return self._traced(bound)
        arrays = [_data(a, self.signature.name) for a in bound.arrays]
        sizes = _sizes(bound)
        t = self._translated(bound, sizes, self.schedule)
        return _wrapped(t, launch(t, arrays, sizes))

    def _traced(self, bound: Bound) -> Any:
        """A node of the function being traced."""
        name = self.signature.name
        values = [as_value(a, name) for a in bound.arrays]
        known = sizes_in(bound, [v.type for v in values], name)
        t = self._translated(bound, known, self.schedule)
        require_equal(t, known, name)
        out = kernel_op(*values, program=t.kernel.text)
        return out[0] if _is_single(t) else out

    def _translated(self, bound: Bound, sizes: Mapping[str, Size], s: Schedule) -> Translated:
        """The translation for a call, from those that were made before if one serves it."""
        kept = self._kept.setdefault((bound.key, s), [])
        for t in kept:
            numbers = t.assumed.numbers.items()
            if all(sizes[n] == k for n, k in numbers) and t.is_current():
                return t
        made = translate(self.function, bound, sizes, s, inlined)
        if len(kept) >= _MOST:
            kept.clear()
        kept.append(made)
        return made

    def lower(self, *args: Any, **kwargs: Any) -> Kernel:
        """The Tile IR of this kernel for these arguments."""
        try:
            bound = self.signature.bind(args, kwargs)
            return self._translated(bound, _sizes(bound), self.schedule).kernel
        except TesseraError as e:
            error = located(e)
        raise error


def inlined(f: Any) -> Any:
    """The function of a kernel, or None."""
    return f.function if isinstance(f, KernelFunction) else None


def _sizes(bound: Bound) -> dict[str, int]:
    shapes = zip(bound.parameters, bound.shapes, strict=True)
    return solve([(p.name, p.type.shape, shape) for p, shape in shapes], ())


def _data(a: Any, name: str) -> Any:
    return data_of(a, name) if isinstance(a, Value) else a


def _wrapped(t: Translated, made: list[Any]) -> Any:
    dtypes = [t.inputs[i].dtype for i in t.written] + [r.dtype for r in t.results]
    out = tuple(concrete(a, d) for a, d in zip(made, dtypes, strict=True))
    return out[0] if _is_single(t) else out


def _is_single(t: Translated) -> bool:
    """Whether a call gives one tensor, not a tuple."""
    return len(t.written) + len(t.results) == 1 and (t.single or not t.results)


class _Decorator:
    """kernel, kernel.auto, kernel.schedule(s), kernel.autotune(...)."""

    def __call__(self, f: Callable[..., Any]) -> KernelFunction:
        """A function over tiles as a kernel, with the default schedule."""
        return self._made(f)

    def auto(self, f: Callable[..., Any]) -> KernelFunction:
        """A kernel whose schedule is chosen by the compiler."""
        return self._made(f)

    def schedule(self, s: Any) -> Callable[[Callable[..., Any]], KernelFunction]:
        """A kernel with a schedule."""
        chosen = as_schedule(s)
        return lambda f: self._made(f).with_schedule(chosen)

    def _made(self, f: Any) -> KernelFunction:
        return f if isinstance(f, KernelFunction) else KernelFunction(f)


kernel = _Decorator()
