"""The arguments of `tessera bundle` and `tessera registry`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Command = Callable[[Any, str, str, str], argparse.ArgumentParser]


def add_deployment(commands: Any, command: Command) -> None:
    """Add both commands and their actions."""
    _bundle(commands, command)
    _registry(commands, command)


def _bundle(commands: Any, command: Command) -> None:
    whole = command(commands, "bundle", "bundle:inspect_bundle",
                    "Functions as files that other machines, processes and languages run.")  # fmt: skip
    parts = whole.add_subparsers(metavar="ACTION", required=True)
    p = command(parts, "build", "bundle:build_bundle", "Write a bundle of an annotated function.")
    p.add_argument("file", metavar="FILE[:FUNCTION]", help="a Python file, and a function in it")
    p.add_argument("--out", metavar="PATH", help="the bundle, FUNCTION.tess unless given")
    p.add_argument("--target", action="append", metavar="NAME",
                   help="such as cpu:x86-64-v3 or cpu:aarch64, once for each; this processor unless "
                        "given")  # fmt: skip
    p.add_argument(
        "--python-only", action="store_true", help="allow steps that only Python can run"
    )
    p.add_argument("--key", metavar="PATH", help="sign with the 32 secret bytes of this file")
    p.add_argument(
        "--tuned",
        metavar="PATH",
        help="a file of `tessera tune --export`, whose nests kernels have",
    )
    p.add_argument(
        "--threads", type=int, metavar="N", help="threads that loops are chosen for, 4 unless given"
    )
    p = command(
        parts, "inspect", "bundle:inspect_bundle", "Show what a bundle takes, gives and holds."
    )
    p.add_argument("bundle", metavar="PATH", help="a bundle")
    p.add_argument("--json", action="store_true", help="print JSON for a script to read")
    p = command(
        parts, "verify", "bundle:verify_bundle", "Compare every byte of a bundle with its digests."
    )
    p.add_argument("bundle", metavar="PATH", help="a bundle")
    p.add_argument("--trust", action="append", default=[], metavar="KEY",
                   help="a public key in hexadecimal: demand a signature of one of them")  # fmt: skip
    p = command(parts, "run", "bundle:run_bundle", "Run an entry point on arrays from .npy files.")
    p.add_argument("bundle", metavar="PATH", help="a bundle")
    p.add_argument("--entry", metavar="NAME", help="the entry point, if there is more than one")
    p.add_argument("--input", action="append", default=[], metavar="PATH",
                   help="an array in a .npy file for the next input")  # fmt: skip
    p.add_argument("--output", metavar="FOLDER", help="write each output as a .npy file")
    p = command(
        parts,
        "link",
        "bundle:link_bundles",
        "Write one bundle of several that import from each other.",
    )
    p.add_argument(
        "module",
        nargs="+",
        metavar="NAME=PATH",
        help="a bundle, under the name that imports have for it",
    )
    p.add_argument("--out", required=True, metavar="PATH", help="the bundle")
    p.add_argument(
        "--export",
        action="append",
        metavar="MODULE.ENTRY",
        help="an entry point, once for each; all unless given",
    )
    p.add_argument("--target", action="append", metavar="NAME",
                   help="such as cpu:x86-64-v3, once for each; this processor unless given")  # fmt: skip
    p.add_argument(
        "--threads", type=int, metavar="N", help="threads that loops are chosen for, 4 unless given"
    )
    p = command(
        parts,
        "diff",
        "bundle:diff_bundles",
        "Say in which parts two bundles differ; exit with 1 if they do.",
    )
    p.add_argument("bundle", metavar="PATH", help="a bundle")
    p.add_argument("other", metavar="OTHER", help="another")
    p = command(
        parts,
        "runtime",
        "bundle:write_runtime",
        "Write the C runtime, tessera.h and tessera.c, and the headers of C++ to a folder.",
    )
    p.add_argument("folder", metavar="FOLDER", help="where to write them")
    p = command(
        parts, "tsol", "bundle:write_library", "Write a library of ops, which tessera/ops.hpp runs."
    )
    p.add_argument(
        "--out", default="ops.tess", metavar="PATH", help="the bundle, ops.tess unless given"
    )
    p.add_argument("--op", action="append", metavar="CALL",
                   help="a call such as 'softmax(f32[n,m], axis=-1)', once for each; the usual ones "
                   "unless given")  # fmt: skip
    p.add_argument("--target", action="append", metavar="NAME",
                   help="such as cpu:x86-64-v3, once for each; this processor unless given")  # fmt: skip
    p.add_argument("--list", action="store_true", help="print the keys of the calls")


def _registry(commands: Any, command: Command) -> None:
    whole = command(commands, "registry", "registry:list_bundles",
                    "Bundles by name and digest, in a folder or behind an HTTP server.")  # fmt: skip
    parts = whole.add_subparsers(metavar="ACTION", required=True)
    p = command(parts, "put", "registry:put_bundle", "Take a bundle over under a name.")
    _place(p)
    p.add_argument("bundle", metavar="PATH", help="a bundle")
    p.add_argument("--name", required=True, metavar="NAME", help="what it is called there")
    p = command(parts, "get", "registry:get_bundle", "Write a bundle to a file.")
    _place(p)
    p.add_argument("name", metavar="NAME", help="a name, NAME@DIGEST, or the beginning of a digest")
    p.add_argument("--out", metavar="PATH", help="the file, NAME.tess unless given")
    p = command(parts, "list", "registry:list_bundles", "List every bundle.")
    _place(p)
    p.add_argument("--json", action="store_true", help="print JSON for a script to read")
    p = command(parts, "verify", "registry:verify_bundles", "Compare every byte with its digest.")
    _place(p)
    p = command(parts, "sign", "registry:sign_bundle", "Sign a bundle.")
    _place(p)
    p.add_argument("name", metavar="NAME", help="a name, NAME@DIGEST, or the beginning of a digest")
    p.add_argument("--key", required=True, metavar="PATH", help="the 32 secret bytes to sign with")
    p = command(parts, "gc", "registry:collect", "Forget old bundles and remove what none needs.")
    _place(p)
    p.add_argument("--keep", type=int, default=1, metavar="N",
                   help="how many bundles of a name to keep, 1 unless given")  # fmt: skip


def _place(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "registry", metavar="REGISTRY", help="a folder, or the address of one (http://...)"
    )
