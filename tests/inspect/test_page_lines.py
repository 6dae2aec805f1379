"""Lines of LLVM IR know their operation, instructions know their line, and debug locations change no
instruction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import KTile, block, kernel, nn, op, tile
from tessera.inspect.page_compare import programs_in
from tessera.inspect.page_lines import located_assembly
from tessera.ir.target.cpu.machine import assembly
from tools.browser import BROWSER, Browser


@kernel.schedule(block(8))
def gated(x: KTile["M", "D"], a: KTile["M", "D"]):
    return tile.load(x) * tile.sigmoid(tile.load(a))


class Block(nn.Module):
    up: nn.Linear
    down: nn.Linear

    def __call__(self, x):
        return x + self.down(op.gelu(self.up(x)))


class Net(nn.Module):
    blocks: list

    def __call__(self, x):
        for b in self.blocks:
            x = b(x)
        return x


def step(net: Any, state: Any, x: Any) -> Any:
    grads = ts.grad(lambda m: op.mean(m(x) ** 2))(net)
    return ADAM.update(grads, state, net)


ADAM = ts.optim.adam(0.1)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = Net([Block(nn.Linear(4, 8, key=ts.key(0)), nn.Linear(8, 4, key=ts.key(1)))
        for _ in range(2)])  # fmt: skip
    path = tmp_path_factory.mktemp("lines") / "step.html"
    return ts.jit(step).inspect(net, ADAM.init(net), ts.ones((3, 4)), path=path)


def codes(page: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    (data, texts), *_ = programs_in(page.read_text(), "page")
    return [(texts[f"target{k['target']}"], texts[f"tile{i}"]) for i,
        k in enumerate(data["kernels"])]  # fmt: skip


def instructions(lines: list[str]) -> list[str]:
    own = (x.split("//")[0].split("#")[0].split() for x in lines)
    return [" ".join(x) for x in own if x and not x[0].startswith(".") and not x[0].endswith(":")]


def test_debug_locations_change_no_instruction(page: Path) -> None:
    texts = {"\n".join(code["lines"]) + "\n" for code, _ in codes(page)}
    for text in sorted(texts)[:6]:
        assert instructions(assembly(text).split("\n")) == instructions(located_assembly(text)[0])


def test_instructions_are_tied_to_operations(page: Path) -> None:
    for code, tiles in codes(page):
        assert len(code["from"]) == len(code["assembly"])
        assert len(code["tile"]) == len(code["lines"])
        assert max(code["from"]) < len(code["lines"])
        assert max(code["tile"]) < len(tiles["lines"])
        tied = [code["tile"][i] for i in code["from"] if i >= 0]
        assert sum(x >= 0 for x in tied) > len(instructions(code["assembly"])) / 3
        # A store of LLVM IR to a buffer belongs to a store of Tile IR, or to the loop around it.
        for line, o in zip(code["lines"], code["tile"], strict=True):
            if o >= 0 and line.strip().startswith("store"):
                assert any(w in tiles["lines"][o] for w in ("store", "for", "dot", "accumulate"))


def test_hand_written_kernels_are_tied_too(tmp_path: Path) -> None:
    path = ts.jit(lambda x, a: gated(x, a)).inspect(ts.ones((16, 8)), ts.ones((16, 8)),
        path=tmp_path / "k.html")  # fmt: skip
    ((code, tiles),) = codes(path)
    assert any(i >= 0 for i in code["tile"])
    assert len({tiles["places"][i] for i in code["tile"] if i >= 0} - {-1}) >= 1


def test_ops_know_their_module_and_their_part_of_a_step(page: Path) -> None:
    (data, texts), *_ = programs_in(page.read_text(), "page")
    names = {data["modules"][n["module"]] for n in data["nodes"]}
    assert {"Net.blocks.0.up", "Net.blocks.1.down"} <= names
    assert {n["phase"] for n in data["nodes"]} == {0, 1, 2}
    assert data["grouped"] == ["module", "function", "phase", "kernel"]
    assert [g["name"] for g in texts["groups"]["phase"]] == ["forward", "backward", "update"]


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_a_click_is_followed_line_by_line(page: Path) -> None:
    script = """(() => {
const out = {}, hits = k => panes[k].lines.map((_, i) => panes[k].look(i)).filter(x => x === "hit").length, paint = () => LEVELS.forEach(k => panes[k].paint());
show("levels"); chosen.kernel = 0; fill(); paint();
const code = targetText(), line = code.tile.findIndex(x => x >= 0); panes.target.el.scrollTop = line * 18; paint();
$(`#pane-target .line[data-i="${line}"]`).click(); out.tile = hits("tile"); out.lines = hits("target"); out.operation = sel.operation[1] === code.tile[line];
chosen.target = "assembly"; fill(); out.instructions = hits("target"); out.all = panes.target.lines.length;
column("schedule", false); out.hidden = [$("#pane-schedule").hidden, $$("#hidden [data-column]").length]; $("#hidden [data-column]").click(); out.back = $("#pane-schedule").hidden;
const e = $("#pane-source"), wide = e.offsetWidth; $(".grip", e).dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true})); out.wider = e.offsetWidth - wide;
select(ofPlace(0)); out.address = location.hash;
show("overview"); out.blocks = $$("#overview .blocks button").map(b => $("b", b).textContent); return out; })()"""  # noqa: E501
    with Browser() as b, b.page(page) as p:
        out = p.evaluate(script)
        assert p.console == []
        address = out["address"]
    assert out["operation"]
    assert out["tile"] == 1
    assert out["lines"] >= 1
    assert 1 <= out["instructions"] < out["all"]
    assert out["hidden"] == [True, 1]
    assert out["back"] is False
    assert out["wider"] == 40
    assert address.startswith("#levels/l")
    assert {"forward", "backward", "update"} <= set(out["blocks"])
    with Browser() as b, b.page(page, mark=address[1:]) as p:  # the address leads back to the line
        assert p.evaluate("sel.line") == 0


def test_a_hand_written_kernel_has_its_source_its_work_and_its_grid(tmp_path: Path) -> None:
    path = ts.jit(lambda x, a: gated(x, a)).inspect(ts.ones((16, 8)), ts.ones((16, 8)),
        path=tmp_path / "k.html")  # fmt: skip
    (data, _), *_ = programs_in(path.read_text(), "page")
    (own,) = [s for s in data["steps"] if s["kind"] == "kernel"]
    assert own["flops"] > 16 * 8
    assert own["bytes"] == 3 * 4 * 16 * 8
    assert own["nests"][0]["nest"].startswith("grid (")
    lines = [data["files"][f]["lines"][n - 1] for f,
        n in (data["places"][p] for p in own["places"])]  # fmt: skip
    assert any("tile.sigmoid(tile.load(a))" in x for x in lines)
