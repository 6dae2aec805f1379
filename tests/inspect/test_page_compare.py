"""tessera inspect A --compare B: totals, steps in pairs and changed lines of two versions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tessera import cli
from tessera.core.errors import OperandError
from tessera.inspect.page_compare import _difference, _paired, comparison, programs_in
from tests.inspect.test_inspect import browse

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PROGRAM = """
import tessera as ts
from tessera import op

@ts.jit
def layer(x, w):
    h = op.relu(x @ w)
    return op.softmax(h)

if __name__ == "__main__":
    layer(ts.ones((12, 16)), ts.ones((16, 8)))
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The page of a program beside an older version, and the older version's."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "old.py").write_text(PROGRAM)
    (folder / "new.py").write_text(
        PROGRAM.replace("op.relu(x @ w)", "op.relu(op.cumsum(x, axis=0) @ w)")
    )
    old, new = folder / "old.html", folder / "new.html"
    assert cli.main(["inspect", str(folder / "old.py"), "--out", str(old)]) == 0
    argv = [
        "inspect",
        str(folder / "new.py"),
        "--compare",
        str(folder / "old.py"),
        "--out",
        str(new),
    ]
    assert cli.main(argv) == 0
    return new, old


def test_pages_are_read_back_as_they_were_written(pages: tuple[Path, Path]) -> None:
    new, old = pages
    (now, texts), *_ = programs_in(new.read_text(), "new")
    (before, others), *_ = programs_in(old.read_text(), "old")
    assert now["compared"] == "old.py"
    assert "compared" not in before
    found = texts["comparison"]
    assert found["before"] == "old.py"
    totals = {name: (a, b) for name, _, a, b in found["totals"]}
    assert totals["steps"] == (len(before["steps"]), len(now["steps"]))
    assert totals["arithmetic"] == tuple(sum(s["flops"] for s in d["steps"]) for d in (before, now))
    assert totals["kernels"][1] > totals["kernels"][0]
    rows = found["rows"]
    assert {r["before"]["name"] for r in rows if r["before"]} == {
        s["label"] for s in before["steps"]
    }
    assert any(r["kind"] == "added" and "cumsum" in r["now"]["name"] for r in rows)
    assert [r["before"]["name"] for r in rows if r["kind"] == "same"] == [
        "matmul 12x8x16",
        "relu + softmax 12x8",
    ]
    assert [x for k, x in found["lines"]["source"] if k in "ad"] == [
        "    h = op.relu(x @ w)", "    h = op.relu(op.cumsum(x, axis=0) @ w)",
    ]  # fmt: skip
    assert found["lines"]["schedule"]
    # A page beside itself: nothing differs.
    same = comparison((before, others), (before, others))
    assert {r["kind"] for r in same["rows"]} == {"same"}
    assert all(a == b for _, _, a, b in same["totals"])
    assert not any(same["lines"].values())


def test_two_saved_pages_are_compared_without_running_them(
    pages: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = pages
    out = tmp_path / "both.html"
    assert cli.main(["inspect", str(old), "--compare", str(new), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    (data, texts), *_ = programs_in(out.read_text(), "both")
    assert data["compared"] == "new.html"
    assert any(r["kind"] == "removed" and "cumsum" in r["before"]["name"]
        for r in texts["comparison"]["rows"])  # fmt: skip


def test_steps_are_paired_by_name_and_then_by_op() -> None:
    def steps(*names: str) -> list[tuple[int, str]]:
        return list(enumerate(names))

    a = steps("matmul 4x4", "softmax 4", "sum 4", "gather 2")
    b = steps("matmul 8x8", "cumsum 4", "softmax 4", "sum 4")
    assert list(_paired(a, b)) == [(0, 0), (None, 1), (1, 2), (2, 3), (3, None)]
    assert list(_paired(steps("a"), [])) == [(0, None)]


def test_differences_have_some_lines_around_them() -> None:
    a = [str(i) for i in range(40)]
    b = [*a[:20], "new", *a[21:]]
    found = _difference(a, b)
    assert [k for k, _ in found] == ["s", *"eee", "d", "a", *"eee"]
    assert _difference(a, a) == []
    assert _difference([], ["x"] * 2000)[-1] == ["s", "500 more lines"]


def test_what_cannot_be_compared_is_said(
    pages: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare.html").write_text("<p>nothing</p>")
    (tmp_path / "wrong.py").write_text("x = 1 +\n")
    (tmp_path / "table.csv").write_text("a,b\n")
    new = str(pages[0])
    for argv, status, message in (
        ([new], 2, "is a page already; open it in a browser, or add --compare PAGE"),
        ([new, "--compare", "nowhere.html"], 2, "--compare: there is no file nowhere.html"),
        ([new, "--compare", str(tmp_path / "table.csv")], 2,
        "expected a saved page (.html) or a Python file"),
        ([new, "--compare", str(tmp_path / "bare.html")], 1, "bare.html is not a page of `tessera inspect`"),
        ([new, "--compare", str(tmp_path / "wrong.py")], 1, "wrong.py, line 1: invalid syntax"),
    ):  # fmt: skip
        assert cli.main(["inspect", *argv]) == status
        assert message in re.sub(r"\s+", " ", capsys.readouterr().err)
    for text in ('<script type="application/json" id="data">3</script>',
        '<script type="application/json" id="data">{</script>'):  # fmt: skip
        with pytest.raises(OperandError, match="x is not a page"):
            programs_in(text, "x")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_the_page_opens_with_what_changed(
    pages: tuple[Path, Path], tmp_path: Path
) -> None:
    script = """
const out = {failures, tab, said: $("#compare p").textContent, rows: $$("#compare tr[data-step]").length, kinds: $$("#compare .scroll tr").map(e => e.className).filter(Boolean)};
out.added = $$("#compare .diff .add").map(e => e.textContent); $$("#compare tr[data-step]")[0].click(); out.then = tab; show("compare");
out.wide = document.documentElement.scrollWidth <= innerWidth; return out;"""  # noqa: E501
    out: dict[str, Any] = browse(pages[0].read_text(), tmp_path, script, "--window-size=500,900")
    assert out["failures"] == []
    assert (out["tab"], out["then"]) == ("compare", "kernel")
    assert out["said"].startswith("old.py before, new.py now: ")
    assert "added" in out["kinds"]
    assert "same" in out["kinds"]
    assert any("op.cumsum" in x for x in out["added"])
    assert out["wide"]
