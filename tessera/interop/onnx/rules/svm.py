"""ai.onnx.ml: support vector machines."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import f32
from tessera.interop.onnx.model import Array, OnnxError
from tessera.interop.onnx.rule import NodeCall, rule
from tessera.interop.onnx.rules.ml import _post, named
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.control import while_loop
from tessera.ops.define import as_value

_ML = "ai.onnx.ml"
_TINY = 1e-7  # what probabilities of pairs keep from 0 and 1


def _numbers(n: NodeCall, name: str) -> Array:
    return np.array(n.get(name) or [], np.float32)


def _kernels(n: NodeCall, x: Value, vectors: Array, kind: str) -> Value:
    """How near each row is to each vector."""
    gamma, coef0, degree = [*map(float, n.get("kernel_params") or ()), 0.0, 0.0, 0.0][:3]
    if kind == "RBF":
        apart = op.sub(op.expand_dims(x, 1), vectors[None])
        return op.exp(op.mul(op.sum(op.square(apart), -1), -gamma))
    y = op.matmul(x, np.ascontiguousarray(vectors.T))
    if kind == "LINEAR":
        return y
    y = op.add(op.mul(y, gamma), coef0)
    if kind == "POLY":
        return op.pow(y, degree)
    if kind == "SIGMOID":
        return op.tanh(y)
    raise OnnxError(f"kernel_type is '{kind}', expected LINEAR, POLY, RBF or SIGMOID")


def _table(x: Any) -> Value:
    """The input as rows; one axis is one row."""
    x = op.cast(as_value(x), f32)
    return op.reshape(x, (1, -1)) if x.ndim == 1 else x


def _rows(data: Array, count: int, what: str) -> Array:
    if count < 1 or data.size == 0 or data.size % count:
        raise OnnxError(f"{data.size} {what} are no {count} rows")
    return data.reshape(count, -1)


@rule("SVMRegressor", domain=_ML)
def _regressor(n: NodeCall, x: Any) -> Any:
    x, coefficients, rho = _table(x), _numbers(n, "coefficients"), _numbers(n, "rho")
    count = int(n.get("n_supports", 0))
    if count:
        vectors = _rows(_numbers(n, "support_vectors"), count, "numbers of support vectors")
        y = op.matmul(
            _kernels(n, x, vectors, n.get("kernel_type", "LINEAR")), coefficients.reshape(count, 1)
        )
    else:
        y = op.matmul(x, coefficients.reshape(-1, 1))
    y = op.add(y, rho[:1])
    if n.get("one_class", 0):
        return op.where(op.gt(y, 0), 1.0, -1.0)
    return _post(y, n.get("post_transform", "NONE"))


@rule("SVMClassifier", domain=_ML, fold=False)
def _classifier(n: NodeCall, x: Any) -> Any:
    labels = n.get("classlabels_strings") or n.get("classlabels_ints") or []
    x, how = _table(x), n.get("post_transform", "NONE")
    coefficients, rho = _numbers(n, "coefficients"), _numbers(n, "rho")
    sizes = [int(k) for k in n.get("vectors_per_class") or ()]
    classes = max(len(labels), 1)
    if not sum(sizes):  # one line for each class
        scores = op.add(op.matmul(x, _rows(coefficients, classes, "coefficients").T), rho[:1])
        return _answer(n, labels, scores, op.argmax(scores, -1), how, rho.size)
    if len(sizes) != classes or min(sizes) < 0:
        raise OnnxError(f"vectors_per_class is {sizes} for {classes} classes")
    vectors = _rows(_numbers(n, "support_vectors"), sum(sizes), "numbers of support vectors")
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    if rho.size != len(pairs) or coefficients.size != (classes - 1) * len(vectors):
        raise OnnxError(
            f"{rho.size} offsets and {coefficients.size} coefficients for {classes} classes and "
            f"{len(vectors)} vectors"
        )
    near = _kernels(n, x, vectors, n.get("kernel_type", "LINEAR"))
    weights = _pair_weights(coefficients.reshape(classes - 1, -1), sizes, pairs)
    scores = op.add(op.matmul(near, weights), rho)
    first, second = (np.eye(classes, dtype=np.float32)[[p[k] for p in pairs]] for k in (0, 1))
    won = op.cast(op.gt(scores, 0), f32)
    votes = op.add(op.matmul(won, first), op.matmul(op.sub(1.0, won), second))
    a, b = _numbers(n, "prob_a"), _numbers(n, "prob_b")
    if a.size:
        coupled = _post(_coupled(scores, a, b, pairs, classes), how)
        return named(op.argmax(votes, -1), labels), coupled
    return _answer(n, labels, scores, op.argmax(votes, -1), how, rho.size)


def _pair_weights(coefficients: Array, sizes: list[int], pairs: list[tuple[int, int]]) -> Array:
    """What each vector says to the decision between two classes; a vector speaks for its own class."""
    ends = np.cumsum([0, *sizes])
    out = np.zeros((int(ends[-1]), len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        out[ends[i] : ends[i + 1], k] = coefficients[j - 1, ends[i] : ends[i + 1]]
        out[ends[j] : ends[j + 1], k] = coefficients[i, ends[j] : ends[j + 1]]
    return out


def _answer(n: NodeCall, labels: Any, scores: Value, best: Value, how: str, offsets: int) -> Any:
    """Labels and scores; one score stands for two classes."""
    if int(scores.shape[1]) == 1 and offsets == 1 and len(labels) == 2:
        both = op.concat([op.neg(scores), scores], 1)
        return named(best, labels), _post(both, how)
    return named(best, labels), _post(scores, how)


def _coupled(
    scores: Value, a: Array, b: Array, pairs: list[tuple[int, int]], classes: int
) -> Value:
    """Probabilities of classes from those of pairs.

    Wu, Lin, Weng, "Probability estimates for multi-class classification by pairwise coupling" (2004), its
    second method, with the stopping rule of libsvm.
    """
    won = op.clip(op.sigmoid(op.neg(op.add(op.mul(scores, a), b))), _TINY, 1 - _TINY)
    rows = int(scores.shape[0])
    lost = op.sub(1.0, won)
    columns = {p: op.index(won, (slice(None), k)) for k, p in enumerate(pairs)}
    columns |= {(j, i): op.index(lost, (slice(None), k)) for k, (i, j) in enumerate(pairs)}
    zero = op.zeros((rows,), f32)
    r: list[list[Value]] = [
        [columns.get((i, j), zero) for j in range(classes)] for i in range(classes)
    ]
    q = op.stack(
        [op.stack([_entry(r, s, t, zero) for t in range(classes)], -1) for s in range(classes)],
        -2,
    )
    start = op.full((rows, classes), 1.0 / classes, f32)
    last = max(100, classes)

    def gaps(p: Value) -> tuple[Value, Value]:
        qp = op.sum(op.mul(q, op.expand_dims(p, -2)), -1)
        return qp, op.sum(op.mul(p, qp), -1, True)

    def goes_on(p: Value) -> Value:
        qp, pqp = gaps(p)
        return op.ge(op.max(op.abs(op.sub(qp, pqp)), -1, True), 0.005 / classes)

    def step(state: Any) -> Any:
        k, p = state
        (qp, pqp), active = gaps(p), goes_on(p)
        new = p
        for t in range(classes):
            own = op.index(q, (slice(None), slice(t, t + 1), t))
            at = op.index(qp, (slice(None), slice(t, t + 1)))
            diff = op.div(op.sub(pqp, at), own)
            new = op.add(new, op.mul(diff, np.eye(classes, dtype=np.float32)[t]))
            grown = op.add(diff, 1.0)
            pqp = op.div(
                op.add(pqp, op.mul(diff, op.add(op.mul(diff, own), op.mul(at, 2.0)))),
                op.square(grown),
            )
            new = op.div(new, grown)
            qp = op.div(op.add(qp, op.mul(diff, op.index(q, (slice(None), t)))), grown)
        return op.add(k, 1), op.where(active, new, p)

    def more(state: Any) -> Value:
        k, p = state
        return op.logical_and(op.lt(k, last), op.any(goes_on(p)))

    _, found = while_loop(more, step, (as_value(np.int32(0)), start))
    return found  # type: ignore[no-any-return]


def _entry(r: list[list[Value]], s: int, t: int, zero: Value) -> Value:
    """One number of the matrix whose quadratic form is least at the probabilities."""
    if s != t:
        return op.neg(op.mul(r[t][s], r[s][t]))
    total = zero
    for j in range(len(r)):
        total = total if j == t else op.add(total, op.square(r[j][t]))
    return total
