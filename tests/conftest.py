"""Every program of the tests is verified after every pass; hypothesis has the profiles ci, wide, deep and
mutations.

`ci` draws the same examples every time, and `wide` more of them (`make test-deep`);
`--hypothesis-profile=deep`
searches.  Tests that catch seeded faults (benchmarks/records/mutations.json) state the examples that they
need.
"""

import ctypes
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tessera.core.flags import flags, override
from tessera.runtime import tuned
from tessera.runtime.cuda.driver import LOADERS
from tests.support.breadth import WIDE, spare
from tests.support.longest import rank

settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=15)
settings.register_profile("wide", settings.get_profile("ci"), max_examples=WIDE)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=5000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# To learn that a test fails, not on what: a smaller example takes minutes to find.
settings.register_profile(
    "mutations", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("ci")

os.environ.setdefault("TESSERA_STRICT", "1")  # in the processes that tests start, too

# Who runs us in the background may have told us to ignore interrupts; programs that the tests start
# and interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """A run that leaves the tests for GPUs out is one of a machine that has none."""
    # A compilation makes many objects: of 31 seconds of tests of the compiler 2.8 went into 2,600 searches
    # for garbage, and 2.2 into 25 with this, most of them those at the ends of files.
    gc.set_threshold(100_000, 20, 50)
    if "not gpu" not in config.getoption("markexpr"):
        return
    hidden = {name for loader in LOADERS.values() for name in loader.api.libraries}

    class Library(ctypes.CDLL):
        def __init__(self, name: str | None, *args: Any, **kwargs: Any):
            if name in hidden:
                raise OSError("hidden from tests")
            super().__init__(name, *args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(ctypes, "CDLL", Library)
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        absent = name == "cupy" and name not in sys.modules
        return None if absent else found(name, package)

    patch.setattr(importlib.util, "find_spec", find_spec)
    config.add_cleanup(patch.undo)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which no test is asked for are not read: every worker reads all others, which takes it 15
    seconds.
    """
    if collection_path.suffix != ".py":
        return None
    oracles = collection_path.parent.name == "oracles"
    match config.getoption("markexpr").split():
        case ["not", "oracle", *_]:
            return oracles or None
        case ["oracle", *_]:
            return not (oracles or "mark.oracle" in collection_path.read_text()) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave breadth to `make test-deep`, and begin with the files that take longest."""
    for item in spare(items):
        item.add_marker(pytest.mark.deep)
    items.sort(key=lambda item: rank(item.path))


@pytest.fixture(scope="session", autouse=True)
def verified() -> Iterator[None]:
    """Verify the IR of every level after every pass; a fault of the compiler is an error."""
    with override(verify=True, strict=True):
        yield


@pytest.fixture(scope="module", autouse=True)
def target(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run on the default target, or on the one that a module states as RUNS_ON.

    Modules that look at thousands of small programs, and at what they mean and not at how they run, state
    "numpy": their eager ops are references and nothing is compiled.  Where a module states several targets,
    `make test` runs its tests on the first one and `make test-deep` on the others.
    """
    stated = getattr(request, "param", getattr(request.module, "RUNS_ON", flags().target))
    with override(target=stated):
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of a module that states several targets, on each of them."""
    match getattr(metafunc.module, "RUNS_ON", None):
        case (first, *others):
            rest = [pytest.param(t, marks=pytest.mark.deep) for t in others]
            metafunc.parametrize("target", [first, *rest], indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def settled() -> Iterator[None]:
    """What outlives a module is not searched for garbage again.

    Programs are kept for later calls, and tests by pytest: after half of the suite a full collection takes
    two seconds, and there are many.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def compiled() -> Iterator[None]:
    """Run a test on the machine though its module states another target."""
    with override(target="cpu"):
        yield


@pytest.fixture(scope="session", autouse=True)
def untuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile as if nothing had been tuned on this machine, unless a test has a cache of its own."""
    usual, where = flags().cache_dir, tuned.path
    empty = tmp_path_factory.mktemp("untuned") / "tune.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned, "path", lambda: empty if flags().cache_dir == usual else where())
        yield
