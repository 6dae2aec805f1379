"""Loading bundles in Python: the machine code of this processor, or the Graph IR compiled anew."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tessera.compile import compile_graph
from tessera.compile.artifact import decode, demand_fit
from tessera.compile.cpu.executable import MachineExecutable
from tessera.core.blame import blames_arguments
from tessera.core.constraints import solve
from tessera.core.device import CPU, Device
from tessera.core.errors import DTypeError, FileError, OperandError, ShapeError, TesseraError
from tessera.core.public import public
from tessera.core.types import TensorType
from tessera.deploy import weights
from tessera.deploy.calls import Taken, tensors_of
from tessera.deploy.container import Container
from tessera.deploy.device_program import DeployedProgram, fitting
from tessera.deploy.entries import rebuilt
from tessera.deploy.link import IMPORTS
from tessera.deploy.manifest import BROKEN, described, read_manifest
from tessera.deploy.modules import LinkModule, inlined
from tessera.deploy.targets import usable
from tessera.ir.graph.ir import data_of, holding, on_host
from tessera.ir.graph.text import parse_graph
from tessera.lang.arguments import argument
from tessera.lang.device import as_device, devices
from tessera.runtime.allocator import blocks
from tessera.runtime.cuda.device import gpu
from tessera.runtime.kernel import CompiledKernel
from tessera.runtime.loaded import Loaded


@blames_arguments
def load(
    path: str | os.PathLike[str],
    verify: bool = True,
    trusted: Sequence[bytes] | None = None,
    device: Any = None,
) -> Bundle:
    """Open a bundle; every byte is compared with its digests unless verify is False.

    With `trusted`, public keys of ed25519, a bundle that none of them signed is an error.  It runs on
    `device`, such as "cuda:0"; without one on this processor, or on a GPU where it has code for that alone.
    """
    if trusted is not None and not verify:
        raise OperandError(
            "bundle: a signature is of digests; with trusted= leave out verify=False"
        )
    c = Container(path, verify)
    if trusted is not None:
        c.check_signature(trusted)
    return Bundle(c, None if device is None else as_device(device))


@public(
    "a bundle",
    {"__getitem__": "bundle.entry(name)", "forward": "bundle(*args)", "keys": "bundle.entries"},
)
class Bundle:
    """An open bundle: entry points by name."""

    def __init__(self, c: Container, device: Device | None = None):
        self.container, self.device = c, device
        self.manifest = read_manifest(c)
        s = c.named.get("weights")
        if s is None:
            raise FileError(f"bundle: {c.path} has no weights section")
        view = memoryview(c.data)[s.offset : s.offset + s.size]
        self._weights = weights.read(str(c.path), view, self.manifest["tensors"])
        self.data = view[8 + int.from_bytes(view[:8], "little") :]  # what plans have offsets in
        self._entries = {n: EntryPoint(self, n) for n in self.manifest["entries"]}

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points."""
        return tuple(self._entries)

    @property
    def digest(self) -> str:
        """SHA-256 of the bundle."""
        return self.container.digest.hex()

    @property
    def weights(self) -> Mapping[str, Any]:
        """The tensors of the file by name, mapped."""
        return self._weights

    def entry(self, name: str) -> EntryPoint:
        """An entry point."""
        found = self._entries.get(name)
        if found is None:
            raise OperandError(
                f"bundle: {self.container.path} has no entry {name!r}; it has {', '.join(self._entries)}"
            )
        return found

    def run(self, *args: Any, **named: Any) -> Any:
        """Run the only entry point."""
        if len(self._entries) != 1:
            raise OperandError(
                f"bundle: {self.container.path} has the entries {', '.join(self._entries)}; say which: "
                ".entry(name)"
            )
        return next(iter(self._entries.values())).run(*args, **named)

    __call__ = run

    def __repr__(self) -> str:
        return f"Bundle({str(self.container.path)!r}, {', '.join(self._entries)})"


class EntryPoint:
    """An entry point of a bundle, which runs like the function that it was made of."""

    def __init__(self, bundle: Bundle, name: str):
        self.bundle, self.name = bundle, name
        row = bundle.manifest["entries"][name]
        self.row = row
        self.inputs = [described(x) for x in row["inputs"]]
        self.outputs = [described(x) for x in row["outputs"]]
        self._taken = Taken(name, [n for n, _ in self.inputs], row.get("fixed", {}))
        self._fitting: list[TensorType] | None = None  # those of the last call
        self._executable: Any = None
        self.target: str | None = None  # what runs it, when it has run
        self.device = CPU  # where it runs, when it has run

    def module(self, name: str) -> LinkModule:
        """What linking needs of it."""
        g = _parsed(self.bundle.container, self.bundle.container.read(f"graph/{self.name}"))
        if len(g.inputs) != len(self.inputs) + len(self.row["weights"]):
            raise FileError(
                f"bundle: {self.bundle.container.path} holds another graph of {self.name}"
            )
        ins, outs = ([n for n, _ in x] for x in (self.inputs, self.outputs))
        held = [(n, self.bundle.weights[n]) for n in self.row["weights"]]
        return LinkModule(
            name, g, ins, outs, held, self.row["returns"], self.row["numerics"], self._taken.fixed
        )

    def _inlined(self, values: Sequence[Any]) -> Any:
        """The results in a function that is being traced, whose graph has this one's nodes then."""
        m = self.module(self.name)
        types = [v.type for v in m.graph.inputs[len(m.inputs) :]]
        held = [holding(t, x) for t, (_, x) in zip(types, m.weights, strict=True)]
        found = iter(inlined(m, values, held))
        return rebuilt(self.row["returns"], lambda: next(found))

    def run(self, *args: Any, **named: Any) -> Any:
        """The results for these arguments, trees as the function took them, by position or name."""
        values = [argument(x) for x in tensors_of(self._taken, args, named)]
        if any(v.storage is None for v in values):
            return self._inlined(values)
        types = [v.type for v in values]
        if types != self._fitting:
            self._check(types)
            self._fitting = types
        if self._executable is None:
            self._executable = self._made()
        outs = self._executable.run([self._array(v) for v in values])
        found = iter(
            holding(TensorType(t.dtype, x.shape), x, self.device)
            for (_, t), x in zip(self.outputs, outs, strict=True)
        )
        return rebuilt(self.row["returns"], lambda: next(found))

    __call__ = run

    def _check(self, types: Sequence[TensorType]) -> None:
        """Refuse tensors that the entry point does not take."""
        if len(types) != len(self.inputs):
            wanted = ", ".join(f"{n}: {t}" for n, t in self.inputs)
            raise OperandError(
                f"{self.name}: got {len(types)} tensors, expected {len(self.inputs)}: {wanted}"
                f"{self._taken.told}"
            )
        for (n, t), given in zip(self.inputs, types, strict=True):
            if given.dtype is not t.dtype:
                raise DTypeError(f"{self.name}: {n} is {given}, expected {t}")
            if given.rank != t.rank:
                raise ShapeError(f"{self.name}: {n} is {given}, expected {t}")
        pairs = zip(self.inputs, types, strict=True)
        solve([(n, t.shape, cast(tuple[int, ...], g.shape)) for (n, t), g in pairs], [])

    def _array(self, v: Any) -> Any:
        """The data of a value: what is on this entry's device stays there."""
        data = data_of(v, self.name)
        if self.device.kind != "cpu" and v.device == self.device:
            return data
        return np.asarray(on_host(data))

    def _made(self) -> Any:
        """The program: from machine code for this processor or device if there is any, else compiled."""
        c, wanted = self.bundle.container, self.bundle.device
        if self.row.get("imports"):
            raise OperandError(
                f"{self.name}: it imports {', '.join(self.row['imports'])} and has no code; link it with "
                "ts.bundle.link"
            )
        captured = [self.bundle.weights[n] for n in self.row["weights"]]
        for name in usable() if wanted is None or wanted.kind == "cpu" else ():
            where = f"{self.name}/cpu:{name}"
            if f"image/{where}" in c.named:
                self.target = f"cpu:{name}"
                return _from_code(c, where, captured, self.row["numerics"])
        for d in self._gpus(wanted):
            target = fitting(c.named, self.name, gpu(d.index, d.kind))
            if target is not None:
                self.target, self.device = target, d
                return DeployedProgram(c, self.name, target, d.kind, d.index, self.bundle.data)
        return self._compiled(captured)

    def _gpus(self, wanted: Device | None) -> list[Device]:
        """The GPUs that may run it: the one that is wanted, or all where the bundle has code for such."""
        if wanted is not None:
            return [wanted] if wanted.kind != "cpu" else []
        if not any(n.startswith(f"launches/{self.name}/") for n in self.bundle.container.named):
            return []
        return [d for d in devices() if d.kind != "cpu"]

    def _compiled(self, captured: Sequence[Any]) -> Any:
        c, wanted = self.bundle.container, self.bundle.device or CPU
        have = ", ".join(self.bundle.manifest["targets"]) or "nothing"
        here = "this processor" if wanted.kind == "cpu" else str(wanted)
        warnings.warn(
            f"bundle: {c.path} has code for {have}, not for {here}; {self.name} is compiled from its Graph "
            "IR",
            RuntimeWarning,
            stacklevel=4,
        )
        self.target, self.device = wanted.kind, wanted
        g = _parsed(c, c.read(f"graph/{self.name}"))
        place = "cpu" if wanted.kind == "cpu" else f"{wanted.kind}:{wanted.index}"
        made = compile_graph(g, place, self.row["numerics"])
        return _Bound(made, captured)


class _Bound:
    """A program, and the arrays of its last inputs."""

    def __init__(self, executable: Any, captured: Sequence[Any]):
        self.executable, self.captured = executable, captured

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        made: list[Any] = self.executable.run([*inputs, *self.captured])
        return made


def _parsed(c: Container, text: str | bytes) -> Any:
    try:
        return parse_graph(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        raise FileError(f"bundle: {c.path} holds Graph IR that is no text") from None
    except TesseraError as e:
        raise FileError(
            f"bundle: {c.path} holds Graph IR that cannot be read: {e.message}"
        ) from None


class _BundleProgram(MachineExecutable):
    """A program whose kernels are those of a bundle; nothing is tuned or built."""

    def _variant_at(self, sizes: Mapping[str, int]) -> None:
        return None


def _from_code(c: Container, where: str, captured: Sequence[Any], numerics: str) -> _BundleProgram:
    """The program of machine code in a bundle."""
    try:
        facts = json.loads(c.read(f"image/{where}"))
        g = _parsed(c, facts["graph"])
        image = decode(json.dumps(facts["image"]).encode(), g)
        demand_fit(image, g)
        code = LoadedCode(c.read(f"code/{where}"), facts["imports"])
        at = [code.address(n) for n in facts["functions"]]
        entries = zip(image.kernels, at, strict=True)
        blocks()
        kernels = [CompiledKernel(e, code=_loaded(code, a)) for e, a in entries]
        return _BundleProgram(g, (), image, numerics, kernels, captured)
    except BROKEN as e:
        if isinstance(e, TesseraError):
            raise
        raise FileError(
            f"bundle: {c.path} holds a program that cannot be read ({e!r:.80})"
        ) from None


def _loaded(code: LoadedCode, address: int) -> Loaded:
    return cast(Loaded, SimpleNamespace(address=address, code=code))


class LoadedCode:
    """An image of machine code in memory: copied, completed, and then executable and not writable."""

    def __init__(self, data: bytes, imports: Mapping[str, int]):
        self.size = len(data)
        self._memory = mmap.mmap(-1, max(len(data), 1))
        self._memory[: len(data)] = data
        for name, at in imports.items():
            if name not in IMPORTS or not 0 <= at <= len(data) - 8:
                raise ValueError(f"import {name}")
            function = getattr(ctypes.CDLL(None), name)
            address = ctypes.cast(function, ctypes.c_void_p).value or 0
            self._memory[at : at + 8] = address.to_bytes(8, "little")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        library = ctypes.CDLL(None, use_errno=True)
        base, size = ctypes.c_void_p(self._base), ctypes.c_size_t(len(self._memory))
        if library.mprotect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "memory cannot be made executable")

    def address(self, offset: int) -> int:
        """The address of a function."""
        if not 0 <= offset < self.size:
            raise ValueError(f"function at {offset}")
        return self._base + offset
