"""The jinja2 sandbox of chat templates: no access to Python, and bounds on every value and on the work.

A template is a stranger's program.  jinja2 keeps it from Python's insides; here it is also kept from making
values that do not fit memory and from running on and on.  Growth happens in few places, and each is checked
before it happens: operators, `~`, captured blocks, methods of texts, filters, and the text of nested lists.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes, sandbox
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

from tessera.core.errors import ModelError

LONGEST = 1 << 20  # characters of a rendered chat, far beyond the contexts of models
STEPS = 1 << 23  # rounds, operators and filters of one template; 16 elements count as one
CALL = 16  # steps that a call takes
METHODS = frozenset(
    [
        "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition",
        "startswith", "endswith", "removeprefix", "removesuffix", "upper", "lower", "title",
        "capitalize", "casefold", "swapcase", "find", "rfind", "index", "rindex", "count",
        "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isnumeric", "isspace", "isupper",
        "islower", "replace", "join",
    ]
)  # fmt: skip
# Filters whose result is no larger than what they are given; those that make more are below.
FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min", "random", "reject",
    "rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "striptags", "title", "trim",
    "truncate", "unique", "upper", "wordcount",
)  # fmt: skip


def too_large(what: str) -> ModelError:
    """The error for a value beyond the bound."""
    return ModelError(f"chat template: {what} makes a value that is too large")


class Generation(Extension):
    """`{% generation %}` marks replies for training; here it is its body."""

    tags = frozenset(["generation"])  # type: ignore[assignment]

    def parse(self, parser: Any) -> Any:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Checked(NodeTransformer):
    """Loops that count their rounds, `~` as an operator that is checked, comparisons of bounded values."""

    def visit_For(self, node: Any) -> Any:  # noqa: N802
        node = self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted_rounds")
        return node

    def visit_Concat(self, node: Any) -> Any:  # noqa: N802
        seen: Any = self.generic_visit(node)
        parts = [_filtered(n, "string") for n in seen.nodes]
        return functools.reduce(lambda a, b: nodes.Add(a, b, lineno=node.lineno), parts)

    def visit_Compare(self, node: Any) -> Any:  # noqa: N802
        node = self.generic_visit(node)
        node.expr = _filtered(node.expr, "weighed")
        return node


def _filtered(node: Any, name: str) -> Any:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class Environment(sandbox.ImmutableSandboxedEnvironment):
    """The environment of one rendering."""

    intercepted_binops = frozenset(["*", "+", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, finalize=weighed,
            extensions=["jinja2.ext.loopcontrols", Generation], cache_size=0,
        )  # fmt: skip
        self._left = STEPS
        known = {name: self.filters[name] for name in FILTERS}
        own: dict[str, Any] = {
            "string": lambda x: str(weighed(x)),
            "tojson": _json,
            "replace": lambda x, old, new, count=-1: _replaced(str(weighed(x)), old, new, count),
            "join": self._join,
            "indent": _indented,
            "sum": _sum,
            "counted_rounds": self._rounds,
            "weighed": weighed,
        }
        self.filters = {k: self._counted(f) for k, f in (known | own).items()}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {k: self._counted(f) for k, f in tests.items()}
        self.globals.pop("lipsum")

    def concat(self, parts: Iterable[str]) -> str:
        """The text of a captured block or macro."""
        found = list(parts)
        if sum(map(len, found)) > LONGEST:
            raise too_large("a block")
        return "".join(found)

    def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
        return _Checked().visit(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may use an attribute: of texts and numbers, few may."""
        if isinstance(obj, str):
            return attr in METHODS
        plain = isinstance(obj, int | float | bytes)
        return not plain and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`format` is no method of ours: it makes fields of any width."""

    def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:  # noqa: N805
        """Call something from a template."""
        __self.step(CALL)
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str) and name == "replace":
            return _replaced(text, *args)
        if isinstance(text, str) and name == "join":
            return __self._join(args[0] if args else (), text)
        return _bounded(super().call(__context, __obj, *args, **named), name)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        self.step(1)
        _bound_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def step(self, count: int) -> None:
        """Count work."""
        self._left -= count
        if self._left < 0:
            raise ModelError(f"chat template: it takes more than {STEPS} steps")

    def _counted(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or test that counts as work, by what it is given, and whose result is bounded."""

        @functools.wraps(f)
        def run(*args: Any, **named: Any) -> Any:
            self.step(1 + sum(_length(a) for a in args) // 16)
            return _bounded(f(*args, **named), getattr(f, "__name__", "a filter"))

        return run

    def _rounds(self, items: Any) -> Any:
        """What a loop goes over, with its rounds counted."""
        if hasattr(items, "__len__"):
            self.step(len(items))
            return items
        return self._one_by_one(items)

    def _one_by_one(self, items: Any) -> Any:
        for item in items:
            self.step(1)
            yield item

    def _join(self, items: Any, by: str = "", attribute: Any = None) -> str:
        found = [
            x if attribute is None else self.getitem(x, attribute) for x in self._rounds(items)
        ]
        texts = [str(weighed(x)) for x in found]
        if sum(map(len, texts)) + len(by) * len(texts) > LONGEST:
            raise too_large("join")
        return by.join(texts)


def _length(x: Any) -> int:
    return len(x) if isinstance(x, str | list | tuple | dict) else 0


def _bounded(x: Any, what: str) -> Any:
    if _length(x) > LONGEST:
        raise too_large(what.removeprefix("do_"))
    return x


def weighed(x: Any) -> Any:
    """A value itself, if its text is bounded: lists may hold one list many times."""
    total, work = 0, [x]
    while work:
        at = work.pop()
        if isinstance(at, dict):
            work += [*at.keys(), *at.values()]
        elif isinstance(at, list | tuple):
            work += at
        total += len(at) if isinstance(at, str) else 1
        if total + len(work) > LONGEST:
            raise too_large("a list or text")
    return x


def _replaced(text: str, old: Any, new: Any, count: int | None = -1) -> str:
    old, new = str(weighed(old)), str(weighed(new))
    found = text.count(old)
    if len(text) + found * (len(new) - len(old)) > LONGEST:
        raise too_large("replace")
    return text.replace(old, new, -1 if count is None else count)


def _indented(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """The lines of a text after some blanks; the first one, and those that are empty, only if told."""
    by = width if isinstance(width, str) else " " * min(width, LONGEST)
    lines = str(weighed(text)).splitlines() or [""]
    if len(by) * len(lines) > LONGEST:
        raise too_large("indent")
    return "\n".join(
        by + line if (i > 0 or first) and (line or blank) else line for i, line in enumerate(lines)
    )


def _sum(items: Any, attribute: Any = None, start: Any = 0) -> Any:
    found = list(items) if attribute is None else [x[attribute] for x in items]
    if not all(isinstance(x, int | float) for x in [*found, start]):
        raise ModelError("chat template: sum is for numbers")
    return sum(found, start)


def _json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:  # fmt: skip
    blank = indent if isinstance(indent, int) else len(indent or "")
    if blank > 64:
        raise too_large("tojson")
    found = weighed(x)
    return json.dumps(
        found, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _bound_operator(operator: str, left: Any, right: Any) -> None:
    """Refuse values that an operator could blow memory up with."""
    if operator == "%" and isinstance(left, str):
        raise ModelError("chat template: formatting by % is not allowed")
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    size = _size(left) * _size(right) if operator in ("*", "**") else _size(left) + _size(right)
    if size > LONGEST and not (numbers and operator != "**"):
        raise too_large(f"the operator {operator}")
    if numbers and max(_bits(left), _bits(right)) > LONGEST:
        raise too_large(f"the operator {operator}")


def _size(x: Any) -> int:
    """How long a sequence is, or how large a number."""
    if isinstance(x, int | float):
        return min(int(abs(x)), LONGEST + 1) if math.isfinite(x) else 1
    return len(x) if isinstance(x, str | bytes | list | tuple) else 1


def _bits(x: Any) -> int:
    return x.bit_length() if isinstance(x, int) else 64
