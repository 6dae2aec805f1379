"""The text of a StableHLO module, in MLIR's generic form or JAX's short one, as a tree of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.core.types import TensorType
from tessera.interop.stablehlo.tokens import DEEPEST, TokenReader
from tessera.interop.stablehlo.tree import HloFunction, HloModule, HloOp, HloRegion, Resource
from tessera.interop.stablehlo.writer import StableHloError


def parse(text: str) -> HloModule:
    """The module that a text states."""
    return _HloParser(text).module()


class _HloParser(TokenReader):
    """Reads ops, their regions and functions."""

    def module(self) -> HloModule:
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
        return HloModule(name, functions, self.resources)

    def _trailing(self) -> None:
        if self.text == "{":
            self.dictionary()
        if self.given(":"):
            self.signature()

    def block(self, opening: str) -> list[HloOp]:
        """Ops up to the closing brace."""
        self.expect(opening)
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.wrong(f"regions nested less than {DEEPEST} levels deep")
        ops = []
        while not self.given("}"):
            if self.kind == "end":
                raise self.wrong("'}'")
            ops.append(self.statement())
        self.depth -= 1
        return ops

    def region(self) -> HloRegion:
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
        return HloRegion(tuple(arguments), tuple(self.block("{")))

    def argument(self) -> str:
        name = self.of_kind("value", "an argument")
        self.expect(":")
        self.type_with_attributes()
        return name

    def statement(self) -> HloOp:
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
        return HloOp(
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
            f = HloFunction(str(attributes.get("sym_name")), regions[0], *types)
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
        body = HloRegion(tuple(names), tuple(self.block("{")))
        f = HloFunction(name, body, _known(types), _known(outputs))
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
            regions = [HloRegion((*left, *right), tuple(self.block("{")))]
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
        test = HloRegion(names, tuple(self.block("{")))
        self.expect("do")
        body = HloRegion(names, tuple(self.block("{")))
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


_FORMS: dict[str, Callable[[_HloParser, str], Any]] = {
    "stablehlo.constant": _HloParser.constant,
    "stablehlo.reduce": _HloParser.reduce,
    "stablehlo.while": _HloParser.loop,
    "stablehlo.convolution": _HloParser.convolution,
    "stablehlo.custom_call": _HloParser._call,
    "stablehlo.composite": _HloParser.composite,
}
