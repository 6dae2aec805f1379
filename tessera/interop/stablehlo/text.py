"""The text of a StableHLO module as a tree of ops: MLIR's generic form, and the short one that JAX prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.core.dtype import DType, as_dtype
from tessera.core.types import TensorType
from tessera.interop.stablehlo.writer import StableHloError

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<resources>\{-\#.*?\#-\})
    |(?P<dense>(?:dense|dense_resource)<[^<>]*>)
    |(?P<type>tensor<(?:[^<>]|<[^<>]*>)*>)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<value>%[\w$.\-]+(?:\#\d+)?)
    |(?P<symbol>@(?:[\w$.\-]+|"[^"]*"))
    |(?P<block>\^\w+)
    |(?P<hash>\#[A-Za-z_][\w.]*)
    |(?P<number>-?0[xX][0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<word>[A-Za-z_][\w$.]*)
    |(?P<mark>->|[()\[\]{}<>:,=\-+?*])""",
    re.VERBOSE | re.DOTALL,
)
_DEEPEST = 60  # nesting of regions and attributes


@dataclass(frozen=True)
class Region:
    """Ops in order, with the names of the arguments."""

    arguments: tuple[str, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Op:
    """One op: names of operands and results, attributes, regions and the types of the results."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: dict[str, Any]
    regions: tuple[Region, ...]
    types: tuple[TensorType, ...]
    line: int


@dataclass(frozen=True)
class Function:
    """A function of a module."""

    name: str
    body: Region
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True)
class Resource:
    """A constant that the end of the file holds."""

    name: str
    type: TensorType


@dataclass
class Module:
    """The functions of a module by name, and the bytes of resources."""

    name: str = "module"
    functions: dict[str, Function] = field(default_factory=dict)
    resources: dict[str, bytes] = field(default_factory=dict)


def parse(text: str) -> Module:
    """The module that a text states."""
    return _Parser(text).module()


_ELEMENTS = {
    "i1": "bool", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "ui8": "u8", "ui16": "u16",
    "ui32": "u32", "ui64": "u64", "index": "i64", "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64",
    "complex<f32>": "c64", "complex<f64>": "c128", "f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2",
}  # fmt: skip


def tensor_type(text: str, line: int) -> TensorType:
    """The type that `tensor<4x5xf32>` states."""
    inner = text[len("tensor<") : -1].partition(",")[0].strip()
    sizes = []
    while found := re.match(r"(\d+|\?)x", inner):
        if found[1] == "?":
            raise StableHloError(
                f"stablehlo: line {line} has the type {text}, but sizes must be known; lower the function "
                "for arrays of known sizes"
            )
        sizes.append(int(found[1]))
        inner = inner[found.end() :]
    if inner not in _ELEMENTS:
        raise StableHloError(f"stablehlo: line {line}: elements of {text} have no dtype here")
    return TensorType(as_dtype(_ELEMENTS[inner]), tuple(sizes))


def dense(text: str, t: TensorType, line: int) -> np.ndarray[Any, Any]:
    """The array that `dense<...>` states for a type."""
    body = text[len("dense<") : -1].strip()
    shape = tuple(int(n) for n in t.shape)
    count = int(np.prod(shape, dtype=np.int64))
    if body.startswith('"0x'):
        data = bytes.fromhex(body.strip('"')[2:])
        return _of_bytes(data, t.dtype, shape, line)
    if not body:
        return np.zeros(shape, t.dtype.np)
    words = _words(body)
    if len(words) not in (1, count):
        raise StableHloError(f"stablehlo: line {line}: a constant of {t} has {len(words)} elements")
    flat = np.array([_number(w, t.dtype, line) for w in words])
    flat = flat.astype(t.dtype.np)
    return np.broadcast_to(flat[0], shape) if len(words) == 1 else flat.reshape(shape)


def _words(body: str) -> list[str]:
    if "(" in body:  # complex numbers
        return re.findall(r"\([^()]*\)", body)
    return [w for w in re.split(r"[\[\],\s]+", body) if w]


def _number(w: str, dtype: DType, line: int) -> Any:
    try:
        if w.startswith("("):
            re_, im = (_number(p.strip(), dtype.real, line) for p in w[1:-1].split(","))
            return complex(re_, im)
        if w in ("true", "false"):
            return w == "true"
        if dtype.kind in "iub":
            return _wrapped(int(w, 0), dtype)
        if w[:2] == "0x":
            data = int(w, 16).to_bytes(dtype.bits // 8, "little")
            return np.frombuffer(data, dtype.np)[0].astype(np.float64)
        return float(w)
    except (ValueError, OverflowError):
        raise StableHloError(f"stablehlo: line {line}: '{w}' is no {dtype}") from None


def _wrapped(n: int, dtype: DType) -> Any:
    return np.dtype(dtype.np).type(n) if dtype.kind != "b" else bool(n)


def _of_bytes(data: bytes, dtype: DType, shape: tuple[int, ...], line: int) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        found = (
            bits[:count].astype(bool) if len(data) < count else np.frombuffer(data, np.uint8) != 0
        )
    elif len(data) % np.dtype(dtype.np).itemsize:
        raise StableHloError(f"stablehlo: line {line}: {len(data)} bytes are no numbers of {dtype}")
    else:
        found = np.frombuffer(data, dtype.np)
    if found.size == 1:
        return np.broadcast_to(found[0], shape)
    if found.size != count:
        raise StableHloError(
            f"stablehlo: line {line}: a constant of {count} elements has {found.size}"
        )
    return found.reshape(shape)


def resource(module: Module, r: Resource, line: int) -> np.ndarray[Any, Any]:
    """The array of a resource: four bytes of alignment, then the data."""
    if r.name not in module.resources:
        raise StableHloError(f"stablehlo: line {line}: there is no resource '{r.name}'")
    return _of_bytes(
        module.resources[r.name][4:], r.type.dtype, tuple(map(int, r.type.shape)), line
    )


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, text: str):
        self.tokens: list[tuple[str, str, int]] = []
        self.resources: dict[str, bytes] = {}
        at, line = 0, 1
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise StableHloError(f"stablehlo: line {line}: cannot read {text[at : at + 20]!r}")
            kind = found.lastgroup or ""
            if kind == "resources":
                self._read_resources(found[0])
            elif kind != "space":
                self.tokens.append((kind, found[0], line))
            line += found[0].count("\n")
            at = found.end()
        self.tokens.append(("end", "the end of the text", line))
        self.at = self.depth = 0

    def _read_resources(self, text: str) -> None:
        for name, data in re.findall(r'([\w.$\-]+):\s*"0x([0-9A-Fa-f]*)"', text):
            self.resources[name] = bytes.fromhex(data)

    # Tokens

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def text(self) -> str:
        return self.tokens[self.at][1]

    @property
    def line(self) -> int:
        return self.tokens[self.at][2]

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def given(self, text: str) -> bool:
        if self.text != text or self.kind in ("string", "end"):
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.given(text):
            raise self.wrong(f"'{text}'")

    def wrong(self, wanted: str) -> StableHloError:
        return StableHloError(f"stablehlo: line {self.line} has {self.text!r}, expected {wanted}")

    def of_kind(self, kind: str, what: str) -> str:
        if self.kind != kind:
            raise self.wrong(what)
        return self.take()

    def listed(self, end: str, item: Callable[[], Any]) -> list[Any]:
        """Items with commas between them, up to a mark that is taken."""
        found = []
        while not self.given(end):
            found.append(item())
            if self.text != end:
                self.expect(",")
        return found

    def skip(self, opening: str, closing: str) -> None:
        """Past what a mark opens, to the mark that closes it."""
        self.expect(opening)
        depth = 1
        while depth:
            if self.kind == "end":
                raise self.wrong(f"'{closing}'")
            depth += (self.text == opening) - (self.text == closing)
            self.at += 1

    # Types and attributes

    def type(self) -> TensorType | None:
        """A type; one that is no tensor is None."""
        if self.kind == "type":
            line = self.line
            return tensor_type(self.take(), line)
        self.of_kind("word", "a type")
        if self.text == "<":
            self.skip("<", ">")
        elif self.text.startswith("."):
            self.at += 1
        return None

    def types(self) -> list[TensorType | None]:
        """One type, or several in brackets, each perhaps with attributes."""
        if not self.given("("):
            return [self.type()]
        return self.listed(")", self.type_with_attributes)

    def type_with_attributes(self) -> TensorType | None:
        found = self.type()
        if self.text == "{":
            self.skip("{", "}")
        return found

    def signature(self) -> list[TensorType]:
        """The types of results in what follows a colon."""
        found = self.types()
        while self.given(","):
            found.append(self.type())
        if self.given("->"):
            found = self.types()
            while self.given(","):
                found.append(self.type())
        return [t for t in found if t is not None]

    def attribute(self) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(f"attributes nested less than {_DEEPEST} levels deep")
        found = self._attribute()
        self.depth -= 1
        return found

    def _attribute(self) -> Any:
        known: dict[str, Callable[[], Any]] = {
            "dense": self._dense,
            "number": lambda: self._typed(_plain_number(self.take())),
            "string": lambda: self.take()[1:-1],
            "symbol": lambda: self.take()[1:].strip('"'),
            "type": self.type,
            "hash": self._dialect_attribute,
        }
        marks: dict[str, Callable[[], Any]] = {
            "[": self._list,
            "{": self.dictionary,
            "array": self._array,
            "(": self._function_type,
        }
        if self.kind in known:
            return known[self.kind]()
        if self.text in marks:
            return marks[self.text]()
        if self.kind == "word":
            word = self.take()
            return {"true": True, "false": False, "unit": None}.get(word, word)
        raise self.wrong("an attribute")

    def _dense(self) -> Any:
        line, text = self.line, self.take()
        self.expect(":")
        t = self.type()
        if t is None:
            raise self.wrong("the type of a constant")
        if text.startswith("dense_resource"):
            return Resource(text[len("dense_resource<") : -1], t)
        return dense(text, t, line)

    def _list(self) -> list[Any]:
        self.expect("[")
        return self.listed("]", self.attribute)

    def _function_type(self) -> None:
        self.types()
        self.expect("->")
        self.types()

    def _typed(self, value: Any) -> Any:
        if self.text == ":" and self.tokens[self.at + 1][0] == "word":
            self.at += 2
        return value

    def _array(self) -> list[Any]:
        self.expect("array")
        self.expect("<")
        self.take()
        if self.given(">"):
            return []
        self.expect(":")
        return self.listed(">", self.attribute)

    def _dialect_attribute(self) -> Any:
        """`#stablehlo.gather<a = [0], ...>` as a dictionary, `#stablehlo<precision DEFAULT>` as a word."""
        name = self.take()
        if self.text != "<":
            return name
        if name == "#stablehlo.conv":
            self.take()
            found = self.dimension_numbers()
            self.expect(">")
            return found
        start = self.at
        self.take()
        if self.kind == "word" and self.tokens[self.at + 1][1] == "=":
            entries: dict[str, Any] = {}
            while not self.given(">"):
                key = self.take()
                self.expect("=")
                entries[key] = self.attribute()
                self.given(",")
            return entries
        self.at = start
        words = []
        self.skip("<", ">")
        for kind, text, _ in self.tokens[start + 1 : self.at - 1]:
            if kind == "word":
                words.append(text)
        return words[-1] if words else name

    def dictionary(self) -> dict[str, Any]:
        self.expect("{")
        found = {}
        for key, value in self.listed("}", self._entry):
            found[key] = value
        return found

    def _entry(self) -> tuple[str, Any]:
        if self.kind not in ("word", "string"):
            raise self.wrong("the name of an attribute")
        key = self.take().strip('"')
        return key, self.attribute() if self.given("=") else True

    def dimension_numbers(self) -> tuple[list[Any], list[Any], list[Any]]:
        """`[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`."""
        x = self.attribute()
        self._times()
        k = self.attribute()
        self.expect("->")
        return x, k, self.attribute()

    def _times(self) -> None:
        if self.text != "x":
            raise self.wrong("'x'")
        self.take()

    # Ops

    def module(self) -> Module:
        name, line = "module", self.line
        generic = self.kind == "string"
        if generic and self.text == '"builtin.module"':
            self.take()
            self.expect("(")
            self.expect(")")
            if self.given("<"):
                name = str(self.dictionary().get("sym_name", name))
                self.expect(">")
            self.expect("(")
            ops = self.block("{")
            self.expect(")")
            self._trailing()
        elif self.given("module"):
            name = self.take()[1:] if self.kind == "symbol" else name
            if self.given("attributes"):
                self.dictionary()
            ops = self.block("{")
        elif self.text in ("func.func", '"func.func"'):
            ops = [self.statement()]
        else:
            raise self.wrong("a module: the text of jax.jit(f).lower(...).as_text()")
        functions = {}
        for op in ops:
            if "function" not in op.attributes:
                raise StableHloError(
                    f"stablehlo: line {op.line}: {op.name} stands outside of a function"
                )
            f = op.attributes["function"]
            functions[f.name] = f
        if not functions:
            raise StableHloError(f"stablehlo: line {line}: the module has no function")
        return Module(name, functions, self.resources)

    def _trailing(self) -> None:
        if self.text == "{":
            self.dictionary()
        if self.given(":"):
            self.signature()

    def block(self, opening: str) -> list[Op]:
        """Ops up to the closing brace."""
        self.expect(opening)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(f"regions nested less than {_DEEPEST} levels deep")
        ops = []
        while not self.given("}"):
            if self.kind == "end":
                raise self.wrong("'}'")
            ops.append(self.statement())
        self.depth -= 1
        return ops

    def region(self) -> Region:
        """`{ ^bb0(%a: t): ops }`."""
        self.expect("{")
        arguments: list[str] = []
        if self.kind == "block":
            self.take()
            if self.given("("):
                arguments = self.listed(")", self.argument)
            self.expect(":")
        self.at -= 1  # the block takes an opening mark
        self.tokens[self.at] = ("mark", "{", self.line)
        return Region(tuple(arguments), tuple(self.block("{")))

    def argument(self) -> str:
        name = self.of_kind("value", "an argument")
        self.expect(":")
        self.type_with_attributes()
        return name

    def statement(self) -> Op:
        line = self.line
        results: list[str] = []
        if self.kind == "value":
            results = self._results()
            self.expect("=")
        if self.kind == "string":
            op = self._generic(line)
        elif self.kind == "word":
            op = self._short(line)
        else:
            raise self.wrong("an op")
        name, operands, attributes, regions, types = op
        return Op(
            name, tuple(operands), tuple(results), attributes, tuple(regions), tuple(types), line
        )

    def _results(self) -> list[str]:
        found: list[str] = []
        while True:
            name = self.of_kind("value", "a result")
            if self.given(":"):
                count = int(self.of_kind("number", "the number of results"))
                if not 0 < count < 100_000:
                    raise self.wrong("a number of results")
                found += [name] if count == 1 else [f"{name}#{k}" for k in range(count)]
            else:
                found.append(name)
            if not self.given(","):
                return found

    def _operand(self) -> str:
        return self.of_kind("value", "an operand")

    def _generic(self, line: int) -> Any:
        name = self.take()[1:-1]
        self.expect("(")
        operands = self.listed(")", self._operand)
        attributes: dict[str, Any] = {}
        types = None
        if self.given("<"):
            if name == "func.func":
                attributes, types = self._function_properties()
            else:
                attributes = self.dictionary()
            self.expect(">")
        regions = []
        if self.given("("):
            regions = self.listed(")", self.region)
        if self.text == "{":
            attributes |= self.dictionary()
        self.expect(":")
        found = self.signature()
        if name == "func.func" and types is not None:
            f = Function(str(attributes.get("sym_name")), regions[0], *types)
            return name, (), {"function": f}, (), ()
        return name, operands, attributes, regions, found

    def _function_properties(self) -> tuple[dict[str, Any], Any]:
        self.expect("{")
        attributes, types = {}, None
        while not self.given("}"):
            key = self.take()
            if self.given("="):
                if key == "function_type":
                    ins = self.types()
                    self.expect("->")
                    types = _known(ins), _known(self.types())
                else:
                    attributes[key] = self.attribute()
            self.given(",")
        return attributes, types

    def _short(self, line: int) -> Any:
        name = self.take()
        if name == "func.func":
            return self._function()
        if name in ("return", "func.return"):
            name = "stablehlo.return"
        if name in ("call", "func.call"):
            return self._call("func.call")
        form = _FORMS.get(name)
        if form is not None:
            return form(self, name)
        return self._usual(name)

    def _function(self) -> Any:
        while self.kind == "word":
            self.take()  # public, private
        name = self.of_kind("symbol", "the name of a function")[1:].strip('"')
        self.expect("(")
        names: list[str] = []
        types: list[TensorType | None] = []
        while not self.given(")"):
            names.append(self.of_kind("value", "an argument"))
            self.expect(":")
            types.append(self.type_with_attributes())
            if self.text != ")":
                self.expect(",")
        outputs = self.types() if self.given("->") else []
        if self.given("attributes"):
            self.dictionary()
        body = Region(tuple(names), tuple(self.block("{")))
        f = Function(name, body, _known(types), _known(outputs))
        return "func.func", (), {"function": f}, (), ()

    def _call(self, name: str) -> Any:
        """`call @f(%a, %b) : (t, t) -> t`, with attributes for custom calls."""
        target = self.of_kind("symbol", "the name of a function")[1:].strip('"')
        self.expect("(")
        operands = self.listed(")", self._operand)
        attributes = self.dictionary() if self.text == "{" else {}
        self.expect(":")
        return name, operands, {**attributes, "callee": target}, (), self.signature()

    def _usual(self, name: str) -> Any:
        """Operands, words and `name = value` with commas between them, attributes, types."""
        operands: list[str] = []
        attributes: dict[str, Any] = {}
        words: list[str] = []
        bracketed = self.given("(")
        while self.text not in (":", "{", ")"):
            self._item(operands, attributes, words)
            if not self.given(","):
                break
        if bracketed:
            self.expect(")")
        if words:
            attributes["words"] = words
        if self.text == "{":
            attributes |= self.dictionary()
        if name == "stablehlo.return" and self.text != ":":
            return name, operands, attributes, (), ()
        self.expect(":")
        return name, operands, attributes, (), self.signature()

    def _item(self, operands: list[str], attributes: dict[str, Any], words: list[str]) -> None:
        if self.kind == "value":
            operands.append(self.take())
            if self.text == "[":
                attributes["ranges"] = self._ranges()
        elif self.kind == "word":
            word = self.take()
            if not self.given("="):
                words.append(word)
                return
            value = self.attribute()
            if self.text == "x":  # of two operands
                self.take()
                value = (value, self.attribute())
            attributes[word] = value
        else:
            attributes["value"] = self.attribute()

    def _ranges(self) -> list[list[int]]:
        self.expect("[")
        return self.listed("]", self._range)

    def _range(self) -> list[int]:
        found = [int(self.of_kind("number", "a start"))]
        while self.given(":"):
            found.append(int(self.of_kind("number", "a limit")))
        return found

    def constant(self, name: str) -> Any:
        """`dense<...> : type`, whose type is that of the result."""
        if self.text == "{":
            self.dictionary()
        value = self.attribute()
        t = value.type if isinstance(value, Resource) else self._type_of(value)
        return name, (), {"value": value}, (), (t,)

    def _type_of(self, value: Any) -> TensorType:
        if not isinstance(value, np.ndarray):
            raise self.wrong("a constant")
        return TensorType(as_dtype(value.dtype), value.shape)

    def reduce(self, name: str) -> Any:
        """`(%x init: %a), (%y init: %b) applies stablehlo.add across dimensions = [0] : types`."""
        operands, starts = [], []
        while True:
            self.expect("(")
            operands.append(self._operand())
            self.expect("init")
            self.expect(":")
            starts.append(self._operand())
            self.expect(")")
            if not self.given(","):
                break
        attributes: dict[str, Any] = {}
        if self.given("applies"):
            attributes["applies"] = self.take()
        self.expect("across")
        self.expect("dimensions")
        self.expect("=")
        attributes["dimensions"] = self.attribute()
        if self.text == "{":
            attributes |= self.dictionary()
        self.expect(":")
        types = self.signature()
        regions = []
        if self.given("reducer"):
            left, right = [], []
            while self.given("("):
                a, b = self.listed(")", self.argument)
                left.append(a)
                right.append(b)
            regions = [Region((*left, *right), tuple(self.block("{")))]
        return name, [*operands, *starts], attributes, regions, types

    def loop(self, name: str) -> Any:
        """`(%i = %a, ...) : types cond { ... } do { ... }`."""
        self.expect("(")
        pairs = self.listed(")", self._bound)
        self.expect(":")
        types = self.types()
        while self.given(","):
            types.append(self.type())
        if self.given("attributes"):
            self.dictionary()
        names = tuple(a for a, _ in pairs)
        self.expect("cond")
        test = Region(names, tuple(self.block("{")))
        self.expect("do")
        body = Region(names, tuple(self.block("{")))
        return name, [b for _, b in pairs], {}, (test, body), _known(types)

    def _bound(self) -> tuple[str, str]:
        inner = self._operand()
        self.expect("=")
        return inner, self._operand()

    def convolution(self, name: str) -> Any:
        """`(%x, %k) dim_numbers = ..., window = {...} {attributes} : types`."""
        self.expect("(")
        operands = self.listed(")", self._operand)
        self.expect("dim_numbers")
        self.expect("=")
        attributes: dict[str, Any] = {"dimension_numbers": self.dimension_numbers()}
        self.expect(",")
        self.expect("window")
        self.expect("=")
        attributes |= self.dictionary()
        if self.text == "{":
            attributes |= self.dictionary()
        self.expect(":")
        return name, operands, attributes, (), self.signature()

    def composite(self, name: str) -> Any:
        """`"name" %a, %b {attributes} : types`."""
        called = self.of_kind("string", "the name of a composite")[1:-1]
        _, operands, attributes, _, types = self._usual(name)
        return name, operands, {**attributes, "name": called}, (), types


def _known(types: Any) -> tuple[TensorType, ...]:
    if any(t is None for t in types):
        raise StableHloError("stablehlo: an argument or result is no tensor")
    return tuple(types)


def _plain_number(text: str) -> int | float:
    if text.lower().startswith(("0x", "-0x")):
        return int(text, 16)
    return float(text) if any(c in text for c in ".eE") else int(text)


_FORMS: dict[str, Callable[[_Parser, str], Any]] = {
    "stablehlo.constant": _Parser.constant,
    "stablehlo.reduce": _Parser.reduce,
    "stablehlo.while": _Parser.loop,
    "stablehlo.convolution": _Parser.convolution,
    "stablehlo.custom_call": _Parser._call,
    "stablehlo.composite": _Parser.composite,
}
