"""A loaded tree in the structure of another one, whose classes and devices it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.dtype import as_dtype
from tessera.core.errors import FileError
from tessera.core.types import TensorType
from tessera.files import manifest
from tessera.files.manifest import Node, dotted
from tessera.ir.graph.ir import Value

_ABSENT: Any = object()
Path = tuple[str, ...]


def matched(where: str, like: Any, node: Node | None, tensors: Mapping[str, Any]) -> Any:
    """The tree of a manifest, or of names alone where there is none, with the structure of `like`."""
    leaves, structure = tree.flatten(like)
    made: list[Any] = []
    if node is None:
        _by_name(where, leaves, structure, tensors, made)
    else:
        _by_node(where, structure, iter(leaves), node, tensors, (), made)
    return tree.unflatten(structure, made)


def _by_node(
    where: str,
    s: tree.Structure,
    leaves: Iterator[Any],
    node: Node,
    tensors: Mapping[str, Any],
    path: Path,
    made: list[Any],
) -> None:
    if s.kind is None:
        made.append(_leaf(where, next(leaves), node, tensors, path))
        return
    inner = {} if node is None else manifest.children(where, node)
    if inner is None or (node is None) != (s.kind is type(None)):
        raise FileError(
            f"load: {_at(path)} of like is {_kind(s)}, but {_shown(node)} in {where}; give the structure "
            "that was saved"
        )
    steps = tree.keys(s)
    _same_keys(where, steps, inner, path)
    for k, c in zip(steps, s.children, strict=True):
        _by_node(where, c, leaves, inner[k], tensors, (*path, str(k)), made)


def _same_keys(where: str, steps: list[Any], inner: Mapping[Any, Any], path: Path) -> None:
    for missing in [k for k in steps if k not in inner][:1]:
        raise FileError(
            f"load: like has {dotted((*path, str(missing)))}, which is not in {where}; give the structure "
            "that was saved"
        )
    for more in [k for k in inner if k not in steps][:1]:
        raise FileError(
            f"load: {where} has {dotted((*path, str(more)))}, which is not in like; give the structure that "
            "was saved"
        )


def _leaf(where: str, like: Any, node: Node, tensors: Mapping[str, Any], path: Path) -> Any:
    wanted = _type(like)
    name = manifest.tensor_of(node)
    if (wanted is None) != (name is None):
        raise FileError(
            f"load: {_at(path)} of like is {wanted or type(like).__name__}, but {_shown(node)} in {where}"
        )
    if name is None:
        found = manifest.leaf(where, node) if manifest.children(where, node) is None else node
        if type(found) is not type(like) and not _are_numbers(found, like):
            raise FileError(
                f"load: {_at(path)} of like is {type(like).__name__}, but {_shown(node)} in {where}"
            )
        return found
    return _found(where, like, wanted, tensors, name, path)


def _found(where: str, like: Any, wanted: Any, tensors: Any, name: str, path: Path) -> Any:
    """A tensor like another one; on a mesh, each rank reads its own shards."""
    if not isinstance(like, Value) or like.device.kind != "mesh":
        return _fitted(where, like, wanted, tensors[name], path)
    if tensors.type_of(name) != wanted:
        return _fitted(where, like, wanted, tensors[name], path)  # says what differs
    return tensors.placed(name, like)


def _are_numbers(a: Any, b: Any) -> bool:
    numbers = (int, float)
    return (
        isinstance(a, numbers)
        and isinstance(b, numbers)
        and isinstance(a, bool) == isinstance(b, bool)
    )


def _fitted(where: str, like: Any, wanted: Any, x: Any, path: Path) -> Any:
    if x.type != wanted:
        raise FileError(
            f"load: {_at(path)} is {x.type} in {where}, but like has {wanted}; give a like of that type, or "
            "load "
            "without like and convert"
        )
    if isinstance(like, Value):
        return x if like.device.kind == "cpu" else x.to(like.device)
    if isinstance(like, np.ndarray):
        return x.numpy()
    return x.numpy()[()] if isinstance(like, np.generic) else x


def _type(x: Any) -> TensorType | None:
    """The type of a tensor, of an array, or the type that stands for one."""
    if isinstance(x, TensorType):
        return x
    if isinstance(x, Value):
        return x.type
    if isinstance(x, np.ndarray | np.generic):
        return TensorType(as_dtype(x.dtype), x.shape)
    return None


def _by_name(
    where: str, leaves: list[Any], s: tree.Structure, tensors: Mapping[str, Any], made: list[Any]
) -> None:
    """Tensors of a file of another program by their dotted names; what is no tensor stays as in `like`."""
    used = set()
    for path, x in zip(_paths(s, ()), leaves, strict=True):
        wanted = _type(x)
        if wanted is None:
            made.append(x)
            continue
        name = dotted(path) or "value"
        if name not in tensors:
            raise FileError(f"load: like has {name}, which is not in {where}")
        used.add(name)
        made.append(_found(where, x, wanted, tensors, name, path))
    for more in [n for n in tensors if n not in used][:1]:
        raise FileError(
            f"load: {where} has {more}, which is not in like; take what you need from ts.load(path, "
            "lazy=True)"
        )


def _paths(s: tree.Structure, path: Path) -> Iterator[Path]:
    if s.kind is None:
        yield path
    for k, c in zip(tree.keys(s) if s.children else (), s.children, strict=True):
        yield from _paths(c, (*path, str(k)))


def _at(path: Path) -> str:
    return dotted(path) or "the root"


def _kind(s: tree.Structure) -> str:
    assert s.kind is not None, s
    return "None" if s.kind is type(None) else s.kind.__name__


def _shown(node: Node) -> str:
    if isinstance(node, dict):
        word = next(iter(node), "nothing")
        return str(node["class"]).rpartition(".")[2] if word == "class" else f"a {word}"
    return f"{type(node).__name__} {node!r:.40}" if node is not None else "None"
