"""Pytrees: nested tuples, lists, dicts, dataclasses and registered classes with leaves inside.

Dataclasses and attrs classes of users are nodes; Tessera's own are nodes when `node` says so.

The leaves of a dict stand in the order of its sorted keys, so that {a, b} and {b, a} are one structure and
their leaves go together.  The structure remembers the order in which the keys were written, and gives it
back: a function that is traced on a dict meets the order that it would meet without the trace.
"""

from __future__ import annotations

import dataclasses
import functools
import html
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tessera.core.blame import blames_arguments, demand_function
from tessera.core.errors import TreeError
from tessera.core.modules import answer
from tessera.core.statics import static_key

Flatten = Callable[[Any], tuple[Sequence[Any], Any]]
Unflatten = Callable[[Any, Sequence[Any]], Any]
# Levels of a tree.  Walks take up to three frames a level: 600 of the 1,000 that Python allows by default.
DEEPEST = 200


class _Kind(NamedTuple):
    flatten: Flatten
    unflatten: Unflatten
    seen_as: type | None = None  # what structures have in place of the class


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a tree: what is left when the leaves are taken out."""

    kind: type | None  # None is a leaf
    aux: Any = None
    children: tuple[Structure, ...] = ()

    @property
    def count(self) -> int:
        """How many leaves."""
        return 1 if self.kind is None else sum(c.count for c in self.children)

    def __repr__(self) -> str:
        return f"Structure({self})"

    def _repr_html_(self) -> str:
        """The structure, for a notebook; a star is a leaf."""
        return f"<code>{html.escape(str(self))}</code> ({self.count} leaves)"

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        inner = [str(c) for c in self.children]
        if self.kind is dict:
            return "{" + ", ".join(_named(self.aux, inner)) + "}"
        if self.kind is OrderedDict:
            return "OrderedDict({" + ", ".join(_named(self.aux, inner)) + "})"
        if self.kind is list:
            return f"[{', '.join(inner)}]"
        if self.kind is tuple:
            return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
        if self.kind is type(None):
            return "None"
        return f"{self.kind.__name__}({', '.join(inner)})"


def _named(keys: Sequence[Any], inner: Sequence[str]) -> list[str]:
    return [f"{k!r}: {c}" for k, c in zip(keys, inner, strict=True)]


LEAF = Structure(None)


class _Keys(tuple[Any, ...]):
    """The sorted keys of a dict that has them in another order, which equality and hash pass by."""

    order: tuple[Any, ...]


def _keys_of(d: dict[Any, Any]) -> tuple[Any, ...]:
    given = tuple(d)
    keys = _sorted(given)
    if keys == given:
        return given
    made = _Keys(keys)
    made.order = given
    return made


def _sorted(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(keys))
    except TypeError:
        pass
    try:  # keys of several classes, such as 1 and "a"
        return tuple(sorted(keys, key=lambda k: (type(k).__qualname__, k)))
    except TypeError:
        return keys  # without an order of their own: dicts in other orders are other structures


def _in_order(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """The keys of a dict as they were written."""
    return keys.order if type(keys) is _Keys else keys


def _pairs(keys: tuple[Any, ...], xs: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """The items of a dict as they were written, from the values in the order of sorted keys."""
    pairs = zip(keys, xs, strict=True)
    if type(keys) is not _Keys:
        return pairs
    found = dict(pairs)
    return [(k, found[k]) for k in keys.order]


def _flatten_dict(d: dict[Any, Any]) -> tuple[Sequence[Any], Any]:
    keys = _keys_of(d)
    return [d[k] for k in keys], keys


def _flatten_default(d: defaultdict[Any, Any]) -> tuple[Sequence[Any], Any]:
    children, keys = _flatten_dict(d)
    return children, (d.default_factory, keys)


def _flatten_partial(f: functools.partial[Any]) -> tuple[Sequence[Any], Any]:
    return (f.args, f.keywords), f.func


_KINDS: dict[type, _Kind] = {
    tuple: _Kind(lambda t: (t, None), lambda _, xs: tuple(xs)),
    list: _Kind(lambda t: (t, None), lambda _, xs: list(xs)),
    dict: _Kind(_flatten_dict, lambda keys, xs: dict(_pairs(keys, xs))),
    type(None): _Kind(lambda _: ((), None), lambda _, __: None),
    OrderedDict: _Kind(  # whose order counts
        lambda d: (list(d.values()), tuple(d)),
        lambda keys, xs: OrderedDict(zip(keys, xs, strict=True)),
    ),
    defaultdict: _Kind(_flatten_default, lambda aux, xs: defaultdict(aux[0], _pairs(aux[1], xs))),
    functools.partial: _Kind(_flatten_partial, lambda f, xs: functools.partial(f, *xs[0], **xs[1])),
}
_LEAVES: set[type] = set()  # classes that are known to be none
_OURS = __name__.partition(".")[0]


def __dir__() -> list[str]:
    return [
        "Structure", "flatten", "leaves", "map", "names", "node", "paths", "register", "structure",
        "unflatten",
    ]  # fmt: skip


@blames_arguments
def register(cls: Any, flatten: Any, unflatten: Any) -> None:
    """Make a class a node of trees: flatten(x) -> (children, aux), unflatten(aux, children) -> x."""
    if not isinstance(cls, type) or not callable(flatten) or not callable(unflatten):
        raise TreeError(
            "tree.register: expected a class and two functions: flatten(x) -> (children, aux) and "
            "unflatten(aux, children) -> x"
        )
    _KINDS[cls] = _Kind(flatten, unflatten)


def see_as(cls: type, other: type) -> None:
    """Let instances of a class be nodes of trees as those of another one, which unflattening makes."""
    _KINDS[cls] = _KINDS[other]._replace(seen_as=other)


def _kind(cls: type) -> _Kind | None:
    found = _KINDS.get(cls)
    if found is not None or cls in _LEAVES:
        return found
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        found = _Kind(lambda t: (t, None), lambda _, xs, c=cls: c(*xs))  # type: ignore[misc]
    elif (dataclasses.is_dataclass(cls) and _is_marked(cls)) or hasattr(cls, "__attrs_attrs__"):
        found = _fields_kind(cls, *_fields(cls))
    if found is not None:
        _KINDS[cls] = found
    else:
        _LEAVES.add(cls)
    return found


def _is_marked(cls: type) -> bool:
    """Whether the instances of a dataclass are nodes: all of the user's are, and those that `node` marked."""
    if hasattr(cls, "__tessera_tree__"):
        return True
    return cls.__module__.partition(".")[0] != _OURS


def _fields(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the fields of a dataclass or an attrs class: children, and static ones."""
    found = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else cls.__attrs_attrs__
    children = tuple(f.name for f in found if not f.metadata.get("static"))
    return children, tuple(f.name for f in found if f.metadata.get("static"))


def _fields_kind(cls: type, names: tuple[str, ...], static: tuple[str, ...]) -> _Kind:
    def flatten(x: Any) -> tuple[Sequence[Any], Any]:
        return [getattr(x, n) for n in names], tuple(getattr(x, n) for n in static)

    def unflatten(aux: Any, xs: Sequence[Any]) -> Any:
        made: Any = object.__new__(cls)
        for n, v in (*zip(names, xs, strict=True), *zip(static, aux, strict=True)):
            object.__setattr__(made, n, v)
        return made

    return _Kind(flatten, unflatten)


@blames_arguments
def node(cls: type) -> type:
    """Class decorator: a dataclass whose fields are children (metadata static=True: they are not)."""
    if not dataclasses.is_dataclass(cls):
        raise TreeError(
            f"tree.node: {cls.__name__} is not a dataclass; decorate it with @dataclass"
        )
    cls.__tessera_tree__ = True  # type: ignore[attr-defined]
    _LEAVES.discard(cls)
    return cls


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves from left to right, and the structure."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, DEEPEST)


def _flatten(tree: Any, leaves: list[Any], room: int) -> Structure:
    kind = _kind(type(tree))
    if kind is None:
        leaves.append(tree)
        return LEAF
    if not room:
        raise _too_deep()
    children, aux = kind.flatten(tree)
    seen = kind.seen_as or type(tree)
    return Structure(seen, aux, tuple([_flatten(c, leaves, room - 1) for c in children]))


def _too_deep() -> TreeError:
    return TreeError(
        f"tree: the tree holds itself, or is nested deeper than {DEEPEST} levels; put its leaves in a list"
    )


def children(tree: Any) -> list[tuple[Any, Any]] | None:
    """What is right below the root of a tree, with its key, field or number; None of a leaf."""
    found = root(tree)
    return None if found is None else list(zip(keys(found[0]), found[1], strict=True))


def root(tree: Any) -> tuple[Structure, Sequence[Any]] | None:
    """The structure of the root of a tree, as if leaves were below it, and what is there; None of a leaf."""
    kind = _kind(type(tree))
    if kind is None:
        return None
    below, aux = kind.flatten(tree)
    return Structure(kind.seen_as or type(tree), aux, (LEAF,) * len(below)), below


def with_children(tree: Any, below: Sequence[Any]) -> Any:
    """The tree with other subtrees right below its root, in the order of `children`."""
    kind = _kind(type(tree))
    assert kind is not None, tree
    return kind.unflatten(kind.flatten(tree)[1], below)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The tree with this structure and these leaves."""
    if not isinstance(structure, Structure):
        raise TreeError(
            f"tree.unflatten: got {type(structure).__name__} {structure!r:.40}, expected a structure, as "
            "tree.structure(x) gives it"
        )
    xs = list(leaves)
    if len(xs) != structure.count:
        raise TreeError(
            f"tree.unflatten: got {len(xs)} leaves, expected {structure.count} for {structure}"
        )
    return _unflatten(structure, iter(xs))


def _unflatten(s: Structure, leaves: Any) -> Any:
    if s.kind is None:
        return next(leaves)
    kind = _kind(s.kind)
    assert kind is not None, s
    return kind.unflatten(s.aux, [_unflatten(c, leaves) for c in s.children])


def parts(structure: Structure, tree: Any) -> list[Any] | None:
    """What stands in a tree at the leaves of a structure, None when it has not this structure so far."""
    found: list[Any] = []
    return found if _parts(structure, tree, found) else None


def _parts(s: Structure, tree: Any, found: list[Any]) -> bool:
    if s.kind is None:
        found.append(tree)
        return True
    kind = _kind(type(tree))
    if kind is None or (kind.seen_as or type(tree)) is not s.kind:
        return False
    children, aux = kind.flatten(tree)
    if aux != s.aux or len(children) != len(s.children):
        return False
    return all(_parts(t, c, found) for t, c in zip(s.children, children, strict=True))


def tokens(tree: Any, leaf: Callable[[Any], Any], out: list[Any], room: int = DEEPEST) -> bool:
    """Append to `out` what tells the structure of a tree, with leaf(x) for each leaf.

    Trees that a function can tell apart have tokens of their own: dicts in other orders, static fields
    that are 1 and 1.0.  A flat list hashes faster than a Structure.  False when leaf gave None: then give up.
    """
    kind = _kind(type(tree))
    if kind is None:
        token = leaf(tree)
        out.append(token)
        return token is not None
    if not room:
        raise _too_deep()
    children, aux = kind.flatten(tree)
    out += (type(tree), _told(aux), len(children))
    whole = True
    for c in children:
        if type(c) in _LEAVES:  # most are, of models with hundreds of tensors
            token = leaf(c)
            out.append(token)
            whole = whole and token is not None
        else:
            whole = tokens(c, leaf, out, room - 1) and whole
    return whole


def token(s: Structure) -> tuple[Any, ...]:
    """What tells a structure from others, those that are equal but that a function can tell apart too."""
    return s.kind, _told(s.aux), tuple([token(c) for c in s.children])


_STR = {str}


def _told(aux: Any) -> Any:
    """A key for what a node has beside its children."""
    if aux is None:
        return None
    if type(aux) is _Keys:
        return _Keys, _told(aux.order)
    if type(aux) is not tuple:
        return static_key(aux)
    if {type(x) for x in aux} <= _STR:  # most are, and text equals text alone
        return aux
    return tuple, tuple([_told(x) for x in aux])


def in_order_of(s: Structure, tree: Any) -> Any:
    """A tree with this structure but for the order of keys in its dicts, in that order."""
    return _unflatten(s, iter(flatten(tree)[0]))


def written_keys(s: Structure) -> list[Any]:
    """What `keys` gives, those of a dict in the order in which they were written."""
    if s.kind in (dict, defaultdict):
        return list(_in_order(s.aux if s.kind is dict else s.aux[1]))
    return keys(s)


def leaves(tree: Any) -> list[Any]:
    """The leaves from left to right."""
    return flatten(tree)[0]


def structure(tree: Any) -> Structure:
    """The structure of a tree."""
    return flatten(tree)[1]


@blames_arguments
def paths(tree: Any, prefix: str = "") -> list[str]:
    """How each leaf of a tree is reached, in the order of the leaves, as in ['layers'][0].weight."""
    return structure_paths(structure(tree), prefix)


def structure_paths(s: Structure, prefix: str = "") -> list[str]:
    """How each leaf of a tree of this structure is reached."""
    if s.kind is None:
        return [prefix]
    steps = zip(_steps(s), s.children, strict=True)
    return [p for step, c in steps for p in structure_paths(c, prefix + step)]


def _steps(s: Structure) -> list[str]:
    if is_mapping(s):
        return [f"[{k!r}]" for k in keys(s)]
    return [f".{k}" if isinstance(k, str) else f"[{k}]" for k in keys(s)]


def is_mapping(s: Structure) -> bool:
    """Whether the children of a node are the values of a dict."""
    return s.kind in (dict, OrderedDict, defaultdict)


def keys(s: Structure) -> list[Any]:
    """What each child of a node is reached by: the key of a dict, the name of a field, or a number."""
    if s.kind is dict or s.kind is OrderedDict:
        return list(s.aux)
    if s.kind is defaultdict:
        return list(s.aux[1])
    if s.kind is functools.partial:
        return ["args", "keywords"]
    if dataclasses.is_dataclass(s.kind) or hasattr(s.kind, "__attrs_attrs__"):
        return list(_fields(s.kind)[0])
    return list(getattr(s.kind, "_fields", ())) or list(range(len(s.children)))


@blames_arguments
def names(tree: Any, prefix: str = "") -> list[str]:
    """The dotted name of each leaf of a tree, in the order of the leaves, as in layers.0.weight.

    A class whose __tessera_inline__ is the name of one field leaves that field out of the names below it.
    """
    return structure_names(structure(tree), prefix)


def structure_names(s: Structure, prefix: str = "") -> list[str]:
    """The dotted name of each leaf of a tree of this structure."""
    if s.kind is None:
        return [prefix]
    inline = getattr(s.kind, "__tessera_inline__", None)
    found: list[str] = []
    for step, child in zip(_step_names(s), s.children, strict=True):
        parts = [prefix] if step == inline else [prefix, step]
        found += structure_names(child, ".".join(p for p in parts if p))
    return found


def _step_names(s: Structure) -> list[str]:
    return [str(k) for k in keys(s)]


@blames_arguments
def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply f to the leaves of trees of one structure."""
    demand_function("tree.map", f)
    xs, s = flatten(tree)
    columns = [xs]
    for i, other in enumerate(rest):
        ys, t = flatten(other)
        if t != s:
            raise TreeError(f"tree.map: tree {i + 1} is {t}, expected {s} as in tree 0")
        columns.append(ys)
    return _unflatten(s, iter([f(*row) for row in zip(*columns, strict=True)]))


answer(__name__, "tree")
