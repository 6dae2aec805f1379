"""group: kernels that pass blocks of rows to each other become one step.

    s = q k^T; p = softmax(s); o = p v   ->   group: s, p, o for a block of queries at a time

A contraction, maybe a kernel of rows on its result, and a contraction with what that makes: attention
has this form, forward and backward, and so has anything else that is written so; no name is asked for.
What scales or widens the left factor of the first contraction, for it alone, is the first kernel of the
group. The arithmetic stays as it is, so a group has the bits of its kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.dims import Size, symbol, symbols
from tessera.ir.schedule.factors import factors, is_plain, read_of
from tessera.ir.schedule.ir import (
    Axis,
    Group,
    HostCall,
    Kernel,
    KRange,
    Primitive,
    Program,
    Read,
    Stage,
    Step,
    Term,
    reads,
    with_reads,
)
from tessera.ir.schedule.mask_analysis import Hidden, hidden
from tessera.ir.schedule.nests.matrix import is_of_bytes


def fuse_contractions(p: Program, wide: bool = True) -> Program:
    """A program whose chains of contraction, rows and contraction are groups.

    Wide ones begin with the kernel that makes their left factor.
    """
    steps, i = list(p.steps), 0
    made: dict[str, int] = {}  # the step before i that makes each buffer
    readers = Counter(p.outputs)  # how many steps read each buffer, and the caller
    for s in steps:
        readers.update(set(inputs_of(s)))
    while i < len(steps):
        s = steps[i]
        found = (
            _GroupSearch(steps, made, readers, i, wide).group(s)
            if isinstance(s, Kernel) and s.contracts
            else None
        )
        if found is not None:
            i = _replace(steps, made, readers, found, i)
        made |= dict.fromkeys(outputs_of(steps[i]), i)
        i += 1
    steps = _with_seen(steps)
    written = {n for s in steps for n in outputs_of(s)} | set(p.inputs)
    buffers = {n: b for n, b in p.buffers.items() if n in written}
    return replace(p, steps=tuple(steps), buffers=buffers)


def _replace(
    steps: list[Step], made: dict[str, int], readers: Counter[str], found: _Found, last: int
) -> int:
    """Put a group in the place of its kernels; where it stands.  Steps before the first of them stay."""
    first, gone = found.members[0], {*found.members, *found.late}
    for j in (*found.members, last):
        readers.subtract(set(inputs_of(steps[j])))
    readers.update(set(inputs_of(found.group)))
    front = [steps[j] for j in range(first, last) if j not in gone]
    for s in steps[first:last]:
        for n in outputs_of(s):
            made.pop(n, None)
    for j, s in enumerate(front, first):
        made |= dict.fromkeys(outputs_of(s), j)
    steps[first : last + 1] = [*front, found.group, *(steps[j] for j in found.late)]
    return first + len(front)


def hidden_columns(g: Group) -> Hidden | None:
    """Columns that have no effect, unless someone outside wants what is computed there."""
    first, *front, last = g.from_scores
    stages = [s for k in (first, *front) for s in k.stages]
    passed = {r.source for s in last.stages for r in reads(s.term)}
    size = first.stages[0].axes[-1].size
    wide = {s.name for s in stages if len(s.axes) > g.rows and s.axes[-1].size == size}
    found = hidden(stages, g.rows - 1, size, passed & wide)
    if found is not None and not wide & set(g.outputs) <= found.constants.keys():
        return None
    return found


def _with_seen(steps: Sequence[Step]) -> list[Step]:
    """The steps; contractions know where the factors that groups make are 0."""
    zero: dict[str, Size] = {}  # beyond column `row + offset`
    out: list[Step] = []
    for s in steps:
        if isinstance(s, Group) and (found := hidden_columns(s)) is not None:
            zero |= {n: found.offset for n in s.outputs if found.constants.get(n) == 0.0}
        if isinstance(s, Kernel) and s.contracts:
            s = replace(s, seen=tuple(_seen(s, zero)))
        out.append(s)
    return out


def _seen(k: Kernel, zero: Mapping[str, Size]) -> Iterator[KRange]:
    head = k.stages[0]
    for name, axis, factor in zip("mn", head.axes[-2:], factors(head), strict=True):
        r = read_of(factor)
        if r.source in zero and len(r.index) >= 2 and is_plain(factor):
            row, column = r.index[-2:]
            own, over = axis.variable, head.reduced[0].variable
            if row == over and column == own:  # k + offset >= column
                yield KRange("first", name, 0 - zero[r.source])
            elif row == own and column == over:
                yield KRange("last", name, zero[r.source])


def inputs_of(s: Step) -> Sequence[str]:
    """The buffers that a step reads."""
    return s.operands if isinstance(s, HostCall | Primitive) else s.inputs()


def readings(steps: Sequence[Step]) -> Counter[str]:
    """How many stages, primitives and host calls read each buffer or stage, also those of its own kernel."""
    found: Counter[str] = Counter()
    for s in steps:
        if isinstance(s, HostCall | Primitive):
            found.update(set(s.operands))
            continue
        for k in s.kernels if isinstance(s, Group) else (s,):
            for t in k.stages:
                found.update({r.source for r in reads(t.term)})
    return found


def outputs_of(s: Step) -> Sequence[str]:
    """The buffers that a step writes."""
    return s.results if isinstance(s, HostCall | Primitive) else s.outputs


@dataclass(frozen=True)
class _Found:
    members: tuple[int, ...]  # the steps before the last one
    late: tuple[int, ...]  # steps between them that read what they make
    group: Group


class _GroupSearch:
    """Looks for the kernels before a contraction."""

    def __init__(
        self, steps: Sequence[Step], made: Mapping[str, int], readers: Mapping[str, int], last: int,
        wide: bool,
    ):  # fmt: skip
        self.steps, self.made, self.readers, self.last, self.wide = steps, made, readers, last, wide

    def group(self, third: Kernel) -> _Found | None:
        """The group that ends with this contraction, if there is one."""
        head = third.stages[0]
        if not all(map(is_plain, factors(head))):
            return None
        left = read_of(factors(head)[0])
        j = self.made.get(left.source, -1)
        second = self.kernel(j)
        if second is None or not _at(left, (*head.axes[:-1], *head.reduced)):
            return None
        if second.contracts:  # with a batch, since only then both factors on the right are small
            fits = second.rows == third.rows > 0 and _same_rows(second, second, third)
            return self.widest((j,), (second, third)) if fits else None
        if second.rows != third.rows + 1:
            return None
        i, first = self.scores(second)
        if first is None or not _same_rows(first, second, third):
            return None
        return self.widest((i, j), (first, second, third))

    def kernel(self, i: int) -> Kernel | None:
        s = self.steps[i] if i >= 0 else None
        return s if isinstance(s, Kernel) else None

    def scores(self, second: Kernel) -> tuple[int, Kernel | None]:
        """The one contraction whose result a kernel of rows reads, at its own row and column."""
        found = {self.made.get(name, -1) for name in second.inputs()}
        products = [(i, k) for i in found if (k := self.kernel(i)) is not None and k.contracts]
        if len(products) != 1:
            return -1, None
        i, first = products[0]
        own = set(first.outputs)
        in_place = all(
            _at(r, (*s.axes, *s.reduced))
            for s in second.stages
            for r in reads(s.term)
            if r.source in own
        )
        return (i, first) if in_place and first.rows == second.rows - 1 else (-1, None)

    def widest(self, members: tuple[int, ...], kernels: Sequence[Kernel]) -> _Found | None:
        """The group with the kernel that makes the left factor of its first contraction, or without."""
        i, before = self.maker(kernels[0]) if self.wide else (-1, None)
        found = None if before is None else self.found((i, *members), (before, *kernels))
        return found or self.found(members, kernels)

    def maker(self, first: Kernel) -> tuple[int, Kernel | None]:
        """The kernel that makes the left factor of a contraction for it alone, from elements at their own
        places.
        """
        head, left = first.stages[0], factors(first.stages[0])[0]
        i = self.made.get(read_of(left).source, -1)
        k = self.kernel(i)
        if k is None or k.contracts or k.rows != first.rows + 1 or not is_plain(left):
            return -1, None
        rows = [[a.size for a in axes] for axes in (k.stages[0].axes[: k.rows], head.axes[:-1])]
        fits = rows[0] == rows[1] and _at(read_of(left), (*head.axes[:-1], *head.reduced))
        alone = not any(self.wants(n, (first,)) for n in k.outputs)
        return (i, k) if fits and alone and _in_columns(k) else (-1, None)

    def wants(self, name: str, kernels: Sequence[Kernel]) -> bool:
        """Whether anyone beside these kernels reads a buffer."""
        return self.readers[name] > sum(name in k.inputs() for k in kernels)

    def found(self, members: tuple[int, ...], kernels: Sequence[Kernel]) -> _Found | None:
        """The group, unless a kernel of it needs what a step between makes of another one."""
        made = {n for k in kernels[:-1] for n in k.outputs}
        if any(is_of_bytes(k) for k in kernels):
            return None  # instructions for bytes want factors that are packed for all rows
        if not _read_own_rows(kernels, made):
            return None
        late: list[int] = []
        others: set[str] = set()
        for i in range(members[0] + 1, self.last):
            s = self.steps[i]
            if i not in members and (made | others).intersection(inputs_of(s)):
                late.append(i)
                others.update(outputs_of(s))
        if any(n in others for k in kernels for n in k.inputs()):
            return None
        return _Found(members, tuple(late), self.joined(kernels))

    def joined(self, kernels: Sequence[Kernel]) -> Group:
        own, third = {n for k in kernels for n in k.outputs}, kernels[-1]
        members = _in_place(kernels, third.rows + 1, own)
        outputs = tuple(n for k in members for n in k.outputs if self.wants(n, kernels))
        return Group(third.name, third.rows + 1, members, outputs)


def _at(r: Read, axes: Sequence[Axis]) -> bool:
    """Whether a read is at these axes, of which one of one element is at 0."""
    return len(r.index) == len(axes) and all(
        i == a.variable or (a.size == 1 and i == 0) for i, a in zip(r.index, axes, strict=True)
    )


def _same_rows(first: Kernel, second: Kernel, third: Kernel) -> bool:
    rows = third.rows + 1
    sizes = [tuple(a.size for a in k.stages[0].axes[:rows]) for k in (first, second, third)]
    columns = first.stages[0].axes[-1].size, third.stages[0].reduced[0].size
    return sizes[0] == sizes[1] == sizes[2] and columns[0] == columns[1] and 0 not in sizes[0]


def _in_columns(k: Kernel) -> bool:
    """Whether a kernel folds nothing and reads what lies along its columns."""
    for s in k.stages:
        if s.combine or len(s.axes) != k.rows + 1:
            return False
        column = s.axes[-1].name
        for r in reads(s.term):
            if any(isinstance(i, Term) for i in r.index):
                return False
            if any(column in symbols(i) for i in r.index[:-1]):
                return False
            if r.index and column in symbols(r.index[-1] - symbol(column)):
                return False
    return True


def _read_own_rows(kernels: Sequence[Kernel], made: set[str]) -> bool:
    """Whether kernels read what others of the group make at their own rows alone."""
    rows = kernels[-1].rows + 1
    right = [factors(k.stages[0])[1] for k in kernels if k.contracts]
    if any(r.source in made for t in right for r in reads(t)):
        return False  # it is packed for all rows; with rows of one element it may seem to be at its own
    return all(
        _at(replace(r, index=r.index[:rows]), s.axes[:rows])
        for k in kernels
        for s in k.stages
        for r in reads(s.term)
        if r.source in made
    )


def _in_place(kernels: Sequence[Kernel], rows: int, own: set[str]) -> tuple[Kernel, ...]:
    """The kernels, which read each other's results at the variables of their rows."""

    def moved(s: Stage) -> Stage:
        here = tuple(a.variable for a in s.axes[:rows])
        return replace(
            s,
            term=with_reads(
                s.term,
                lambda r: replace(r, index=(*here, *r.index[rows:])) if r.source in own else r,
            ),
        )

    return tuple(replace(k, stages=tuple(map(moved, k.stages))) for k in kernels)
