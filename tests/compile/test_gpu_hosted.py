"""What a GPU leaves to the host is what docs/gpu.md lists, with reasons; no contraction is among it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import f32
from tessera.runtime.cuda.staging import Staging
from tests.support.cases.op_cases import Case, all_cases
from tests.support.cases.random_contractions import contraction
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"
EVERY = 5  # of the catalog; all of it with the deep tests
LIBRARY = "a library of the device"


def steps(f: Any, *xs: Any) -> dict[str, str]:
    """The ops that are no kernels for an H200, by who computes them; those of regions too."""
    found = ts.jit(f, target="cuda:sm_90").lower(*xs).host_steps
    names = {n.rpartition(".")[2].rpartition("_")[0]: why for n, why in found.items()}
    return {n: "library" if why.startswith(LIBRARY) else "host" for n, why in names.items()}


def listed() -> dict[str, str]:
    """The ops that the page lists, by who computes them."""
    page = Path(__file__).parents[2].joinpath("docs", "gpu.md").read_text()
    part = page.split("## What runs on the host")[1].split("\n## ")[0]
    table, libraries = part.split("Where CuPy is installed")
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert all(why.strip() for _, _, why, _ in rows)
    hosted = {n: "host" for _, ops, _, _ in rows for n in re.findall(r"`(\w+)`", ops)}
    return hosted | dict.fromkeys(re.findall(r"`(\w+)`", libraries), "library")


def hosted(cases: list[Case]) -> dict[str, str]:
    found: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "offload: .* is not moved", RuntimeWarning)
        for c in cases:
            if c.name != "fori_loop":  # whose samples carry f64
                found |= steps(lambda *a, c=c: c.call(a), *map(ts.tensor, c.draw(f32)))
    return found


def test_the_page_lists_every_op_that_the_host_computes() -> None:
    found = hosted(list(all_cases())[::EVERY])
    assert len(found) > 5
    assert found.items() <= listed().items()


@pytest.mark.deep
def test_the_page_lists_no_other_op() -> None:
    assert hosted(list(all_cases())) == listed()


@pytest.mark.parametrize("dtype", ["bf16", "f32", "i32", "c64"])
def test_every_contraction_is_made_of_kernels(dtype: str) -> None:
    for seed in range(20):
        spec, shapes = contraction(seed)
        xs = [ts.tensor(np.ones(s, np.float32)).astype(dtype) for s in shapes]
        assert steps(lambda *a, spec=spec: op.einsum(spec, *a), *xs) == {}, (spec, shapes)


@pytest.mark.parametrize("dtype", ["f32", "c64", "i32"])
def test_contractions_on_a_gpu_mean_what_they_mean_here(dtype: str) -> None:
    rng = np.random.default_rng(3)
    with at("fake"):
        for seed in range(8):
            spec, shapes = contraction(seed, (1, 2, 3, 5))
            xs = [ts.tensor(np.rint(rng.normal(size=s) * 3)).astype(dtype) for s in shapes]
            got = ts.jit(lambda *a, spec=spec: op.einsum(spec, *a))(*(x.to("cuda") for x in xs))
            want = np.einsum(spec, *(x.numpy() for x in xs))
            assert np.array_equal(got.numpy(), want), spec  # whole numbers: every order is exact


@pytest.mark.parametrize("where", ["fake", pytest.param("device", marks=pytest.mark.gpu)])
def test_a_number_beside_a_tensor_travels_alone(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eager op with a number once sent an array of it, as large as the tensor."""
    sent: list[int] = []
    send = Staging.send

    def noted(self: Staging, ptr: int, source: int, nbytes: int) -> None:
        sent.append(nbytes)
        send(self, ptr, source, nbytes)

    data = np.linspace(-3, 3, 3000, dtype="f4").reshape(3, 1000)
    calls = (
        lambda x: x + 1, lambda x: 2.5 / x, lambda x: x > 0, lambda x: op.where(x > 0, x, -1),
        lambda x: op.clip(x, -1, 2), lambda x: x**3, lambda x: op.maximum(x, 0.5), lambda x: x // 2,
    )  # fmt: skip
    with at(where):
        x, n = ts.tensor(data).to("cuda"), ts.tensor(np.arange(3000)).to("cuda")
        monkeypatch.setattr(Staging, "send", noted)
        for f in calls:
            np.testing.assert_array_equal(f(x).numpy(), ts.jit(f)(x).numpy())
        for g in (lambda n: n * 3 - 1, lambda n: n % 7, lambda n: n == 5):
            np.testing.assert_array_equal(g(n).numpy(), g(np.arange(3000)))
    assert sent
    assert max(sent) <= 8
