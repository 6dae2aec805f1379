"""Attention on a GPU for any size of heads and any lengths, with masks, and of few queries: no case
misses its kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import bf16, f16, f32
from tessera.core.types import TensorType
from tessera.ir.schedule.device_steps import Columns
from tessera.ir.schedule.gpu_blocks import pieces, width
from tessera.ir.tile.gpu.attention import AttentionForward, AttentionProblem
from tessera.ir.tile.gpu.attention_decode import Join, KeysPart, is_few, part_types
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tests.support.fakes.gpu_fake import BUILT, at, set_roles
from tests.support.runners.tolerance import TOLERANCE, assert_close

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def in_f64(q: Any, k: Any, v: Any, causal: bool, mask: Any = None, scale: float = 0.0) -> Any:
    """softmax(q k^T scale) v; a query that sees no key gives zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    share = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, share, -3) for x in (k, v))
    s = q @ np.swapaxes(k, -1, -2) * (scale or q.shape[-1] ** -0.5)
    if causal:
        m, n = s.shape[-2:]
        s = np.where(np.tri(m, n, n - m, dtype=bool), s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask.astype(np.float64)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ v


# Sizes of heads


def test_pieces_hold_a_head_and_waste_little() -> None:
    for size in range(1, 513):
        found = pieces(size)
        assert [a for a, _ in found] == [sum(n for _, n in found[:i]) for i in range(len(found))]
        assert all(n >= 16 and n & (n - 1) == 0 for _, n in found)
        assert size <= width(size) <= max(32, 1.5 * size)


def test_widths_of_the_usual_heads_are_their_sizes() -> None:
    assert [width(n) for n in (80, 96, 160, 192, 256)] == [80, 96, 160, 192, 256]
    assert [width(n) for n in (40, 112, 1, 33)] == [48, 128, 16, 48]


def outputs(kernel: Any, *arrays: Any) -> None:
    made = kernel.kernel()
    verify(made)
    shapes = [tuple(int(n) for n in m.type.shape) for m in made.parameters]
    interpret(made, [x.reshape(s) for x, s in zip(arrays, shapes, strict=True)])


@pytest.mark.parametrize(
    ("size", "causal"),
    [
        (1, False),
        (40, True),
        *(pytest.param(n, True, marks=pytest.mark.deep) for n in (20, 80, 200)),
    ],
)
def test_kernels_of_any_size_are_right_and_have_the_bits_of_one_wide_tile(
    size: int, causal: bool
) -> None:
    p = AttentionProblem(1, 2, 1, 17, 150, size, size, f32, causal, size**-0.5)
    q, k, v = normal(1, 2, 17, size), normal(1, 1, 150, size), normal(1, 1, 150, size)
    seen = set()
    for rows, whole in ((16, 0), (32, 0), (32, 256)):
        o, logs = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
        outputs(AttentionForward(p, rows, whole=whole), q, k, v, o, logs)
        seen.add((o.tobytes(), logs.tobytes()))
    assert len(seen) == 1
    assert_close(o, in_f64(q, k, v, causal).astype(np.float32), times=4)


# Few queries


def in_parts(p: AttentionProblem, given: list[Any], rows: int) -> tuple[Any, Any]:
    o = np.full((p.batch, p.heads, p.queries, p.values), np.nan, np.float32)
    logs = np.full(o.shape[:3], np.nan, np.float32)
    between = [
        np.full(tuple(map(int, t.shape)), np.nan, np.float32) for t in part_types(p).values()
    ]
    outputs(KeysPart(p, rows), *given, *between)
    outputs(Join(p), *between, o, logs)
    return o, logs


@pytest.mark.parametrize(
    ("kind", "queries", "keys"),
    [
        ("plain", 1, 129), ("causal", 3, 140), ("mask", 1, 260), ("bias", 2, 140), ("mask of heads", 1, 140),
        *(
            pytest.param(kind, *sizes, marks=pytest.mark.deep)
            for kind in ("plain", "causal", "mask", "bias", "mask of heads")
            for sizes in ((1, 300), (3, 257), (5, 1100))
        ),
    ],
)  # fmt: skip
def test_parts_are_joined_in_the_order_of_an_attention_with_a_mask(
    kind: str, queries: int, keys: int
) -> None:
    p = AttentionProblem(1, 4, 2, queries, keys, 10, 20, f32, kind == "causal", 0.25)
    q, k, v = normal(1, 4, queries, 10), normal(1, 2, keys, 10), normal(1, 2, keys, 20)
    heads = 4 if kind == "mask of heads" else 1
    mask = RNG.random((1, heads, queries, keys)) < 0.3
    mask[0, 0, 0] = False  # nothing is seen
    if kind == "bias":
        mask = np.where(mask, normal(*mask.shape), -np.inf).astype(np.float32)
    given = [q, k, v]
    if kind not in ("plain", "causal"):
        given.append(mask)
        p = replace(p, mask=TensorType(f32 if kind == "bias" else ts.bool_, mask.shape))
    else:
        mask = None
    assert is_few(p)
    found = [in_parts(p, given, rows) for rows in (16, 32)]
    assert found[0][0].tobytes() == found[1][0].tobytes()
    want = in_f64(q, k, v, p.causal, mask, 0.25)
    assert_close(found[0][0], want.astype(np.float32), times=4)
    # A mask that shows all takes the same parts within a block, however many queries are in it.
    if kind in ("plain", "causal"):
        p = replace(p, mask=TensorType(ts.bool_, (1, 1, 1, keys)))
        given.append(np.ones((1, 1, 1, keys), bool))
    o, logs = np.full_like(want, np.nan, np.float32), np.full_like(found[0][1], np.nan)
    outputs(AttentionForward(p, 16), *given, o, logs)
    assert o.tobytes() == found[0][0].tobytes()
    assert logs.tobytes() == found[0][1].tobytes()


def test_what_is_seen_of_a_sequence_does_not_depend_on_its_neighbours_or_on_the_rest() -> None:
    p = AttentionProblem(
        3, 2, 1, 1, 270, 16, 16, f32, False, 0.25, mask=TensorType(ts.bool_, (3, 1, 1, 270))
    )
    q, k, v = normal(3, 2, 1, 16), normal(3, 1, 270, 16), normal(3, 1, 270, 16)
    mask = np.arange(270) < np.array([5, 200, 260])[:, None, None, None]
    whole, _ = in_parts(p, [q, k, v, mask], 16)
    for i in range(3):
        own = [x[i : i + 1].copy() for x in (q, k, v, mask)]
        hidden = ~mask[i, 0, 0]
        own[1][:, :, hidden] = 7.0
        alone = replace(p, batch=1, mask=TensorType(ts.bool_, (1, 1, 1, 270)))
        assert in_parts(alone, own, 16)[0].tobytes() == whole[i : i + 1].tobytes()


# Every case that op.attention offers has kernels for Hopper, and none has a step of the host

KERNELS = ["attention"]
FEW = ["attention_part", "attention_join"]
BACK = [*KERNELS, "attention_delta", "attention_keys", "attention_queries"]
ROLES = {"with roles"}
SM_90: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], list[str], set[str]]] = {
    "head of 64": ((2, 4, 256, 64), (2, 4, 256, 64), {}, KERNELS, ROLES),
    "head of 80": ((2, 4, 256, 80), (2, 4, 256, 80), {"causal": True}, KERNELS, ROLES),
    "head of 96, few heads of keys": ((2, 4, 256, 96), (2, 1, 384, 96), {"causal": True}, KERNELS, ROLES),
    "head of 112": ((2, 4, 256, 112), (2, 4, 256, 112), {}, KERNELS, ROLES),
    "head of 40": ((2, 4, 256, 40), (2, 4, 256, 40), {}, KERNELS, ROLES),
    "head of 36": ((2, 4, 256, 36), (2, 4, 256, 36), {}, KERNELS, set()),  # rows of 72 bytes
    "head of 1": ((2, 4, 256, 1), (2, 4, 256, 1), {}, KERNELS, set()),
    "head of 160": ((2, 4, 256, 160), (2, 4, 256, 160), {}, KERNELS, set()),
    "head of 256": ((2, 4, 256, 256), (2, 4, 256, 256), {"causal": True}, KERNELS, set()),
    "head of 512": ((2, 4, 256, 512), (2, 4, 256, 512), {}, KERNELS, set()),
    "odd lengths": ((2, 4, 1000, 128), (2, 4, 4097, 128), {}, KERNELS, set()),
    "odd lengths, causal": ((2, 4, 1000, 80), (2, 4, 4097, 80), {"causal": True}, KERNELS, set()),
    "mask": ((2, 4, 100, 80), (2, 4, 300, 80), {"mask": (2, 1, 1, 300)}, KERNELS, set()),
    "bias": ((2, 4, 100, 64), (2, 2, 300, 64), {"mask": (4, 100, 300), "bias": True}, KERNELS, set()),
    "causal mask": ((2, 4, 100, 64), (2, 2, 300, 64), {"mask": (100, 300), "causal": True}, KERNELS, set()),
    "decode": ((1, 32, 1, 128), (1, 8, 8192, 128), {}, FEW, set()),
    "decode of a cache": ((4, 8, 1, 80), (4, 2, 1000, 80), {"mask": (4, 1, 1, 1000)}, FEW, set()),
    "a few queries": ((4, 8, 5, 64), (4, 2, 1000, 64), {"causal": True}, FEW, set()),
    "gradient, head of 80": ((2, 4, 256, 80), (2, 4, 256, 80), {"causal": True, "grad": True}, BACK, ROLES),
    "gradient, head of 256": ((2, 4, 256, 256), (2, 2, 256, 256), {"grad": True}, BACK, set()),
    "gradient, odd lengths": ((2, 4, 100, 33), (2, 2, 130, 33), {"causal": True, "grad": True}, BACK, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", SM_90)
def test_every_attention_has_kernels_for_hopper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, more, kernels, roles = SM_90[name]
    set_roles(monkeypatch, True)
    xs = [ts.tensor(np.zeros(s, bf16.np)) for s in (a, b, b)]
    causal, shape = more.get("causal", False), more.get("mask")
    if shape is not None:
        xs.append(ts.tensor(np.zeros(shape, bf16.np if more.get("bias") else bool)))

    def attend(q: Any, k: Any, v: Any, *m: Any) -> Any:
        return op.attention(q, k, v, causal=causal, mask=m[0] if m else None)

    def slopes(*xs: Any) -> Any:
        o, pull = ts.vjp(attend, *xs)
        return pull(o)

    low = ts.jit(slopes if more.get("grad") else attend, target="cuda:sm_90").lower(*xs)
    assert [k.name for k in low.tile.values()] == kernels
    assert low.host_steps == {}
    found = {x for n, x in low.target.items() if n.startswith("attention_")}
    with_roles = [x for x in found if "gluon" in x]
    assert bool(with_roles) == bool(roles)


# Whole programs by the Tile interpreter


def both(f: Any, *xs: Any, dtype: Any = bf16) -> tuple[Any, Any, set[str]]:
    """A function on the fake GPU, where a step of the host is an error, its arguments, the kernels of
    attention.
    """
    BUILT.clear()
    with at("fake"):
        there = [ts.tensor(x, device="cuda") for x in xs]
        there = [x.astype(dtype) if x.dtype is f32 else x for x in there]
        y = ts.jit(f)(*there)
        got = ts.tree.map(lambda t: t.astype(f32).numpy(), y)
        given = [x.astype(f32).numpy() if x.dtype.kind == "f" else x.numpy() for x in there]
    return got, given, {s.name for s in BUILT if s.name.startswith("attention")}


FORWARD = {
    "head of 80": ((1, 2, 70, 80), (1, 2, 70, 80), {}, {"attention"}),
    "head of 96": ((1, 2, 70, 96), (1, 1, 70, 96), {"causal": True}, {"attention"}),
    "head of 1": ((2, 2, 65, 1), (2, 2, 65, 1), {}, {"attention"}),
    "head of 33": ((1, 2, 100, 33), (1, 2, 130, 33), {"causal": True}, {"attention"}),
    "head of 256": ((1, 1, 70, 256), (1, 1, 140, 256), {}, {"attention"}),
    "head of 512": ((1, 1, 65, 512), (1, 1, 70, 512), {}, {"attention"}),
    "one query": ((1, 4, 1, 64), (1, 2, 300, 64), {}, {"attention_part", "attention_join"}),
    "few queries": ((2, 4, 7, 24), (2, 2, 200, 24), {"causal": True}, {"attention_part", "attention_join"}),
    "few keys": ((2, 4, 1, 24), (2, 2, 20, 24), {"causal": True}, {"attention"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_forward_has_its_kernels(name: str) -> None:
    a, b, more, kernels = FORWARD[name]
    got, (q, k, v), found = both(
        lambda q, k, v: op.attention(q, k, v, **more), normal(*a), normal(*b), normal(*b)
    )
    assert found == kernels
    assert_close(got, in_f64(q, k, v, bool(more)).astype(np.float32), TOLERANCE["bf16"], times=2)


MASKS: dict[str, tuple[int, ...]] = {
    "of keys": (2, 1, 1, 150), "of all": (2, 2, 17, 150), "of queries": (17, 150),
    "of batches": (2, 1, 17, 150),
    "of heads": (2, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "causal"),
    [
        ("of keys", "bool", True), ("of all", "bias", False), ("of queries", "bool", False),
        ("of heads", "bias", True),
        pytest.param("of batches", "bias", True, marks=pytest.mark.deep),
        pytest.param("of all", "bool", True, marks=pytest.mark.deep),
        pytest.param("of heads", "bool", False, marks=pytest.mark.deep),
    ],
)  # fmt: skip
def test_masks_have_their_kernels(name: str, kind: str, causal: bool) -> None:
    mask = RNG.random(MASKS[name]) < 0.5 if kind == "bool" else normal(*MASKS[name])
    xs = normal(2, 2, 17, 20), normal(2, 1, 150, 20), normal(2, 1, 150, 20)
    got, (q, k, v, m), found = both(
        lambda q, k, v, m: op.attention(q, k, v, causal=causal, mask=m), *xs, mask
    )
    assert found == {"attention_part", "attention_join"}
    assert_close(got, in_f64(q, k, v, causal, m).astype(np.float32), TOLERANCE["bf16"], times=3)


def test_a_mask_of_some_axes_of_the_batch_and_more_queries_than_few() -> None:
    mask = RNG.random((3, 1, 1, 66, 140)) < 0.5
    turned = np.ascontiguousarray(np.swapaxes(mask, -1, -2))
    xs = normal(3, 2, 1, 66, 8), normal(3, 2, 1, 140, 8), normal(3, 2, 1, 140, 8)
    got, (q, k, v, m), found = both(
        lambda q, k, v, m: op.attention(q, k, v, mask=op.swapaxes(m, -1, -2)), *xs, turned
    )
    assert found == {"attention"}
    assert_close(got, in_f64(q, k, v, False, mask).astype(np.float32), TOLERANCE["bf16"], times=3)
    assert m.dtype == bool


def test_a_cache_in_chunks_has_the_bits_of_the_whole() -> None:
    """Prefill and decode on a GPU, with a cache longer than one part."""
    room, n = 140, 70
    BUILT.clear()
    with at("fake"):
        qkv = ts.tensor(normal(1, n, 4 * 8), device="cuda").astype(bf16)

        @ts.jit
        def step(x: Any, cache: Any) -> Any:
            q, k, v = ts.split_qkv(x, heads=2, kv_heads=1)
            cache = cache.append(k, v)
            return ts.flash_attention(q, cache), cache

        empty = ts.tree.map(lambda t: t.to("cuda"), ts.KVCache.empty(1, 1, room, 8, bf16))
        whole, _ = step(qkv, empty)
        cache, rows = empty, []
        for a, b in ((0, 66), (66, 69), (69, 70)):
            y, cache = step(qkv[:, a:b], cache)
            rows.append(y.numpy())
        assert np.concatenate(rows, 1).tobytes() == whole.numpy().tobytes()
    assert {"attention", "attention_part", "attention_join"} <= {s.name for s in BUILT}


@pytest.mark.parametrize(
    "size", [20, 80, *(pytest.param(n, marks=pytest.mark.deep) for n in (96, 256))]
)
def test_gradients_have_their_kernels(size: int) -> None:
    def slopes(q: Any, k: Any, v: Any, ct: Any) -> Any:
        o, pull = ts.vjp(lambda q, k, v: op.attention(q, k, v, causal=True), q, k, v)
        return o, *pull(ct)

    xs = (
        normal(1, 2, 65, size),
        normal(1, 1, 70, size),
        normal(1, 1, 70, size),
        normal(1, 2, 65, size),
    )
    got, given, found = both(slopes, *xs)
    assert found == {"attention", "attention_delta", "attention_keys", "attention_queries"}
    want = ts.jit(slopes, target="cpu")(*map(ts.tensor, given))
    for x, y in zip(got, want, strict=True):
        scale = np.abs(y.numpy()).max()
        assert_close(x / scale, y.numpy() / scale, TOLERANCE["bf16"], times=2)


def test_heads_of_a_matrix_are_read_where_they_lie() -> None:
    assert Columns(240, 80, 40).fits(40)
    assert not Columns(250, 80, 40).fits(40)
    assert Columns(250, 80, 80).fits(80)

    def attend(x: Any) -> Any:
        parts = op.reshape(x, (2, 70, 3, 2, 40))
        q, k, v = (op.transpose(parts[:, :, j], (0, 2, 1, 3)) for j in range(3))
        y = op.transpose(op.attention(q, k, v), (0, 2, 1, 3))
        return op.reshape(y, (2, 70, 80)) * 2.0

    got, (x,), found = both(attend, normal(2, 70, 240))
    assert found == {"attention"}
    assert len(BUILT) == 3 + 2, "the casts of this test, attention and what follows it, and no copy"
    q, k, v = np.moveaxis(x.reshape(2, 70, 3, 2, 40), (2, 3), (0, 2))
    want = np.moveaxis(in_f64(q, k, v, False), 1, 2).reshape(2, 70, 80) * 2
    assert_close(got, want.astype(np.float32), TOLERANCE["bf16"], times=2)


def test_f16_and_unequal_sizes() -> None:
    xs = normal(1, 2, 66, 72), normal(1, 2, 66, 72), normal(1, 2, 66, 100)
    got, (q, k, v), found = both(op.attention, *xs, dtype=f16)
    assert found == {"attention"}
    assert_close(got, in_f64(q, k, v, False).astype(np.float32), TOLERANCE["f16"], times=2)
