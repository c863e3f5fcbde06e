"""Columns in containers: each is a tensor of its own, written and read in order, a batch at a time.

A column of one type that arrays have, with a value in every row, is an array. Texts and
dates are nested values, in formats that hold them. Any other column is the bytes of its
documents {name: value}, with the suffix `.bson`. Before it is written to a container, a
column is collected in unnamed files, in the form that the container stores. It is read
in one pass over the bytes of its tensor, which also compares their checksum.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from tensorglot.bson.columns import (
    BSON_SUFFIX,
    PLAIN_DTYPES,
    ValueColumn,
    concat,
    from_array,
    from_dump,
    from_plain,
    from_values,
)
from tensorglot.bson.embeddings import ID
from tensorglot.dynd import parse
from tensorglot.errors import FormatError
from tensorglot.io.local import FileSource
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, DType, dtype_of
from tensorglot.model.payload import Span, as_bytes, buffers
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE, Part, Tensor, check_bool
from tensorglot.wire import bson as wire
from tensorglot.wire.bson_value import DATE, OBJECT_ID, STRING

__all__ = ["ColumnSource", "ColumnSpool", "Form", "PartBytes", "form_of", "open_column", "stored_name"]

_DATES = "datetime['ms', tz='UTC']"
_OFFSETS, _TEXTS = "offsets", "content.data"
"""The parts of a list of texts."""
_TEXT_OR_DATE = re.compile(r"[<>|][US][1-9][0-9]{0,6}|[<>]M8\[(Y|M|W|D|h|m|s|ms|us|ns)\]")
_PIECE_NBYTES = 1 << 18
"""Documents of a column that are read at a time."""


Take: TypeAlias = Callable[[int], ValueColumn]
"""Called with a number of rows, returns the next ones."""


class Form(Enum):
    """What a column is in a container."""

    ARRAY = auto()
    OBJECT_IDS = auto()
    TEXTS = auto()
    DATES = auto()
    DOCUMENTS = auto()


def form_of(name: str, kind: int | None, *, complete: bool, nested: bool) -> Form:
    """The form of a column, by the only type of its values (None for several) and whether every row has a value.

    `nested` says whether the format can store nested values.
    """
    if not complete:
        return Form.DOCUMENTS
    if kind == STRING and nested:
        return Form.TEXTS
    if kind == DATE:
        return Form.DATES if nested else Form.DOCUMENTS
    if kind == OBJECT_ID:
        return Form.OBJECT_IDS if name == ID else Form.DOCUMENTS
    return Form.ARRAY if kind in PLAIN_DTYPES else Form.DOCUMENTS


def stored_name(name: str, form: Form) -> str:
    return name + BSON_SUFFIX if form is Form.DOCUMENTS else name


class ColumnSpool:
    """A column in unnamed files, before it is written to a container. The files exist until it is closed."""

    def __init__(self, name: str, kind: int | None, form: Form, directory: str | None) -> None:
        self._name = name
        self._kind = kind
        self._form = form
        self._rows = 0
        self._end = 0
        self._values: BinaryIO = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by `close`
        self._offsets: BinaryIO | None = None
        if form is Form.TEXTS:
            self._offsets = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
            self._offsets.write(bytes(8))

    def add(self, column: ValueColumn) -> None:
        self._rows += len(column)
        if self._form is Form.DOCUMENTS:
            self._values.write(column.dump(self._name))
        elif self._offsets is None:
            self._values.write(column.data)
        else:
            texts = [text.encode() for text in column.tolist()]
            ends = self._end + np.cumsum([len(text) for text in texts], dtype="<i8")
            self._offsets.write(as_bytes(ends))
            self._values.write(b"".join(texts))
            self._end = int(ends[-1]) if texts else self._end

    def tensor(self) -> tuple[str, Tensor]:
        """The name of the column's tensor, and the tensor: spans of the files."""
        name, rows = stored_name(self._name, self._form), self._rows
        if self._offsets is not None:
            parts = {
                _OFFSETS: _part(self._offsets, BY_NAME["int64"], (rows + 1,)),
                _TEXTS: _part(self._values, BY_NAME["uint8"], (self._end,)),
            }
            return name, _nested(name, parts, f"{rows} * string")
        if self._form is Form.DATES:
            part = _part(self._values, BY_NAME["int64"], (1, rows))
            return name, _nested(name, {"data": part}, f"{rows} * {_DATES}")
        dtype, shape = BY_NAME["uint8"], (self._values.tell(),)
        if self._form is Form.OBJECT_IDS:
            shape = (rows, 12)  # type: ignore[assignment]
        elif self._form is Form.ARRAY:
            dtype, shape = dtype_of(np.dtype(PLAIN_DTYPES[self._kind]), name), (rows,)
        return name, Tensor(name, {"data": _part(self._values, dtype, shape)})

    def close(self) -> None:
        self._values.close()
        if self._offsets is not None:
            self._offsets.close()


def _nested(name: str, parts: dict[str, Part], type: str) -> Tensor:
    return Tensor(name, parts, NESTED, parse(type), {TYPE_ATTRIBUTE: type})


def _part(file: BinaryIO, dtype: DType, shape: tuple[int, ...]) -> Part:
    file.flush()
    return Part(dtype, shape, Span(FileSource(os.dup(file.fileno())), 0, file.tell()))


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A column of a container, which can be read several times."""

    rows: int
    read: Callable[[], Take]
    """Starts a pass over the rows."""

    def __len__(self) -> int:
        return self.rows


def open_column(archive: Archive, name: str) -> ColumnSource:
    """The values of a field: an array, texts, dates, or the bytes of documents."""
    if name + BSON_SUFFIX in archive:
        # The number of documents is not stored: a first pass counts them.
        tensor = archive[name + BSON_SUFFIX]
        rows = sum(len(column) for column in _documents(tensor, name))
        return ColumnSource(rows, lambda: _regroup(_documents(tensor, name)))
    tensor = archive[name]
    kind, parts = str(tensor.type), tensor.parts
    if kind == f"{len(tensor) if tensor.ndim else 0} * string" and set(parts) == {_OFFSETS, _TEXTS}:
        return ColumnSource(len(tensor), lambda: _Texts(tensor).take)
    if kind.endswith(f"* {_DATES}") and set(parts) == {"data"} and tensor.ndim == 1:
        return ColumnSource(len(tensor), lambda: _read_rows(tensor, np.dtype("<i8"), lambda a: from_plain(a, DATE)))
    dtype = tensor.dtype or _numpy_dtype(tensor)
    if (
        dtype is not None
        and tensor.ndim
        and set(parts) == {"data"}
        and parts["data"].nbytes == tensor.size * dtype.itemsize
    ):
        return ColumnSource(len(tensor), lambda: _read_rows(tensor, dtype, lambda a: from_array(a, name)))
    if kind.endswith(f"* {_DATES}"):
        whole = from_plain(np.frombuffer(tensor.serialize(), "<i8")[-len(tensor) :], DATE)
    else:
        whole = from_array(tensor.numpy(), name) if dtype is not None else from_values(tensor.tolist())
    return ColumnSource(len(whole), lambda: _regroup(iter([whole])))


def _numpy_dtype(tensor: Tensor) -> np.dtype[Any] | None:
    """NumPy's type of texts or datetimes, which is not an element type of tensors."""
    part = tensor.parts.get("data")
    text = (part and part.unknown_dtype) or ""
    return np.dtype(text) if _TEXT_OR_DATE.fullmatch(text) else None


class PartBytes:
    """The bytes of a part, from first to last."""

    def __init__(self, part: Part) -> None:
        self._chunks = buffers(part.swapped_chunks() if part.big_endian else part.payload.chunks())
        self._held = memoryview(b"")
        self._left = part.nbytes

    def read_into(self, out: memoryview) -> int:
        """Fills `out`, as far as there are bytes. The last bytes are returned only after the checksum has matched."""
        done = 0
        while done < min(len(out), self._left):
            if not self._held:
                self._held = as_bytes(next(self._chunks))
                continue
            piece = self._held[: len(out) - done]
            out[done : done + len(piece)] = piece
            self._held = self._held[len(piece) :]
            done += len(piece)
        self._left -= done
        if not self._left:  # the end of the iterator compares the checksum
            for _ in self._chunks:
                pass
        return done

    def read(self, nbytes: int) -> bytearray:
        out = bytearray(nbytes)
        return out[: self.read_into(memoryview(out))]


def _read_rows(tensor: Tensor, dtype: np.dtype[Any], column: Callable[[Any], ValueColumn]) -> Take:
    """A function that reads the next rows, of elements of one size."""
    stored = PartBytes(tensor.parts["data"])

    def take(rows: int) -> ValueColumn:
        shape = (rows, *tensor.shape[1:])
        values = np.frombuffer(stored.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
        check_bool(values, tensor.name, tensor.offset)
        return column(values)

    return take


class _Texts:
    """Texts one after the other, and where each ends."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._offsets = PartBytes(tensor.parts[_OFFSETS])
        self._texts = PartBytes(tensor.parts[_TEXTS])
        self._left = tensor.parts[_TEXTS].nbytes
        self._end = int.from_bytes(self._offsets.read(8), "little", signed=True)
        if self._end:
            raise self._fault("the first text does not begin at 0")

    def take(self, rows: int) -> ValueColumn:
        ends = np.frombuffer(self._offsets.read(8 * rows), "<i8")
        edges = np.concatenate(([self._end], ends))
        # The offsets come from a file: they must not decrease, nor lead beyond the texts.
        if (np.diff(edges) < 0).any() or int(edges[-1]) - self._end > self._left:
            raise self._fault("the offsets of the texts decrease, or go beyond their end")
        texts = bytes(self._texts.read(int(edges[-1]) - self._end))
        self._left -= len(texts)
        places = (edges - self._end).tolist()
        self._end = int(edges[-1])
        try:
            found = [texts[places[i] : places[i + 1]].decode() for i in range(rows)]
        except UnicodeDecodeError:
            raise self._fault("invalid UTF-8 in a text") from None
        return from_values(found)

    def _fault(self, what: str) -> FormatError:
        return FormatError(what, rule="place.field", tensor=self._tensor.name, offset=self._tensor.offset)


def _regroup(columns: Iterator[ValueColumn]) -> Take:
    """A function that returns the next rows of columns of any lengths."""
    rest = from_values(())

    def take(rows: int) -> ValueColumn:
        nonlocal rest
        held = [rest]
        while sum(map(len, held)) < rows:
            held.append(next(columns))
        joined = concat(held)
        rest = joined.part(rows, len(joined))
        return joined.part(0, rows)

    return take


def _documents(tensor: Tensor, name: str) -> Iterator[ValueColumn]:
    """The column of documents that `ValueColumn.dump` made, in pieces."""
    part = tensor.parts.get("data")
    if part is None or part.dtype is None or part.dtype.name != "uint8":
        raise FormatError("documents must be bytes", rule="place.field", tensor=tensor.name)
    for start, piece in wire.pieces(PartBytes(part).read_into, _PIECE_NBYTES):
        yield from_dump(piece, name, start)
