"""The programs of examples/nn learn what they say, within a short run, and stay short."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from examples.nn import cnn, ddpm, digits, lora, lstm, mixed_precision, vae, vit
from tessera import nn, op
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"  # short runs; the programs themselves run compiled
PROGRAMS = sorted(Path(cnn.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_programs_stay_short(path):
    assert len(path.read_text().splitlines()) < 100


def fell(losses: Any, share: float) -> bool:
    return bool(np.mean(losses[-5:]) < share * losses[0])


@pytest.mark.usefixtures("compiled")
def test_the_cnn_reads_more_than_98_of_100_digits():
    model, stats, _ = cnn.train(ts.key(0), 220)
    right = cnn.accuracy(model, stats, *digits.digits(np.random.default_rng(1), 1000))
    assert right.item() > 0.98


@pytest.mark.parametrize(
    ("run", "share"),
    [
        (lambda: vae.train(ts.key(0), 60, 32), 0.6),
        (lambda: lstm.train(ts.key(0), 40, 32, 6), 0.6),
        (lambda: vit.train(ts.key(0), 12, 16), 1.05),
        (lambda: ddpm.train(ts.key(0), 120), 0.75),
    ],
    ids=["vae", "lstm", "vit", "ddpm"],
)
def test_losses_fall(run, share):
    _, losses = run()
    assert fell(losses, share)


@pytest.mark.deep
@pytest.mark.usefixtures("compiled")
def test_the_transformer_reads_digits():
    model, _ = vit.train(ts.key(0), 400)
    x, labels = digits.digits(np.random.default_rng(1), 1000)
    assert np.mean(ts.jit(model)(x).numpy().argmax(-1) == labels) > 0.93


@pytest.mark.deep
@pytest.mark.usefixtures("compiled")
def test_diffusion_brings_points_to_the_spiral(capsys):
    before, after = ddpm.main()
    assert after < 0.5 * before
    assert "mean distance to the spiral" in capsys.readouterr().out


def test_adapters_learn_the_new_task_and_merge(capsys):
    base, model, merged, (x, y) = lora.main(60)
    assert lora.accuracy(base, x, y) < 0.5
    assert lora.accuracy(model, x, y) > 0.8
    wide, given = ts.tree.map(lambda p: op.cast(p, ts.f64), model), op.cast(x[:50], ts.f64)
    assert_close(
        lora.merge(wide)(given), wide(given)
    )  # in f32 scores of 20 leave little of those near 0
    assert [type(m).__name__ for _, m in nn.modules(merged)].count("Linear") == 3
    assert "frozen ones" in capsys.readouterr().out


def test_the_loss_scale_keeps_small_gradients():
    _, _, lost = mixed_precision.train("f16", 30, 64)
    model, state, kept = mixed_precision.train("f16 with loss scale", 30, 64)
    assert not fell(lost, 0.9)
    assert fell(kept, 0.8)
    assert {p.dtype.name for p in ts.tree.leaves(model)} == {"f16"}
    masters = ts.tree.leaves(state["inner"]["master"])
    assert {p.dtype.name for p in masters} == {"f32"}
    assert_close(op.cast(masters[0], "f16"), ts.tree.leaves(model)[0])


@pytest.mark.usefixtures("compiled")
def test_the_cnn_does_not_wait_for_batches_that_are_there():
    """While a step runs the loader makes the next batches; what is there costs no wait, and has the bits of
    a loader without workers.  How long steps and batches take is measured by benchmarks/loader.py.
    """
    pictures, count, begun = digits.digits(np.random.default_rng(0), 512), 4, []

    def noted(batch: Any, keys: Any) -> Any:
        begun.append(len(begun))
        return batch

    def until(n: int) -> None:
        end = time.monotonic() + 60
        while len(begun) < n:
            assert time.monotonic() < end
            time.sleep(0.001)

    key = {"key": ts.key(0), "transform": noted}
    ahead = ts.data.Loader(pictures, 64, workers=1, prefetch=3, **key).steps()
    model, stats = cnn.build(ts.key(1))
    state = cnn.optimizer.init(model)
    first = next(ahead)
    cnn.step(model, stats, state, *first)  # which compiles
    until(3)  # one worker makes one batch after another: batch 1 is there
    with ts.profile() as p:
        batch = first
        for i in range(1, count):
            _, model, stats, state = cnn.step(model, stats, state, *batch)
            until(i + 2)
            batch = next(ahead)
    ahead.close()
    assert not [s for s in p.spans if s.kind == "data"]
    assert p.totals["waiting for data"] == 0
    alone = ts.data.Loader(pictures, 64, workers=0, key=ts.key(0)).batch(count - 1)
    for x, y in zip(batch, alone, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
