"""Thirty-six programs for the commands: symbolic sizes, dictionaries, loops, kernels and operators."""

from __future__ import annotations

HEAD = """
from dataclasses import dataclass

import numpy as np
import tessera as ts
from tessera import KTile, Tensor, block, f32, f64, i32, kernel, nn, op, tile

"""

# By name: the function that commands are asked for, and the program.
PROGRAMS: dict[str, tuple[str, str]] = {
    "symbolic_rows": ("f", """
@ts.jit
def f(x: Tensor["B", 16, f32], w: Tensor[16, "N", f32]):
    return op.softmax(op.gelu(x @ w))
"""),
    "symbolic_sums": ("f", """
@ts.jit
def f(x: Tensor["B", "2*S", f32], y: Tensor["B", "S", f32]):
    return op.sum(x[:, ::2] * y, axis=1)
"""),
    "symbolic_convolution": ("f", """
@ts.jit
def f(x: Tensor["B", 3, "H", "W", f32], w: Tensor[4, 3, 3, 3, f32]):
    return op.relu(op.conv(x, w, padding=1))
"""),
    "symbolic_gradient": ("f", """
@ts.jit
def f(w: Tensor["N", "M", f32], x: Tensor["B", "N", f32]):
    return ts.grad(lambda w: op.mean(op.tanh(x @ w) ** 2))(w)
"""),
    "symbolic_fft": ("f", """
@ts.jit
def f(x: Tensor["B", 32, f32]):
    return op.irfft(op.rfft(x) * 0.5)
"""),
    "integers": ("f", """
@ts.jit
def f(ids: Tensor["B", i32], table: Tensor[10, 4, f32]):
    return op.take(table, ids, axis=0)
"""),
    "sorting": ("f", """
@ts.jit
def f(x: Tensor["B", 8, f32]):
    return op.sort(x, axis=-1), op.argsort(x, axis=-1)
"""),
    "no_arguments": ("f", """
@ts.jit
def f():
    return op.arange(12.0).reshape((3, 4)).sum(axis=0)
"""),
    "scalar": ("f", """
@ts.jit
def f(x: Tensor[f32]):
    return op.exp(x) + 1.0
"""),
    "whole_number_default": ("f", """
@ts.jit
def f(x: Tensor["N", f32], *, power: int = 3):
    return x ** power
"""),
    "dictionary": ("f", """
@ts.jit
def f(params, x):
    return op.relu(x @ params["w"] + params["b"])

if __name__ == "__main__":
    f({"w": ts.ones((4, 3)), "b": ts.zeros((3,))}, ts.ones((2, 4)))
"""),
    "dictionary_results": ("f", """
@ts.jit
def f(x: Tensor["N", f32]):
    return {"mean": op.mean(x), "parts": (x[:1], x * 2)}
"""),
    "nested_trees": ("f", """
@dataclass
class State:
    w: object
    more: object

ts.tree.node(State)

@ts.jit
def f(s, scale):
    return State(s.w * scale, [x + 1 for x in s.more])

if __name__ == "__main__":
    f(State(ts.ones((3,)), [ts.ones(2), ts.zeros(2)]), 2.0)
"""),
    "donated": ("f", """
@ts.jit(donate=["state"])
def f(state, x):
    return {"m": 0.9 * state["m"] + x}

if __name__ == "__main__":
    s = {"m": ts.zeros((8,))}
    for _ in range(3):
        s = f(s, ts.ones((8,)))
"""),
    "donated_annotated": ("f", """
@ts.jit(donate=["x"])
def f(x: Tensor["N", f32]):
    return x + 1
"""),
    "static_argument": ("f", """
@ts.jit(static_argnames=["n"])
def f(x, n):
    return sum((x * i for i in range(n)), x)

if __name__ == "__main__":
    f(ts.ones((5,)), 3)
"""),
    "made_in_main": ("step", """
def main():
    layer = nn.Linear(4, 3, key=ts.key(0))

    @ts.jit
    def step(layer, x):
        return ts.value_and_grad(lambda m: op.sum(m(x) ** 2))(layer)

    for _ in range(2):
        step(layer, ts.ones((2, 4)))

if __name__ == "__main__":
    main()
"""),
    "while_loop": ("f", """
@ts.jit
def f(x: Tensor[6, f32]):
    return ts.while_loop(lambda c: op.sum(c) < 100, lambda c: c * 2 + 1, x)
"""),
    "scan": ("f", """
@ts.jit
def f(x: Tensor["T", 4, f32], h: Tensor[4, f32]):
    return ts.scan(lambda h, v: (op.tanh(h + v), h), h, x)
"""),
    "heat": ("solve", """
@ts.jit
def solve(u: Tensor[32, 32, f64]):
    def turn(i, u):
        near = op.roll(u, 1, 0) + op.roll(u, -1, 0) + op.roll(u, 1, 1) + op.roll(u, -1, 1)
        return u + 0.2 * (near - 4 * u)
    return ts.fori_loop(0, 5, turn, u)
"""),
    "branch": ("f", """
@ts.jit
def f(x: Tensor["N", f32]):
    return ts.cond(op.sum(x) > 0, lambda x: x * 2, lambda x: x - 1, x)
"""),
    "gradient_of_a_loop": ("f", """
@ts.jit
def f(x: Tensor[4, f32]):
    return ts.grad(lambda x: op.sum(ts.fori_loop(0, 3, lambda i, v: op.sin(v), x)))(x)
"""),
    "batched": ("f", """
@ts.jit
def f(x: Tensor["B", 3, 3, f32], y: Tensor["B", 3, f32]):
    return ts.vmap(op.solve)(x + 4 * np.eye(3, dtype=np.float32), y)
"""),
    "kernel_rows": ("scaled", """
@kernel.schedule(block(8))
def scaled(x: KTile["M", "D", f32]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.d) * 2.0
"""),
    "kernel_with_a_number": ("scaled_add", """
@kernel.schedule(block(16))
def scaled_add(x: KTile["N", f32], y: KTile["N", f32], a):
    return tile.load(x) * a + tile.load(y)

if __name__ == "__main__":
    scaled_add(np.ones(37, np.float32), np.ones(37, np.float32), 2.0)
"""),
    "kernel_product": ("matmul", """
@kernel.schedule(block(32, 24).k(16))
def matmul(a: KTile["M", "K", f32], b: KTile["K", "N", f32]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    return acc
"""),
    "kernel_in_jit": ("f", """
@kernel.schedule(block(8))
def twice(x: KTile["M", "D", f32]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.d) * 2.0

@ts.jit
def f(x: Tensor["M", 8, f32]):
    return op.sum(twice(x) + 1, axis=1)
"""),
    "operator": ("f", """
@ts.jit
def f(d: Tensor[8, f64], x: Tensor[8, f64]):
    A = op.diag(d) @ op.circulant(d) + op.diag(d) @ op.diag(d)
    return ts.simplify(A) @ x
"""),
    "operator_argument": ("energy", """
@ts.jit
def energy(A, x):
    return op.sum(x * (A @ x))

if __name__ == "__main__":
    energy(op.diag(ts.tensor(np.arange(1.0, 9.0))), ts.tensor(np.ones(8)))
"""),
    "several": ("", """
@ts.jit
def first(x: Tensor["N", f32]):
    return op.cumsum(x)

@ts.jit
def second(x):
    return first(x) * 2

if __name__ == "__main__":
    second(ts.ones((9,)))
"""),
    "mesh": ("f", """
mesh = ts.dist.Mesh(["dp", "tp"], shape=(2, 2))

@ts.jit
def f(x, w):
    return op.sum(op.relu(x @ w), axis=0)

def cut(shape, axis, name):
    return ts.dist.tensor(np.ones(shape, np.float32), layout=ts.dist.ShardSpec((axis,), (name,)), mesh=mesh)

if __name__ == "__main__":
    f(cut((8, 4), 0, "dp"), cut((4, 8), 1, "tp"))
"""),
    "lambda": ("f", """
f = ts.jit(lambda x: op.softmax(x @ x.T))

if __name__ == "__main__":
    f(ts.ones((4, 3)))
"""),
    "partial": ("f", """
import functools

def power(n, x):
    return x ** n

f = ts.jit(functools.partial(power, 3))

if __name__ == "__main__":
    f(ts.ones(5))
"""),
    "module": ("f", """
class Net(nn.Module):
    a: nn.Linear
    scale: float = 2.0

    def __call__(self, x):
        return self.a(x) * self.scale

f = ts.jit(Net(nn.Linear(4, 3, key=ts.key(0))))

if __name__ == "__main__":
    f(ts.ones((2, 4)))
"""),
    "empty": ("f", """
@ts.jit
def f(x: Tensor[0, 4, f32], y: Tensor["N", 4, f32]):
    return op.concat([x, y]), op.sum(x), op.mean(y, axis=0)
"""),
    "script": ("f", """
f = ts.jit(lambda x: op.cumsum(x))
for i in range(3):
    f(ts.ones((4,)) + i)
"""),
}  # fmt: skip
