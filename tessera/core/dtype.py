"""Dtypes, and the numeric policies that are part of them.

A dtype is a storage format and a policy: `bf16 @ accum(f32) @ stochastic_round`.  Dtypes are
interned: equal ones are the same object.  A policy that only restates the default of its format is
that format: `bf16 @ accum(f32) is bf16`.  docs/numerics.md defines what each policy means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np

from tessera.core.blame import blames_arguments
from tessera.core.errors import DTypeError, PolicyError

Kind = Literal["b", "u", "i", "f", "c"]  # bool, unsigned, signed, float, complex


@dataclass(frozen=True, slots=True)
class Policy:
    """How values of a dtype are accumulated, multiplied, rounded, clamped and scaled."""

    accum: str | None = None  # dtype that folds and contractions accumulate in
    math: str | None = None  # format that contraction operands are rounded to ("tf32")
    stochastic_round: bool = False
    saturate: bool = False
    loss_scale: float | None = None

    def __str__(self) -> str:
        parts = [
            f"accum({self.accum})" if self.accum else "",
            f"math({self.math})" if self.math else "",
            "stochastic_round" if self.stochastic_round else "",
            "saturate" if self.saturate else "",
            f"loss_scale({_number(self.loss_scale)})" if self.loss_scale is not None else "",
        ]
        return " @ ".join(p for p in parts if p)


def _number(x: float) -> str:
    """The shortest text that reads back as x, without a fraction of zero."""
    return repr(x).removesuffix(".0")


DEFAULT = Policy()


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """One thing after an '@': the field of Policy that it sets, and to what."""

    field: str
    value: Any

    def __str__(self) -> str:
        return str(Policy(**{self.field: self.value}))


@dataclass(frozen=True, slots=True)
class Format:
    """What there is to know about a storage format; every table of formats is made from these."""

    name: str
    kind: Kind
    bits: int
    numpy: Any  # storage of one element in NumPy
    mlir: str  # its name in the text of all IRs
    file: str  # its name in safetensors
    compute: str = ""  # the format that arithmetic happens in, where it is another one
    accum: str = ""  # what folds accumulate in, where it is not `compute`
    digits: int = 0  # of the significand of a float, the leading one included
    infinite: bool = True  # whether a float has infinities
    aliases: tuple[str, ...] = ()


# Named out here, since a class with an attribute `np` cannot say `np.dtype`.  DTypeLike would be a union, of
# which mypy tries every part against every overload of NumPy: that took half of its time.
NumpyDType = np.dtype[Any]


class DType:
    """A storage format with a numeric policy."""

    __slots__ = ("accum", "base", "bits", "format", "kind", "name", "np", "policy")

    format: Format
    name: str  # of the storage format
    kind: Kind
    bits: int
    np: NumpyDType  # storage of one element in NumPy
    base: DType  # this format with the default policy
    policy: Policy
    accum: DType  # what folds accumulate in, given or by default

    def __init__(self, of: Format, policy: Policy, base: DType | None):
        self.format, self.policy = of, policy
        self.name, self.kind, self.bits = of.name, of.kind, of.bits
        self.np = np.dtype(of.numpy)
        self.base = self if base is None else base

    def __matmul__(self, term: PolicyTerm) -> DType:
        if not isinstance(term, PolicyTerm):
            raise PolicyError(
                f"{self} @ {term!r}: expected a policy after '@': accum(dtype), stochastic_round, "
                "saturate or loss_scale(k)"
            )
        return _with_term(self, term)

    def with_policy(self, policy: Policy) -> DType:
        """This format under another policy."""
        if policy.accum is not None and FORMATS[policy.accum] is self.base.accum:
            policy = replace(policy, accum=None)
        key = (self.name, policy)
        if key not in _INTERNED:
            b = self.base
            made = DType(b.format, policy, b)
            made.accum = FORMATS[policy.accum] if policy.accum else b.accum
            _INTERNED[key] = made
        return _INTERNED[key]

    def __eq__(self, other: object) -> bool:
        """Whether it is the same; also of a NumPy dtype or a name, as in x.dtype == np.float32."""
        if self is other:
            return True
        if not isinstance(other, str | np.dtype) and not (
            isinstance(other, type) and issubclass(other, np.generic)
        ):
            return NotImplemented
        try:
            return self is as_dtype(other)
        except DTypeError:
            return False

    __hash__ = object.__hash__

    def __str__(self) -> str:
        if self.policy.math == "tf32":
            rest = str(replace(self.policy, math=None))
            return f"tf32 @ {rest}" if rest else "tf32"
        return f"{self.name} @ {self.policy}" if self.policy is not DEFAULT else self.name

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.name, self.policy)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_narrow(self) -> bool:
        """Arithmetic happens in a wider format and is rounded once at the result of each op."""
        return self.format.compute != ""

    @property
    def compute(self) -> DType:
        """The format that arithmetic on this dtype happens in."""
        return FORMATS[self.format.compute or self.name]

    @property
    def largest(self) -> float:
        """The largest number of an integer or real floating-point format."""
        info = ml_dtypes.finfo if self.kind == "f" else ml_dtypes.iinfo
        return float(info(self.np).max)

    @property
    def real(self) -> DType:
        """The format of the real part."""
        return FORMATS[_REAL.get(self.name, self.name)] if self.kind == "c" else self

    @property
    def scale(self) -> float:
        """What cotangents of this dtype are carried multiplied by: k of loss_scale(k), or 1."""
        return 1.0 if self.policy.loss_scale is None else self.policy.loss_scale

    @property
    def itemsize(self) -> float:
        """Bytes an element takes when packed."""
        return self.bits / 8


def _restore(name: str, policy: Policy) -> DType:
    return FORMATS[name].with_policy(policy) if policy != DEFAULT else FORMATS[name]


_INTERNED: dict[tuple[str, Policy], DType] = {}
FORMATS: dict[str, DType] = {}


def _format(name: str, kind: Kind, bits: int, *facts: Any, **more: Any) -> DType:
    made = DType(Format(name, kind, bits, *facts, **more), DEFAULT, None)
    FORMATS[name] = _INTERNED[name, DEFAULT] = made
    return made


# One line a format: name, kind, bits, NumPy's type, and its names in IR text and in files.
bool_ = _format("bool", "b", 8, np.bool_, "i1", "BOOL")
i4 = _format("i4", "i", 4, ml_dtypes.int4, "i4", "U8", "i8", "i32", aliases=("int4",))
i8 = _format("i8", "i", 8, np.int8, "i8", "I8", accum="i32", aliases=("int8",))
i16 = _format("i16", "i", 16, np.int16, "i16", "I16", aliases=("int16",))
i32 = _format("i32", "i", 32, np.int32, "i32", "I32", aliases=("int32",))
i64 = _format("i64", "i", 64, np.int64, "i64", "I64", aliases=("int64", "int"))
u8 = _format("u8", "u", 8, np.uint8, "ui8", "U8", accum="u32", aliases=("uint8",))
u16 = _format("u16", "u", 16, np.uint16, "ui16", "U16", aliases=("uint16",))
u32 = _format("u32", "u", 32, np.uint32, "ui32", "U32", aliases=("uint32",))
u64 = _format("u64", "u", 64, np.uint64, "ui64", "U64", aliases=("uint64",))
f8e4m3 = _format(
    "f8e4m3", "f", 8, ml_dtypes.float8_e4m3fn, "f8E4M3FN", "F8_E4M3", "f32", digits=4, infinite=False,
    aliases=("fp8_e4m3", "float8_e4m3fn"),
)  # fmt: skip
f8e5m2 = _format(
    "f8e5m2", "f", 8, ml_dtypes.float8_e5m2, "f8E5M2", "F8_E5M2", "f32", digits=3,
    aliases=("fp8_e5m2", "float8_e5m2"),
)  # fmt: skip
bf16 = _format(
    "bf16", "f", 16, ml_dtypes.bfloat16, "bf16", "BF16", "f32", digits=8, aliases=("bfloat16",)
)
f16 = _format(
    "f16", "f", 16, np.float16, "f16", "F16", "f32", digits=11, aliases=("float16", "half", "fp16")
)
f32 = _format(
    "f32", "f", 32, np.float32, "f32", "F32", digits=24, aliases=("float32", "float", "fp32")
)
f64 = _format(
    "f64", "f", 64, np.float64, "f64", "F64", digits=53, aliases=("float64", "double", "fp64")
)
c64 = _format("c64", "c", 64, np.complex64, "complex<f32>", "F32", aliases=("complex64", "complex"))
c128 = _format("c128", "c", 128, np.complex128, "complex<f64>", "F64", aliases=("complex128",))

_REAL = {"c64": "f32", "c128": "f64"}
_COMPLEX = {"f32": "c64", "f64": "c128"}
for _d in FORMATS.values():
    _d.accum = FORMATS[_d.format.accum or _d.format.compute or _d.name]

tf32 = f32.with_policy(Policy(math="tf32"))
stochastic_round = PolicyTerm("stochastic_round", True)
saturate = PolicyTerm("saturate", True)


@blames_arguments
def accum(dtype: Any) -> PolicyTerm:
    """Policy term: folds and contractions accumulate in this dtype and round once at the end."""
    d = as_dtype(dtype)
    if d.policy is not DEFAULT:
        raise PolicyError(f"accum({d}): expected a plain dtype such as f32")
    return PolicyTerm("accum", d.name)


@blames_arguments
def loss_scale(k: Any) -> PolicyTerm:
    """Policy term: gradients of this dtype are carried multiplied by k."""
    if isinstance(k, bool) or not isinstance(k, int | float) or not 0 < k < float("inf"):
        raise PolicyError(f"loss_scale({k!r}): expected a positive finite number")
    return PolicyTerm("loss_scale", float(k))


def _with_term(dtype: DType, term: PolicyTerm) -> DType:
    if getattr(dtype.policy, term.field) not in (None, False):
        raise PolicyError(
            f"{dtype} @ {term}: the policy already says {term.field}; start from {dtype.base}"
        )
    if term.field == "accum":
        wide = FORMATS[term.value]
        same_kind = wide.kind == dtype.kind or (wide.kind == "i" and dtype.kind == "u")
        if not same_kind or wide.bits < dtype.bits:
            raise PolicyError(
                f"{dtype} @ {term}: the accumulator must be of the same kind and at least as wide"
            )
    if term.field in ("stochastic_round", "loss_scale") and dtype.kind != "f":
        raise PolicyError(f"{dtype} @ {term}: only floating-point dtypes take {term.field}")
    if term.field == "saturate" and dtype.kind not in "iuf":
        raise PolicyError(f"{dtype} @ {term}: only real numeric dtypes saturate")
    return dtype.with_policy(replace(dtype.policy, **{term.field: term.value}))


_ALIASES = {"tf32": tf32} | {a: d for d in FORMATS.values() for a in d.format.aliases}
_FROM_NUMPY = {np.dtype(d.np): d for d in FORMATS.values()}
_FROM_PYTHON = {bool: bool_, int: i64, float: f32, complex: c64}


def as_dtype(x: Any) -> DType:
    """The dtype that x names: a DType, a name, a NumPy dtype, or bool, int, float, complex."""
    if isinstance(x, DType):
        return x
    if isinstance(x, str):
        if "@" in x:
            return _parse_policy(x)
        found = FORMATS.get(x) or _ALIASES.get(x)
    elif isinstance(x, type) and x in _FROM_PYTHON:
        found = _FROM_PYTHON[x]
    else:
        try:
            given = None if x is None else np.dtype(x)
        except (TypeError, ValueError):
            given = None
        found = None if given is None else _FROM_NUMPY.get(given)
        if found is None and given is not None:  # bytes in the other order are the same numbers
            found = _FROM_NUMPY.get(given.newbyteorder("="))
    if found is None:
        raise DTypeError(f"{x!r} is not a dtype; dtypes are {', '.join(FORMATS)} and tf32")
    return found


def _parse_policy(text: str) -> DType:
    head, *terms = (t.strip() for t in text.split("@"))
    dtype = as_dtype(head)
    for t in terms:
        word, _, inside = t.removesuffix(")").partition("(")
        if word == "accum" and inside:
            dtype = dtype @ accum(inside)
        elif word == "loss_scale" and inside:
            dtype = dtype @ loss_scale(float(inside))
        elif t in ("stochastic_round", "saturate"):
            dtype = dtype @ PolicyTerm(t, True)
        else:
            raise PolicyError(f"{text!r}: {t!r} is not a policy")
    return dtype


def complex_of(dtype: DType) -> DType:
    """The complex format with this real part (c64 for anything narrower than f64)."""
    return dtype if dtype.kind == "c" else FORMATS[_COMPLEX.get(dtype.name, "c64")]
