"""Walks over the modules inside of a module, by their dotted names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tessera.core import tree as trees
from tessera.core.blame import blames_arguments
from tessera.core.errors import TreeError, located
from tessera.nn.module import Module, replace


def _children(x: Any) -> Iterator[tuple[Any, str, Any]]:
    """The field or key, its step in names ("" where names leave it out), and what is there."""
    if isinstance(x, Module):
        inline = getattr(type(x), "__tessera_inline__", None)
        for f in dataclasses.fields(x):  # type: ignore[arg-type]
            if not f.metadata.get("static"):
                yield f.name, "" if f.name == inline else f.name, getattr(x, f.name, None)
    elif type(x) is dict:  # in the order of the program
        yield from ((k, str(k), v) for k, v in x.items())
    else:  # the user's dataclasses and whatever else is a node of trees
        yield from ((k, str(k), v) for k, v in trees.children(x) or ())


def _below(prefix: str, step: str) -> str:
    return ".".join(p for p in (prefix, step) if p)


@blames_arguments
def modules(tree: Any, prefix: str = "") -> Iterator[tuple[str, Module]]:
    """The modules in a tree with their names, the outer before the inner."""
    if isinstance(tree, Module):
        yield prefix, tree
    for _, step, child in _children(tree):
        yield from modules(child, _below(prefix, step))


@blames_arguments
def map_modules(f: Callable[[str, Any], Any], tree: Any, prefix: str = "") -> Any:
    """The tree with f(name, module) for every module in it, the inner before the outer."""
    made = {k: map_modules(f, v, _below(prefix, step)) for k, step, v in _children(tree)}
    if isinstance(tree, Module):
        same = all(made[n] is getattr(tree, n, None) for n in made)
        return f(prefix, tree if same else replace(tree, **made))
    return _rebuilt(tree, made) if made else tree


@blames_arguments
def get(tree: Any, name: str) -> Any:
    """What has this dotted name in a tree: a module, a list, a parameter."""
    at = tree
    for i, step in enumerate(steps := name.split(".")):
        found = {s: v for _, s, v in _flat(at)}
        if step not in found:
            where = ".".join(steps[:i]) or type(tree).__name__
            raise located(
                TreeError(
                    f"nn.get: no '{step}' in {where}; it has {', '.join(found) or 'nothing inside'}"
                )
            )
        at = found[step]
    return at


def _flat(x: Any) -> Iterator[tuple[str, str, Any]]:
    """Children, with those of a field that names leave out in its place."""
    for k, step, v in _children(x):
        if step:
            yield k, step, v
        else:
            yield from _children(v)


@blames_arguments
def partition(tree: Any, where: Callable[[str, Any], bool]) -> tuple[Any, Any]:
    """Two trees of the same kind: the leaves with where(name, leaf), and the others; None stands for what
    is not there.
    """
    names, (leaves, structure) = trees.names(tree), trees.flatten(tree)
    chosen = [bool(where(n, x)) for n, x in zip(names, leaves, strict=True)]
    return (
        trees.unflatten(structure, [x if c else None for c, x in zip(chosen, leaves, strict=True)]),
        trees.unflatten(structure, [None if c else x for c, x in zip(chosen, leaves, strict=True)]),
    )


@blames_arguments
def combine(first: Any, second: Any) -> Any:
    """One tree from two of the same kind, where one has what the other has not."""
    if first is None or second is None:
        return second if first is None else first
    ours, theirs = (list(_children(t)) for t in (first, second))
    alike = type(first) is type(second) and {c[0] for c in ours} == {c[0] for c in theirs}
    if not alike or trees.children(first) is None:
        raise located(
            TreeError(
                f"nn.combine: both trees have {type(first).__name__} and {type(second).__name__} at one "
                "place; "
                "expected the two results of nn.partition"
            )
        )
    other = {k: b for k, _, b in theirs}
    made = {k: combine(a, other[k]) for k, _, a in ours}
    if isinstance(first, Module):
        return replace(first, **made)
    return _rebuilt(first, made) if made else first


def _rebuilt(like: Any, made: dict[Any, Any]) -> Any:
    """A node with other children; itself where they are the same."""
    if all(made[k] is v for k, _, v in _children(like)):
        return like
    if type(like) is dict:
        return {k: made[k] for k in like}
    return trees.with_children(like, list(made.values()))
