"""The record of seeds: which keys a program draws from, and where."""

import numpy as np

import tessera as ts
from tessera import op


def noisy(x, key):
    first, second = ts.split(key)
    x = x + op.random.normal(first, x.shape)
    mask = op.random.bernoulli(ts.fold_in(second, 7), 0.5, x.shape)
    return op.where(mask, x, op.random.uniform(ts.key(3), x.shape))


def test_every_draw_is_recorded_with_its_key_and_line():
    record = ts.seeds(noisy, op.zeros((4,)), ts.key(0))
    found = [(u.op, u.key.split(" ")[0] if "argument" not in u.key else u.key) for u in record]
    assert [op for op, _ in found] == ["split", "normal", "bernoulli", "uniform"]
    keys = [u.key for u in record]
    assert keys[0].startswith("argument")
    assert keys[1] == f"split({keys[0]})"
    assert keys[2] == f"fold_in(split({keys[0]}), 7)"
    assert keys[3] == "seed 3"
    lines = [u.location.line for u in record]
    first = noisy.__code__.co_firstlineno
    assert lines == [first + 1, first + 2, first + 3, first + 4]
    assert all(u.location.file.endswith("test_seeds.py") for u in record)


def test_jitted_functions_are_looked_into():
    record = ts.seeds(ts.jit(noisy), op.zeros((4,)), ts.key(0))
    assert len(record) == 4
    assert "uniform from seed 3 at" in str(record)


def test_a_program_without_draws():
    assert str(ts.seeds(lambda x: x + 1, op.zeros((4,)))) == "no key is used"


def test_recording_changes_nothing():
    x, key = op.zeros((4,)), ts.key(0)
    before = noisy(x, key).numpy()
    ts.seeds(noisy, x, key)
    np.testing.assert_array_equal(noisy(x, key).numpy(), before)
