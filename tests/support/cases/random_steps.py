"""Steps of random programs: each takes values that are there and makes one more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tessera import op
from tessera.core.dims import substitute
from tessera.core.dtype import bf16, bool_, f16, f32, f64, i8, i32, i64, u8
from tessera.core.errors import TesseraError

SIZES = (1, 1, 2, 3, 5, 7, 11, 13, 16, 17, 19, 23, 31, 33, 37, 61, 64, 67)


class Source(Protocol):
    """Where choices come from: a seed, or Hypothesis."""

    def choice(self, seq: Sequence[Any], /) -> Any: ...
    def randint(self, a: int, b: int, /) -> int: ...
    def random(self) -> float: ...


class Item(NamedTuple):
    """A value, and whether all ways to compute it give the same bits."""

    value: Any
    exact: bool


class Steps:
    """Values, and what makes more of them."""

    def __init__(self, source: Source):
        self.s = source
        self.envs: list[dict[str, int]] = [{}]
        self.items: list[Item] = []
        # Interpreters take their time: most programs are small.
        self.most = self.pick(
            (100,) * 12 + (300,) * 8 + (1000,) * 3 + (4000,)
        )  # elements of a value

    # Choices

    def pick(self, xs: Sequence[Any]) -> Any:
        return self.s.choice(xs)

    def often(self, odds: float) -> bool:
        return self.s.random() < odds

    def size(self, most: int = 70) -> int:
        return self.pick([n for n in SIZES if n <= most])

    # Values

    def sizes(self, x: Any) -> tuple[int, ...]:
        """The shape of a value at the larger sizes."""
        return tuple(
            max(int(substitute(n, env)) for env in self.envs) for n in x.shape
        )  # fmt: skip

    def count(self, x: Any) -> int:
        return int(np.prod(self.sizes(x), dtype=np.int64))

    def static(self, x: Any) -> bool:
        return all(isinstance(n, int) for n in x.shape)

    def take(self, wanted: Callable[[Item], bool] = lambda i: True) -> Item | None:
        """A value, rather a late one."""
        fits = [i for i in self.items if wanted(i)]
        if not fits:
            return None
        return fits[-1] if self.often(0.5) else self.pick(fits)

    def partner(self, x: Any) -> Item:
        """A value that broadcasts to x and has its dtype, or a number."""
        fits = [
            i for i in self.items
            if i.value.dtype is x.dtype and i.value.ndim <= x.ndim
            and all(a == b or a == 1 for a, b in
                    zip(i.value.shape[::-1], x.shape[::-1], strict=False))
        ]  # fmt: skip
        if fits and self.often(0.8):
            return self.pick(fits)
        numbers: dict[str, tuple[Any, ...]] = {
            "f": (0.5, -1.5, 2.0),
            "b": (True, False),
            "c": (0.5, 1j),
        }
        return Item(self.pick(numbers.get(x.dtype.kind, (1, 2, 3))), True)

    # Steps: each takes values and gives one, or nothing where it does not fit

    def steps(self, count: int, names: Sequence[str]) -> list[Any]:
        made = 0
        for _ in range(4 * count):
            try:
                new = getattr(self, self.pick(names))()
            except TesseraError:
                continue
            if new is not None and self.count(new.value) <= self.most:
                self.items.append(new)
                made += 1
            if made == count:
                break
        return self.outputs()

    def outputs(self) -> list[Any]:
        outs = [self.items[-1].value]
        if self.often(0.3):
            outs.append(self.pick(self.items).value)
        return outs

    def unary(self) -> Item | None:
        i = self.take(lambda i: i.value.dtype.kind == "f")
        if i is None:
            return None
        x = i.value
        moved: dict[str, Callable[[], Any]] = {
            "neg": lambda: -x, "abs": lambda: op.abs(x), "square": lambda: op.square(x) * 0.25,
            "relu": lambda: op.relu(x),
        }  # fmt: skip
        near: dict[str, Callable[[], Any]] = {
            "tanh": lambda: op.tanh(x), "exp": lambda: op.exp(op.tanh(x)), "erf": lambda: op.erf(x),
            "sigmoid": lambda: op.sigmoid(x), "log": lambda: op.log(op.abs(x) + 1.0),
            "sqrt": lambda: op.sqrt(op.abs(x) + 0.25), "gelu": lambda: op.gelu(x),
            "rsqrt": lambda: op.rsqrt(op.square(x) + 0.5), "sin": lambda: op.sin(x),
            "silu": lambda: op.silu(x), "softplus": lambda: op.softplus(x),
            "recip": lambda: 1.0 / (op.abs(x) + 0.5), "log1p": lambda: op.log1p(op.abs(x)),
        }  # fmt: skip
        name = self.pick([*moved, *near])
        return Item(moved[name](), i.exact) if name in moved else Item(near[name](), False)

    def arithmetic(self) -> Item | None:
        i = self.take(lambda i: i.value.dtype.kind in "fiuc")
        if i is None:
            return None
        x, j = i.value, self.partner(i.value)
        y, exact = j.value, i.exact and j.exact
        name = self.pick(("add", "sub", "mul", "max", "min", "div", "turned"))
        if x.dtype.kind == "c":
            name = self.pick(("add", "sub", "mul"))
        match name:
            case "add":
                return Item(x + y, exact)
            case "sub" | "turned":
                return Item(x - y if name == "sub" else y - x, exact)
            case "mul":
                return Item(
                    x * y * 0.5 if x.dtype.kind == "f" else x * y, exact and x.dtype.kind != "c"
                )
            case "div":
                if x.dtype.kind != "f":
                    return Item(x // 3, exact)
                return Item(x / (op.abs(y) + 0.5 if not isinstance(y, float) else y), exact)
        return Item((op.maximum if name == "max" else op.minimum)(x, y), exact)

    def compare(self) -> Item | None:
        i = self.take(lambda i: i.exact and i.value.dtype.kind in "fiu")
        if i is None:
            return None
        j = self.partner(i.value)
        if not j.exact:
            return None
        return Item(self.pick((op.lt, op.ge, op.eq, op.ne))(i.value, j.value), True)

    def select(self) -> Item | None:
        c = self.take(lambda i: i.value.dtype.kind == "b")
        if c is None:
            return None
        fits = [
            i for i in self.items if i.value.dtype.kind == "f" and i.value.shape == c.value.shape
        ]
        if not fits:
            return Item(op.logical_not(c.value), True)
        a, b = self.pick(fits), self.pick(fits)
        if a.value.dtype is not b.value.dtype:
            b = Item(0.5, True)
        return Item(op.where(c.value, a.value, b.value), a.exact and b.exact)

    def cast(self) -> Item | None:
        i = self.take(lambda i: i.value.dtype.kind != "c")
        if i is None:
            return None
        to = self.pick((f32, f64, f16, bf16, i32, i8, u8, i64, bool_))
        if to.kind in "iub" and not i.exact:
            return None
        return Item(op.cast(i.value, to), i.exact)

    def view(self) -> Item | None:
        i = self.take(lambda i: i.value.ndim > 0)
        if i is None:
            return None
        x = i.value
        how = self.pick(("transpose", "slice", "flip", "reshape", "expand", "broadcast", "roll"))
        match how:
            case "transpose":
                order = list(range(x.ndim))
                self.pick_order(order)
                return Item(op.transpose(x, order), i.exact)
            case "flip":
                return Item(op.flip(x, self.axis(x)), i.exact)
            case "expand":
                return Item(op.expand_dims(x, self.s.randint(0, x.ndim)), i.exact)
            case "broadcast":
                return Item(op.broadcast_to(x, (self.pick((1, 3, 5)), *x.shape)), i.exact)
            case "reshape":
                return Item(self.reshaped(x), i.exact)
            case "roll" if self.static(x):
                a = self.axis(x)
                return Item(op.roll(x, self.s.randint(0, max(x.shape[a], 1)), a), i.exact)
        return Item(self.sliced(x), i.exact) if self.static(x) else None

    def axis(self, x: Any) -> int:
        return self.s.randint(0, x.ndim - 1)

    def reshaped(self, x: Any) -> Any:
        flat = op.reshape(x, (-1,)) if 0 not in x.shape else op.reshape(x, (0,))
        if not self.static(x) or self.often(0.4):
            return flat
        n = self.count(x)
        parts = [k for k in (2, 3, 4, 5, 7, 11, 16) if n % k == 0]
        return op.reshape(flat, (self.pick(parts), -1)) if parts and n else flat

    def sliced(self, x: Any) -> Any:
        start, stop, step = [], [], []
        for n in x.shape:
            a, b = sorted((self.s.randint(0, n), self.s.randint(0, n)))
            whole = self.often(0.5)
            start.append(0 if whole else a)
            stop.append(n if whole else b)
            step.append(self.pick((1, 1, 2, 3)))
        return op.slice_(x, start, stop, step)

    def pad(self) -> Item | None:
        i = self.take(lambda i: i.value.ndim > 0 and i.value.dtype.kind in "fi")
        if i is None:
            return None
        widths = [(self.s.randint(0, 3), self.s.randint(0, 2)) for _ in i.value.shape]
        return Item(op.pad(i.value, widths, self.pick((0, 1))), i.exact)

    def concat(self) -> Item | None:
        i = self.take(lambda i: i.value.ndim > 0)
        if i is None:
            return None
        fits = [
            j for j in self.items
            if j.value.dtype is i.value.dtype and j.value.shape == i.value.shape
        ]  # fmt: skip
        parts = [i, *(self.pick(fits) for _ in range(self.s.randint(1, 2)))]
        f = self.pick((op.concat, op.stack))
        return Item(f([p.value for p in parts], self.axis(i.value)), all(p.exact for p in parts))

    def fold(self) -> Item | None:
        i = self.take(lambda i: i.value.dtype.kind in "fiub" and i.value.ndim > 0)
        if i is None:
            return None
        x, kind = i.value, i.value.dtype.kind
        names = {
            "b": ("any", "all"),
            "f": ("sum", "sum", "max", "min", "mean", "var", "logsumexp", "prod"),
        }
        name = self.pick(names.get(kind, ("sum", "max", "min", "prod")))
        axes = sorted({self.axis(x) for _ in range(self.s.randint(1, x.ndim))})
        if 0 in [x.shape[a] for a in axes] and name not in ("sum", "any", "all", "prod"):
            name = "sum"
        if name == "prod" and kind == "f":
            x = op.tanh(x)
        made = getattr(op, name)(x, tuple(axes), keepdims=self.often(0.5))
        return Item(made, i.exact and (kind != "f" or name in ("max", "min")))

    def normed(self) -> Item | None:
        i = self.take(lambda i: i.value.dtype.kind == "f" and i.value.ndim > 0)
        if i is None or 0 in i.value.shape:
            return None
        x, a = i.value, self.axis(i.value)
        match self.pick(("softmax", "layernorm", "rmsnorm", "log_softmax", "centred", "scaled")):
            case "softmax":
                return Item(op.softmax(x, a), False)
            case "log_softmax":
                return Item(op.log_softmax(x, a), False)
            case "layernorm":
                return Item(op.layernorm(x, axis=a, eps=0.5), False)
            case "rmsnorm":
                return Item(op.rmsnorm(x, axis=a, eps=0.5), False)
            case "centred":
                return Item(x - op.mean(x, a, keepdims=True), False)
        return Item(x / (op.max(op.abs(x), a, keepdims=True) + 0.5), False)

    def product(self) -> Item | None:
        """A contraction of two values that are in the pool, in any of its forms."""
        i = self.take(lambda i: i.value.dtype.kind == "f" and i.value.ndim >= 2)
        if i is None:
            return None
        x = i.value
        *_, m, k = self.sizes(x)
        if m * m * k > 10 * self.most or m * k * k > 10 * self.most:
            return None
        y = (
            op.matmul(x, op.swapaxes(x, -1, -2))
            if self.often(0.5)
            else op.matmul(op.swapaxes(x, -1, -2), x)
        )
        return Item(y * 0.125, False)

    def picked(self) -> Item | None:
        """Elements at places that are data."""
        i = self.take(lambda i: i.value.ndim > 0 and 0 not in i.value.shape)
        if i is None:
            return None
        x, a = i.value, self.axis(i.value)
        n = self.pick((1, 3, 17))
        where = op.remainder(op.iota((n,), 0, i64) * 5 + 2, max(min(self.sizes(x)[a], 9), 1))
        places = [
            j for j in self.items if j.exact and j.value.dtype in (i32, i64) and j.value.ndim == 1
        ]
        if places and self.often(0.7):
            where = self.pick(places).value
        return Item(op.take(x, where, axis=a), i.exact)

    def scattered(self) -> Item | None:
        i = self.take(
            lambda i: (
                i.value.ndim in (1, 2) and 0 not in i.value.shape and i.value.dtype.kind in "fi"
            )
        )
        if i is None or not self.static(i.value):
            return None
        x, n = i.value, self.pick((1, 4, 19))
        where = op.remainder(op.iota((n,), 0, i64) * 7 + 3, x.shape[0] + 1) - self.pick((0, 1))
        value = op.cast(op.broadcast_to(op.iota((n,), 0, i32), (n,)), x.dtype)
        if x.ndim == 2:
            value = op.broadcast_to(op.expand_dims(value, 1), (n, x.shape[1]))
        f = self.pick((op.scatter, op.scatter_add, op.scatter_max))
        return Item(f(x, value, where), i.exact and f is not op.scatter_add)

    def scanned(self) -> Item | None:
        i = self.take(lambda i: i.value.ndim > 0 and i.value.dtype.kind in "fi")
        if i is None:
            return None
        x, a, back = i.value, self.axis(i.value), self.often(0.5)
        name = self.pick(("cumsum", "cummax", "cummin", "recurrence"))
        if name == "recurrence" and x.dtype.kind == "f":
            return Item(op.linear_recurrence(op.tanh(x), x, a, back), False)
        f = {"cummax": op.cummax, "cummin": op.cummin}.get(name, op.cumsum)
        return Item(f(x, a, back), i.exact and (name.startswith("cumm") or x.dtype.kind == "i"))

    def sorted(self) -> Item | None:
        i = self.take(lambda i: i.value.ndim > 0 and i.value.dtype.kind in "fiu")
        if i is None or not self.static(i.value) or 0 in i.value.shape:
            return None
        x, a, down = i.value, self.axis(i.value), self.often(0.5)
        match self.pick(("sort", "argsort", "topk", "argmax")):
            case "argsort" if i.exact:
                return Item(op.argsort(x, a, down), True)
            case "argmax" if i.exact:
                return Item(op.argmax(x, a), True)
            case "topk":
                values, places = op.topk(x, self.s.randint(1, x.shape[a]), a, down)
                return Item(places if i.exact and self.often(0.5) else values, i.exact)
        return Item(op.sort(x, a, down), i.exact)
