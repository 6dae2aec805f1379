"""Pytrees: flatten and unflatten are inverse, map keeps structure, errors name what differs."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.core import tree
from tessera.core.errors import TreeError


class Pair(NamedTuple):
    a: object
    b: object


@tree.node
@dataclass
class Layer:
    weight: object
    bias: object
    name: str = field(default="layer", metadata={"static": True})


@tree.node
@dataclass(frozen=True)
class Frozen:
    x: object


class Box:
    def __init__(self, inside):
        self.inside = inside

    def __eq__(self, other):
        return isinstance(other, Box) and self.inside == other.inside

    __hash__ = None


tree.register(Box, lambda b: ((b.inside,), None), lambda _, xs: Box(xs[0]))

leaf = st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
trees = st.recursive(
    leaf | st.none(),
    lambda t: (
        st.lists(t, max_size=3)
        | st.lists(t, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), t, max_size=3)
        | st.builds(Pair, t, t)
        | st.builds(Layer, t, t, st.text(max_size=2))
        | st.builds(Frozen, t)
        | st.builds(Box, t)
    ),
    max_leaves=10,
)


@given(trees)
def test_unflatten_inverts_flatten(t):
    leaves, structure = tree.flatten(t)
    assert tree.unflatten(structure, leaves) == t
    assert structure.count == len(leaves)
    assert tree.leaves(t) == leaves
    assert tree.structure(t) == structure


@given(trees)
def test_mapping_the_identity_changes_nothing(t):
    assert tree.map(lambda x: x, t) == t


@given(trees)
def test_maps_compose(t):
    assert tree.map(len, tree.map(str, t)) == tree.map(lambda x: len(str(x)), t)
    assert tree.structure(tree.map(str, t)) == tree.structure(t)
    assert tree.leaves(tree.map(str, t)) == [str(x) for x in tree.leaves(t)]


@given(trees, trees)
def test_structures_are_equal_when_the_leaves_are_exchangeable(a, b):
    if tree.structure(a) == tree.structure(b):
        assert tree.structure(tree.unflatten(tree.structure(a), tree.leaves(b))) == tree.structure(
            a
        )
        assert hash(tree.structure(a)) == hash(tree.structure(b))
        assert str(tree.structure(a)) == str(tree.structure(b))


def test_dicts_are_read_in_the_order_of_their_keys():
    assert tree.leaves({"b": 1, "a": 2}) == [2, 1]
    assert tree.structure({"b": 1, "a": 2}) == tree.structure({"a": 0, "b": 0})
    assert tree.leaves({1: "x", "a": "y"}) == ["x", "y"]


def test_static_fields_belong_to_the_structure():
    assert tree.leaves(Layer(1, 2, "x")) == [1, 2]
    assert tree.structure(Layer(1, 2, "x")) != tree.structure(Layer(1, 2, "y"))


def test_none_has_no_leaves():
    assert tree.leaves({"a": None, "b": [None, 3]}) == [3]


def test_any_dataclass_is_a_node():
    @dataclass(frozen=True, slots=True)
    class Plain:
        x: int
        name: str = field(default="a", metadata={"static": True})

    assert tree.leaves([Plain(1)]) == [1]
    assert tree.map(lambda v: v + 1, Plain(1, "b")) == Plain(2, "b")


def test_a_class_of_attrs_is_a_node():
    # What attrs leaves on a class; the package itself is not needed.
    class Drawn:
        def __init__(self, x, y):
            self.x, self.y = x, y

    Drawn.__attrs_attrs__ = (
        SimpleNamespace(name="x", metadata={}),
        SimpleNamespace(name="y", metadata={"static": True}),
    )
    assert tree.leaves(Drawn(1, 2)) == [1]
    moved = tree.map(lambda v: v + 1, Drawn(1, 2))
    assert (moved.x, moved.y) == (2, 2)
    assert tree.paths(Drawn(1, 2)) == [".x"]


def test_dicts_of_the_standard_library_are_nodes():
    ordered = OrderedDict([("b", 1), ("a", 2)])
    assert tree.leaves(ordered) == [1, 2]
    assert tree.map(str, ordered) == OrderedDict([("b", "1"), ("a", "2")])
    assert tree.structure(ordered) != tree.structure(OrderedDict([("a", 1), ("b", 2)]))
    assert str(tree.structure(ordered)) == "OrderedDict({'b': *, 'a': *})"
    counted = defaultdict(list, {"b": 1, "a": 2})
    made = tree.map(str, counted)
    assert (made, made.default_factory) == ({"a": "2", "b": "1"}, list)
    bound = tree.map(lambda v: v + 1, functools.partial(max, 1, key=3))
    assert (bound.func, bound.args, bound.keywords) == (max, (2,), {"key": 4})


def test_paths_say_how_leaves_are_reached():
    t = {"layers": [Layer(1, 2, "x"), None], "b": (3, Pair(4, 5)), "o": OrderedDict(z=6)}
    assert tree.paths(t) == ["['b'][0]", "['b'][1].a", "['b'][1].b", "['layers'][0].weight",
                             "['layers'][0].bias", "['o']['z']"]  # fmt: skip
    assert len(tree.paths(t)) == len(tree.leaves(t))
    assert tree.paths(7) == [""]
    assert tree.paths([1, 2], "params") == ["params[0]", "params[1]"]


def test_a_tree_that_is_too_deep_or_holds_itself_is_named():
    deep, ring = [1], [1]
    for _ in range(5000):
        deep = [deep]
    ring.append(ring)
    for t in (deep, ring):
        for use in (tree.leaves, ts.jit(lambda x: 1.0), ts.grad(lambda x: 1.0)):
            with pytest.raises(TreeError, match="tree: the tree holds itself, or is nested deeper"):
                use(t)


@pytest.mark.parametrize(
    ("t", "text"),
    [
        ([1, (2,)], "[*, (*,)]"), ({"a": 1, "b": ()}, "{'a': *, 'b': ()}"), (Pair(1, None), "Pair(*, None)"),
        (Layer(1, [2]), "Layer(*, [*])"), (3, "*"), ((1, 2), "(*, *)"),
    ],
)  # fmt: skip
def test_structures_print(t, text):
    assert str(tree.structure(t)) == text


def test_map_takes_several_trees():
    assert tree.map(lambda a, b: a - b, {"x": 5, "y": [1]}, {"x": 2, "y": [7]}) == {
        "x": 3,
        "y": [-6],
    }


def test_trees_that_differ_say_how():
    with pytest.raises(
        TreeError, match=r"tree\.map: tree 1 is \[\*\], expected \(\*, \*\) as in tr"
    ):
        tree.map(lambda a, b: a, (1, 2), [1])
    with pytest.raises(
        TreeError, match=r"tree\.unflatten: got 1 leaves, expected 2 for \(\*, \*\)"
    ):
        tree.unflatten(tree.structure((1, 2)), [3])


def test_node_wants_a_dataclass():
    with pytest.raises(TreeError, match=r"tree\.node: Box is not a dataclass"):
        tree.node(Box)


def test_old_namedtuples_keep_their_class():
    point = namedtuple("point", "x y")
    got = tree.map(lambda v: v + 1, point(1, 2))
    assert got == (2, 3)
    assert type(got) is point


def test_a_tree_within_the_counted_depth_goes_everywhere():
    deep = ts.tensor([1.0])
    for _ in range(tree.DEEPEST - 2):  # jit puts arguments in two trees more
        deep = (deep,)
    xs, s = tree.flatten(deep)
    assert hash(s) == hash(tree.structure(deep))
    assert s == tree.structure(deep)
    assert s.count == 1
    assert str(s).count("(") == tree.DEEPEST - 2 == tree.paths(deep)[0].count("[0]")
    assert tree.leaves(ts.jit(lambda t: t)(tree.unflatten(s, xs)))[0].tolist() == [1.0]
    with pytest.raises(TreeError, match="nested deeper than 200 levels"):
        tree.leaves((((deep,),),))
