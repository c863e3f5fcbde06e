"""Reads vectors from raw BSON, dumps, cursors, documents and payloads, in batches.

A batch is either spans in a run of raw BSON, or a list of payloads. Nothing here imports
pymongo: a cursor is any iterable, a raw document has `.raw`, and `coerce` recognises
vectors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import is_vector
from tensorglot.bson.vector import encode
from tensorglot.errors import FormatError, Hint, InputError, escape, list_names
from tensorglot.io.local import BaseSource
from tensorglot.io.place import as_place
from tensorglot.io.source import Readable, is_stream, source_for
from tensorglot.limits import DEFAULT
from tensorglot.threads import for_each
from tensorglot.wire import bson as wire
from tensorglot.wire.bson import VECTOR_SUBTYPE
from tensorglot.wire.bson_value import decode_value
from tensorglot.wire.bson_vector import Row, disagreement, first_unlike, gather, gather_payloads, row_of
from tensorglot.wire.gzipped import HEADER_NBYTES, is_gzip, reader

__all__ = ["Batch", "IdReader", "Payloads", "Run", "batches", "read_ids", "runs"]

_BATCH = 1000
_POSITION = re.compile("0|[1-9][0-9]{0,8}")
"""The key of an array element."""
_GATHER_NBYTES = 4 << 20
"""Bytes that one thread copies at a time."""

IdReader: TypeAlias = Callable[[memoryview, wire.Column], list[Any]]
"""Decodes the ids of a run of documents."""


@dataclass(frozen=True, slots=True)
class Run:
    """Vectors in a run of documents."""

    start: int
    """Offset of the run in its source."""
    first: int
    """Number of its first document in the source."""
    data: memoryview
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    missing: NDArray[np.bool_]
    """Which documents have no vector; `begins` and `ends` are those of the other documents."""
    ids: list[Any] | None

    def row(self, like: Row | None) -> Row:
        row = like or row_of(self._payload(0))
        other = first_unlike(self.data, self.begins, self.ends, row)
        if other is not None:
            offset = self.start + int(self.begins[other])
            raise disagreement(row, self._payload(other), _document(self, other), offset)
        return row

    def _payload(self, number: int) -> memoryview:
        return self.data[int(self.begins[number]) : int(self.ends[number])]

    def gather(self, row: Row, out: memoryview) -> None:
        step = max(1, _GATHER_NBYTES // max(1, row.nbytes))

        def gather_some(first: int) -> None:
            begins = self.begins[first : first + step]
            start = first * row.nbytes
            gather(self.data, begins, row, out[start : start + len(begins) * row.nbytes])

        for_each(gather_some, range(0, len(self.begins), step))


@dataclass(frozen=True, slots=True)
class Payloads:
    """Vectors as separate bytes objects."""

    first: int
    """Number of the first document in the source."""
    payloads: list[bytes]
    missing: NDArray[np.bool_]
    ids: list[Any] | None

    def row(self, like: Row | None) -> Row:
        return like or row_of(memoryview(self.payloads[0]))

    def gather(self, row: Row, out: memoryview) -> None:
        other = gather_payloads(self.payloads, row, out)
        if other is not None:
            raise disagreement(row, memoryview(self.payloads[other]), _document(self, other))


Batch: TypeAlias = Run | Payloads


def _document(batch: Batch, vector: int) -> int:
    """Returns the number of the document that contains a vector of the batch."""
    return batch.first + int(np.flatnonzero(~batch.missing)[vector])


def batches(source: Any, key: str | None, ids: IdReader | None) -> Iterator[Batch]:
    """Reads the vectors of any source, in order."""
    raw = _raw_runs(source)
    if raw is not None:
        return _from_runs(raw, key, ids)
    if not isinstance(source, Iterable) or getattr(source, "ndim", 1) == 0:
        raise InputError(
            f"expected BSON bytes, a path, a cursor, documents or payloads, got {type(source).__name__}",
            rule="bson.source",
        )
    if hasattr(source, "to_pylist"):  # iterating over an Arrow array gives scalars
        source = source.to_pylist()
    if key is None:
        first, source = _peek(source)
        key = _find_only_key(first)
    return _payload_batches(source, ids) if key is None else _document_batches(source, key, ids)


def _peek(source: Iterable[Any]) -> tuple[Any, Iterable[Any]]:
    """The first item, None if there is none, and all items."""
    if isinstance(source, list):
        return (source[0] if source else None), source
    items = iter(source)
    for first in items:
        return first, chain((first,), items)
    return None, ()


def _find_only_key(item: Any) -> str | None:
    """The path of the only vector field of a document; None for a payload."""
    if hasattr(item, "raw"):
        paths = wire.path_texts(wire.find_vectors(wire.view(_raw_document(item))).paths)
    elif isinstance(item, Mapping):
        paths, inner, seen = [], [("", item)], {id(item)}  # a document may contain itself
        for prefix, fields in inner:
            paths += [f"{prefix}{name}" for name, value in fields.items() if is_vector(value)]
            for name, value in fields.items():
                if isinstance(value, Mapping) and id(value) not in seen:
                    seen.add(id(value))
                    inner.append((f"{prefix}{name}.", value))
    else:
        return None
    return _only(paths)


def _only(paths: Sequence[str]) -> str:
    if len(paths) != 1:
        raise InputError(f"pass key= to name the vector field (fields found: {list_names(paths)})", rule="bson.key")
    return paths[0]


def runs(source: Any) -> Iterator[tuple[int, memoryview]]:
    """Yields runs of raw BSON with their offsets. A run is valid until the next one is requested."""
    raw = _raw_runs(source)
    if raw is None:
        raise InputError(
            f"expected BSON bytes, a path or a raw cursor, got {type(source).__name__}", rule="bson.source"
        )
    return raw


def _raw_runs(source: Any) -> Iterator[tuple[int, memoryview]] | None:
    if isinstance(source, (str, os.PathLike)):
        return _pieces_of(as_place(source))
    if isinstance(source, BaseSource):
        return _file_pieces(source)
    if isinstance(source, (bytes, bytearray, memoryview)) or _is_byte_buffer(source):
        data = wire.view(source)
        return _pieces_of(data) if is_gzip(data[:HEADER_NBYTES]) else iter([(0, data)])
    if hasattr(source, "find_raw_batches"):  # a collection of pymongo, which has every attribute
        raise InputError("a collection is not a source: pass collection.find_raw_batches()", rule="bson.source")
    if is_stream(source):  # not its lines, which iterating over it would give
        return _pieces_of(source)
    if type(source).__name__.startswith("RawBatch"):
        return _cursor_batches(source)
    return None


def _is_byte_buffer(source: object) -> bool:
    """Whether a value other than `bytes` is a buffer of bytes: an `mmap`, an array of uint8."""
    try:
        view = memoryview(source)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return False
    return view.format == "B" and view.ndim == 1


def _pieces_of(source: Readable) -> Iterator[tuple[int, memoryview]]:
    """The pieces of a file at a place, or of a file object."""
    with closing(source_for(source)) as file:
        yield from _file_pieces(file)


def _file_pieces(file: BaseSource) -> Iterator[tuple[int, memoryview]]:
    return wire.pieces(reader(file.size, file.read_into, DEFAULT.gzip_ratio))


def _cursor_batches(cursor: Iterable[bytes]) -> Iterator[tuple[int, memoryview]]:
    start = 0
    for batch in cursor:
        yield start, wire.view(batch)
        start += len(batch)


def _from_runs(raw: Iterator[tuple[int, memoryview]], key: str | None, ids: IdReader | None) -> Iterator[Batch]:
    names = None if key is None else wire.path_bytes(key)
    first = 0
    for start, data in raw:
        names = names or _find_only_field(data)
        run = _find_in_run(data, names, ids, start, first)
        yield run
        first += len(run.missing)


def _find_only_field(data: memoryview) -> list[bytes]:
    """Returns the keys of the only vector field."""
    paths = wire.find_vectors(data).paths
    _only(wire.path_texts(paths))
    return [name + b"\0" for name in paths[0].split(b"\0")[:-1]]


def _find_in_run(data: memoryview, names: Sequence[bytes], ids: IdReader | None, start: int, first: int) -> Run:
    column = wire.find(data, names, start)
    missing = (column.kinds == 0) | (column.kinds == wire.NULL)
    present = ~missing
    binary = column.kinds == wire.BINARY
    if binary.any():
        # A binary is its length (4 bytes), its subtype (1 byte) and the payload.
        binary[binary] = np.frombuffer(data, np.uint8)[column.begins[binary] + 4] == VECTOR_SUBTYPE
    wrong = np.flatnonzero(present & ~binary)
    if wrong.size:
        number = int(wrong[0])
        found, [path] = wire.kind_name(int(column.kinds[number])), wire.path_texts([b"".join(names)])
        raise _not_a_vector(found, path, first + number, start + int(column.begins[number]))
    own_ids = None if ids is None else ids(data, wire.find(data, [b"_id\0"], start))
    return Run(start, first, data, column.begins[present] + 5, column.ends[present], missing, own_ids)


def _not_a_vector(found: str, key: str | None, number: int, offset: int | None = None) -> FormatError:
    hint = None
    if key is not None and found in ("array", "list"):
        hint = Hint("tensorglot.bson.migrate converts arrays", "`tensorglot vectors migrate` converts arrays")
    where = f"item {number}" if key is None else f"'{escape(key)}' of document {number}"
    return FormatError(f"{where} is {found}, not a vector", rule="bson.field.kind", offset=offset, hint=hint)


def read_ids(data: memoryview, column: wire.Column) -> list[Any]:
    """Decodes ids to Python values, an ObjectId to `Raw`; None if a document has no `_id`."""
    return [decode_value(data, kind, begin, end) if kind else None for kind, begin, end in column]


def _payload_batches(source: Iterable[Any], ids: IdReader | None) -> Iterator[Batch]:
    if ids is not None:
        raise InputError("payloads have no ids; pass documents and key=", rule="bson.ids")
    items = iter(source)
    size = len(source) if isinstance(source, list) else _BATCH
    first = 0
    while batch := list(islice(items, size or 1)):
        yield _collect_payloads(batch, None, None, first)
        first += len(batch)


def _document_batches(source: Iterable[Any], key: str, ids: IdReader | None) -> Iterator[Batch]:
    """Reads raw documents or mappings, depending on the first document of each batch."""
    names, keys = wire.path_bytes(key), key.split(".")
    items = iter(source)
    start = first = 0
    while batch := list(islice(items, _BATCH)):
        if isinstance(batch[0], Mapping) and not hasattr(batch[0], "raw"):
            if not all(isinstance(document, Mapping) for document in batch):
                raise InputError("documents must be all mappings or all BSON bytes, found both", rule="bson.source")
            own_ids = None if ids is None else [document.get("_id") for document in batch]
            yield _collect_payloads([_lookup(document, keys) for document in batch], key, own_ids, first)
        else:
            joined = wire.view(b"".join(map(_raw_document, batch)))
            yield _find_in_run(joined, names, ids, start, first)
            start += len(joined)
        first += len(batch)


def _raw_document(item: Any) -> bytes:
    raw = getattr(item, "raw", item)
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise InputError(f"expected a document or its BSON bytes, got {type(item).__name__}", rule="bson.source")
    return bytes(raw)


def _lookup(document: Any, names: Sequence[str]) -> Any:
    value = document
    for name in names:
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and _POSITION.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _collect_payloads(items: list[Any], key: str | None, ids: list[Any] | None, first: int) -> Payloads:
    missing = np.fromiter((item is None for item in items), np.bool_, len(items))
    payloads = [_to_payload(item, number, key) for number, item in enumerate(items, first) if item is not None]
    return Payloads(first, payloads, missing, ids)


def _to_payload(item: Any, number: int, key: str | None) -> bytes:
    if isinstance(item, bytes) and getattr(item, "subtype", VECTOR_SUBTYPE if key is None else 0) == VECTOR_SUBTYPE:
        return item
    if is_vector(item):
        return encode(item, ignored_bits="keep")
    if key is None and isinstance(item, (bytearray, memoryview)):
        return bytes(item)
    raise _not_a_vector(type(item).__name__, key, number)
