"""LLVM IR to machine code for this CPU, through llvmlite."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import llvmlite.binding as llvm

KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def target_machine() -> Any:
    """This CPU, with all of its instructions."""
    return _target().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
    )


def architecture() -> str:
    """What machine code depends on: triple, CPU, its features, and LLVM's version."""
    version = ".".join(map(str, llvm.llvm_version_info))
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_default_triple()} {llvm.get_host_cpu_name()} {features} llvm {version}"


def build(text: str) -> bytes:
    """An object file of LLVM IR, optimised."""
    machine = target_machine()
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # Tiles are vectors already; what LLVM would vectorise again is address arithmetic.
    options.loop_vectorization = False
    options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    code: bytes = machine.emit_object(module)
    return code


def assembly(text: str) -> str:
    """The assembly that LLVM IR becomes, for people to read."""
    machine = target_machine()
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    out: str = machine.emit_assembly(module)
    return out


class Loaded:
    """Machine code in memory."""

    def __init__(self, code: bytes, name: str):
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.address: int = self._engine.get_function_address(name)
        self.call = KERNEL(self.address)
