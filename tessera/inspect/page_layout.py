"""Where the nodes of a graph stand in its picture: in layers, near to what they read and who reads them.

A node stands one layer below the lowest of its operands.  What reads nothing stands right above its first
reader, and so does what only moves such values.  Within a layer nodes are sorted by the middle of their
neighbours, up and down a few times, and then moved apart as little as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

GAP = 14.0  # between nodes of a layer
_SWEEPS = 6  # of the barycentre method; not measured
_FAR = 12  # layers beyond which an edge has no say in where its ends stand


def layered(
    operands: Sequence[Sequence[int]], widths: Sequence[float], free: Sequence[bool] = ()
) -> list[tuple[float, int]]:
    """The middle and the layer of each node; operands come before their readers.

    A node that is `free` goes down to its readers, if all that it reads does.
    """
    layers = _layers(operands, free)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for n, layer in enumerate(layers):
        rows[layer].append(n)
    above: list[list[int]] = [[] for _ in layers]
    below: list[list[int]] = [[] for _ in layers]
    for n, given in enumerate(operands):
        for m in dict.fromkeys(given):
            if layers[n] - layers[m] <= _FAR:
                above[n].append(m)
                below[m].append(n)
    x = [0.0] * len(layers)
    for row in rows:
        _place(row, [0.0] * len(row), widths, x)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            sides = above if down else below
            wanted = [_middle([x[m] for m in sides[n]], x[n]) for n in row]
            _place(row, wanted, widths, x)
    return list(zip(x, layers, strict=True))


def _layers(operands: Sequence[Sequence[int]], free: Sequence[bool]) -> list[int]:
    layers: list[int] = []
    sinks: list[bool] = []  # whether a node goes down to its readers
    for n, given in enumerate(operands):
        layers.append(max((layers[m] + 1 for m in given), default=0))
        sinks.append(all(sinks[m] for m in given) and (not given or (bool(free) and free[n])))
    first: dict[int, int] = {}  # the highest reader of each node
    for n in reversed(range(len(operands))):
        if sinks[n] and n in first:
            layers[n] = max(first[n] - 1, layers[n])
        for m in operands[n]:
            first[m] = min(first.get(m, layers[n]), layers[n])
    return layers


def _middle(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _place(
    row: list[int], wanted: Sequence[float], widths: Sequence[float], x: list[float]
) -> None:
    """Sort a row by what its nodes want and move them apart, by the least sum of squares."""
    order = sorted(range(len(row)), key=lambda i: wanted[i])
    row[:], wanted = [row[i] for i in order], [wanted[i] for i in order]
    offsets, at = [], 0.0
    for n in row:
        offsets.append(at + widths[n] / 2)
        at += widths[n] + GAP
    blocks: list[list[float]] = []  # sum and count of those that touch each other
    for w, offset in zip(wanted, offsets, strict=True):
        blocks.append([w - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    begins = [total / count for total, count in blocks for _ in range(int(count))]
    for n, begin, offset in zip(row, begins, offsets, strict=True):
        x[n] = begin + offset
