"""Wrong command lines: each ends in the status 2 and one line that says why; sizes are read in their
units.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import cli
from tessera.cli import cache
from tessera.core.flags import override

PROGRAM = """
from tessera import KTile, Tensor, f32, jit, kernel, tile
number = 3
@jit
def layer(x: Tensor["B", 4, f32]):
    return x * 2
@jit
def bare(x):
    return x
@kernel
def doubled(x: KTile["N"]):
    return tile.load(x) * 2
@kernel
def half_bare(x):
    return x
"""

WRONG = [
    ("profile {p} --top 0", "--top and --limit cannot be below 1 and 0"),
    ("profile {p} --limit -1", "--top and --limit cannot be below 1 and 0"),
    ("bench {p}:layer --budget 0", "--budget is above 0, and --limit is not below 0"),
    ("bench {p}:layer --limit -1", "--budget is above 0, and --limit is not below 0"),
    ("tune", "name a file to tune, or give --import or --export"),
    ("tune {p}:layer --budget 0", "--budget is 0, expected more than 0"),
    ("cache trim --to 5XB", "--to is '5XB', expected a size such as 500MB or 2GiB"),
    ("cache trim --to=-5MB", "--to is '-5MB', expected a size such as 500MB or 2GiB"),
    (
        "check {p} --machine abacus",
        "--machine is 'abacus', expected one of h200, h100, a100, mi300x",
    ),
    ("check {p}:nothing", "{p} has no kernel 'nothing'; it has layer, bare, doubled, half_bare"),
    ("inspect {p}:nothing", "{p} defines no 'nothing'; it has layer, bare"),
    ("inspect {p}:number", "'number' in {p} is int, not a function"),
    ("inspect {p}:layer --size B", "--size is 'B', expected one like B=32"),
    ("inspect {p}:layer --size B=0", "--size is 'B=0', expected one like B=32"),
    ("inspect {p}:layer --size C=3", "--size C=3: no size is called C; there are B"),
    ("inspect {n}", "{n} is no Python file: it holds null bytes"),
    ("inspect {e}:f", "{e}, line 2: invalid syntax"),
    ("inspect {p}x", "there is no file {p}x"),
    ("ops sumn", "no op is named 'sumn'; did you mean sum?"),
    ("ops qqqqqqqq", "no op is named 'qqqqqqqq'; `tessera ops` lists them"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_command_is_told(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("p.py", PROGRAM), ("n.py", "x = 1\0"), ("e.py", "x = 1\nx x\n")):
        (tmp_path / name).write_text(text)
    where = {k: str(tmp_path / f"{k}.py") for k in "pne"}
    try:
        status = cli.main(line.format(**where).split())
    except SystemExit as e:
        status = int(str(e.code))
    said = capsys.readouterr().err
    assert status == 2
    assert message.format(**where) in said
    assert "Traceback" not in said


def test_trimming_needs_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    with override(cache_limit=0):
        assert cli.main(["cache", "trim"]) == 2
    assert "TESSERA_CACHE_LIMIT is 0, which is no limit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("7", 7), ("7B", 7), ("3KB", 3000), ("3k", 3000), ("3KiB", 3072), ("1.5 MB", 1500000),
     ("2MiB", 2 << 20), ("1GB", 10**9), ("1gib", 1 << 30)],
)  # fmt: skip
def test_sizes_have_units(text: str, size: int) -> None:
    assert cache.size_of(text, "--to") == size
