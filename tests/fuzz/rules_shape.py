"""Rules for views, joins, reads and writes by places, creation, and products of tensors."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draw import Drawer
from tests.fuzz.program import spelled
from tests.fuzz.rules import options, rule

ALL = "fiucb"


@rule("reshape")
def reshape(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    n = int(np.prod(d.shape_of(x)))
    if d.often(0.3) and n:
        return f"op.reshape({x}, (-1,))"
    shape: list[int] = []
    left = n
    for _ in range(d.int(0, 3)):
        part = d.pick([k for k in range(1, max(left, 1) + 1) if left == 0 or left % k == 0][:12])
        shape.append(part)
        left = left // part if part else 0
    return f"op.reshape({x}, {(*shape, left)})"


@rule("flatten")
def flatten(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    return f"op.flatten({x}{options(d, 0.4, start=(0, 1))})"


@rule("transpose")
def transpose(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    order = list(range(d.rank(x)))
    d.s.shuffle(order)
    return f"op.transpose({x}, {tuple(order)})" if d.often(0.8) else f"op.transpose({x})"


@rule("swapaxes")
def swapaxes(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    return f"op.swapaxes({x}, {d.axis(x)}, {d.axis(x)})"


@rule("moveaxis")
def moveaxis(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    return f"op.moveaxis({x}, {d.axis(x)}, {d.axis(x)})"


@rule("matrix_transpose")
def matrix_transpose(d: Drawer, name: str) -> str:
    return f"op.matrix_transpose({d.take(ALL, low=2)})"


@rule("expand_dims")
def expand_dims(d: Drawer, name: str) -> str:
    x = d.take(ALL, high=3)
    return f"op.expand_dims({x}, {d.int(-d.rank(x) - 1, d.rank(x))})"


@rule("squeeze")
def squeeze(d: Drawer, name: str) -> str:
    x = d.take(ALL, fits=lambda s: 1 in s)
    if d.often(0.5):
        return f"op.squeeze({x})"
    return f"op.squeeze({x}, {d.pick([i for i, n in enumerate(d.shape_of(x)) if n == 1])})"


@rule("broadcast_to")
def broadcast_to(d: Drawer, name: str) -> str:
    x = d.take(ALL, high=3)
    shape = [d.size() if n == 1 and d.often(0.7) else n for n in d.shape_of(x)]
    return f"op.broadcast_to({x}, {tuple([d.pick((1, 2, 3))] * d.int(0, 1) + shape)})"


@rule("broadcast_arrays")
def broadcast_arrays(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    y = d.partner(x)
    return f"op.broadcast_arrays({x}, {y})"


@rule("flip")
def flip(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    return f"op.flip({x}, {d.axes(x)})"


@rule("roll")
def roll(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    if d.often(0.2):
        return f"op.roll({x}, {d.int(-5, 5)})"
    return f"op.roll({x}, {d.int(-5, 5)}, {d.axis(x)})"


@rule("rot90")
def rot90(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=2)
    return f"op.rot90({x}, {d.int(0, 4)}{options(d, 0.3, axes=('(1, 0)', '(-1, -2)'))})"


@rule("slice_")
def slice_(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    ends = [sorted((d.int(0, n), d.int(0, n))) if d.often(0.7) else [0, n] for n in d.shape_of(x)]
    steps = [d.pick((1, 1, 2, 3)) for _ in ends]
    return f"op.slice_({x}, {[a for a, _ in ends]}, {[b for _, b in ends]}, {steps})"


@rule("index")
def index(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    parts = [_part(d, n) for n in d.shape_of(x)[: d.int(1, d.rank(x))]]
    if d.often(0.15):
        parts.insert(d.int(0, len(parts)), "None")
    if d.often(0.15):
        parts.append("...")
    return f"{x}[{', '.join(parts)}]"


def _part(d: Drawer, n: int) -> str:
    match d.pick(("slice", "slice", "back", "int", "all", "array")):
        case "int" if n > 0:
            return str(d.int(-n, n - 1))
        case "array" if n > 0:
            return d.indices(n, (d.pick((1, 2, 3)),), negative=True)
        case "back":
            return f"::{d.pick((-1, -2))}"
        case "slice":
            a, b = sorted((d.int(0, n), d.int(0, n)))
            return f"{a}:{b}:{d.pick((1, 1, 2, 3))}"
    return ":"


@rule("update")
def update(d: Drawer, name: str) -> str:
    x = d.take("fi", low=1)
    how = d.pick(("set", "add", "max", "min"))
    return f"{x}.at[{_part(d, d.shape_of(x)[0])}].{how}({d.number(d.kind(x))})"


@rule("concat")
def concat(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    a = d.int(0, d.rank(x) - 1)
    same = [
        n
        for n, v in d.values.items()
        if v.dtype is d.dtype(x) and _but(tuple(v.shape), a) == _but(d.shape_of(x), a)
    ]
    return f"op.concat([{', '.join([x, *(d.pick(same) for _ in range(d.int(1, 2)))])}], {a})"


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (len(shape), *shape[:axis], *shape[axis + 1 :])


@rule("stack")
def stack(d: Drawer, name: str) -> str:
    x = d.take(ALL, high=3)
    same = [n for n, v in d.values.items() if v.type == d.values[x].type]
    return f"op.stack([{', '.join([x, *(d.pick(same) for _ in range(d.int(0, 2)))])}], {d.int(-d.rank(x) - 1, d.rank(x))})"  # noqa: E501


@rule("meshgrid")
def meshgrid(d: Drawer, name: str) -> str:
    xs = [d.take("fi", low=1, high=1) for _ in range(d.int(1, 2))]
    return f"op.meshgrid({', '.join(xs)}{options(d, indexing=('xy', 'ij'))})"


@rule("shape.split")
def split(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1, fits=lambda s: max(s) > 1)
    a = d.pick([i for i, n in enumerate(d.shape_of(x)) if n > 1])
    n = d.shape_of(x)[a]
    parts = d.pick([k for k in (1, 2, 3, 4) if n % k == 0]) if d.often(0.5) else (d.int(0, n),)
    return f"op.split({x}, {parts}, {a})"


@rule("unstack")
def unstack(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1, fits=lambda s: 0 < min(s[0], s[-1]) <= max(s[0], s[-1]) < 6)
    return f"op.unstack({x}, {d.pick((0, -1))})"


@rule("pad")
def pad(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    widths = [(d.int(0, 3), d.int(0, 2)) for _ in d.shape_of(x)]
    if d.often(0.3) and 0 not in d.shape_of(x):
        mode = d.pick(("edge", "reflect", "symmetric", "wrap"))
        return f"op.pad({x}, {d.pick((1, 3, (1, 2)))}, mode='{mode}')"
    return f"op.pad({x}, {d.int(0, 2) if d.often(0.3) else widths}, {d.number(d.kind(x)) if d.often(0.5) else 0})"  # noqa: E501


@rule("repeat")
def repeat(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    a = d.axis(x)
    n = d.shape_of(x)[a]
    times = [d.int(0, 3) for _ in range(n)] if d.often(0.4) else d.int(0, 3)
    return f"op.repeat({x}, {times}, axis={a})"


@rule("tile")
def tile(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    return f"op.tile({x}, {tuple(d.int(0, 2) if d.often(0.2) else d.int(1, 3) for _ in range(max(d.rank(x), 1)))})"  # noqa: E501


@rule("windows")
def windows(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1, fits=lambda s: s[-1] > 0)
    n = d.shape_of(x)[-1]
    return f"op.windows({x}, {d.int(1, n)}{options(d, stride=(1, 2, 3))})"


@rule("fold_windows")
def fold_windows(d: Drawer, name: str) -> str:
    x = d.take("fi", low=2, fits=lambda s: 0 not in s[-2:])
    count, size = d.shape_of(x)[-2:]
    stride, dilation = d.int(1, 3), d.int(1, 2)
    n = (count - 1) * stride + (size - 1) * dilation + 1 + d.int(0, stride - 1)
    return f"op.fold_windows({x}, ({n},), {stride}, {dilation})"


@rule("frame")
def frame(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1, fits=lambda s: s[-1] > 1)
    return f"op.frame({x}, {d.int(1, d.shape_of(x)[-1])}, {d.int(1, 4)})"


@rule("overlap_add")
def overlap_add(d: Drawer, name: str) -> str:
    return f"op.overlap_add({d.take('fi', low=2)}, {d.int(1, 4)})"


@rule("diagonal")
def diagonal(d: Drawer, name: str) -> str:
    return f"op.diagonal({d.take(ALL, low=2)}{options(d, offset=(-1, 0, 1, 2))})"


@rule("matrix_diag")
def matrix_diag(d: Drawer, name: str) -> str:
    return f"op.matrix_diag({d.take(ALL, low=1, high=2)}{options(d, offset=(-1, 0, 1, 2))})"


@rule("tril", "triu")
def triangle(d: Drawer, name: str) -> str:
    return f"op.{name}({d.take(ALL, low=2)}{options(d, k=(-1, 0, 1, 2))})"


@rule("trace")
def trace(d: Drawer, name: str) -> str:
    return f"op.trace({d.take('fic', low=2)}{options(d, offset=(-1, 0, 1))})"


# Places that are data


@rule("take")
def take(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    a = d.axis(x)
    i = d.indices(d.shape_of(x)[a], d.pick(((), (1,), (3,), (5,), (2, 3))))
    return f"op.take({x}, {i}, axis={a})"


@rule("take_along_axis")
def take_along(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    a = d.axis(x)
    shape = list(d.shape_of(x))
    shape[a] = d.pick((1, 2, 3))
    return f"op.take_along_axis({x}, {d.indices(d.shape_of(x)[a], shape)}, axis={a})"


@rule("put_along_axis")
def put_along(d: Drawer, name: str) -> str:
    x = d.take("fi", low=1)
    a = d.axis(x)
    shape = list(d.shape_of(x))
    shape[a] = min(d.pick((1, 2)), shape[a])
    i = d.indices(d.shape_of(x)[a], shape)
    return f"op.put_along_axis({x}, {i}, {d.new(d.kind(x), shape, dtype=d.spelled_dtype(x))}, axis={a})"


@rule("gather")
def gather(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    axes = d.s.sample(range(d.rank(x)), d.int(1, min(2, d.rank(x))))
    shape = d.pick(((), (2,), (5,), (3, 1), (2, 2)))
    i = [d.indices(d.shape_of(x)[a], shape) for a in axes]
    return f"op.gather({x}, {', '.join(i)}, axes={tuple(axes)})"


@rule("embedding")
def embedding(d: Drawer, name: str) -> str:
    x = d.take("f", low=2, high=2, fits=lambda s: s[0] > 0)
    return f"op.embedding({x}, {d.indices(d.shape_of(x)[0], d.pick(((), (3,), (2, 3))))})"


@rule("scatter", "scatter_add", "scatter_mul", "scatter_max", "scatter_min")
def scatter(d: Drawer, name: str) -> str:
    x = d.take({"scatter": ALL, "scatter_add": "fic", "scatter_mul": "fi"}.get(name, "fiub"), low=1)
    a = d.int(0, d.rank(x) - 1)
    shape = d.pick(((), (2,), (5,)))
    i = d.indices(d.shape_of(x)[a], shape)
    rest = [n for k, n in enumerate(d.shape_of(x)) if k != a]
    v = d.new(d.kind(x), (*shape, *rest), dtype=d.spelled_dtype(x))
    return f"op.{name}({x}, {v}, {i}, axes=({a},))"


@rule("dynamic_slice")
def dynamic_slice(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    sizes = tuple(d.int(0 if d.often(0.1) else min(1, n), n) for n in d.shape_of(x))
    start = [
        d.indices(max(n + 2, 1), ()) if d.often(0.7) else str(d.int(-1, n)) for n in d.shape_of(x)
    ]
    return f"op.dynamic_slice({x}, ({', '.join(start)},), {sizes})"


@rule("dynamic_update_slice")
def dynamic_update_slice(d: Drawer, name: str) -> str:
    x = d.take("fib", low=1)
    sizes = tuple(d.int(min(1, n), n) for n in d.shape_of(x))
    start = [
        d.indices(max(n + 2, 1), ()) if d.often(0.7) else str(d.int(0, n)) for n in d.shape_of(x)
    ]
    v = d.new(d.kind(x), sizes, dtype=d.spelled_dtype(x))
    return f"op.dynamic_update_slice({x}, {v}, ({', '.join(start)},))"


@rule("one_hot")
def one_hot(d: Drawer, name: str) -> str:
    i = d.take("iu", high=2, fresh=0.5)
    return f"op.one_hot({i}, {d.int(1, 6)}{options(d, dtype=('(f64)', '(f32)', '(i32)'), axis=(-1, 0))})"


@rule("nonzero")
def nonzero(d: Drawer, name: str) -> str:
    x = d.take("fib", low=1)
    return f"op.nonzero({x}, size={d.int(1, 5)}{options(d, fill=(0, -1))})"


# Creation


@rule("arange")
def arange(d: Drawer, name: str) -> str:
    args = d.pick(("4", "1, 7, 2", "5, 0, -2", "0.5, 2.0, 0.25", "0", "17"))
    return f"op.arange({args}{options(d, 0.3, dtype=(f'({d.floats[0]})', '(i32)'))})"


@rule("linspace")
def linspace(d: Drawer, name: str) -> str:
    a, b = d.take("f", high=1), d.pick(("1.0", "2.5", "-1.0"))
    return f"op.linspace({a}, {b}, num={d.int(1, 7)}{options(d, 0.3, endpoint=(False, True))})"


@rule("full", "zeros", "ones")
def full(d: Drawer, name: str) -> str:
    dtype = d.pick((*d.floats, d.whole, "bool_"))
    kind = {"b": "b", "i": "i", "u": "u"}.get(dtype[0], "f") if not dtype.startswith("bf") else "f"
    value = f", {d.number(kind)}" if name == "full" else ""
    return f"op.{name}({d.shape()}{value}, dtype={dtype})"


@rule("full_like", "zeros_like", "ones_like")
def like(d: Drawer, name: str) -> str:
    x = d.take(ALL)
    value = f", {d.number(d.kind(x))}" if name == "full_like" else ""
    return f"op.{name}({x}{value})"


@rule("iota")
def iota(d: Drawer, name: str) -> str:
    shape = d.shape(1)
    return (
        f"op.iota({shape}, {d.int(0, len(shape) - 1)}, dtype={d.pick(('i64', 'i32', d.floats[0]))})"
    )


@rule("dim")
def dim(d: Drawer, name: str) -> str:
    x = d.take(ALL, low=1)
    return f"op.dim({x}.shape[{d.axis(x)}])"


@rule("causal_mask")
def causal_mask(d: Drawer, name: str) -> str:
    x = d.take("f", low=2, fits=lambda s: s[-2] <= s[-1])
    return f"op.where(op.causal_mask({x}.shape[-2], {x}.shape[-1]), {x}, {d.number('f')})"


# Products


@rule("matmul")
def matmul(d: Drawer, name: str) -> str:
    x = d.take("fffic", low=1, high=3)
    k = d.shape_of(x)[-1]
    y = _second(d, x, k)
    return f"op.matmul({x}, {y})" if d.often(0.5) else f"{x} @ {y}"


def _second(d: Drawer, x: str, k: int) -> str:
    """The right factor of a product: a value as it is or turned, or a new one."""
    dtype = d.dtype(x)
    plain = [
        n
        for n, v in d.values.items()
        if v.dtype is dtype and len(v.shape) in (1, 2) and v.shape[max(len(v.shape) - 2, 0)] == k
    ]
    turned = [
        n for n, v in d.values.items() if v.dtype is dtype and len(v.shape) == 2 and v.shape[1] == k
    ]
    if plain and d.often(0.5):
        return d.pick(plain)  # type: ignore[no-any-return]
    if turned and d.often(0.6):
        return f"op.swapaxes({d.pick(turned)}, 0, 1)"
    return d.new(d.kind(x), (k, d.size()), dtype=d.spelled_dtype(x))


@rule("einsum")
def einsum(d: Drawer, name: str) -> str:
    x = d.take("ffic", low=1, high=3)
    names = "abc"[: d.rank(x)]
    other = "".join(d.s.sample(names, d.int(0, len(names)))) + ("d" if d.often(0.5) else "")
    sizes = dict(zip(names, d.shape_of(x), strict=True)) | {"d": d.size()}
    y = d.new(d.kind(x), [sizes[n] for n in other], dtype=d.spelled_dtype(x))
    out = "".join(d.s.sample(sorted(set(names + other)), d.int(0, len(set(names + other)))))
    return f"op.einsum('{names},{other}->{out}', {x}, {y})"


@rule("contract")
def contract(d: Drawer, name: str) -> str:
    x = d.take("ffic", low=1, high=3)
    names = "abc"[: d.rank(x)]
    last = names[-1]
    y = d.new(d.kind(x), (d.shape_of(x)[-1], d.size()), dtype=d.spelled_dtype(x))
    out = " ".join([*names[:-1], "d"]) if d.often(0.6) else "d"
    return f"op.contract('{' '.join(names)}, {last} d -> {out}', {x}, {y})"


@rule("vecdot")
def vecdot(d: Drawer, name: str) -> str:
    x = d.take("ffic", low=1)
    return f"op.vecdot({x}, {d.same_shape(x, d.kind(x))}, axis={d.axis(x)})"


@rule("outer", "kron")
def outer(d: Drawer, name: str) -> str:
    x = d.take("fi", low=1, high=1, fits=lambda s: s[0] < 8)
    return f"op.{name}({x}, {d.take(d.kind(x), low=1, high=1, fits=lambda s: s[0] < 8)})"


@rule("tensordot")
def tensordot(d: Drawer, name: str) -> str:
    x = d.take("ffic", low=1)
    n = d.int(1, min(2, d.rank(x)))
    y = d.new(d.kind(x), (*d.shape_of(x)[-n:], d.size()), dtype=d.spelled_dtype(x))
    return f"op.tensordot({x}, {y}, axes={n})"


@rule("cross")
def cross(d: Drawer, name: str) -> str:
    x = d.take("fi", low=1, fits=lambda s: s[-1] == 3)
    return f"op.cross({x}, {d.new(d.kind(x), d.shape_of(x), dtype=d.spelled_dtype(x))})"


@rule("stop_gradient", "barrier", "checkpoint_name", "watch", "ensure")
def passed(d: Drawer, name: str) -> str:
    x = d.take("f")
    more = {
        "checkpoint_name": ", 'h'",
        "watch": f", {x}, to=parts.unseen",
        "ensure": f", op.all({x} == {x}) | True, message='no'",
    }
    return f"{spelled(name)}({x}{more.get(name, '')})"
