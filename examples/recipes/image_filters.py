"""Filters of pictures: by convolution, by separable passes, by Fourier transforms, and undone.

    python examples/recipes/image_filters.py

The same blur is written three ways that agree; Sobel's filters find edges; and a blurred, noisy
picture is sharpened again by Wiener's filter in the frequency domain.
"""

import time

import numpy as np

import tessera as ts
from tessera import f32, op

SIDE, RADIUS, SIGMA = 128, 6, 2.0


def gaussian(radius=RADIUS, sigma=SIGMA):
    """The weights of a blur along one axis."""
    x = op.arange(-radius, radius + 1, dtype=f32)
    weights = op.exp(-0.5 * (x / sigma) ** 2)
    return weights / op.sum(weights)


def filter2d(image, kernel):
    """Correlate a picture (h, w) with an odd kernel; pixels outside are zero."""
    pad = tuple(n // 2 for n in kernel.shape)
    return op.conv2d(image[None, None], kernel[None, None], padding=pad)[0, 0]


@ts.jit
def blur_direct(image):
    g = gaussian()
    return filter2d(image, op.outer(g, g))


@ts.jit
def blur_separable(image):
    g = gaussian()
    return filter2d(filter2d(image, g[:, None]), g[None, :])


def transfer(shape):
    """The transform of the blur on a grid of a shape, centred at pixel (0, 0)."""
    g = op.outer(gaussian(), gaussian())
    rest = [(0, n - k) for n, k in zip(shape, g.shape)]
    return op.rfftn(op.roll(op.pad(g, rest), (-RADIUS, -RADIUS), axis=(0, 1)))


@ts.jit
def blur_fourier(image):
    """Zeros around the picture, so that nothing comes in from the other side."""
    h, w = image.shape
    wide = op.pad(image, ((0, 2 * RADIUS), (0, 2 * RADIUS)))
    return op.irfftn(op.rfftn(wide) * transfer(wide.shape), s=wide.shape)[:h, :w]


@ts.jit
def edges(image):
    """The length of the gradient by Sobel's filters."""
    sobel = ts.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]) / 8
    return op.hypot(filter2d(image, sobel), filter2d(image, sobel.T))


@ts.jit
def wiener(image, noise):
    """Undo a periodic blur of a picture with noise of this variance relative to the signal."""
    h = transfer(image.shape)
    inverse = op.conj(h) / (op.square(op.abs(h)) + noise)
    return op.irfftn(op.rfftn(image) * inverse, s=image.shape)


def picture(n=SIDE):
    """Discs and stripes."""
    y, x = np.mgrid[:n, :n] / n
    disc = (x - 0.35) ** 2 + (y - 0.4) ** 2 < 0.06
    stripes = (np.sin(40 * (x + y)) > 0) & (x > 0.6)
    return (0.2 + 0.6 * disc + 0.5 * stripes).astype(np.float32)


def main():
    image = ts.asarray(picture())
    results = {}
    for blur in (blur_direct, blur_separable, blur_fourier):
        results[blur.__name__] = blur(image).numpy()
        begin = time.perf_counter()
        for _ in range(20):
            blur(image)
        print(f"{blur.__name__:15s} {1e3 * (time.perf_counter() - begin) / 20:.2f} ms")
    direct = results["blur_direct"]
    print("largest difference:", max(np.abs(r - direct).max() for r in results.values()))
    print(f"edges: {100 * op.mean(edges(image) > 0.1).item():.1f}% of the pixels")
    rng = np.random.default_rng(0)
    blurred = op.irfftn(op.rfftn(image) * transfer(image.shape), s=image.shape)
    blurred = blurred + 0.005 * rng.normal(size=image.shape).astype(np.float32)
    for name, guess in (("blurred", blurred), ("restored", wiener(blurred, 1e-3))):
        print(f"{name:8s} error {op.sqrt(op.mse(guess, image)).item():.4f}")


if __name__ == "__main__":
    main()
