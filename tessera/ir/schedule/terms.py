"""Stages as text and back: what is computed at each point, as one line.

stage  ::= name[axes]: dtype = term   |   name[axes]: dtype = scalar over axes of term
axes   ::= name<size, ...
term   ::= name[place, ...]           an element of a buffer or of an earlier stage
         | scalar(term, ...)          a scalar op
         | dtype(term)                a cast
         | (size)                     a size or an index as a number
         | number, number:dtype       f32 for a fraction and i64 for a whole number unless said
place  ::= size | @term               @ marks a place that is data, an i64
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tessera.core.dims import Size
from tessera.core.dtype import FORMATS, DType
from tessera.core.errors import ParseError, TesseraError
from tessera.core.parse_sizes import parse_dim
from tessera.core.scalar import SCALARS, Number
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import (
    Apply,
    Axis,
    Cast,
    Literal,
    Position,
    Read,
    Stage,
    Term,
    default_dtype,
    result_dtype,
)

_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)|True|False")
_SPACE = re.compile(r" *")


def parse_stage(text: str, types: Mapping[str, TensorType]) -> Stage:
    """The stage that a line describes, which reads tensors of these types."""
    return _StageCursor(text, types).stage()


class _StageCursor:
    """A cursor over the text of a stage."""

    def __init__(self, text: str, types: Mapping[str, TensorType]):
        self.text, self.types, self.at = text, types, 0

    def fail(self, message: str) -> NoReturn:
        raise ParseError(f"{message} at {self.text[self.at :][:20]!r} in the stage {self.text!r}")

    # Tokens

    def accept(self, mark: str) -> bool:
        found = self.text.startswith(mark, self.at)
        if found:
            end = self.at + len(mark)
            self.at = _SPACE.match(self.text, end).end()  # type: ignore[union-attr]
        return found

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            self.fail(f"expected {mark!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            self.fail(f"expected {what}")
        self.at = found.end()
        return found.group()

    def name(self) -> str:
        return self.match(_NAME, "a name")

    def many(self, item: Callable[[], Any], close: str) -> tuple[Any, ...]:
        """Items with commas between them, up to the closing mark, which is read too."""
        out: list[Any] = []
        while not self.accept(close):
            if out:
                self.expect(",")
            out.append(item())
        return tuple(out)

    def size(self) -> Size:
        """A polynomial, up to the comma, bracket or word that ends it."""
        depth, start = 0, self.at
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0 and (c in ",])" or self.text.startswith(" of ", self.at)):
                break
            depth += (c == "(") - (c == ")")
            self.at += 1
        try:
            return parse_dim(self.text[start : self.at])
        except TesseraError as e:
            self.fail(e.message)

    def dtype(self) -> DType:
        name = self.name()
        if name not in FORMATS:
            self.fail(f"{name!r} is no dtype")
        return FORMATS[name]

    # Stages

    def axis(self) -> Axis:
        name = self.name()
        self.expect("<")
        return Axis(name, self.size())

    def stage(self) -> Stage:
        name = self.name()
        self.expect("[")
        axes = self.many(self.axis, "]")
        self.expect(":")
        dtype = self.dtype()
        self.expect(" = ")
        combine, reduced = self.fold()
        term = self.term()
        if self.at != len(self.text):
            self.fail("expected the end of the stage")
        if term.dtype is not dtype:
            self.fail(f"the term is {term.dtype}, expected {dtype},")
        return Stage(name, axes, reduced, combine, term)

    def fold(self) -> tuple[str | None, tuple[Axis, ...]]:
        found = re.compile(r"(\w+) over ").match(self.text, self.at)
        if found is None:
            return None, ()
        self.at = found.end()
        axes = [self.axis()]
        while self.accept(","):
            axes.append(self.axis())
        self.expect(" of ")
        return found.group(1), tuple(axes)

    # Terms

    def term(self) -> Term:
        if self.accept("("):
            size = self.size()
            self.expect(")")
            return Position(FORMATS["i64"], size)
        if _NUMBER.match(self.text, self.at) and not self.is_call():
            return self.literal()
        name = self.name()
        if self.accept("["):
            return self.read(name)
        self.expect("(")
        operands = self.many(self.term, ")")
        if name in FORMATS:
            if len(operands) != 1:
                self.fail(f"{name} casts one term, got {len(operands)},")
            return Cast(FORMATS[name], operands[0])
        if name not in SCALARS or len(operands) != SCALARS[name].arity:
            self.fail(f"{name!r} is no scalar op of {len(operands)} operands")
        return Apply(result_dtype(name, operands), name, operands)

    def is_call(self) -> bool:
        name = _NAME.match(self.text, self.at)
        return name is not None and self.text[name.end() : name.end() + 1] in ("(", "[")

    def read(self, name: str) -> Read:
        index = self.many(self.place, "]")
        if name not in self.types:
            self.fail(f"{name!r} is no buffer and no earlier stage")
        return Read(self.types[name].dtype, name, index)

    def place(self) -> Size | Term:
        return self.term() if self.accept("@") else self.size()

    def literal(self) -> Literal:
        value = _number(self.match(_NUMBER, "a number"))
        dtype = self.dtype() if self.accept(":") else default_dtype(value)
        return Literal(dtype, value)


def _number(text: str) -> Number:
    if text in ("True", "False"):
        return text == "True"
    whole = text.lstrip("-").isdigit()
    return int(text) if whole else float(text)
