"""check_assembly: what can be said of the inline assembly of a kernel, and what cannot be proved."""

from __future__ import annotations

from tessera.checks.findings import Finding, Verdict
from tessera.core.assembly import PREFIX, Contract, found
from tessera.core.processor import machine
from tessera.ir.tile.ir import Kernel, walk
from tessera.lang.kernel.inline_assembly import difference


def check_assembly(kernel: Kernel) -> list[Verdict]:
    """A verdict where a kernel has inline assembly: its texts are tried here, none of them is proved."""
    names = [op.attributes.get("scalar", "") for op in walk(kernel.body)]
    contracts = [found(n) for n in dict.fromkeys(names) if n.startswith(PREFIX)]
    if not contracts:
        return []
    findings = [f for c in contracts for f in _tried(kernel.name, c)]
    said = "; ".join(map(_unproved, contracts))
    return [Verdict("assembly", kernel.name, 0, (said,), tuple(findings), "" if findings else said)]


def _unproved(c: Contract) -> str:
    here = machine()
    tried = f"compared with its reference on {here}" if here in c.texts else f"not tried on {here}"
    others = ", ".join(t for t in c.texts if t != here)
    rest = f", not on {others}" if others and here in c.texts else ""
    return f"{c.name} is not proved: {tried}{rest}; that it touches nothing else is taken on trust"


def _tried(kernel: str, c: Contract) -> list[Finding]:
    if machine() not in c.texts:
        return []
    far, operands = difference(c)
    if far <= c.within:
        return []
    message = (
        f"assembly {c.name}: the text for {machine()} differs from its reference by {far:.3g} of it, "
        f"and within={c.within:.3g} is promised"
    )
    return [Finding(
        "assembly", "error", kernel, message, witness={f"${i + 1}": x for i, x in enumerate(operands)},
        suggestion="mend the text or the reference, or promise less", confirmed=True,
    )]  # fmt: skip
