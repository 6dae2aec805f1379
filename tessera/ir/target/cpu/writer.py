"""Writing LLVM IR line by line."""

from __future__ import annotations

from typing import Any

from tessera.core.dims import Dim, Size, SizeFunction, Symbol
from tessera.ir.tile.ir import Kernel, Memory, Tile

# Instructions without effects, whose results depend on their operands alone.
_PURE = frozenset((
    "add", "sub", "mul", "sdiv", "srem", "udiv", "urem", "and", "or", "xor", "shl", "lshr", "ashr",
    "icmp", "fcmp", "select", "getelementptr", "ptrtoint", "bitcast", "trunc", "zext", "sext",
    "fptrunc", "fpext", "fptosi", "fptoui", "sitofp", "uitofp", "fneg", "fadd", "fsub", "fmul",
    "fdiv", "insertelement", "extractelement", "shufflevector", "insertvalue", "extractvalue",
))  # fmt: skip
_CLOSED = "call ptr @llvm.strip.invariant.group.p0"


class LlvmWriter:
    """LLVM IR being written: names, declarations, and the values of sizes."""

    def __init__(self, kernel: Kernel, features: frozenset[str] = frozenset()):
        self.kernel, self.features = kernel, features
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.count = 0
        self.label = "entry"
        self.variables: dict[str, str] = {}
        self.pointers: dict[Memory, str] = {}
        self.tiles: dict[Tile, list[str]] = {}
        self.known: list[dict[Size, str]] = [{}]  # sizes computed in each open block
        self.signed: set[str] = set()  # loop variables that may be below 0
        self.bypasses = False  # whether a store goes past the caches
        self.loop = ""  # the variable of the innermost one
        self.said: dict[str, str] = {}  # the pure instructions of the open block, and their names
        self.simple = False  # whether there is little for LLVM to simplify
        self.hides = False  # whether a mask is hidden by %every
        self.numbers: dict[int, str] = {}  # how far a picked box is moved along each axis

    # Text

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def put(self, text: str) -> str:
        """An instruction with a result; one that the block has already is not written again."""
        pure = text.split(" ", 1)[0] in _PURE or text.startswith(_CLOSED)
        if pure and text in self.said:
            return self.said[text]
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        if "@llvm." in text:
            self.declare(text)
        if pure:
            self.said[text] = name
        return name

    def closed(self, pointer: str) -> str:
        """A pointer into whose sum LLVM does not look, until it is machine code."""
        return self.put(f"{_CLOSED}(ptr {pointer})")

    def declare(self, call: str) -> None:
        head, rest = call.removeprefix("call ").split("@", 1)
        name, arguments = rest.split("(", 1)
        if name in self.declared:
            return
        kinds = [_argument_type(a) for a in _split(arguments.rstrip().removesuffix(")"))]
        self.declared[name] = f"declare {head.strip()} @{name}({', '.join(kinds)})"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(f"  {text}")

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label
        self.said = {}

    # Sizes

    def size(self, x: Size) -> str:
        """An i64 with the value of a size; its terms and the sums of its first terms are kept too."""
        if isinstance(x, int):
            return str(x)
        for scope in self.known:
            if x in scope:
                return scope[x]
        *front, (monomial, factor) = x.terms
        if not front:
            total = self.monomial(monomial, factor)
        else:
            before = self.size(Dim(tuple(front)))
            last = self.size(Dim(((monomial, factor),)) if monomial else factor)
            total = self.put(f"add i64 {before}, {last}")
        self.known[-1][x] = total
        return total

    def monomial(self, monomial: Any, factor: int) -> str:
        term = None if factor == 1 and monomial else str(factor)
        for atom, power in monomial:
            value = self.atom(atom)
            for _ in range(power):
                term = value if term is None else self.put(f"mul nsw i64 {term}, {value}")
        assert term is not None
        return term

    def atom(self, atom: Any) -> str:
        if isinstance(atom, Symbol):
            return self.variables[atom.name]
        assert isinstance(atom, SizeFunction)
        a, b = self.size(atom.left), self.size(atom.right)
        if atom.function in ("max", "min"):
            return self.put(f"call i64 @llvm.s{atom.function}.i64(i64 {a}, i64 {b})")
        rest = self.put(f"srem i64 {a}, {b}")
        below = None if self.natural(atom.left) else self.put(f"icmp slt i64 {rest}, 0")
        if atom.function == "%":
            up = None if below is None else self.put(f"select i1 {below}, i64 {b}, i64 0")
            return rest if up is None else self.put(f"add i64 {rest}, {up}")
        whole = self.put(f"sdiv i64 {a}, {b}")
        down = None if below is None else self.put(f"sext i1 {below} to i64")
        return whole if down is None else self.put(f"add i64 {whole}, {down}")

    def natural(self, x: Size) -> bool:
        """Whether a size is at least 0, as all are but those with a minus or of a signed variable."""
        if isinstance(x, int):
            return x >= 0
        return all(
            factor > 0 and all(self.natural_atom(a) for a, _ in monomial)
            for monomial, factor in x.terms
        )

    def natural_atom(self, atom: Any) -> bool:
        if isinstance(atom, Symbol):
            return atom.name not in self.signed
        sides = self.natural(atom.left), self.natural(atom.right)
        match atom.function:
            case "max":
                return any(sides)
            case "%":
                return sides[1]
            case _:
                return all(sides)

    def splat(self, name: str, kind: str, width: int) -> str:
        """A vector of one scalar."""
        if width == 1:
            return name
        one = self.put(f"insertelement <{width} x {kind}> undef, {kind} {name}, i32 0")
        return self.put(
            f"shufflevector <{width} x {kind}> {one}, <{width} x {kind}> undef, "
            f"<{width} x i32> zeroinitializer"
        )


def _split(arguments: str) -> list[str]:
    """Cut at the commas outside brackets."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(arguments):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            out.append(arguments[start:i])
            start = i + 1
    return [*out, arguments[start:]]


def _argument_type(argument: str) -> str:
    text = argument.strip()
    return text[: text.index(">") + 1] if text.startswith("<") else text.split()[0]
