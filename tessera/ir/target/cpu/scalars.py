"""How each scalar op is written in LLVM IR, by kind of dtype.

A row is one instruction a line, and the last gives the result; `name = ...` keeps a value for the
lines below it, and an empty row is the operand itself.  In a row there stand

    {0} {1} ...   the operands                {t}   their type       {v}   its suffix in intrinsics
    {b}           the type of truth values    {i} {f}   the integer, float type of the same width
    {zero} {one} {minus} {half} {inf}         the numbers 0, 1, -1, 1/2 and infinity of {t}
    {least} {width} {last}                    least integer of {t}, number of its bits, one less
    {vi}                                      the suffix of {i} in intrinsics
    {up} {down} {none} {most} {far}           the numbers 1, -1, 0, the largest, infinity's bits in {i}

Ops without a row for a kind are approximations (core/approximate.py) or have no vector form.
Narrow floats are computed in f32, so that the rows for floats serve f32 and f64.
"""

from __future__ import annotations

# Rows whose op looks at narrow floats as they are.
MOVES = frozenset(("where", "nextafter", "pos", "conj", "real"))

_SAME = {"pos": "", "conj": "", "real": ""}
FLOAT = _SAME | {
    "add": "fadd {t} {0}, {1}",
    "sub": "fsub {t} {0}, {1}",
    "mul": "fmul {t} {0}, {1}",
    "div": "fdiv {t} {0}, {1}",
    "neg": "fneg {t} {0}",
    "recip": "fdiv {t} {one}, {0}",
    "square": "fmul {t} {0}, {0}",
    "fma": "call {t} @llvm.fma.{v}({t} {0}, {t} {1}, {t} {2})",
    "abs": "call {t} @llvm.fabs.{v}({t} {0})",
    "sqrt": "call {t} @llvm.sqrt.{v}({t} {0})",
    "rsqrt": """root = call {t} @llvm.sqrt.{v}({t} {0})
        fdiv {t} {one}, {root}""",
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
    "is_inf": """size = call {t} @llvm.fabs.{v}({t} {0})
        fcmp oeq {t} {size}, {inf}""",
    "is_finite": """size = call {t} @llvm.fabs.{v}({t} {0})
        fcmp one {t} {size}, {inf}""",
    "bits": "bitcast {t} {0} to {i}",
    "signbit": """bits = bitcast {t} {0} to {i}
        icmp slt {i} {bits}, {none}""",
    "sign": """above = fcmp ogt {t} {0}, {zero}
        below = fcmp olt {t} {0}, {zero}
        nan = fcmp uno {t} {0}, {0}
        low = select {b} {below}, {t} {minus}, {t} {zero}
        sign = select {b} {above}, {t} {one}, {t} {low}
        select {b} {nan}, {t} {0}, {t} {sign}""",
    "fmod": "frem {t} {0}, {1}",
    "mod": """rest = frem {t} {0}, {1}
        some = fcmp une {t} {rest}, {zero}
        below = fcmp olt {t} {1}, {zero}
        under = fcmp olt {t} {rest}, {zero}
        apart = xor {b} {below}, {under}
        moved = fadd {t} {rest}, {1}
        kept = select {b} {apart}, {t} {moved}, {t} {rest}
        whole = call {t} @llvm.copysign.{v}({t} {zero}, {t} {1})
        select {b} {some}, {t} {kept}, {t} {whole}""",
    # The quotient without its remainder is near a whole number, which rounding then finds; where a
    # side is infinite or the divisor is 0, the floor of the plain quotient is right.
    "floor_div": """rest = frem {t} {0}, {1}
        even = fsub {t} {0}, {rest}
        near = fdiv {t} {even}, {1}
        some = fcmp une {t} {rest}, {zero}
        below = fcmp olt {t} {1}, {zero}
        under = fcmp olt {t} {rest}, {zero}
        apart = xor {b} {below}, {under}
        borrow = and {b} {some}, {apart}
        less = fsub {t} {near}, {one}
        about = select {b} {borrow}, {t} {less}, {t} {near}
        floor = call {t} @llvm.floor.{v}({t} {about})
        gap = fsub {t} {about}, {floor}
        short = fcmp ogt {t} {gap}, {half}
        next = fadd {t} {floor}, {one}
        whole = select {b} {short}, {t} {next}, {t} {floor}
        plain = fdiv {t} {0}, {1}
        signed = call {t} @llvm.copysign.{v}({t} {zero}, {t} {plain})
        any = fcmp une {t} {about}, {zero}
        usual = select {b} {any}, {t} {whole}, {t} {signed}
        first = call {t} @llvm.fabs.{v}({t} {0})
        second = call {t} @llvm.fabs.{v}({t} {1})
        far = fcmp oeq {t} {first}, {inf}
        deep = fcmp oeq {t} {second}, {inf}
        nothing = fcmp oeq {t} {1}, {zero}
        edge = or {b} {far}, {deep}
        odd = or {b} {edge}, {nothing}
        level = call {t} @llvm.floor.{v}({t} {plain})
        select {b} {odd}, {t} {level}, {t} {usual}""",
    # On the bits, which grow with the size of a number.
    "nextafter": """x = bitcast {t} {0} to {i}
        y = bitcast {t} {1} to {i}
        left = and {i} {x}, {most}
        right = and {i} {y}, {most}
        low = icmp slt {i} {x}, {none}
        under = icmp slt {i} {y}, {none}
        minus_x = sub {i} {none}, {left}
        minus_y = sub {i} {none}, {right}
        at = select {b} {low}, {i} {minus_x}, {i} {x}
        to = select {b} {under}, {i} {minus_y}, {i} {y}
        below = icmp slt {i} {at}, {to}
        out = xor {b} {below}, {low}
        step = select {b} {out}, {i} {up}, {i} {down}
        moved = add {i} {x}, {step}
        sign = xor {i} {right}, {y}
        first = or {i} {sign}, {up}
        nothing = icmp eq {i} {left}, {none}
        next = select {b} {nothing}, {i} {first}, {i} {moved}
        same = icmp eq {i} {at}, {to}
        kept = select {b} {same}, {i} {y}, {i} {next}
        size = call {i} @llvm.umax.{vi}({i} {left}, {i} {right})
        nan = icmp ugt {i} {size}, {far}
        final = select {b} {nan}, {i} {most}, {i} {kept}
        bitcast {i} {final} to {t}""",
}
INTEGER = _SAME | {
    "add": "add {t} {0}, {1}",
    "sub": "sub {t} {0}, {1}",
    "mul": "mul {t} {0}, {1}",
    "square": "mul {t} {0}, {0}",
    "neg": "sub {t} {zero}, {0}",
    "and": "and {t} {0}, {1}",
    "or": "or {t} {0}, {1}",
    "xor": "xor {t} {0}, {1}",
    "invert": "xor {t} {0}, {minus}",
    "eq": "icmp eq {t} {0}, {1}",
    "ne": "icmp ne {t} {0}, {1}",
    # Bits that are moved out are gone, also when all of them are.
    "shift_left": """inside = icmp ult {t} {1}, {width}
        by = select {b} {inside}, {t} {1}, {t} {zero}
        moved = shl {t} {0}, {by}
        select {b} {inside}, {t} {moved}, {t} {zero}""",
    "floor": "",
    "ceil": "",
    "trunc": "",
    "round": "",
    "is_nan": "icmp ne {t} {0}, {0}",
    "is_inf": "icmp ne {t} {0}, {0}",
    "is_finite": "icmp eq {t} {0}, {0}",
}
# A divisor of 0 gives 0; the least integer over -1 wraps to itself.
_SAFE = """nothing = icmp eq {t} {1}, {zero}
        turn = icmp eq {t} {1}, {minus}
        edge = icmp eq {t} {0}, {least}
        wraps = and {b} {turn}, {edge}
        odd = or {b} {nothing}, {wraps}
        by = select {b} {odd}, {t} {one}, {t} {1}
        """
SIGNED = INTEGER | {
    "max": "call {t} @llvm.smax.{v}({t} {0}, {t} {1})",
    "min": "call {t} @llvm.smin.{v}({t} {0}, {t} {1})",
    "lt": "icmp slt {t} {0}, {1}",
    "le": "icmp sle {t} {0}, {1}",
    "gt": "icmp sgt {t} {0}, {1}",
    "ge": "icmp sge {t} {0}, {1}",
    "abs": "call {t} @llvm.abs.{v}({t} {0}, i1 false)",
    "sign": """low = call {t} @llvm.smax.{v}({t} {0}, {t} {minus})
        call {t} @llvm.smin.{v}({t} {low}, {t} {one})""",
    "shift_right": """by = call {t} @llvm.umin.{v}({t} {1}, {t} {last})
        ashr {t} {0}, {by}""",
    "fmod": _SAFE + "srem {t} {0}, {by}",
    "mod": _SAFE + """rest = srem {t} {0}, {by}
        moved = add {t} {rest}, {1}
        some = icmp ne {t} {rest}, {zero}
        signs = xor {t} {rest}, {1}
        apart = icmp slt {t} {signs}, {zero}
        move = and {b} {some}, {apart}
        select {b} {move}, {t} {moved}, {t} {rest}""",
    "floor_div": _SAFE + """near = sdiv {t} {0}, {by}
        rest = srem {t} {0}, {by}
        some = icmp ne {t} {rest}, {zero}
        signs = xor {t} {rest}, {1}
        apart = icmp slt {t} {signs}, {zero}
        move = and {b} {some}, {apart}
        less = add {t} {near}, {minus}
        whole = select {b} {move}, {t} {less}, {t} {near}
        select {b} {nothing}, {t} {zero}, {t} {whole}""",
}  # fmt: skip
_NONZERO = """nothing = icmp eq {t} {1}, {zero}
        by = select {b} {nothing}, {t} {one}, {t} {1}
        """
UNSIGNED = INTEGER | {
    "max": "call {t} @llvm.umax.{v}({t} {0}, {t} {1})",
    "min": "call {t} @llvm.umin.{v}({t} {0}, {t} {1})",
    "lt": "icmp ult {t} {0}, {1}",
    "le": "icmp ule {t} {0}, {1}",
    "gt": "icmp ugt {t} {0}, {1}",
    "ge": "icmp uge {t} {0}, {1}",
    "abs": "",
    "from_bits": "bitcast {t} {0} to {f}",
    "sign": "call {t} @llvm.umin.{v}({t} {0}, {t} {one})",
    "shift_right": """inside = icmp ult {t} {1}, {width}
        by = select {b} {inside}, {t} {1}, {t} {zero}
        moved = lshr {t} {0}, {by}
        select {b} {inside}, {t} {moved}, {t} {zero}""",
    "fmod": _NONZERO + "urem {t} {0}, {by}",
    "mod": _NONZERO + "urem {t} {0}, {by}",
    "floor_div": _NONZERO + """whole = udiv {t} {0}, {by}
        select {b} {nothing}, {t} {zero}, {t} {whole}""",
}  # fmt: skip
BOOL = {
    "and": "and {t} {0}, {1}",
    "or": "or {t} {0}, {1}",
    "xor": "xor {t} {0}, {1}",
    "add": "or {t} {0}, {1}",
    "mul": "and {t} {0}, {1}",
    "max": "or {t} {0}, {1}",
    "min": "and {t} {0}, {1}",
    "logical_and": "and {t} {0}, {1}",
    "logical_or": "or {t} {0}, {1}",
    "logical_xor": "xor {t} {0}, {1}",
    "logical_not": "xor {t} {0}, {one}",
    "invert": "xor {t} {0}, {one}",
    "eq": "icmp eq {t} {0}, {1}",
    "ne": "icmp ne {t} {0}, {1}",
    "lt": "icmp ult {t} {0}, {1}",
    "le": "icmp ule {t} {0}, {1}",
    "gt": "icmp ugt {t} {0}, {1}",
    "ge": "icmp uge {t} {0}, {1}",
}
TEMPLATES = {"f": FLOAT, "i": SIGNED, "u": UNSIGNED, "b": BOOL}
