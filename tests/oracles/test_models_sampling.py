"""What sampling keeps and penalises equals the logits processors of transformers, on random logits."""

import numpy as np
import pytest

from tessera.models.sampling import Sampling, kept, penalised

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("seed", range(20))
def test_cuts_and_penalties_equal_transformers(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=50) * 3
    seen = rng.integers(0, 50, 9)
    k, p, m, t = (
        int(rng.integers(1, 50)),
        rng.uniform(0.05, 0.95),
        rng.uniform(0.01, 0.5),
        rng.uniform(0.3, 2),
    )
    penalty = rng.uniform(1, 2)
    chain = [
        transformers.RepetitionPenaltyLogitsProcessor(penalty), transformers.TemperatureLogitsWarper(t),
        transformers.TopKLogitsWarper(k), transformers.TopPLogitsWarper(p), transformers.MinPLogitsWarper(m),
    ]  # fmt: skip
    want = torch.tensor(logits)[None]
    for step in chain:
        want = step(torch.tensor(seen)[None], want)
    s = Sampling(t, k, p, m, penalty)
    got = kept(penalised(logits, seen, [], s), s)
    np.testing.assert_allclose(got, want[0].numpy(), rtol=1e-12)
    assert 0 < np.isfinite(got).sum() < 50
