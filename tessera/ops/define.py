"""How ops are written: `define` for one op, `unary`, `binary`... for families.

An op is a record (tessera.ir.graph.op.Op) and a public function.  The function takes what a user
types, settles dtypes, broadcasting and axes, and binds the op on operands that fit its record:

    @define(view=..., numpy=np.flip, linear=(0,), transpose=..., samples=(Sample((2, 3), axis=0),))
    def flip(x: ArrayLike, axis: AxisLike = None) -> Value:
        "Reverse the order of the elements along axes."
        x = as_value(x)
        return flip.bind(x, axes=axes_of("flip", axis, x.ndim))
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from tessera.core.arrays import as_numpy, is_foreign
from tessera.core.blame import MISFITS, blamed, brief
from tessera.core.counterparts import lacking
from tessera.core.device import ANYWHERE
from tessera.core.dims import Dim, Shape, Size
from tessera.core.dtype import DType, as_dtype, bool_, c64, c128, f32, f64, i64
from tessera.core.errors import (
    AxisError,
    DTypeError,
    OperandError,
    PolicyError,
    ShapeError,
    TesseraError,
    located,
    out_of_memory,
    too_deep,
)
from tessera.core.flags import flags
from tessera.core.promotion import holds, limits, meet_scalar, promote_all
from tessera.core.provided import Provided
from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS, Expr, arg
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType, check_size
from tessera.ir.graph.ir import Value, bind, concrete, current_builder, held_array, holding, origin
from tessera.ir.graph.op import Op, Sample, register
from tessera.ops.describe import described

P = ParamSpec("P")
R = TypeVar("R")
ArrayLike = Any  # a Value, a Python number, a NumPy array, or nested sequences of numbers
AxisLike = int | Sequence[int] | None
FLOATS = "fc"

FUNCTIONS: dict[str, OpFunction[..., Value]] = {}  # every public op function by name


_LOOKED_AT = 256  # one in so many calls is looked at, whether it should be compiled


LOOK_AT_CALL: Provided[Callable[..., None]] = Provided(
    "look at call", "what looks at now and then a call: it gets the function and its arguments"
)


class OpFunction(Generic[P, R]):
    """An op as users call it."""

    def __init__(self, op: Op, front: Callable[P, R]):
        self.op, self.front = op, front
        self.__name__ = self.__qualname__ = front.__name__
        self.__wrapped__ = front
        self.__module__ = front.__module__
        self.calls = 0
        self._caller: Any = None  # calls this function without Python where a record allows it

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self.calls += 1
        if not self.calls % _LOOKED_AT and LOOK_AT_CALL.value is not None:
            LOOK_AT_CALL.value(self, args, kwargs)
        try:
            result = self.front(*args, **kwargs)
            if getattr(result, "device", ANYWHERE) is ANYWHERE:
                kind = result.__class__
                for x in args:
                    if x.__class__ is not kind:
                        return owned(result, args)
            return result
        except TesseraError as e:
            error: Exception = with_origins(located(e), args)
        except MISFITS as e:
            error = blamed(self.__name__.rstrip("_"), self.front, args, kwargs, e)
        except RecursionError:
            error = located(too_deep(self.__name__))
        except MemoryError as e:
            error = located(out_of_memory(self.__name__, e))
        raise error

    def bind(self, *operands: Value, **params: Any) -> Value:
        """Apply an op of one result to operands that fit its record."""
        result: Value = bind(self.op, *operands, **params)
        return result

    def bind_many(self, *operands: Value, **params: Any) -> tuple[Value, ...]:
        """Apply an op of several results to operands that fit its record."""
        results: tuple[Value, ...] = bind(self.op, *operands, **params)
        return results

    def __getattr__(self, name: str) -> Any:
        """A name looked up in an op as if it were a module, np.fft.rfft, is told where it is."""
        raise lacking(f"op.{self.__dict__.get('__name__', '')}", name, (), {"op": FUNCTIONS})

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What help() shows: the op's sentence, its call, axes, dtypes and an example."""
        return described(self.op, self.front)

    def __repr__(self) -> str:
        return f"<op {self.op.name}>"


def with_origins(error: TesseraError, operands: Sequence[Any]) -> TesseraError:
    """The error, telling where each traced operand came from."""
    if not error.origins and isinstance(error, ShapeError | DTypeError):
        found = [(i, v, origin(v)) for i, v in enumerate(operands) if isinstance(v, Value)]
        traced = (f"operand {i} {v.type} is from {o}" for i, v, o in found if o)
        each = (x if isinstance(x, list | tuple) else (x,) for x in operands)
        error.origins = (*traced, *laid_out("operands", [v for x in each for v in x]))
    return error


_SHOWN = 8  # tensors of which a message shows the layout


def laid_out(what: str, values: Sequence[Any]) -> tuple[str, ...]:
    """A line with the layouts of tensors on a mesh: operands are f32[64@dp, 32], f32[8] on mesh dp=2."""
    tensors = [v for v in values if isinstance(v, Value)]
    mesh = next((v.storage.mesh for v in tensors if _on_mesh(v)), None)  # type: ignore[union-attr]
    if mesh is None:
        return ()
    shown: list[Any] = [v.storage.layout.show(v.type) if _on_mesh(v) else v.type for v in tensors]  # type: ignore[union-attr]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return (f"{what} are {', '.join(map(str, shown[:_SHOWN]))}{more} on mesh {mesh}",)


@contextmanager
def showing_layouts(arguments: Sequence[Any]) -> Iterator[None]:
    """Errors in the block about shapes and dtypes show the layouts of arguments on a mesh."""
    try:
        yield
    except (ShapeError, DTypeError) as e:
        e.origins = (*e.origins, *laid_out("arguments", arguments))
        raise


def _on_mesh(v: Value) -> bool:
    return v.device.kind == "mesh" and v.storage is not None


_VALUES = (Value, float, int, str, type(None), DType)  # arguments that lend no memory


def owned(result: R, args: Sequence[Any]) -> R:
    """A result with memory of its own: arrays of other libraries among the arguments may be written to
    later.
    """
    data: Any = getattr(result, "storage", None)
    if data.__class__ is np.ndarray and data.base is None:  # its own, or an argument itself
        for x in args:
            if x is data:
                return concrete(np.array(data), result.dtype)  # type: ignore[attr-defined, return-value]
            if x.__class__ is not np.ndarray and not isinstance(x, _VALUES):
                break  # an array of another library may be this one under another name
        else:
            return result
    return result if all(isinstance(x, _VALUES) for x in args) else _apart(result, args, data)


def _apart(result: R, args: Sequence[Any], data: Any) -> R:
    """A result that shares no memory with arguments, some of which lend theirs."""
    if result.__class__ is tuple:
        parts: Any = tuple([owned(r, args) for r in result])  # type: ignore[attr-defined]
        return parts  # type: ignore[no-any-return]
    if not isinstance(result, Value) or result.device is not ANYWHERE or result.storage is None:
        return result
    for x in args:
        for a in x if isinstance(x, _SEQUENCES) else (x,):
            if type(a) is not np.ndarray:
                a = as_numpy(a, "tensor") if _is_lent(a) else None
            if a is not None and np.may_share_memory(data, a):
                return concrete(np.array(data), result.dtype)  # type: ignore[return-value]
    return result


_SEQUENCES = (list, tuple)


def _is_lent(x: Any) -> bool:
    return not isinstance(x, _VALUES) and (isinstance(x, np.ndarray) or is_foreign(x))


def publish(f: OpFunction[..., Value] | Any, name: str) -> None:
    """Enter a function in FUNCTIONS and in the public names of the module that defines it."""
    FUNCTIONS[name] = f
    depth = 1
    while sys._getframe(depth).f_globals["__name__"] == __name__:
        depth += 1
    sys._getframe(depth).f_globals.setdefault("__all__", []).append(name)


def define(**record: Any) -> Callable[[Callable[P, R]], OpFunction[P, R]]:
    """Decorator: the op whose public function this is."""

    def wrap(front: Callable[P, R]) -> OpFunction[P, R]:
        name = record.pop("name", front.__name__.rstrip("_"))
        f = OpFunction(register(Op(name, (front.__doc__ or "").strip(), **record)), front)
        publish(f, front.__name__)
        return f

    return wrap


def public(front: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a function of users that is written with ops and is no op itself."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = front(*args, **kwargs)
            if getattr(result, "device", ANYWHERE) is ANYWHERE:
                return owned(result, args)
            return result
        except TesseraError as e:
            error: Exception = with_origins(located(e), args)
        except MISFITS as e:
            error = blamed(front.__name__.rstrip("_"), front, args, kwargs, e)
        except RecursionError:
            error = located(too_deep(front.__name__))
        except MemoryError as e:
            error = located(out_of_memory(front.__name__, e))
        raise error

    call.__name__ = call.__qualname__ = front.__name__
    call.__doc__, call.__module__ = front.__doc__, front.__module__
    call.__wrapped__ = front  # type: ignore[attr-defined]
    sys._getframe(1).f_globals.setdefault("__all__", []).append(front.__name__)
    return call


# Operands -------------------------------------------------------------------------------------


def as_value(x: ArrayLike, op: str = "tensor") -> Value:
    """x as a value: Python floats become f32, integers i64."""
    if isinstance(x, Value):
        return cast_to(x, _DEFAULT[x.dtype.kind]) if x.weak else x
    if x.__class__ is np.ndarray and x.dtype.kind in "biufc":
        return held_array(x if current_builder() is None else np.array(x))
    if isinstance(x, bool | int | float | complex):
        return concrete(_representable(x, op), as_dtype(type(x)))
    if isinstance(x, Dim):
        return size_value(x)
    if hasattr(x, "__tessera_value__"):  # an operator, whose matrix may be traced
        return as_value(x.__tessera_value__(), op)
    if isinstance(x, np.ndarray | np.generic) or is_foreign(x):
        array = as_numpy(x, op)
        # A traced program keeps the array: what is written to it later must not show.
        return concrete(array if current_builder() is None else np.array(array))
    if isinstance(x, list | tuple):
        return _from_sequence(x, op)
    raise OperandError(
        f"{op}: cannot take {type(x).__name__} {brief(x)} as a tensor; pass a Tensor, a NumPy array "
        "or numbers"
    )


def kept_value(x: ArrayLike, op: str = "tensor") -> Value:
    """x as a value of its own: an array of another library may be written to later, so it is copied."""
    v = as_value(x, op)
    if current_builder() is not None or not _is_lent(x) or not isinstance(v.storage, np.ndarray):
        return v
    return holding(v.type, np.array(v.storage), v.device)


def _representable(x: Any, op: str) -> Any:
    if type(x) is int and not holds(i64, x):
        raise DTypeError(
            f"{op}: an integer of {x.bit_length()} bits does not fit i64; write a float"
        )
    return x


def as_value_of(dtype: DType, x: ArrayLike, op: str) -> Value:
    """x as a value; Python floats that a wider dtype holds are not rounded to f32 on the way."""
    v = as_value(x, op)
    plain = isinstance(x, float | complex | list | tuple) and not isinstance(x, np.generic)
    if plain and v.dtype.kind in FLOATS and dtype.kind in ("c", v.dtype.kind):
        return concrete(round_to(np.asarray(x), dtype), dtype)
    return v


def _from_sequence(x: Sequence[Any], op: str) -> Value:
    if any(isinstance(v, Value) for v in x):
        raise OperandError(
            f"{op}: got a {type(x).__name__} of tensors; join them with op.stack(...)"
        )
    try:
        array = np.asarray(x)
    except ValueError as e:
        raise OperandError(f"{op}: nested sequences of different lengths are no tensor") from e
    if array.dtype.kind == "O" or array.dtype.kind in "US":
        raise OperandError(f"{op}: cannot take a {type(x).__name__} of {_held(array)} as a tensor")
    default = {"f": f32, "i": i64, "c": as_dtype("c64")}.get(array.dtype.kind)
    return concrete(array, default if array.dtype.kind in "fic" else None)


def _held(array: np.ndarray[Any, Any]) -> str:
    """What a sequence holds that is no number."""
    if array.dtype.kind in "US":
        return str(array.dtype)
    found = [v for v in array.flat if not isinstance(v, int | float | complex)]
    return type(found[0]).__name__ if found else "integers beyond 64 bits"


def size_value(size: Size) -> Value:
    """A symbolic size as an i64 scalar."""
    return FUNCTIONS["dim"](size)


def cast_to(x: Value, dtype: DType) -> Value:
    """x in this dtype."""
    return x if x.dtype is dtype else FUNCTIONS["cast"].bind(x, dtype=dtype)


def wide(*values: Value) -> tuple[Value, ...]:
    """Values in the format that arithmetic on them happens in."""
    return tuple(cast_to(v, v.dtype.compute) if v.dtype.is_narrow else v for v in values)


def broadcast(x: Value, shape: Shape) -> Value:
    """x broadcast to this shape."""
    return x if x.type.shape == shape else FUNCTIONS["broadcast_to"].bind(x, shape=shape)


def full_of(shape: Shape, value: Any, dtype: DType) -> Value:
    """A value of one number."""
    return FUNCTIONS["full"].bind(shape=shape, value=value, dtype=dtype)


def floating(x: Value, beside: DType = f32) -> Value:
    """x, or when it is of integers or bools its f32; its f64 beside what has that precision."""
    if x.dtype.kind in FLOATS:
        return x
    return cast_to(x, f64 if beside in (f64, c128) else f32)


def meet(op: str, operands: Sequence[ArrayLike], floats: bool = False) -> list[Value]:
    """Operands as values of one dtype and one shape, by promotion and broadcasting."""
    values = [x if isinstance(x, Value) or _is_scalar(x) else as_value(x, op) for x in operands]
    tensors = [v for v in values if isinstance(v, Value) and not v.weak]
    if not tensors:
        tensors = values = [as_value(x, op) for x in operands]
    dtype = tensors[0].dtype
    if any(v.dtype is not dtype for v in tensors):
        dtype = _promoted(op, tensors)
    for x in values:
        if not isinstance(x, Value):
            dtype = _meet_number(op, dtype, x)
        elif x.weak:
            dtype = _meet_number(op, dtype, _KINDS[x.dtype.kind])
    if floats and dtype.kind not in FLOATS:
        dtype = f32
    shape = tensors[0].type.shape
    if any(v.type.shape != shape for v in tensors):
        shape = broadcast_shapes(op, [v.type for v in tensors])
    return [_fit(op, x, dtype, shape) for x in values]


def _fit(op: str, x: Any, dtype: DType, shape: Shape) -> Value:
    if isinstance(x, Value):
        if x.weak and x.dtype.kind == "i" and dtype.kind in "iu" and flags().checked:
            x = _checked_number(op, x, dtype)
        return broadcast(cast_to(x, dtype), shape)
    if isinstance(x, Dim):
        return broadcast(cast_to(size_value(x), dtype), shape)
    return full_of(shape, x, dtype)


def _checked_number(op: str, x: Value, dtype: DType) -> Value:
    """A Python number of a traced function, which must fit the integers that it meets under ts.checked()."""
    low, high = limits(dtype)
    user, most = f"{op}: the integer", min(high, (1 << 63) - 1)
    return FUNCTIONS["checked_index"].bind(
        x, user=user, low=low, high=most, what=str(dtype), skip=None
    )


def _is_scalar(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex | Dim) and not isinstance(x, np.generic)


# The dtype of a Python number that meets no tensor, and a number of each kind.
_DEFAULT = {"b": bool_, "i": i64, "f": f32, "c": c64}
_KINDS: dict[str, Any] = {"b": False, "i": 0, "f": 0.0, "c": 0j}


def _promoted(op: str, tensors: Sequence[Value]) -> DType:
    try:
        return promote_all([v.dtype for v in tensors])
    except PolicyError as e:
        raise PolicyError(f"{op}: {e.message}") from None
    except DTypeError as e:
        raise DTypeError(f"{op}: {e.message}") from None


def _meet_number(op: str, dtype: DType, x: Any) -> DType:
    if isinstance(x, Dim):
        return dtype
    if isinstance(x, int) and not holds(dtype, x):
        raise DTypeError(f"{op}: the integer {x} does not fit {dtype}; cast the tensor with astype")
    return i64 if dtype.kind == "b" and type(x) is int else meet_scalar(dtype, x)


# Axes -----------------------------------------------------------------------------------------


def axis_of(op: str, axis: Any, rank: int) -> int:
    """An axis counted from the front."""
    if isinstance(axis, Value) and axis.ndim:
        joins = op in ("concat", "stack")
        hint = f"tensors go in a list, op.{op}([x, y])" if joins else "expected an integer"
        raise AxisError(f"{op}: the axis is a tensor, {axis.type}; {hint}")
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise AxisError(f"{op}: axis {axis!r} is not an integer")
    k = int(axis)
    if not -rank <= k < rank:
        raise AxisError(
            f"{op}: axis {k} is out of range for rank {rank}"
            + (f"; use {-rank} to {rank - 1}" if rank else "; a scalar has no axes")
        )
    return k % rank


def axes_of(op: str, axis: AxisLike, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in the order given; None means all."""
    if axis is None:
        return tuple(range(rank))
    if not isinstance(axis, tuple | list):
        return (axis_of(op, axis, rank),)
    axes = tuple(axis_of(op, a, rank) for a in axis)
    if len(set(axes)) != len(axes):
        raise AxisError(f"{op}: axis {tuple(axis)} names an axis twice")
    return axes


def shape_of(op: str, shape: Any) -> Shape:
    """A shape from an int, a size or a sequence of them."""
    whole = isinstance(shape, Dim) or hasattr(shape, "__index__")
    sizes = (shape,) if whole else tuple(iterable(op, shape))
    out: list[Size] = []
    for s in sizes:
        if not isinstance(s, Dim) and not hasattr(s, "__index__"):
            raise OperandError(f"{op}: {s!r} in shape {sizes} is not a size")
        n: Size = s if isinstance(s, Dim) else operator.index(s)
        if isinstance(n, int) and n < 0:
            raise OperandError(f"{op}: size {n} in shape {sizes} is negative")
        out.append(n)
    return check_size(op, tuple(out))


def iterable(op: str, shape: Any) -> Any:
    """A shape that is a sequence of sizes."""
    if isinstance(shape, str | dict) or not hasattr(shape, "__iter__"):
        raise OperandError(
            f"{op}: the shape is {type(shape).__name__} {shape!r:.40}, expected sizes"
        )
    return shape


def letters(rank: int, start: int = 0) -> list[str]:
    """Axis names for signatures that are written for a rank."""
    return [f"a{i}" for i in range(start, start + rank)]


# Families -------------------------------------------------------------------------------------


def elementwise_type(types: Sequence[TensorType]) -> str:
    """The signature of an elementwise op of this many operands."""
    return ", ".join(["..."] * len(types)) + " -> ..."


def _body(name: str, arity: int, body: Expr | None) -> Expr:
    return body or Expr(name, tuple(map(arg, range(arity))))


def unary(
    name: str,
    doc: str,
    *,
    scalar: str | None = None,
    body: Expr | None = None,
    floats: bool = False,
    front: Callable[..., Value] | None = None,
    **record: Any,
) -> OpFunction[[ArrayLike], Value]:
    """out[i] = f(x[i]); f is the scalar op of the same name unless given otherwise.

    `front` is the function of users where that takes more than x.
    """
    row = scalar or name
    if floats:
        record.setdefault("kinds", FLOATS)
    if body is None:
        record.setdefault("numpy", SCALARS[row].numpy)
    record.setdefault("samples", (Sample((3,)), Sample((2, 3)), Sample(()), Sample((0, 2))))
    op = register(Op(name, doc, signature="... -> ...", body=_body(row, 1, body), **record))

    def usual(x: ArrayLike, /) -> Value:
        v = as_value(x, name)
        return made.bind(floating(v) if floats else v)

    taken: Callable[[ArrayLike], Value] = front or usual
    made = _family(op, taken)
    return made


def binary(
    name: str,
    doc: str,
    *,
    scalar: str | None = None,
    body: Expr | None = None,
    floats: bool = False,
    by_number: Callable[[Value, int | float], Value | None] | None = None,
    **record: Any,
) -> OpFunction[[ArrayLike, ArrayLike], Value]:
    """out[i] = f(x[i], y[i]) after promotion and broadcasting.

    `by_number` may know a shorter way where y is a number that the program writes.
    """
    row = scalar or name
    if floats:
        record.setdefault("kinds", FLOATS)
    if body is None:
        record.setdefault("numpy", SCALARS[row].numpy)
    record.setdefault(
        "samples", (Sample((3,), (3,)), Sample((2, 3), (3,)), Sample((), ()), Sample((0, 2), (1,)))
    )
    op = register(Op(name, doc, signature="..., ... -> ...", body=_body(row, 2, body), **record))

    def front(x: ArrayLike, y: ArrayLike, /) -> Value:
        if (
            isinstance(x, Value)
            and isinstance(y, Value)
            and x.type is y.type
            and not x.weak
            and (not floats or x.type.dtype.kind in FLOATS)
        ):
            return made.bind(x, y)
        if by_number is not None and type(y) in (int, float):
            v = as_value(x, name)
            short = None if v.weak else by_number(v, y)
            if short is not None:
                return short
        return made.bind(*meet(name, (x, y), floats))

    made = _family(op, front)
    return made


def _family(op: Op, front: Callable[P, R]) -> OpFunction[P, R]:
    front.__name__ = op.name
    front.__module__ = sys._getframe(2).f_globals["__name__"]
    f = OpFunction(op, front)
    publish(f, op.name)
    return f
