"""Parts of models beside their formulas in NumPy: exponents of scales, attention with sinks, what headers
say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.models import sandbox
from tessera.models.blocks import half_exponent
from tessera.models.gguf_families import _smollm3
from tessera.models.gpt_oss import sink_attention
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"


def test_exponents_of_eight_bits_are_powers_of_two() -> None:
    e = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(half_exponent(e), np.ldexp(np.float32(1), e.astype(int) - 128))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_with_sinks_is_a_softmax_with_one_more_column(groups: int) -> None:
    rng = np.random.default_rng(groups)
    batch, heads, rows, room, dim = 2, 4, 3, 5, 8
    q = rng.standard_normal((batch, heads, rows, dim)).astype(np.float32)
    k, v = rng.standard_normal((2, batch, groups, room, dim)).astype(np.float32)
    sinks = rng.standard_normal(heads).astype(np.float32)
    mask = np.tril(np.ones((rows, room), bool), room - rows)
    got = sink_attention(*map(ts.tensor, (q, k, v, sinks, mask)), dim**-0.5)
    keys, values = (np.repeat(x, heads // groups, axis=1) for x in (k, v))
    score = np.where(mask, q @ keys.swapaxes(-1, -2) * dim**-0.5, -np.inf)
    score = np.concatenate(
        [score, np.broadcast_to(sinks[:, None, None], (batch, heads, rows, 1))], -1
    )
    e = np.exp(score - score.max(-1, keepdims=True))
    assert_close(got.numpy(), (e / e.sum(-1, keepdims=True))[..., :-1] @ values, times=4)


@pytest.mark.parametrize(
    ("layers", "want"),
    [(6, [1, 1, 1, 0, 1, 1]), (0, []), (-3, []), (1 << 12, []), ("6", []), (None, [])],
)
def test_every_fourth_layer_has_no_positions_and_a_wrong_number_has_no_layers(
    layers: Any, want: list[int]
) -> None:
    assert _smollm3(lambda name: None, {"num_hidden_layers": layers}) == {"no_rope_layers": want}


def test_what_a_template_holds_is_bounded_however_it_is_nested() -> None:
    small: list[Any] = [{"a": ["b", ("c",)]}, ["b"], "text", 3]
    assert all(sandbox.weighed(x) is x for x in small)
    long = "x" * (sandbox.LONGEST // 2 + 1)
    for x in (
        {long: long},
        {"a": long, "b": long},
        [long, long],
        (long, [long]),
        {"a": {"b": [long, {long: 1}]}},
    ):
        with pytest.raises(Exception, match="a list or text"):
            sandbox.weighed(x)
