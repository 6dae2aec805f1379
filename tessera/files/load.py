"""Load what was saved: tensors are mapped from the file and checked when they are first used."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.blame import blames_arguments
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import FileError, NoAttributeError, TesseraError
from tessera.core.regular import open_regular
from tessera.core.types import TensorType
from tessera.files import header, index, manifest, storage
from tessera.files.like import matched
from tessera.files.sharded import ShardPiece
from tessera.ir.graph.ir import holding
from tessera.lang.create import asarray
from tessera.lang.dist.tensor import from_function
from tessera.lang.tensor import Tensor


@blames_arguments
def load(
    path: str | os.PathLike[str], like: Any = None, lazy: bool = False, check: bool = True
) -> Any:
    """The tree of a safetensors file, of an index or of the folder of one of them.

    With `like`, a tree, the result has its classes and its devices, and what does not fit it is an error.
    Without, it is made of dicts, lists and tuples as they were saved, and of a file of another program a
    dict by names.  With lazy=True it is a mapping from names to tensors, of which each is read when it is
    asked for.  check=False leaves out the comparison with the digests.
    """
    weights = Weights(Path(path), check)
    if lazy:
        return weights
    return weights.tree(like)


class _MemoryFile:
    """A file in memory as it lies on the disk."""

    def __init__(self, path: Path):
        self.where = str(path)
        try:
            with open_regular(path) as f:
                size = os.fstat(f.fileno()).st_size
                self.header = header.read(self.where, f, size)
                self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            error = FileError(f"load: cannot read {path}: {e.strerror or e}")
        else:
            return
        raise error

    def raw(self, e: header.TensorEntry) -> Any:
        """The bytes of a tensor, which stay in the file until they are read."""
        return np.frombuffer(self.map, np.uint8, e.stop - e.start, self.header.data + e.start)


class Weights(Mapping[str, Tensor]):
    """The tensors of a file or of several, by name; each is read when it is asked for."""

    def __init__(self, path: Path, check: bool = True):
        found = index.find(path)
        self.path, self._check = found, check
        if found.name.endswith(index.INDEX):
            files, metadata = index.read(found)
            opened = {
                name: _MemoryFile(found.with_name(name)) for name in sorted(set(files.values()))
            }
            self._files = {n: opened[f] for n, f in files.items()}
            for name, file in self._files.items():
                if name not in file.header.entries:
                    raise FileError(f"load: {found}: {file.where} has no tensor {name!r:.80}")
        else:
            file = _MemoryFile(found)
            self._files = dict.fromkeys(file.header.entries, file)
            metadata = dict(file.header.metadata)
        self._manifest = _manifest(str(found), metadata)
        self._pieces: dict[str, list[tuple[ShardPiece, str]]] = {}  # with their digests
        self._types = self._stated()
        self._names = self._files if self._manifest is None else self._types
        self._read: dict[str, Tensor] = {}

    def _stated(self) -> dict[str, tuple[DType, tuple[int, ...], str]]:
        """Dtype, shape and digest of each tensor by the manifest, which must fit the files."""
        if self._manifest is None:
            return {}
        table = self._manifest["tensors"]
        for name, t in table.items():
            if isinstance(t, dict) and "pieces" in t:
                self._pieces[name] = _pieces_of(str(self.path), name, t)
        split = {p.name for pieces in self._pieces.values() for p, _ in pieces}
        wanted = {n for n in table if n not in self._pieces} | split
        if wanted != set(self._files):
            odd = sorted(wanted ^ set(self._files))[0]
            raise FileError(
                f"load: {self.path}: the manifest and the tensors differ in {odd!r:.80}; the file is damaged"
            )
        return {n: self._one_stated(n, t) for n, t in table.items()}

    def _one_stated(self, name: str, t: Any) -> tuple[DType, tuple[int, ...], str]:
        if name in self._pieces:
            return as_dtype(t["dtype"]), tuple(map(int, t["shape"])), ""
        e = self._files[name].header.entries[name]
        try:
            dtype, shape, digest = as_dtype(t["dtype"]), tuple(map(int, t["shape"])), t["sha256"]
            fits = storage.file_type(dtype, shape) == (e.dtype, e.shape)
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits or min(shape, default=0) < 0 or not isinstance(digest, str):
            raise FileError(
                f"load: {self.path}: the manifest says {t!r:.80} of tensor {name!r:.80}, which the file "
                "does not hold"
            )
        return dtype, shape, digest

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._tensor(name, self._check)
        return found

    def __repr__(self) -> str:
        return f"Weights({str(self.path)!r}, {len(self)} tensors)"

    def __getattr__(self, name: str) -> Any:
        raise NoAttributeError(
            f"Weights has no attribute {name!r}; tensors are found by name, as in weights['blocks.0.w']"
        )

    @property
    def types(self) -> dict[str, TensorType]:
        """The type of each tensor, without reading it."""
        return {name: self.type_of(name) for name in self._names}

    def type_of(self, name: str) -> TensorType:
        """The type of a tensor, without reading it."""
        if name in self._types:
            dtype, shape, _ = self._types[name]
            return TensorType(dtype, shape)
        e = self._files[name].header.entries[name]
        return TensorType(storage.dtype_of(self._files[name].where, e), e.shape)

    def mapped(self, name: str) -> Tensor:
        """A tensor that is not compared with its digest, so that only what is used of it is read."""
        return self._read.get(name) or self._tensor(name, False)

    def _tensor(self, name: str, check: bool) -> Tensor:
        if name not in self._names:
            raise MissingTensorError(self.path, name, self)
        if name in self._pieces:
            t = self.type_of(name)
            whole = self.part(name, tuple(slice(0, n) for n in t.shape))
            return holding(t, whole)  # type: ignore[return-value]
        file = self._files[name]
        e = file.header.entries[name]
        raw = file.raw(e)
        dtype, shape, digest = self._types.get(name, (None, None, None))
        if check and digest is not None and hashlib.sha256(raw).hexdigest() != digest:
            raise FileError(
                f"load: {file.where}: tensor {name!r} does not have the digest that was saved with it; the "
                "file is "
                "damaged"
            )
        made: Any = asarray(storage.restored(file.where, e, raw, dtype, shape))
        if dtype is not None and made.dtype is not dtype:
            made = holding(TensorType(dtype, made.shape), made.storage)
        return made  # type: ignore[no-any-return]

    def part(self, name: str, where: tuple[slice, ...]) -> Any:
        """A part of a tensor; of one in pieces, those that it touches are read."""
        if name not in self._pieces:
            return self[name].numpy()[where]
        t = self.type_of(name)
        out = np.empty(tuple(s.stop - s.start for s in where), t.dtype.np)
        for piece, digest in self._pieces[name]:
            both = [
                (max(s.start, p.start), min(s.stop, p.stop))
                for s, p in zip(where, piece.slices, strict=True)
            ]
            if any(a >= b for a, b in both):
                continue
            into = tuple(
                slice(a - s.start, b - s.start) for (a, b), s in zip(both, where, strict=True)
            )
            from_ = tuple(slice(a - p, b - p) for (a, b), p in zip(both, piece.start, strict=True))
            out[into] = self._piece(piece, digest, t.dtype)[from_]
        return out

    def _piece(self, piece: ShardPiece, digest: str, dtype: DType) -> Any:
        file = self._files[piece.name]
        e = file.header.entries[piece.name]
        raw = file.raw(e)
        if storage.file_type(dtype, piece.shape) != (e.dtype, e.shape):
            raise FileError(
                f"load: {file.where}: shard {piece.name!r} is not of the shape that the manifest states; "
                "the file is damaged"
            )
        if self._check and hashlib.sha256(raw).hexdigest() != digest:
            raise FileError(
                f"load: {file.where}: shard {piece.name!r} does not have the digest that was saved with it; "
                "the file is "
                "damaged"
            )
        return storage.restored(file.where, e, raw, dtype, piece.shape)

    def placed(self, name: str, like: Any) -> Tensor:
        """A tensor on the mesh of `like`, of which this rank reads its own shards."""
        t = self.type_of(name)
        shape = [int(n) for n in t.shape]
        return from_function(
            shape, like.layout, like.mesh, lambda where: self.part(name, where), t.dtype
        )

    def tree(self, like: Any = None) -> Any:
        """The tree that was saved, in the classes of `like` where it is given."""
        where = str(self.path)
        node = None if self._manifest is None else self._manifest["tree"]
        try:
            if like is not None:
                return matched(where, like, node, self)
            if self._manifest is None:
                return {name: self[name] for name in self._files}
            return manifest.read(where, node, self.__getitem__)
        except RecursionError:
            pass
        raise FileError(f"load: {where}: the manifest is nested too deep")


def _pieces_of(where: str, name: str, t: Any) -> list[tuple[ShardPiece, str]]:
    """The shards of a tensor by a manifest, which must cover it."""
    try:
        shape = tuple(map(int, t["shape"]))
        as_dtype(t["dtype"])
        found = [
            (ShardPiece(str(n), tuple(map(int, a)), tuple(map(int, s))), str(d))
            for n, a, s, d in t["pieces"]
        ]
        count = sum(math.prod(p.shape) for p, _ in found)
        inside = all(
            0 <= s.start < s.stop <= n
            for p, _ in found
            for s, n in zip(p.slices, shape, strict=True)
        )
    except (KeyError, TypeError, ValueError, TesseraError):
        inside = False
    if not inside or count != math.prod(shape):
        raise FileError(
            f"load: {where}: the manifest states shards of tensor {name!r:.80} that do not make it up; the "
            "file is damaged"
        )
    return found


class MissingTensorError(FileError, KeyError):
    """A file has no tensor of this name."""

    def __init__(self, path: Path, name: Any, known: Mapping[str, Any]):
        some = ", ".join(list(known)[:6])
        more = f" and {len(known) - 6} more" if len(known) > 6 else ""
        super().__init__(f"load: {path} has no tensor {name!r:.80}; it has {some}{more}")

    __str__ = TesseraError.__str__


def _manifest(where: str, metadata: Mapping[str, Any]) -> Any:
    text = metadata.get(manifest.KEY)
    if text is None and manifest.DIGEST not in metadata:
        return None
    if not isinstance(text, str):
        raise FileError(f"load: {where}: the manifest is no text; the file is damaged")
    if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != metadata.get(
        manifest.DIGEST
    ):
        raise FileError(
            f"load: {where}: the manifest does not have the digest that was saved with it; the file is "
            "damaged"
        )
    found = header.strict_json(where, text)
    if not isinstance(found, dict) or not isinstance(found.get("tensors"), dict):
        raise FileError(f"load: {where}: the manifest is none; the file is damaged")
    if found.get("version") not in (manifest.VERSION, manifest.IN_PIECES) or "tree" not in found:
        raise FileError(
            f"load: {where}: the manifest is of version {found.get('version')!r:.20}, expected "
            f"{manifest.VERSION}; "
            "load it with the Tessera that wrote it"
        )
    return found
