"""What a `with` sets ends with its block, in whichever order and thread blocks of generators end."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack
from contextvars import copy_context

import pytest

import tessera as ts
from tessera.core.flags import checked_block, flags, threads_wanted
from tessera.core.mesh import Mesh
from tessera.ir.graph.numbers import checking
from tessera.lang.device import current_device
from tessera.lang.dist.scope import current_scope
from tessera.lang.stream import current_stream

MESHES = [ts.mesh(Mesh((a,), shape=(1,)), {"rows": a}) for a in "xyz"]
STREAMS = [ts.Stream() for _ in range(2)]
BLOCKS = [
    lambda: ts.numerics("fast"), lambda: ts.numerics("strict"), lambda: ts.threads(1), lambda: ts.threads(2),
    lambda: ts.checked(), lambda: ts.checked(False), lambda: ts.debug_nans(), lambda: ts.device("cpu"),
    *(lambda m=m: m for m in MESHES), *(lambda s=s: s for s in STREAMS),
]  # fmt: skip


def state():
    return (
        flags(), threads_wanted(), bool(checked_block()), checking(), current_device(), current_scope(),
        current_stream(),
    )  # fmt: skip


def block(make):
    """A generator that is suspended inside of a block."""
    with make():
        yield


def _opened(makes):
    found = [block(m) for m in makes]
    for g in found:
        next(g)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_generators_end_in_any_order(seed):
    r, before = random.Random(seed), state()
    makes = r.sample(BLOCKS, r.randint(2, 5))
    wanted: dict[tuple[int, ...], object] = {}  # what blocks say that are open alone, in order
    order = r.sample(range(len(makes)), len(makes))
    left = list(range(len(makes)))
    for i in order:
        left.remove(i)
        with ExitStack() as stack:
            for k in left:
                stack.enter_context(makes[k]())
            wanted[tuple(left)] = state()
        assert state() == before
    live = dict(enumerate(_opened(makes)))
    for i in order:
        live.pop(i).close()
        assert state() == wanted[tuple(live)]
    assert state() == before


def test_interleaved_numerics_leave_nothing_behind():
    a, b = block(lambda: ts.numerics("fast")), block(lambda: ts.numerics("fast"))
    next(a)
    next(b)
    a.close()
    b.close()
    assert flags().numerics == "deterministic"


@pytest.mark.parametrize("make", BLOCKS[:8])
def test_a_block_that_ends_in_another_thread_changes_nothing_there(make):
    g, found = block(make), []
    copy_context().run(next, g)

    def elsewhere():
        with ts.numerics("fast"):
            g.close()
            found.append((flags().numerics, threads_wanted(), checked_block(), checking()))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [("fast", 0, None, False)]


def test_threads_as_a_decorator_keep_the_flags_of_the_call():
    @ts.threads(1)
    def mode():
        return flags().numerics, threads_wanted()

    with ts.numerics("fast"):
        assert mode() == ("fast", 1)
    assert mode() == ("deterministic", 1)


def test_one_device_object_in_two_threads():
    here, inside, leave = ts.device("cpu"), threading.Event(), threading.Event()

    def other():
        with here:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with here:
        thread.start()
        inside.wait(10)
    leave.set()
    thread.join()
    assert current_device() == ts.devices()[0]
