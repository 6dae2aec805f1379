"""Save a tree: its tensors in one safetensors file or several, its structure in their manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessera.core.blame import blames_arguments, brief
from tessera.core.dtype import as_dtype
from tessera.core.errors import FileError, OperandError
from tessera.core.ranks import engine
from tessera.core.types import TensorType
from tessera.files import header, manifest, storage
from tessera.files.atomic import replacing, sync_folder
from tessera.files.index import INDEX, shard_name, shards_of
from tessera.files.sharded import commit, sharded
from tessera.ir.graph.ir import Value, data_of, on_host


class _Tensor(NamedTuple):
    name: str
    source: Any  # a tensor or an array: its bytes are taken when they are written
    type: TensorType
    dtype: str  # in the file
    shape: tuple[int, ...]
    size: int  # bytes

    def bytes(self) -> Any:
        return storage.stored(_array(self.source), self.type.dtype).bytes


def _array(x: Any) -> Any:
    return on_host(data_of(x, "save")) if isinstance(x, Value) else np.asarray(x)


@blames_arguments
def save(path: str | os.PathLike[str], tree: Any, shard_bytes: int | None = None) -> None:
    """Write a tree of tensors, numbers and strings to a safetensors file, which takes its name when it is
    whole.

    With shard_bytes, files of about that many bytes and an index are written:
    model-00001-of-00003.safetensors and model.safetensors.index.json for the path model.safetensors.  Where
    tensors are on a mesh and there are several ranks, all of these must call it: each writes its shards,
    and the index is there when it returns.
    """
    if not isinstance(path, str | os.PathLike):
        raise OperandError(
            f"save: path is {type(path).__name__} {brief(path, 30)}, expected a path; "
            "the order is save(path, tree)"
        )
    where = Path(path)
    if shard_bytes is not None and shard_bytes < 1:
        raise OperandError(
            f"save: shard_bytes is {shard_bytes}, expected a positive number of bytes"
        )
    writer = manifest.TreeWriter()
    node = writer.write(tree)
    if engine().size > 1 and any(sharded(x) is not None for x in writer.tensors.values()):
        _save_by_all(where, writer.tensors, node)
        return
    tensors = [_tensor(name, x) for name, x in writer.tensors.items()]
    # Wide elements first: each tensor then begins where its elements may.
    tensors.sort(key=lambda t: (-header.BITS[t.dtype], t.name))
    text = json.dumps(_manifest(node, tensors), separators=(",", ":"))
    if shard_bytes is None:
        _write(
            where, tensors, {manifest.KEY: text, manifest.DIGEST: manifest.sha256(text.encode())}
        )
    else:
        _write_shards(where, tensors, text, shard_bytes)


def _save_by_all(path: Path, tensors: dict[str, Any], node: Any) -> None:
    """Each rank writes a file of the pieces that it owns."""

    def write(file: Path, pieces: Sequence[tuple[str, Any, Any]]) -> dict[str, str]:
        mine = [_tensor(name, x, whole) for name, x, whole in pieces]
        mine.sort(key=lambda t: (-header.BITS[t.dtype], t.name))
        if mine:
            _write(file, mine, {"format": "pt"})
        return {t.name: manifest.sha256(t.bytes()) for t in mine}

    def entry(name: str) -> dict[str, Any]:
        t = _type(tensors[name])
        return {"dtype": str(t.dtype), "shape": [int(n) for n in tensors[name].shape]}

    commit(path, write, tensors, entry, node)


def _type(x: Any) -> TensorType:
    return x.type if isinstance(x, Value) else TensorType(as_dtype(x.dtype), x.shape)


def _tensor(name: str, x: Any, like: Any = None) -> _Tensor:
    """A tensor, or an array with the dtype of another tensor."""
    t = _type(x) if like is None else _type(like).with_shape(x.shape)
    dtype, shape = storage.file_type(t.dtype, tuple(int(n) for n in x.shape))
    size = int(np.prod(shape, dtype=object)) * header.BITS[dtype] // 8
    return _Tensor(name, x, t, dtype, shape, size)


def _manifest(node: Any, tensors: Sequence[_Tensor]) -> dict[str, Any]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing lets other threads run
        digests = list(pool.map(lambda t: manifest.sha256(t.bytes()), tensors))
    table = {
        t.name: {"dtype": str(t.type.dtype), "shape": list(t.type.shape), "sha256": d}
        for t, d in zip(tensors, digests, strict=True)
    }
    return {"version": manifest.VERSION, "tree": node, "tensors": table}


def _write(path: Path, tensors: Sequence[_Tensor], metadata: dict[str, str]) -> None:
    front = header.write(((t.name, t.dtype, t.shape, t.size) for t in tensors), metadata)
    with replacing(path) as f:
        f.write(front)
        for t in tensors:
            f.write(t.bytes().data)


def _write_shards(path: Path, tensors: Sequence[_Tensor], text: str, most: int) -> None:
    """Write shards, then the index that names them; shards of an older index go after it."""
    index = path.with_name(path.name + INDEX)
    older = shards_of(index)
    parts = list(_parts(tensors, most))
    stem = _free_stem(path, older, len(parts))
    where: dict[str, str] = {}
    for i, part in enumerate(parts):
        name = shard_name(stem, i, len(parts))
        _write(path.with_name(name), part, {"format": "pt"})
        where |= {t.name: name for t in part}
    metadata = {
        "total_size": sum(t.size for t in tensors),
        manifest.KEY: text,
        manifest.DIGEST: manifest.sha256(text.encode()),
    }
    with replacing(index) as f:
        f.write(json.dumps({"metadata": metadata, "weight_map": where}, indent=1).encode())
    for name in older - set(where.values()):
        path.with_name(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def _parts(tensors: Sequence[_Tensor], most: int) -> Iterator[list[_Tensor]]:
    part: list[_Tensor] = []
    for t in tensors:
        if part and sum(x.size for x in part) + t.size > most:
            yield part
            part = []
        part.append(t)
    yield part


def _free_stem(path: Path, older: set[str], count: int) -> str:
    """A stem whose shards are none of an index that is in force, which must stay whole until it is
    replaced.
    """
    for n in range(len(older) + 1):
        stem = path.stem if n == 0 else f"{path.stem}.{n}"
        if not older & {shard_name(stem, i, count) for i in range(count)}:
            return stem
    raise FileError(f"save: no free names for the shards of {path}")
