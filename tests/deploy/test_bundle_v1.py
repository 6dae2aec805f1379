"""Bundles of format version 1 that were written once are read and run by every later version, with their
bits.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.core.dtype import as_dtype
from tessera.deploy.targets import usable
from tests.deploy.test_bundle_c import COMPILER, build

DATA = Path(__file__).parents[1] / "data"
# The identity of each file: whoever changes one must see it here.
DIGESTS = {
    "ranks": "44d9ca894699e1b556d63dc29923d0815dbf61bf732ea28f39a02de4e8d85beb",
    "layer": "33108c85707f4b6fd0279d3aca976c43cdaeccc27f3f729e4fa8e4b00a67255c",
    "waves": "ffea51a90d633273854cba6cc9826f2f43d669ba20d373da098a3e5c3eb46359",
}


def recorded(name: str, dtypes: list[Any]) -> list[Any]:
    """The inputs and outputs of a run."""
    data, at, out = (DATA / f"bundle-v1-{name}.record").read_bytes(), 0, []
    for dtype in dtypes:
        (rank,) = struct.unpack_from("<q", data, at)
        shape = struct.unpack_from(f"<{rank}q", data, at + 8)
        at += 8 + 8 * rank
        x = np.frombuffer(data, dtype, int(np.prod(shape)), at).reshape(shape)
        at += x.nbytes
        out.append(x)
    assert at == len(data)
    return out


@pytest.mark.filterwarnings("ignore:bundle. .* has code for")  # on a processor that it has none for
@pytest.mark.parametrize("name", DIGESTS)
def test_old_bundles_are_read_and_have_their_bits(name: str):
    b = ts.bundle.load(DATA / f"bundle-v1-{name}.tess")
    assert b.digest == DIGESTS[name]
    e = b.entry(name)
    dtypes = [as_dtype(v["dtype"]).np for v in (*e.row["inputs"], *e.row["outputs"])]
    values = recorded(name, dtypes)
    n = len(e.inputs)
    outs = ts.tree.leaves(e.run(*values[:n]))
    assert [np.asarray(x).tobytes() for x in outs] == [x.tobytes() for x in values[n:]]


@pytest.mark.filterwarnings("ignore:bundle. .* has code for")
@pytest.mark.parametrize("name", DIGESTS)
def test_old_graphs_are_compiled_with_the_same_bits(name: str):
    e = ts.bundle.load(DATA / f"bundle-v1-{name}.tess").entry(name)
    dtypes = [as_dtype(v["dtype"]).np for v in (*e.row["inputs"], *e.row["outputs"])]
    values = recorded(name, dtypes)
    n = len(e.inputs)
    e._executable = e._compiled([e.bundle.weights[w] for w in e.row["weights"]])
    outs = ts.tree.leaves(e.run(*values[:n]))
    assert [np.asarray(x).tobytes() for x in outs] == [x.tobytes() for x in values[n:]]


@pytest.mark.skipif(not (COMPILER and usable()), reason="no C compiler for this processor")
def test_c_runs_old_bundles(tmp_path: Path):
    program = build(tmp_path / "run", "run.c", "-O1")
    for name in DIGESTS:
        at = [str(DATA / f"bundle-v1-{name}.{end}") for end in ("tess", "record")]
        done = subprocess.run(
            [str(program), *at, name, "2"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
