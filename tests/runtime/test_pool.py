"""The thread pool: every instance runs once, whoever launches, however many threads there are."""

import os
import subprocess
import sys
import threading
import time
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.core.errors import FlagError, OutOfMemoryError
from tessera.core.flags import override
from tessera.core.processor import cores
from tessera.runtime import pool
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.pool import Job, Pool, launch
from tessera.runtime.threads import thread_count, threads

ROOT = Path(__file__).parents[2]
# visits[i] += 1 for the instances begin to end; seen[i] is where the scratch of i's thread lies.
# Each instance writes its number to scratch many times and reads it back: seen is 0 if it changed.
KERNEL = """
define void @visit(ptr %p, ptr %s, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %visits = load ptr, ptr %p
  %seen_at = getelementptr ptr, ptr %p, i64 1
  %seen = load ptr, ptr %seen_at
  %rounds = load i64, ptr %s
  br label %instance
instance:
  %i = phi i64 [ %begin, %entry ], [ %next, %done ]
  %at = getelementptr i32, ptr %visits, i64 %i
  %old = load i32, ptr %at
  %new = add i32 %old, 1
  store i32 %new, ptr %at
  br label %again
again:
  %round = phi i64 [ 0, %instance ], [ %more, %same ]
  %left = icmp slt i64 %round, %rounds
  br i1 %left, label %write, label %done
write:
  store volatile i64 %i, ptr %scratch
  %back = load volatile i64, ptr %scratch
  %more = add i64 %round, 1
  %equal = icmp eq i64 %back, %i
  br i1 %equal, label %same, label %changed
same:
  br label %again
changed:
  br label %done
done:
  %where = phi ptr [ %scratch, %again ], [ null, %changed ]
  %there = getelementptr ptr, ptr %seen, i64 %i
  store ptr %where, ptr %there
  %next = add i64 %i, 1
  %any = icmp slt i64 %next, %end
  br i1 %any, label %instance, label %out
out:
  ret void
}
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with override(cache_dir=tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def visit():
    return load(LlvmSource("visit", KERNEL, ("visit",))).address


def visits(visit, count, scratch=0, rounds=0, grain=1, run=launch):
    """How often each instance ran, and where the scratch of its thread was."""
    times, seen = np.zeros(count, np.int32), np.zeros(count, np.uint64)
    run(visit, [times.ctypes.data, seen.ctypes.data], [rounds], count, scratch, grain)
    return times, seen


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
def test_every_instance_runs_once(visit, n):
    rng = np.random.default_rng(n)
    counts = [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 64, 1000, 10_007, *rng.integers(1, 3000, 60)]
    with threads(n):
        for count in map(int, counts):
            for grain in (1, 10):
                assert (visits(visit, count, grain=grain)[0] == 1).all(), (count, grain)


def test_launches_after_pauses_of_any_length(visit):
    """Workers are found spinning, falling asleep, asleep."""
    rng = np.random.default_rng(0)
    with threads(4):
        for pause in rng.uniform(0, 3e-4, 1500):
            time.sleep(pause)
            assert (visits(visit, 37)[0] == 1).all()


def test_workers_take_part(visit):
    """With chunks that take long enough, more than one thread works; on a busy machine, in one of many
    launches.
    """
    with threads(3):
        launches = (visits(visit, 64, scratch=64, rounds=200_000)[1] for _ in range(1000))
        assert any(len(set(seen)) > 1 for seen in launches)


def test_several_python_threads_launch_at_once(visit):
    bad = []

    def caller(n):
        with threads(n):
            for count in range(1, 300):
                if not (visits(visit, count)[0] == 1).all():
                    bad.append((n, count))

    callers = [threading.Thread(target=caller, args=(n,)) for n in (1, 2, 3, 5, 5)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert bad == []


@pytest.mark.parametrize("n", [1, 2, 8])
def test_scratch_is_aligned_private_and_grows(visit, n):
    with threads(n):
        for size in (8, 64, 1000, 1 << 20):
            _, seen = visits(visit, 50, scratch=size, rounds=2000)
            assert seen.all(), "another thread wrote to this scratch"
            assert (seen % 64 == 0).all()
            places = sorted(set(seen.tolist()))
            assert len(places) <= n
            assert all(b - a >= size for a, b in pairwise(places))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("size", [1 << 55, 1 << 70])
def test_scratch_that_does_not_fit_is_an_error_and_the_pool_stays_usable(visit, n, size):
    with threads(n):
        with pytest.raises(OutOfMemoryError) as e:
            visits(visit, 10, scratch=size)
        user = "a kernel" if n == 1 else "each of 2 threads of a kernel"
        assert e.value.message == (
            f"run: {user} needs {size} bytes of scratch memory, which this machine does not have; "
            "use smaller tensors or fewer threads (ts.threads)"
        )
        times, seen = visits(visit, 10, scratch=64, rounds=5)
        assert (times == 1).all()
        assert seen.all()


def own(pool, n):
    """`launch` on a pool of one's own."""

    def run(kernel, parameters, sizes, count, scratch, grain):
        job = Job(kernel, sizes, count, n, scratch, grain)
        pool.run(job, np.array(parameters, np.uint64).tobytes())

    return run


def test_the_pool_works_without_futexes(visit):
    pool = Pool(futex=False)
    for count in (1, 2, 100, 3000):
        times, seen = visits(visit, count, 64, 10, run=own(pool, 4))
        assert (times == 1).all()
        assert seen.all()
        time.sleep(0.002)
    pool.stop()


@pytest.mark.parametrize("futex", [True, False])
def test_a_stopped_pool_has_no_threads_and_still_runs_jobs(visit, futex):
    pool, before = Pool(futex), threading.active_count()
    assert (visits(visit, 100, run=own(pool, 4))[0] == 1).all()
    assert threading.active_count() == before + 3
    pool.stop()
    assert threading.active_count() == before
    assert (visits(visit, 100, run=own(pool, 6))[0] == 1).all()
    assert threading.active_count() == before


def test_idle_workers_use_no_processor_time(visit):
    with threads(8):
        visits(visit, 1000)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_the_number_of_threads():
    with override(threads=3):
        assert thread_count() == 3
        with threads(2) as n:
            assert (n, thread_count()) == (2, 2)
            with threads(5):
                assert thread_count() == 5
            assert thread_count() == 2
            elsewhere = []
            other = threading.Thread(target=lambda: elsewhere.append(thread_count()))
            other.start()
            other.join()
            assert elsewhere == [cores()]  # a new thread begins as the environment says
        assert thread_count() == 3
    with override(threads=0):
        assert thread_count() == cores()


@pytest.mark.parametrize("n", [0, -1, 1024, 1.5, "two"])
def test_a_wrong_number_of_threads_is_an_error(n):
    with pytest.raises(FlagError) as e, threads(n):
        pass
    assert e.value.message == f"threads: got {n!r}, expected a whole number from 1 to 1023"


# Whole processes ------------------------------------------------------------------------------

START = f"""
import atexit, ctypes, os, sys, threading, time
from pathlib import Path
import numpy as np
from tessera.core.flags import override
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.pool import launch
from tessera.runtime.threads import threads
KERNEL = '''{KERNEL}'''
visit = load(LlvmSource("visit", KERNEL, ("visit",))).address
def check(count=100, n=4):
    with threads(n):
        times, seen = np.zeros(count, np.int32), np.zeros(count, np.uint64)
        launch(visit, [times.ctypes.data, seen.ctypes.data], [0], count)
    assert (times == 1).all()
"""
EXITS = {
    "with an idle pool": "check(); print('done')",
    "while a daemon thread launches": """
def forever():
    while True:
        check()
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
print('done')
""",
    "with a launch at exit": "atexit.register(lambda: (check(), print('done'))); check()",
    "with the first launch at exit": "atexit.register(lambda: (check(), print('done')))",
}


def python(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", START + code], cwd=ROOT, timeout=120, check=False,
        env={"PYTHONPATH": str(ROOT), "TESSERA_CACHE_DIR": str(folder)}, capture_output=True,
        text=True,
    )  # fmt: skip


@pytest.mark.parametrize("how", EXITS)
def test_a_process_ends(how, tmp_path):
    done = python(EXITS[how], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
stop = False
def busy():
    while not stop:
        check(1000)
others = [threading.Thread(target=busy) for _ in range(2)]
for t in others: t.start()
codes = []
for _ in range(8):
    time.sleep(0.005)
    child = os.fork()
    if child == 0:
        before = threading.active_count()
        for _ in range(20): check(500)
        grandchild = os.fork()
        if grandchild == 0:
            check()
            os._exit(0)
        ok = os.waitpid(grandchild, 0)[1] == 0 and threading.active_count() == before + 3
        os._exit(0 if ok else 1)
    codes.append(os.waitpid(child, 0)[1])
    check()
stop = True
for t in others: t.join()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_starts_with_a_pool_of_its_own(tmp_path):
    done = python(FORK, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{[0] * 8}\n", "")


def test_scratch_of_steps_outlives_what_wants_more_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may run a kernel while a loop runs, on the same thread."""
    p, own, alive = pool.pool(), pool._OWN.scratch, []
    own.reserve(64, "a test")
    held = weakref.ref(own.memory)

    def steps(*_: Any) -> int:
        own.reserve(1 << 16, "a test")
        alive.append(held() is not None)
        return 0

    monkeypatch.setattr(p, "_steps", steps)
    p.run_steps(0, [], 0, 1)
    assert alive == [True]
    assert held() is None
