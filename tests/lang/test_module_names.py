"""dir() of a public module has what users write, and nothing that its file imports for itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import tessera as ts
from tessera import op

FOREIGN = {
    "annotations", "Any", "Callable", "Deferred", "TYPE_CHECKING", "answer", "dataclass", "lacking", "np",
    "partial",
}  # fmt: skip
PUBLIC = [
    "array_api", "array_api.fft", "array_api.linalg", "bundle", "cache", "data", "debug", "dist",
    "dist.strategy", "graph", "jax", "models", "nn", "nn.init", "onnx", "optim", "stablehlo", "stdlib",
    "testing", "torch", "train", "tree", "verify",
]  # fmt: skip


def module(name: str) -> ModuleType:
    found = ts
    for part in name.split("."):
        found = getattr(found, part)
    return found


def names(m: ModuleType) -> list[str]:
    return [n for n in dir(m) if not n.startswith("_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_has_names_of_users_alone(name):
    m = module(name)
    shown = names(m)
    assert shown
    assert not FOREIGN & set(shown)
    for n in shown:
        x = getattr(m, n)
        assert type(x).__name__ != "Deferred"
        if isinstance(x, ModuleType):
            assert x.__name__.startswith(m.__name__), n
        elif callable(x):
            assert (inspect.getmodule(x) or m).__name__.startswith("tessera"), n


def test_random_and_tile_show_their_functions_alone():
    for m in (op.random, importlib.import_module("tessera.lang.tile")):
        assert "normal" in names(m) or "load" in names(m)
        assert not FOREIGN & set(names(m))


def test_functions_that_are_loaded_late_have_signatures():
    assert list(inspect.signature(ts.jax.wrap).parameters) == ["f"]
    assert "load" in names(ts.stablehlo)
    assert ts.stablehlo.load.__doc__


def test_every_public_module_is_in_the_list():
    for found in pkgutil.iter_modules(ts.__path__):  # what is imported is an attribute of ts
        importlib.import_module(f"tessera.{found.name}")
    of_ts = {n for n in dir(ts) if isinstance(getattr(ts, n), ModuleType)}
    assert of_ts == {n for n in PUBLIC if "." not in n} | {"ir", "op", "tile"}


@pytest.mark.parametrize("name", [n for n in PUBLIC if not n.startswith("array_api")])
def test_a_public_module_answers_wrong_uses_under_its_public_name(name):
    m = module(name)
    with pytest.raises(AttributeError) as e:
        _ = m.nothing_of_this_name
    assert str(e.value).startswith(f"{name} has no 'nothing_of_this_name'")
    with pytest.raises(ts.TesseraError, match=f"^{name}: ts.{name} is a module; write ts.") as e:
        m()
