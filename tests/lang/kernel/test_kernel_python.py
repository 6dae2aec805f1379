"""Python within kernels: lists, dictionaries, lambda, def, and, or, not; what messages say of habits."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, kernel, tile
from tessera.lang.kernel.kernel_habits import WRITE

ROOT = Path(__file__).parents[3]
HEAD = (
    "import math\nimport numpy as np\nimport tessera as ts\n"
    "from tessera import KTile, block, f32, kernel, tile\n"
    "EPS = np.float32(0.5)\n"
    "NAMES = ['a']\n"
    "def near(v):\n    return 1 if (0 < v[0] < 3 or v[0] == 4) else 0\n"
)


def made(body: str) -> Any:
    """The kernel of these statements over x: f32[N], in blocks of 4."""
    lines = "".join(f"    {s}\n" for s in body.split("\n"))
    head = '@kernel.schedule(block(4))\ndef f(x: KTile["N", f32]):\n    t = tile.load(x)\n'
    text = HEAD + head + lines
    name = f"body_{abs(hash(body))}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    given: dict[str, Any] = {}
    exec(compile(text, name, "exec"), given)
    return given["f"]


def three_ways(body: str, x: Any) -> Any:
    """What a kernel gives, the same bits in all ways of running it."""
    f = made(body)
    got = f(x).numpy()
    for step in (False, True):
        with ts.interpret(step=step):
            assert f(x).numpy().tobytes() == got.tobytes(), step
    return got


X = np.arange(6, dtype=np.float32)
VALUES = [
    ("xs = []; xs.append(t); xs.extend([t + 1]); return xs[0] * xs[-1]", X * (X + 1)),
    ("xs = [*[t], t + 1]; a, *b = (*xs, 2); return a + b[0] * b[1]", X + (X + 1) * 2),
    ("xs = [t, t]; xs[0] = t + 1; xs.reverse(); return xs.pop() - xs[0]", X * 0 + 1),
    ("d = {'a': t, **{'b': 2}}; d['c'] = 3; return d['a'] * d['b'] + d['c']", X * 2 + 3),
    ("d = {k: t * k for k in (1, 2)}; return sum(v * k for k, v in d.items())", X * 5),
    ("return sum(a * b for a in (1, 2) for b in (t, t + 1) if a > 1)", 4 * X + 2),
    ("s = f'{x.ndim:03d}'; return t * int(s) + len(s)", X + 3),
    ("return (u := t * 2) + u", X * 4),
    ("us = [w := t + i for i in range(3)]; return us[0] + w", 2 * X + 2),
    ("k = 1; f = lambda v, w=3: v * k + w; k = 5; return f(t)", X * 5 + 3),
    ("def g(a, *rest, scale=1, **named):\n    return a * scale + sum(rest) + named['z']\n"
     "return g(t, t, 1, scale=2, z=3)", 3 * X + 4),
    ("return tile.scan(t, lambda a, b: a + b, axis=0)", np.array([0, 1, 3, 6, 4, 9])),
    ("def top(a, b):\n    return max(a, b)\nreturn t - tile.reduce(t, top, axis=0, keepdims=True)",
     X - np.array([3, 3, 3, 3, 5, 5])),
    ("return tile.where(1 < t < 4, t, -1)", np.where((X > 1) & (X < 4), X, -1)),
    ("return tile.where(t > 1 and t < 4 and not t == 2, t, -1)", np.where(X == 3, X, -1)),
    ("return tile.where(t < 1 or t > 4, t, -1)", np.where((X < 1) | (X > 4), X, -1)),
    ("return t + near(t)", X + np.array([0, 0, 0, 0, 1, 1])),
    ("return t if not (t[0] > 3 or x.shape[0] < 3) else -t", np.array([0, 1, 2, 3, -4, -5])),
    ("return t + (1 if t[0] > 3 else 2) / 4", X + np.array([0.5, 0.5, 0.5, 0.5, 0.25, 0.25])),
    ("return max(t, 2) - min(t, 2) + abs(-t) + round(t * 0.75)",
     np.maximum(X, 2) - np.minimum(X, 2) + X + np.rint(X * 0.75)),
    ("a, b = divmod(t, 2); return a * 10 + b", X // 2 * 10 + X % 2),
    ("return t + int(t[1] * 1.5) + len(t)", X + np.array([5, 5, 5, 5, 11, 11])),
    ("return t * np.array(2.0) + np.float32(1.5) + EPS + np.int64(1)", X * 2 + 3),
    ("return tile.where(any([t > 4, t < 1]), t, -1)", np.where((X > 4) | (X < 1), X, -1)),
    ("return tile.where(all(t > k for k in (1, 2)), t, -1)", np.where(X > 2, X, -1)),
    ("order = sorted([3, 1], key=lambda v: v); return t * order[0]", X),
    ("u = t * 0\nfor i in tile.range(3):\n    xs = [t * j for j in range(3)]\n    xs.append(t)\n"
     "    u = u + sum(xs)\n"
     "return u", X * 12),
    ("xs = [t]\nif tile.sum(t) > 6:\n    xs = [*xs, t * 2]\nelse:\n    xs = [*xs, t * 3]\n"
     "return xs[0] + xs[1]",
     np.array([0, 4, 8, 12, 12, 15])),
    ("i = 0\nwhile i < 3 and t[0] + i < 6:\n    i += 1\nreturn t + i", X + np.array([3, 3, 3, 3, 2, 2])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "want"), VALUES, ids=[b.replace("\n", " ")[:50] for b, _ in VALUES]
)
def test_pythons_values_mean_in_kernels_what_they_mean_in_python(body: str, want: Any) -> None:
    body = body.replace("; ", "\n") if "\n" not in body else body
    np.testing.assert_array_equal(three_ways(body, X), np.asarray(want, np.float32))


OUTSIDE = (
    "a list or dictionary that was made outside of a branch or a loop that data decide is not changed inside "
    "of it; carry tiles, or make a new one: xs = [*xs, x]"
)
OWN = (
    "['a'] is an argument or a name around the kernel, which changes only what it makes; copy it: list(x), "
    "dict(x)"
)
WRONG = [
    ("xs = []\nif t[0] > 1:\n    xs.append(t)\nreturn t", OUTSIDE),
    ("xs = []\nfor i in tile.range(3):\n    xs.append(t)\nreturn t", OUTSIDE),
    ("xs = {}\ndef f(a, b):\n    xs['a'] = a\n    return a + b\nreturn tile.scan(t, f, axis=0)", OUTSIDE),
    ("xs = [1]\nwhile t[0] < 3:\n    xs[0] = 2\n    t = t + 1\nreturn t", OUTSIDE),
    ("NAMES.append('b')\nreturn t", OWN),
    ("NAMES[0] = 'b'\nreturn t", OWN),
    ("def f(n):\n    return f(n)\nreturn f(t)", "f calls itself; a kernel cannot"),
    ("f = lambda a, b: a\nreturn f(t)", "lambda(a, b): missing a required argument: 'b'"),
    ("a, *b, c = (t,)\nreturn a", "1 values for at least 2 names"),
    ("tile.print(f'{t}')\nreturn t",
     "a text of tile f32[4] is known when the kernel runs; tile.print takes tiles beside texts"),
    ("return sum(t)", "sum: got tile f32[4], expected several values; write tile.sum(x)"),
    ("return t + any(t)", "any: got tile f32[4], expected several values; write tile.any(x)"),
    ("return 1 in t", "in: got tile f32[4], expected a sequence of Python; write tile.any(t == x)"),
    ("return t if t > 1 else -t",
     "a condition needs one truth value, got bool[4]; use tile.where for elements"),
    ("return np.exp(t)", "exp is a Python function that knows no tiles; write tile.exp"),
    ("return np.cumsum(t)",
     "cumsum is a Python function that knows no tiles; write tile.scan(x, 'add', axis)"),
    ("return t.sum()", "a tile has no 'sum'; write tile.sum(x)"),
    ("return t.to(f32)", "a tile has no 'to'; write tile.cast(x, dtype)"),
    ("return x.T",
     "x: f32[N] is a tensor in memory and has no 'T'; it has shape, dtype and ndim, and tile.load gives a "
     "tile of it"),
    ("return tile.clip(t, 0, 1)", "tile has no 'clip'; write tile.minimum(tile.maximum(x, low), high)"),
    ("return tile.lode(x)", "tile has no 'lode'; did you mean tile.load?"),
    ("return tile.umulhi(t, t)", "tile has no 'umulhi'; there is none: cast to i64 before the product"),
    ("return tile.where(t > 0, t)", "tile.where(condition, x, y): missing a required argument: 'y'"),
    ("return tile.arange(0, 8)",
     "arange: the dtype is 8; it begins at 0: write start + tile.arange(stop - start)"),
    ("return tile.maximum(t)", "maximum: got 1 operands, expected 2"),
    ("return tile.sqrt('a')", "sqrt: got 'a', expected a tile or a number"),
    ("return tile.load(x, other=0)",
     "there is no hint other; there are vector, stages, swizzle, prefetch; what lies outside is fill="),
    ("tile.store(x, t)\nreturn x",
     "a kernel returns tiles, got x: f32[N]; the call returns what is stored to without a return"),
    ("return {'a': t}", "a kernel returns tiles, got {'a': tile f32[4]}; return several in a tuple"),
    ("return x", "a kernel returns tiles, got x: f32[N]; load a tile of it with tile.load"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "message"), WRONG, ids=[b.replace("\n", " ")[:50] for b, _ in WRONG]
)
def test_a_habit_of_other_languages_has_its_message(body: str, message: str) -> None:
    f = made(body)
    for step in (False, True):
        with pytest.raises(ts.TesseraError) as e, ts.interpret(step=step):
            f(X)
        assert e.value.message == message


def test_a_name_of_triton_is_there_or_its_message_says_what_to_write() -> None:
    table = (ROOT / "docs" / "from-triton.md").read_text()
    lines = [x.split("|")[1] for x in table.splitlines() if x.startswith("| `tl.")]
    names = {n for x in lines for n in re.findall(r"`tl\.([a-z0-9_]+)", x)}
    missing = names - set(dir(tile)) - set(WRITE) - {n for n in names if n.startswith(_OF_TRITON)}
    assert missing == set()
    assert set(WRITE).isdisjoint(dir(tile))


# Types, and the machinery of Triton: nothing of it has a place in a kernel.
_OF_TRITON = (
    "int", "uint", "float", "bfloat", "pi32", "dtype", "void", "const", "block_type", "pointer", "to_tensor",
    "extra", "target_info", "tuple", "math", "condition", "expect_zero", "map_elementwise", "load_tensor",
    "store_tensor", "tensor_descriptor", "atomic_load", "atomic_store", "atomic_poll", "philox_impl",
    "rand4x", "randint4x", "randn4x", "pair_uniform", "uint_to", "slice", "bitonic_merge",
)  # fmt: skip


@kernel.schedule(block(4))
def stopped(x: KTile["N", f32]):
    t = tile.load(x)
    inside = t > 1 and t < 4
    return tile.where(inside, t, 0)


def test_stepping_shows_the_users_source() -> None:
    import sys

    seen: list[tuple[str, int]] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "stopped" and event == "line":
            seen.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    with ts.interpret(step=True):
        sys.settrace(trace)
        try:
            stopped(X[:4])
        finally:
            sys.settrace(before)
    first = stopped.function.__code__.co_firstlineno
    assert [line - first for _, line in seen] == [2, 3, 4]
    assert {file for file, _ in seen} == {__file__}
