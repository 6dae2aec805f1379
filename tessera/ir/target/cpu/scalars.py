"""How each scalar op is written in LLVM IR, by kind of dtype.

A row is a template over operands {0}, {1}... of type {t}; {v} is the intrinsic's type suffix.  Ops
without a row for a kind are approximations (core/approximate.py) or have no vector form.
"""

from __future__ import annotations

FLOAT = {
    "add": "fadd {t} {0}, {1}",
    "sub": "fsub {t} {0}, {1}",
    "mul": "fmul {t} {0}, {1}",
    "div": "fdiv {t} {0}, {1}",
    "neg": "fneg {t} {0}",
    "square": "fmul {t} {0}, {0}",
    "fma": "call {t} @llvm.fma.{v}({t} {0}, {t} {1}, {t} {2})",
    "abs": "call {t} @llvm.fabs.{v}({t} {0})",
    "sqrt": "call {t} @llvm.sqrt.{v}({t} {0})",
    "floor": "call {t} @llvm.floor.{v}({t} {0})",
    "ceil": "call {t} @llvm.ceil.{v}({t} {0})",
    "trunc": "call {t} @llvm.trunc.{v}({t} {0})",
    "round": "call {t} @llvm.roundeven.{v}({t} {0})",
    "copysign": "call {t} @llvm.copysign.{v}({t} {0}, {t} {1})",
    "max": "call {t} @llvm.maximum.{v}({t} {0}, {t} {1})",
    "min": "call {t} @llvm.minimum.{v}({t} {0}, {t} {1})",
    "eq": "fcmp oeq {t} {0}, {1}",
    "ne": "fcmp une {t} {0}, {1}",
    "lt": "fcmp olt {t} {0}, {1}",
    "le": "fcmp ole {t} {0}, {1}",
    "gt": "fcmp ogt {t} {0}, {1}",
    "ge": "fcmp oge {t} {0}, {1}",
    "is_nan": "fcmp uno {t} {0}, {0}",
}
INTEGER = {
    "add": "add {t} {0}, {1}",
    "sub": "sub {t} {0}, {1}",
    "mul": "mul {t} {0}, {1}",
    "square": "mul {t} {0}, {0}",
    "and": "and {t} {0}, {1}",
    "or": "or {t} {0}, {1}",
    "xor": "xor {t} {0}, {1}",
    "eq": "icmp eq {t} {0}, {1}",
    "ne": "icmp ne {t} {0}, {1}",
}
SIGNED = INTEGER | {
    "max": "call {t} @llvm.smax.{v}({t} {0}, {t} {1})",
    "min": "call {t} @llvm.smin.{v}({t} {0}, {t} {1})",
    "lt": "icmp slt {t} {0}, {1}",
    "le": "icmp sle {t} {0}, {1}",
    "gt": "icmp sgt {t} {0}, {1}",
    "ge": "icmp sge {t} {0}, {1}",
}
UNSIGNED = INTEGER | {
    "max": "call {t} @llvm.umax.{v}({t} {0}, {t} {1})",
    "min": "call {t} @llvm.umin.{v}({t} {0}, {t} {1})",
    "lt": "icmp ult {t} {0}, {1}",
    "le": "icmp ule {t} {0}, {1}",
    "gt": "icmp ugt {t} {0}, {1}",
    "ge": "icmp uge {t} {0}, {1}",
}
BOOL = {
    "and": "and {t} {0}, {1}",
    "or": "or {t} {0}, {1}",
    "xor": "xor {t} {0}, {1}",
    "logical_and": "and {t} {0}, {1}",
    "logical_or": "or {t} {0}, {1}",
    "logical_xor": "xor {t} {0}, {1}",
    "eq": "icmp eq {t} {0}, {1}",
    "ne": "icmp ne {t} {0}, {1}",
}
TEMPLATES = {"f": FLOAT, "i": SIGNED, "u": UNSIGNED, "b": BOOL}
