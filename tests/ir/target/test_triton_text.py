"""What the printer avoids since Triton makes slow code of it, or none: seen in the printed source."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tessera as ts
from tessera import op
from tests.support.fakes.gpu_fake import BUILT, fake_gpu


def ones(*shape: int) -> Any:
    return op.ones(shape, "f32")


def printed(f: Any, *arrays: Any) -> str:
    """The source of all kernels of a call."""
    with fake_gpu():
        BUILT.clear()
        ts.jit(f)(*(a.to("cuda") for a in arrays))
        return "\n".join(s.text for s in BUILT)


@pytest.mark.parametrize(("dtype", "hidden"), [("bf16", 2), ("i8", 2), ("f32", 0), ("f64", 0)])
def test_f64_products_hide_the_width_of_narrow_factors(dtype: str, hidden: int) -> None:
    """Triton 3.6 lays a factor out by the narrowest tile behind it, and refuses its own layout in f64."""

    def f(x: Any) -> Any:
        return (x.astype("f64") * 2) @ (x.astype("f64").T + 1)

    (dot,) = re.findall(r"tl\.dot\(.*", printed(f, ones(40, 32).astype(dtype)))
    assert dot.count("tl.sum(") == hidden


def test_a_fold_of_one_row_is_a_number() -> None:
    """As a tile it would bring its layout, which holds each element in each thread, to all that it meets."""
    text = printed(lambda x: x - op.sum(x, 1, keepdims=True), ones(3, 5000))
    kept = re.findall(r"= (.*tl\.reduce\(\w+, 2, fold_add_f32.*)", text)
    assert kept[-1].startswith("tl.full((1, 1, 1), tl.reduce(tl.reshape(tl.reduce(")
    assert all("keep_dims=True" in line for line in kept[:-1])


def test_folds_of_many_rows_stay_tiles() -> None:
    text = printed(lambda x: op.sum(x, 1), ones(4096, 8))
    assert "tl.full((1, 1" not in text


@pytest.mark.parametrize("f", [op.sin, op.lgamma])
@pytest.mark.parametrize(("shape", "bodies"), [((4, 512), 1), ((3, 700), 2)])
def test_what_is_rare_is_behind_a_branch(f: Any, shape: tuple[int, int], bodies: int) -> None:
    """One in the whole blocks, and one in what is left of them."""
    text = printed(f, ones(*shape))
    kernel = text[text.rindex("@triton.jit") :]
    assert kernel.count("    if holds_anywhere(") == bodies
    inside = kernel.split("if holds_anywhere(")[1].split("\n    v")[0]
    assert (
        inside.count("\n        v") > 10
    )  # the reduction of huge angles, or the reflection, is in it
