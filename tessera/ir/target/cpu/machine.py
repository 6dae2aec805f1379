"""LLVM IR to machine code for this CPU, through llvmlite."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any

import llvmlite
import llvmlite.binding as llvm

# An attribute of functions in which the first level of LLVM's simplifications finds what the second does.
SIMPLE = "simple"
_LIBRARIES = count()
_X86 = llvm.get_default_triple().startswith("x86_64")


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # for inline assembly
    return llvm.Target.from_default_triple()


@cache
def _features() -> str:
    features: str = llvm.get_host_cpu_features().flatten()
    return features


@cache
def host_features() -> frozenset[str]:
    """The instruction sets of this CPU, by LLVM's names."""
    return frozenset(f[1:] for f in _features().split(",") if f.startswith("+"))


def target_machine() -> Any:
    """This CPU, with all of its instructions."""
    options = {"codemodel": "jitdefault"}
    if _X86:
        # Constants are read relative to the code, without registers for their addresses.
        options = {"reloc": "pic", "codemodel": "small"}
    return _target().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=3, **options
    )


def llvm_version() -> str:
    """The version of LLVM."""
    return ".".join(map(str, llvm.llvm_version_info))


@cache
def architecture() -> str:
    """What machine code depends on: triple, CPU, its features, and the versions of LLVM."""
    version = f"llvm {llvm_version()} llvmlite {llvmlite.__version__}"
    return f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {_features()} {version}"


def _is_simple(function: Any) -> bool:
    """Whether a function has the attribute, among others that it may have: LLVM gives all of them as one
    text.
    """
    return any(f'"{SIMPLE}"'.encode() in group for group in function.attributes)


def _optimised(text: str, machine: Any) -> Any:
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    functions = [f for f in module.functions if not f.is_declaration]
    options = llvm.create_pipeline_tuning_options(
        speed_level=1 if all(map(_is_simple, functions)) else 2
    )
    # Tiles are unrolled vectors already; to do it again doubles the time of a build for nothing.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    if len(functions) > 1:
        passes.getModulePassManager().run(module, passes)
        return module
    # A kernel is one function, in which nothing can be inlined and no loop is left to vectorise: what
    # simplifies functions gives code of the same speed, without LoopLoadElimination, which takes as
    # long as all else (measured on the 77 kernels of a training step: 1.6 s where it was 3.6 s).
    for f in functions:
        passes.getFunctionPassManager().run(f, passes)
    return module


@cache
def _other_machine(triple: str, cpu: str) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, opt=3, reloc="pic", codemodel="small")


def build(text: str) -> bytes:
    """An object file of LLVM IR, optimised; for this CPU unless the first line names another."""
    first, *rest = text.partition("\n")[0].split()[1:] or [""]
    machine = _other_machine(*rest) if first == "target" else target_machine()
    code: bytes = machine.emit_object(_optimised(text, machine))
    return code


def assembly(text: str, triple: str | None = None, cpu: str = "") -> str:
    """The assembly that LLVM IR becomes, for people to read; here, or on another machine."""
    machine = target_machine() if triple is None else _other_machine(triple, cpu)
    out: str = machine.emit_assembly(_optimised(text, machine))
    return out


@cache
def _linker() -> Any:
    """One linker for all code: a library costs a tenth of an engine of its own."""
    return llvm.create_lljit_compiler(target_machine())


def link(code: bytes, names: tuple[str, ...]) -> tuple[Any, dict[str, int]]:
    """An object file in memory: what holds it, and the addresses of functions."""
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in names:
        library.export_symbol(name)
    linker = _linker()
    made = library.link(linker, f"library{next(_LIBRARIES)}")
    return made, {name: made[name] for name in names}
