"""The families of the operator library in docs/tsol.md: what they mean, take, promise and refuse.

    python -m tools.tsol_guide

What people write stands here; dtypes, counts, targets and the texts of errors come from the records and
from wrong calls.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tessera as ts
from tessera import op
from tessera.cli.ops import OpRow, op_rows
from tessera.core.errors import TesseraError
from tessera.ir.graph.op import REGISTRY

PAGE = Path(__file__).parent.parent / "docs" / "tsol.md"
MARKED = re.compile(r"<!-- families -->\n.*?<!-- /families -->\n", re.DOTALL)


class Family(NamedTuple):
    """Ops of one kind."""

    title: str
    modules: str  # the families of `tessera ops` in it
    meaning: str
    bits: str  # the determinism class
    gradient: str
    wrong: str  # a call that is refused


EXACT = "Each element by itself: the same bits for any shape, threads, tiles and batch, and under `strict` on every processor (what the host computes is refused there)."  # noqa: E501
TREE = "Folds are fixed chains and a balanced tree over leaves of fixed length: the same bits for any threads, tiles, schedules and batch neighbours on one target."  # noqa: E501
MOVES = "Elements are moved, none is changed: exact."
HOST = "A library of the host computes it (LAPACK): the same bits for the same library; signs, orders and ties are defined ([replay.md](replay.md))."  # noqa: E501
GPU = "[gpu.md](gpu.md) lists what the host of a GPU computes"
FAMILIES = (
    Family("Elementwise", "elementwise activation special distributions orthogonal bessel reinterpret",
           "A scalar function at every element. Operands broadcast; dtypes promote as in "
           "[numerics.md](numerics.md). Elementary functions are our own, with bounds in ulp.",
           EXACT, "From the table of scalar functions; at kinks the convention of the op's line in "
                  "[ops.md](ops.md). None of comparisons, integers and bits.",
           "op.add(ts.ones((2, 3)), ts.ones((2, 4)))"),
    Family("Reductions and statistics", "reduction statistics softmax segments numeric norms differences",
           "A fold over named or numbered axes; an empty fold is the identity or an error. `softmax` and "
           "`logsumexp` do not overflow.",
           TREE, "Yes; equal largest (or smallest) elements share that of `max` (`min`). None of counts and "
                 "places.",
           "op.sum(ts.ones((2, 3)), axis=2)"),
    Family("Running folds", "accumulate", "Prefixes along an axis, forward or reverse; integers in 64 bits.",
           TREE, "Yes.", "op.cumsum(ts.ones((2, 3)), axis=5)"),
    Family("Products", "contraction linalg matrix blocks sparse polynomials",
           "Sums of products over named axes: `matmul`, `einsum`, norms, sparse and blocked forms. "
           "Accumulation is the policy's (f32 for 16-bit floats).",
           TREE, "Yes, linear in each operand.", "op.matmul(ts.ones((2, 3)), ts.ones((4, 5)))"),
    Family("Solvers, factorisations, spectra", "factor solve spectrum banded matrix_function",
           "`solve`, `cholesky`, `qr`, `svd`, `eigh` and functions of matrices, batched over leading axes. "
           "A singular or indefinite matrix is an error, not NaN.",
           HOST, "Yes, where the mathematics has one (distinct singular and eigenvalues).",
           "op.inv(ts.zeros((2, 2)))"),
    Family("Shapes and creation", "shape arrange joining creation grids windows unpack",
           "Views and rearrangements, and tensors from numbers. A view takes no memory; sizes may be "
           "symbolic.", MOVES, "Yes: the transpose of the move.",
           "op.reshape(ts.ones((2, 3)), (4, 2))"),
    Family("Indexing", "gather dynamic_slice indexing",
           "Elements at places that data hold. Places outside are an error where they are checked, or "
           "clamped where the op says so ([indexing.md](indexing.md)).",
           "Reads are exact; the sums of a scatter have a fixed order.",
           "Yes, in what is moved; none in places.",
           "op.take(ts.ones((2, 3)), ts.tensor([0.5]))"),
    Family("Sorting, sets and counting", "sorting sets counting",
    "Stable orders; NaN last. Equal elements keep their order, so that ties are defined.",
           MOVES, "Of sorted values, by their places; none of the places.", "op.topk(ts.ones((3,)), 5)"),
    Family("Networks", "neural attending attention_grad normalization batchnorm",
           "Attention in every form, norms with gains, embeddings, experts. Rows without a key attend to "
           "nothing and give 0.",
           TREE, "Yes, with kernels of their own for attention.",
           "op.attention(ts.ones((1, 2, 4, 8)), ts.ones((1, 2, 4, 6)), ts.ones((1, 2, 4, 8)))"),
    Family("Convolutions, pooling, images", "convolution conv_transpose pooling grid_sample resize",
           "Cross-correlation over 1 to 3 axes with strides, dilations, groups and padding; channels second.",
           TREE, "Yes; equal largest elements share that of max pooling.",
           "op.conv2d(ts.ones((1, 3, 8, 8)), ts.ones((4, 2, 3, 3)))"),
    Family("Losses", "loss margins ctc",
    "Means (or sums, or none) of what each row costs; classes by number or as probabilities.",
           TREE, "Yes, in predictions; none in class numbers.",
           "op.cross_entropy(ts.ones((2, 3)), ts.tensor([0, 1, 2]))"),
    Family("Transforms", "fft", "Fourier and cosine transforms of any length, with NumPy's norms.",
           "Own plans: the same bits for any threads and batch on one target.", "Yes, linear.",
           "op.fft(ts.ones((4,)), n=0)"),
    Family("Random", "random random_bits random_gamma",
    "Philox counters by key and logical element: a draw is a function of its key and shape "
    "([effects.md](effects.md)).",
           "Bits are a function of the key and the element, on every target; distributions go through our "
           "own functions.", "In the parameters of a distribution.",
           "op.random.normal(ts.ones((2,)), (3,))"),
    Family("State, control and the host", "state control callbacks remat op",
           "Caches, branches, loops, callbacks and checks. Effects are part of the record, and passes keep "
           "their order.",
           "That of what they hold; a callback is as deterministic as the function it calls.",
           "Through branches, loops and rematerialisation; of a callback where a rule is given.",
           "op.check_numerics(ts.tensor([1.0, float('inf')]), 'loss')"),
    Family("Inside of programs", "inside of programs",
    "Ops that transforms and other ops make; no one calls them by name.", TREE,
    "As the ops that they come from.", ""),
)  # fmt: skip


def refusal(call: str) -> str:
    """The error of a wrong call."""
    try:
        eval(call, {"op": op, "ts": ts, "np": np})
    except TesseraError as e:
        return f"{type(e).__name__}: {e.message}"
    raise AssertionError(f"{call} is not refused")


def modules(f: Family) -> list[str]:
    """The families of `tessera ops` in a family of the guide."""
    return [f.modules] if " of " in f.modules else f.modules.split()


def _members(f: Family, rows: list[OpRow]) -> list[OpRow]:
    names = modules(f)
    return [r for r in rows if r.family in names]


def _dtypes(rows: list[OpRow]) -> str:
    found: dict[str, int] = {}
    for r in rows:
        if r.name in REGISTRY:
            found[r.dtypes] = found.get(r.dtypes, 0) + 1
    listed = sorted(found.items(), key=lambda x: (-x[1], x[0]))
    return (
        "; ".join(f"{d} ({n} op{'s' * (n > 1)})" for d, n in listed) or "as the ops that they call"
    )


def _targets(rows: list[OpRow]) -> str:
    hosted = sorted(r.name for r in rows if "cpu (host)" in r.targets)
    if not hosted:
        return f"machine code for all of them on the CPU; {GPU}"
    if len(hosted) == len(rows):
        return "the host computes all of them"
    listed = ", ".join(f"`{n}`" for n in hosted)
    return f"machine code on the CPU, but for {listed}, which the host computes; {GPU}"


def families() -> str:
    """Every family as Markdown."""
    rows, out = op_rows(), []
    for f in FAMILIES:
        mine = _members(f, rows)
        names = ", ".join(f"`{r.name}`" for r in mine)
        own = sum(r.name in REGISTRY for r in mine)
        parts = [
            f"### {f.title}", f.meaning,
            f"- **Ops** ({own}, and {len(mine) - own} functions written with ops): {names}.",
            f"- **Dtypes**: {_dtypes(mine)}.", f"- **Determinism**: {f.bits}",
            f"- **Gradient**: {f.gradient}", f"- **Targets**: {_targets(mine)}.",
        ]  # fmt: skip
        if f.wrong:
            parts.append(f"- **Errors**: `{f.wrong}` ends in `{refusal(f.wrong)}`.")
        out.append("\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:]) + "\n")
    return "\n".join(out)


def with_families(text: str) -> str:
    """The page with its families as the records have them now."""
    return MARKED.sub(lambda m: f"<!-- families -->\n{families()}<!-- /families -->\n", text)


if __name__ == "__main__":
    PAGE.write_text(with_families(PAGE.read_text()))
