"""Spectral denoising: a picture of low rank is found again under noise by keeping few singular values."""

import numpy as np

import tessera as ts
from tessera import op


def picture(size: int) -> np.ndarray:
    """Soft stripes and a disc's shadow: few singular values say almost all of it."""
    t = np.linspace(0, 1, size)
    return np.outer(np.sin(9 * t), np.cos(7 * t)) + np.outer(t**2, 1 - t) + np.outer(1 - t, t)


def main() -> None:
    clean = picture(120)
    noise = np.random.default_rng(0).normal(size=clean.shape)
    seen = ts.tensor(clean + 0.3 * noise)
    # Noise of variance s^2 has singular values up to about 2 s sqrt(n).
    level = 2 * 0.3 * 120**0.5
    spectrum = op.spectral(seen)
    kept = spectrum.filter(lambda s: op.where(s > level, s, 0.0))
    found = kept.reconstruct().todense()
    rank = int(op.count_nonzero(kept.S))
    before, after = (float(op.norm(x - clean)) for x in (seen, found))
    print(f"kept {rank} of {spectrum.rank} singular values; error {before:.2f} -> {after:.2f}")
    assert rank == 3
    assert after < before / 4


if __name__ == "__main__":
    main()
