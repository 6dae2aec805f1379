"""Effects: part of an op's record, printed in the text, checked by the verifier, respected by passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f32, op
from tessera.core.errors import ParseError, VerifyError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, bind, building
from tessera.ir.graph.op import EFFECTS, REGISTRY, Op, forbidden
from tessera.ir.graph.verify import verify
from tessera.transform.hoist import hoist
from tessera.transform.simplify import simplify

KEY = ts.Tensor[2, ts.u32]


def test_the_table_of_effects_says_what_passes_may_do():
    allowed = {
        name: {what for what in ("drop", "merge", "move", "repeat") if getattr(e, what)}
        for name, e in EFFECTS.items()
    }
    assert allowed == {
        "random": {"drop", "merge", "move", "repeat"}, "state": set(), "movement": {"repeat"},
        "collective": {"repeat"}, "io": set(),
    }  # fmt: skip
    assert forbidden(frozenset(("random", "io")), "drop") == {"io"}


def test_every_draw_has_its_effect_in_the_text():
    g = ts.trace(lambda k: op.random.normal(k, (4,)), KEY)
    assert g.text.count('effects = ["random"]') == g.text.count("tessera.random_bits") > 0
    assert ts.ir.parse(g.text).text == g.text
    assert "effects" not in ts.trace(lambda x: op.exp(x) @ x, ts.Tensor[2, 2, f32]).text


def test_which_ops_have_effects():
    found = {n: sorted(o.effects) for n, o in REGISTRY.items() if o.effects}
    assert found["random_bits"] == ["random"]
    assert found["watch"] == found["host_call"] == ["io"]
    assert found["state_write"] == found["state_write_pages"] == ["state"]
    assert found["state_move"] == ["movement"]


@pytest.mark.parametrize("wrong", ['effects = ["io"]', "effects = []"])
def test_a_text_that_states_other_effects_is_refused(wrong):
    g = ts.trace(lambda k: op.random.bits(k, (4,)), KEY)
    with pytest.raises(ParseError, match=r"tessera\.random_bits: its effects are random"):
        ts.ir.parse(g.text.replace('effects = ["random"]', wrong))
    h = ts.trace(op.exp, ts.Tensor[2, f32])
    with pytest.raises(ParseError, match=r"tessera\.exp: its effects are none"):
        ts.ir.parse(h.text.replace('"tessera.exp"(%0)', '"tessera.exp"(%0) {effects = ["io"]}'))


def test_a_draw_without_a_key_is_refused(monkeypatch):
    """Numbers that come from nowhere would differ from run to run."""
    x = Builder().input(TensorType(f32, (2,)))
    dice = replace(REGISTRY["exp"], name="dice", effects=frozenset(("random",)))
    monkeypatch.setitem(REGISTRY, "dice", dice)
    n = Builder().node(dice, (x,), {}, (), [x.type], None)
    with pytest.raises(VerifyError, match="it draws, but no operand is a key"):
        verify(Graph([x], [n], n.results))


def test_draws_of_one_key_are_merged_and_the_numbers_stay():
    def f(k: Any) -> Any:
        return op.random.uniform(k, (5,)) + op.random.uniform(k, (5,))

    g = simplify(ts.trace(f, KEY))
    assert [n.op.name for n in g.nodes].count("random_bits") == 1
    key = ts.key(3)
    np.testing.assert_array_equal(ts.jit(f)(key).numpy(), f(key).numpy())


@pytest.mark.parametrize("effect", sorted(EFFECTS))
def test_only_what_may_move_leaves_a_loop(effect):
    noisy = Op(
        "noisy", "x", signature="... -> ...", call="noisy", numpy=lambda x: x,
        effects=frozenset((effect,)), infer=lambda types, p: [types[0]],
    )  # fmt: skip
    with building(Builder()) as b:
        k = b.input(TensorType(ts.u32, (64, 64)))
        x = b.input(TensorType(f32, (64, 64)))

        def body(i: Any, v: Any) -> Any:
            return v + op.exp(op.exp(bind(noisy, k).astype(f32)))

        out = ts.fori_loop(0, 3, body, x)
        g, _ = b.finish((out,), "f", ())
    inside = [m.op.name for n in hoist(g).nodes for r in n.regions for m in r.nodes]
    assert ("noisy" in inside) == (not EFFECTS[effect].move)


def test_checkpoint_draws_the_same_numbers_again():
    key, x = ts.key(1), op.ones((6,))

    def f(v: Any) -> Any:
        return op.sum(op.exp(v * op.random.uniform(key, (6,))))

    np.testing.assert_array_equal(
        ts.jit(ts.grad(ts.checkpoint(f)))(x).numpy(), ts.jit(ts.grad(f))(x).numpy()
    )
