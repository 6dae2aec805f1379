"""Tensor: a Value with the methods and operators that NumPy users expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tessera.core import dlpack
from tessera.core.blame import blames_arguments, methods_blame_arguments, unexpected
from tessera.core.deferred import Deferred
from tessera.core.device import GPUS, Device
from tessera.core.dims import Dim
from tessera.core.errors import (
    OperandError,
    ShapeError,
    TesseraError,
    TraceError,
    located,
    out_of_memory,
)
from tessera.core.picture import Plotted
from tessera.core.provided import Provided
from tessera.ir.graph import place
from tessera.ir.graph.ir import Value, data_of, holding, host_data
from tessera.ir.graph.known import known
from tessera.lang import habits, numpy_protocol
from tessera.lang.annotation import TensorSpec, spec_of
from tessera.lang.array_methods import ArrayMethods
from tessera.lang.at import At
from tessera.lang.device import as_device, sent
from tessera.lang.sharding import Shardable
from tessera.ops import contraction, elementwise, indexing, reduction, shape
from tessera.ops.define import AxisLike
from tessera.runtime import memory


def _operator(f: Callable[[Any, Any], Any], swap: bool = False) -> Callable[[Any, Any], Any]:
    """A binary operator; an object that knows what to do with a tensor is left to do it."""

    def apply(self: Any, other: Any) -> Any:
        if not isinstance(other, _OPERANDS) and not hasattr(type(other), "__dlpack__"):
            if not isinstance(other, _NO_OPERANDS) and _has_operators(other):
                return NotImplemented
            raise _no_operand(f, self, other)
        return f(other, self) if swap else f(self, other)

    return apply


def _divmod(x: Any, y: Any) -> Any:
    return elementwise.floor_divide(x, y), elementwise.remainder(x, y)


def _equality(f: Callable[[Any, Any], Value]) -> Callable[[Any, Any], Any]:
    """== and !=: a tensor is unlike what is no tensor."""

    def apply(self: Any, other: Any) -> Any:
        ours = isinstance(other, _OPERANDS) or hasattr(type(other), "__dlpack__")
        return f(self, other) if ours else NotImplemented

    return apply


# What to do where Python asks a traced tensor for its numbers, by what asks.
_RESULT = "return the tensor and convert the result outside of the function"
_REMEDIES = {
    "bool": "for if, while, and, or, in on values use op.where, ts.cond or ts.while_loop, or make what it "
    "depends on static "
    "with static_argnames",
    "index": "for range(n) use ts.fori_loop or ts.scan, for a list op.take, for a slice op.dynamic_slice, "
    "or make n static "
    "with static_argnames",
    "numpy": "compute with ops (np.sin is op.sin), call NumPy by ts.callback, or take the array outside of "
    "the function",
    "item": f"{_RESULT}; ts.print shows a value while the program runs",
}
_REMEDIES |= {
    **dict.fromkeys(("float", "int", "complex"), f"keep it a tensor (x.astype), or {_RESULT}"),
    "numpy.asarray": _REMEDIES["numpy"], "tolist": _REMEDIES["item"],
}  # fmt: skip


def _remedy(what: str) -> str:
    return _REMEDIES.get(what, _RESULT)


# Objects of Python that have operators of their own, but none for tensors.
_NO_OPERANDS = (str, bytes, list, tuple, dict, set, frozenset, type(None), range, slice)


def _has_operators(x: Any) -> bool:
    """Whether an object may know the other side of an operator."""
    cls = type(x)
    return any(hasattr(cls, n) for n in ("__radd__", "__rmul__", "__rmatmul__", "__array_ufunc__"))


def _no_operand(f: Any, x: Value, other: Any) -> TesseraError:
    what = "list" if isinstance(other, list | tuple) else type(other).__name__
    way = "; make it one with ts.tensor" if isinstance(other, list | tuple) else ""
    return located(
        OperandError(
            f"{f.__name__}: cannot take {what} {other!r:.40} beside {x.type}, expected a tensor or a "
            f"number{way}"
        )
    )


_OPERANDS = (Value, bool, int, float, complex, np.ndarray, np.generic, Dim)


def _unary(f: Callable[[Any], Value]) -> Callable[[Any], Any]:
    """A prefix operator as a plain function, which Python binds to the instance."""

    def apply(self: Any) -> Value:
        return f(self)

    return apply


# Uses of a traced value that a number decides, and that its derivative does not flow through.
_DECISIONS = frozenset(("bool", "int", "float", "complex", "index", "item"))


@methods_blame_arguments
class Tensor(Value, Plotted, ArrayMethods, Shardable, habits.Habits):
    """An n-dimensional array on a device, or a traced value inside jit and the transforms.

    `Tensor["B", "S", 64, bf16 @ accum(f32)]` is an annotation: sizes, symbolic or not, and a dtype.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return numpy_protocol.ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, f: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return numpy_protocol.function(f, args, kwargs)

    def __class_getitem__(cls, items: Any) -> TensorSpec:
        return spec_of(items if isinstance(items, tuple) else (items,))

    # Properties

    @property
    def size(self) -> Any:
        """How many elements."""
        size = self.type.size
        return habits.ElementCount(size) if type(size) is int else size

    @property
    def nbytes(self) -> Any:
        """Bytes of the elements."""
        return self.type.size * self._array("nbytes").dtype.itemsize

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The transposed matrix."""
        if self.ndim > 2:
            raise located(
                ShapeError(
                    f"T: {self.type} has {self.ndim} axes; use x.mT for the last two or "
                    "op.transpose(x, axes)"
                )
            )
        return shape.transpose(self)  # type: ignore[return-value]

    @property
    def mT(self) -> Tensor:  # noqa: N802
        """The tensor with its last two axes swapped."""
        return shape.matrix_transpose(self)  # type: ignore[return-value]

    @property
    def H(self) -> Tensor:  # noqa: N802
        """The conjugate transpose over the last two axes."""
        x = elementwise.conj(self) if self.dtype.kind == "c" else self
        return shape.matrix_transpose(x)  # type: ignore[return-value]

    @property
    def real(self) -> Tensor:
        """Real part."""
        return elementwise.real(self)  # type: ignore[return-value]

    @property
    def imag(self) -> Tensor:
        """Imaginary part."""
        return elementwise.imag(self)  # type: ignore[return-value]

    @property
    def at(self) -> At[Tensor]:
        """x.at[index].set(y): a new tensor with some elements replaced."""
        return At(self)

    # Conversion

    def _array(self, what: str) -> np.ndarray[Any, Any]:
        if self.index < 0 and self.builder is None:
            data_of(self, what)  # says that it was donated
        if self.storage is None:
            found = known(self) if what in _DECISIONS else None
            if found is not None:
                return host_data(found)
            raise located(
                TraceError(f"{what}: {self.type} is traced and has no data; {_remedy(what)}")
            )
        if self.device.kind == "cpu":
            return self.storage
        on_device: Any = self.storage
        copy: np.ndarray[Any, Any] = on_device.numpy()
        return copy

    def numpy(self) -> np.ndarray[Any, Any]:
        """The data as a NumPy array that must not be written to."""
        view = self._array("numpy").view()
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        self._array("numpy.asarray")
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self.device.kind in GPUS and self.storage is not None:
            given: Any = self.storage
            return given.__dlpack__(
                stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
            )
        data = self._array("__dlpack__")
        if max_version is not None and max_version >= (1, 0):  # which can say that nobody may write
            return dlpack.give(
                self.numpy(), max_version=max_version, dl_device=dl_device, copy=copy
            )
        if not data.flags.writeable:  # such consumers may write to what they are given
            data = data.copy()
            self.storage = data if self.device.kind == "cpu" else self.storage
        return dlpack.give(data, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.device.kind, self.device.index
        return (GPUS[kind], index) if kind in GPUS else (1, 0)  # of a mesh, the whole of it

    def item(self) -> Any:
        """The only element as a Python number."""
        if self.size != 1:
            raise located(ShapeError(f"item: {self.type} has {self.size} elements, expected 1"))
        return self._array("item").item()

    def tolist(self) -> Any:
        """The data as nested lists of Python numbers."""
        try:
            return self._array("tolist").tolist()
        except MemoryError as e:
            error = located(out_of_memory("tolist", e))
        raise error

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise located(OperandError(f"index: {self.type} is not an integer scalar"))
        return int(self._scalar("index"))

    def _scalar(self, what: str) -> Any:
        data = self._array(what)
        if data.ndim != 0 and (data.size != 1 or what == "index"):
            ways = (
                "use op.any or op.all"
                if what == "bool"
                else "reduce it, as with x.sum(), or take an element"
            )
            raise located(ShapeError(f"{what}: {self.type} is not a scalar; {ways}"))
        return data.reshape(()).item() if data.ndim else data.item()

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """The tensor in another dtype; of the same dtype it is a copy, or with copy=False the tensor
        itself.
        """
        made: Tensor = elementwise.cast(self, dtype)  # type: ignore[assignment]
        shared = copy and isinstance(made.storage, np.ndarray) and made.storage is self.storage
        return on_device(copied(made.storage), made.dtype, made.device) if shared else made

    @blames_arguments
    def to(self, device: Any, *, stream: Any = None, non_blocking: bool = False) -> Tensor:
        """The tensor on another device; the copy from or to a GPU belongs to `stream`, if one is given.

        A copy to a GPU never waits for the device.  One to the host that is `non_blocking` returns at once,
        and who reads the result waits for it.
        """
        try:
            target = as_device(device)
            if stream is not None:
                return sent(self, target, stream, non_blocking)  # type: ignore[no-any-return]
            if non_blocking and target.kind == "cpu" and self.device.kind in GPUS:
                return _fetched(self)  # type: ignore[no-any-return]
            return self._moved(target)
        except TesseraError as e:
            error = located(e)
        raise error

    def _moved(self, target: Device) -> Tensor:
        if target == self.device:
            return self
        if self.storage is None and self.index >= 0:
            raise TraceError(f"to: {self.type} is traced; move tensors before the function")
        if target.kind in GPUS and self.device.kind in GPUS:
            data: Any = data_of(self, "to")
            return holding(self.type, data.to(_gpu(target.index, target.kind)), target)  # type: ignore[return-value]
        return on_device(self._array("to"), self.dtype, target)

    @blames_arguments
    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor on another device; there is one stream for copies, so `stream` must be None."""
        if stream is not None:
            raise located(
                OperandError(
                    f"to_device: stream is {stream!r:.60}, expected None; copies run in the order of calls"
                )
            )
        return self.to(device)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        found = ARRAY_NAMESPACE.get()()
        if api_version is not None and api_version not in found.API_VERSIONS:
            raise located(
                OperandError(
                    f"__array_namespace__: no version {api_version!r} of the array API standard; "
                    f"there are {', '.join(found.API_VERSIONS)}"
                )
            )
        return found

    # Python protocol

    def __len__(self) -> int:
        if self.ndim == 0:
            raise located(ShapeError(f"len: {self.type} is a scalar and has no length"))
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, x: Any) -> bool:
        found = self == x
        return isinstance(found, Value) and bool(reduction.any(found))

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.index(self, key)  # type: ignore[return-value]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.storage is None:
            raise located(
                TraceError("a traced tensor cannot be written to; use x = x.at[index].set(value)")
            )
        raise located(
            OperandError(
                f"x[{written(key)}] = value: a tensor is a value and cannot be written to; make a new one "
                "with "
                f"x = x.at[{written(key)}].set(value)"
            )
        )

    def __delitem__(self, key: Any) -> None:
        raise located(
            OperandError(
                "del x[index]: a tensor is a value; take what is left with op.concat or a mask"
            )
        )

    def __repr__(self) -> str:
        if self.storage is None:
            return f"Tensor(traced {self.type})"
        if self.device.kind == "mesh":
            return f"Tensor({self.shown_layout})"
        text = np.array2string(self._array("repr"), separator=", ", prefix="Tensor(", threshold=200)
        place = "" if self.device.kind == "cpu" else f", {self.device}"
        return f"Tensor({text}, {self.type}{place})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __str__(self) -> str:
        if self.storage is None or self.device.kind == "mesh":
            return repr(self)
        return np.array2string(self._array("str"), threshold=200)

    # Operators

    __add__, __radd__ = _operator(elementwise.add), _operator(elementwise.add, True)
    __sub__, __rsub__ = _operator(elementwise.sub), _operator(elementwise.sub, True)
    __mul__, __rmul__ = _operator(elementwise.mul), _operator(elementwise.mul, True)
    __truediv__, __rtruediv__ = _operator(elementwise.div), _operator(elementwise.div, True)
    __floordiv__ = _operator(elementwise.floor_divide)
    __rfloordiv__ = _operator(elementwise.floor_divide, True)
    __mod__, __rmod__ = _operator(elementwise.remainder), _operator(elementwise.remainder, True)
    __divmod__ = _operator(_divmod)
    __rdivmod__ = _operator(_divmod, True)
    __pow__, __rpow__ = _operator(elementwise.pow), _operator(elementwise.pow, True)
    __matmul__, __rmatmul__ = _operator(contraction.matmul), _operator(contraction.matmul, True)
    __and__, __rand__ = _operator(elementwise.bitwise_and), _operator(elementwise.bitwise_and, True)
    __or__, __ror__ = _operator(elementwise.bitwise_or), _operator(elementwise.bitwise_or, True)
    __xor__, __rxor__ = _operator(elementwise.bitwise_xor), _operator(elementwise.bitwise_xor, True)
    __lshift__ = _operator(elementwise.bitwise_left_shift)
    __rlshift__ = _operator(elementwise.bitwise_left_shift, True)
    __rshift__ = _operator(elementwise.bitwise_right_shift)
    __rrshift__ = _operator(elementwise.bitwise_right_shift, True)
    __eq__, __ne__ = _equality(elementwise.eq), _equality(elementwise.ne)
    __lt__, __le__ = _operator(elementwise.lt), _operator(elementwise.le)
    __gt__, __ge__ = _operator(elementwise.gt), _operator(elementwise.ge)
    __neg__, __pos__ = _unary(elementwise.neg), _unary(elementwise.positive)
    __abs__, __invert__ = _unary(elementwise.abs), _unary(elementwise.bitwise_invert)

    # Methods

    def sum(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Sum over axes."""
        if wrong:
            raise unexpected("sum", wrong, Tensor.sum)
        return reduction.sum(self, axis, keepdims)  # type: ignore[return-value]

    def prod(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Product over axes."""
        if wrong:
            raise unexpected("prod", wrong, Tensor.prod)
        return reduction.prod(self, axis, keepdims)  # type: ignore[return-value]

    def mean(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Mean over axes."""
        if wrong:
            raise unexpected("mean", wrong, Tensor.mean)
        return reduction.mean(self, axis, keepdims)  # type: ignore[return-value]

    def var(
        self, axis: AxisLike = None, correction: float = 0.0, keepdims: bool = False, **wrong: Any
    ) -> Tensor:
        """Variance over axes."""
        if wrong:
            raise unexpected("var", wrong, Tensor.var)
        return reduction.var(self, axis, correction, keepdims)  # type: ignore[return-value]

    def std(
        self, axis: AxisLike = None, correction: float = 0.0, keepdims: bool = False, **wrong: Any
    ) -> Tensor:
        """Standard deviation over axes."""
        if wrong:
            raise unexpected("std", wrong, Tensor.std)
        return reduction.std(self, axis, correction, keepdims)  # type: ignore[return-value]

    def max(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Largest element over axes."""
        if wrong:
            raise unexpected("max", wrong, Tensor.max)
        return reduction.max(self, axis, keepdims)  # type: ignore[return-value]

    def min(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Smallest element over axes."""
        if wrong:
            raise unexpected("min", wrong, Tensor.min)
        return reduction.min(self, axis, keepdims)  # type: ignore[return-value]

    def any(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Whether any element over axes is true."""
        if wrong:
            raise unexpected("any", wrong, Tensor.any)
        return reduction.any(self, axis, keepdims)  # type: ignore[return-value]

    def all(self, axis: AxisLike = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Whether all elements over axes are true."""
        if wrong:
            raise unexpected("all", wrong, Tensor.all)
        return reduction.all(self, axis, keepdims)  # type: ignore[return-value]

    def argmax(self, axis: int | None = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Index of the first largest element."""
        if wrong:
            raise unexpected("argmax", wrong, Tensor.argmax)
        return reduction.argmax(self, axis, keepdims)  # type: ignore[return-value]

    def argmin(self, axis: int | None = None, keepdims: bool = False, **wrong: Any) -> Tensor:
        """Index of the first smallest element."""
        if wrong:
            raise unexpected("argmin", wrong, Tensor.argmin)
        return reduction.argmin(self, axis, keepdims)  # type: ignore[return-value]

    def reshape(self, *sizes: Any, **wrong: Any) -> Tensor:
        """The tensor in another shape: x.reshape(2, -1) or x.reshape((2, -1))."""
        if wrong:
            raise unexpected("reshape", wrong, Tensor.reshape)
        given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        return shape.reshape(self, given)  # type: ignore[return-value]

    def transpose(self, *axes: Any) -> Tensor:
        """The tensor with its axes in another order, reversed when none is given."""
        given: Sequence[int] | None = (
            axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
        ) or None
        return shape.transpose(self, given)  # type: ignore[return-value]

    def squeeze(self, axis: AxisLike = None, **wrong: Any) -> Tensor:
        """The tensor without axes of size 1."""
        if wrong:
            raise unexpected("squeeze", wrong, Tensor.squeeze)
        return shape.squeeze(self, axis)  # type: ignore[return-value]

    def flatten(self, start: int = 0, stop: int = -1, **wrong: Any) -> Tensor:
        """The elements with the axes from start to stop as one."""
        if wrong:
            raise unexpected("flatten", wrong, Tensor.flatten)
        return shape.flatten(self, start, stop)  # type: ignore[return-value]


def written(key: Any) -> str:
    """A key as it is written between brackets."""
    if isinstance(key, tuple):
        return ", ".join(map(written, key))
    if isinstance(key, slice):
        ends = ("" if n is None else written(n) for n in (key.start, key.stop))
        return ":".join([*ends, *([] if key.step is None else [written(key.step)])])
    if key is Ellipsis:
        return "..."
    return repr(key) if isinstance(key, int | str | None) else "index"


ARRAY_NAMESPACE: Provided[Callable[[], Any]] = Provided(
    "array namespace",
    "what imports the module of the array API, when a tensor is first asked for it",
)


def copied(x: Any) -> Any:
    """A copy; a large one begins where a line of the caches does, as results do."""
    if x.nbytes < memory.SMALL or not x.flags.c_contiguous:
        return np.array(x)
    made = memory.empty(x.shape, x.dtype)
    np.copyto(made, x)
    return made


def on_device(data: Any, dtype: Any, device: Device) -> Tensor:
    """A tensor of an array's data on a device."""
    return place.on_device(data, dtype, device)  # type: ignore[return-value]


@place.TO_DEVICE.provide
def _to_gpu(data: Any, device: Device) -> Any:
    """A copy of an array of the host on a GPU."""
    return _to_device(data, _gpu(device.index, device.kind))


# Loaded when a tensor first goes to a GPU.
_to_device = Deferred("tessera.runtime.cuda.memory:to_device")
_gpu = Deferred("tessera.runtime.cuda.device:gpu")
_fetched = Deferred("tessera.lang.stream:fetched")
