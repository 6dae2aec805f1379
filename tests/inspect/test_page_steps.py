"""Steps of a page: loops count the work of their bodies, kernels show what the tuner tried."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.inspect.page_compare import programs_in
from tests.inspect.test_inspect import browse

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def steps_of(page: Path) -> list[list[dict[str, Any]]]:
    return [data["steps"] for data, _ in programs_in(page.read_text(), str(page))]


def test_a_loop_on_the_host_counts_the_work_of_its_body(tmp_path: Path) -> None:
    """It had 0 flop; the body runs 7 times, and in a loop of 3 turns 21 times."""

    def loop(x: Any) -> Any:
        return ts.fori_loop(0, 7, lambda i, c: op.tanh(c @ x), x)

    def nested(x: Any) -> Any:
        return ts.fori_loop(0, 3, lambda i, c: loop(c) + 1, x)

    x = ts.ones((8, 8))
    top, body = steps_of(ts.jit(loop).inspect(x, path=tmp_path / "loop.html"))
    (found,) = (s for s in top if s["regions"])
    once = sum(s["flops"] for s in body)
    assert once > 2 * 8 * 8 * 8 - 64
    assert found["ran"] == [7]
    assert found["flops"] == pytest.approx(7 * once)
    assert 0 <= found["roof"] <= 1.05
    top, middle, inner = steps_of(ts.jit(nested).inspect(x, path=tmp_path / "nested.html"))
    (outer,), (within,) = ([s for s in level if s["regions"]] for level in (top, middle))
    assert (outer["ran"], within["ran"]) == ([3], [7])
    assert outer["flops"] == pytest.approx(3 * sum(s["flops"] for s in middle))
    assert within["flops"] == pytest.approx(7 * sum(s["flops"] for s in inner))


def test_grouped_kernels_are_shown(tmp_path: Path) -> None:
    """Kernels of a group hand buffers to each other that no other step knows: the page could not be made."""
    f = ts.jit(lambda q, k, v: op.attention(q, k, v))
    x = ts.ones((2, 16, 8))
    (top, *_) = steps_of(f.inspect(x, x, x, path=tmp_path / "page.html"))
    assert any(s["kind"] == "group" for s in top)
    assert all(s["trials"] == [] for s in top)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_tuned_kernel_shows_what_was_tried(tmp_path: Path) -> None:
    f = ts.jit(lambda x, w: op.gelu(x @ w), target="cpu")
    args = ts.ones((24, 16)), ts.ones((16, 32))
    with override(cache_dir=tmp_path / "cache"):
        ((before,),) = steps_of(f.inspect(*args, path=tmp_path / "before.html"))
        assert before["trials"] == []
        ts.tune(f, *args, budget_ms=60)
        page = f.inspect(*args, path=tmp_path / "after.html")
    ((after,),) = steps_of(page)
    assert len(after["trials"]) >= 1
    assert after["nests"][0]["nest"] in [nest for nest, _ in after["trials"]]
    assert all(seconds > 0 for _, seconds in after["trials"])
    script = """show("kernel"); return {failures, dots: $$("#kernel .trials circle").map(e => e.textContent), used: $$('#kernel .trials circle[fill="var(--fold)"]').length};"""  # noqa: E501
    out = browse(page.read_text(), tmp_path, script)
    assert out["failures"] == []
    assert len(out["dots"]) == len(after["trials"])
    assert out["used"] == 1
