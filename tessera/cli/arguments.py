"""The commands and their arguments; what runs a command is named and loaded when it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tessera.cli.deployment import add_deployment
from tessera.compile.passes import LEVELS
from tessera.compile.pipeline import PIPELINES

_TAKE_REST = ("profile", "inspect", "compile", "tune", "check", "bench")


def stops() -> tuple[str, ...]:
    """What --stop-at takes: every pass of every target, and the levels."""
    names = dict.fromkeys(p.name for passes in PIPELINES.values() for p in passes)
    return ("trace", *names, *LEVELS)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; what stands after `--` is for the user's program."""
    at = argv.index("--") if "--" in argv and argv[0] in _TAKE_REST else len(argv)
    return parser().parse_args(argv[:at], argparse.Namespace(rest=list(argv[at + 1 :])))


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    made = argparse.ArgumentParser(
        prog="tessera",
        description="Operators, tiles and meshes through one compiler.",
        epilog="Exit status: 0 done, 1 a program or a check failed, 2 wrong usage, 130 interrupted. "
        "Settings come from the environment; `tessera doctor` lists them.",
    )
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    _programs(commands)
    _measuring(commands)
    _cache(commands)
    _models(commands)
    add_deployment(commands, _command)
    p = _command(commands, "doctor", "doctor:doctor",
                 "Show what Tessera finds on this machine, its settings and what is missing.")  # fmt: skip
    _json(p)
    p = _command(commands, "completion", "completion:completion",
                 "Print a script by which a shell completes commands, options and files.")  # fmt: skip
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    _command(commands, "version", "doctor:version", "Print the version.")
    return made


def _command(commands: Any, name: str, run: str, text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=f"tessera.cli.{run}")
    return made


def _json(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="print JSON for a script to read")


def _size(p: argparse.ArgumentParser) -> None:
    p.add_argument("--size", action="append", default=[], metavar="NAME=N",
                   help="the value of a symbolic size, 64 unless given")  # fmt: skip


def _gate(p: argparse.ArgumentParser) -> None:
    p.add_argument("--save", metavar="PATH", help="keep what was measured in a JSON file")
    p.add_argument("--compare", metavar="PATH",
                   help="compare with such a file, and exit with 1 when something is slower")  # fmt: skip
    p.add_argument("--limit", type=float, default=10, metavar="PERCENT",
                   help="how much slower is too slow for --compare, 10 unless given")  # fmt: skip


def _programs(commands: Any) -> None:
    p = _command(commands, "ops", "ops:list_ops",
                 "List every op with its axes, meaning, rules, dtypes and targets.")  # fmt: skip
    p.add_argument("name", nargs="?", metavar="NAME", help="show all there is about one op")
    p.add_argument("--family", metavar="NAME", help="the ops of one family, such as reduction")
    p.add_argument("--find", metavar="TEXT", help="ops whose name or meaning has this text")
    _json(p)
    p = _command(commands, "compile", "compile:compile_file",
                 "Print the IR of a jitted function whose parameters are all annotated.")  # fmt: skip
    p.add_argument("file", metavar="FILE[:FUNCTION]", help="a Python file, and a function in it")
    p.add_argument(
        "--stop-at",
        default="graph",
        choices=stops(),
        metavar="PASS",
        help="the pass to stop at and print, or a level: schedule, tile, target, or graph (the default), "
        "which is "
        "Graph IR after the passes that all targets share; `tessera passes` lists them",
    )
    p.add_argument("--target", metavar="NAME",
                   help="such as cpu or cuda:sm_90; unless given that of the function, or cpu")  # fmt: skip
    _size(p)
    p = _command(commands, "passes", "passes:list_passes",
                 "List every pass of the compiler, level by level, with what it does.")  # fmt: skip
    p.add_argument(
        "--target", metavar="NAME", help="numpy, cpu, cuda or hip; all of them unless given"
    )
    _json(p)
    p = _command(commands, "inspect", "inspect:inspect_file",
                 "Write a page that shows a function at every level, for any browser.")  # fmt: skip
    p.add_argument("--attach", type=int, default=None, metavar="PORT",
                   help="the page of a process that runs as `tessera run --inspect PORT FILE`")  # fmt: skip
    p.add_argument("file", metavar="FILE[:FUNCTION]", nargs="?", default="",
                   help="a Python file, and an annotated function in it, or an ONNX model; otherwise the "
                        "file is run with the arguments after `--`, and what it compiles is "
                        "shown")  # fmt: skip
    p.add_argument("--out", metavar="PATH", help="the page, FUNCTION.html unless given")
    p.add_argument("--compare", metavar="FILE",
                   help="what to compare with: a page that was saved before, or another FILE[:FUNCTION], "
                        "compiled the same way")  # fmt: skip
    p.add_argument("--gpu", action="append", default=[], metavar="NAME",
                   help="show the code for a GPU too, such as sm_90 or gfx942; none needs to be "
                        "here")  # fmt: skip
    p.add_argument("--serve", action="store_true",
                   help="show the page to browsers of this machine, and again when a file "
                        "changes")  # fmt: skip
    p.add_argument("--port", type=int, default=8123, metavar="N",
                   help="of --serve, 8123 unless given; 0 for any that is free")  # fmt: skip
    _size(p)
    p = _command(commands, "check", "check:check_file",
                 "Look for races, accesses out of bounds and other faults in the kernels of a "
                 "file.")  # fmt: skip
    p.add_argument("file", metavar="FILE[:FUNCTION]",
                   help="a Python file, and a kernel or function in it; or a file of Tile IR (.tile, "
                        ".mlir)")  # fmt: skip
    _size(p)
    p.add_argument(
        "--machine",
        metavar="NAME",
        help="for the roofline: h200, h100, a100 or mi300x; this one unless given",
    )
    p.add_argument(
        "--warps", type=int, metavar="N", help="warps of a GPU that an instance has, 4 unless given"
    )
    _json(p)
    p = _command(commands, "run", "ranks:run_file",
                 "Run a Python file, on several ranks with -n, or an ONNX model; errors of Tessera show the "
                 "user's line and no traceback.")  # fmt: skip
    p.add_argument(
        "-n", type=int, default=1, metavar="N", help="how many ranks (processes), 1 unless given"
    )
    p.add_argument("--engine", choices=("local", "mpi", "nccl"), default=None,
                   help="what ranks speak by: local (shared memory, of one machine) unless given, mpi, or "
                        "nccl between NVIDIA GPUs, one a rank")  # fmt: skip
    p.add_argument("--device", default="", metavar="NAME",
                   help="where the shards of meshes lie: cpu unless given, cuda, hip or one GPU, as cuda:0; "
                        "ranks take the GPUs of a machine in turn")  # fmt: skip
    p.add_argument("--restart", type=int, nargs="?", const=3, default=0, metavar="TIMES",
                   help="start the ranks again, at most so often (3), when one is killed or lost; the "
                        "program goes on from its checkpoint")  # fmt: skip
    p.add_argument("--restart-on", type=int, default=None, metavar="N",
                   help="how many ranks there are after a restart, as many as before unless "
                        "given")  # fmt: skip
    p.add_argument("--timeline", metavar="PATH",
                   help="write a page of when each of the ranks of this machine ran programs and exchanged "
                        "data")  # fmt: skip
    p.add_argument("--inspect", type=int, default=None, metavar="PORT",
                   help="let a browser, or `tessera inspect --attach PORT`, see what it has compiled while "
                        "it runs; 0 for any port that is free")  # fmt: skip
    p.add_argument("--as-rank", default=None, help=argparse.SUPPRESS)
    p.add_argument("file", metavar="FILE", help="a Python file, or an ONNX model (--input x.npy)")
    p.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="arguments for it")
    p = _command(commands, "replay", "replay:replay_file",
                 "Repeat a run that ts.record wrote down and name the first op that differs; or run a "
                 "program again that the compiler failed on.")  # fmt: skip
    p.add_argument("file", metavar="FILE",
                   help="a file of ts.record, or of the folder `faults` in the cache")  # fmt: skip
    p.add_argument("--target", metavar="NAME",
                   help="where to repeat a record, such as cpu or cuda; where it ran unless "
                        "given")  # fmt: skip
    _json(p)


def _measuring(commands: Any) -> None:
    p = _command(commands, "profile", "profile:profile_file",
                 "Show where the time and the memory of a program go, kernel by kernel and line by "
                 "line.")  # fmt: skip
    p.add_argument(
        "--top", type=int, default=20, metavar="N", help="rows of each table, 20 unless given"
    )
    p.add_argument("--trace", metavar="PATH", help="write a trace for Perfetto or chrome://tracing")
    p.add_argument("--flame", metavar="PATH", help="write a flame graph, a page for any browser")
    p.add_argument("--timeline", metavar="PATH",
                   help="write a page of what ran when, with a track for each thread, stream and "
                        "device")  # fmt: skip
    _gate(p)
    _size(p)
    _json(p)
    p.add_argument("file", metavar="FILE[:FUNCTION]",
                   help="a Python file, which is run with the arguments after `--`; or an annotated "
                        "function in it, which is called")  # fmt: skip
    p = _command(commands, "dashboard", "dashboard:show_runs",
                 "Show curves of runs from the files of ts.train's loggers, side by side, and as they "
                 "grow.")  # fmt: skip
    p.add_argument("files", nargs="+", metavar="FILE",
                   help="a table of train.CSV (.csv) or lines of train.JSONLines (.jsonl)")  # fmt: skip
    p.add_argument("--out", metavar="PATH", help="write the page to a file instead of serving it")
    p.add_argument("--port", type=int, default=8124, metavar="N",
                   help="8124 unless given; 0 for any that is free")  # fmt: skip
    p = _command(commands, "bench", "bench:bench_file",
                 "Measure how long the annotated functions of a file take, beside what the machine "
                 "allows.")  # fmt: skip
    p.add_argument("file", metavar="FILE[:FUNCTION]",
                   help="a Python file, and a function in it; otherwise all of its jitted "
                        "functions")  # fmt: skip
    p.add_argument(
        "--budget", type=float, default=1000, metavar="MS", help="milliseconds for each function"
    )
    _size(p)
    _gate(p)
    _json(p)
    p = _command(commands, "tune", "tune:tune_file",
                 "Find the fastest nests of a file's kernels on this machine, and keep them.")  # fmt: skip
    p.add_argument("file", nargs="?", metavar="FILE[:FUNCTION]",
                   help="a Python file, and a function in it; otherwise all of its jitted "
                        "functions")  # fmt: skip
    p.add_argument("--budget", type=float, default=5000, metavar="MS",
                   help="milliseconds to spend on all kernels together")  # fmt: skip
    _size(p)
    p.add_argument("--again", action="store_true", help="measure what the store knows already, too")
    _json(p)
    p.add_argument("--export", metavar="PATH", help="write what is tuned to a file afterwards")
    p.add_argument("--import", metavar="PATH", dest="load", help="take over such a file before")


def _models(commands: Any) -> None:
    p = _command(commands, "generate", "models:generate",
                 "Print what a language model writes after a prompt.")  # fmt: skip
    _model(p)
    p.add_argument(
        "prompt", metavar="PROMPT", help="the text to continue; - reads it from the input"
    )
    p.add_argument("--chat", action="store_true", help="ask as in a chat, by the model's template")
    p = _command(commands, "chat", "models:chat", "Talk with a language model, line by line.")
    _model(p)
    p.add_argument("--system", metavar="TEXT", help="what the model is told first")
    p = _command(commands, "serve", "serve:serve_model",
                 "Serve a language model by the OpenAI interface, with a chat page.")  # fmt: skip
    _serve(p)


def _serve(p: argparse.ArgumentParser) -> None:
    _which_model(p)
    p.add_argument(
        "--port",
        type=int,
        default=8000,
        metavar="P",
        help="8000 unless given; 0 for any that is free",
    )
    p.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                   help="127.0.0.1 unless given: this machine only")  # fmt: skip
    p.add_argument("--name", help="of the model for clients, its file's unless given")
    p.add_argument("--api-key", action="append", default=[], metavar="KEY",
                   help="what clients must send; other users of the machine may see it in the list of "
                        "processes")  # fmt: skip
    p.add_argument("--api-key-file", metavar="PATH", help="a file with keys, one in a line")
    p.add_argument("--without-key", action="store_true",
                   help="let anybody ask who reaches an address that is not local")  # fmt: skip
    p.add_argument("--memory", default="1GiB", metavar="SIZE",
                   help="of keys and values, 1GiB unless given")  # fmt: skip
    p.add_argument("--max-batch", type=int, default=64, metavar="N",
                   help="replies that are generated at once, 64 unless given")  # fmt: skip
    p.add_argument("--max-waiting", type=int, default=256, metavar="N",
                   help="replies that may wait, 256 unless given; more are refused with 429")  # fmt: skip
    p.add_argument("--max-body", default="1MiB", metavar="SIZE",
                   help="of a request, 1MiB unless given; more is refused with 413")  # fmt: skip
    p.add_argument("--timeout", type=float, default=600, metavar="SECONDS",
                   help="of a reply, 600 unless given")  # fmt: skip
    p.add_argument("--drain", type=float, default=60, metavar="SECONDS",
                   help="how long replies may go on after SIGTERM, 60 unless given")  # fmt: skip


def _which_model(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", metavar="MODEL",
                   help="a GGUF file, a folder with config.json and safetensors, or an installed package "
                        "that holds one")  # fmt: skip


def _model(p: argparse.ArgumentParser) -> None:
    _which_model(p)
    p.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="512 unless given")
    p.add_argument("--temperature", type=float, metavar="T",
                   help="0 (the default) takes the likeliest token, more draws more freely")  # fmt: skip
    p.add_argument("--top-k", type=int, metavar="N", help="draw among the N likeliest tokens")
    p.add_argument("--top-p", type=float, metavar="P",
                   help="draw among the likeliest tokens that have probability P together")  # fmt: skip
    p.add_argument("--min-p", type=float, metavar="P",
                   help="leave out tokens less likely than P times the likeliest")  # fmt: skip
    p.add_argument("--repetition-penalty", type=float, metavar="X",
                   help="above 1 makes tokens that were there less likely")  # fmt: skip
    p.add_argument("--seed", type=int, metavar="N", help="of what is drawn, 0 unless given")
    p.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text"
    )


def _cache(commands: Any) -> None:
    whole = _command(commands, "cache", "cache:list_cache",
                     "Look after the folder of compiled code and tuned nests.")  # fmt: skip
    parts = whole.add_subparsers(metavar="ACTION", required=True)
    p = _command(
        parts, "list", "cache:list_cache", "Show what is kept, and how much room it takes."
    )
    _json(p)
    p = _command(parts, "export", "cache:export_cache", "Write all that is kept to one file.")
    p.add_argument("path", metavar="PATH", help="the file, a zip archive")
    p = _command(parts, "import", "cache:import_cache",
                 "Take over such a file.  It holds machine code: take only what you trust.")  # fmt: skip
    p.add_argument("path", metavar="PATH", help="a file that `tessera cache export` wrote")
    p = _command(parts, "trim", "cache:trim_cache",
                 "Remove what was not used for longest, down to a size.")  # fmt: skip
    p.add_argument(
        "--to", metavar="SIZE", help="such as 500MB or 2GiB; TESSERA_CACHE_LIMIT unless given"
    )
    p = _command(parts, "clear", "cache:clear_cache",
                 "Remove compiled code and programs, which are built again when they are "
                 "needed.")  # fmt: skip
    p.add_argument("--tuned", action="store_true", help="forget what was tuned, too")
