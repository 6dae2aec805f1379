"""FFT convolution: a blur is a circulant operator, so it is applied and taken back by transforms."""

import numpy as np

import tessera as ts
from tessera import f64, op


def main() -> None:
    n = 4096
    t = np.arange(n)
    kernel = np.exp(-0.5 * (np.minimum(t, n - t) / 1.5) ** 2)
    signal = ((t // 256) % 2).astype(float)
    blur = op.circulant(ts.tensor(kernel / kernel.sum()))
    seen = blur @ signal
    direct = np.real(np.fft.ifft(np.fft.fft(kernel / kernel.sum()) * np.fft.fft(signal)))
    assert np.abs(np.asarray(seen) - direct).max() < 1e-12

    # Tikhonov: the smallest |A x - b|^2 + e |x|^2 solves (A.H A + e I) x = A.H b.
    noisy = seen + 1e-4 * np.random.default_rng(0).normal(size=n)
    regular = blur.H @ blur + 1e-5 * op.eye(n, f64)
    back = regular.solve(blur.H @ noisy)
    before, after = (float(op.norm(x - signal)) for x in (noisy, back))
    print(f"{blur}: error of the blurred signal {before:.3f}, of the restored one {after:.3f}")
    assert after < before / 1.5


if __name__ == "__main__":
    main()
