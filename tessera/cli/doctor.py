"""tessera doctor and version: what this machine has, what works here, and how to get the rest."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import tessera
from tessera.cli.show import console, escape, table_of
from tessera.compile import TARGETS
from tessera.core.errors import FlagError, TesseraError
from tessera.core.flags import flags
from tessera.core.matrix_units import found_units, refusal
from tessera.core.processor import SETS, cores, registers
from tessera.lang.device import devices

# name of the distribution, the extra that brings it ("": Tessera needs it), and what for
PACKAGES = (
    ("numpy", "", "arrays and the reference of every op"),
    ("ml_dtypes", "", "bf16, fp8 and int4 storage"),
    ("scipy", "", "linear algebra, special functions, FFT"),
    ("rich", "", "tables and progress bars"),
    ("llvmlite", "", "LLVM, which writes the machine code of the target cpu"),
    ("triton", "gpu", "the code of GPUs"),
    ("onnx", "onnx", "ONNX files"),
    ("safetensors", "models", "weights of language models"),
    ("tokenizers", "models", "tokenizers of language models"),
    ("jinja2", "models", "chat templates"),
    ("mpi4py", "dist", "ranks on several machines: tessera run --engine mpi"),
    ("matplotlib", "plot", "plots"),
    ("torch", "oracles", "an oracle of make test-oracles"),
    ("jax", "oracles", "an oracle of make test-oracles"),
    ("perfetto", "oracles", "an oracle of make test-oracles"),
)
NOTES = {
    "numpy": "the references of the ops, in NumPy",
    "cpu": "machine code through LLVM",
    "cuda": "Triton, on an NVIDIA GPU",
    "hip": "Triton, on an AMD GPU",
}


def version(args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"tessera {tessera.__version__}")
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Show what Tessera finds on this machine, its settings and what is missing."""
    report = examine()
    if args.json:
        print(json.dumps(report, default=str))
    else:
        _show(report)
    return 1 if report["missing"] else 0


def examine() -> dict[str, Any]:
    """All that `tessera doctor` shows."""
    missing = []
    packages = {}
    for name, extra, purpose in PACKAGES:
        found = _installed(name)
        get = f"pip install 'tessera[{extra}]'" if extra else f"pip install {name}"
        packages[name] = {"version": found, "needed": not extra, "purpose": purpose, "get": get}
        if not extra and found is None:
            missing.append(f"package {name} ({purpose}); install it: {get}")
    report: dict[str, Any] = {
        "system": {
            "tessera": tessera.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processor": _processor(),
            "cores": cores(),
            "memory": _memory(),
        },
        "packages": packages,
        "settings": {}, "cache": {}, "devices": [], "targets": {}, "missing": missing,
    }  # fmt: skip
    try:
        report["settings"], report["devices"] = _settings(), [str(d) for d in devices()]
        report["system"]["matrix units"] = _matrix_units()
    except FlagError as e:
        missing.append(f"a valid setting: {e.message}")
        return report
    report["cache"] = _cache(missing)
    report["targets"] = {n: _target(n) for n in TARGETS}
    return report


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    best = registers()
    name = next(n for n, r in SETS.items() if r == best)
    return f"{platform.machine()}, vectors of {best.bytes} bytes ({name})"


def _matrix_units() -> str:
    """The units for matrices that kernels use, or why there are none."""
    if not found_units():
        return "none"
    if not flags().matrix_units:
        return "switched off by TESSERA_MATRIX_UNITS"
    return refusal() or ", ".join(sorted(found_units()))


def _memory() -> str:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return "unknown"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"


def _settings() -> dict[str, dict[str, Any]]:
    now = flags()
    return {
        f"TESSERA_{f.name.upper()}": {
            "value": getattr(now, f.name),
            "source": "environment" if os.environ.get(f"TESSERA_{f.name.upper()}") else "default",
        }
        for f in fields(now)
    }


def _cache(missing: list[str]) -> dict[str, Any]:
    """The folder of compiled code, and whether it can be written."""
    folder = Path(flags().cache_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as e:
        missing.append(
            f"a writable cache: {folder} cannot be used ({e.strerror or e}), so every process builds its "
            "kernels again; set TESSERA_CACHE_DIR to a writable folder"
        )
        return {"folder": str(folder), "writable": False}
    return {"folder": str(folder), "writable": True}


def _target(name: str) -> dict[str, Any]:
    """Whether a target works: a small program is run on it."""
    if name == "cpu" and importlib.util.find_spec("llvmlite") is None:
        return {"works": False, "note": "no compiler; pip install llvmlite"}
    x = tessera.tensor(np.arange(8, dtype=np.float32))
    try:
        y = tessera.jit(lambda x: x * 2.0 + 1.0, target=name)(x)
    except TesseraError as e:
        return {"works": False, "note": e.message.split(" (")[0]}
    right = bool(np.array_equal(y.numpy(), np.arange(8) * 2 + 1))
    return {"works": right, "note": NOTES[name] if right else "a small program gives wrong numbers"}


def _show(report: dict[str, Any]) -> None:
    screen = console()

    def section(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        table = table_of(*columns)
        for row in rows:
            table.add_row(*(escape(str(x)) for x in row))
        screen.print(f"[bold underline]{title}[/]")
        screen.print(table)
        screen.print()

    section("System", ("what", "value"), list(report["system"].items()))
    section(
        "Packages",
        ("name", "version", "what for"),
        [
            (
                n,
                p["version"] or "not installed",
                p["purpose"] if p["version"] else f"{p['purpose']}: {p['get']}",
            )
            for n, p in report["packages"].items()
        ],
    )
    section(
        "Settings",
        ("variable", "value", "from"),
        [(n, s["value"], s["source"]) for n, s in report["settings"].items()],
    )
    section("Devices", ("name",), [(d,) for d in report["devices"]])
    section(
        "Targets",
        ("name", "works", "note"),
        [(n, "yes" if t["works"] else "no", t["note"]) for n, t in report["targets"].items()],
    )
    for m in report["missing"]:
        screen.print(f"[bold red]missing:[/] {escape(m)}", highlight=False)
    if not report["missing"]:
        screen.print("[bold green]Nothing is missing.[/]")
