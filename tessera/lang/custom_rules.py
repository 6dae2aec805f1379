"""custom_jvp and custom_vjp: functions whose derivatives a user writes, with JAX's meaning."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from tessera.core import tree
from tessera.core.blame import constructor_blames_arguments, demand_function
from tessera.core.errors import DTypeError, OperandError, RuleError, ShapeError, TreeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder
from tessera.lang.trace import Traced, is_tensor, trace
from tessera.lang.transforms import guarded
from tessera.ops.control import agree
from tessera.ops.custom import Cotangents, ForwardRule, ReverseRule, Rule, Values, custom
from tessera.ops.define import as_value, kept_value

Function = Callable[..., Any]


class _Call:
    """The arguments of one call: tensors in trees, and those that the rules get as they are."""

    def __init__(self, f: Function, nondiff: Sequence[int], args: Any, kwargs: Any):
        name = getattr(f, "__name__", "function")
        try:
            bound = inspect.signature(f).bind(*args, **kwargs)
        except TypeError as e:
            raise OperandError(f"{name}: {e}") from None
        bound.apply_defaults()
        if bound.kwargs:
            raise OperandError(
                f"{name}: keyword-only arguments {', '.join(bound.kwargs)} have no place in a rule"
            )
        self.args = bound.args
        self.static = [bound.args[i] for i in nondiff]
        self.where = [i for i in range(len(bound.args)) if i not in nondiff]
        leaves, self.structure = tree.flatten(tuple(bound.args[i] for i in self.where))
        for x in leaves:
            if not is_tensor(x):
                raise OperandError(
                    f"{name}: got {type(x).__name__} {x!r:.40}, which is no tensor; name its argument in "
                    "nondiff_argnums"
                )
        self.tensors = [as_value(x, name) for x in leaves]

    def whole(self, values: Values) -> list[Any]:
        """All arguments in order, with other tensors."""
        out = list(self.args)
        for i, x in zip(self.where, tree.unflatten(self.structure, values), strict=True):
            out[i] = x
        return out


class _Custom(ABC):
    """A function with rules; called outside of a trace it is just the function."""

    _define: str  # how the rules are given
    _rules: tuple[Function, ...] = ()

    def __init__(self, f: Function, nondiff_argnums: Sequence[int] = ()):
        demand_function(type(self).__name__, f)
        update_wrapper(self, f)
        self._f, self._nondiff = f, tuple(nondiff_argnums)
        self._name = getattr(f, "__name__", "function")

    @guarded
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._rules:
            raise RuleError(
                f"{type(self).__name__}: {self._name} has no rule; give it one with "
                f"{self._name}.{self._define}"
            )
        if current_builder() is None:
            return self._f(*args, **kwargs)
        c = _Call(self._f, self._nondiff, args, kwargs)
        types = [v.type for v in c.tensors]
        given = c.tensors
        t = trace(
            lambda *xs: self._f(*c.whole(xs)), tuple(given), {}, types, self._name, given=given
        )
        out = custom(t.graph, *c.tensors, *t.outer, rule=self._rule(c, t))
        return tree.unflatten(t.structure, out)

    @abstractmethod
    def _rule(self, c: _Call, t: Traced) -> Rule:
        """The rule of one call, on flat lists of values."""

    def _pair(self, who: str, out: Any, what: str) -> tuple[Any, Any]:
        """What a rule returned, if it is a pair."""
        if not isinstance(out, tuple | list) or len(out) != 2:
            raise TreeError(
                f"{type(self).__name__}: {who} of {self._name} returns {tree.structure(out)}, expected "
                f"({what})"
            )
        return out[0], out[1]


def _checked(
    what: str, got: Any, structure: tree.Structure, types: Sequence[TensorType]
) -> list[Value]:
    """The tensors of a tree that must have this structure and these types."""
    leaves, s = tree.flatten(got)
    if s != structure:
        raise TreeError(f"{what} is {s}, expected {structure}")
    values = [kept_value(x) for x in leaves]
    for i, (v, t) in enumerate(zip(values, types, strict=True)):
        if not agree(t, v.type):
            kind = DTypeError if v.dtype is not t.dtype else ShapeError
            raise kind(f"{what} has {v.type} as tensor {i}, expected {t}")
    return values


@constructor_blames_arguments
class custom_jvp(_Custom):  # noqa: N801
    """Decorator: a function whose derivative is given by @f.defjvp, for both modes.

    The rule is rule(primals, tangents) -> (result, tangent of the result), linear in the tangents.
    Arguments in nondiff_argnums are no tensors; the rule gets them first.
    """

    _define = "defjvp(rule)"

    def defjvp(self, rule: Function) -> Function:
        """Decorator: the rule of this function."""
        self._rules = (rule,)
        return rule

    def _rule(self, c: _Call, t: Traced) -> Rule:
        (rule,), types = self._rules, [v.type for v in t.graph.outputs]

        def push(operands: Values, tangents: Values) -> tuple[Values, Values]:
            point, direction = (tree.unflatten(c.structure, xs) for xs in (operands, tangents))
            out = rule(*c.static, point, direction)
            y, moved = self._pair("the rule", out, "result, tangent")
            what = f"from the rule of {self._name}"
            return (
                _checked(f"custom_jvp: the result {what}", y, t.structure, types),
                _checked(f"custom_jvp: the tangent {what}", moved, t.structure, types),
            )

        return ForwardRule(self._name, len(c.tensors), push)


@constructor_blames_arguments
class custom_vjp(_Custom):  # noqa: N801
    """Decorator: a function whose derivative in reverse mode is given by f.defvjp(fwd, bwd).

    fwd(*args) -> (result, residuals); bwd(residuals, cotangent) -> a cotangent for each argument,
    None where it is zero.  Arguments in nondiff_argnums are no tensors; bwd gets them first.
    """

    _define = "defvjp(fwd, bwd)"

    def defvjp(self, fwd: Function, bwd: Function) -> None:
        """Give the function its two rules."""
        self._rules = fwd, bwd

    def _rule(self, c: _Call, t: Traced) -> Rule:
        (fwd, bwd), types = self._rules, [v.type for v in t.graph.outputs]
        kept: list[tree.Structure] = []  # of the residuals

        def forward(operands: Values) -> tuple[Values, Values]:
            y, held = self._pair("fwd", fwd(*c.whole(operands)), "result, residuals")
            what = f"custom_vjp: the result from fwd of {self._name}"
            residuals, s = tree.flatten(held)
            kept[:] = [s]
            return (
                _checked(what, y, t.structure, types),
                [as_value(r, "custom_vjp") for r in residuals],
            )

        def backward(residuals: Values, cts: Values) -> Cotangents:
            held = tree.unflatten(kept[0], residuals)
            return self._cotangents(c, bwd(*c.static, held, tree.unflatten(t.structure, cts)))

        return ReverseRule(self._name, len(c.tensors), forward, backward)

    def _cotangents(self, c: _Call, got: Any) -> Cotangents:
        """One for each tensor, from one tree for each argument."""
        wanted = c.structure.children
        if not isinstance(got, tuple | list) or len(got) != len(wanted):
            raise TreeError(
                f"custom_vjp: bwd of {self._name} returns {tree.structure(got)}, expected a tuple of "
                f"{len(wanted)}, one for each argument"
            )
        out: list[Value | None] = []
        tensors = iter(c.tensors)
        for i, (ct, s) in enumerate(zip(got, wanted, strict=True)):
            mine = [next(tensors).type for _ in range(s.count)]
            what = f"custom_vjp: cotangent {i} from bwd of {self._name}"
            out += [None] * s.count if ct is None else _checked(what, ct, s, mine)
        return out
