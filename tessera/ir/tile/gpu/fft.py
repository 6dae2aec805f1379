"""fft: Fourier transforms on a GPU, some passes of core/fourier.py to a launch.

    x[Q, j, p] -> y[k, Q, p]    Q < done, j and k < radix, p < left; done * radix * left is the length

Lengths that are powers of two have as many passes in a launch as a block of threads can hold lines for
(fft_lines.py).  Of others, a thread holds the elements j of a Q and a p, runs the passes whose radices
multiply to `radix` on them, and writes the elements k.  Neighbouring threads read and write neighbouring p,
or Q where one p is left: memory is read and written in whole lines, and the order after the last launch is
that of the transform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tessera.core.fourier import FourierPass
from tessera.core.pairs import Pair
from tessera.core.tables import Table, fourier_table
from tessera.core.transforms import axes_of
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.fft_lines import LineWriter, grouped, spans
from tessera.ir.tile.gpu.fft_writer import LANES, Hook, LanePlace, Transform, TransformWriter
from tessera.ir.tile.launch import Expansion, Launch, Threads

_RADIX = {32: 16, 64: 16}  # elements that a thread holds at most, by the bits of a part


def lower_transform(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a transform along one axis after another."""
    given, axes = types[step.operands[0]], axes_of(step.params)
    known = all(isinstance(s, int) for s in (*given.shape, step.params.get("n", 1)))
    if 0 in given.shape or not known or given.dtype.real.bits not in _RADIX:
        return None
    shape, source, whole = [int(s) for s in given.shape], step.operands[0], _Launches()
    for i, axis in enumerate(axes):
        n = int(step.params.get("n", shape[axis]))
        t = Transform(
            step.primitive, n, prod(shape[:axis]), prod(shape[axis + 1 :]), given.dtype.real,
            step.params["norm"], step.order,
        )  # fmt: skip
        target = step.results[0] if i == len(axes) - 1 else f"part{i}"
        if target != step.results[0]:
            whole.between[target] = given
        _Along(t, i, whole).run(source, target)
        source = target
    return Expansion(tuple(whole.launches), whole.between, whole.tables)


class _Launches:
    """What a step becomes."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.between: dict[str, TensorType] = {}
        self.tables: dict[str, Table] = {}


class _Along:
    """The launches of a transform along one axis."""

    def __init__(self, t: Transform, number: int, whole: _Launches):
        self.t, self.plan, self.number, self.whole = t, t.plan, number, whole
        self.table = f"roots{number}"
        self.spans = spans(t, _RADIX[t.dtype.bits])
        self.whole_lines = len(self.spans) == 1 and t.inner == 1 and not self.plan.chirped
        kind = TensorType(t.dtype, (self.plan.size, 2))
        whole.tables[self.table] = fourier_table(self.plan, kind, by_root=True)

    def scratch(self, count: int) -> LanePlace:
        """Room for so many elements of all lines."""
        name = f"passes{self.number}_{len(self.whole.between)}"
        t = self.t
        self.whole.between[name] = TensorType(t.dtype, (t.outer, count, t.inner, 2))
        return LanePlace(name, "complex")

    def run(self, source: str, target: str) -> None:
        t, n = self.t, self.plan.n
        real = "pairs" if t.halved else "real"
        x = LanePlace(source, real if t.kind == "rfft" else "complex")
        y = LanePlace(target, real if t.kind == "irfft" else "complex")
        if self.whole_lines and t.halved:
            self.lines(self.plan.passes, x, replace(y, swapped=t.inverse), None, t.factor, True)
            return
        if t.kind == "irfft":
            x = self.joined(x) if t.halved else self.mirrored(x)
        x, whole = replace(x, swapped=t.inverse), y.form in ("complex", "pairs")
        if not self.plan.chirped and whole and t.kind != "rfft":
            self.passes(x, replace(y, swapped=t.inverse), None, t.factor)
            return
        if self.plan.chirped:
            x, made = self.begun(x), self.scratch(self.plan.length)
            self.passes(x, made)
            back = self.scratch(self.plan.length)
            self.passes(made, back, TransformWriter.spectrum)
            z = replace(back, swapped=True)
        else:
            z = self.scratch(n)
            self.passes(x, z)
        if t.kind == "rfft" and t.halved:
            if self.plan.chirped:
                z = self.finished(z, self.scratch(n), n, None)
            self.taken_apart(z, y)
            return
        count = t.n // 2 + 1 if t.kind == "rfft" else n
        self.finished(z, replace(y, swapped=t.inverse), count, t.factor)

    # Passes

    def passes(
        self, x: LanePlace, y: LanePlace, hook: Hook | None = None, factor: float | None = None
    ) -> None:
        """The passes of the plan, in groups that a thread runs on what it holds."""
        groups = self.spans or grouped(self.plan.passes, _RADIX[self.t.dtype.bits])
        if not groups:  # of one element
            self.finished(x, y, 1, factor)
        for i, group in enumerate(groups):
            last = i == len(groups) - 1
            target = y if last else self.scratch(self.plan.length)
            run = self.lines if self.spans else self.group
            run(group, x, target, None if i else hook, factor if last else None)
            x = target

    def lines(
        self,
        passes: Sequence[FourierPass],
        x: LanePlace,
        y: LanePlace,
        hook: Hook | None,
        factor: float | None,
        real: bool = False,
    ) -> None:
        w = LineWriter(self.t, passes, _RADIX[self.t.dtype.bits])
        w.run(x, y, hook, factor, real)
        self.launch(w, x, y, w.warps)

    def launch(
        self, w: TransformWriter, x: LanePlace, y: LanePlace, warps: int = LANES // 32
    ) -> None:
        reads = (x.buffer, self.table)
        self.whole.launches.append(Launch(w.kernel(), reads, (y.buffer,), Threads(warps)))

    def group(
        self,
        passes: Sequence[FourierPass],
        x: LanePlace,
        y: LanePlace,
        hook: Hook | None,
        factor: float | None,
    ) -> None:
        t, radix = self.t, prod(p.radix for p in passes)
        done, left = passes[0].stride, passes[-1].count
        w = TransformWriter(self.t, "fft_passes", (t.outer, done, left, t.inner))
        source, target = w.made(x, y, (done, radix, left), (radix, done, left))
        held = [w.get(x, source, (0, 1, (j,), 2, 3)) for j in range(radix)]
        if hook is not None:
            held = [hook(w, v, j * left) for j, v in enumerate(held)]
        for k, v in enumerate(w.transformed(passes, held)):
            w.put(y, target, (0, (k,), 1, 2, 3), v, factor)
        self.launch(w, x, y)

    # Before and behind the passes, element by element

    def begun(self, x: LanePlace) -> LanePlace:
        """The elements times the chirp, and zeros behind them."""
        y = self.scratch(self.plan.length)
        w = TransformWriter(self.t, "fft_chirp", (self.t.outer, self.plan.length, self.t.inner))
        source, target = w.made(x, y, (self.plan.n,), (self.plan.length,))
        v = w.get(x, source, (0, 1, 2), bounded=True).times(w.numbers(self.plan.chirp))
        inside, zero = w.below(w.index, self.plan.n), w.zero()
        w.put(y, target, (0, 1, 2), Pair(*(w.where(inside, part, zero) for part in v)))
        self.launch(w, x, y)
        return y

    def finished(self, x: LanePlace, y: LanePlace, count: int, factor: float | None) -> LanePlace:
        """The first elements, times the chirp and the factor of the norm."""
        w = TransformWriter(self.t, "fft_end", (self.t.outer, count, self.t.inner))
        source, target = w.made(x, y, (self.plan.length,), (count,))
        v = w.get(x, source, (0, 1, 2))
        if self.plan.chirped:
            v = v.times(w.numbers(self.plan.chirp))
        w.put(y, target, (0, 1, 2), v, factor)
        self.launch(w, x, y)
        return y

    def taken_apart(self, x: LanePlace, y: LanePlace) -> None:
        """The elements of a real transform from those of a complex one of half the length."""
        m = self.plan.n
        w = TransformWriter(self.t, "fft_apart", (self.t.outer, m + 1, self.t.inner))
        source, target = w.made(x, y, (m,), (m + 1,))
        near, far = w.mirrored(m)
        a, b = (w.pick(x, source, i) for i in (near, w.around(far, m)))
        w.put(y, target, (0, 1, 2), w.apart(a, b, near, far), self.t.factor)
        self.launch(w, x, y)

    def joined(self, x: LanePlace) -> LanePlace:
        """Twice the complex transform from the elements of a real one."""
        m = self.plan.n
        y = self.scratch(m)
        w = TransformWriter(self.t, "fft_join", (self.t.outer, m, self.t.inner))
        source, target = w.made(x, y, (m + 1,), (m,))
        w.put(y, target, (0, 1, 2), w.joined(x, source, m))
        self.launch(w, x, y)
        return y

    def mirrored(self, x: LanePlace) -> LanePlace:
        """All elements of a transform of real numbers from the first half of them."""
        n = self.plan.n
        y = self.scratch(n)
        w = TransformWriter(self.t, "fft_mirror", (self.t.outer, n, self.t.inner))
        source, target = w.made(x, y, (n // 2 + 1,), (n,))
        near, _ = w.mirrored(n)
        v = w.pick(x, source, near)
        im = w.where(w.below(w.index, n // 2 + 1), v.im, -v.im)
        im = w.where(w.below(near, 1), w.zero(), im)
        w.put(y, target, (0, 1, 2), Pair(v.re, im))
        self.launch(w, x, y)
        return y


TRANSFORMS = dict.fromkeys(("fft", "ifft", "rfft", "irfft"), lower_transform)
