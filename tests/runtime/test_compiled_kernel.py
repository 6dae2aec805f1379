"""Compiled kernels: what the Tile interpreter computes, bit for bit, on any number of threads."""

import pickle
import threading

import numpy as np
import pytest

from tessera.core.dims import symbol
from tessera.core.dtype import bool_, f32, f64, i32, i64
from tessera.core.errors import DTypeError, OperandError, OutOfMemoryError, ShapeError
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.target.cpu.entry import LlvmFunction
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder
from tessera.runtime.kernel import CompiledKernel, address, compile_kernels
from tessera.runtime.threads import threads

M, N = symbol("M"), symbol("N")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with override(cache_dir=tmp_path_factory.mktemp("cache")):
        yield


def add():
    """z = x + y, 16 elements an instance."""
    b = Builder("add")
    x, y = (b.parameter(name, TensorType(f32, (N,))) for name in "xy")
    z = b.parameter("z", TensorType(f32, (N,)), writable=True)
    at = (b.program((N + 15) // 16) * 16,)
    left, right = (b.load(m, at, (16,), masked=(0,)) for m in (x, y))
    b.store(z, b.apply("add", left, right), at, (16,), masked=(0,))
    return b.finish()


def centred():
    """y = (x - max of the row)^2 / their sum, through a row of scratch."""
    b = Builder("centred")
    x = b.parameter("x", TensorType(f32, (M, N)))
    y = b.parameter("y", TensorType(f32, (M, N)), writable=True)
    i, row = b.program(M), b.alloc(f32, (N,))
    low = float("-inf")
    with b.loop(0, N, 16, [b.full(f32, (16,), low)]) as l:
        v = b.load(x, (i, l.variable), (1, 16), (1,), masked=(1,), fill=low)
        l.carry(b.apply("max", l.carried[0], v))
    top = b.fold("max", l.results[0], 0)
    with b.loop(0, N, 16, [b.full(f32, (16,), 0.0)]) as l:
        d = b.apply("sub", b.load(x, (i, l.variable), (1, 16), (1,), masked=(1,)), top)
        b.store(row, b.apply("mul", d, d), (l.variable,), (16,), masked=(0,))
        l.carry(b.apply("add", l.carried[0], b.load(row, (l.variable,), (16,), masked=(0,))))
    total = b.fold("add", l.results[0], 0)
    with b.loop(0, N, 16) as l:
        v = b.load(row, (l.variable,), (16,), masked=(0,))
        b.store(y, b.apply("div", v, total), (i, l.variable), (1, 16), (1,), masked=(1,))
    return b.finish()


def transposed():
    """y = x transposed, in blocks of 4 by 16 on a grid of two axes."""
    b = Builder("transposed")
    x = b.parameter("x", TensorType(i32, (M, N)))
    y = b.parameter("y", TensorType(i32, (N, M)), writable=True)
    i, j = b.program((M + 3) // 4) * 4, b.program((N + 15) // 16) * 16
    v = b.load(x, (i, j), (4, 16), masked=(0, 1))
    b.store(y, v, (j, i), (16, 4), axes=(1, 0), masked=(0, 1))
    return b.finish()


def compared():
    """mask = x < y, and the count of rows as a number: three dtypes and a fixed size."""
    b = Builder("compared")
    x, y = (b.parameter(name, TensorType(f64, (M, 5))) for name in "xy")
    mask = b.parameter("mask", TensorType(bool_, (M, 5)), writable=True)
    number = b.parameter("number", TensorType(i64, (M,)), writable=True)
    i = b.program(M)
    left, right = (b.load(m, (i, 0), (1, 5), (1,)) for m in (x, y))
    b.store(mask, b.apply("lt", left, right), (i, 0), (1, 5), (1,))
    b.store(number, b.index(M - i, (1,)), (i,), (1,))
    return b.finish()


def dtype_of(p):
    return np.dtype(p.type.dtype.np)


def arguments(kernel, env, rng):
    """Random inputs, and outputs full of rubbish."""
    out = []
    for p in kernel.parameters:
        shape = [n if isinstance(n, int) else env[str(n)] for n in p.type.shape]
        out.append(rng.integers(-100, 100, shape).astype(dtype_of(p)))
        if out[-1].dtype.kind == "f":
            out[-1] *= rng.random(shape).astype(dtype_of(p))
    return out


KERNELS = {f.__name__: f() for f in (add, centred, transposed, compared)}
SIZES = [{"M": m, "N": n} for m, n in ((1, 1), (1, 17), (3, 16), (2, 100), (37, 5), (300, 33))]


@pytest.fixture(scope="module")
def compiled():
    programs = [program(k) for k in KERNELS.values()]
    return dict(zip(KERNELS, compile_kernels(programs), strict=True))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_equals_interpreted_bit_for_bit(compiled, name, n):
    kernel, rng = KERNELS[name], np.random.default_rng(n)
    for env in SIZES * 2:  # the second time from what is remembered of the first
        wanted = arguments(kernel, env, rng)
        got = [a.copy() for a in wanted]
        interpret(kernel, wanted)
        with threads(n):
            compiled[name].run(got)
        for p, a, b in zip(kernel.parameters, got, wanted, strict=True):
            assert a.tobytes() == b.tobytes(), (env, p)


def test_addresses_are_those_of_numpy():
    a = np.zeros((5, 7), np.int16)
    views = (a, a[2:], a[1:, 3:], a.T, a[:0], np.zeros(()), np.arange(3.0).view(np.int64))
    for x in views:
        assert address(x) == x.ctypes.data


def test_one_kernel_from_several_python_threads(compiled):
    rng = np.random.default_rng(3)
    bad = []

    def caller(n, x):
        y, wanted = np.empty_like(x), np.empty_like(x)
        interpret(KERNELS["centred"], [x, wanted])
        with threads(n):
            for _ in range(200):
                y[:] = 0
                compiled["centred"].run([x, y])
                if y.tobytes() != wanted.tobytes():
                    bad.append(n)

    inputs = [rng.standard_normal((20, 40 + n)).astype(np.float32) for n in range(4)]
    callers = [threading.Thread(target=caller, args=(n % 3 + 1, x)) for n, x in enumerate(inputs)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert bad == []


def test_the_program_says_what_a_launch_needs():
    p = program(KERNELS["centred"])
    assert (p.name, p.symbol, p.sizes, p.count) == ("centred", "centred", ("M", "N"), M)
    assert [str(x) for x in p.parameters] == ["x: f32[M,N]", "y: f32[M,N]"]
    assert [x.writable for x in p.parameters] == [False, True]
    assert isinstance(p, LlvmFunction)


def test_no_instances_is_no_work():
    b = Builder("nothing")
    y = b.parameter("y", TensorType(f32, (0,)), writable=True)
    at = (b.program(0),)
    b.store(y, b.full(f32, (1,), 1.0), at, (1,))
    CompiledKernel(program(b.finish())).run([np.zeros(0, np.float32)])


def test_many_shapes_are_not_kept_for_ever(compiled):
    for n in range(1, 1100):
        x = np.ones(n, np.float32)
        z = np.zeros_like(x)
        compiled["add"].run([x, x, z])
        assert (z == 2).all()
    assert len(compiled["add"]._jobs) <= 1024


def test_scratch_beyond_the_memory_of_the_machine_is_an_error_before_anything_runs():
    b = Builder("greedy")
    y = b.parameter("y", TensorType(f32, (N,)), writable=True)
    i = b.program(N)
    b.alloc(f32, (N * 2**50,))
    b.store(y, b.full(f32, (1,), 1.0), (i,), (1,))
    kernel, out = CompiledKernel(program(b.finish())), np.zeros(4, np.float32)
    with pytest.raises(OutOfMemoryError, match=f"needs {2**54} bytes of scratch memory"):
        kernel.run([out])
    assert not out.any()


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def read_only():
    a = ones(4)
    a.flags.writeable = False
    return a


def unaligned():
    return np.frombuffer(bytes(17), np.float32, 4, 1)


ERRORS = [
    ([ones(4)], OperandError, "add: got 1 arrays, expected 3: x: f32[N], y: f32[N], z: f32[N]"),
    ([ones(4), [1.0] * 4, ones(4)], OperandError,
     "add: y is a list, expected a NumPy array for y: f32[N]"),
    ([ones(4), ones(4, dtype=np.float64), ones(4)], DTypeError,
     "add: y has elements float64, expected y: f32[N]"),
    ([ones(4), ones(4).astype(">f4"), ones(4)], DTypeError,
     "add: y has elements >f4, expected y: f32[N]"),
    ([ones(8)[::2], ones(4), ones(4)], OperandError,
     "add: x is not contiguous, expected x: f32[N] in row-major order and aligned; pass a copy"),
    ([unaligned(), ones(4), ones(4)], OperandError,
     "add: x is not aligned, expected x: f32[N] in row-major order and aligned; pass a copy"),
    ([ones(4), ones(4), read_only()], OperandError,
     "add: z is not writable, expected z: f32[N] in row-major order and aligned; pass a copy"),
    ([ones(4), ones(5), ones(4)], ShapeError,
     "axis 0 of y is 5, but N is 4 (N = 4 from axis 0 of x)"),
    ([ones(4), ones(4, 1), ones(4)], ShapeError, "y has rank 2 [4, 1], expected rank 1 [N]"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "kind", "text"), ERRORS, ids=[text for *_, text in ERRORS])
def test_wrong_arguments_are_named(compiled, arrays, kind, text):
    with pytest.raises(kind) as e:
        compiled["add"].run(arrays)
    assert e.value.message == text


def test_inputs_may_be_read_only_and_dtypes_need_not_be_the_same_object(compiled):
    x = pickle.loads(pickle.dumps(ones(4)))
    z = np.zeros(4, pickle.loads(pickle.dumps(np.dtype(np.float32))))
    compiled["add"].run([read_only(), x, z])
    assert (z == 2).all()
