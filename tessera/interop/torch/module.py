"""ts.torch.import_module: a module of PyTorch as a function of ours, with its parameters in the same
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.blame import blames_arguments, brief
from tessera.core.dims import Dim
from tessera.core.errors import OperandError, ShapeError, TesseraError, located
from tessera.core.public import public
from tessera.core.types import TensorType
from tessera.interop.torch.backend import table
from tessera.interop.torch.evaluate import evaluate
from tessera.interop.torch.exchange import array_of, is_torch
from tessera.interop.torch.library import part, torch
from tessera.interop.torch.plan import TorchPlan, plan_of
from tessera.ir.graph.ir import Value
from tessera.lang.create import asarray
from tessera.lang.jit import Jitted
from tessera.lang.lowered import Lowered
from tessera.lang.tensor import Tensor


@blames_arguments
def import_module(
    module: Any, *args: Any, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> TorchModule:
    """A module of PyTorch as a function of ours, by torch.export with these example arguments.

    dynamic_shapes says which sizes may change, as torch.export takes it.
    """
    try:
        if not isinstance(module, torch().nn.Module):
            raise OperandError(
                f"torch.import_module: got {type(module).__name__}, expected a torch.nn.Module; wrap a "
                "function in one"
            )
        export = part("export")
        try:
            program = export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
        except Exception as e:
            raise _unexported(module, args, kwargs, e) from e
        return TorchModule(program.run_decompositions(table()), type(module).__name__)
    except TesseraError as e:
        error = located(e)
    raise error


def _unexported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, e: Exception
) -> OperandError:
    """The error of a module that torch.export cannot trace with these arguments."""
    tensor = torch().Tensor
    given = [*args, *(kwargs or {}).values()]
    shown = ", ".join(
        f"{x.dtype}{list(x.shape)}"
        if isinstance(x, tensor)
        else f"{type(x).__name__} {brief(x, 30)}"
        for x in given
    )
    text = " ".join(str(e).split())[:200] or type(e).__name__
    if len(args) == 1 and type(args[0]) is tuple and all(isinstance(x, tensor) for x in args[0]):
        text += "; arguments are given one by one, import_module(module, x, y)"
    return OperandError(
        f"torch.import_module: torch.export cannot trace {type(module).__name__} with "
        f"{shown or 'no arguments'}: {text}; give example tensors of PyTorch that the module runs on"
    )


_NOTHING = "nothing: m(x) runs the module"
_INSTEAD = {
    "eval": _NOTHING, "train": _NOTHING, "cuda": "m(x.to('cuda'))", "to": "m(x.to(device))",
    "forward": "m(x)", "state_dict": "m.parameters", "named_parameters": "m.parameters.items()",
    "zero_grad": "nothing: gradients are results",
    "backward": "ts.grad(lambda p: loss(m.apply(p, x)))(m.parameters)",
}  # fmt: skip


@public("an imported module", _INSTEAD)
class TorchModule:
    """A module of PyTorch as a function of its inputs.

    `m(x, ...)` runs it, also inside jit, grad and vmap.  `m.parameters` holds its parameters and buffers by
    name, in the module's own memory, and `m.apply(parameters, x, ...)` runs it with others.
    """

    def __init__(self, program: Any, name: str):
        self.name, self._program = name, program
        self._plan: TorchPlan = plan_of(program.graph_module)
        signature = program.graph_signature
        written = sorted(signature.buffers_to_mutate.values())
        if written or signature.user_inputs_to_mutate:
            what = ", ".join(written) or "its inputs"
            raise OperandError(
                f"torch.import_module: {name} writes to {what} when it runs; call model.eval() first, or "
                "train it with "
                'torch.compile(model, backend="tessera")'
            )
        self._slots = [
            None if s.kind.name == "USER_INPUT" else str(s.target) for s in signature.input_specs
        ]
        held = {**program.constants, **program.state_dict}
        self._held = {n: held[n] for n in self._slots if n is not None}
        self._learnt = {
            str(s.target) for s in signature.input_specs if s.kind.name in ("PARAMETER", "BUFFER")
        }
        self._values: dict[str, tuple[int, Tensor]] = {}
        self._inputs = [
            s.call for s, slot in zip(self._entries(), self._slots, strict=True) if slot is None
        ]

    def _entries(self) -> list[Any]:
        return [s for s in self._plan.steps if s.kind == "input"]

    def __repr__(self) -> str:
        ins = ", ".join(
            str(TensorType(c.dtype, c.shapes[0]))
            for c in self._inputs
            if c.dtypes[0] and c.shapes[0]
        )
        return f"<TorchModule {self.name}({ins})>"

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters and buffers by name; what PyTorch writes to them shows here."""
        return {n: self._value(n) for n in self._held if n in self._learnt}

    def _value(self, name: str) -> Tensor:
        t = self._held[name]
        pointer = t.data_ptr()
        kept = self._values.get(name)
        if kept is None or kept[0] != pointer:
            kept = self._values[name] = (pointer, asarray(array_of(t)))
        return kept[1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs in the structure that the module returns them in."""
        return self.apply({}, *args, **kwargs)

    def apply(self, parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The same with some parameters replaced."""
        try:
            return self._applied(parameters, args, kwargs)
        except TesseraError as e:
            error = located(e)
        raise error

    def _applied(self, parameters: Mapping[str, Any], args: Any, kwargs: Any) -> Any:
        for name in parameters:
            if name not in self._held:
                some = ", ".join(list(self._held)[:3])
                raise OperandError(
                    f"torch: {self.name} has no parameter '{name}'; it has {some}, ..."
                )
        given = iter(self._taken(args, kwargs))
        values = [
            next(given) if n is None else parameters[n] if n in parameters else self._value(n)
            for n in self._slots
        ]
        found = evaluate(self._plan, values, {})
        return _plain(part("utils._pytree").tree_unflatten(found, self._program.call_spec.out_spec))

    def _taken(self, args: Any, kwargs: Any) -> list[Any]:
        """The inputs in order, each of a type that the module was exported for."""
        tree = part("utils._pytree")
        leaves, structure = tree.tree_flatten((args, kwargs))
        wanted = self._program.call_spec.in_spec
        if structure != wanted:
            raise OperandError(
                f"torch: {self.name} got arguments of the structure {_short(structure)}, expected "
                f"{_short(wanted)}, as "
                "those that it was imported with"
            )
        return [self._checked(x, c) for x, c in zip(leaves, self._inputs, strict=True)]

    def _checked(self, x: Any, call: Any) -> Any:
        if call.dtypes[0] is None:
            return x
        v = x if isinstance(x, Value) else asarray(array_of(x) if is_torch(x) else x)
        want = TensorType(call.dtype, call.shapes[0])
        fits = v.ndim == len(want.shape) and all(
            isinstance(w, Dim) or isinstance(s, Dim) or w == s
            for s, w in zip(v.shape, want.shape, strict=True)
        )
        if not fits or v.dtype is not call.dtype:
            raise ShapeError(
                f"torch: {self.name} got {v.type}, expected {want} as it was imported; name the sizes that "
                "change in "
                "dynamic_shapes"
            )
        return v

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The module at every level of the compiler."""
        return Jitted(_function(self)).lower(*args, **kwargs)


def _function(m: TorchModule) -> Any:
    def module(*args: Any, **kwargs: Any) -> Any:
        return m.apply({}, *args, **kwargs)

    return module


def _plain(x: Any) -> Any:
    """Outputs in tuples, lists and dicts; records of transformers are dicts."""
    if isinstance(x, Mapping):
        return {k: _plain(v) for k, v in x.items() if v is not None}
    if isinstance(x, list | tuple):
        made = [_plain(v) for v in x]
        return made if isinstance(x, list) else tuple(made)
    return x


def _short(structure: Any) -> str:
    text = " ".join(str(structure).split())
    return text if len(text) < 160 else text[:157] + "..."
