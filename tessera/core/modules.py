"""Public modules: a call of one, or a name that one lacks, says what to write.

Many modules have the name of a function elsewhere: `onnx.export`, `train.metrics`, `models.gpt2`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tessera.core.counterparts import lacking
from tessera.core.errors import OperandError, located

# What to write instead of calling a module.
_CALLS = {
    "ts.data.loader": "ts.data.Loader(data, batch)",
    "ts.data.order": "ts.data.Order(count, key)",
    "ts.dist.strategy": "ts.dist.strategy.data(mesh), .tensor(mesh), .fsdp(mesh), ...",
    "ts.jax": "ts.jax.wrap(f), or ts.jax.import_function(f, *args)",
    "ts.models": "ts.models.load(path)",
    "ts.nn": "ts.nn.Linear(in_size, out_size, key), ...",
    "ts.onnx": "ts.onnx.load(path), or ts.onnx.save(f, path, *args)",
    "ts.onnx.export": "ts.onnx.save(f, path, *args)",
    "ts.onnx.model": "ts.onnx.load(path)",
    "ts.optim": "ts.optim.adam(lr), ...",
    "ts.stablehlo": "ts.stablehlo.export(f, *args), or ts.stablehlo.load(text)",
    "ts.torch": "ts.torch.wrap(f), or ts.torch.import_module(module, *args)",
    "ts.train": "ts.train.fit(step, state, batches, steps)",
    "ts.train.checkpoints": "ts.train.Checkpoints(folder)",
    "ts.train.dashboard": "ts.train.Dashboard()",
    "ts.train.stop": "ts.train.EarlyStop(metric, patience)",
    "ts.train.tensorboard": "ts.train.TensorBoard(folder)",
}


class _Public(ModuleType):
    """A module that answers calls and names that it does not have; so do the modules inside it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where = self.__dict__["_public_name"]
        package = where.partition(".")[0]
        instead = _CALLS.get(f"ts.{where}") or _CALLS.get(f"ts.{package}")
        instead = instead or _functions(self, where)
        raise located(OperandError(f"{where}: ts.{where} is a module; write {instead}"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols ask for such names, and for a plain answer
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        own = self.__dict__.get("__getattr__")
        if own is not None:
            return own(name)
        raise lacking(self.__dict__["_public_name"], name, _names(self))

    def __dir__(self) -> list[str]:
        """What users write, without what the file imports for itself."""
        own = self.__dict__.get("__dir__")
        if own is not None:
            return list(own())
        return sorted({*_names(self), *(n for n in vars(self) if n.startswith("__"))})

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}":
            answer(value.__name__, f"{self.__dict__['_public_name']}.{name}")
        super().__setattr__(name, value)


def answer(module: str, name: str) -> None:
    """Have a module, and those inside it, answer wrong uses under a public name; it ends its own file."""
    found = sys.modules[module]
    if found.__class__ is not ModuleType:
        return
    found.__dict__["_public_name"] = name
    found.__class__ = _Public
    for inner in [n for n, x in vars(found).items() if isinstance(x, ModuleType)]:
        setattr(found, inner, vars(found)[inner])


def _functions(module: ModuleType, where: str) -> str:
    """The first functions of a module, or the package that it is a part of."""
    names = [n for n in _names(module) if callable(vars(module).get(n))]
    shown = [f"ts.{where}.{n}" for n in names[:3]]
    return f"{', '.join(shown)}, ..." if shown else f"a function of ts.{where.rpartition('.')[0]}"


def _names(module: ModuleType) -> list[str]:
    """What a module has of its own."""
    own = vars(module).get("__all__")
    if own is not None:
        return list(own)
    inside = module.__name__
    return [
        n
        for n, x in vars(module).items()
        if not n.startswith("_") and str(getattr(x, "__module__", "")).startswith(inside)
    ]


class _Called(ModuleType):
    """A module that is called as if it were a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise located(OperandError(self.__dict__["_when_called"]))


def refuse_calls(module: str, text: str) -> None:
    """Have a call of a module raise an error with this text."""
    found = sys.modules[module]
    found.__dict__["_when_called"] = text
    found.__class__ = _Called
