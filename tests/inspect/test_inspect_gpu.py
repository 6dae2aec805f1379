"""The inspector on programs for GPUs: their code without a GPU, and functions whose tensors are on one."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import cli, op
from tessera.core.dtype import bf16
from tessera.core.errors import OperandError
from tessera.inspect.page_gpu import gpu_data
from tests.inspect.test_inspect import BROWSER, browse
from tests.support.fakes.gpu_fake import fake_gpu

TRITON = importlib.util.find_spec("triton") is not None


def model(q: Any, w: Any) -> Any:
    h = op.attention(q, q, q, causal=True)
    return op.softmax(op.gelu(h @ w)), op.cumsum(q, 2)


ARRAYS = [ts.tensor(np.ones(s, np.float32)).astype(bf16) for s in ((1, 2, 64, 32), (32, 64))]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("gpu") / "model.html"
    return ts.jit(model).inspect(*ARRAYS, path=path, gpu=("sm_90", "gfx942")).read_text()


def part(page: str, name: str) -> Any:
    found = re.search(rf'id="{re.escape(name)}">(.*?)</script>', page, re.DOTALL)
    assert found, name
    return json.loads(found[1])


def test_a_program_is_shown_for_gpus_that_are_not_there(page: str) -> None:
    assert part(page, "data")["programs"] == ["model", "model for sm_90", "model for gfx942"]
    for number, code in ((1, "PTX"), (2, "AMDGCN")):
        data = part(page, f"{number}.data")
        assert data["code"] == ["Triton", code]
        kinds = {s["name"]: s["kind"] for s in data["steps"]}
        assert kinds["attention"] == "primitive"
        assert kinds["reshape"] == "view"
        nests = [n["nest"] for s in data["steps"] for n in s["nests"]]
        assert len(nests) == len(data["kernels"])
        assert all(re.match(r"grid .*, warps \d", n) for n in nests)
        (attention,) = [s for s in data["steps"] if s["name"] == "attention"]
        assert attention["flops"] == 2 * 2 * 2 * (64 * 65 // 2) * 32
        assert data["memory"]["peak"] > 0
        assert [n["op"] for n in data["nodes"]].count("attention") == 1
        for k in data["kernels"]:
            source = part(page, f"{number}.target{k['target']}")
            assert {"@triton.jit", "@gluon.jit"} & set(source["lines"])
            assert len(source["touch"]) == len(source["lines"])
            touched = {k["buffers"][t] for t in source["touch"] if 0 <= t < len(k["buffers"])}
            assert touched == set(k["buffers"])
            assert part(page, f"{number}.tile{data['kernels'].index(k)}")["lines"][0].startswith(
                f"kernel {k['name']}"
            )
            if TRITON:
                assert any(
                    x.strip().startswith((".visible .entry", "s_")) for x in source["assembly"]
                )
            else:
                assert source["assembly"][0].endswith("pip install 'tessera[gpu]'")


def test_a_gpu_that_is_not_known_is_an_error_before_the_work() -> None:
    with pytest.raises(OperandError, match="inspect: gpu is 'sm_1', expected one of sm_80, sm_90"):
        ts.jit(model).inspect(*ARRAYS, gpu="sm_1")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_an_op_is_followed_to_triton(page: str, tmp_path: Path) -> None:
    script = """
const wait = () => { LEVELS.forEach(k => panes[k].paint()); views[tab].paint?.(); };
const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const text = (pane, c) => $$(`#pane-${pane} .${c}`).map(e => e.textContent), out = {};
const i = NODES.findIndex(n => n.op === "attention"); select(ofNode(i)); wait();
out.name = D.name; out.kernel = KERNELS[chosen.kernel].name; out.source = text("source", "hit");
out.schedule = text("schedule", "hit"); out.tile = text("tile", "near").length; out.target = text("target", "near").length;
out.kinds = $$("#pane-target option").map(o => o.textContent); press("a"); wait(); out.code = $("#pane-target select").value;
for (const k of "1234567") { press(k); wait(); } out.failures = failures; return out;
"""  # noqa: E501
    text = page.replace('location.hash.slice(1).split("/")', '"p1/levels".split("/")', 1)
    out = browse(text, tmp_path, script, "--window-size=1400,900")
    assert out["failures"] == []
    assert out["name"] == "model for sm_90"
    assert out["kernel"].startswith("attention_")
    assert ["op.attention(" in x for x in out["source"]] == [True]
    assert "attention(" in "".join(out["schedule"])
    assert min(out["tile"], out["target"]) > 10
    assert (out["kinds"], out["code"]) == (["Triton", "PTX"], "1")


def test_functions_of_tensors_on_a_gpu_are_inspected(tmp_path: Path) -> None:
    with fake_gpu():
        table = ts.tensor(np.ones((16, 8), np.float32)).to("cuda")
        f = ts.jit(lambda x: op.softmax(x @ table))
        x = ts.tensor(np.ones((4, 16), np.float32)).to("cuda")
        page = f.inspect(x, path=tmp_path / "f.html").read_text()
    assert part(page, "data")["programs"] == ["<lambda>", "<lambda> for sm_90"]
    assert any(s["seconds"] > 0 for s in part(page, "data")["steps"])  # it ran on this machine


PROGRAM = """
import numpy as np
import tessera as ts
from tessera import Tensor, f32, op
table = ts.tensor(np.ones((16, 8), np.float32)).to("cuda")
@ts.jit
def layer(x: Tensor["B", 16, f32]):
    return op.softmax(x @ table)
"""


def test_the_commands_draw_arguments_where_a_function_has_its_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = tmp_path / "layer.html"
    assert cli.main(["inspect", str(program), "--out", str(out)]) == 1
    assert "there is no NVIDIA driver here" in capsys.readouterr().err
    with fake_gpu():
        assert cli.main(["inspect", str(program), "--out", str(out), "--size", "B=4"]) == 0
        assert cli.main(["profile", f"{program}:layer", "--size", "B=4"]) == 0
        assert cli.main(["bench", f"{program}:layer", "--size", "B=4", "--budget", "5"]) == 0
    assert '"name":"layer for sm_90"' in out.read_text()
    assert "cuda:0 was busy" in capsys.readouterr().out


def test_ops_are_tied_to_the_kernels_of_the_gpu_that_compute_them() -> None:
    """Which values exist differs between CPUs and GPUs: softmax was named beside a product it is not in."""
    e, _ = ts.jit(lambda x: op.softmax(op.relu(x @ x)), target="cpu").program(ts.ones((8, 8)))
    for name in ("sm_90", "gfx942"):
        data, _ = gpu_data(e.written, {}, name)
        assert [s["label"] for s in data["steps"]] == ["matmul 8x8x8 + relu", "softmax 8x8"]
        steps = {n["op"]: n["steps"] for n in data["nodes"]}
        assert (steps["matmul"], steps["relu"], steps["max"]) == ([0], [0], [1])
