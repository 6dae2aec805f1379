"""The kernel view and the timeline of the inspector."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import DeviceError
from tessera.inspect.page_gpu import gpu_data
from tessera.inspect.page_mix import mix_of
from tessera.runtime import triton_builder
from tests.inspect.test_inspect import browse
from tests.inspect.test_inspect_run import BROWSER, data_of, page  # noqa: F401


def test_instructions_have_their_class_on_every_processor() -> None:
    a64 = ["kernel:", "  sub    sp, sp, #64", "  ldp    q0, q1, [x0]", "  fmla   v2.4s, v0.4s, v1.4s",
           "  fadd   v3.4s, v2.4s, v0.4s", "  str    q3, [sp, #16]", "  b.ne   .L1",
           "  add    x1, x1, #4"]  # fmt: skip
    assert mix_of(a64) == {
        "counts": {"integer": 2, "load": 1, "multiply-add": 1, "float": 1, "store": 1, "branch": 1},
        "registers": 4, "frame": 64, "stack": 1,
    }  # fmt: skip
    x86 = ["  vmovups (%rdi), %zmm0", "  vfmadd231ps %zmm1, %zmm0, %zmm2", "  vmovups %zmm2, (%rsi)",
           "  vaddps %zmm0, %zmm1, %zmm3", "  jne .L1", "  vmovups %zmm3, 8(%rsp)"]  # fmt: skip
    found = mix_of(x86)
    assert found["counts"] == {"load": 1, "multiply-add": 1, "store": 2, "float": 1, "branch": 1}
    assert (found["registers"], found["stack"]) == (4, 1)
    ptx = [".reg .b32 %r<5>;", "@%p1 bra $L1;", "ld.global.b32 %r1, [%rd1];",
        "fma.rn.f32 %f1, %f2, %f3, %f1;",
           "wgmma.mma_async.sync.aligned.m64n64k16 {%f1};", "bar.sync 0;"]  # fmt: skip
    assert mix_of(ptx)["counts"] == {
        "branch": 1, "load": 1, "multiply-add": 1, "matrix": 1, "wait": 1,
    }  # fmt: skip
    amd = [
        "v_mfma_f32_32x32x8f16 a[0:15], v[0:1], v[2:3], a[0:15]",
        "global_load_dwordx4 v[0:3], v4, s[0:1]",
        "s_waitcnt vmcnt(0)",
    ]
    assert mix_of(amd)["counts"] == {"matrix": 1, "load": 1, "wait": 1}


def rows(d: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = d["timeline"]["rows"]
    return found


def test_the_timeline_has_every_step_inside_the_wall(page: Path) -> None:  # noqa: F811
    programs = data_of(page)
    for d in programs:
        if "timeline" not in d:  # the body of a loop: its times are on the timeline of its program
            continue
        own = rows(d)[0]
        assert d["programs"][own["program"]] == d["name"]
        steps = [i for i, s in enumerate(d["steps"]) if s["kind"] != "view"]
        assert {s[0] for s in own["spans"]} >= set(steps)
        for r in rows(d):
            begins = [(b, e) for _, b, e, _ in r["spans"]]
            assert all(0 <= b <= e <= d["timeline"]["wall"] for b, e in begins)
            assert all(e <= b for (_, e), (b, _) in itertools.pairwise(begins))
            assert all(0 < busy <= d["threads"] + 0.01 for *_, busy in r["spans"])
    loop = next(d for d in programs if d["name"] == "waves")
    assert len(loop["steps"]) >= 1


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_every_step_has_a_kernel_page_and_a_place_on_the_clock(
    page: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    script = """
const out = {failures};
const wait = () => views[tab].paint?.();
show("kernel"); wait(); out.facts = $$("#kernel .facts h2").map(e => e.textContent); out.lines = $$("#kernel .pane").map(e => $$(".line", e).length);
out.coloured = $$("#kernel .pane .w").length;
STEPS.forEach((s, i) => { select(ofStep(i)); wait(); if (!$("#kernel .facts").textContent.includes(named(s))) failures.push(s.name); });
show("timeline"); wait(); out.spans = $$("#timeline [data-step]").length; out.said = $("#timeline .bar .soft").textContent;
timeline.zoom(3); wait(); out.zoomed = (timeline.b - timeline.a) / timeline.wall;
show("overview"); out.wall = $("#overview p").textContent; return out;"""  # noqa: E501
    number = next(i for i, d in enumerate(data_of(page)) if d["name"] == "layer")
    mark = f"#p{number}/overview"
    out = browse(page.read_text(), tmp_path, script, "--window-size=390,800", mark=mark)
    assert out["failures"] == []
    assert {"of the roofs", "instructions", "registers and stack", "schedule"} <= set(out["facts"])
    assert all(n > 3 for n in out["lines"])
    assert out["coloured"] > 3
    assert out["spans"] >= 2
    assert "in steps" in out["said"]
    assert out["zoomed"] == pytest.approx(1 / 3)
    assert "One run takes" in out["wall"]
    assert "of which the steps are" in out["wall"]


def test_what_keeps_assembly_from_being_shown_is_not_an_instruction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without Triton the place of the assembly has a message, which was counted as one instruction."""

    def missing() -> str:
        raise DeviceError("cuda: Triton is not here")

    monkeypatch.setattr(triton_builder, "version", missing)
    e, _ = ts.jit(lambda x: op.relu(x @ x), target="cpu").program(ts.ones((8, 8)))
    _, texts = gpu_data(e.written, {}, "sm_90")
    codes = [x for name, x in texts.items() if name.startswith("target")]
    assert codes
    assert all(x["assembly"] == ["cuda: Triton is not here"] for x in codes)
    assert all(x["mix"]["counts"] == {} for x in codes)


AXE = os.environ.get(
    "TESSERA_AXE", "node_modules/axe-core/axe.min.js"
)  # of the npm package axe-core


@pytest.mark.skipif(BROWSER is None or not Path(AXE).is_file(), reason="needs Chromium, axe-core")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(page: Path, tmp_path: Path, theme: str) -> None:  # noqa: F811
    code = Path(AXE).read_text().replace("</script", "<\\/script")
    text = page.read_text().replace("<head>", f"<head><script>{code}</script>", 1)
    text = text.replace("script-src 'unsafe-inline'", "script-src 'unsafe-inline' 'unsafe-eval'", 1)
    script = f"""
document.documentElement.dataset.theme = {theme!r};
(async () => {{
  const bad = [];
  for (const v of Object.keys(views)) {{
    show(v); await new Promise(r => setTimeout(r, 100));
    const found = await axe.run(document, {{resultTypes: ["violations"]}});
    bad.push(...found.violations.filter(x => /serious|critical/.test(x.impact)).map(x => `${{v}}: ${{x.id}} ${{x.nodes[0].html.slice(0, 90)}}`));
  }}
  document.getElementById("told").textContent = JSON.stringify(bad);
}})(); return "not done";"""  # noqa: E501
    assert browse(text, tmp_path, script, "--virtual-time-budget=60000") == []
