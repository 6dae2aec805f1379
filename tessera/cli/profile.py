"""tessera profile: run a program, and show where its time and its memory go."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Iterator

import numpy as np

from tessera.cli.programs import arguments_of, execute
from tessera.cli.show import UsageError, check_place, complain, split, write_file
from tessera.cli.subjects import subjects_of
from tessera.inspect.profile import Profile, load, profile

_CALLS = 10  # of a function that is profiled by itself


def profile_file(args: argparse.Namespace) -> int:
    """Show where the time and the memory of a program go, kernel by kernel and line by line."""
    if args.top < 1 or args.limit < 0:
        raise UsageError("--top and --limit cannot be below 1 and 0")
    check_place(args.save, args.trace, args.flame, args.timeline)
    earlier = None if args.compare is None else load(args.compare)
    path, name = split(args.file)
    status = 0
    p: Profile | None = None
    try:
        with _aside(args.json):
            p, status = _called(args, path, name) if name else _ran(args, path)
    except _Interrupted as e:
        _report(args, e.profile, None)
        raise KeyboardInterrupt from None
    return _report(args, p, earlier) or status


class _Interrupted(Exception):
    """Ctrl-C, with the profile until then."""

    def __init__(self, p: Profile):
        super().__init__()
        self.profile = p


@contextlib.contextmanager
def _aside(json_follows: bool) -> Iterator[None]:
    """What the program prints goes to the other stream when a script reads ours."""
    with contextlib.redirect_stdout(sys.stderr) if json_follows else contextlib.nullcontext():
        yield


def _ran(args: argparse.Namespace, path: str) -> tuple[Profile, int]:
    status, interrupted = 0, False
    with profile() as p:
        try:
            execute(path, "__main__", args.rest)
        except SystemExit as e:  # of the program: what it did until then counts
            status = e.code if isinstance(e.code, int) else int(e.code is not None)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise _Interrupted(p)
    return p, status


def _called(args: argparse.Namespace, path: str, name: str) -> tuple[Profile, int]:
    rng = np.random.default_rng(0)
    draw = functools.partial(arguments_of, rng=rng)
    (s,) = subjects_of(path, name, args.size, "profile", draw, args.rest)
    with profile() as p:
        for _ in range(_CALLS):
            s.function(*s.args, **s.kwargs)
    return p, 0


def _report(args: argparse.Namespace, p: Profile | None, earlier: Profile | None) -> int:
    assert p is not None
    if args.save:
        write_file(args.save, json.dumps(p.as_dict()))
    if args.trace:
        write_file(args.trace, json.dumps(p.trace()))
    if args.flame:
        write_file(args.flame, p.flame())
    if args.timeline:
        write_file(args.timeline, p.timeline(title=args.file))
    slower = [] if earlier is None else p.compare(earlier).regressions(args.limit / 100)
    if args.json:
        whole = p.as_dict()
        del whole["spans"]
        whole["regressions"] = [c.name for c in slower]
        print(json.dumps(whole))
    else:
        print(p.table(args.top))
        if earlier is not None:
            print(f"\n{p.compare(earlier)}")
    for c in slower:
        complain(f"{c.name} takes {c.ratio:.2f} times as long as in {args.compare}", 1)
    return 1 if slower else 0
