"""Save a tree of sharded tensors by all ranks: each writes the shards that it owns, and the first one the
index.

    step.3f2a9c01-00001-of-00002.safetensors     the shards of rank 0, named as in w@0:4,0:8
    step.3f2a9c01-00002-of-00002.safetensors     those of rank 1
    step.safetensors.index.json                  the manifest, in force once it is there

A shard is a part of a logical mesh, so that what is saved does not depend on how many ranks there are, but
for which file holds what.  Every rank waits for the index, and all of them raise the error of any.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessera.compile.mesh.array import ShardedArray, shard_slices
from tessera.core.errors import FileError
from tessera.core.ranks import engine, placement
from tessera.files import manifest
from tessera.files.atomic import replacing, sync_folder
from tessera.files.index import INDEX, shard_name, shards_of
from tessera.ir.graph.ir import Value


class ShardPiece(NamedTuple):
    """A shard of a tensor in a file."""

    name: str
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part of the tensor that it is."""
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True))


class _Owned(NamedTuple):
    """A piece, the rank that writes it, and where on the mesh it lies; nowhere where a tensor is whole."""

    piece: ShardPiece
    rank: int
    at: tuple[int, ...] | None


def sharded(x: Any) -> ShardedArray | None:
    """The shards of a tensor on a mesh."""
    data: Any = x.storage if isinstance(x, Value) else None
    return data if isinstance(data, ShardedArray) else None


def owned(name: str, x: Any, number: int) -> Iterator[_Owned]:
    """The pieces of a tensor; one that no mesh axis cuts is written by one rank after another in turn."""
    data, shape = sharded(x), tuple(int(n) for n in x.shape)
    if data is None or not data.layout.axes:
        yield _Owned(ShardPiece(name, (0,) * len(shape), shape), number % engine().size, None)
        return
    place, seen = placement(data.mesh), set[str]()
    for d in data.mesh.devices:
        at = data.mesh.coordinates(d)
        part = shard_slices(shape, data.layout, data.mesh, at)
        text = ",".join(f"{s.start}:{s.stop}" for s in part)
        size = tuple(s.stop - s.start for s in part)
        if text in seen or 0 in size:
            continue
        seen.add(text)
        where = tuple(at.values())
        piece = ShardPiece(f"{name}@{text}", tuple(s.start for s in part), size)
        yield _Owned(piece, place.owner(where), where)


def data_of_piece(x: Any, o: _Owned) -> Any:
    """The elements of a piece that this rank owns."""
    data = sharded(x)
    if data is None:
        return x
    return data.block if o.at is None else data.local(o.at)


def told_all(what: str, text: str) -> list[str]:
    """What each rank says."""
    ranks = tuple(range(engine().size))
    sent = np.frombuffer(text.encode() or b" ", np.uint8)
    got = engine().exchange(f"save {what}", ranks, [sent] * len(ranks))
    return [bytes(x).decode() for x in got]


def agree(what: str, error: str | None, **more: Any) -> list[Any]:
    """What each rank reports; the first error of any is raised by all."""
    found = [json.loads(t) for t in told_all(what, json.dumps({"error": error, **more}))]
    for r, report in enumerate(found):
        if report["error"] is not None:
            raise FileError(f"{report['error']} (rank {r}); the older checkpoint stays in force")
    return found


def commit(path: Path, write: Any, tensors: Mapping[str, Any], table: Any, node: Any) -> None:
    """Write this rank's pieces by write(file, pieces) -> digests, then the index, on all ranks together.

    `table` gives the entry of each tensor in the manifest.
    """
    token = told_all("name", os.urandom(4).hex())[0]
    rank, ranks = engine().rank, engine().size
    everything = {n: list(owned(n, x, k)) for k, (n, x) in enumerate(tensors.items())}
    mine = [(n, o) for n, each in everything.items() for o in each if o.rank == rank]
    file = shard_name(f"{path.stem}.{token}", rank, ranks)
    digests, error = {}, None
    try:
        digests = write(
            path.with_name(file),
            [(o.piece.name, data_of_piece(tensors[n], o), tensors[n]) for n, o in mine],
        )
    except FileError as e:
        error = e.message
    try:
        reports = agree("shards", error, digests=digests, file=file)
    except FileError:
        path.with_name(file).unlink(missing_ok=True)
        raise
    error = None
    if rank == 0:
        try:
            _write_index(path, everything, reports, table, node)
        except FileError as e:
            error = e.message
    try:
        agree("index", error)
    except FileError:
        if file not in shards_of(path.with_name(path.name + INDEX)):
            path.with_name(file).unlink(missing_ok=True)
        raise


def _write_index(
    path: Path, everything: Mapping[str, Sequence[_Owned]], reports: Sequence[Any], table: Any, node: Any
) -> None:  # fmt: skip
    index = path.with_name(path.name + INDEX)
    older = shards_of(index)
    digests = {k: d for r in reports for k, d in r["digests"].items()}
    files = {k: r["file"] for r in reports for k in r["digests"]}
    entries = {}
    for name, each in everything.items():
        pieces = [[*o.piece, digests[o.piece.name]] for o in each]
        one = len(each) == 1 and each[0].at is None
        entries[name] = {**table(name), **({"sha256": pieces[0][3]} if one else {"pieces": pieces})}
    text = json.dumps(
        {"version": manifest.IN_PIECES, "tree": node, "tensors": entries}, separators=(",", ":")
    )
    metadata = {manifest.KEY: text, manifest.DIGEST: manifest.sha256(text.encode())}
    with replacing(index) as f:
        f.write(json.dumps({"metadata": metadata, "weight_map": files}, indent=1).encode())
    # From here on the new checkpoint is in force: what cannot be removed or put on the disk stays.
    with contextlib.suppress(OSError):
        for name in older - set(files.values()):
            path.with_name(name).unlink(missing_ok=True)
        path.unlink(missing_ok=True)  # a file of one rank, which the index replaces
        sync_folder(path.parent)
