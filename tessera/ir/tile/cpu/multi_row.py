"""abreast: several rows in one loop over columns for each pass.

    t[r] = add over c of x[r, c]; y[r, c] = x[r, c] * t[r]
->  program (r by 2): for c: t0 += x[r, c]; t1 += x[r + 1, c]
                      for c: y[r, c] = x[r, c] * t0; y[r + 1, c] = x[r + 1, c] * t1

A row alone waits for each step of its fold before the next one, and for the end of the fold before it goes
on. Each row is computed as it would be alone, so its bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Dim, Size
from tessera.ir.schedule.ir import Stage
from tessera.ir.tile.cpu.rows import Rows
from tessera.ir.tile.ir import Memory, Tile


class MultiRow(Rows):
    """A kernel whose rows go through passes together; `take` says which."""

    def take(self, first: Size, height: int) -> None:
        """Begin with so many rows."""
        k = self.k
        self.row_name = k.stages[0].axes[k.rows - 1].name
        self.first, self.height, self.place_in_block = first, height, 0
        self.side_by_side = max(self.side_by_side // height, 1)
        numbers = [s for s in k.stages if not s.axes[k.rows :]]
        self.of_rows = {s.name: self.b.alloc(s.dtype, (height,)) for s in numbers}
        self.known: list[str] = []  # which of these numbers passes have found
        self.numbers_of: list[dict[str, Tile]] = []  # the same for each row, in this pass

    def do_pass(self, stages: Sequence[Stage]) -> None:
        self.numbers_of = [
            {n: self.number_of(self.of_rows[n], row) for n in self.known}
            for row in range(self.height)
        ]
        for s in stages:
            if not self.columns(s):
                for row in range(self.height):
                    self.begin(row)
                    self.row[s.name] = self.numbers_of[row][s.name] = self.term(s.term, None)
                    self.store_row(s)
                self.known.append(s.name)
        rest = [s for s in stages if self.columns(s)]
        for size in dict.fromkeys(self.columns(s)[0].size for s in rest):
            self.column_loop([s for s in rest if self.columns(s)[0].size == size], size)

    def number_of(self, of_rows: Memory, row: int) -> Tile:
        return self.b.reshape(self.b.load(of_rows, (row,), (1,), axes=()), (1,))

    def begin(self, row: int) -> None:
        """Go to one of the rows."""
        self.place_in_block = row
        self.env[self.row_name] = self.first + row
        self.row = dict(self.numbers_of[row])

    def folds(self, stages: Sequence[Stage]) -> list[Stage]:
        return super().folds(stages) * self.height

    def chunk(
        self, stages: Sequence[Stage], at: Dim, stop: Size, tail: bool, accs: Sequence[Tile]
    ) -> list[Tile]:
        own, each, out = list(dict.fromkeys(stages)), len(accs) // self.height, []
        for row in range(self.height):
            self.begin(row)
            out += super().chunk(own, at, stop, tail, accs[row * each : (row + 1) * each])
        return out

    def end_folds(self, folds: Sequence[Stage], accs: Sequence[Tile]) -> None:
        each = len(folds) // self.height
        for row in range(self.height):
            self.begin(row)
            part = slice(row * each, (row + 1) * each)
            super().end_folds(folds[part], accs[part])
        self.known += [s.name for s in folds[:each]]

    def store_row(self, s: Stage) -> None:
        super().store_row(s)
        value = self.b.reshape(self.row[s.name], ())
        self.b.store(self.of_rows[s.name], value, (self.place_in_block,), (1,), axes=())
