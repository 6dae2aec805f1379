"""A fault of the compiler never stops the user: a warning, a file to report, and the same bits by a
plainer lowering.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager, op
from tessera.cli import main
from tessera.compile import interpreted
from tessera.compile.cpu import build
from tessera.compile.cpu import executable as machine
from tessera.compile.fallback import HEAD, PlainExecutable, PlainRun
from tessera.compile.pipeline import PIPELINES
from tessera.core.errors import CompileError, CompilerFault, OperandError
from tessera.core.flags import flags, override
from tessera.ir.graph.ir import Graph, run_ops_by
from tessera.ir.graph.op import REGISTRY
from tessera.lang import jit as lang_jit
from tessera.runtime import code
from tests.support.fakes.gpu_fake import fake_gpu

Breaks = Callable[[pytest.MonkeyPatch, bool], None]


def program(x: Any, w: Any) -> Any:
    """Rows, a product and elementwise ops, with values that NumPy's last bits would give away."""
    return op.softmax(op.exp(x) @ w) + op.tanh(x @ w)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> code.Store:
    """What LLVM made for other tests: it is the same for the same text, unless LLVM is what fails."""
    return code.Store(tmp_path_factory.mktemp("built"))


@pytest.fixture
def lenient(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    built: code.Store,
) -> Iterator[Path]:
    """As users run, with nothing compiled yet and a cache of its own."""
    monkeypatch.setattr(eager, "_PROGRAMS", {})
    monkeypatch.setattr(code, "_LOADED", {})
    if (
        getattr(request.node, "callspec", None) is None
        or "LLVM" not in request.node.callspec.params.values()
    ):
        own, usual = (tmp_path, tmp_path / "other"), code.code_store
        monkeypatch.setattr(
            code, "code_store", lambda: built if flags().cache_dir in own else usual()
        )
    run_ops_by(eager.kernel_of)
    with override(strict=False, verify=False, cache_dir=tmp_path):
        yield tmp_path
    run_ops_by(eager.kernel_of)


def data(*shape: int) -> Any:
    return ts.tensor(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def arguments() -> tuple[Any, Any]:
    return data(7, 33), data(33, 33)


WANT = None


def want() -> bytes:
    global WANT
    if WANT is None:
        WANT = ts.jit(program)(*arguments()).numpy().tobytes()
    return WANT


def failing(f: Callable[..., Any], error: Exception, whole: Callable[[Any], bool]) -> Any:
    """f, which fails on what `whole` says is no single op."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if whole(args[0]):
            raise error
        return f(*args, **kwargs)

    return run


def of_pass(name: str, error: Exception) -> Breaks:
    """A pass of any level that fails, on programs that are no single op or on all."""

    def breaks(patch: pytest.MonkeyPatch, everything: bool) -> None:
        now = _now(patch)

        def is_whole(ir: Any) -> bool:
            name = ir.name if isinstance(ir, Graph) else now[0]
            return everything or name not in REGISTRY

        for target, passes in PIPELINES.items():
            broken = (
                replace(p, run=failing(p.run, error, is_whole)) if p.name == name else p
                for p in passes
            )
            patch.setitem(PIPELINES, target, tuple(broken))

    return breaks


def _now(patch: pytest.MonkeyPatch) -> list[str]:
    """The name of the program that is being lowered."""
    usual, now = build.build, [""]

    def built(g: Any, *rest: Any) -> Any:
        now[0] = g.name
        return usual(g, *rest)

    patch.setattr(build, "build", built)
    return now


def of_function(where: Any, name: str, error: Exception) -> Breaks:
    def breaks(patch: pytest.MonkeyPatch, everything: bool) -> None:
        now = _now(patch)
        is_whole = (lambda x: True) if everything else (lambda x: now[0] not in REGISTRY)
        patch.setattr(where, name, failing(getattr(where, name), error, is_whole))

    return breaks


LEVELS: dict[str, Breaks] = {
    "inline": of_pass("inline", RecursionError("too deep")),
    "simplify": of_pass("simplify", KeyError("mean")),
    "hoist": of_pass("hoist", ZeroDivisionError()),
    "decompose": of_pass("decompose", AttributeError("no such thing")),
    "sink": of_pass("sink", AssertionError("values")),
    "fuse": of_pass("fuse", IndexError("list index out of range")),
    "lower_rows": of_pass("lower_rows", TypeError("NoneType")),
    "emit": of_pass("emit", UnboundLocalError("y")),
    "LLVM": of_function(code, "build_safely", CompileError("compile: LLVM could not build it")),
    "prepare": of_function(machine, "Prepared", StopIteration()),
}


def only(caught: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    return [w for w in caught if issubclass(w.category, ts.CompilerFaultWarning)]


@pytest.mark.parametrize("everything", [False, True], ids=["of the whole", "of each op too"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_is_a_warning_and_the_bits_are_the_same(level, everything, lenient, monkeypatch):
    expected = want()
    monkeypatch.setattr(code, "_LOADED", {})
    LEVELS[level](monkeypatch, everything)
    f = ts.jit(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = f(*arguments())
        again = f(*arguments())
    assert got.numpy().tobytes() == again.numpy().tobytes() == expected
    told = only(caught)
    assert told
    assert any(f"program: the compiler failed in {level}" in str(w.message) for w in told)
    assert all(w.filename == __file__ for w in told)
    assert (len(told) > 1) == everything
    files = list((lenient / "faults").iterdir())
    assert len(files) == len(told)
    for w in told:
        path = Path(re.search(r"please report it with (\S+), which", str(w.message))[1])
        text = path.read_text()
        assert text.startswith(HEAD)
        for line in ("// target: cpu", "// numerics: deterministic", f"// pass: {level}"):
            assert line in text.splitlines()
        assert "// | Traceback (most recent call last):" in text
        assert str(ts.ir.parse(text)) in text


def everything_at_once(x: Any, w: Any) -> Any:
    """What each pass of the CPU has something to do with: a loop, a primitive, a group, products, rows, a
    transposed operand.
    """
    loop = ts.scan(lambda c, r: (c * 0.5 + op.sum(r), c), ts.tensor(0.0), x)[1]
    return (
        program(x, w)
        + op.sort(x, axis=1)
        + op.sum(loop)
        + op.attention(x[None], x[None], x[None])[0] @ w.T
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache for single ops, which all passes share, and what the program gives without a fault."""
    found = {n: ts.jit(everything_at_once, numerics=n)(*arguments()).numpy()
        for n in ("fast", "deterministic")}  # fmt: skip
    return tmp_path_factory.mktemp("kept"), found


@pytest.mark.parametrize(
    "name", [p.name for p in PIPELINES["cpu"] if p.level in ("graph", "schedule")]
)
def test_a_fault_of_any_pass_on_programs_is_a_warning_that_names_it(
    name, kept, lenient, monkeypatch
):
    numerics = "fast" if name == "relax_order" else "deterministic"
    expected = kept[1][numerics]
    with override(cache_dir=kept[0]):
        of_pass(name, KeyError("anything"))(monkeypatch, False)
        with pytest.warns(ts.CompilerFaultWarning) as caught:
            got = ts.jit(everything_at_once, numerics=numerics)(*arguments()).numpy()
    if numerics == "fast":
        np.testing.assert_allclose(got, expected, rtol=1e-4)
    else:
        assert got.tobytes() == expected.tobytes()
    told = only(caught)
    assert all(w.filename == __file__ for w in told)
    assert any(f"everything_at_once: the compiler failed in {name}" in str(w.message) for w in told)


def test_the_text_of_a_warning(lenient, monkeypatch):
    LEVELS["simplify"](monkeypatch, False)
    x = data(3)
    with pytest.warns(ts.CompilerFaultWarning) as caught:
        ts.jit(lambda a: op.exp(a) + op.exp(-a))(x)
    (file,) = (lenient / "faults").iterdir()
    assert str(caught[0].message) == (
        "<lambda>: the compiler failed in simplify with KeyError: 'mean'; the program runs op by op, each op "
        f"compiled by itself; please report it with {file}, which `tessera replay` runs"
    )


def test_a_fault_names_the_op_in_hand_and_the_users_line(lenient, monkeypatch):
    def simplify(g: Any) -> Any:
        for n in g.nodes:
            if n.op.name == "tanh":
                raise KeyError(n.op.name)
        return g

    for target, passes in PIPELINES.items():
        broken = tuple(replace(p, run=simplify) if p.name == "simplify" else p for p in passes)
        monkeypatch.setitem(PIPELINES, target, broken)
    monkeypatch.setattr(eager, "_PROGRAMS", {})

    def f(a):
        b = op.exp(a)
        return op.tanh(b) * b

    with pytest.warns(ts.CompilerFaultWarning) as caught:
        ts.jit(f)(data(3))
    line = f.__code__.co_firstlineno + 2
    mine = next(w for w in caught if str(w.message).startswith("f: "))
    assert f"in simplify at tanh ({__file__}:{line}) with KeyError: 'tanh';" in str(mine.message)
    assert (mine.filename, mine.lineno) == (__file__, line)


def test_strict_makes_a_fault_an_error_with_its_cause(lenient, monkeypatch):
    LEVELS["hoist"](monkeypatch, False)
    with override(strict=True), pytest.raises(CompilerFault) as e:
        ts.jit(program)(*arguments())
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert e.value.message.startswith(
        "program: the compiler failed in hoist with ZeroDivisionError; please report it with "
    )
    assert e.value.location.file == __file__


def test_strict_makes_a_fault_of_an_eager_op_an_error(lenient, monkeypatch):
    LEVELS["lower_rows"](monkeypatch, True)
    with override(strict=True), pytest.raises(CompilerFault) as e:
        op.exp(data(3, 4))
    assert isinstance(e.value.__cause__, TypeError)


@pytest.mark.parametrize("level", ["sink", "fuse", "emit", "LLVM"])
def test_eager_ops_run_by_the_interpreter_with_the_same_bits(level, lenient, monkeypatch):
    x, w = arguments()
    cases = [lambda: op.exp(x), lambda: x @ w, lambda: op.logsumexp(x, axis=0), lambda: op.sum(x)]
    expected = [f().numpy().tobytes() for f in cases]
    monkeypatch.setattr(eager, "_PROGRAMS", {})
    monkeypatch.setattr(code, "_LOADED", {})
    run_ops_by(eager.kernel_of)
    with override(cache_dir=lenient / "other"):
        LEVELS[level](monkeypatch, True)
        with pytest.warns(ts.CompilerFaultWarning, match="by the Schedule interpreter"):
            got = [f().numpy().tobytes() for f in cases]
    assert got == expected


def test_references_run_what_nothing_else_can(lenient, monkeypatch):
    LEVELS["fuse"](monkeypatch, True)
    monkeypatch.setattr(interpreted, "lower", failing(None, KeyError("a"), lambda g: True))
    x = data(3, 4)
    with pytest.warns(ts.CompilerFaultWarning, match="by the NumPy references of its ops"):
        got = op.exp(x)
    np.testing.assert_allclose(got.numpy(), np.exp(x.numpy()), rtol=1e-6)


def test_a_fault_of_the_interpreter_leaves_the_references(lenient, monkeypatch):
    LEVELS["emit"](monkeypatch, True)
    monkeypatch.setattr(interpreted, "interpret", failing(None, KeyError("a"), lambda g: True))
    x = data(3, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = op.exp(x)
    assert "by the NumPy references" in str(only(caught)[-1].message)
    np.testing.assert_allclose(got.numpy(), np.exp(x.numpy()), rtol=1e-6)


def test_symbolic_sizes_gradients_loops_and_captured_tensors_run_plainly_too(lenient, monkeypatch):
    kept = data(33)

    def f(x: ts.Tensor["B", 33, ts.f32], w: ts.Tensor[33, 33, ts.f32]):
        y = ts.fori_loop(0, 3, lambda i, v: op.tanh(v @ w) + kept, x)
        return op.sum(ts.grad(lambda v: op.sum(op.exp(v) * y))(x), axis=0), y

    x, w = arguments()
    expected = [v.numpy().tobytes() for v in ts.jit(f)(x, w)]
    for level in ("simplify", "prepare"):
        with monkeypatch.context() as patch:
            LEVELS[level](patch, False)
            g = ts.jit(f)
            with pytest.warns(ts.CompilerFaultWarning):
                assert [v.numpy().tobytes() for v in g(x, w)] == expected
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ts.CompilerFaultWarning)
                small = [v.numpy() for v in g(x[:3], w)]
        np.testing.assert_array_equal(small[1], ts.jit(f)(x[:3], w)[1].numpy())


@pytest.mark.parametrize("level", ["simplify", "prepare"])
def test_a_donated_argument_of_a_plain_program_is_gone_as_ever(lenient, monkeypatch, level):
    LEVELS[level](monkeypatch, True)
    x = data(4)
    with pytest.warns(ts.CompilerFaultWarning):
        y = ts.jit(lambda a: op.exp(a) * 2, donate=["a"])(x)
    assert y.shape == (4,)
    with pytest.raises(OperandError, match="was donated"):
        x + 1


def test_the_users_own_errors_stay_what_they_are(lenient):
    def f(a):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ts.jit(f)(data(3))
    with pytest.raises(ts.TesseraError, match="matmul: axis 'k'"):
        ts.jit(lambda a: a @ a)(data(2, 3))


def test_strict_numerics_refuse_a_plain_program_only_where_the_host_decides(lenient, monkeypatch):
    LEVELS["simplify"](monkeypatch, False)
    x, w = arguments()
    with pytest.warns(ts.CompilerFaultWarning):
        ts.jit(program, numerics="strict")(x, w)
    with pytest.raises(OperandError, match="eigh: numerics 'strict' needs the same bits"):
        ts.jit(lambda a: op.eigh(a @ a.mT)[0] + 1, numerics="strict")(w)


def test_levels_of_a_program_that_failed_are_refused_by_name(lenient, monkeypatch):
    LEVELS["simplify"](monkeypatch, False)
    with pytest.warns(ts.CompilerFaultWarning):
        lowered = ts.jit(program).lower(*arguments())
    assert lowered.graph is lowered.traced
    with pytest.raises(
        OperandError, match="the compiler failed on this function, which has no tile level"
    ):
        lowered.tile  # noqa: B018


def test_pages_and_bundles_of_a_program_that_failed_are_refused_by_name(
    lenient, monkeypatch, tmp_path
):
    """Both need what only the whole compiler makes; the page met an AttributeError."""
    LEVELS["fuse"](monkeypatch, False)
    f, args = ts.jit(program), arguments()
    refused = pytest.raises(
        OperandError, match="inspect: the compiler failed on this function, which has no"
    )
    with pytest.warns(ts.CompilerFaultWarning), refused:
        f.inspect(*args, path=tmp_path / "page.html")
    with pytest.raises(CompilerFault, match=r"the compiler failed in fuse .*`tessera replay` runs"):
        ts.bundle.save(program, tmp_path / "bundle", *args)
    assert not [x for x in tmp_path.iterdir() if x.name != "faults"]


def test_a_fault_in_preparing_calls_without_python_leaves_calls_through_it(lenient, monkeypatch):
    monkeypatch.setattr(lang_jit, "follow", failing(None, KeyError("call"), lambda x: True))
    f, x = ts.jit(lambda a: a + 1), data(3)
    with pytest.warns(
        ts.CompilerFaultWarning,
        match="failed in call with KeyError.*the program runs through Python",
    ):
        ys = [f(x) for _ in range(5)]
    assert all((y.numpy() == x.numpy() + 1).all() for y in ys)


def test_a_cache_that_cannot_be_written_keeps_the_file_elsewhere(lenient, monkeypatch):
    LEVELS["simplify"](monkeypatch, False)
    (lenient / "file").touch()
    with override(cache_dir=lenient / "file"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts.jit(lambda a: op.exp(a) + op.exp(-a))(data(3))
    path = Path(re.search(r"report it with (\S+), which", str(only(caught)[0].message))[1])
    assert path.read_text().startswith(HEAD)
    path.unlink()
    path.parent.rmdir()


def test_what_runs_instead_is_an_executable(lenient, monkeypatch):
    LEVELS["simplify"](monkeypatch, False)
    with pytest.warns(ts.CompilerFaultWarning):
        made = ts.jit(program).lower(*arguments())._executable
    assert type(made) is PlainExecutable
    assert made.shortcut((), (), None) is None
    assert PlainRun(made).direct(1.0) is None


# Replay


def replayed(lenient, monkeypatch, level, capsys):
    with monkeypatch.context() as patch:
        LEVELS[level](patch, False)
        with pytest.warns(ts.CompilerFaultWarning):
            ts.jit(program)(*arguments())
        (file,) = (lenient / "faults").iterdir()
        broken = main(["replay", str(file)]), capsys.readouterr()
    return broken, (main(["replay", str(file)]), capsys.readouterr())


@pytest.mark.parametrize("level", ["simplify", "prepare"])
def test_replay_shows_the_fault_again_and_later_that_it_is_gone(
    lenient, monkeypatch, capsys, level
):
    (status, said), (after, fine) = replayed(lenient, monkeypatch, level, capsys)
    assert status == 1
    assert f"the compiler failed in {level}" in said.err
    assert "Traceback" in said.err
    assert after == 0
    assert (
        fine.out
        == "program: compiles for cpu and runs, with the bits that its ops have one by one\n"
    )


def test_replay_refuses_other_files(tmp_path, capsys):
    other = tmp_path / "other.mlir"
    other.write_text("nothing")
    assert main(["replay", str(other)]) == 2
    assert (
        "is neither a record of ts.record nor a file that a fault of the compiler left"
        in capsys.readouterr().err
    )
    assert main(["replay", str(tmp_path / "none")]) == 2


# GPUs


@pytest.mark.parametrize("level", ["simplify", "prepare"])
@pytest.mark.parametrize("everything", [False, True], ids=["of the whole", "of each op too"])
def test_a_fault_on_a_gpu_runs_op_by_op_or_on_the_host(level, everything, lenient, monkeypatch):
    from tessera.compile.gpu import executable as on_gpu

    x, w = data(4, 8), data(8, 8)
    with fake_gpu(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = ts.jit(program, target="cuda")(x, w).numpy()
        if level == "simplify":
            LEVELS[level](monkeypatch, everything)
        else:
            whole = lambda p: everything or len(p.lowered.p.steps) > 1  # noqa: E731
            usual = on_gpu.bind
            monkeypatch.setattr(on_gpu, "bind", failing(usual, KeyError("a"), whole))
        got = ts.jit(program, target="cuda")(x, w)
        assert got.device.kind == "cuda"
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)
    told = [str(w.message) for w in only(caught)]
    assert any("program: the compiler failed in" in t and "op by op" in t for t in told)
    assert any("on the host" in t for t in told) == everything
