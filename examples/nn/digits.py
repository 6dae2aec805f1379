"""The data of cnn.py and vit.py: digits of 7 by 5 pixels, drawn somewhere in noisy pictures of 12 by 12."""

from pathlib import Path

import numpy as np

GLYPHS = Path(__file__).parent.parent / "data" / "digits.csv"
SIDE = 12


def digits(rng, n):
    """Pictures (n, 1, SIDE, SIDE) and which digits they show."""
    glyphs = np.loadtxt(GLYPHS, delimiter=",").reshape(10, 7, 5)
    labels = rng.integers(0, 10, n)
    x = rng.normal(scale=0.2, size=(n, 1, SIDE, SIDE))
    for picture, label in zip(x, labels, strict=True):
        i, j = rng.integers(0, (SIDE - 6, SIDE - 4))
        picture[0, i : i + 7, j : j + 5] += glyphs[label]
    return x.astype(np.float32), labels
