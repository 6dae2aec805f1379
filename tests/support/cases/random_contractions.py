"""Random contractions: one to three operands, whose axes are shared, summed, repeated or kept at will."""

from __future__ import annotations

import numpy as np


def contraction(
    seed: int, sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 17)
) -> tuple[str, list[tuple[int, ...]]]:
    """An einsum and the shapes of its operands."""
    rng = np.random.default_rng([seed, 27])
    letters = "abcdef"[: int(rng.integers(1, 6))]
    size = {a: int(rng.choice(sizes)) for a in letters}
    parts = []
    for _ in range(int(rng.integers(1, 4))):
        n = int(rng.integers(1, min(4, len(letters)) + 1))
        parts.append("".join(rng.choice(list(letters), n, replace=bool(rng.random() < 0.1))))
    used = sorted(set("".join(parts)))
    out = rng.permutation([a for a in used if rng.random() < 0.5])
    return f"{','.join(parts)}->{''.join(out)}", [tuple(size[a] for a in p) for p in parts]
