"""Orders and augmentations with every setting: the numbers of a key, and what wrong settings are answered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import data, op
from tessera.core.errors import TesseraError
from tessera.data import order as orders
from tessera.data.order import Order
from tests.support.pinned import pinned, short

RUNS_ON = "numpy"
KEYS = op.random.split(op.random.key(5), 3)
COLOUR = ts.tensor(np.sin(np.arange(3 * 3 * 6 * 5) * 0.7).reshape(3, 3, 6, 5).astype(np.float32))
GREY, FOUR = COLOUR[:, :1], ts.tensor(np.ones((3, 4, 6, 5), np.float32))
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "flip": [{}, {"p": 1.0}, {"p": 0.0}, {"axis": -2}, {"p": 1.0, "axis": -2}],
    "crop": [{"size": 4}, {"size": (3, 5)}, {"size": 6, "padding": 2}, {"size": (6, 5)}, {"size": 7},
    {"size": (3, 6)}],
    "brightness": [{"amount": 0.5}, {"amount": 2.0}, {"amount": 0.0}],
    "contrast": [{"amount": 0.0}, {"amount": 0.5},
    {"amount": 2.0}],
    "saturation": [{"amount": 0.5}, {"amount": 2.0}], "cutout": [{"size": 2}, {"size": 3}, {"size": 9}],
    "affine": [{}, {"rotate": 30.0}, {"scale": 0.5}, {"translate": 0.25}, {"rotate": 90.0, "scale": 0.1,
    "translate": 0.1, "padding": "border"}],
}  # fmt: skip


def numbers(x: Any) -> str:
    a = np.asarray(x).astype(np.float64).ravel()
    return " ".join(
        f"{v:.6e}" for v in (*a[:3], a.sum(), a @ np.cos(np.arange(a.size)), np.abs(a).sum())
    )


def said(f: Any) -> str:
    try:
        x = f()
        return f"{x.type} {numbers(x)}"
    except TesseraError as e:
        return str(e).splitlines()[0]


def augmented() -> Iterator[str]:
    for name, options in OPTIONS.items():
        f = getattr(data, name)
        for more in options:
            for what, x in (("colour", COLOUR), ("grey", GREY), ("four", FOUR)):
                yield f"{name} {more} {what}: {said(lambda f=f, x=x, m=more: f(KEYS, x, **m))}"
        for keys, x in (
            (KEYS[0], COLOUR),
            (KEYS, COLOUR[0]),
            (ts.tensor(np.zeros((3, 2))), COLOUR),
        ):
            yield f"{name} wrong: {said(lambda f=f, k=keys, x=x, m=options[0]: f(k, x, **m))}"
    for mean, deviation in (
        (0.5, 2.0),
        ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)),
        ((0.1, 0.2), (1.0,) * 3),
        ((0.1, 0.2, 0.3), 1.0),
    ):
        how = said(lambda m=mean, d=deviation: data.normalize(COLOUR, m, d))
        yield f"normalize {mean} {deviation}: {how}"


def test_augmentations() -> None:
    pinned("data_augment", augmented(), near=2e-4)


def ordered() -> Iterator[str]:
    for count in (1, 2, 5, 64, 1000):
        for key in (None, ts.key(0), ts.key(9)):
            o = Order(count, key)
            for epoch in (0, 1, 7):
                at, keys = o.at(epoch, range(count)), o.keys(epoch, range(count))
                assert sorted(at.tolist()) == list(range(count))
                digest = hashlib.sha256(at.astype(np.int64).tobytes() + keys.tobytes()).hexdigest()[
                    :16
                ]
                yield f"{count} {epoch}: {at[:8].tolist()} {keys[:1].tolist()} {digest}"


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_orders(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "SORTED", limit)
    pinned(f"data_orders_{'walked' if limit == 0 else 'sorted'}", ordered())


def test_wrong_orders() -> None:
    made = [said(lambda c=c: Order(c)) for c in (0, -1, 2**32)]
    for at in ([5], [-1], [0, 5]):
        made.append(said(lambda at=at: Order(5, ts.key(0)).at(0, at)))
    made.append(said(lambda: Order(5, 3)))
    made.append(short(Order(5).at(0, [])))
    pinned("data_order_errors", made)
