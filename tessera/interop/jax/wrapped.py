"""ts.jax.wrap: a function of tensors as a function of JAX arrays.

A call is one primitive of JAX whose parameter is a program: a function of flat tensors.  Outside of jax.jit
it runs at once; inside, XLA calls it back.  The programs of derivatives and batches are made by our own
transforms and kept, so that JAX, which compares parameters, compiles no program twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from tessera.core.blame import demand_function
from tessera.core.dtype import as_dtype
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.types import TensorType
from tessera.interop.jax.library import Primitive, ad, batching, jax, mlir
from tessera.ir.graph.ir import Value
from tessera.lang.jit import jit
from tessera.lang.trace import trace
from tessera.lang.transforms import jvp, vjp
from tessera.lang.vmap import vmap
from tessera.ops.creation import zeros

Flat = Callable[..., list[Value]]  # a function of flat tensors


class JaxProgram:
    """A function of flat tensors and the programs that are made of it."""

    def __init__(self, f: Flat, name: str):
        self.f, self.name = f, name
        self.run = jit(f)
        self._types: dict[Any, list[TensorType]] = {}
        self._made: dict[Any, JaxProgram] = {}

    def types(self, avals: Sequence[Any]) -> list[TensorType]:
        """The types of the results for arguments of these shapes and dtypes."""
        key = tuple((tuple(a.shape), np.dtype(a.dtype)) for a in avals)
        if key not in self._types:
            types = [TensorType(as_dtype(d), s) for s, d in key]
            blank = tuple(np.zeros(()) for _ in types)
            graph = trace(self.f, blank, {}, types, self.name).graph
            self._types[key] = [v.type for v in graph.outputs]
        return self._types[key]

    def on_host(self, *xs: Any) -> list[Any]:
        """The results as NumPy arrays, in the dtypes that JAX expects."""
        out = self.run(*(np.asarray(x) for x in xs))
        return [np.asarray(y).astype(_jax_dtype(y.dtype), copy=False) for y in out]

    def made(self, key: Any, make: Callable[[], Flat]) -> JaxProgram:
        """The program made by a transform."""
        if key not in self._made:
            self._made[key] = JaxProgram(make(), self.name)
        return self._made[key]

    # Programs made of this one

    def tangent(self, moved: tuple[int, ...], outs: tuple[int, ...]) -> JaxProgram:
        """(*arguments, *tangents of those that move) -> the tangents of these results."""

        def make() -> Flat:
            def push(*xs: Value) -> list[Value]:
                n = len(xs) - len(moved)

                def of(*parts: Value) -> list[Value]:
                    whole = list(xs[:n])
                    for i, x in zip(moved, parts, strict=True):
                        whole[i] = x
                    found = self.f(*whole)
                    return [found[k] for k in outs]

                return jvp(of, tuple(xs[i] for i in moved), xs[n:])[1]  # type: ignore[no-any-return]

            return push

        return self.made(("tangent", moved, outs), make)

    def transposed(self, known: tuple[int, ...], avals: tuple[Any, ...]) -> JaxProgram:
        """(*known arguments, *cotangents) -> the cotangents of the others, in which it is linear."""

        def make() -> Flat:
            def pull(*xs: Value) -> list[Value]:
                fixed, cts = dict(zip(known, xs, strict=False)), xs[len(known) :]

                def of(*parts: Value) -> list[Value]:
                    left = iter(parts)
                    count = len(known) + len(parts)
                    return self.f(*(fixed[i] if i in fixed else next(left) for i in range(count)))

                start = [zeros(shape, as_dtype(dtype)) for shape, dtype in avals]
                return list(vjp(of, *start)[1](list(cts)))

            return pull

        return self.made(("transposed", known, avals), make)

    def batched(self, axes: tuple[int | None, ...]) -> JaxProgram:
        """One call for all elements of a batch."""
        return self.made(("batched", axes), lambda: vmap(self.f, in_axes=axes))


def _jax_dtype(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(dtype.np)


call_p = Primitive("tessera_call")
call_p.multiple_results = True


def _abstract(*avals: Any, program: JaxProgram) -> Any:
    return [
        jax.core.ShapedArray(tuple(map(int, t.shape)), _jax_dtype(t.dtype))
        for t in program.types(avals)
    ]


def _at_once(*xs: Any, program: JaxProgram) -> Any:
    return [jax.numpy.asarray(y) for y in program.on_host(*xs)]


def _lowered(*xs: Any, program: JaxProgram) -> Any:
    results = [jax.ShapeDtypeStruct(tuple(t.shape), _jax_dtype(t.dtype)) for t in program.types(xs)]
    return jax.pure_callback(program.on_host, results, *xs)


def _jvp(primals: Any, tangents: Any, program: JaxProgram) -> Any:
    outs = call_p.bind(*primals, program=program)
    moved = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    real = tuple(k for k, y in enumerate(outs) if jax.numpy.issubdtype(y.dtype, np.inexact))
    push = program.tangent(moved, real)
    found = iter(call_p.bind(*primals, *(tangents[i] for i in moved), program=push))
    return outs, [
        next(found) if k in real else ad.Zero(jax.typeof(y).to_tangent_aval())
        for k, y in enumerate(outs)
    ]


def _transpose(cts: Any, *args: Any, program: JaxProgram) -> Any:
    known = tuple(i for i, x in enumerate(args) if not ad.is_undefined_primal(x))
    avals = tuple(
        (tuple(x.aval.shape), np.dtype(x.aval.dtype)) for x in args if ad.is_undefined_primal(x)
    )
    pull = program.transposed(known, avals)
    whole = [ad.instantiate_zeros(ct) for ct in cts]
    found = iter(call_p.bind(*(args[i] for i in known), *whole, program=pull))
    return [None if i in known else next(found) for i in range(len(args))]


def _batch(args: Any, dims: Any, program: JaxProgram) -> Any:
    axes = tuple(dims)
    outs = call_p.bind(*args, program=program.batched(axes))
    return outs, [0] * len(outs)


call_p.def_abstract_eval(_abstract)
call_p.def_impl(_at_once)
mlir.register_lowering(call_p, mlir.lower_fun(_lowered, multiple_results=True))
ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose
batching.primitive_batchers[call_p] = _batch


def wrap(f: Callable[..., Any]) -> Callable[..., Any]:
    """What ts.jax.wrap is, once JAX is there."""
    demand_function("wrap", f)
    programs: dict[Any, tuple[JaxProgram, list[Any]]] = {}

    def made(structure: Any) -> tuple[JaxProgram, list[Any]]:
        if structure not in programs:
            out: list[Any] = []  # the structure of the results, once f was traced

            def flat(*xs: Value) -> list[Value]:
                args, kwargs = jax.tree_util.tree_unflatten(structure, xs)
                leaves, found = jax.tree_util.tree_flatten(f(*args, **kwargs))
                out[:] = [found]
                return list(leaves)

            programs[structure] = JaxProgram(flat, getattr(f, "__name__", "function")), out
        return programs[structure]

    @wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        program, out = made(structure)
        try:
            results = call_p.bind(*map(_array, leaves), program=program)
        except TesseraError as e:
            error = located(e)
        else:
            return jax.tree_util.tree_unflatten(out[0], results)
        raise error

    return call


def _array(x: Any) -> Any:
    if isinstance(x, Value):
        return jax.numpy.asarray(np.asarray(x))
    try:
        return jax.numpy.asarray(x)
    except (TypeError, ValueError):
        raise OperandError(
            f"wrap: an argument holds {type(x).__name__} {x!r:.40}, expected arrays and numbers in trees; "
            "bind other values with functools.partial"
        ) from None
