"""Kernels under the tools: jit, inspect and check take them as they are."""

import json
import re

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, Tile, block, f32, kernel, tile
from tessera.cli import main


@kernel.schedule(block(4))
def soft(x: KTile["M", "N"]):
    t = tile.load(x)
    e = tile.exp(t - tile.max(t, axis=1, keepdims=True))
    return e / tile.sum(e, axis=1, keepdims=True)


@kernel.schedule(block(4))
def scaled(x: Tile["M", "N"], a):
    return x * a


def data(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(5, 6), (1, 1), (9, 3), (0, 4)])
def test_a_kernel_of_whole_rows_is_jitted_as_it_is(shape):
    x = data(*shape)
    np.testing.assert_array_equal(ts.jit(soft)(x).numpy(), soft(x).numpy())
    np.testing.assert_array_equal(ts.jit(scaled)(x, 2.0).numpy(), x * 2)


PROGRAM = """
from tessera import KTile, block, kernel, tile

@kernel.schedule(block(4))
def soft(x: KTile["M", "N"]):
    t = tile.load(x)
    e = tile.exp(t - tile.max(t, axis=1, keepdims=True))
    return e / tile.sum(e, axis=1, keepdims=True)
"""


@pytest.mark.parametrize("name", ["", ":soft"])
def test_a_kernel_of_whole_rows_is_inspected_under_its_name(tmp_path, name):
    path, page = tmp_path / "rows.py", tmp_path / "rows.html"
    path.write_text(PROGRAM)
    assert main(["inspect", f"{path}{name}", "--size", "M=8", "--out", str(page)]) == 0
    text = page.read_text()
    found = re.search(r'id="data">(.*?)</script>', text)
    shown = json.loads(found[1])
    assert [(k["name"], k["step"]) for k in shown["kernels"]] == [("soft", 0)]
    assert (shown["steps"][0]["name"], shown["steps"][0]["kind"]) == ("soft", "kernel")
    lines = json.loads(re.search(r'id="tile0">(.*?)</script>', text)[1])["lines"]
    # Legalisation for some processors writes the kernel anew, and names its axes by number then.
    assert re.fullmatch(r"kernel soft on grid \(_(m|p0)<\(M \+ 3\) // 4\)", lines[0])
    assert any("fold" in x for x in lines)
    assert "define void @soft" in text


@kernel
def misspelt(x: KTile["N"]):
    return tile.lod(x)


@kernel
def unknown(x: KTile["N"]):
    return nothing_of_this_name


@kernel
def worded(x: KTile["N"]):
    return tile.load(x, rows="all")


@kernel
def too_many(x: KTile["N"]):
    return tile.exp(tile.load(x), 2, 3)


@kernel
def wrong_keyword(x: KTile["N"]):
    return tile.sum(tile.load(x), along=0)


@kernel
def divided(x: KTile["N"]):
    return tile.load(x) * (1 / 0)


@kernel
def listed(x: KTile["N"]):
    return tile.load(x)[[1, 2]]


@kernel
def endless(x: KTile["N"]):
    return endless(x)


FAULTY = [misspelt, unknown, worded, too_many, wrong_keyword, divided, listed, endless]


@pytest.mark.parametrize("f", FAULTY, ids=lambda f: f.__name__)
def test_a_faulty_kernel_is_an_error_of_ours_in_every_tool(f):
    x = data(5)
    for use in (f, ts.jit(f), f.lower, lambda x: ts.check(f, x), lambda x: ts.check(ts.jit(f), x)):
        with pytest.raises(ts.TesseraError):
            use(x)


def fails(x):
    return x + nothing_of_this_name


OPTIONS = [
    ({"warps": "a"}, "check: warps is 'a', expected a number of warps"),
    ({"warps": -1}, "check: warps is -1, expected at least 1"),
    ({"machine": "abacus"}, "check: machine is 'abacus', expected one of h200, h100, a100, mi300x"),
    ({"tools": "races"}, "check: tools is 'races', expected a list of names of tools"),
    ({"tools": ("luck",)}, "check: there is no tool 'luck'"),
    ({"given": 3}, "check: given is 3, expected a dictionary from names of sizes to sizes"),
    ({"layouts": 3}, "check: layouts is 3, expected a Layout"),
    ({"colour": 1}, "soft: got an unexpected keyword argument 'colour'"),
]


@pytest.mark.parametrize(("options", "text"), OPTIONS, ids=[str(o) for o, _ in OPTIONS])
def test_check_says_which_option_is_wrong(options, text):
    with pytest.raises(ts.TesseraError, match=re.escape(text)) as e:
        ts.check(soft, data(5, 6), **options)
    assert "test_kernel_tools.py" in str(e.value)


@pytest.mark.parametrize(
    "args", [(), ("abc",), (None,), ([1, 2],), (data(5, 6), data(2))], ids=range(5)
)
@pytest.mark.parametrize("f", [soft, 3, None, fails, ts.jit(fails), ts.jit(soft)], ids=range(6))
def test_no_raw_exception_leaves_check(f, args):
    with pytest.raises(ts.TesseraError):
        ts.check(f, *args)


@kernel
def from_one_on(x: KTile["N"]):
    return tile.load(x, at=(1,), shape=(3,))


def test_an_element_that_nothing_writes_is_found():
    (verdict,) = ts.check(from_one_on, data(8), tools=("results",))
    (found,) = verdict.findings
    assert found.level == "warning"
    assert "elements of result0 are written by no instance; they are 0" in found.message
    assert found.witness["element"] == (0,)
    assert ts.check(soft, data(5, 6), tools=("results",)).ok
    assert str(ts.check(soft, data(5, 6), tools=("results",))[0]).endswith("(1 of 1 facts proved)")


@kernel
def windows(x: KTile["H", "W", f32]):
    """Boxes of 3 by 3 as rows."""
    height, width = x.shape[0] - 2, x.shape[1] - 2
    p, q = tile.program(height), tile.program(width)
    y = tile.empty((height * width, 9), f32)
    tile.store(
        y, tile.reshape(tile.load(x, at=(p, q), shape=(3, 3)), (1, 9)), at=(p * width + q, 0)
    )
    return y


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_tensors_that_leave_less_than_nothing_are_an_error_in_every_way(shape):
    x = np.ones(shape, np.float32)
    for way in (windows, ts.jit(lambda x: windows(x))):
        with pytest.raises(
            ts.TesseraError,
            match=r"windows: there would be -1 instances along its grid \([HW] - 2\)",
        ):
            way(x)
    for step in (False, True):
        with ts.interpret(step=step), pytest.raises(ts.TesseraError, match="tensors are too small"):
            windows(x)
    assert windows(np.ones((2, 5), np.float32)).shape == (0, 9)


def test_sizes_that_no_call_has_are_not_tried():
    assert ts.check(windows, np.ones((4, 5), np.float32)).ok
