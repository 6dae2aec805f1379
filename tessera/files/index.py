"""The index of a model in several files: which tensor is in which."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tessera.core.errors import FileError, MissingFileError
from tessera.core.regular import open_regular, pieces
from tessera.files.header import LARGEST, strict_json

INDEX = ".index.json"  # after the name that one file would have


def shard_name(stem: str, i: int, count: int) -> str:
    """The name of a shard, as others write it."""
    return f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors"


def shards_of(index: Path) -> set[str]:
    """The files that an index names, none where there is no index that can be read."""
    try:
        found = json.loads(index.read_bytes())["weight_map"]
        return {name for name in found.values() if is_plain(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


def is_plain(name: Any) -> bool:
    """Whether a name is that of a file beside its index, and of nothing else."""
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and os.path.basename(name) == name
        and not {"/", "\\", "\0"} & set(name)
    )


def find(path: Path) -> Path:
    """The file or the index that a path means: itself, or the one that a folder holds."""
    if not path.is_dir():
        if path.exists():
            return path
        beside = path.with_name(path.name + INDEX)
        if beside.exists():
            return beside
        raise MissingFileError(f"load: there is no file {str(path)!r}")
    for pattern in (f"*.safetensors{INDEX}", "*.safetensors"):
        found = sorted(p for p in path.glob(pattern) if not p.name.startswith("."))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(p.name for p in found[:4])
            raise FileError(
                f"load: the folder {str(path)!r} holds {len(found)} files: {names}; name one of them"
            )
    raise MissingFileError(f"load: the folder {str(path)!r} holds no safetensors file")


def read(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The file of each tensor by its name, and the metadata of an index."""
    try:
        with open_regular(path) as f:
            text = b"".join(pieces(f, LARGEST))
    except OSError as e:
        raise FileError(f"load: cannot read {path}: {e.strerror or e}") from None
    if len(text) > LARGEST:
        raise FileError(f"load: {path} has over {LARGEST} bytes; it is no index")
    found = strict_json(str(path), text)
    where = found.get("weight_map") if isinstance(found, dict) else None
    metadata = found.get("metadata", {}) if isinstance(found, dict) else None
    if not isinstance(where, dict) or not isinstance(metadata, dict):
        raise FileError(f"load: {path} is no index: expected a weight_map and metadata")
    for name, file in where.items():
        if not is_plain(file):
            raise FileError(
                f"load: {path}: tensor {name!r:.80} lies in {file!r:.80}, expected the name of a "
                "safetensors file "
                "in the same folder"
            )
    return where, metadata
