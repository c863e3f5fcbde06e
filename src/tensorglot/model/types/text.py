"""Parses text to types; `str` is the inverse.

Canonical text is read to rows by a kernel (`rows`). The parser here reads every other
spelling, and finds what is wrong with text that the kernel refuses: one loop over a stack
of open types, so depth costs memory, not recursion. Text longer than `Limits.type_nbytes`
is refused before it is read; brackets and options may nest `Limits.type_depth` deep, and
`Limits.rank` dimensions may follow one another.

Knows the grammar (docs/dynd-format.md, which only ever grows); knows no data. The rules
of each type are checked by its constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import TypeAlias, TypeVar

import numpy as np

from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError, escape
from tensorglot.kernels import type_codes as codes
from tensorglot.limits import DEFAULT, Limits, as_limits
from tensorglot.model.dtypes import TABLE
from tensorglot.model.types.algebra import (
    ANY,
    Array,
    Bytes,
    Char,
    Complex,
    Fixed,
    FixedBytes,
    FixedString,
    Function,
    Map,
    Merkle,
    Option,
    Pointer,
    Storage,
    String,
    Struct,
    Symbol,
    SymbolicDim,
    SymbolicSized,
    Tuple,
    TypeType,
    Var,
    Void,
    dense,
)
from tensorglot.model.types.base import Type
from tensorglot.model.types.rows import Rows, Stop, read_rows
from tensorglot.model.types.scan import Scanner, fault_at
from tensorglot.model.types.temporal import Date, DateTime, Decimal, Time, TimeDelta

__all__ = ["parse", "parse_canonical", "parse_each", "text_of"]

_ROWS: dict[str, Type] = {row.name: dense(row, ()) for row in TABLE}
_NAMED: dict[str, Type] = {
    **_ROWS,
    "int": _ROWS["int32"],
    "real": _ROWS["float64"],
    "complex": _ROWS["complex128"],
    "intptr": _ROWS["int64"],
    "uintptr": _ROWS["uint64"],
    "size": _ROWS["uint64"],
    "array": Array(ANY),
    **{leaf.template: leaf() for leaf in (Bytes, String, Char, TypeType, Void, Date)},
}
_AROUND: dict[str, Callable[[Type], Type]] = {"option": Option, "pointer": Pointer, "array": Array, "merkle": Merkle}
_WITH_BRACKETS = {
    "time": "time['us']",
    "timedelta": "timedelta['us']",
    "datetime": "datetime['us']",
    "decimal": "decimal[18, 2]",
    "map": "map[string, int64]",
}
_ENCODINGS = {
    alias: name
    for name, aliases in {
        "ascii": ("ascii", "us-ascii", "A"),
        "utf8": ("utf8", "utf-8", "U8"),
        "utf16": ("utf16", "utf-16", "U16"),
        "utf32": ("utf32", "utf-32", "U32"),
    }.items()
    for alias in aliases
}


def parse(text: str, limits: Limits = DEFAULT) -> Type:
    """Parses a type in any spelling."""
    if not isinstance(text, str):
        raise InputError(f"the text of a type must be a str, not {type(text).__name__}", rule="dynd.type.text")
    limits = as_limits(limits)
    found = read_rows([text], limits) if len(text) <= limits.type_nbytes else None
    return found.type(0) if isinstance(found, Rows) else _Parser(text, limits).type()


def parse_canonical(text: str, limits: Limits = DEFAULT) -> Type:
    """Parses a type from data, which must be in the canonical spelling."""
    return parse_each([text], limits).type(0)


def parse_each(texts: Sequence[str], limits: Limits) -> Rows:
    """Parses types from data: the rows of all texts, each of which must be in the canonical spelling."""
    for text in texts:
        if len(text) > limits.type_nbytes:
            raise LimitError(
                f"the type has {len(text)} characters; Limits.type_nbytes allows {limits.type_nbytes}",
                rule="dynd.type.length",
            )
    found = read_rows(texts, limits)
    if isinstance(found, Stop):
        raise _refusal(texts[found.text], found, limits)
    return found


_READ_ON = 1000
"""Characters that the parser reads after the place where a text is not canonical: most likely all that are left."""


def _refusal(text: str, stop: Stop, limits: Limits) -> TensorglotError:
    """What is wrong with a text: the parser's error, or, if it has none near that place, the place."""
    at = stop.at - stop.begin
    if stop.duplicate:
        return fault_at(FormatError, text, at, "duplicate field name", "field")
    try:
        _Parser(text, limits, _shortened(stop)).check(at + _READ_ON)
    except (FormatError, LimitError) as error:
        return error
    return fault_at(FormatError, text, at, "this is not the canonical spelling of a type", "canonical")


_LONG = 20
"""Characters above which a complete type is replaced by a shorter one."""
_BEFORE_LAST = {codes.FUNCTION: "()->", codes.PAIR: "T,"}
"""What replaces all before the last type inside."""


def _shortened(stop: Stop) -> str:
    """The text, with blanks and short types in place of long ones that are complete, and so valid.

    Of the items of a list that is still open the last is kept: a comma may be missing after it, and a parameter
    after one with a name needs a name. Of a type, what more may follow is kept: `->` after a tuple, `*` after a
    variable, and both after a type that ends in one.
    """
    rows, at = stop.rows, stop.begin
    pieces: list[str] = []

    def replace(short: str, begin: int, end: int) -> None:
        nonlocal at
        pieces.extend((rows.text[at:begin], short.ljust(end - begin)))
        at = end

    still_open = rows.end < 0
    # Complete types are before the open one that they are beside, so those inside one type follow each other.
    complete = np.flatnonzero(~still_open & (rows.begin >= at) & (still_open[rows.parent] | (rows.parent < 0)))
    for row, inside in groupby(complete.tolist(), rows.parent.item):
        *before, core = inside
        if before:
            replace("", rows.begin.item(row) + 1, rows.end.item(before[-1]) + len(", "))
        while (code := rows.code.item(core)) in _BEFORE_LAST or codes.FIXED <= code <= codes.POINTER:
            last = rows.inside(core).item(-1)
            if code in _BEFORE_LAST:
                replace(_BEFORE_LAST[code], rows.begin.item(core), rows.begin.item(last))
            core = last
        begin, end = rows.begin.item(core), rows.end.item(core)
        if end - begin > _LONG and code != codes.SYMBOL:
            replace("()" if code == codes.TUPLE else "{}", begin, end)
    return "".join(pieces) + rows.text[at : stop.end]


@lru_cache(maxsize=1024)
def text_of(type: Type) -> str:
    """The canonical text of a type, to be written. Raises if readers with default limits would refuse it."""
    parse(str(type))
    return str(type)


R = TypeVar("R")
Wrap: TypeAlias = Callable[[Type], "Type | None"]


@dataclass(slots=True)
class _Around:
    """An open type with one child: `?`, a dimension, `pointer[`, the `->` of a function."""

    wrap: Wrap
    at: int
    nests: bool = True
    bracket: bool = False


@dataclass(slots=True)
class _List:
    """An open `(` or `{`, and the items read so far."""

    closing: str
    at: int
    positional: list[Type] = field(default_factory=list)
    keywords: list[tuple[str, Type]] = field(default_factory=list)
    name: str | None = None
    """Name of the item that is being read."""
    open: bool = False
    nests: bool = True


class _Parser(Scanner):
    def __init__(self, text: str, limits: Limits, read: str | None = None) -> None:
        """A text of a caller, or, with what is read in its place, from data."""
        fault, beyond = (InputError, InputError) if read is None else (FormatError, LimitError)
        super().__init__(text, limits.type_nbytes, fault, beyond, read)
        self.limits, self.canonical = limits, read is not None
        self.open: list[_Around | _List] = []
        self.depth = self.run = self.dims = 0

    def type(self) -> Type:
        whole = None
        while whole is None:
            whole = self.step()
        self.finish()
        self.check_length(str(whole))
        return whole

    def check(self, at: int) -> None:
        """Reads on until the current token is behind a position."""
        whole = None
        while whole is None and self.position <= at:
            whole = self.step()
        if whole is not None:
            self.finish()

    def step(self) -> Type | None:
        """Reads a type without children, or opens one with children. Returns the whole type if that ends there."""
        inner = self.leaf_or_open()
        return None if inner is None else self.close(inner)

    def finish(self) -> None:
        if self.kind != "end":
            self.refuse("unexpected text after the type", "syntax")

    def leaf_or_open(self) -> Type | None:
        """Reads a type without children, or opens one with children and returns None."""
        at = self.at
        if self.kind == "int":
            return self.dim(partial(Fixed, self.integer()), at)
        if self.kind == "name":
            return self.named(self.advance(), at)
        if self.accept("?"):
            return self.push(_Around(Option, at))
        if self.accept("..."):
            return self.dim(partial(SymbolicDim, "", True), at)
        if self.accept("("):
            return self.list(_List(")", at))
        if not self.accept("{"):
            self.refuse("expected a type", "syntax")
        return self.list(_List("}", at))

    def named(self, name: str, at: int) -> Type | None:
        dimension = self.lexeme in ("*", "**")
        if name == "var" and dimension:
            return self.dim(Var, at)
        if name[0].isupper():
            if self.accept("..."):
                return self.dim(partial(SymbolicDim, name, True), at)
            return self.dim(partial(SymbolicDim, name, False), at) if dimension else Symbol(name)
        if self.accept("["):
            return self.bracketed(name, at)
        if name not in _NAMED:
            hint = f"; did you mean {_WITH_BRACKETS[name]}?" if name in _WITH_BRACKETS else ""
            self.refuse(f"unknown type {escape(name, longest=60)}{hint}", "name", at)
        return _NAMED[name]

    def bracketed(self, name: str, at: int) -> Type | None:
        match name:
            case "option" | "pointer" | "array" | "merkle":
                return self.push(_Around(_AROUND[name], at, bracket=True))
            case "storage":
                return self.push(_Around(self.storage, at))
            case "map":
                return self.push(_Around(self.map, at))
            case "fixed":
                size = self.integer()
                self.expect("]")
                return self.dim(partial(Fixed, size), at)
            case "string" | "char":
                self.encoding()
                type = _NAMED[name]
            case "complex":
                type = self.complex(at)
            case "bytes" | "fixed_bytes":
                type = self.bytes(name == "fixed_bytes")
            case "fixed_string":
                size = self.integer()
                encoding = self.encoding() if self.accept(",") else "utf8"
                type = self.build(partial(FixedString, size), encoding, at)
            case "time" | "timedelta":
                type = self.build(Time if name == "time" else TimeDelta, self.unit(), at)
            case "datetime":
                type = self.build(partial(DateTime, self.unit()), self.time_zone(), at)
            case "decimal":
                precision = self.integer()
                self.expect(",")
                type = self.build(partial(Decimal, precision), self.integer(signed=True), at)
            case _:
                self.refuse(f"unknown type {escape(name, longest=60)}[…]", "name", at)
        self.expect("]")
        return type

    def complex(self, at: int) -> Type:
        if self.at_variable():
            return SymbolicSized("complex", self.advance())
        name = self.advance()
        return self.build(Complex, _ROWS.get(name, escape(name, longest=60)), at)

    def bytes(self, sized: bool) -> Type:
        type: Type
        if self.at_variable():
            type = SymbolicSized("bytes", self.advance())
        else:
            type = FixedBytes(self.integer()) if sized or self.kind == "int" else Bytes()
        if isinstance(type, Bytes) or self.accept(","):
            self.expect("align")
            self.expect("=")
            self.integer()
        return type

    def at_variable(self) -> bool:
        return self.kind == "name" and self.lexeme[0].isupper()

    def encoding(self) -> str:
        at = self.at
        encoding = _ENCODINGS.get(self.quoted())
        if encoding is None:
            self.refuse(f"unknown encoding (supported: {', '.join(_ENCODINGS)})", "encoding", at)
        return encoding

    def unit(self) -> str:
        return self.advance() if self.kind == "name" else self.quoted()

    def time_zone(self) -> str | None:
        if not self.accept(","):
            return None
        self.expect("tz")
        self.expect("=")
        return self.quoted()

    def dim(self, wrap: Wrap, at: int) -> Type | None:
        """Reads the rest of a dimension, `*` or `**N *`, and opens it."""
        count = self.power(at) if self.lexeme == "**" else 1
        if count == 0:
            self.refuse("the power of a dimension must be 1 or more", "size", at)
        self.expect("*")
        self.run += count
        self.dims += count
        if self.run > self.limits.rank or self.dims * len("1 * ") > self.limits.type_nbytes:
            self.refuse(f"more than {self.limits.rank} consecutive dimensions (Limits.rank)", "rank", at, beyond=True)
        self.open.extend([_Around(wrap, at, nests=False)] * count)
        return None

    def power(self, at: int) -> int:
        if self.canonical:
            self.refuse("the canonical spelling repeats a dimension instead of '**'", "canonical", at)
        self.advance()
        return self.integer()

    def push(self, inner: _Around | _List) -> Type | None:
        self.run = 0
        self.depth += 1
        if self.depth > self.limits.type_depth:
            self.refuse(
                f"nested more than {self.limits.type_depth} deep (Limits.type_depth)", "depth", inner.at, beyond=True
            )
        self.open.append(inner)
        return None

    def close(self, type: Type) -> Type | None:
        """Adds a finished type to the innermost open one. Returns the whole type when nothing is open."""
        self.run = 0
        closed: Type | None = type
        while self.open and closed is not None:
            top = self.open.pop()
            self.depth -= top.nests
            if isinstance(top, _List):
                if top.name is None:
                    top.positional.append(closed)
                else:
                    top.keywords.append((top.name, closed))
                closed = self.list(top)
            else:
                if top.bracket:
                    self.expect("]")
                direct = top.wrap in (self.storage, self.map)  # these read the rest of their brackets
                closed = top.wrap(closed) if direct else self.build(top.wrap, closed, top.at)
        return closed

    def list(self, items: _List) -> Type | None:
        """Opens the next item of a list and returns None, or closes the list and returns its type."""
        if not self.accept(items.closing):
            if items.positional or items.keywords:
                self.expect(",")
            if self.lexeme == "..." and self.peek() not in ("*", "**"):
                self.advance()
                self.accept(",")
                items.open = True
            if not self.accept(items.closing):
                if items.open:
                    self.refuse("'...' must be the last item", "syntax")
                items.name = self.item_name(items)
                return self.push(items)
        if items.closing == "}":
            return self.build(partial(Struct, tuple(items.keywords)), items.open, items.at)
        positional, keywords = tuple(items.positional), tuple(items.keywords)
        if self.accept("->"):
            return self.push(_Around(lambda result: Function(positional, keywords, result, items.open), items.at))
        if keywords:
            self.refuse("elements of a tuple cannot have names", "field", items.at)
        return Tuple(positional, items.open)

    def item_name(self, items: _List) -> str | None:
        """The name before an item, if it has one."""
        name = None
        if self.kind == "text":
            name = self.quoted()
            self.expect(":")
        elif self.kind == "name" and self.peek() == ":":
            name = self.advance()
            self.advance()
        elif items.closing == "}" or items.keywords:
            self.refuse("expected a name and ':'", "field")
        return name

    def map(self, key: Type) -> Type | None:
        """Reads what follows the key's type in `map[`, and opens the item's type."""
        self.expect(",")
        return self.push(_Around(partial(Map, key), self.at, bracket=True))

    def storage(self, element: Type) -> Type:
        """Reads what follows the element's type in `storage[`."""
        self.expect(",")
        at = self.at
        if self.accept("order"):
            self.expect("=")
            order = self.quoted()
            if order not in ("C", "F"):
                self.refuse("order must be 'C' or 'F'", "axis", at)
            type = self.build(partial(Storage.ordered, element), order, at)
        else:
            self.expect("axis")
            self.expect("=")
            type = self.build(partial(Storage.of, element), self.axis(), at)
        self.expect("]")
        return type

    def axis(self) -> tuple[int, ...]:
        self.expect("[")
        axis: list[int] = []
        while not self.accept("]"):
            if axis:
                self.expect(",")
            axis.append(self.integer())
        return tuple(axis)

    def build(self, make: Callable[..., R], part: object, at: int) -> R:
        """Calls a constructor, and adds the position in the text to its errors."""
        try:
            return make(part)
        except InputError as error:
            self.refuse(error.message, error.rule.removeprefix("dynd.type."), at)
