"""Random kernels in which data decide: bounds of loops, early exits, places, sums into memory, orders of
elements.
"""

from __future__ import annotations

import random

from tests.support.cases.random_kernels import (
    BLOCKS,
    FAMILIES,
    FLOATS,
    SIZES,
    Case,
    Maker,
    _case,
    _dtypes,
    _kind,
    gathers_of,
)

_NEW = ("flip", "cut", "halves", "sorted", "back", "before", "pairs", "turned", "picked", "top")


class Mover(Maker):
    """Writes lines that move elements within tiles, beside those that compute."""

    def move(self) -> None:
        """One line that changes the order of the elements of a row."""
        v = self.some("fi", "mn", exact=True)
        if v is None:
            return
        n, x, form = self.sizes["n"], v.name, self.rng.choice(_NEW)
        k = self.rng.randrange(n)
        text = {
            "flip": f"tile.flip({x}, axis=1)",
            "cut": f"{x} + {x}[:, {k}][:, None]",
            "halves": f"tile.concat(({x}[:, {k}:], {x}[:, :{k}]), axis=1)" if k else f"-{x}",
            "sorted": f"tile.sort({x}, axis=1{self.rng.choice(['', ', descending=True'])})",
            "back": f"tile.scan({x}, 'max', axis=1, reverse=True)",
            "before": f"tile.scan({x}, 'min', axis=1, exclusive=True, init=3)",
            "pairs": f"tile.scan(({x}, {x}), later, axis=1)[1]",
            "turned": f"tile.transpose({x}, (1, 0)).T",
            "picked": f"tile.gather({x}, (tile.arange({n}) * 3 + {k}) % {n + 1}, axis=1)",
            "top": f"{x} - tile.topk({x}, {k + 1}, axis=1)[0][:, {k}][:, None]",
        }[form]
        self.put(text, "mn", v.kind, v.exact)


def moves_of(rng: random.Random) -> Case:
    """Rows whose elements change their places."""
    r, n, b, dtype = rng.choice(SIZES), rng.choice(SIZES[1:9]), rng.choice(BLOCKS), _dtypes(rng)
    m = Mover(rng, {"m": b, "n": n}, dtype)
    m.put("tile.load(x)", "mn", _kind(dtype))
    for _ in range(rng.randrange(1, 4)):
        m.move()
        m.grow(len(m.lines) + rng.randrange(2))
    last = [v.name for v in m.vars if v.axes == "mn"]
    wanted = [f'x: KTile["M", "N", {dtype}]']
    return _case(rng, "moves", m, wanted, last[-1], (b, 8, 8), [(r, n)], [dtype])


def ragged_of(rng: random.Random, hostile: bool = False) -> Case:
    """Loops whose bounds and ends are data."""
    n, k, dtype, b = (
        rng.choice(SIZES[1:]),
        rng.choice(SIZES[1:]),
        rng.choice(FLOATS),
        rng.choice(BLOCKS),
    )
    m = Maker(rng, {}, dtype)
    lines = [
        "p = tile.program(ids.shape[0])",
        "first, last = tile.minimum(tile.maximum(ids[p], -3), 40), tile.minimum(ids[p] // 2 + 9, 40)",
        "total, low, count = 0.0, 50.0, 0",
    ]
    form = rng.choice(["range", "steps", "blocks", "while", "leave", "skip"])
    lines += {
        "range": ["for j in range(first, last):", "    total = total + x[j]", "    count += 1"],
        "steps": [f"for j in tile.range(0, last, {b}):", "    total = tile.maximum(total, x[j])",
        "    count += j"],
        "blocks": [f"for nb in tile.range_n(x.shape, {b}, start=first, stop=last):",
                   "    t = tile.load(x, nb)", "    low = tile.minimum(low, tile.min(t))",
                   "    count += 1"],
        "while": ["j = last", "while j > 1:", "    j = j // 2", "    total = total + x[j]", "    count += 1"],
        "leave": ["for j in tile.range(20):", "    if j >= last:", "        break",
                  "    total = total + x[j + first]", "    count += 1"],
        "skip": ["for j in tile.range(12):", "    if (j + first) % 3 == 0:", "        continue",
                 "    total = total - x[j]", "    if total > 3:", "        break", "    count += 1"],
    }[form]  # fmt: skip
    if rng.random() < 0.4:
        lines += ["if count > 2:", "    total = total + 1", "else:", "    low = low - 1"]
    lines += [f"y, z = tile.empty((ids.shape[0],), {dtype}), tile.empty((ids.shape[0],), i64)",
              f"tile.store(y, tile.cast(tile.minimum(total + low, 30), {dtype}), at=(p,))",
              "tile.store(z, count, at=(p,))"]  # fmt: skip
    m.lines += lines
    wanted = [f'x: KTile["N", {dtype}]', 'ids: KTile["K"]']
    return _case(
        rng, "ragged", m, wanted, "y, z", (8, 8, 8), [(n,), (k,)], [dtype, "ids"], (), hostile
    )


def points_of(rng: random.Random, hostile: bool = False) -> Case:
    """Reads and sums at places that are data."""
    r, n, k = (rng.choice(SIZES[1:]) for _ in range(3))
    b, dtype = rng.choice(BLOCKS), _dtypes(rng)
    m = Maker(rng, {"m": b}, dtype)
    m.lines += ["picked = tile.load(ids)", "here = picked[:, None] + tile.arange(2)[None]"]
    how = rng.choice(["add", "max", "min"])
    form = rng.choice(["line", "pairs", "box", "rows", "store"])
    m.lines += {
        "line": ["v = x[picked, picked * 2]", f"tile.accumulate(y, v, at=(picked,), how='{how}')"],
        "pairs": ["v = tile.sum(x[here, here - 1], axis=1)", "tile.accumulate(y, v, at=(picked,))"],
        "box": ["v = tile.load(x, at=(ids[1], ids[0] + 1), shape=(2, 3), fill=1)",
                "tile.accumulate(y, tile.sum(v), at=(ids[0],))"],
        "rows": ["v = tile.max(tile.load(x, rows=picked), axis=1)",
                 f"tile.accumulate(y, v, at=(picked,), mask=v > 0, how='{how}')"],
        "store": ["v = x[picked, 0]", "tile.store(y, v, at=(tile.row_index()[:, 0],), distinct=True)"],
    }[form]  # fmt: skip
    wanted = ['ids: KTile["K"]', f'x: KTile["M", "N", {dtype}]', f'y: KTile["Y", {dtype}]']
    shapes = [(k,), (r, n), (rng.choice(SIZES[1:]),)]
    return _case(
        rng, "points", m, wanted, "", (b, 8, 8), shapes, ["ids", dtype, dtype], (2,), hostile
    )


DATA_FAMILIES = (moves_of, ragged_of, points_of)
HOSTILE_FAMILIES = (gathers_of, ragged_of, points_of)


def random_case(seed: int, hostile: bool = False) -> Case:
    """The kernel of a seed."""
    rng = random.Random(seed)
    if hostile:
        return rng.choice(HOSTILE_FAMILIES)(rng, True)
    return rng.choice((*FAMILIES, *DATA_FAMILIES))(rng)
