"""Trees of ai.onnx.ml: all rows go down all trees at once, one level a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dtype import f32
from tessera.interop.onnx.model import Array, OnnxError
from tessera.interop.onnx.rule import NodeCall, rule
from tessera.interop.onnx.rules.ml import _post, named
from tessera.lang import op
from tessera.ops.define import as_value

_ML = "ai.onnx.ml"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_DEEPEST = 4096  # a hostile file could have a cycle; trained trees have tens of levels


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one numbering; a leaf is its own child."""

    roots: Array
    mode: Array  # index into _MODES
    feature: Array
    split: Array
    yes: Array
    no: Array
    missing: Array  # whether NaN goes the way of yes
    members: dict[int, Array]  # the set of a MEMBER node
    leaf: Array  # (nodes, targets): what a leaf adds to each target
    depth: int


def _depth(roots: Array, yes: Array, no: Array) -> int:
    level, depth = set(roots.tolist()), 0
    while True:
        below = {c for i in level for c in (int(yes[i]), int(no[i])) if c != i}
        if not below:
            return depth
        level, depth = below, depth + 1
        if depth > _DEEPEST:
            raise OnnxError("the nodes of a tree form a circle")


def leaves(forest: Forest, x: Any) -> Any:
    """The leaf of each row in each tree: (rows, trees)."""
    x = as_value(x)
    rows = int(x.shape[0])
    at = op.broadcast_to(forest.roots, (rows, len(forest.roots)))
    modes = sorted(set(forest.mode[(forest.yes != np.arange(len(forest.yes)))].tolist()))
    for _ in range(forest.depth):
        value = op.take_along_axis(x, op.take(forest.feature, at, 0), 1)
        split = op.take(forest.split.astype(x.dtype.np), at, 0)
        on = _decided(forest, modes, at, value, split)
        if forest.missing.any() and x.dtype.kind == "f":
            missing = op.logical_and(op.isnan(value), op.take(forest.missing, at, 0))
            on = op.logical_or(on, missing)
        at = op.where(on, op.take(forest.yes, at, 0), op.take(forest.no, at, 0))
    return at


_COMPARE = {0: op.le, 1: op.lt, 2: op.ge, 3: op.gt, 4: op.eq, 5: op.ne}


def _decided(forest: Forest, modes: list[int], at: Any, value: Any, split: Any) -> Any:
    found: Any = None
    for m in modes:
        holds = _is_member(forest, at, value) if m == 6 else _COMPARE[m](value, split)
        chosen = op.eq(op.take(forest.mode, at, 0), m)
        found = holds if found is None else op.where(chosen, holds, found)
    return found


def _is_member(forest: Forest, at: Any, value: Any) -> Any:
    width = max(len(m) for m in forest.members.values())
    table = np.full((len(forest.mode), width), np.nan, np.float32)
    for i, members in forest.members.items():
        table[i, : len(members)] = members
    return op.any(op.eq(op.expand_dims(value, -1), op.take(table, at, 0)), -1)


def scores(forest: Forest, x: Any, how: str) -> Any:
    """What the leaves of each row add up to, for each target."""
    parts = op.take(forest.leaf.astype(as_value(x).dtype.np), leaves(forest, x), 0)
    if how == "AVERAGE":
        return op.mean(parts, 1)
    fold = {"SUM": op.sum, "MIN": op.min, "MAX": op.max}
    if how not in fold:
        raise OnnxError(f"aggregate_function is {how!r}")
    return fold[how](parts, 1)


# Version 5 of the operator set: nodes and leaves are numbered apart.


@rule("TreeEnsemble", domain=_ML)
def _tree_ensemble(n: NodeCall, x: Any) -> Any:
    kinds = ("AVERAGE", "SUM", "MIN", "MAX")
    posts = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    how = kinds[n.get("aggregate_function", 1)]
    forest = _forest_v5(n)
    return _post(scores(forest, x, how), posts[n.get("post_transform", 0)])


def _forest_v5(n: NodeCall) -> Forest:
    mode = np.asarray(n.need("nodes_modes")).astype(np.int64)
    count = len(mode)
    weights = np.asarray(n.need("leaf_weights"))
    total = count + len(weights)
    yes, no = np.arange(total), np.arange(total)
    for side, ids, leafs in (
        (yes, "nodes_truenodeids", "nodes_trueleafs"),
        (no, "nodes_falsenodeids", "nodes_falseleafs"),
    ):
        child, is_leaf = np.array(n.need(ids)), np.array(n.need(leafs))
        side[:count] = np.where(is_leaf != 0, child + count, child)
    leaf = np.zeros((total, n.need("n_targets")), np.float64)
    leaf[np.arange(count, total), np.array(n.need("leaf_targetids"))] = weights
    grown = _grown(total, n.need("nodes_featureids"), n.need("nodes_splits"), mode)
    missing = np.zeros(total, bool)
    missing[:count] = np.array(n.get("nodes_missing_value_tracks_true") or [0] * count) != 0
    roots = np.array(n.need("tree_roots"))
    members = _members(n.get("membership_values"), mode)
    return Forest(roots, *grown, yes, no, missing, members, leaf, _depth(roots, yes, no))


def _grown(total: int, features: Any, splits: Any, mode: Array) -> tuple[Array, Array, Array]:
    out = (np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total, np.float64))
    for a, b in zip(out, (mode, features, splits), strict=True):
        a[: len(mode)] = np.asarray(b)
    return out


def _members(values: Any, mode: Array) -> dict[int, Array]:
    """Sets of members, in the order of nodes, each ended by NaN."""
    if values is None:
        return {}
    groups = np.split(np.asarray(values), np.flatnonzero(np.isnan(np.asarray(values))) + 1)
    nodes = np.flatnonzero(mode == 6)
    return {int(i): g[~np.isnan(g)] for i, g in zip(nodes, groups, strict=False)}


# Versions 1 and 3: nodes know their tree, leaves are nodes.


def _forest_v3(n: NodeCall, prefix: str, targets: int) -> Forest:
    trees, ids = np.array(n.need("nodes_treeids")), np.array(n.need("nodes_nodeids"))
    place = {key: i for i, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    names = n.need("nodes_modes")
    count = len(names)
    inner = np.array([m != "LEAF" for m in names])
    mode = np.array(
        [{"BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4,
          "BRANCH_NEQ": 5, "LEAF": 0}[m] for m in names]
    )  # fmt: skip
    yes, no = np.arange(count), np.arange(count)
    for side, attribute in ((yes, "nodes_truenodeids"), (no, "nodes_falsenodeids")):
        given = n.need(attribute)
        for i in np.flatnonzero(inner):
            side[i] = place[int(trees[i]), int(given[i])]
    leaf = np.zeros((count, targets), np.float64)
    for tree, node, target, w in zip(
        n.need(f"{prefix}_treeids"), n.need(f"{prefix}_nodeids"), n.need(f"{prefix}_ids"),
        _either(n, f"{prefix}_weights"), strict=True,
    ):  # fmt: skip
        leaf[place[tree, node], target] += w
    roots = np.array([np.flatnonzero(trees == t)[0] for t in dict.fromkeys(trees.tolist())])
    missing = np.array(n.get("nodes_missing_value_tracks_true") or [0] * count) != 0
    split = np.array(_either(n, "nodes_values"), np.float64)
    feature = np.array(n.need("nodes_featureids"))
    depth = _depth(roots, yes, no)
    return Forest(roots, mode, feature, split, yes, no, missing, {}, leaf, depth)


def _either(n: NodeCall, name: str) -> Any:
    """An attribute in f32, or in f64 as version 3 may give it."""
    wide = n.get(f"{name}_as_tensor")
    return n.need(name) if wide is None else wide.reshape(-1).tolist()


def _base(n: NodeCall) -> Any:
    wide = n.get("base_values_as_tensor")
    return n.get("base_values") if wide is None else wide.reshape(-1).tolist()


@rule("TreeEnsembleRegressor", domain=_ML)
def _regressor(n: NodeCall, x: Any) -> Any:
    forest = _forest_v3(n, "target", n.get("n_targets", 1))
    y = op.cast(scores(forest, x, n.get("aggregate_function", "SUM")), f32)
    if _base(n):
        y = op.add(y, np.array(_base(n), np.float32))
    return _post(y, n.get("post_transform", "NONE"))


@rule("TreeEnsembleClassifier", domain=_ML, fold=False)
def _classifier(n: NodeCall, x: Any) -> Any:
    labels = n.get("classlabels_strings") or n.get("classlabels_int64s") or []
    ids = set(n.need("class_ids"))
    binary = len(labels) == 2 and len(ids) == 1
    forest = _forest_v3(n, "class", max([*ids, len(labels) - 1]) + 1)
    y = op.cast(scores(forest, x, "SUM"), f32)
    base = _base(n)
    how = n.get("post_transform", "NONE")
    if not binary:
        y = op.add(y, np.array(base, np.float32)) if base else y
        return named(op.argmax(y, -1), labels), _post(y, how)
    column = op.index(y, (slice(None), slice(next(iter(ids)), next(iter(ids)) + 1)))
    if base:
        column = op.add(column, np.float32(base[-1]))
    made = _post(column, how) if how != "SOFTMAX" else column
    negative = all(w >= 0 for w in _either(n, "class_weights"))
    line = 0.5 if (negative and how == "NONE") or how == "LOGISTIC" else 0.0
    best = op.cast(op.gt(op.index(made, (slice(None), 0)), line), "i64")
    low = op.sub(1.0, made) if line == 0.5 else op.neg(made)
    both = op.concat([low, made], 1)
    return named(best, labels), op.softmax(both, -1) if how == "SOFTMAX" else both
