"""A loaded model: run it on arrays, call it on tensors, take its parameters, lower it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tessera.core.device import ANYWHERE
from tessera.core.dtype import as_dtype
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.public import public
from tessera.core.types import TensorType
from tessera.interop.onnx import plan
from tessera.interop.onnx.evaluate import Evaluator, OnnxScope
from tessera.interop.onnx.model import Array, Model, OnnxError, OnnxInfo
from tessera.interop.onnx.proto import array_of
from tessera.interop.onnx.rule import is_foreign, is_ours, tensor
from tessera.ir.graph.ir import Value, holding
from tessera.lang.create import asarray
from tessera.lang.jit import Jitted
from tessera.lang.lowered import Lowered
from tessera.lang.tensor import Tensor

# Models of so few nodes run eagerly once before they are compiled: their first call is quicker so.
_FEW = 16
_MOST_PLANS = 64  # kinds of inputs that plans are kept for


_SIGNATURE, _NOTHING = "m.signature", "nothing: m(x) runs the model"
_INSTEAD = {
    "get_inputs": _SIGNATURE, "get_outputs": _SIGNATURE, "get_modelmeta": _SIGNATURE,
    "graph": "m.lower().graph, or m.model as it was read",
    "SerializeToString": "ts.onnx.save(f, path, *args)",
    "eval": _NOTHING, "train": _NOTHING, "cuda": "m(x.to('cuda'))", "to": "m(x.to(device))",
    "forward": "m(x)", "state_dict": "m.parameters", "weights": "m.parameters",
    "params": "m.parameters", "save": "ts.onnx.save(m, path, *args)",
}  # fmt: skip


@public("an ONNX module", _INSTEAD)
class OnnxModule:
    """An ONNX model as a function of its inputs.

    `m.run({name: array})` compiles the model for the types of its inputs and runs it.  `m(x, ...)` is the
    same function for tensors, also inside jit, grad and vmap.  `m.parameters` holds the floating-point
    initialisers, and `m.apply(parameters, x, ...)` runs the model with others.
    """

    def __init__(self, model: Model):
        self.model = model
        self._evaluator = Evaluator(model)
        self._plans: dict[Any, plan.OnnxPlan] = {}
        self._seen: set[Any] = set()
        # Of calls with arrays alone that one program answers: the types of the arrays and the plan.
        self._direct: dict[Any, tuple[dict[str, TensorType], plan.OnnxPlan]] = {}
        graph = model.graph
        self.inputs = tuple(i for i in graph.inputs if i.name not in graph.initialisers)
        self.outputs = graph.outputs
        self._by_name = {i.name: i for i in graph.inputs}
        # Inputs of one whole number, by which the model chooses what it does: a program for each.
        self._settled: tuple[str, ...] = ()
        self._small = plan.count(graph.nodes) <= _FEW and not model.functions

    def __repr__(self) -> str:
        return f"<OnnxModule {self.signature}>"

    @property
    def signature(self) -> str:
        """The names and types of inputs and outputs."""
        ins, outs = (", ".join(map(str, part)) for part in (self.inputs, self.outputs))
        return f"({ins}) -> ({outs})"

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The floating-point initialisers of the model's graph, by name."""
        found = self.model.graph.initialisers.items()
        return {k: asarray(v) for k, v in found if is_ours(v.dtype) and _is_float(v)}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name, in the model's order, for arrays by name."""
        try:
            return self._run(inputs)
        except TesseraError as e:
            error = located(e)
        raise error

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        found = self._direct.get(self._kind(inputs))
        if found is not None:
            types, made = found
            tensors = {k: holding(t, _shown(inputs[k]), ANYWHERE) for k, t in types.items()}
            answer = made.named(tensors, self.outputs)
            if answer is not None:
                return answer
            self._direct.clear()
        results, used = self._looked_up(inputs)
        known = self._kind(inputs)
        if used is not None and known is not None and len(inputs) == len(self.inputs):
            if len(self._direct) >= _MOST_PLANS:
                self._direct.clear()
            traced = {k: x for k, x in inputs.items() if k not in self._settled}
            types = {k: TensorType(as_dtype(x.dtype), x.shape) for k, x in traced.items()}
            self._direct[known] = types, used
        return results

    def _kind(self, inputs: Mapping[str, Any]) -> Any:
        """What decides how plain arrays are answered: their types, and the values that choose a program."""
        found = _kinds(inputs)
        if found is None or not self._settled:
            return found
        return (found, *(inputs[k].tobytes() for k in self._settled if k in inputs))

    def _looked_up(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], plan.OnnxPlan | None]:
        """The outputs for any inputs, and the plan that gave them if its program alone did."""
        given = {name: self._given(name, x) for name, x in inputs.items()}
        missing = [i.name for i in self.inputs if i.name not in given and i.kind != "optional"]
        if missing:
            raise OperandError(
                f"onnx: run lacks the inputs {missing}; the model is {self.signature}"
            )
        tensors = {k: v for k, v in given.items() if isinstance(v, Value)}
        fixed = {k: v for k, v in given.items() if k not in tensors}
        absent: dict[str, Any] = {i.name: None for i in self.inputs if i.name not in given}
        settled = {k: np.asarray(tensors.pop(k)) for k in self._settled if k in tensors}
        absent |= settled
        numbers = tuple((k, v.item()) for k, v in settled.items())
        key = (tuple((k, v.type) for k, v in tensors.items()), tuple(absent), numbers)
        if fixed:  # text and sequences have no types that a program could be kept for
            eager = plan.OnnxPlan(self._evaluator, self.model.graph, {**fixed, **absent})
            return self._named(eager.eager(tensors)), None
        found = self._named(self._planned(key, absent, tensors))
        made = self._plans[key]
        alone = absent.keys() <= set(self._settled) and made.gives_all(
            [o.name for o in self.outputs]
        )
        return found, made if alone else None

    def _planned(self, key: Any, absent: dict[str, Any], tensors: dict[str, Value]) -> list[Any]:
        made = self._plans.get(key)
        if made is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            made = self._plans[key] = plan.OnnxPlan(self._evaluator, self.model.graph, absent)
        if self._small and key not in self._seen:
            self._seen.add(key)
            return made.eager(tensors)
        if not self._settled and not made.compiles_whole(tensors):
            self._settled = tuple(k for k, v in tensors.items() if _is_choice(v))
        return made.run(tensors)

    def _given(self, name: str, x: Any) -> Any:
        info = self._by_name.get(name)
        if info is None:
            raise OperandError(f"onnx: the model has no input '{name}'; it is {self.signature}")
        return _checked(info, _value(x))

    def _named(self, found: list[Any]) -> dict[str, Any]:
        return {o.name: _result(x) for o, x in zip(self.outputs, found, strict=True)}

    # As a function of tensors

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The output, or a tuple of them, for tensors in the order of inputs or by name."""
        return self.apply({}, *args, **named)

    def apply(self, parameters: Mapping[str, Any], *args: Any, **named: Any) -> Any:
        """The same with some initialisers replaced."""
        try:
            return self._apply(parameters, args, named)
        except TesseraError as e:
            error = located(e)
        raise error

    def _apply(self, parameters: Mapping[str, Any], args: tuple[Any, ...], named: Any) -> Any:
        graph = self.model.graph
        if len(args) > len(self.inputs):
            raise OperandError(
                f"onnx: got {len(args)} inputs for {len(self.inputs)}; the model is {self.signature}"
            )
        given = dict(zip((i.name for i in self.inputs), args, strict=False)) | named
        values = {k: self._given(k, x) for k, x in given.items()}
        for name in parameters:
            if name not in graph.initialisers:
                raise OperandError(f"onnx: the model has no initialiser '{name}'")
        missing = [i.name for i in self.inputs if i.name not in values and i.kind != "optional"]
        if missing:
            raise OperandError(
                f"onnx: the inputs {missing} are missing; the model is {self.signature}"
            )
        absent = {i.name: None for i in self.inputs if i.name not in values}
        scope = OnnxScope({**graph.initialisers, **absent, **parameters, **values})
        self._evaluator.nodes(graph.nodes, scope, [o.name for o in graph.outputs])
        found = [_result(scope.find(o.name)) for o in graph.outputs]
        return found[0] if len(found) == 1 else tuple(found)

    def lower(self, *args: Any, **named: Any) -> Lowered:
        """The model at every level of the compiler; without arguments for sizes of 1 where they are open."""
        if not args and not named:
            args = tuple(_blank(i) for i in self.inputs)
        return Jitted(_plain(self)).lower(*args, **named)


def _plain(m: OnnxModule) -> Any:
    def model(*args: Any, **named: Any) -> Any:
        return m.apply({}, *args, **named)

    return model


def _blank(i: OnnxInfo) -> Tensor:
    if i.dtype is None or i.shape is None or not is_ours(i.dtype):
        raise OperandError(f"onnx: lower needs arguments: the type of input '{i.name}' is open")
    return asarray(np.zeros([s if isinstance(s, int) else 1 for s in i.shape], i.dtype))


def _kinds(inputs: Mapping[str, Any]) -> Any:
    """The names, dtypes and shapes of plain arrays; None where there is anything else."""
    found = []
    for name, x in inputs.items():
        if type(x) is not np.ndarray or x.dtype.kind not in "biuf" or not x.dtype.isnative:
            return None
        found.append((name, x.dtype, x.shape))
    return tuple(found)


def _shown(x: Array) -> Array:
    """A view of an array that nobody can write to."""
    view = x.view()
    view.flags.writeable = False
    return view


def _is_choice(v: Value) -> bool:
    return v.ndim == 0 and v.dtype.kind in "biu"


def _is_float(v: Array) -> bool:
    return v.dtype.kind in "fc" or v.dtype.name.startswith(("bfloat", "float"))


def _value(x: Any) -> Any:
    """An input as a rule sees it."""
    if isinstance(x, list | tuple):
        return [_value(e) for e in x]
    if x is None or isinstance(x, Value | dict):
        return x
    a = array_of(x)
    if a.dtype.kind in "USO":
        a = a.astype(object)
    return a if is_foreign(a) else asarray(a)


def _checked(info: OnnxInfo, x: Any) -> Any:
    """An input that fits what the model says of it."""
    if info.kind != "tensor" or not isinstance(x, Value) or info.dtype is None:
        return x
    if np.dtype(x.dtype.np) != info.dtype:
        raise OnnxError(
            f"onnx: input '{info.name}' is {x.type}, expected {info}; cast it with astype"
        )
    if info.shape is not None:
        fits = len(info.shape) == x.ndim and all(
            not isinstance(s, int) or not isinstance(t, int) or s == t
            for s, t in zip(info.shape, x.shape, strict=True)
        )
        if not fits:
            raise OnnxError(f"onnx: input '{info.name}' is {x.type}, expected {info}")
    return x


def _result(x: Any) -> Any:
    if isinstance(x, list):
        return [_result(e) for e in x]
    found = tensor(x)
    return asarray(found) if isinstance(found, np.ndarray) and not is_foreign(found) else found
