"""Blame: which argument of a call that failed does not fit the function, and what to write instead.

Nothing is looked at before a call fails, so calls that succeed pay nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from tessera.core.counterparts import ADVICE, CALLS, KEYWORDS
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.source import is_ours, ran_users_code

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

# What Python and NumPy raise when an argument is of a wrong kind.
MISFITS = (
    TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, ZeroDivisionError,
)  # fmt: skip


def brief(x: Any, letters: int = 60) -> str:
    """An object in one line of few letters."""
    return " ".join(f"{x!r:.200}".split())[:letters]


def misfit(
    name: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> OperandError | None:
    """The error of a call whose arguments f cannot take; None where they fit."""
    signature = inspect.signature(f)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as e:
        advice = _advice(signature, kwargs) or _one_tuple(name, signature, args)
        advice = advice or (f"; {CALLS[name]}" if name in CALLS else "")
        # lr is missing because it was called learning_rate: the name is the mistake.
        strange = next((n for n in kwargs if n not in signature.parameters), "") if advice else ""
        why = f"got an unexpected keyword argument '{strange}'" if strange else _told(e)
        return OperandError(f"{name}: {why}{advice}; it takes {_shown(signature)}")
    for n, x in bound.arguments.items():
        wanted = _wanted(signature.parameters[n], x)
        if wanted:
            return OperandError(f"{name}: {n} is {_word(x, 40)}, expected {wanted}")
    return None


def unfit(name: str, f: Callable[..., Any], args: Sequence[Any]) -> OperandError | None:
    """The error of so many arguments for a function of a user, whatever it takes them for."""
    try:
        signature = inspect.signature(f)
    except ValueError:  # what C code does not tell
        return None
    try:
        signature.bind(*args)
    except TypeError as e:
        return OperandError(
            f"{name}: the function is called with {len(args)} arguments: {_told(e)}"
        )
    return None


def _told(e: TypeError) -> str:
    """Why arguments do not fit, in the words of every version of Python."""
    text = str(e).replace("missing a required keyword-only argument", "missing a required argument")
    *_, passed = text.partition("got some positional-only arguments passed as keyword arguments: ")
    return f"{passed} parameter is positional only, but was passed as a keyword" if passed else text


def unexpected(name: str, wrong: Mapping[str, Any], f: Callable[..., Any]) -> TesseraError:
    """The error of a method that was given these keywords, which are none of its own."""
    signature = inspect.signature(f)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    signature = signature.replace(parameters=own)
    text = f"{name}: got an unexpected keyword argument '{next(iter(wrong))}'"
    return located(OperandError(f"{text}{_advice(signature, wrong)}; it takes {_shown(signature)}"))


def _advice(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> str:
    """What to write for a keyword that the function does not have."""
    known = list(signature.parameters)
    for n in kwargs:
        if n in known:
            if signature.parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY:
                return f"; give '{n}' without its name"
            continue
        if n in ADVICE:
            return f"; {ADVICE[n]}"
        near = KEYWORDS.get(n)
        found = [near] if near in known else difflib.get_close_matches(n, known, 1)
        if found:
            return f"; use '{found[0]}'"
    return ""


def _one_tuple(name: str, signature: inspect.Signature, args: Sequence[Any]) -> str:
    """What to write where sizes were given one by one to a function that takes a shape."""
    sizes = len(args) > 1 and all(isinstance(x, int) for x in args)
    if sizes and next(iter(signature.parameters), "") == "shape":
        return f"; write the sizes as one tuple, {name}({tuple(args)})"
    return ""


def _shown(signature: inspect.Signature) -> str:
    """The parameters as they are written, without annotations."""
    hidden = ("self", "wrong")  # **wrong: a method's keywords that are none of its own
    own = [p for p in signature.parameters.values() if p.name not in hidden]
    return str(inspect.Signature([_plain(p) for p in own]))


class _Named:
    """A function as the default of a parameter, shown by its name."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _plain(p: inspect.Parameter) -> inspect.Parameter:
    """A parameter without its annotation."""
    name = "" if isinstance(p.default, type) else getattr(p.default, "__name__", "")
    default = _Named(name) if name and callable(p.default) else p.default
    return p.replace(annotation=inspect.Parameter.empty, default=default)


def _wanted(p: inspect.Parameter, x: Any) -> str:
    """What a parameter wants instead of x, in words; nothing where x may do."""
    kind = p.annotation if isinstance(p.annotation, str) else getattr(p.annotation, "__name__", "")
    if x is None and ("None" in kind or p.default is None):
        return ""
    if kind.startswith("float | tuple") and isinstance(x, tuple | list):
        return ""
    if kind.startswith(("float", "Rate")):
        if getattr(x, "ndim", 0):
            return "a number"
        rate = kind.startswith("Rate") or "Schedule" in kind
        return "" if hasattr(x, "__float__") or (rate and is_function(x)) else "a number"
    if kind in ("int", "int | None"):
        return "" if hasattr(x, "__index__") else "an integer"
    if kind == "bool":
        return "" if isinstance(x, bool) or hasattr(x, "__bool__") else "True or False"
    if kind in ("str", "str | None"):
        return "" if isinstance(x, str) else "a string"
    if kind.startswith(("Callable", "Function")):
        return "" if is_function(x) else "a function"
    if kind.startswith(("Sequence", "Iterable")):
        return "" if hasattr(x, "__iter__") or "int" in kind else "a sequence"
    if kind.startswith("AxisLike"):
        return "" if x is None or hasattr(x, "__index__") or hasattr(x, "__iter__") else "an axis"
    return next(
        (w for start, w in _KINDS.items() if kind.startswith(start) and not _is(start, x)), ""
    )


# Parameters of other kinds, by how their annotations begin, and what they want in words.
_KINDS = {
    "str | os.PathLike": "a path",
    "Mapping": "a mapping such as a dict",
    "Mesh": "a mesh, dist.Mesh(axes, shape)",
    "ShardSpec": "a layout, dist.ShardSpec(partition, mesh_axes)",
    "Optimizer": "an optimiser such as optim.adam(1e-3)",
}


def _is(kind: str, x: Any) -> bool:
    """Whether x is of a kind of the table: a path, a mapping, or an instance of a class of that name."""
    if kind.startswith("str"):
        return isinstance(x, str | os.PathLike)
    if kind == "Mapping":
        return isinstance(x, Mapping)
    return any(c.__name__ == kind for c in type(x).__mro__)


def blamed(
    name: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], e: Exception
) -> Exception:
    """The error to raise for an exception of a call: one that names the argument or, where each one may do,
    all of them with what was raised.  Exceptions of the user's own code stay as they are.
    """
    error = misfit(name, f, args, kwargs)
    if error is not None:
        return located(error).with_traceback(None)
    if isinstance(e, TesseraError) or ran_users_code(e) or is_ours(sys._getframe(2).f_code):
        return e  # what we called ourselves: the call of the user's that led there is told
    own = args[1:] if next(iter(inspect.signature(f).parameters), "") == "self" else args
    bare = located(OperandError(f"{name}: cannot take {_given(own, kwargs)}: {_raised(e)}"))
    bare.__cause__ = e
    return bare


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments of a call in few words."""
    words = [_word(x) for x in args] + [f"{n}={_word(x)}" for n, x in kwargs.items()]
    return ", ".join(words) or "no arguments"


def _word(x: Any, letters: int = 30) -> str:
    kind = getattr(x, "type", None)
    if kind is not None and hasattr(x, "shape"):
        return str(kind)
    return f"{type(x).__name__} {brief(x, letters)}"


def _raised(e: Exception) -> str:
    text = " ".join(str(e).split())[:200]
    return f"there is no {text}" if isinstance(e, KeyError) else text or type(e).__name__


def applied(
    name: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """f(*args, **kwargs) for a function of the user's; arguments that it does not take are named."""
    try:
        return f(*args, **kwargs)
    except TypeError as e:
        error = _uncallable(name, f, args, kwargs) or e
    raise error


def _uncallable(name: str, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not callable(f):
        return function_wanted(name, f)
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        count = len(args) + len(kwargs)
        what = f"{count} argument{'s' if count != 1 else ''}"
        return located(
            OperandError(
                f"{name}: the function is called with {what}: {_told(e)}; it takes {_shown(signature)}"
            )
        )
    return None


def function_wanted(name: str, f: Any) -> TesseraError:
    """The error of an argument that should be a function."""
    return located(
        OperandError(f"{name}: got {type(f).__name__} {brief(f, 40)}, expected a function")
    )


def is_function(f: Any) -> bool:
    """Whether f can be called; objects whose call only says what to write cannot."""
    return callable(f) and not getattr(type(f).__call__, "refuses", False)


def demand_function(name: str, f: Any) -> None:
    """Refuse what is no function."""
    if not is_function(f):
        raise function_wanted(name, f)


def _name(f: Callable[..., Any]) -> str:
    if f.__name__ == "__init__":
        return f.__qualname__.rpartition(".")[0].rpartition(".")[2]
    return f.__name__.rstrip("_")


def blames_arguments(f: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a public function whose failures name the argument that does not fit."""
    name = _name(f)

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return f(*args, **kwargs)
        except TesseraError as e:
            error: Exception = located(e)
        except MISFITS as e:
            error = blamed(name, f, args, kwargs, e)
        raise error

    return call


def methods_blame_arguments(cls: type[C]) -> type[C]:
    """Class decorator: failures of public methods name the argument that does not fit."""
    for name, f in list(vars(cls).items()):
        if inspect.isfunction(f) and not name.startswith("_"):
            setattr(cls, name, blames_arguments(f))
    return cls


def wanting(f: Callable[P, R]) -> Callable[P, R]:
    """Decorator: as blames_arguments, for a function that only keeps its arguments: they are looked at when
    given.
    """
    name = _name(f)

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        error = misfit(name, f, args, kwargs)
        if error is not None:
            raise located(error)
        try:
            return f(*args, **kwargs)
        except TesseraError as e:
            shown = located(e)
        raise shown

    return call


def constructor_blames_arguments(cls: type[R]) -> type[R]:
    """Class decorator: constructing an instance with arguments that do not fit names them."""
    cls.__init__ = blames_arguments(cls.__init__)  # type: ignore[method-assign]
    return cls
