"""Every argument of every command, what wrong ones are answered, and tables of given figures."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera import cli
from tessera.cli import bench, bundle, doctor
from tessera.cli.arguments import parser
from tests.support.pinned import pinned

RUNS_ON = "numpy"


def commands(
    p: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All parsers with their names, the outermost first."""
    yield name, p
    for a in p._actions:
        if isinstance(a, argparse._SubParsersAction):
            for word, inner in a.choices.items():
                yield from commands(inner, f"{name} {word}".strip())


def arguments() -> Iterator[str]:
    for name, p in commands(parser()):
        made = {k: getattr(v, "__name__", str(v)) for k, v in sorted(p._defaults.items())}
        yield f"{name}: {made}"
        for a in p._actions:
            choices = sorted(map(str, a.choices)) if a.choices is not None else None
            kind = getattr(a.type, "__name__", a.type)
            shown = choices if choices is None or len(choices) < 12 else len(choices)
            rest = f"{a.default!r} {a.const!r} {a.required} {shown}"
            yield f"  {a.option_strings or a.dest} {a.nargs} {kind} {rest}"


def test_the_arguments_of_every_command() -> None:
    pinned("cli_arguments", (re.sub(r"<[^>]*>", "<>", x) for x in arguments()))


def test_help_says_the_default() -> None:
    seen = 0
    for name, p in commands(parser()):
        for a in p._actions:
            said = re.search(r"(?:^|[ ,(])(\d[\w.]*) unless given", a.help or "")
            if said and isinstance(a.default, str | int | float):
                seen += 1
                assert str(a.default) == said[1] or float(a.default) == float(said[1]), (name, a)
    assert seen > 15


WRONG: list[list[str]] = [
    ["nothing"], [], ["ops", "sofmax"], ["ops", "qqqqqqqq"], ["ops", "--family", "reductoin"], ["ops",
    "--family", "qqqqqq"],
    ["compile", "none.py"], ["compile", "two.py"], ["compile", "two.py:h"], ["compile", "two.py:x"],
    ["compile", "one.py:f", "--size", "n"],
    ["compile", "one.py", "--size", "Q=3"], ["compile", "one.py", "--size", "N=x"], ["compile", "one.py",
    "--size", "N=-1"],
    ["compile", "one.py", "--target", "x"], ["compile", "one.py", "--stop-at", "x"], ["compile",
    "empty.py"], ["compile", "bare.py"],
    ["compile", "broken.py"], ["compile", "."], ["bench", "one.py", "--budget", "0"], ["bench", "one.py",
    "--limit", "-1"],
    ["bench", "one.py", "--compare", "none.json"], ["bench", "one.py", "--compare", "bad.json"],
    ["bench", "one.py", "--save", "no/such/x"],
    ["profile", "one.py:f", "--top", "-1"], ["profile", "none.py"], ["profile", "one.py:f", "--compare",
    "none.json"],
    ["check", "none.py"], ["check", "one.py", "--machine", "x"], ["check", "one.py", "--warps", "0"],
    ["check", "bad.tile"],
    ["tune", "none.py"], ["tune"], ["tune", "one.py", "--budget", "-1"], ["tune", "--import",
    "none.json"],
    ["inspect"], ["inspect", "none.py"], ["inspect", "one.py:f", "--gpu", "x"], ["inspect", "one.py:f",
    "--compare", "none.html"],
    ["inspect", "--attach", "1"], ["run", "none.py"], ["run", "-n", "0", "one.py"], ["run", "-n", "2",
    "--restart", "-1", "one.py"],
    ["replay", "none.rec"], ["replay", "bad.json"], ["dashboard", "none.csv"], ["generate", "none.gguf",
    "x"], ["chat", "none.gguf"],
    ["dashboard", "one.csv", "--port", "-1"], ["dashboard", "one.csv", "--port", "65536"],
    ["run", "--inspect", "-1", "one.py"], ["inspect", "one.py:f", "--serve", "--port", "-1"],
    ["serve", "none.gguf", "--port", "65536"], ["serve", "none.gguf", "--max-batch", "0"],
    ["serve", "none.gguf", "--max-waiting", "2000000"], ["serve", "none.gguf", "--drain", "0"],
    ["serve", "none.gguf", "--port", "0"], ["serve", "none.gguf", "--memory", "x"], ["serve",
    "none.gguf", "--port",
    "-1"], ["serve", "none.gguf", "--host", "0.0.0.0"],
    ["cache", "trim", "--to", "x"], ["cache", "trim", "--to", "-3"], ["cache", "import", "none.zip"],
    ["cache"], ["passes", "--target", "x"],
    ["completion", "x"], ["doctor", "x"],
]  # fmt: skip
ONE = 'from tessera import Tensor, f32, jit, op\n@jit\ndef f(x: Tensor["N", f32]):\n    return op.sin(x)\n'
FILES = {
    "one.csv": "step,loss\n1,0.5\n", "one.py": ONE,
    "two.py": ONE + "@jit\ndef g(x):\n    return x\nh = 3\n", "empty.py": "x = 1\n",
    "bad.json": "{}", "bad.tile": "x",
    "bare.py": "from tessera import jit\n@jit\ndef f(x, y=2):\n    return x\n", "broken.py": "def f(:\n",
}  # fmt: skip


def answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    for words in WRONG:
        try:
            status = cli.main(words)
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 1
        out, err = capsys.readouterr()
        text = re.sub(r"\(choose from.*\)", "(choose from ...)", (err or out).strip())
        text = re.sub(r"families are .*", "families are ...", text)
        text = re.sub(r"usage: (?:.|\n)*?(?=\n\S|$)", "usage", text).replace(str(folder), "HERE")
        yield f"{' '.join(words)}: {status} {text[:400]}"


def test_what_wrong_arguments_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for name, text in FILES.items():
        Path(name).write_text(text)
    pinned("cli_answers", answers(tmp_path, capsys))


SHOWN = [
    "softmax",
    "matmul",
    "sort",
    "reshape",
    "op.sum",
    "conv2d",
    "transpose",
    "argmax",
    "fft",
    "one_hot",
]


def test_what_is_told_of_an_op(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = []
    for name in SHOWN:
        assert cli.main(["ops", name]) == 0
        found += [x.rstrip() for x in capsys.readouterr().out.splitlines()]
    for words in (["--family", "pooling"], ["--family", "loss", "--find", "HINGE"]):
        assert cli.main(["ops", "--json", *words]) == 0
        found += [json.dumps(r) for r in json.loads(capsys.readouterr().out)]
    pinned("cli_ops", found)


def times(name: str, best: float, least: float = 0.0) -> bench.BenchTimes:
    return bench.BenchTimes(name, best * 1.5, best, 0.125, 20, 0.5, 3e6, 5e6, least)


def test_the_table_of_a_bench(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    Path("one.py").write_text(ONE)
    made: list[str] = []
    for best, limit in ((1e-3, 10), (1.1e-3, 10), (1.11e-3, 10), (1.4e-3, 50), (1.6e-3, 50)):
        monkeypatch.setattr(bench, "_measured", lambda s, budget, b=best: times("f", b, 5e-4))
        words = ["bench", "one.py", "--save", "now.json", "--limit", str(limit)]
        words += ["--compare", "first.json"] if Path("first.json").exists() else []
        status = cli.main(words)
        out, err = capsys.readouterr()
        made += [f"{best} {limit}: {status} {err.strip()}", *(x.rstrip() for x in out.splitlines())]
        if best == 1e-3:
            Path("now.json").rename("first.json")
    assert cli.main(["bench", "one.py", "--json"]) == 0
    made.append(capsys.readouterr().out)
    monkeypatch.setattr(bench, "_measured", lambda s, budget: times("f[b]", budget))
    assert cli.main(["bench", "one.py", "--budget", "250"]) == 0
    made += [x.rstrip() for x in capsys.readouterr().out.splitlines()]
    pinned("cli_bench", made)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [x.rstrip() for x in capsys.readouterr().out.splitlines()]


def test_passes_are_printed_as_they_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("cpu", "cuda", "numpy"):
        assert cli.main(["passes", "--json", "--target", target]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {r["target"] for r in rows} == {target}
        assert cli.main(["passes", "--target", target]) == 0
        lines = printed(capsys)
        assert lines[0].split() == ["target", "level", "pass", "what", "it", "does"]
        found = [line.split(maxsplit=3) for line in lines[1:]]
        assert found == [[r["target"], r["level"], r["name"], r["about"]] for r in rows]


REPORT: dict[str, Any] = {
    "system": {"python": "3.x", "cores": 8}, "devices": ["cpu", "cuda:0 [H200]"],
    "missing": ["numpy: get it"],
    "packages": {"numpy": {"version": "2.0", "purpose": "arrays", "get": "pip"},
                 "triton": {"version": None, "purpose": "GPUs", "get": "pip install tessera[gpu]"}},
    "settings": {"TESSERA_TARGET": {"value": "cpu", "source": "default"}},
    "targets": {"cpu": {"works": True, "note": "LLVM"}, "hip": {"works": False, "note": "no GPU"}},
}  # fmt: skip


def test_what_doctor_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: REPORT)
    assert cli.main(["doctor"]) == 1
    made = printed(capsys)
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == REPORT
    monkeypatch.setattr(doctor, "examine", lambda: {**REPORT, "missing": []})
    assert cli.main(["doctor"]) == 0
    pinned("cli_doctor", [*made, *printed(capsys)[-3:]])


DIFFERENT: list[tuple[str, Any, Any]] = [
    ("manifest", {"a": 1, "b": [1, 2]}, {"a": 2, "b": [1, 3]}), ("manifest", {"a": {"x": 1}},
    {"a": {"y": 1}}), ("manifest", {}, {}),
    ("manifest", {"b": [1]}, {"b": [1, 2]}), ("image/1", {"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 3,
    "c": 4}),
    ("image/1", {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, {}), ("graph/f", "one\ntwo\nthree",
    "one\n  2 \nthree"), ("graph/f", "one\ntwo", "one\ntwo\nx"),
    ("code", "abcd", "abxd"), ("code", "ab", "abcd"), ("code", "xabc", "yabc"),
]  # fmt: skip


def test_how_parts_of_bundles_differ() -> None:
    made = []
    for name, a, b in DIFFERENT:
        raw = [(json.dumps(x) if isinstance(x, dict) else x).encode() for x in (a, b)]
        made += [f"{name} {a!r} {b!r}"[:60], *(f"  {x}" for x in bundle._within(name, *raw))]
    pinned("cli_bundles", made)
