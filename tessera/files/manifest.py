"""The manifest of a file: the tree that was saved, with the names of its tensors, as JSON.

None, True, 3, 0.5, "text"                       leaves as they are
{"tensor": name}                                 a tensor of the file
{"number": "nan"}  {"dtype": text}               what JSON has no word for
{"list": [...]}  {"tuple": [...]}                sequences
{"dict": [[key, node], ...]}                     dicts as they were written, whose keys are leaves
{"class": name, "fields": [[field, node], ...]}  dataclasses, named tuples and other nodes
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.dtype import DType, PolicyTerm, as_dtype
from tessera.core.errors import FileError, TesseraError
from tessera.ir.graph.ir import Value

Node = Any
VERSION = 1  # of a manifest whose tensors are whole
IN_PIECES = 2  # the version of a manifest whose tensors may lie in pieces
KEY = "tessera"  # in the metadata of a file
DIGEST = "tessera.sha256"  # of the manifest
_EXACT = 2**53  # integers that every reader of JSON keeps


def sha256(data: Any) -> str:
    """The digest of bytes."""
    return hashlib.sha256(data).hexdigest()


class TreeWriter:
    """Turns a tree into a node, and gives each tensor in it a name of its own."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._names: dict[
            int, str
        ] = {}  # of tensors that were met, by identity: shared ones stay shared

    def write(self, x: Any) -> Node:
        """The node of a tree."""
        leaves, structure = tree.flatten(x)
        return self._node(structure, iter(leaves), ())

    def _node(self, s: tree.Structure, leaves: Iterator[Any], path: tuple[str, ...]) -> Node:
        if s.kind is None:
            return self._leaf(next(leaves), path)
        if s.kind is type(None):
            return None
        steps = tree.keys(s)
        made = [
            self._node(c, leaves, (*path, str(k))) for k, c in zip(steps, s.children, strict=True)
        ]
        if s.kind in (list, tuple):
            return {s.kind.__name__: made}
        if tree.is_mapping(s):
            found = dict(zip(steps, made, strict=True))
            return {"dict": [[_key(k, path), found[k]] for k in tree.written_keys(s)]}
        name = f"{s.kind.__module__}.{s.kind.__qualname__}"
        return {"class": name, "fields": [[k, n] for k, n in zip(steps, made, strict=True)]}

    def _leaf(self, x: Any, path: tuple[str, ...]) -> Node:
        if isinstance(x, Value | np.ndarray | np.generic):
            return {"tensor": self._tensor(x, path)}
        plain = _plain(x)
        if plain is _NO_NODE:
            raise FileError(
                f"save: {dotted(path) or 'the tree'} is {type(x).__name__} {x!r:.40}, expected a tensor, a "
                "number, a "
                "string, a dtype or None; mark the field static with metadata={'static': True}, or leave it "
                "out"
            )
        return plain

    def _tensor(self, x: Any, path: tuple[str, ...]) -> str:
        if isinstance(x, Value) and x.storage is None and x.builder is not None:
            raise FileError(
                f"save: {dotted(path) or 'the tree'} is a traced value {x.type}; return it from the jitted "
                "function "
                "and save it outside"
            )
        found = self._names.get(id(x))
        if found is None:
            found = self._names[id(x)] = self._free(dotted(path) or "value")
            self.tensors[found] = x
        return found

    def _free(self, name: str) -> str:
        """The name, or one like it that no other tensor has."""
        made, n = name, 1
        while made in self.tensors or made == "__metadata__":
            made, n = f"{name}~{n}", n + 1
        return made


def dotted(path: tuple[str, ...]) -> str:
    """The name of a tensor that is reached by these steps."""
    return ".".join(path).encode("utf-8", "backslashreplace").decode()


_NO_NODE: Any = object()


def _plain(x: Any) -> Node:
    """The node of a leaf that is no tensor."""
    if x is None or isinstance(x, bool):
        return x
    if isinstance(x, int):
        return int(x) if abs(x) < _EXACT else {"number": hex(x)}
    if isinstance(x, float):
        return float(x) if math.isfinite(x) else {"number": repr(float(x))}
    if isinstance(x, complex):
        return {"complex": [_plain(x.real), _plain(x.imag)]}
    if isinstance(x, str):
        return str(x)
    if isinstance(x, DType):
        return {"dtype": str(x)}
    if isinstance(x, PolicyTerm):
        return {"policy": str(x)}
    return _NO_NODE


def _key(k: Any, path: tuple[str, ...]) -> Node:
    if k is None or isinstance(k, bool | int | float | str):
        return _plain(k)
    raise FileError(
        f"save: {dotted(path) or 'the tree'} is a dict with the key {type(k).__name__} {k!r:.40}, expected "
        "a string or "
        "a number"
    )


# Reading ----------------------------------------------------------------------------------------


def _number(text: str) -> int | float:
    return int(text, 16) if "0x" in text else float(text)


def _policy(text: str) -> PolicyTerm:
    """The policy term with this text, found by what it makes of a dtype."""
    if text in ("stochastic_round", "saturate"):
        return PolicyTerm(text, True)
    word, _, inside = text.removesuffix(")").partition("(")
    if word == "loss_scale":
        return PolicyTerm(word, float(inside))
    if word == "accum":
        return PolicyTerm(word, as_dtype(inside).name)
    raise ValueError(f"{text!r} is no policy")


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "number": _number,
    "dtype": as_dtype,
    "policy": _policy,
    "complex": lambda pair: complex(float(leaf("", pair[0])), float(leaf("", pair[1]))),
}


def leaf(where: str, node: Node) -> Any:
    """What a node without children and tensors stands for."""
    if not isinstance(node, dict):
        return node
    word, value = next(iter(node.items()), ("", None))
    try:
        if len(node) == 1 and word in _LEAVES:
            return _LEAVES[word](value)
    except (TypeError, ValueError, KeyError, OverflowError, TesseraError):
        pass
    raise FileError(f"load: {where}: the manifest has a node {node!r:.80} that is none")


def tensor_of(node: Node) -> str | None:
    """The name of the tensor that a node is."""
    if isinstance(node, dict) and len(node) == 1 and isinstance(node.get("tensor"), str):
        return str(node["tensor"])
    return None


def children(where: str, node: Node) -> dict[Any, Node] | None:
    """The children of a node by their keys, None for a leaf."""
    if not isinstance(node, dict):
        return None
    for word in ("list", "tuple"):
        if isinstance(node.get(word), list) and len(node) == 1:
            return dict(enumerate(node[word]))
    pairs = node.get("dict", node.get("fields"))
    if isinstance(pairs, list) and all(isinstance(p, list) and len(p) == 2 for p in pairs):
        try:
            return {leaf(where, k): v for k, v in pairs}
        except TypeError:
            raise FileError(
                f"load: {where}: the manifest has a dict with a key that is none"
            ) from None
    return None


def read(where: str, node: Node, tensor: Callable[[str], Any]) -> Any:
    """The tree of a node, as dicts, lists and tuples; dataclasses become dicts."""
    name = tensor_of(node)
    if name is not None:
        return tensor(name)
    inner = children(where, node)
    if inner is None:
        return leaf(where, node)
    made = {k: read(where, n, tensor) for k, n in inner.items()}
    if "list" in node:
        return list(made.values())
    return tuple(made.values()) if "tuple" in node else made
