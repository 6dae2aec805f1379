"""The text toolkit that all IR levels share: tokens, types and attributes in MLIR syntax.

Attributes are Python values.  The table says how each one is written:

    str                "text"                        bool             true, false
    int                3 : i64                       None             unit
    float              1.5 : f64; nan, inf and -0.0 by their bits: 0x7FF0000000000000 : f64
    tuple              [1, 2]                        dict             {key = value}
    DType              f32, i1, complex<f32>; with a policy: !tessera.dtype<"bf16 @ accum(bf16)">
    TensorType         tensor<2x3xf32>; symbolic: tensor<?x64xf32, ["2*S + 1", 64]>
    Dim                #tessera.dim<"2*S + 1">       complex          #tessera.complex<1.0, 2.0>
    Constant           dense<[1.0, 2.0]> : tensor<2xf32> (see tessera.core.dense)

As in MLIR itself, an i64 or f64 inside [...] leaves out its type.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, NoReturn, TypeVar

from tessera.core.constant import Constant
from tessera.core.dense import dense_text, read_elements
from tessera.core.dims import Dim, Size
from tessera.core.dtype import FORMATS, DType, as_dtype
from tessera.core.errors import ParseError, TesseraError
from tessera.core.parse_sizes import parse_dim
from tessera.core.reference import Reference
from tessera.core.types import TensorType

T = TypeVar("T")

# Printing -------------------------------------------------------------------------------------

FORMAT_TEXT = {name: d.format.mlir for name, d in FORMATS.items()}


def quote(text: str) -> str:
    """A string literal: printable ASCII as it is, the rest as \\XX for each byte of its UTF-8."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    plain = (b if 32 <= b < 127 and b not in b'"\\' else None for b in text.encode())
    return '"' + "".join(
        chr(p) if p is not None else f"\\{b:02X}" for p, b in zip(plain, text.encode(), strict=True)
    ) + '"'  # fmt: skip


@cache
def type_text(t: TensorType | DType) -> str:
    """A type as MLIR writes it."""
    if isinstance(t, DType):
        return FORMAT_TEXT[t.name] if t is t.base else f"!tessera.dtype<{quote(str(t))}>"
    sizes = "".join(f"{'?' if isinstance(s, Dim) else s}x" for s in t.shape)
    if t.static:
        return f"tensor<{sizes}{type_text(t.dtype)}>"
    names = ", ".join(quote(str(s)) if isinstance(s, Dim) else str(s) for s in t.shape)
    return f"tensor<{sizes}{type_text(t.dtype)}, [{names}]>"


def float_text(x: float) -> str:
    """A float that reads back with the same bits: decimal, or hex where decimal has no way."""
    if not math.isfinite(x) or (x == 0 and math.copysign(1, x) < 0):
        return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
    text = repr(x)
    if "." in text:
        return text
    digits, _, exponent = text.partition("e")
    return f"{digits}.0e{exponent}" if exponent else f"{digits}.0"


def attribute_text(x: Any, nested: bool = False) -> str:
    """An attribute as MLIR writes it; inside [...] the types i64 and f64 are left out."""
    printer = _PRINTERS.get(type(x))
    if printer is None:
        raise TypeError(f"{type(x).__name__} {x!r:.60} has no text")
    return printer(x, nested)


def _int_text(x: int, nested: bool) -> str:
    if -(1 << 63) <= x < 1 << 63:
        return str(x) if nested else f"{x} : i64"
    if 0 <= x < 1 << 64:
        return f"{x} : ui64"
    return f"{x} : i{1 << x.bit_length().bit_length()}"


def _float_text(x: float, nested: bool) -> str:
    text = float_text(x)
    return text if nested and not text.startswith("0x") else f"{text} : f64"


def _dict_text(x: Mapping[str, Any], nested: bool) -> str:
    return f"{{{', '.join(f'{k} = {attribute_text(v)}' for k, v in sorted(x.items()))}}}"


def _constant_text(x: Constant, nested: bool) -> str:
    storage = type_text(TensorType(x.dtype.base, x.array.shape))
    text = f"{dense_text(x.array, x.dtype.base, float_text)} : {storage}"
    if x.dtype is x.dtype.base:
        return text
    return f"#tessera.constant<{quote(str(x.dtype))}, {text}>"


_PRINTERS: dict[type, Callable[[Any, bool], str]] = {
    str: lambda x, nested: quote(x),
    Reference: lambda x, nested: quote(x),
    bool: lambda x, nested: "true" if x else "false",
    int: _int_text,
    float: _float_text,
    complex: lambda x, nested: f"#tessera.complex<{float_text(x.real)}, {float_text(x.imag)}>",
    type(None): lambda x, nested: "unit",
    tuple: lambda x, nested: f"[{', '.join([attribute_text(v, True) for v in x])}]",
    dict: _dict_text,
    DType: lambda x, nested: type_text(x),
    TensorType: lambda x, nested: type_text(x),
    Dim: lambda x, nested: f"#tessera.dim<{quote(str(x))}>",
    Constant: _constant_text,
}


def has_text(x: Any) -> bool:
    """Whether an attribute can be written."""
    if isinstance(x, tuple):
        return all(map(has_text, x))
    return type(x) in _PRINTERS


# Reading --------------------------------------------------------------------------------------


class Token(NamedTuple):
    """A piece of the text: its kind, itself, and where it begins."""

    kind: str  # a group of _TOKEN, a punctuation mark, or "end"
    text: str
    at: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else f"'{self.text}'"


_TOKEN = re.compile(
    r"""(?:\s|//[^\n]*)*(?:
      (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<number>0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?)?)
    | (?P<value>%[\w$.-]+(?:\#[0-9]+)?)
    | (?P<block>\^[\w$.-]+)
    | (?P<hash>\#[A-Za-z_][\w$.]*)
    | (?P<bang>![A-Za-z_][\w$.]*)
    | (?P<word>[A-Za-z_][\w$.]*)
    | (?P<mark>->|[(){}\[\]<>:,=?-])
    )""",
    re.VERBOSE,
)
_SIZES = re.compile(r"\s*((?:(?:[0-9]+|\?)x)*)")
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_ESCAPE = re.compile(rb'\\(?:([0-9A-Fa-f]{2})|(["\\nt]))')
_DTYPES = {text: FORMATS[name] for name, text in FORMAT_TEXT.items()}
_BYTES = re.compile(r"0x(?:[0-9A-Fa-f]{2})*")
_INTEGER = re.compile(r"u?i[0-9]+|si[0-9]+|index")


class Reader:
    """A cursor over a text, with parsers for tokens, types and attributes."""

    def __init__(self, text: str):
        self.text = text
        self._token = self._scan(0)

    def _scan(self, at: int) -> Token:
        m = _TOKEN.match(self.text, at)
        if m is None:
            start = _SPACE.match(self.text, at).end()  # type: ignore[union-attr]
            if start == len(self.text):
                return Token("end", "", start)
            self.fail(f"unexpected character {json.dumps(self.text[start])}", start)
        kind = m.lastgroup
        assert kind is not None
        text = m.group(kind)
        self._end = m.end()
        return Token(text if kind == "mark" else kind, text, m.end() - len(text))

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise ParseError at a position, which is the next token's unless given."""
        start = self._token.at if at is None else at
        line = self.text.count("\n", 0, start) + 1
        column = start - self.text.rfind("\n", 0, start)
        raise ParseError(f"line {line}, column {column}: {message}")

    @property
    def next(self) -> Token:
        """The token that is read next."""
        return self._token

    def take(self) -> Token:
        """Read a token of any kind."""
        token = self._token
        self._token = self._scan(self._end) if token.kind != "end" else token
        return token

    def accept(self, text: str) -> bool:
        """Read this mark or word if it comes next."""
        if self._token.text != text or self._token.kind in ("string", "end"):
            return False
        self.take()
        return True

    def expect(self, text: str, where: str = "") -> Token:
        """Read this mark or word, which must come next."""
        if self._token.text != text or self._token.kind in ("string", "end"):
            self.fail(f"expected '{text}'{where and f' {where}'}, got {self._token}")
        return self.take()

    def kind(self, kind: str, what: str) -> Token:
        """Read a token of this kind, which must come next."""
        if self._token.kind != kind:
            self.fail(f"expected {what}, got {self._token}")
        return self.take()

    def string(self, what: str = "a string") -> str:
        """Read a string literal."""
        token = self.kind("string", what)
        raw = _ESCAPE.sub(_unescape, token.text[1:-1].encode())
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail("the string is not UTF-8", token.at)

    def many(self, item: Callable[[], Any], close: str) -> list[Any]:
        """Read items with commas between them, up to the closing mark, which is read too."""
        out: list[Any] = []
        if self.accept(close):
            return out
        while True:
            out.append(item())
            if not self.accept(","):
                self.expect(close)
                return out

    # Types

    def type(self) -> TensorType | DType:
        """Read a type: of a tensor, or of an element."""
        token = self._token
        if token.text == "tensor":
            return self.tensor_type()
        return self.dtype()

    def dtype(self) -> DType:
        """Read the type of an element."""
        token = self.take()
        if token.kind == "bang":
            return self._policy_type(token)
        text = token.text
        if text == "complex" and token.kind == "word":
            self.expect("<")
            text = f"complex<{self.kind('word', 'the type of the parts').text}>"
            self.expect(">")
        if token.kind != "word" or text not in _DTYPES:
            self.fail(f"expected a type, got {token}", token.at)
        return _DTYPES[text]

    def _policy_type(self, token: Token) -> DType:
        if token.text != "!tessera.dtype":
            self.fail(f"unknown type {token}; Tessera has !tessera.dtype<...>", token.at)
        self.expect("<")
        at, text = self._token.at, self.string("a dtype in quotes")
        self.expect(">")
        return self._checked(lambda: as_dtype(text), at)

    def tensor_type(self) -> TensorType:
        """Read the type of a tensor."""
        start = self.kind("word", "a tensor type")
        if start.text != "tensor":
            self.fail(f"expected a tensor type, got {start}", start.at)
        if self._token.kind != "<":
            self.fail(f"expected '<', got {self._token}")
        m = _SIZES.match(self.text, self._end)
        assert m is not None
        at, sizes = m.start(1), m.group(1).split("x")[:-1]
        self._token = self._scan(m.end())
        dtype = self.dtype()
        shape: tuple[Size, ...] = tuple(-1 if s == "?" else int(s) for s in sizes)
        if self.accept(","):
            shape = self._encoding(shape)
        elif -1 in shape:
            self.fail("a symbolic size '?' needs a name: tensor<?xf32, [\"N\"]>", at)
        self.expect(">")
        return TensorType(dtype, shape)

    def _encoding(self, sizes: tuple[Size, ...]) -> tuple[Size, ...]:
        start = self.expect("[", "before the names of the sizes")
        at = start.at
        named = self.many(self._size, "]")
        if len(named) != len(sizes):
            self.fail(f"{len(named)} sizes are named, expected {len(sizes)}", at)
        for size, name in zip(sizes, named, strict=True):
            if size != (-1 if isinstance(name, Dim) else name):
                written = "?" if size == -1 else size
                self.fail(f"the size {written} is named {name}", at)
        return tuple(named)

    def _size(self) -> Size:
        at = self._token.at
        if self._token.kind == "string":
            text = self.string()
            return self._checked(lambda: parse_dim(text), at)
        n = self.attribute()
        if type(n) is not int:
            self.fail("expected a size", at)
        return n

    def _checked(self, make: Callable[[], T], at: int) -> T:
        try:
            return make()
        except TesseraError as e:
            self.fail(e.message, at)

    # Attributes

    def attribute(self) -> Any:
        """Read an attribute as the Python value that it stands for."""
        token = self._token
        if token.kind == "string":
            return self.string()
        if token.kind in ("number", "-"):
            return self._number()
        if token.kind == "hash":
            return self._dialect_attribute()
        if token.kind == "[":
            self.take()
            return tuple(self.many(self.attribute, "]"))
        if token.kind == "{":
            return self.dictionary()
        if token.kind == "word" and token.text in _WORDS:
            self.take()
            return _WORDS[token.text]
        if token.text == "dense" and token.kind == "word":
            return self._dense()
        if token.kind not in ("word", "bang"):
            self.fail(f"expected an attribute, got {token}")
        return self.type()

    def dictionary(self) -> dict[str, Any]:
        """Read {name = attribute, ...}."""
        self.expect("{")
        out: dict[str, Any] = {}

        def entry() -> None:
            name = self.kind("word", "the name of an attribute")
            if name.text in out:
                self.fail(f"the attribute {name.text} is given twice", name.at)
            if self._token.kind in (",", "}"):  # a name alone has the value unit
                out[name.text] = None
                return
            self.expect("=", f"after the attribute {name.text}")
            out[name.text] = self.attribute()

        self.many(entry, "}")
        return out

    def literal(self) -> int | float:
        """Read a number without a type; hex is an int."""
        sign = -1 if self.accept("-") else 1
        text = self.kind("number", "a number").text
        if text.startswith("0x"):
            return sign * int(text, 16)
        return sign * (float(text) if "." in text else int(text))

    def _number(self) -> int | float:
        start = self._token
        x = self.literal()
        if not self.accept(":"):
            return x
        is_hex = start.text.startswith("0x")
        at, word = self._token.at, self.kind("word", "the type of the number").text
        if word == "f64" and isinstance(x, int) and is_hex:
            if x >> 64:
                self.fail(f"{start.text} has more than 64 bits", start.at)
            return float_of_bits(x)
        if not (word == "f64" if isinstance(x, float) else _INTEGER.fullmatch(word)):
            expected = "f64" if isinstance(x, float) else "an integer type"
            self.fail(f"the number is of type {word}, expected {expected}", at)
        return x

    def _dialect_attribute(self) -> Any:
        token = self.take()
        read = _DIALECT.get(token.text)
        if read is None:
            self.fail(f"unknown attribute {token}; there are {', '.join(_DIALECT)}", token.at)
        self.expect("<")
        value = read(self)
        self.expect(">")
        return value

    def _dim(self) -> Size:
        at, text = self._token.at, self.string("a size in quotes")
        return self._checked(lambda: parse_dim(text), at)

    def _complex(self) -> complex:
        re_ = self._part()
        self.expect(",")
        return complex(re_, self._part())

    def _part(self) -> float:
        is_hex = self._token.text.startswith("0x")
        x = self.literal()
        return float_of_bits(x) if is_hex and isinstance(x, int) else float(x)

    def _policy_constant(self) -> Constant:
        at, text = self._token.at, self.string("a dtype in quotes")
        dtype = self._checked(lambda: as_dtype(text), at)
        self.expect(",")
        stored = self._dense()
        if stored.dtype is not dtype.base:
            self.fail(f"the data is {stored.dtype}, expected {dtype.base} for {dtype}", at)
        return Constant(stored.array, dtype)

    def _dense(self) -> Constant:
        at = self.expect("dense").at
        self.expect("<")
        elements = None if self._token.kind == ">" else self._element()
        self.expect(">")
        self.expect(":", "and the type of the data")
        t = self.tensor_type()
        if not t.static:
            self.fail(f"data of type {t} needs sizes that are numbers", at)
        try:
            return Constant(read_elements(elements, t.dtype, t.shape), t.dtype)  # type: ignore[arg-type]
        except ValueError as e:
            self.fail(f"dense: {e}", at)

    def _element(self) -> Any:
        """A literal (hex stays text), a (re, im) pair, a list of elements, or bytes in quotes."""
        if self.accept("["):
            return self.many(self._element, "]")
        if self.accept("("):
            return tuple(self.many(self._element, ")"))
        if self._token.kind == "string":
            return self._bytes()
        if self._token.kind == "word" and self._token.text in ("true", "false"):
            return self.take().text == "true"
        if self._token.text.startswith("0x"):
            return self.take().text
        return self.literal()

    def _bytes(self) -> bytes:
        at, text = self._token.at, self.string()
        if not _BYTES.fullmatch(text):
            self.fail('expected bytes as "0x" and pairs of hex digits', at)
        return bytes.fromhex(text[2:])


def float_of_bits(bits: int) -> float:
    """The f64 with these bits."""
    x: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return x


def _unescape(m: re.Match[bytes]) -> bytes:
    if m.group(1):
        return bytes([int(m.group(1), 16)])
    return {b"n": b"\n", b"t": b"\t"}.get(m.group(2), m.group(2))


_WORDS = {"true": True, "false": False, "unit": None}
_DIALECT: dict[str, Callable[[Reader], Any]] = {
    "#tessera.dim": Reader._dim,
    "#tessera.complex": Reader._complex,
    "#tessera.constant": Reader._policy_constant,
}
