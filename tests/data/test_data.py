"""ts.data: batches are a function of their number, whoever loads them; augmentations are ops."""

import hashlib
import re
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import tessera as ts
from tessera import data, op
from tessera.core.errors import OperandError, ShapeError
from tessera.data import order as orders
from tessera.runtime.threads import thread_count

RUNS_ON = "numpy"


class Squares:
    """Samples by index, as a user writes them."""

    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        return {"x": np.float32(i), "y": (np.full(3, i * i),)}


def numbers(n: int = 20, **options):
    return data.Loader({"i": np.arange(n)}, 4, **({"key": ts.key(1)} | options))


def taken(batches) -> list[list[int]]:
    return [b["i"].numpy().tolist() for b in batches]


# The order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 1000, orders.SORTED + 5])
def test_an_order_is_a_permutation(count, monkeypatch):
    if count > orders.SORTED:  # the network, on few samples
        monkeypatch.setattr(orders, "SORTED", 0)
        count = 5000
    o = data.Order(count, ts.key(3))
    first, second = (o.at(e, np.arange(count)) for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(count))
    if count > 2:
        assert (first != second).any()
    np.testing.assert_array_equal(first[2:5], o.at(0, np.arange(count)[2:5]))


@pytest.mark.parametrize("limit", [orders.SORTED, 0], ids=["sorted", "network"])
def test_every_place_is_equally_likely(limit, monkeypatch):
    """Chi-square of which sample comes first, and of which follows it, over epochs."""
    monkeypatch.setattr(orders, "SORTED", limit)
    n, epochs = 16, 400
    o = data.Order(n, ts.key(9))
    found = np.array([o.at(e, [0, 5]) for e in range(epochs)])
    for column in (*found.T, (found[:, 0] - found[:, 1]) % n):
        counts = np.bincount(column, minlength=n)
        counts = counts[counts > 0] if len(set(column)) == n - 1 else counts
        expected = epochs / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 45, counts  # p = 1e-4 for 15 degrees


def test_a_large_order_takes_no_memory_and_no_time():
    o = data.Order(2**32 - 1, ts.key(0))
    start = time.process_time()
    found = o.at(10**6, np.arange(2**31, 2**31 + 256))
    assert time.process_time() - start < 1
    assert len(set(found)) == 256
    assert found.max() < 2**32 - 1


def test_the_order_of_a_key_stays():
    """A run that is resumed with a later version sees the same samples."""
    assert data.Order(10, ts.key(0)).at(0, np.arange(10)).tolist() == FIRST
    assert data.Order(10, ts.key(0)).at(1, np.arange(10)).tolist() == SECOND
    far = data.Order(2**22, ts.key(0)).at(3, np.arange(1000))
    assert hashlib.sha256(far.astype("<i8").tobytes()).hexdigest()[:16] == FAR


FIRST = [4, 6, 1, 2, 3, 8, 9, 0, 5, 7]
SECOND = [2, 5, 0, 7, 8, 9, 1, 3, 4, 6]
FAR = "5179f82ba54928ad"


# The loader -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"workers": 0}, {"workers": 1}, {"workers": 3, "prefetch": 5}, {"workers": 2, "kind": "processes"},
], ids=["none", "one", "threads", "processes"])  # fmt: skip
def test_workers_change_nothing(options):
    want = taken(numbers(workers=0).batch(s) for s in range(12))
    loader = numbers(**options)
    assert taken(loader.steps(0, 12)) == want
    assert taken(loader.steps(7, 12)) == want[7:], "a run goes on at any step"
    assert taken(loader.epoch(1)) == want[5:10]
    loader.close()


def test_an_epoch_holds_every_sample_once():
    loader = numbers()
    assert len(loader) == 5
    for e in range(3):
        assert sorted(i for b in taken(loader.epoch(e)) for i in b) == list(range(20))
    assert taken(numbers(key=None).epoch(0))[0] == [0, 1, 2, 3]
    ragged = numbers(22, drop_last=False, key=None)
    assert [len(b) for b in taken(ragged.epoch(0))] == [4, 4, 4, 4, 4, 2]
    assert len(numbers(22)) == 5


def test_ranks_share_the_batches_of_one():
    whole = taken(numbers().steps(0, 6))
    for ranks in (2, 4):
        parts = [taken(numbers(rank=r, ranks=ranks).steps(0, 6)) for r in range(ranks)]
        assert [[i for p in ps for i in p] for ps in zip(*parts, strict=True)] == whole


def test_samples_of_any_object_are_stacked():
    loader = data.Loader(Squares(8), 3, workers=2)
    b = loader.batch(1)
    assert b["x"].numpy().tolist() == [3, 4, 5]
    assert b["x"].dtype is ts.f32
    assert b["y"][0].shape == (3, 3)
    loader = data.Loader([(1, "a"), (2, "b")], 2, collate=lambda xs: np.array([x for x, _ in xs]))
    assert loader.batch(0).numpy().tolist() == [1, 2]


def test_a_loop_over_a_loader_is_the_next_epoch():
    loader = numbers()
    assert taken(loader) == taken(loader.epoch(0))
    assert taken(loader) == taken(loader.epoch(1)) != taken(loader.epoch(0))
    assert len(loader) == len(list(loader))


def test_iterating_goes_through_the_epochs():
    assert len(taken(numbers(epochs=2))) == 10
    endless = numbers().steps()
    assert len(taken(next(endless) for _ in range(13))) == 13


def test_keys_belong_to_samples_not_to_batches():
    def with_keys(batch, keys):
        return {"i": batch["i"], "k": keys}

    def by_sample(loader, steps):
        found = {}
        for b in loader.steps(0, steps):
            found |= dict(
                zip(b["i"].numpy().tolist(), map(tuple, b["k"].numpy().tolist()), strict=True)
            )
        return found

    of_one = by_sample(numbers(transform=with_keys, workers=2), 5)
    assert len(set(of_one.values())) == 20
    halves = [by_sample(numbers(transform=with_keys, rank=r, ranks=2), 5) for r in (0, 1)]
    assert halves[0] | halves[1] == of_one


def test_an_error_says_which_batch():
    class Broken(Squares):
        def __getitem__(self, i):
            if i == 5:
                raise ValueError("no such sample")
            return super().__getitem__(i)

    with pytest.raises(ValueError, match="no such sample") as e:
        list(data.Loader(Broken(8), 2, workers=2).steps(0, 4))
    assert e.value.__notes__ == ["while the loader made batch 2"]


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition; a minute is an error."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.001)


def test_batches_are_made_ahead():
    made = []

    def noted(batch, keys):
        made.append(len(made))
        return batch

    steps = numbers(transform=noted, prefetch=3).steps()
    for taken_ in range(1, 6):
        next(steps)
        until(lambda n=taken_: len(made) >= n + 3)
        assert len(made) == taken_ + 3, "those that were taken, and three ahead"
    steps.close()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_transform_runs_beside_a_step(kind):
    """On its worker's thread alone: the threads of a step are taken until the step is over."""
    found = []

    def transform(batch, keys):
        found.append((thread_count(), threading.current_thread().name[:12]))
        return batch

    loader = data.Loader(np.arange(12), 3, key=ts.key(0), transform=transform, kind=kind)
    with ts.threads(5):
        assert len(list(loader)) == 4
        assert thread_count() == 5
    loader.close()
    assert set(found) == {(1, "tessera-data")}


def test_keys_of_an_epoch_are_those_of_its_positions(monkeypatch):
    some = data.Loader(np.arange(50), 5, key=ts.key(3)).order
    at = np.array([0, 49, 7, 7])
    want = some.keys(2, at)
    monkeypatch.setattr(orders, "SORTED", 0)
    np.testing.assert_array_equal(some.keys(2, at), want)
    assert some.keys(2, np.array([], int)).shape == (0, 2)


def test_a_profile_shows_who_waits_for_data():
    reader, begun = threading.get_ident(), []

    def waits() -> bool:
        """Whether the reader waits for a batch."""
        frame = sys._current_frames()[reader]
        while frame is not None and frame.f_code.co_name != "_result":
            frame = frame.f_back
        inner = sys._current_frames()[reader].f_code.co_name
        return frame is not None and inner in ("wait", "result")

    def late(batch, keys):
        begun.append(len(begun))
        if len(begun) == 1:
            until(waits)
        return batch

    steps = numbers(transform=late, prefetch=3).steps()
    with ts.profile() as p:
        next(steps)
    assert [s.name for s in p.spans if s.kind == "data"] == ["batch 0"]
    assert p.totals["waiting for data"] > 0
    until(lambda: len(begun) >= 3)  # batch 1 is there when batch 2 begins
    with ts.profile() as ready:
        next(steps)
    assert not [s for s in ready.spans if s.kind == "data"]
    assert ready.totals["waiting for data"] == 0, "it was made while nobody asked"
    steps.close()


WRONG = {
    "Loader: kind is 'fibres', expected one of threads, processes": {"kind": "fibres"},
    "Loader: workers is -1, expected at least 0": {"workers": -1},
    "Loader: prefetch is 0, expected at least 1": {"prefetch": 0},
    "Loader: rank is 2 of 2 ranks, expected 0 to 1": {"rank": 2, "ranks": 2},
    "Loader: a batch of 4 samples cannot be shared by 3 ranks; choose a multiple": {"ranks": 3},
    "Loader: there are 3 samples, fewer than a batch of 4; choose a smaller one": {"n": 3},
    "Loader: drop_last=False leaves a batch that ranks cannot share; use drop_last=True": {"ranks": 2,
    "drop_last": False},
    "data: the key is int 3, expected u32[2]; make one with ts.key(seed)": {"key": 3},
    "Loader: collate acts on samples, and arrays have batches as they are": {"collate": list},
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_wrong_options(text):
    with pytest.raises(OperandError) as e:
        numbers(**WRONG[text])
    assert e.value.message == text


@pytest.mark.parametrize(
    ("given", "shapes"),
    [(np.float32(1), "()"), (np.array(2), "()"), ({"x": np.zeros(3), "y": np.array(1)}, "(3,), ()"),
     ((np.array(1), np.array(2)), "(), ()"), ((ts.tensor(1.0), ts.tensor([1.0])), "(), (1,)"), ((), "none"),
     ({}, "none"), ((np.zeros(0), np.zeros(1)), "(0,), (1,)")],
    ids=range(8),
)  # fmt: skip
def test_data_without_one_first_axis_is_refused(given, shapes):
    if isinstance(given, np.generic):
        given = {"x": given}
    text = f"Loader: the arrays have the shapes {shapes}, expected one size along the first axis"
    with pytest.raises(OperandError, match=re.escape(text)):
        data.Loader(given, 2)


def test_arrays_of_different_lengths():
    with pytest.raises(
        OperandError, match=r"the arrays have the shapes \(3,\), \(4, 2\), expected one size"
    ):
        data.Loader((np.zeros(3), np.zeros((4, 2))), 2)
    with pytest.raises(
        OperandError, match=r"have the shapes \(1,\) and \(2,\); pad them, or give collate="
    ):
        data.Loader([np.zeros(1), np.zeros(2)], 2).batch(0)


# Augmentations ----------------------------------------------------------------------------------

KEYS = ts.split(ts.key(5), 6)
IMAGES = op.random.uniform(ts.key(2), (6, 3, 8, 10))
AUGMENTATIONS = {
    "flip": lambda k, x: data.flip(k, x), "vertical": lambda k, x: data.flip(k, x, axis=-2),
    "crop": lambda k, x: data.crop(k, x, (5, 7)), "padded": lambda k, x: data.crop(k, x, 8, padding=2),
    "brightness": lambda k, x: data.brightness(k, x, 0.4), "contrast": lambda k, x: data.contrast(k, x, 0.4),
    "saturation": lambda k, x: data.saturation(k, x, 0.4), "cutout": lambda k, x: data.cutout(k, x, 3),
    "affine": lambda k, x: data.affine(k, x, rotate=20, scale=0.1, translate=0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_sample_is_changed_by_its_key_alone(name):
    f = AUGMENTATIONS[name]
    whole = f(KEYS, IMAGES).numpy()
    parts = np.concatenate([f(KEYS[i : i + 2], IMAGES[i : i + 2]).numpy() for i in (0, 2, 4)])
    np.testing.assert_array_equal(whole, parts)
    assert not np.array_equal(whole, f(KEYS[::-1], IMAGES).numpy())


def test_augmentations_compile_to_the_same_numbers(compiled):
    def augment(keys, x):
        return data.affine(
            keys, data.brightness(keys, data.crop(keys, data.flip(keys, x), 6), 0.2), rotate=9
        )

    want = augment(KEYS, IMAGES).numpy()
    np.testing.assert_array_equal(ts.jit(augment)(KEYS, IMAGES).numpy(), want)


def test_what_augmentations_do():
    x = IMAGES.numpy()
    flipped = data.flip(KEYS, IMAGES).numpy()
    which = [np.array_equal(a, b[..., ::-1]) for a, b in zip(flipped, x, strict=True)]
    assert all(w or np.array_equal(a, b) for w, a, b in zip(which, flipped, x, strict=True))
    assert 0 < sum(which) < 6
    for a, b in zip(data.crop(KEYS, IMAGES, (5, 7)).numpy(), x, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(b, (3, 5, 7)).reshape(-1, 3, 5, 7)
        assert any(np.array_equal(a, w) for w in windows)
    cut = data.cutout(KEYS, IMAGES, 3).numpy()
    assert all(1 <= (c == 0).all(0).sum() <= 9 for c in cut)
    np.testing.assert_allclose(data.affine(KEYS, IMAGES).numpy(), x, atol=1e-5)
    turned = data.normalize(IMAGES, (0.5, 0.4, 0.3), (2.0, 1.0, 0.5)).numpy()
    np.testing.assert_allclose(turned[:, 2], (x[:, 2] - 0.3) / 0.5, rtol=1e-5)


def test_wrong_images():
    with pytest.raises(
        ShapeError, match=r"flip: x is f32\[8,10\], expected \(batch, channels, height, width\)"
    ):
        data.flip(KEYS, IMAGES[0, 0])
    with pytest.raises(
        OperandError,
        match=r"crop: the keys are u32\[2\], expected u32\[6,2\], one key for each image",
    ):
        data.crop(KEYS[0], IMAGES, 2)
    with pytest.raises(
        ShapeError, match="crop: size is 9 by 9, more than images of 8 by 10; use padding="
    ):
        data.crop(KEYS, IMAGES, 9)
    with pytest.raises(
        OperandError, match="grid_sample: mode is 'area', expected 'linear', 'nearest', 'cubic'"
    ):
        op.grid_sample(IMAGES, op.zeros((6, 2, 2, 2)), mode="area")
    with pytest.raises(
        ShapeError, match=r"expected \(batch, channels, \.\.\.\) and \(batch, \.\.\., rank\)"
    ):
        op.grid_sample(IMAGES, op.zeros((6, 2, 2, 3)))


def test_positions_outside_of_an_epoch_are_refused_at_both_ends() -> None:
    for key in (None, ts.key(3)):
        order = orders.Order(7, key)
        assert sorted(order.at(0, np.arange(7)).tolist()) == list(range(7))
        for wrong in ([-1, 3], [0, 7], [-1], [7], [-2, 9]):
            with pytest.raises(OperandError, match="Order: positions reach"):
                order.at(0, wrong)
