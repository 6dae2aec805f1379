"""Marks of states: an annotation says what kind of state an argument is, and an argument that is not is
refused.
"""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, OptimizerState, bf16, device, f32, op
from tessera.core.errors import AnnotationError, OperandError, TraceError
from tessera.core.flags import override
from tessera.lang.caches import PagedCache, RollingCache

PLAIN = KVCache["B", "H", "S_max", "D_h", f32]
K = op.zeros((1, 2, 3, 4))
STATE = ts.optim.adam(1e-2)


@ts.jit
def rolled(c: PLAIN @ ts.rolling_window(4), k):
    return c.append(k, k)


@ts.jit
def by_pages(c: PLAIN @ ts.paged, k):
    return c.append(k, k)


@ts.jit
def here(c: PLAIN @ device("cpu:0"), k):
    return c.append(k, k)


@ts.jit
def step(
    params, state: OptimizerState["params"] @ ts.fp32_master @ ts.paged @ ts.checkpointable, g
):
    return STATE.update(g, state, params)


@pytest.mark.filterwarnings("ignore:no cuda or hip device here")
def test_the_spelling_of_the_documents():
    spec = KVCache["B", "H", "S_max", "D_h", bf16] @ ts.rolling_window @ device(ts.gpu)
    assert str(spec) == "KVCache['B', 'H', 'S_max', 'D_h', bf16] @ rolling_window @ device(gpu)"
    state = OptimizerState["param"] @ ts.fp32_master @ ts.paged @ ts.checkpointable
    assert str(state) == "OptimizerState[param] @ fp32_master @ paged @ checkpointable"

    @ts.jit
    def f(c: spec, k):
        return c.append(k, k)

    c = spec.empty(B=1, H=2, S_max=8, D_h=4, window=5)
    assert (type(c), c.window, c.K.shape) == (RollingCache, 5, (1, 2, 8, 4))
    assert int(f(c, K.astype(bf16)).length) == 3


def test_marks_let_pass_what_they_name():
    assert (
        int(rolled((PLAIN @ ts.rolling_window(4)).empty(B=1, H=2, S_max=8, D_h=4), K).length) == 3
    )
    pages = (PLAIN @ ts.paged).empty(B=1, H=2, S_max=8, D_h=4, page=4, pages=3)
    assert isinstance(pages, PagedCache)
    assert by_pages(pages, K).length.tolist() == [3]
    assert int(here(KVCache.empty(1, 2, 8, 4), K).length) == 3


def test_a_marked_state_is_updated_as_any_other():
    params = {"w": op.ones((2, 2), bf16), "b": op.ones((2,))}
    grads = {"w": op.full((2, 2), 0.5, bf16), "b": op.full((2,), 0.25)}
    state = STATE.init(params)
    new, after = step(params, state, grads)
    want, want_after = STATE.update(grads, state, params)
    for a, b in zip(ts.tree.leaves((new, after)), ts.tree.leaves((want, want_after)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_states_of_combined_optimisers_belong_too():
    both = ts.optim.chain(ts.optim.clip_norm(1.0), ts.optim.adam(1e-2))
    params = {"w": op.ones((2, 2), bf16)}

    @ts.jit
    def f(params, state: OptimizerState["params"] @ ts.fp32_master):
        return both.update(params, state, params)[0]

    assert f(params, both.init(params))["w"].dtype is bf16
    with pytest.raises(AnnotationError, match="has no f32 master"):
        f(
            params,
            {
                k: ({**v, "master": None} if isinstance(v, dict) else v)
                for k, v in both.init(params).items()
            },
        )


PARAMS = {"w": op.ones((2, 2), bf16)}
GOOD = STATE.init(PARAMS)
WRONG = {
    "kind": (lambda: rolled(KVCache.empty(1, 2, 8, 4), K),
             "argument 'c' is a KVCache, expected a RollingCache as in KVCache['B', 'H', 'S_max', 'D_h', "
             "f32] @ "
             "rolling_window(4); make it with KVCache.empty(..., window=...)"),
    "window": (lambda: rolled(KVCache.empty(1, 2, 8, 4, window=5), K),
               "argument 'c' has a window of 5, expected 4 as in KVCache['B', 'H', 'S_max', 'D_h', f32] @ "
               "rolling_window(4)"),
    "pages": (lambda: by_pages(KVCache.empty(1, 2, 8, 4), K), "expected a PagedCache as in"),
    "dtype": (lambda: here(KVCache.empty(1, 2, 8, 4, bf16), K),
    "argument 'c.K' is bf16[1,2,8,4], expected dtype f32"),
    "no cache": (lambda: here(K, K), "argument 'c' has the tensors none, expected a cache as in"),
    "mark": (lambda: PLAIN @ ts.fp32_master,
             "KVCache['B', 'H', 'S_max', 'D_h', f32] @ fp32_master: expected one of rolling_window, paged, "
             "device(...)"),
    "twice": (lambda: PLAIN @ ts.paged @ ts.paged, "@ paged @ paged: the mark is given twice"),
    "number": (lambda: ts.paged(3), "paged(3): only rolling_window takes a number"),
    "zero": (lambda: ts.rolling_window(0), "rolling_window(0): only rolling_window takes a number"),
    "optimiser mark": (lambda: OptimizerState["p"] @ ts.rolling_window,
                       "OptimizerState[p] @ rolling_window: expected one of fp32_master, paged, "
                       "checkpointable, device(...)"),
    "sizes": (lambda: PLAIN.empty(B=1), ".empty: got the sizes B, expected B=, D_h=, H=, S_max="),
    "other size": (lambda: PLAIN.empty(B=1, H=1, S_max=4, D_h=2, Q=3), "expected B=, D_h=, H=, S_max="),
    "list": (lambda: step(PARAMS, [1], PARAMS),
             "argument 'state' is list, expected the state of an optimiser, as opt.init(params) gives"),
    "no master": (lambda: step(PARAMS, {"step": GOOD["step"]}, PARAMS),
                  "argument 'state' has no f32 master for a parameter bf16[2,2], as OptimizerState[params] "
                  "@ fp32_master"),
    "narrow master": (lambda: step(PARAMS, {**GOOD, "master": PARAMS}, PARAMS),
    "argument 'state' has no f32 master"),
    "other parameters": (lambda: step(PARAMS, STATE.init({"v": PARAMS["w"]}), PARAMS),
                         "is {'v': *}, expected {'w': *} as in OptimizerState[params]"),
    "other shapes": (lambda: step(PARAMS, STATE.init({"w": op.ones((3,), bf16)}), PARAMS),
                     "has f32[3] for a parameter bf16[2,2]"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_states_are_refused(case):
    make, text = WRONG[case]
    with pytest.raises((AnnotationError, OperandError)) as e:
        make()
    assert text in e.value.message


def test_a_name_that_no_argument_has():
    @ts.jit
    def f(weights, state: OptimizerState["params"]):
        return weights

    with pytest.raises(AnnotationError) as e:
        f(PARAMS, GOOD)
    assert e.value.message == (
        "argument 'state' is annotated OptimizerState[params], but there is no argument 'params'; there are "
        "weights, state"
    )


# The states of optimisers are linear ----------------------------------------------------------------

BOTH = ts.optim.chain(ts.optim.clip_norm(1.0), ts.optim.adam(1e-2))
STALE = {
    "update": lambda o, p, s, g: (o.update(g, s, p), o.update(g, s, p)),
    "returned": lambda o, p, s, g: (o.update(g, s, p), s),
    "read": lambda o, p, s, g: (o.update(g, s, p), s[next(iter(o.init(p)))]),
    "items": lambda o, p, s, g: (o.update(g, s, p), dict(s.items())),
    "copied": lambda o, p, s, g: (o.update(g, s, p), {**s}),
    "merged": lambda o, p, s, g: (o.update(g, s, p), s | {"a": 1}),
    "mapped": lambda o, p, s, g: (o.update(g, s, p), ts.tree.map(lambda x: x, s)),
    "second": lambda o, p, s, g: [(o.update(g, t, q), o.update(g, t, q)) for q, t in (o.update(g, s, p),)],
    "saved for later": lambda o, p, s, g: (o.update(g, s, p), ts.scan(lambda c, _: (c, None), s, length=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
@pytest.mark.parametrize("optimiser", [STATE, BOTH], ids=["adam", "chain"])
def test_a_stale_state_of_an_optimiser_is_refused(name, optimiser):
    use = STALE[name]

    def f(params, state: OptimizerState["params"], g):
        return use(optimiser, params, state, g)

    def value(params, state, g):
        return use(optimiser, params, state, g)

    params = {"w": op.ones((2, 2))}
    state = optimiser.init(params)
    with pytest.raises(TraceError) as e:
        ts.jit(f).traced(params, state, params)
    assert e.value.message == (
        "OptimizerState: this state is stale: a newer one was made of it; use that one, as in params, state "
        "= "
        "opt.update(grads, state, params), or leave the annotation out to keep old ones as values"
    )
    assert "test_state_marks.py" in str(e.value)
    ts.trace(value, params, state, params)  # as a value it stays one
    assert optimiser.update(params, state, params)[0]["w"].shape == (2, 2), "and what was given too"


def test_a_linear_state_of_an_optimiser_is_a_dict_to_trees_and_loops():
    def f(params, state: OptimizerState["params"], g):
        params, state = STATE.update(g, state, params)
        body = lambda c, _: (STATE.update(g, c[1], c[0]), None)  # noqa: E731
        (params, state), _ = ts.scan(body, (params, state), length=3)
        return params, state

    params = {"w": op.ones((2, 2))}
    state = STATE.init(params)
    new, after = ts.jit(f)(params, state, params)
    assert type(after) is dict
    assert int(after["step"]) == 4
    want = params
    for _ in range(4):
        want, state = STATE.update(params, state, want)
    np.testing.assert_allclose(new["w"].numpy(), want["w"].numpy(), rtol=1e-6)


def test_an_empty_cache_lies_on_the_device_of_its_mark():
    sizes = {"B": 1, "H": 2, "S_max": 8, "D_h": 4}
    with override(cpu_devices=2):
        for spec, wanted in ((PLAIN, "cpu:0"), (PLAIN @ device("cpu:1"), "cpu:1")):
            made = spec.empty(**sizes)
            assert {str(x.device) for x in (made.K, made.V)} == {wanted}


def test_a_window_sees_one_position_at_least():
    assert str(ts.rolling_window(1)) == "rolling_window(1)"
    for wrong in (0, -1, 1.0, True, "4"):
        with pytest.raises(OperandError, match="only rolling_window takes a number"):
            ts.rolling_window(wrong)
    with pytest.raises(OperandError, match="only rolling_window takes a number"):
        ts.paged(4)
