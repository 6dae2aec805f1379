"""JSON schemas as grammars: every text of the grammar is JSON that the schema admits.

A grammar may be narrower than its schema: keys come in the order of `properties`, nothing but one space
after a colon or a comma is blank, numbers are of bounded length, and objects with properties have no
others.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tessera.core.errors import OperandError
from tessera.models.grammar import (
    EMPTY,
    NEVER,
    Alt,
    Bytes,
    NodeRef,
    Repeat,
    Seq,
    literal,
    one,
    optional,
    settle,
    shortest,
)
from tessera.models.grammar import start as started
from tessera.models.integers import integers

NOTES = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "strict",
    ]
)
KEYS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set(),
    "null": set(),
}
DEEPEST = 64  # of schemas in schemas
FREE_LEVELS = 8  # of values that a schema says nothing of
MOST_DIGITS = 15  # of an integer without bounds: exact as a double of a reader, too


def _bytes(low: int, high: int, without: str = "") -> Bytes:
    return Bytes(frozenset(range(low, high + 1)) - frozenset(without.encode()))


DIGIT, HEX = _bytes(0x30, 0x39), Bytes(frozenset(b"0123456789abcdefABCDEF"))
_TAIL = _bytes(0x80, 0xBF)
PLAIN = _bytes(0x20, 0x7E, '"\\')
# One character of a string: UTF-8 without surrogates and overlong forms, or an escape.
CHARACTER = Alt((
    PLAIN,
    Seq((_bytes(0xC2, 0xDF), _TAIL)),
    Seq((one(0xE0), _bytes(0xA0, 0xBF), _TAIL)),
    Seq((Bytes(frozenset([*range(0xE1, 0xED), 0xEE, 0xEF])), _TAIL, _TAIL)),
    Seq((one(0xED), _bytes(0x80, 0x9F), _TAIL)),
    Seq((one(0xF0), _bytes(0x90, 0xBF), _TAIL, _TAIL)),
    Seq((_bytes(0xF1, 0xF3), _TAIL, _TAIL, _TAIL)),
    Seq((one(0xF4), _bytes(0x80, 0x8F), _TAIL, _TAIL)),
    Seq((one(ord("\\")), Bytes(frozenset(b'"\\/bfnrt')))),
    Seq((literal("\\u"), Alt((Bytes(frozenset(b"0123456789abcefABCEF")),)), HEX, HEX, HEX)),
))  # fmt: skip
QUOTE, SPACE = one(ord('"')), optional(one(ord(" ")))
STRING_BODY = Repeat(CHARACTER)
# What may be on top of the stacks of a reader inside a string.
INSIDE = frozenset(
    [
        PLAIN,
        QUOTE,
        *(o.parts[0] for o in CHARACTER.options[1:-1]),
        CHARACTER.options[-1].parts[0].parts[0],
    ]
)
STRING = Seq((QUOTE, STRING_BODY, QUOTE))
COMMA, COLON = Seq((one(ord(",")), SPACE)), Seq((one(ord(":")), SPACE))
FRACTION = Seq((one(ord(".")), Repeat(DIGIT, 1, MOST_DIGITS)))
EXPONENT = Seq((Bytes(frozenset(b"eE")), optional(Bytes(frozenset(b"+-"))), Repeat(DIGIT, 1, 2)))
INTEGER = Seq(
    (
        optional(one(ord("-"))),
        Alt((one(0x30), Seq((_bytes(0x31, 0x39), Repeat(DIGIT, 0, MOST_DIGITS - 1))))),
    )
)
NUMBER = Seq((INTEGER, optional(FRACTION), optional(EXPONENT)))
_TWO, _FOUR = Seq((DIGIT, DIGIT)), Seq((DIGIT, DIGIT, DIGIT, DIGIT))


def _padded(low: int, high: int) -> Any:
    return Alt([literal(f"{i:02d}") for i in range(low, high + 1)])


_DATE = Seq((_FOUR, literal("-"), _padded(1, 12), literal("-"), _padded(1, 28)))
_TIME = Seq(
    (_padded(0, 23), literal(":"), _padded(0, 59), literal(":"), _padded(0, 59), literal("Z"))
)
_HEXES = [Seq([HEX] * n) for n in (8, 4, 4, 4, 12)]
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": Seq((_DATE, literal("T"), _TIME)),
    "uuid": Seq([part for h in _HEXES for part in (h, literal("-"))][:-1]),
    "ipv4": Seq([part for _ in range(4) for part in (integers(0, 255), literal("."))][:-1]),
}


def list_of(open_: str, item: Any, more: Any, close: str) -> Any:
    """Items with commas between brackets: none, or one and then more of them."""
    some = Seq((item, Repeat(Seq((COMMA, more)))))
    return Seq((literal(open_), optional(some), literal(close)))


def _any_value() -> Any:
    """Any value, of lists and objects inside each other a few levels deep."""
    words = (literal("true"), literal("false"), literal("null"))
    value: Any = Alt((STRING, NUMBER, *words))
    for _ in range(FREE_LEVELS):
        pair = Seq((STRING, COLON, value))
        lists = (list_of("[", value, value, "]"), list_of("{", pair, pair, "}"))
        value = Alt((STRING, NUMBER, *words, *lists))
    return value


class Grammar:
    """The grammar of a schema."""

    def __init__(self, schema: Any, ascii_only: bool = False):
        self._root, self._ascii = schema, ascii_only
        self._refs: list[NodeRef] = []
        self._named: dict[str, NodeRef] = {}
        self._any = _any_value()
        self.node = self._of(schema, 0)
        settle(self._refs)
        if shortest(self.node) >= NEVER:
            raise OperandError("schema: nothing can satisfy it; a recursion has no end")
        self.start = started(self.node)

    def _json(self, v: Any) -> Any:
        """A value as it is; its other characters as escapes where the vocabulary lacks their bytes."""
        text = json.dumps(v, ensure_ascii=self._ascii, separators=(",", ":"))
        halves = any("\ud800" <= c <= "\udfff" for c in text)  # of characters, which UTF-8 has not
        return literal(json.dumps(v, separators=(",", ":")) if halves else text)

    def _const(self, v: Any, depth: int) -> Any:
        return self._json(v)

    def _enum(self, vs: Any, depth: int) -> Any:
        if not isinstance(vs, list) or not vs:
            raise OperandError("schema: enum is expected to be a list of at least one value")
        return Alt([self._json(v) for v in vs])

    def _of(self, s: Any, depth: int) -> Any:
        if depth > DEEPEST:
            raise OperandError(f"schema: it is more than {DEEPEST} levels deep")
        if s is True or s == {}:
            return self._any
        if not isinstance(s, dict):
            raise OperandError(f"schema: got {s!r:.60}, expected an object")
        for key, make in (
            ("$ref", self._reference),
            ("const", self._const),
            ("enum", self._enum),
            ("anyOf", self._any_of),
            ("allOf", self._all_of),
        ):
            if key in s:
                _known(s, {key, "type"} if key in ("const", "enum") else {key})
                return make(_of_kind(s, key), depth)
        many = _kinds(s)
        _known(s, {"type"}.union(*(KEYS[k] for k in many)))
        made = [getattr(self, f"_{k}")(s, depth) for k in many]
        return made[0] if len(made) == 1 else Alt(made)

    def _reference(self, name: Any, depth: int) -> Any:
        if not isinstance(name, str) or not name.startswith("#"):
            raise OperandError(
                f"schema: $ref is {name!r:.60}, expected a path such as #/$defs/name"
            )
        if name not in self._named:
            ref = self._named[name] = NodeRef()
            self._refs.append(ref)
            ref.to = self._of(self._found(name), depth + 1)
        return self._named[name]

    def _found(self, name: str) -> Any:
        at = self._root
        for part in name.lstrip("#").strip("/").split("/") if name != "#" else ():
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(at, dict) or key not in at:
                raise OperandError(f"schema: $ref {name!r:.60} is not in the schema")
            at = at[key]
        return at

    def _any_of(self, options: Any, depth: int) -> Any:
        if not isinstance(options, list) or not options:
            raise OperandError("schema: anyOf is expected to be a list of schemas")
        return Alt([self._of(o, depth + 1) for o in options])

    def _all_of(self, parts: Any, depth: int) -> Any:
        if not isinstance(parts, list) or len(parts) != 1:
            raise OperandError("schema: allOf is taken with one schema only")
        return self._of(parts[0], depth + 1)

    def _object(self, s: dict[str, Any], depth: int) -> Any:
        given, more = s.get("properties", {}), s.get("additionalProperties", True)
        required = s.get("required", [])
        named = isinstance(required, list) and all(isinstance(n, str) for n in required)
        if not isinstance(given, dict) or not named:
            raise OperandError(
                "schema: properties is expected to be an object, and required a list of names"
            )
        others = [n for n in required if n not in given]
        if others and more is False:
            raise OperandError(f"schema: {others[0]!r:.60} is required and not among properties")
        properties = given | dict.fromkeys(others, more)
        if not properties:
            if more is False:
                return literal("{}")
            pair = Seq((STRING, COLON, self._of(more, depth + 1)))
            return list_of("{", pair, pair, "}")
        pairs = [
            (Seq((self._json(str(n)), COLON, self._of(p, depth + 1))), n in required)
            for n, p in properties.items()
        ]  # fmt: skip
        return Seq((literal("{"), _in_order(pairs), literal("}")))

    def _array(self, s: dict[str, Any], depth: int) -> Any:
        first = s.get("prefixItems", [])
        if not isinstance(first, list):
            raise OperandError("schema: prefixItems is expected to be a list of schemas")
        least, most = _count(s, "minItems", 0), _count(s, "maxItems", None)
        more = s.get("items", True)
        if more is False:
            most = len(first) if most is None else min(most, len(first))
        if most is not None and least > most:
            raise OperandError(f"schema: an array has {least} items or more, and {most} at most")
        item = self._of(True if more is False else more, depth + 1)
        firsts = [self._of(f, depth + 1) for f in first[:most]]
        rest: Any = EMPTY
        if most is None or most > len(firsts):
            left = None if most is None else most - len(firsts)
            rest = self._rest(item, max(least - len(firsts), 0), left, not firsts)
        for i in range(len(firsts) - 1, -1, -1):
            here = Seq((firsts[i] if i == 0 else Seq((COMMA, firsts[i])), rest))
            rest = here if i < least else optional(here)
        return Seq((literal("["), rest, literal("]")))

    def _rest(self, item: Any, least: int, most: int | None, first: bool) -> Any:
        """Items after others, or the first ones."""
        following = Seq((COMMA, item))
        if not first:
            return Repeat(following, least, most)
        some = Seq((item, Repeat(following, max(least - 1, 0), None if most is None else most - 1)))
        return some if least else optional(some)

    def _string(self, s: dict[str, Any], depth: int) -> Any:
        least, most = _count(s, "minLength", 0), _count(s, "maxLength", None)
        if "format" in s:
            known = isinstance(s["format"], str) and s["format"] in FORMATS
            if not known or least or most is not None:
                raise OperandError(
                    f"schema: format is {s['format']!r:.60}, expected one of "
                    f"{', '.join(FORMATS)}, without lengths"
                )
            return Seq((QUOTE, FORMATS[s["format"]], QUOTE))
        if most is not None and least > most:
            raise OperandError(f"schema: minLength is {least} and maxLength {most}")
        body = STRING_BODY if not least and most is None else Repeat(CHARACTER, least, most)
        return Seq((QUOTE, body, QUOTE))

    def _integer(self, s: dict[str, Any], depth: int) -> Any:
        low, high = _bounds(s)
        return INTEGER if low is None and high is None else integers(low, high, MOST_DIGITS)

    def _number(self, s: dict[str, Any], depth: int) -> Any:
        low, high = _bounds(s)
        if low is None and high is None:
            return NUMBER
        inside = [integers(low, high, MOST_DIGITS)] if _some(low, high) else []
        floor = 0 if low is None else max(low, 0)
        if high is None or floor < high:
            inside.append(
                Seq((integers(floor, None if high is None else high - 1, MOST_DIGITS), FRACTION))
            )
        ceiling = 0 if high is None else min(high, 0)
        if low is None or low < ceiling:
            size = integers(-ceiling, None if low is None else -low - 1, MOST_DIGITS)
            inside.append(Seq((literal("-"), size, FRACTION)))
        if not inside:
            raise OperandError(
                "schema: bounds of a number with no integer between them are not taken"
            )
        return Alt(inside)

    def _boolean(self, s: dict[str, Any], depth: int) -> Any:
        return Alt((literal("true"), literal("false")))

    def _null(self, s: dict[str, Any], depth: int) -> Any:
        return literal("null")


def _known(s: dict[str, Any], keys: set[str]) -> None:
    unknown = sorted(s.keys() - keys - NOTES)
    if unknown:
        raise OperandError(
            f"schema: {unknown[0]!r:.60} is not taken here; expected {', '.join(sorted(keys))}"
        )


def _kinds(s: dict[str, Any]) -> list[str]:
    """The types that a schema allows."""
    kinds = s.get("type", _implied(s))
    many = kinds if isinstance(kinds, list) else [kinds]
    if not many or not all(isinstance(k, str) and k in KEYS for k in many):
        raise OperandError(f"schema: type is {kinds!r:.60}, expected among {', '.join(KEYS)}")
    return many


def _of_kind(s: dict[str, Any], key: str) -> Any:
    """What is given by `key`; of the values that const or enum list, those of the types beside it."""
    given = s[key]
    if "type" not in s or key not in ("const", "enum"):
        return given
    kinds = _kinds(s)
    values = given if key == "enum" and isinstance(given, list) else [given]
    left = [v for v in values if any(_is(v, k) for k in kinds)]
    if not left:
        raise OperandError(f"schema: no value of {key} has the type {' or '.join(kinds)}")
    return left if key == "enum" else given


def _is(v: Any, kind: str) -> bool:
    """Whether a value has a type; a float without a fraction is an integer."""
    if isinstance(v, bool) or v is None:
        return kind == ("null" if v is None else "boolean")
    if kind == "integer":
        return isinstance(v, int) or (isinstance(v, float) and v.is_integer())
    found = {"number": int | float, "string": str, "array": list, "object": dict}.get(kind)
    return found is not None and isinstance(v, found)


def _implied(s: dict[str, Any]) -> Any:
    """The type that keywords speak of where none is given; all types where none do."""
    for kind in ("object", "array", "string", "number"):
        if s.keys() & KEYS[kind]:
            return kind
    return list(KEYS)


def _count(s: dict[str, Any], name: str, default: Any) -> Any:
    v = s.get(name, default)
    if v is not default and (type(v) is not int or not 0 <= v <= 1 << 20):
        raise OperandError(f"schema: {name} is {v!r:.60}, expected an integer from 0")
    return v


def _bounds(s: dict[str, Any]) -> tuple[int | None, int | None]:
    """The least and the largest integer that bounds allow."""
    low, high = None, None
    for name in KEYS["integer"] & s.keys():
        v = s[name]
        if isinstance(v, bool) or not isinstance(v, int | float) or not abs(v) < 10**MOST_DIGITS:
            raise OperandError(
                f"schema: {name} is {v!r:.60}, expected a number of {MOST_DIGITS} digits or fewer"
            )
        open_ = "exclusive" in name
        if "inimum" in name:
            bound = math.floor(v) + 1 if open_ else math.ceil(v)
            low = bound if low is None else max(low, bound)
        else:
            bound = math.ceil(v) - 1 if open_ else math.floor(v)
            high = bound if high is None else min(high, bound)
    return low, high


def _some(low: int | None, high: int | None) -> bool:
    return low is None or high is None or low <= high


def _in_order(pairs: list[tuple[Any, bool]]) -> Any:
    """Pairs in their order with commas between those that are there; each is required or may be left out."""
    first: Any = EMPTY  # what follows where nothing was written yet
    later: Any = EMPTY  # what follows a pair
    for pair, must in reversed(pairs):
        here, then = Seq((pair, later)), Seq((COMMA, pair, later))
        first = here if must else Alt((here, first))
        later = then if must else Alt((then, later))
    return first
