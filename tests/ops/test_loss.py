"""Losses against naive references, their laws, reductions and errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import tessera as ts
from tessera import op
from tessera.core.errors import ShapeError
from tests.support.runners.tolerance import Tolerance, assert_close, assert_same_bits


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng([3, *shape]).normal(size=shape)


def distribution(*shape: int) -> np.ndarray:
    return np.asarray(sp.softmax(normal(*shape), axis=-1))


LOGITS = normal(4, 5)
LABELS = np.array([0, 4, 2, 2])


def naive_rows(logits: np.ndarray, labels: np.ndarray, smoothing: float) -> np.ndarray:
    rows = []
    for x, label in zip(logits, labels, strict=True):
        logs = [v - math.log(sum(math.exp(u) for u in x)) for v in x]
        hot = -logs[label]
        rows.append((1 - smoothing) * hot - smoothing * sum(logs) / len(logs))
    return np.array(rows)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_with_class_numbers(smoothing: float) -> None:
    want = naive_rows(LOGITS, LABELS, smoothing)
    for reduction, value in (("none", want), ("sum", want.sum()), ("mean", want.mean())):
        got = op.cross_entropy(LOGITS, LABELS, reduction=reduction, label_smoothing=smoothing)
        assert_close(got, value)


def test_class_numbers_are_distributions_with_one_class() -> None:
    hot = np.eye(5)[LABELS]
    for smoothing in (0.0, 0.2):
        a = op.cross_entropy(LOGITS, LABELS, label_smoothing=smoothing)
        b = op.cross_entropy(LOGITS, hot, label_smoothing=smoothing)
        assert_close(a, b)


def test_cross_entropy_of_a_distribution_with_itself_is_its_entropy() -> None:
    p = distribution(3, 6)
    got = op.cross_entropy(np.log(p), p, reduction="none")
    assert_close(got, -(p * np.log(p)).sum(-1))


def test_the_gradient_of_cross_entropy_is_softmax_less_the_labels() -> None:
    g = ts.grad(lambda x: op.cross_entropy(x, LABELS, reduction="sum"))(ts.asarray(LOGITS))
    assert_close(g, sp.softmax(LOGITS, axis=-1) - np.eye(5)[LABELS])


def test_ignored_labels_count_nowhere() -> None:
    labels = np.array([0, -100, 2, -100])
    got = op.cross_entropy(LOGITS, labels, ignore_index=-100)
    assert_close(got, naive_rows(LOGITS[::2], labels[::2], 0.0).mean())
    rows = np.asarray(op.cross_entropy(LOGITS, labels, ignore_index=-100, reduction="none"))
    assert rows[1] == rows[3] == 0
    g = ts.grad(lambda x: op.cross_entropy(x, labels, ignore_index=-100))(ts.asarray(LOGITS))
    assert not np.asarray(g)[1::2].any()
    assert np.asarray(g)[::2].all()
    picked = op.nll_loss(op.log_softmax(LOGITS), labels, ignore_index=-100)
    assert_close(picked, got)


def test_cross_entropy_along_another_axis() -> None:
    x, labels = normal(2, 5, 3), np.array([[0, 4, 2], [1, 1, 3]])
    moved = op.cross_entropy(np.moveaxis(x, 1, -1), labels, reduction="none")
    assert_close(op.cross_entropy(x, labels, axis=1, reduction="none"), moved)


def test_cross_entropy_of_large_logits_is_finite() -> None:
    x = np.array([[1e4, -1e4, 0.0]], np.float32)
    assert_close(op.cross_entropy(x, np.array([1])), np.float32(2e4))
    masked = np.array([[0.0, -np.inf, 0.0]])
    assert_close(op.cross_entropy(masked, np.array([0])), np.array(math.log(2)))
    g = ts.grad(lambda x: op.cross_entropy(x, np.array([0])))(ts.asarray(masked))
    assert_close(g, np.array([[-0.5, 0.0, 0.5]]))


def test_cross_entropy_of_half_precision() -> None:
    x = ts.tensor(LOGITS, dtype=ts.bf16)
    got = op.cross_entropy(x, LABELS, reduction="none")
    assert got.dtype is ts.bf16
    assert_close(
        np.asarray(got, float), naive_rows(np.asarray(x, float), LABELS, 0.0), Tolerance(4e-3, 0.0)
    )


def test_cross_entropy_traced_is_cross_entropy() -> None:
    f = ts.jit(lambda x, y: op.cross_entropy(x, y, label_smoothing=0.1))
    assert_same_bits(f(LOGITS, LABELS), op.cross_entropy(LOGITS, LABELS, label_smoothing=0.1))
    assert "cross_entropy" in [n.op.name for n in f.lower(LOGITS, LABELS).traced.nodes]


def test_binary_cross_entropy_with_logits_and_probabilities() -> None:
    x, y = normal(3, 4), np.random.default_rng(0).uniform(size=(3, 4))
    p = sp.expit(x)
    want = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    assert_close(op.binary_cross_entropy(x, y, reduction="none"), want)
    assert_close(op.binary_cross_entropy(p, y, logits=False, reduction="none"), want)
    assert_close(op.binary_cross_entropy(x, y), want.mean())
    sure = op.binary_cross_entropy(np.array([1e4, -1e4]), np.array([1.0, 0.0]))
    assert np.asarray(sure) == 0
    ends = op.binary_cross_entropy(np.array([1.0, 0.0]), np.array([1.0, 0.0]), logits=False)
    assert np.asarray(ends) == 0


PAIRS: dict[str, tuple[Any, Any]] = {
    "mse": (lambda d: d * d, op.mse),
    "mae": (abs, op.mae),
    "l1_loss": (abs, op.l1_loss),
    "huber": (lambda d: d * d / 2 if abs(d) <= 0.7 else 0.7 * (abs(d) - 0.35), lambda x, y,
    **k: op.huber(x, y, 0.7, **k)),
    "smooth_l1": (lambda d: d * d / 1.4 if abs(d) < 0.7 else abs(d) - 0.35, lambda x, y,
    **k: op.smooth_l1(x, y, 0.7, **k)),
    "smooth_l1_0": (abs, lambda x, y, **k: op.smooth_l1(x, y, 0.0, **k)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_distances(name: str) -> None:
    naive, f = PAIRS[name]
    x, y = normal(3, 4), normal(4)
    want = np.array([[naive(float(a - b)) for a, b in zip(row, y, strict=True)] for row in x])
    assert_close(f(x, y, reduction="none"), want)
    assert_close(f(x, y, reduction="sum"), want.sum(), times=10)
    assert_close(f(x, y), want.mean(), times=10)
    assert np.asarray(f(x, x)) == 0


def test_hinge_pushes_scores_past_the_margin() -> None:
    s, y = np.array([2.0, 0.3, -0.5, -3.0]), np.array([1.0, 1.0, 1.0, -1.0])
    assert_close(op.hinge(s, y, reduction="none"), np.array([0.0, 0.7, 1.5, 0.0]))


def test_kl_div_is_that_of_scipy() -> None:
    p, q = distribution(3, 5), distribution(5)
    p[0, 0] = 0.0
    want = sp.rel_entr(p, np.broadcast_to(q, p.shape))
    assert_close(op.kl_div(np.log(q), p, reduction="none"), want)
    logs = np.log(distribution(3, 5))
    assert_close(
        op.kl_div(np.log(q), logs, log_target=True, reduction="none"), sp.rel_entr(np.exp(logs), q)
    )
    assert_close(op.kl_div(np.log(q), q, reduction="sum"), np.array(0.0))
    g = ts.grad(lambda p: op.kl_div(np.log(q), p, reduction="sum"))(ts.asarray(distribution(3, 5)))
    assert np.isfinite(np.asarray(g)).all()


def test_cosine_similarity_of_parallel_opposite_and_empty_vectors() -> None:
    x = normal(4, 3)
    assert_close(op.cosine_similarity(x, 2.5 * x), np.ones(4))
    assert_close(op.cosine_similarity(x, -x), -np.ones(4))
    y = normal(4, 3)[::-1]
    want = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(x, y, strict=True)]
    assert_close(op.cosine_similarity(x, y), np.array(want))
    zero = np.zeros((1, 3))
    assert np.asarray(op.cosine_similarity(zero, x[:1])) == 0
    g = ts.grad(lambda z: op.sum(op.cosine_similarity(z, x[:1])))(ts.asarray(zero))
    assert np.isfinite(np.asarray(g)).all()


WRONG = [
    (lambda: op.mse(1.0, 2.0, reduction="avg"), "mse: reduction is 'avg', expected 'mean', 'sum' or 'none'"),
    (lambda: op.cross_entropy(LOGITS, LABELS[:3]),
     "cross_entropy: axis 0 of the labels i64[3] is 3, expected 4 as in logits f64[4,5]"),
    (lambda: op.cross_entropy(LOGITS, LABELS[:, None]),
     "cross_entropy: labels i64[4,1] of rank 2 do not fit logits f64[4,5] with classes on axis 1; "
     "expected ids of shape [4] or probabilities"),
    (lambda: op.cross_entropy(LOGITS, normal(4)),
     "cross_entropy: probabilities f64[4] do not fit logits f64[4,5]; expected one shape"),
    (lambda: op.cross_entropy(LOGITS, LABELS, label_smoothing=1.5),
     "cross_entropy: label_smoothing is 1.5, expected 0 to 1"),
    (lambda: op.cross_entropy(LOGITS, np.ones((4, 5), bool)),
     "cross_entropy: labels are bool[4,5], expected class numbers or probabilities"),
    (lambda: op.nll_loss(LOGITS, LOGITS), "nll_loss: labels are f64[4,5], expected class numbers"),
    (lambda: op.huber(LOGITS, LOGITS, delta=0.0), "huber: delta is 0.0, expected a positive number"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_errors_say_what_was_wanted(wrong: Any, message: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        wrong()
    assert e.value.message == message


def alignments(logs: np.ndarray, labels: tuple[int, ...], blank: int) -> float:
    """-log of the sum over all paths of classes that are the labels without repeats and blanks."""
    total = -math.inf
    for path in itertools.product(range(logs.shape[1]), repeat=len(logs)):
        if tuple(c for c, _ in itertools.groupby(path) if c != blank) == labels:
            total = np.logaddexp(total, sum(row[c] for row, c in zip(logs, path, strict=True)))
    return -total


@pytest.mark.parametrize("blank", [0, 1, 2])
def test_ctc_is_the_sum_over_all_alignments(blank: int) -> None:
    """All words of up to 2 labels of 2 classes, with repeats and without, in 1 to 3 frames."""
    letters = [c for c in range(3) if c != blank]
    words = [w for n in range(3) for w in itertools.product(letters, repeat=n)]
    cases = [(w, times) for w in words for times in (1, 2, 3)]
    logs = np.asarray(sp.log_softmax(normal(len(cases), 3, 3), axis=-1))
    want = np.array(
        [alignments(x[:times], w, blank) for x, (w, times) in zip(logs, cases, strict=True)]
    )
    labels = np.array([[*w, *[letters[0]] * (2 - len(w))] for w, _ in cases])
    lengths, counts = np.array([t for _, t in cases]), np.array([len(w) for w, _ in cases])
    got = op.ctc_loss(logs, labels, lengths, counts, blank=blank, reduction="none")
    assert np.isinf(want).any()
    assert_close(got, want, times=10)
    fit = np.isfinite(want)
    some = [v[fit] for v in (logs, labels, lengths, counts)]
    assert_close(op.ctc_loss(*some, blank=blank, reduction="sum"), want[fit].sum(), times=50)
    mean = (want[fit] / np.maximum(counts[fit], 1)).mean()
    assert_close(op.ctc_loss(*some, blank=blank), mean, times=50)


@pytest.mark.parametrize(
    ("x", "labels", "lengths", "text"),
    [
        ((10, 3, 7), (3, 2), None, r"labels is i64\[3,2\], expected one row for each of 10 in f32\[10,3,7\]"),
        ((3, 10, 7), (3, 2), (2,), r"lengths is i64\[2\], expected one row for each of 3"),
        ((3, 10, 7), (3, 2), (3, 1), r"lengths is i64\[3,1\]"),
    ],
)  # fmt: skip
def test_ctc_of_another_layout_says_what_to_swap(x, labels, lengths, text) -> None:
    given = [ts.zeros(x), ts.ones(labels, "i64")]
    if lengths is not None:
        given.append(ts.ones(lengths, "i64"))
    with pytest.raises(ShapeError, match=f"ctc_loss: {text}.*as in PyTorch, swap the first two"):
        op.ctc_loss(*given)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_margins_of_three_are_by_norms_along_the_last_axis(shape, p):
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=shape) for _ in range(3))

    def far(u, v):
        return (np.abs(u - v + 1e-6) ** p).sum(-1) ** (1 / p)

    want = np.maximum(far(a, b) - far(a, c) + 0.75, 0)
    np.testing.assert_allclose(
        op.triplet_margin(a, b, c, 0.75, p, reduction="none"), want, rtol=1e-12
    )
    np.testing.assert_allclose(op.triplet_margin(a, b, c, 0.75, p), want.mean(), rtol=1e-12)
