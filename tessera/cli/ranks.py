"""tessera run: a Python file on one rank or several, which end together."""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from tessera.cli.programs import execute, run_alone
from tessera.cli.show import Failure, UsageError, write_file
from tessera.core.deferred import Deferred
from tessera.core.errors import RankError
from tessera.core.flags import mesh_device, override
from tessera.core.ranks import RankEngine, engine, launched_by_mpi, start_on
from tessera.runtime.comm.local import LocalEngine, sockets
from tessera.runtime.comm.mpi import LOST, MpiEngine, mpiexec

# Pages show every level of the compiler: loading all of it takes two thirds of an import of tessera.
nccl_engine = Deferred("tessera.runtime.comm.nccl:NcclEngine")
attachable = Deferred("tessera.inspect.attach:attachable")
demand_folder = Deferred("tessera.inspect.page:demand_folder")
rank_page = Deferred("tessera.inspect.rank_timeline:rank_page")
rank_recorded = Deferred("tessera.inspect.rank_timeline:rank_recorded")

_GRACE = 2.0  # seconds that ranks have to end by themselves after one failed
_STEP = 0.02  # seconds between looks at the processes
_SIGNALS = 128  # exit statuses above say by which signal a process ended
_MOST = 64  # ranks of one machine


def run_file(args: argparse.Namespace) -> int:
    """Run a Python file on as many ranks as asked for."""
    if args.as_rank is not None:
        return _as_rank(args)
    for name, n in (("-n", args.n), ("--restart-on", args.restart_on)):
        if n is not None and not 1 <= n <= _MOST:
            raise UsageError(f"{name} is {n}, expected 1 to {_MOST} ranks")
    if args.restart < 0:
        raise UsageError(f"--restart is {args.restart}, expected how often, 0 or more")
    mesh_device(args.device, "--device")
    if args.device:
        os.environ["TESSERA_MESH_DEVICE"] = args.device  # for ranks, and what they start
    if args.inspect is not None and (args.n > 1 or args.restart or args.timeline):
        raise UsageError("--inspect shows one process: leave out -n, --restart and --timeline")
    if args.timeline is not None:
        return _with_timeline(args)
    if args.n > 1 or args.restart:
        return _run_again(args)
    start_on(_engine_alone(args.engine))
    placed = override(mesh_device=args.device) if args.device else nullcontext()
    with placed:
        if args.inspect is None:
            status = run_alone(args)
        else:
            with attachable(args.inspect, Path(args.file).name) as address:
                sys.stderr.write(f"{address} shows what {args.file} has compiled until then\n")
                status = run_alone(args)
    if not status:
        engine().close()
    return status


def _engine_alone(name: str | None) -> RankEngine:
    """The engine of a process that a scheduler started, or that is alone."""
    by_mpi = launched_by_mpi() and name != "local"
    made = MpiEngine() if by_mpi or name == "mpi" else RankEngine()
    if name != "nccl":
        return made
    found: RankEngine = nccl_engine(made, _lost_by_mpi if by_mpi else _lost_alone)
    return found


def _lost_by_mpi(text: str) -> None:
    """End every rank of MPI, saying why."""
    sys.stderr.write(f"{text}\n")
    MpiEngine.abort(LOST)


def _lost_alone(text: str) -> None:
    """End this process, saying why."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    os._exit(1)


def _with_timeline(args: argparse.Namespace) -> int:
    """Run on all ranks, and write a page of when each did what, also of a run that failed."""
    if args.n < 2 or args.engine in ("mpi", "nccl") or args.restart:
        raise UsageError(
            "--timeline shows the ranks of one run on this machine: give -n 2 or more, without --engine mpi "
            "or nccl and without --restart; `tessera profile FILE --timeline PATH` shows a single rank"
        )
    where = Path(args.timeline)
    demand_folder(where)
    with tempfile.TemporaryDirectory() as folder:
        args.timeline = folder
        try:
            return _run_again(args)
        finally:
            if list(Path(folder).glob("rank-*.json")):
                write_file(str(where), rank_page(Path(folder), Path(args.file).name))
                sys.stderr.write(f"{where} shows the ranks\n")


class Lost(Failure):
    """Ranks ended since one was killed or did not answer: not by a fault of the program."""


def _run_again(args: argparse.Namespace) -> int:
    """Run on all ranks, and again when one is lost, as often as allowed."""
    for left in range(args.restart, -1, -1):
        os.environ["TESSERA_RESTARTS"] = str(
            args.restart - left
        )  # how many there were, for the program
        try:
            return _run_all(args, _started_by_mpi(args) if args.engine == "mpi" else _started(args))
        except Lost as e:
            if not left:
                raise
            args.n = args.n if args.restart_on is None else args.restart_on
            sys.stderr.write(f"tessera run: {e}; restarting on {args.n} ranks\n")
    raise AssertionError("a run ends or fails")


def _as_rank(args: argparse.Namespace) -> int:
    """Run the file as one rank of several."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a line of a rank in one piece, and at once
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    kind, _, rest = args.as_rank.partition(":")
    if kind == "mpi":
        made: RankEngine = MpiEngine()
    else:
        rank, descriptors, report = rest.split(":")
        made = LocalEngine(int(rank), [int(d) for d in descriptors.split(",")])

    def lost(text: str) -> None:
        """End this rank from any thread; what started the ranks ends the others and says why."""
        if kind == "mpi":
            _lost_by_mpi(text)
        os.write(int(report), f"{text}\n".encode())
        sys.stdout.flush()
        os._exit(LOST)

    _pin(*made.place)
    try:
        start_on(nccl_engine(made, lost) if args.engine == "nccl" else made)
        with rank_recorded(args.timeline) if args.timeline is not None else nullcontext():
            execute(args.file, "__main__", args.rest)
        engine().close()
    except RankError as e:
        if kind == "mpi":
            sys.stderr.write(f"{e}\n")
            MpiEngine.abort(LOST)
        os.write(int(report), f"{e}\n".encode())  # told once, by what started the ranks
        return LOST
    except BaseException:
        if kind == "mpi":
            Path(
                rest
            ).touch()  # a fault of the program: mpiexec's status does not tell it from a signal
        raise
    return 0


def _pin(rank: int, count: int) -> None:
    """Stay on a share of the cores: a rank that another one wakes would be put on that one's core."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if count <= len(cores):
        share = cores[rank * len(cores) // count : (rank + 1) * len(cores) // count]
        os.sched_setaffinity(0, share)


class _Rank:
    """A process, and the files that it writes errors to."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], errors: Sequence[IO[bytes]],
        fault: Path | None = None,
    ):  # fmt: skip
        self.name, self.process, self._errors = name, process, errors
        self._fault = fault  # a file that is there once the program failed on a rank of MPI

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self.process.poll()

    @property
    def errors(self) -> str:
        """What it wrote and was not shown yet."""
        text = b""
        for file in self._errors:
            file.seek(0)
            text += file.read()
        return text.decode(errors="replace")

    @property
    def signal(self) -> int:
        """The signal that ended it, or a rank of MPI; 0 where none did."""
        status = self.status or 0
        if status < 0:
            return -status
        if self._fault is None or self._fault.exists() or status in (1, LOST):
            return 0
        return status - _SIGNALS if status > _SIGNALS else status

    def end(self) -> None:
        """Kill it, also where it is stopped."""
        if self.status is None:
            self.process.kill()
        self.process.wait()
        if self._fault is not None:
            self._fault.unlink(missing_ok=True)


def _command(args: argparse.Namespace, name: str) -> list[str]:
    timeline = [] if args.timeline is None else ["--timeline", args.timeline]
    by = [] if args.engine is None else ["--engine", args.engine]
    command = [sys.executable, "-m", "tessera.cli", "run", "--as-rank", name, *by, *timeline]
    return [*command, args.file, *args.rest]


def _environment(count: int) -> dict[str, str]:
    """Ranks share the cores: each has as many threads as there are for it."""
    cores = len(os.sched_getaffinity(0))
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    env.setdefault("TESSERA_THREADS", str(max(1, cores // count)))
    return env


def _started(args: argparse.Namespace) -> list[_Rank]:
    """Processes with a socket between each two of them."""
    made, ends = [], sockets(args.n)
    env = _environment(args.n)
    for r in range(args.n):
        mine = [s.fileno() if s is not None else -1 for s in ends[r]]
        report, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        name = f"local:{r}:{','.join(map(str, mine))}:{report.fileno()}"
        shared = [d for d in (*mine, report.fileno()) if d >= 0]
        # The first rank shows its errors as they come, the others where they are the cause of a failure.
        process = subprocess.Popen(
            _command(args, name), env=env, pass_fds=shared, stderr=errors if r else None
        )
        made.append(_Rank(f"rank {r}", process, [report, errors]))
    for row in ends:
        for s in row:
            if s is not None:
                s.close()
    return made


def _started_by_mpi(args: argparse.Namespace) -> list[_Rank]:
    fault = Path(tempfile.gettempdir()) / f"tessera-{os.getpid()}-{os.urandom(4).hex()}.fault"
    command = [*mpiexec(args.n), *_command(args, f"mpi:{fault}")]
    return [_Rank("mpiexec", subprocess.Popen(command, env=_environment(args.n)), (), fault)]


def _run_all(args: argparse.Namespace, ranks: Sequence[_Rank]) -> int:
    """Wait for all ranks; the first that fails ends them all."""
    try:
        failed = _wait(ranks)
        if failed is None:
            return 0
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and any(r.status is None for r in ranks):
            time.sleep(_STEP)
        return _tell(ranks, failed)
    finally:
        for r in ranks:
            r.end()


def _wait(ranks: Sequence[_Rank]) -> _Rank | None:
    """The first rank that fails; None when all are done."""
    while True:
        done = [r.status for r in ranks]
        for r, status in zip(ranks, done, strict=True):
            if status:
                return r
        if None not in done:
            return None
        time.sleep(_STEP)


def _tell(ranks: Sequence[_Rank], first: _Rank) -> int:
    """Say once why a run failed: by the rank that failed first of its own accord."""
    own = [r for r in ranks if r.status not in (None, 0, LOST)]
    cause = own[0] if own else first
    status = cause.status
    sys.stderr.write(cause.errors)
    if cause.signal:
        who = "a rank" if cause.name == "mpiexec" else cause.name
        number = cause.signal
        raise Lost(
            f"{who} was killed by signal {number} ({_signal(number)}); the other ranks were ended"
        )
    if status == LOST:
        raise Lost(f"{cause.name} failed; the other ranks were ended")
    others: Any = [r.name for r in ranks if r is not cause]
    if others:
        raise Failure(f"{cause.name} failed; the other ranks were ended")
    return status or 0


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
