"""Too little memory is a refusal with the op's name, on every way to memory; never a raw MemoryError.

The ways run in a process with an address space of its own size: a machine that promises memory it does not
have would otherwise grant what is asked for and kill the process later.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OutOfMemoryError
from tessera.core.flags import override

N = 10**13
SPACE = 16 << 30  # bytes of address space, of which code, threads and small tensors take a part


def huge(*shape: int) -> Any:
    """Zeros that take no memory."""
    return op.zeros(shape or (N,))


WAYS = {
    "elementwise": lambda: huge() + 1,
    "compiled": lambda: op.exp(huge()),
    "a comparison": lambda: huge() > 0,
    "a cast": lambda: huge().astype(ts.f64),
    "a move": lambda: op.concat([huge(), huge()], 0),
    "a copy of a view": lambda: op.transpose(huge(10**7, 10**7)) + 1,
    "an outer product": lambda: op.ones((10**7, 1)) * op.ones((1, 10**7)),
    "a contraction": lambda: huge(10**7, 4) @ huge(4, 10**7),
    "a range": lambda: ts.arange(N),
    "points": lambda: ts.linspace(0, 1, N),
    "an identity": lambda: ts.eye(10**7),
    "random numbers": lambda: op.random.normal(ts.key(0), (N,)),
    "a sort": lambda: op.sort(huge()),
    "a gather": lambda: huge()[op.zeros((N,), dtype=ts.i32)],
    "a padding": lambda: op.pad(op.ones((3,)), ((0, N),)),
    "a transform": lambda: op.fft(huge()),
    "a factorisation": lambda: op.inv(huge(10**6, 10**6)),
    "an update": lambda: huge().at[0].set(1.0),
    "a gradient": lambda: ts.grad(lambda a: op.sum(a * a))(huge()),
    "a batch": lambda: ts.vmap(lambda a: a * 2)(huge()),
    "a branch": lambda: ts.cond(True, lambda a: a * 2, lambda a: a, huge()),
    "a scan": lambda: ts.scan(lambda c, a: (c, a), op.ones(()), huge()),
    "jit": lambda: ts.jit(lambda a: a + 1)(huge()),
    "a host call in jit": lambda: ts.jit(lambda a: op.inv(a) + 1)(huge(10**6, 10**6)),
    "the target numpy": lambda: ts.jit(lambda a: a + 1, target="numpy")(huge()),
    "a tensor": lambda: ts.tensor(np.broadcast_to(np.float32(0), (N,))),
    "a list": lambda: huge().tolist(),
    "the array API": lambda: ts.array_api.ones((N,)) + 1,
}


TEXTS = {
    "elementwise": "add: a run needs 37252.9 GiB of memory but ",
    "a range": "iota: there is not enough memory (Unable to allocate ",
    "a list": "tolist: there is not enough memory; use smaller tensors or a loop over pieces",
}


def report() -> None:
    """Try every way in this process and print how it ended."""
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    said = {}
    for way, run in WAYS.items():
        try:
            run()
            said[way] = ["nothing", "", ""]
        except OutOfMemoryError as e:
            said[way] = [type(e).__name__, e.message, e.location.file if e.location else ""]
        except Exception as e:  # what it was is the test's answer
            said[way] = [type(e).__name__, str(e), ""]
    print(json.dumps(said))


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", "from tests.runtime.test_no_memory import report; report()"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_no_machine_has_is_refused(way, said):
    kind, message, file = said[way]
    assert kind == "OutOfMemoryError", message
    assert "\n" not in message
    assert message.startswith(TEXTS.get(way, ""))
    assert file == __file__


def test_an_eager_reference_keeps_within_the_flag():
    x = op.ones((5000, 5000))
    with (
        override(memory=1 << 20),
        pytest.raises(OutOfMemoryError, match=r"add: a run needs 0\.1 GiB"),
    ):
        x + 1
    assert (x + 1).shape == (5000, 5000)
