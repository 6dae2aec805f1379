"""jvp, vjp, grad, value_and_grad and linearize, with the meaning they have in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from typing import Any, ParamSpec, TypeVar

from tessera.algebra.operator import gradients
from tessera.compile import compile_graph
from tessera.core import tree
from tessera.core.blame import MISFITS, applied, blamed, blames_arguments, demand_function
from tessera.core.device import CPU, Device
from tessera.core.errors import (
    DeviceError,
    DTypeError,
    OperandError,
    ShapeError,
    TesseraError,
    TreeError,
    located,
    too_deep,
)
from tessera.core.mesh import moving_to, told
from tessera.ir.graph.interp import execute
from tessera.ir.graph.ir import Builder, Graph, Value, building, current_builder, holding
from tessera.lang.linear_map import LinearMap, TreeSpace
from tessera.lang.operator_trees import Outline
from tessera.lang.trace import Traced, trace
from tessera.ops.define import as_value, full_of, kept_value
from tessera.ops.local import has_views
from tessera.transform.differentiate import (
    Linearized,
    Tangent,
    carried,
    push_forward,
    uncarried,
    zeros,
)
from tessera.transform.differentiate import linearize as linearize_graph
from tessera.transform.inline import copy_into, inline

P = ParamSpec("P")
R = TypeVar("R")


def guarded(f: Callable[P, R]) -> Callable[P, R]:
    """f, with errors shown at the user's line."""

    @wraps(f)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return f(*args, **kwargs)
        except TesseraError as e:
            error: Exception = located(e)
        except MISFITS as e:
            error = blamed(f.__name__, f, args, kwargs, e)
        except RecursionError:
            error = located(too_deep(f.__name__))
        raise error

    return run


def _values(leaves: Sequence[Any]) -> list[Value]:
    return [kept_value(x) for x in leaves]


def _trace(
    f: Callable[..., Any], primals: tuple[Any, ...], what: str
) -> tuple[Traced, list[Value]]:
    leaves, structure = tree.flatten(primals)
    values = _values(leaves)
    name = getattr(f, "__name__", what)
    types = [v.type for v in values]
    t = trace(f, tree.unflatten(structure, values), {}, types, name, given=values)
    return t, [*values, *t.outer]


def _check_tangents(what: str, primals: Any, tangents: Any) -> list[Value | None]:
    leaves, s = tree.flatten(primals)
    xs = _values(leaves)
    ts = Outline(s).directions(what, xs, tangents)
    if ts is None:
        shown = tree.structure(tangents)
        raise TreeError(f"{what}: tangents are {shown}, expected {s} as the primals")
    out: list[Value | None] = []
    for i, (x, t) in enumerate(zip(xs, ts, strict=True)):
        if x.dtype.kind not in "fc":
            out.append(None)
            continue
        if t.type is not x.type:
            kind = DTypeError if t.dtype is not x.dtype else ShapeError
            raise kind(f"{what}: tangent {i} is {t.type}, expected {x.type} as its primal")
        out.append(t)
    return out


@guarded
def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f at the primals, and its derivative there times the tangents."""
    for name, x in (("primals", primals), ("tangents", tangents)):
        if not isinstance(x, tuple | list):
            raise OperandError(f"jvp: {name} is {type(x).__name__}, expected a tuple, as in (x,)")
    given = _check_tangents("jvp", tuple(primals), tuple(tangents))
    t, values = _trace(f, tuple(primals), "jvp")
    ts = [*given, *(None for _ in t.outer)]
    g = inline(t.graph)
    run = _push_now if current_builder() is None else push_forward
    outs, out_ts = run(g, values, ts)
    filled = [zeros(y.type) if x is None else x for y, x in zip(outs, out_ts, strict=True)]
    return tree.unflatten(t.structure, outs), Outline(t.structure).of_results().tangents(
        outs, filled
    )


def _on_device(device: Device) -> Callable[[Graph, Sequence[Any]], list[Any]]:
    return lambda g, data: compile_graph(g, str(device)).run(data)


def _place(name: str, given: Sequence[Value]) -> Device:
    """The device of values, which must be one."""
    found = [v for v in given if v.device.kind != "cpu"]
    for v in found[1:]:
        if v.device != found[0].device:
            raise DeviceError(
                f"{name}: an argument {found[0].type} is on {told(found[0].device)} but another {v.type} is "
                f"on {told(v.device)}; {moving_to(found[0].device)}"
            )
    return found[0].device if found else CPU


def _at_once(
    name: str, given: Sequence[Value], make: Callable[[list[Value]], Sequence[Value]]
) -> list[Value]:
    """What make computes of concrete values, as one program."""
    b = Builder(given=given)  # a rule of the user may decide on values
    with building(b):
        outs = make([b.input(v.type, v.device) for v in given])
        graph, _ = b.finish(outs, name)
    device = _place(name, given)
    data: list[Any] = [v.storage for v in given]
    run = execute if device is CPU else _on_device(device)
    return [
        holding(v.type, y, device) for v, y in zip(graph.outputs, run(graph, data), strict=True)
    ]


def _push_now(
    g: Graph, primals: Sequence[Value], tangents: Sequence[Tangent]
) -> tuple[list[Value], list[Tangent]]:
    """push_forward on concrete values."""
    count, found = len(primals), list[Tangent]()

    def make(ins: list[Value]) -> list[Value]:
        moving = iter(ins[count:])
        outs, out_ts = push_forward(
            g, ins[:count], [None if t is None else next(moving) for t in tangents]
        )
        found[:] = out_ts
        return [*outs, *(t for t in out_ts if t is not None)]

    ys = _at_once(g.name, [*primals, *(t for t in tangents if t is not None)], make)
    split = len(ys) - sum(t is not None for t in found)
    rest = iter(ys[split:])
    return ys[:split], [None if t is None else next(rest) for t in found]


def _linearized(
    f: Callable[..., Any], primals: tuple[Any, ...], what: str
) -> tuple[Traced, list[Value], list[int], Linearized]:
    t, values = _trace(f, primals, what)
    count = len(values) - len(t.outer)
    wanted = [i for i in range(count) if values[i].dtype.kind in "fc"]
    g = inline(t.graph)
    if current_builder() is None and has_views(g):
        return t, values[:count], wanted, _Whole(g, values, wanted)
    return t, values[:count], wanted, linearize_graph(g, values, wanted)


class _Whole(Linearized):
    """A derivative at concrete values that is computed with the function, as one program each time.

    Parts of a program that looks at single shards mean nothing on their own.
    """

    def __init__(self, g: Graph, values: Sequence[Value], wanted: Sequence[int]):
        super().__init__(_at_once(g.name, values, lambda ins: copy_into(g, tuple(ins))), [], [], [])
        self._g, self._values, self._wanted = g, values, wanted

    def _linear(self, ins: Sequence[Value]) -> Linearized:
        return linearize_graph(self._g, ins[: len(self._values)], self._wanted)

    def pull_back(
        self, cotangents: Sequence[Tangent], start: Sequence[Tangent] = ()
    ) -> list[Tangent]:
        """Cotangents of the wanted inputs."""
        assert not start, start
        cts = cotangents
        found: list[bool] = []

        def make(ins: list[Value]) -> list[Value]:
            rest = iter(ins[len(self._values) :])
            made = self._linear(ins).pull_back([None if c is None else next(rest) for c in cts])
            found[:] = [c is not None for c in made]
            return [c for c in made if c is not None]

        given = [*self._values, *(c for c in cts if c is not None)]
        ys = iter(_at_once(self._g.name, given, make))
        return [next(ys) if has else None for has in found]

    def apply(self, tangents: Sequence[Value]) -> list[Value]:
        """Tangents of the outputs."""
        at = dict(zip(self._wanted, tangents, strict=True))
        moving = [at.get(i) for i in range(len(self._values))]
        outs, found = _push_now(self._g, self._values, moving)
        return [zeros(y.type) if t is None else t for y, t in zip(outs, found, strict=True)]


def _pulled(
    lin: Linearized, cts: Sequence[Tangent], values: Sequence[Value], wanted: Sequence[int]
) -> list[Value]:
    """Cotangents of all values, without the scales of their dtypes."""
    found = dict(zip(wanted, lin.pull_back(cts), strict=True))
    return [
        zeros(v.type) if (c := found.get(i)) is None else uncarried(c) for i, v in enumerate(values)
    ]


def _pull_back(
    what: str, primals: tuple[Any, ...], t: Traced, values: Sequence[Value], wanted: Sequence[int],
    lin: Linearized,
) -> Callable[[Any], tuple[Any, ...]]:  # fmt: skip
    """The function from a cotangent of the result to those of the primals."""
    structure = gradients(tree.structure(primals))
    outline = Outline(t.structure).of_results()

    @guarded
    def pull_back(ct: Any) -> tuple[Any, ...]:
        checked = outline.cotangents(what, lin.outputs, ct)
        if checked is None:
            s = tree.structure(ct)
            raise TreeError(f"{what}: the cotangent is {s}, expected {t.structure} as the result")
        for i, (c, y) in enumerate(zip(checked, lin.outputs, strict=True)):
            if c.type is not y.type:
                kind = DTypeError if c.dtype is not y.dtype else ShapeError
                raise kind(f"{what}: cotangent {i} is {c.type}, expected {y.type} as the result")
        filled = _pulled(lin, [carried(c) for c in checked], values, wanted)
        back: tuple[Any, ...] = tree.unflatten(structure, filled)
        return back

    return pull_back


@guarded
def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """f at the primals, and the function from a cotangent of its result to those of the primals."""
    t, values, wanted, lin = _linearized(f, primals, "vjp")
    back = _pull_back("vjp", primals, t, values, wanted, lin)
    return tree.unflatten(t.structure, lin.outputs), back


@guarded
def linearize(f: Callable[..., Any], *primals: Any) -> tuple[Any, LinearMap]:
    """f at the primals, and its derivative there as a linear map, with a transpose and an adjoint."""
    t, values, wanted, lin = _linearized(f, primals, "linearize")
    back = _pull_back("linearize", primals, t, values, wanted, lin)
    outline = Outline(t.structure).of_results()

    @guarded
    def apply(*tangents: Any) -> Any:
        given = _check_tangents("linearize", primals, tangents)
        outs = lin.apply([x for x in (given[i] for i in wanted) if x is not None])
        return outline.tangents(lin.outputs, outs)

    several = len(primals) != 1
    pull = back if several else (lambda ct: back(ct)[0])
    argument = tree.structure(primals if several else primals[0])
    domain = TreeSpace(argument, [v.type for v in values])
    space = TreeSpace(outline.structure, outline.types(lin.outputs), of_results=True)
    made = LinearMap(apply, pull, domain, space, several)
    return tree.unflatten(t.structure, lin.outputs), made


@blames_arguments
def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns f's value and its gradient in the arguments argnums."""
    demand_function("grad", f)
    numbers = numbered("grad", argnums)

    @wraps(f)
    @guarded
    def run(*args: Any, **kwargs: Any) -> Any:
        check_argnums(f, numbers, args)
        chosen = tuple(args[i] for i in numbers)
        _check_differentiable(chosen, numbers)

        def restricted(*xs: Any) -> Any:
            full = list(args)
            for i, x in zip(numbers, xs, strict=True):
                full[i] = x
            return applied(getattr(f, "__name__", "grad"), f, full, kwargs)

        t, values, wanted, lin = _linearized(restricted, chosen, getattr(f, "__name__", "grad"))
        loss = _checked_loss(f, t, lin.outputs, has_aux)
        one = [full_of((), loss.dtype.scale, loss.dtype), *(None for _ in lin.outputs[1:])]
        filled = _pulled(lin, one, values, wanted)
        grads = tree.unflatten(gradients(tree.structure(chosen)), filled)
        out = tree.unflatten(t.structure, lin.outputs)
        return out, grads[0] if isinstance(argnums, int) else grads

    return run


@blames_arguments
def grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of f in the arguments argnums."""
    both = value_and_grad(f, argnums, has_aux)

    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return run


class Differentiable:
    """A function that knows its derivatives: f(x), f.grad(x), f.value_and_grad(x), f.jvp, f.vjp."""

    def __init__(self, f: Callable[..., Any]):
        update_wrapper(self, f)
        self._f = f
        self.grad, self.value_and_grad = grad(f), value_and_grad(f)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._f(*args, **kwargs)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The value at the primals, and the derivative times the tangents."""
        out: tuple[Any, Any] = jvp(self._f, primals, tangents)
        return out

    def vjp(self, *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        """The value at the primals, and the function that pulls cotangents back."""
        out: tuple[Any, Callable[[Any], tuple[Any, ...]]] = vjp(self._f, *primals)
        return out


@blames_arguments
def autodiff(f: Callable[..., Any]) -> Differentiable:
    """Decorator: give a function its derivatives as methods."""
    return Differentiable(f)


def numbered(what: str, argnums: Any) -> tuple[Any, ...]:
    """The positions that argnums names: one, or several."""
    if isinstance(argnums, int):
        return (argnums,)
    if not isinstance(argnums, tuple | list):
        raise OperandError(f"{what}: argnums has {argnums!r:.40}, expected positions of arguments")
    return tuple(argnums)


def check_argnums(f: Any, numbers: Sequence[int], args: tuple[Any, ...]) -> None:
    """Refuse numbers that name no argument, or one twice."""
    for i in numbers:
        if not isinstance(i, int):
            raise OperandError(f"grad: argnums has {i!r:.40}, expected positions of arguments")
        if not -len(args) <= i < len(args):
            raise OperandError(
                f"grad: argnums {i} is out of range: {getattr(f, '__name__', 'the function')} got "
                f"{len(args)} positional arguments"
            )
    if len({i % len(args) for i in numbers}) < len(numbers):
        raise OperandError(f"grad: argnums {tuple(numbers)} names an argument twice")


def _check_differentiable(chosen: tuple[Any, ...], numbers: Sequence[int]) -> None:
    for i, x in zip(numbers, chosen, strict=True):
        for leaf in map(as_value, tree.leaves(x)):
            if leaf.dtype.kind not in "fc":
                raise DTypeError(
                    f"grad: argument {i} holds {leaf.type}; only floating-point tensors have "
                    "gradients: cast it, or leave it out of argnums"
                )


def _checked_loss(f: Any, t: Traced, outputs: Sequence[Value], has_aux: bool) -> Value:
    name = getattr(f, "__name__", "the function")
    if has_aux:
        if t.structure.kind is not tuple or len(t.structure.children) != 2:
            raise TreeError(f"grad: {name} must return (loss, aux) with has_aux=True")
        if t.structure.children[0].kind is not None:
            raise TreeError(f"grad: {name} returned a tree as its loss, expected one scalar")
    elif t.structure.kind is not None:
        raise TreeError(
            f"grad: {name} returned {t.structure}, expected one scalar; for more results use "
            "has_aux=True"
        )
    loss = outputs[0]
    if loss.ndim != 0:
        raise ShapeError(
            f"grad: {name} returned {loss.type}, expected a scalar; reduce it with op.sum or op.mean"
        )
    if loss.dtype.kind != "f":
        raise DTypeError(
            f"grad: {name} returned {loss.type}, expected a real floating-point scalar"
        )
    return loss
