"""grid_sample and affine_grid against PyTorch: values and gradients, over modes, paddings, ranks and
sizes.
"""

import itertools

import numpy as np
import pytest

import tessera as ts
from tessera import op

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
CASES = [
    c for c in itertools.product(MODES, ("zeros", "border", "reflection"), (False, True), (2, 3))
    if not (c[0] == "cubic" and c[3] == 3)
]  # fmt: skip


@pytest.mark.parametrize(("mode", "padding", "corners", "rank"), CASES)
def test_grid_sample(mode, padding, corners, rank):
    rng = np.random.default_rng([len(mode), len(padding), corners, rank])
    x = rng.normal(size=(2, 3, *rng.integers(1, 6, rank)))
    grid = rng.uniform(-1.8, 1.8, size=(2, *rng.integers(1, 5, rank), rank))
    a, g = (torch.tensor(v, requires_grad=True) for v in (x, grid))
    want = torch.nn.functional.grid_sample(a, g, MODES[mode], padding, corners)
    ct = rng.normal(size=tuple(want.shape))
    want.backward(torch.tensor(ct))
    got, back = ts.vjp(
        lambda x, g: op.grid_sample(x, g, mode, padding, corners), ts.tensor(x), ts.tensor(grid)
    )
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-11, atol=1e-12)
    for ours, theirs in zip(back(ts.tensor(ct)), (a.grad, g.grad), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (1, 2, 2, 3, 4)])
def test_affine_grid(corners, shape):
    rank = len(shape) - 2
    theta = np.random.default_rng(0).normal(size=(shape[0], rank, rank + 1))
    want = torch.nn.functional.affine_grid(torch.tensor(theta), shape, align_corners=corners)
    got = op.affine_grid(ts.tensor(theta), shape, corners)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-12)
