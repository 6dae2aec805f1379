"""Every public function, whatever it is called with, ends in a result or an error of ours; so do public
modules that are called, and names that they lack.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import TesseraError, op
from tests.support.runners.each import each
from tools.api_reference import MODULES

RUNS_ON = "numpy"
X = ts.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
# Beside those of the reference: modules of functions, by their names.
_MORE = (
    "ts.cache",
    "ts.nn.init",
    "ts.onnx",
    "ts.stablehlo",
    "ts.stdlib",
    "ts.torch",
    "ts.dist.strategy",
)
# They take any argument, print, act on the process, or compare with a file.
_ANYTHING = {
    "ts.print",
    "ts.callback",
    "ts.testing.golden",
    "ts.torch.register",
    "ts.cache.clear",
    "ts.cache.clear_code",
}
# Paths of every traced call, whose missing arguments are told by Python.
_BARE = {"ts.tree.flatten", "ts.tree.leaves", "ts.tree.structure", "ts.tree.unflatten", "ts.tree.children",
         "ts.tree.keys", "ts.tree.node", "ts.tree.is_mapping", "ts.tree.parts", "ts.tree.see_as",
         "ts.tree.structure_names", "ts.tree.structure_paths", "ts.tree.tokens", "ts.tree.token",
         "ts.tree.root", "ts.tree.in_order_of", "ts.tree.written_keys", "ts.tree.with_children"}  # fmt: skip


class Odd:
    """An object that no function takes."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions with their names."""
    modules = [(p, m) for p, m, _ in MODULES] + [(p, eval(p, {"ts": ts})) for p in _MORE]
    seen: set[int] = set()
    for prefix, module in modules:
        for n in getattr(module, "__all__", None) or dir(module):
            f = getattr(module, n, None)
            if n.startswith("_") or not inspect.isroutine(f) or id(f) in seen:
                continue
            inside = module.__name__ if prefix in (*_MORE, "ts.tree") else "tessera"
            known = f"{prefix}.{n}" in _ANYTHING | _BARE
            if known or not str(f.__module__).startswith(inside):
                continue
            seen.add(id(f))
            yield f"{prefix}.{n}", f


def calls(f: Callable[..., Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Wrong calls: nothing, one odd thing for all arguments, one argument too many, an unknown name."""
    parameters = list(inspect.signature(f).parameters.values())
    free = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(p.kind in free and p.default is p.empty for p in parameters)
    kinds = {p.kind for p in parameters}
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if count:
        yield (), {}
        for x in (Odd(), "text", None):
            yield (x,) * count, dict.fromkeys(named, x)
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        yield (X,) * (len(parameters) + 1), {}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        yield (X,) * count, {"nonsense": 1}


def test_there_are_many_functions() -> None:
    assert len(list(functions())) > 180


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the test's own: "text" is a good name of a file."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.filterwarnings("ignore")
@each(functions(), by=lambda c: c[0].rpartition(".")[0], told=lambda c: c[0])
def test_a_wrong_call_ends_in_an_error_of_ours(name: str, f: Callable[..., Any]) -> None:
    for args, kwargs in calls(f):
        try:
            f(*args, **kwargs)
        except TesseraError as e:
            lines = e.message.splitlines()
            if len(lines) != 1:
                pytest.fail(f"more than one line: {lines}")


def public_modules() -> Iterator[tuple[str, types.ModuleType]]:
    """The modules below `ts` that answer under a public name."""
    for n in ("cache", "data", "debug", "dist", "jax", "models", "nn", "onnx", "optim", "stablehlo",
              "stdlib", "testing", "torch", "train", "verify"):  # fmt: skip
        found = getattr(ts, n)
        yield n, found
        for m, x in vars(found).items():
            if isinstance(x, types.ModuleType) and x.__name__ == f"{found.__name__}.{m}":
                yield f"{n}.{m}", x


@each(public_modules(), by=lambda c: c[0].partition(".")[0], told=lambda c: c[0])
def test_a_module_that_is_called_says_what_to_write(name: str, module: Any) -> None:
    with pytest.raises(TesseraError) as e:
        module(X, 3)
    assert e.value.message.startswith(f"{name}: ts.{name} is a module; write ")
    with pytest.raises(AttributeError) as lacking:
        _ = module.no_such_name
    assert isinstance(lacking.value, TesseraError)
    assert lacking.value.message.startswith(f"{name} has no 'no_such_name'")
    assert not hasattr(module, "__no_such_protocol__")


def test_a_public_name_is_not_hidden_by_a_module_of_its_name() -> None:
    root = Path(ts.__file__).parent
    hidden = []
    for file in root.rglob("__init__.py"):
        for node in ast.parse(file.read_text()).body:
            names = [t.id for t in getattr(node, "targets", ()) if isinstance(t, ast.Name)]
            hidden += [
                f"{file.parent.name}.{n}"
                for n in names
                if (file.parent / f"{n}.py").exists() or (file.parent / n).is_dir()
            ]
    assert hidden == []  # the import of the module would replace the name


def test_an_error_inside_us_names_the_call() -> None:
    with pytest.raises(TesseraError) as e:
        ts.optim.adam(0.1).update(X, ts.optim.sgd(0.1, 0.9).init(X), X)
    assert e.value.message.startswith(
        "update: cannot take f32[3,4], dict {'step': Tensor(0, i32[]), "
    )
    assert e.value.message.endswith("f32[3,4]: there is no 'm'")
    assert isinstance(e.value.__cause__, KeyError)  # for those who mend us


def test_an_error_of_the_users_own_code_stays() -> None:
    class Samples:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as e:
        ts.data.Loader(Samples(), 2).batch(0)
    assert not isinstance(e.value, TesseraError)


def test_objects_that_only_explain_a_call_are_no_functions() -> None:
    opt = ts.optim.adam(0.1)
    with pytest.raises(TesseraError, match=r"optimiser\(\.\.\.\): write params, state = opt"):
        opt(X)
    with pytest.raises(TesseraError, match=r"grad: got Optimizer .*, expected a function"):
        ts.grad(opt)
    with pytest.raises(TesseraError, match="an optimiser is a value, and its 'lr' cannot be set"):
        opt.lr = 3  # type: ignore[misc, attr-defined]
    assert op.sum(X).item() == 66
