"""The text of MLIR from left to right: tokens, types and attributes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tessera.core.types import TensorType
from tessera.interop.stablehlo.tree import Resource, dense, tensor_type
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
DEEPEST = 60  # nesting of regions and attributes


class TokenReader:
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
        if self.depth > DEEPEST:
            raise self.wrong(f"attributes nested less than {DEEPEST} levels deep")
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


def _plain_number(text: str) -> int | float:
    if text.lower().startswith(("0x", "-0x")):
        return int(text, 16)
    return float(text) if any(c in text for c in ".eE") else int(text)
