"""Canonical texts as rows, from which types are made when they are asked for.

One pass of a kernel checks texts and finds every type in them, and makes no object for any.
A type that is made from its row makes those inside it when the first of them is asked for:
a long text costs little until somebody looks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.cached import cached_property
from tensorglot.kernels import type_codes as codes
from tensorglot.kernels import type_rows as kernel
from tensorglot.limits import Limits
from tensorglot.model.dtypes import TABLE, DType
from tensorglot.model.types.algebra import (
    UNITS,
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
    Scalar,
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
    dense_parts,
)
from tensorglot.model.types.base import Type, unquote
from tensorglot.model.types.temporal import DIGITS_MAX, PER_SECOND, Date, DateTime, Decimal, Time, TimeDelta

__all__ = ["KERNEL_WORDS", "LEAVES", "WORDS", "Block", "Rows", "Stop", "read_rows"]

Block: TypeAlias = tuple[DType, tuple[int, ...]]
"""A dense type: its elements and its shape."""

LEAVES: dict[str, Type] = {
    str(leaf): leaf
    for leaf in (
        *(dense(row, ()) for row in TABLE),
        *(Complex(Scalar(row)) for row in TABLE if row.name in ("float16", "float128")),
        *(Bytes(), String(), TypeType(), Char(), Void(), Date()),
        *(kind(unit) for kind in (Time, TimeDelta) for unit in PER_SECOND),
    )
}
"""The types whose text is always the same."""
_KINDS = {Bytes: codes.TEXT, String: codes.TEXT, TypeType: codes.TEXT, Char: codes.CHAR}
_BRACKETS = {
    "pointer[": codes.POINTER,
    "array[": codes.ARRAY,
    "merkle[": codes.MERKLE,
    "map[": codes.MAP,
    "storage[": codes.STORAGE,
    "complex[": codes.COMPLEX,
    "time[": codes.ENUMERATED,
    "timedelta[": codes.ENUMERATED,
    "bytes[": codes.BYTES,
    "fixed_string[": codes.FIXED_STRING,
    "datetime[": codes.DATETIME,
    "decimal[": codes.DECIMAL,
}
_ENCODINGS = {f", '{encoding}']" if encoding != "utf8" else "]": nbytes for encoding, nbytes in UNITS.items()}
WORDS: dict[str, int] = {
    **{
        text: codes.ELEMENT if dense_parts(leaf) else _KINDS.get(type(leaf), codes.FLAT)
        for text, leaf in LEAVES.items()
    },
    **_BRACKETS,
    **{f"'{unit}'": codes.UNIT for unit in PER_SECOND},
    **dict.fromkeys(_ENCODINGS, codes.ENCODING),
}
"""The words of the kernel, and the kind of each."""
KERNEL_WORDS = (
    {word.encode(): number for number, word in enumerate(WORDS)},
    np.array(list(WORDS.values()), np.int64),
    np.array([_ENCODINGS.get(word, 0) for word in WORDS], np.int64),
)
_DTYPES = np.array(
    [parts[0].code if (parts := dense_parts(LEAVES.get(word, Void()))) else -1 for word in WORDS], np.int64
)
"""The element type of each word."""

_CLASSES: dict[int, type[Type]] = {
    codes.FIXED: Fixed,
    codes.VAR: Var,
    codes.SYMBOLIC_DIM: SymbolicDim,
    codes.OPTION: Option,
    codes.POINTER: Pointer,
    codes.ARRAY: Array,
    codes.MERKLE: Merkle,
    codes.MAP: Map,
    codes.STORAGE: Storage,
    codes.TUPLE: Tuple,
    codes.STRUCT: Struct,
    codes.FUNCTION: Function,
}
"""The classes of types that have others inside."""

# Characters that begin a row, and those of names and numbers, of which each begins one at most.
_SIGNS, _LETTERS = np.zeros((2, 256), np.bool_)
_SIGNS[list(b"?({[.")] = True
_LETTERS[list(b"_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = True
_SHORT = 1024
"""Up to so many bytes, there is room for a row for each."""
_KEPT = 1 << 16
"""Characters of texts that a type may keep alive, besides twice its own: caches hold types of many files."""
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, eq=False)
class Rows:
    """The types of texts: columns as `kernels.type_rows` has them, positions in the joined texts."""

    text: str
    columns: NDArray[np.int64]
    code: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    parent: NDArray[np.int64]
    after: NDArray[np.int64]
    number: NDArray[np.int64]
    word: NDArray[np.int64]
    leaf: NDArray[np.int64]
    symbolic: NDArray[np.int64]

    @cached_property
    def roots(self) -> NDArray[np.int64]:
        """The row of each text."""
        return np.flatnonzero(self.parent < 0)

    @cached_property
    def dtypes(self) -> NDArray[np.int64]:
        """The code of the element type of each row that is a block of elements; -1 for others."""
        element: NDArray[np.int64] = np.where(self.code == codes.ELEMENT, _DTYPES[self.word], -1)[self.leaf]
        return element

    def shapes(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The dimensions of blocks of elements, one of any size for other types; and the offset of those of each."""
        ranks = np.where(self.dtypes[rows] < 0, 1, self.leaf[rows] - rows)
        offsets = prefix_sums(ranks)
        return self.number[np.repeat(rows - offsets[:-1], ranks) + np.arange(offsets[-1])], offsets

    def blocks(self, rows: NDArray[np.int64]) -> list[Block | None]:
        """The elements and the shape of each type that is a block of elements."""
        dims, offsets = self.shapes(rows)
        numbers, edges = dims.tolist(), pairwise(offsets.tolist())
        return [
            None if dtype < 0 else (TABLE[dtype], tuple(numbers[begin:end]))
            for dtype, (begin, end) in zip(self.dtypes[rows].tolist(), edges, strict=True)
        ]

    def inside(self, row: int) -> NDArray[np.int64]:
        """The rows of the types that a type consists of."""
        if codes.FIXED <= self.code.item(row) <= codes.STORAGE:
            return np.array([row + 1])
        return row + 1 + np.flatnonzero(self.parent[row + 1 : self.after.item(row)] == row)

    def text_of(self, row: int) -> str:
        return self.text[self.begin.item(row) : self.end.item(row)]

    def type(self, row: int) -> Type:
        """The type of a row, whose own parts are made when they are asked for."""
        made = _CLASSES.get(self.code.item(row))
        if made is not None:
            length = self.end.item(row) - self.begin.item(row)
            apart = len(self.text) > max(2 * length, _KEPT)
            return made.of_origin(_Origin(self.only(row), 0) if apart else _Origin(self, row))
        text = self.text_of(row)
        return LEAVES.get(text) or _leaf(text)

    def only(self, row: int) -> Rows:
        """A copy of a type and those inside it, which does not keep the others alive."""
        columns = self.columns[:, row : self.after.item(row)].copy()
        found = Rows(self.text_of(row), columns, *columns)
        for column in (found.begin, found.end):
            column -= self.begin[row]
        for column in (found.parent, found.after, found.leaf):
            column -= row
        found.parent[0] = -1
        return found

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        text = self.text
        return [text[begin:end] for begin, end in zip(self.begin[rows].tolist(), self.end[rows].tolist(), strict=True)]

    def types(self, rows: NDArray[np.int64]) -> list[Type]:
        """The types of rows; what has the same text is one object."""
        known: dict[str, Type] = {}
        found = []
        for row, text in zip(rows.tolist(), self.texts(rows), strict=True):
            type = known.get(text)
            if type is None:
                type = known[text] = self.type(row)
            found.append(type)
        return found

    def names(self, row: int, items: NDArray[np.int64]) -> list[str]:
        """The names of the items of a list; empty for an item without a name."""
        text, quoted = self.text, "'" in self.text
        begins = [self.begin.item(row) + 1, *(self.end[items] + 2).tolist()]
        # An item without a name begins where its type begins.
        names = [text[begin : end - 2] for begin, end in zip(begins, self.begin[items].tolist(), strict=False)]
        return list(map(unquote, names)) if quoted else names


class _Origin(NamedTuple):
    """The row that a type is made of."""

    rows: Rows
    row: int

    @property
    def text(self) -> str:
        return self.rows.text_of(self.row)

    @property
    def symbolic(self) -> bool:
        return self.rows.symbolic.item(self.row) != 0

    def fields(self) -> dict[str, Any]:
        """The fields of the type."""
        rows, row = self
        code, inside = rows.code.item(row), rows.inside(row)
        if code == codes.MAP:
            inside = rows.inside(row + 1)
        types = rows.types(inside)
        if code == codes.TUPLE:
            return {"elements": tuple(types), "open": self.text.endswith("...)")}
        if code == codes.STRUCT:
            fields = zip(rows.names(row, inside), types, strict=True)
            return {"fields": tuple(fields), "open": self.text.endswith("...}")}
        if code == codes.FUNCTION:
            return self._parameters(inside, types)
        if code == codes.MAP:
            return {"key": types[0], "item": types[1]}
        return {"element": types[0], **self._around(code, row + 1)}

    def _around(self, code: int, inner: int) -> dict[str, Any]:
        """The fields of a type around one other, without that."""
        rows, row = self
        if code == codes.FIXED:
            return {"size": rows.number.item(row)}
        if code == codes.STORAGE:
            axis = rows.text[rows.end.item(inner) : rows.end.item(row)].removeprefix(", axis=[").removesuffix("]]")
            return {"axis": tuple(map(int, axis.split(", ")))}
        if code == codes.SYMBOLIC_DIM:
            name = rows.text[rows.begin.item(row) : rows.begin.item(inner)].removesuffix(" * ")
            return {"name": name.removesuffix("..."), "dots": name.endswith("...")}
        return {}

    def _parameters(self, inside: NDArray[np.int64], types: list[Type]) -> dict[str, Any]:
        rows, row = self
        *begins, end = rows.begin[inside].tolist()
        # A parameter without a name begins where its type begins.
        firsts = [rows.begin.item(row) + 1, *(rows.end[inside] + 2).tolist()]
        count = sum(begin == first for begin, first in zip(begins, firsts, strict=False))
        names = rows.names(row, inside[:-1])[count:]
        return {
            "positional": tuple(types[:count]),
            "keywords": tuple(zip(names, types[count:-1], strict=True)),
            "result": types[-1],
            "open": rows.text[rows.begin.item(row) : end].endswith("...) -> "),
        }


def _leaf(text: str) -> Type:
    """A type without others inside, whose text has a size or a name."""
    outer, _, inner = text.removesuffix("]").partition("[")
    if outer[0].isupper():
        return Symbol(outer)
    if inner[0].isupper():
        return SymbolicSized("bytes" if outer == "bytes" else "complex", inner)
    if outer == "bytes":
        return FixedBytes(int(inner))
    first, _, second = inner.partition(", ")
    if outer == "decimal":
        return Decimal(int(first), int(second))
    if outer == "datetime":
        return DateTime(unquote(first), unquote(second.removeprefix("tz=")) if second else None)
    encoding: Any = unquote(second) if second else "utf8"
    return FixedString(int(first), encoding)


class Stop(NamedTuple):
    """Where texts stop being canonical."""

    duplicate: bool
    """Whether a name is twice in the list at the position."""
    text: int
    """Number of the text."""
    begin: int
    end: int
    """Span of the text in those of the rows."""
    at: int
    rows: Rows
    """Those before the position; types that are still open have no end, -1."""


def read_rows(texts: Sequence[str], limits: Limits) -> Rows | Stop:
    """The rows of canonical texts, or where they stop being canonical."""
    text = "".join(texts)
    data = (text if text.isascii() else _BEYOND_ASCII.sub("\x7f", text)).encode()
    edges = list(accumulate(map(len, texts), initial=0))
    room = _most_rows(data, len(texts))
    columns = np.empty((kernel.COLUMNS, room), np.int64)
    answer, at, number, count = kernel.scan(
        data, np.array(edges, np.int64), columns.reshape(-1), room, KERNEL_WORDS, DIGITS_MAX, limits.type_depth,
        limits.rank,
    )  # fmt: skip
    columns = columns[:, :count].copy()
    rows = Rows(text, columns, *columns)
    if answer == kernel.DONE:
        return rows
    return Stop(answer == kernel.DUPLICATE, number, edges[number], edges[number + 1], at, rows)


def _most_rows(data: bytes, texts: int) -> int:
    """A bound of the rows of texts, each of which begins with a sign, a name or a number of its own."""
    if len(data) <= _SHORT:
        return len(data)
    signs = np.frombuffer(data, np.uint8)
    letters = _LETTERS[signs]
    return texts + int(np.count_nonzero(letters[1:] > letters[:-1]) + np.count_nonzero(_SIGNS[signs]))
