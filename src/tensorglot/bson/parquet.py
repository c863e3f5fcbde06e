"""Embeddings in Parquet files, through pyarrow: a column of vectors, `_id`, and a column for each field.

Vectors are lists of a fixed size: float, int8, or bool for packed bits. A field of one
BSON type is a column of Arrow's type; any other is binary, in each cell the BSON document
{name: value}, and marked so in the metadata of the column. A null is an absent field.
Files of other programs are read, too: any column that BSON has values for. Dates are
midnight UTC, and timestamps without a time zone are taken as UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import DType, VectorData, coerce_vector
from tensorglot.bson.columns import ValueColumn, from_dates, from_dump, from_plain, from_values
from tensorglot.bson.embeddings import ID, Embeddings, Ranges, check_paths
from tensorglot.errors import (
    FormatError,
    InputError,
    TensorglotError,
    TensorNotFound,
    UnsupportedError,
    did_you_mean,
    escape,
    list_names,
)
from tensorglot.extras import pa, parquet
from tensorglot.io.place import Place
from tensorglot.io.reader import open_reader
from tensorglot.io.target import Target, open_target
from tensorglot.wire.bson_value import BOOL, DATE, DOUBLE, INT32, INT64, OBJECT_ID, STRING

__all__ = ["ParquetSource", "open_parquet", "write_parquet"]

_MARK = b"bson"
"""Metadata key that marks a column whose BSON type Arrow does not have."""
_EMPTY = b"\5\0\0\0\0"
"""A document without fields."""
_BUFFER_NBYTES = 1 << 20
"""Size of the pieces in which a column of a row group is read; pyarrow would otherwise read the whole column."""
_REQUESTED_NBYTES = 8 << 20
"""Size of such pieces from a server, which are read by several requests at a time."""
_GUESSED_COUNT = 1024
"""Assumed length of a vector in a column of lists without a fixed size, to choose the rows of a batch."""
_KINDS = {"double": DOUBLE, "int32": INT32, "int64": INT64, "bool": BOOL}


def write_parquet(place: Place, kinds: Mapping[str, int | None], batches: Iterable[Embeddings]) -> None:
    """Writes a Parquet file or object, atomically: a row group for each batch.

    `kinds` has the BSON type of `_id` and of each field over all batches, None where it has several.
    """
    with open_target(place) as target, _closing(_Sink(target)) as sink:
        out = pa.PythonFile(sink, mode="w")
        for batch in batches:
            made = [_arrow_column(name, column, kinds[name]) for name, column in batch.columns.items()]
            made.append(_arrow_vectors(batch))
            schema = pa.schema([field for field, _ in made])
            if sink.writer is None:
                sink.writer = parquet.ParquetWriter(out, schema, compression="zstd", use_dictionary=False)
            sink.writer.write_table(pa.Table.from_arrays([array for _, array in made], schema=schema))


@contextmanager
def _closing(sink: _Sink) -> Iterator[_Sink]:
    """Closes pyarrow's writer, which ends the file.

    Also after an error, because the garbage collector would close it later; its output is then discarded.
    """
    try:
        yield sink
    except BaseException:
        sink.lost = True
        if sink.writer is not None:
            with suppress(Exception):  # the first error is what matters
                sink.writer.close()
        raise
    sink.writer.close()


class _Sink:
    """A target, as pyarrow writes to it."""

    closed = False
    lost = False
    """Whether the target was abandoned after an error: writes are discarded."""
    writer: Any = None

    def __init__(self, target: Target) -> None:
        self._target = target
        self._size = 0

    def write(self, data: Any) -> int:
        if not self.lost:
            self._size = self._target.write([memoryview(data)])
        return len(data)

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Everything is written at once."""

    def close(self) -> None:
        self.closed = True


def _arrow_vectors(found: Embeddings) -> tuple[Any, Any]:
    matrix = found.matrix
    kind = pa.list_(pa.field("element", pa.from_numpy_dtype(matrix.dtype), nullable=False), matrix.shape[1])
    metadata = {}
    if found.ranges is not None:
        metadata = {name: json.dumps(bound.tolist()) for name, bound in zip(("low", "high"), found.ranges, strict=True)}
    values = pa.array(matrix.reshape(-1))
    array = pa.Array.from_buffers(kind, len(matrix), [None], children=[values])
    return pa.field(found.key, kind, nullable=False, metadata=metadata), array


def _arrow_column(name: str, column: ValueColumn, kind: int | None) -> tuple[Any, Any]:
    gaps = ~column.present
    plain = column.plain(kind)
    if plain is not None and kind == OBJECT_ID:
        type, marked = pa.binary(12), {_MARK: b"objectId"}
        array: Any = pa.Array.from_buffers(type, len(column), [None, pa.py_buffer(plain)])
        array = pa.compute.if_else(pa.array(gaps), pa.scalar(None, type), array) if gaps.any() else array
    elif plain is not None:
        type, marked = pa.timestamp("ms", "UTC") if kind == DATE else pa.from_numpy_dtype(plain.dtype), {}
        array = pa.array(plain, mask=gaps)
        array = array.view(type) if kind == DATE else array
    elif kind == STRING:
        type, marked = pa.string(), {}
        array = pa.array(column.tolist(), type)
    else:
        type, marked = pa.large_binary(), {_MARK: b"document"}
        made = zip(column.documents(name), gaps, strict=True)
        array = pa.array([None if gap else document for document, gap in made], type)
    return pa.field(name, type, metadata=marked), array


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """An open file, and the columns to read."""

    path: str
    file: Any
    key: str
    fields: Sequence[str]
    dtype: DType
    id: str

    @property
    def rows(self) -> int:
        count: int = self.file.metadata.num_rows
        return count

    def batches(self, nbytes: int | None) -> Iterator[Embeddings]:
        """Batches of about `nbytes` bytes of vectors; None for all rows at once."""
        schema = self.file.schema_arrow
        names = [name for name in schema.names if name in {self.key, self.id, *self.fields}]
        ranges = _ranges(schema.field(self.key).metadata or {})
        with _parsing(self.path):
            for table in self._tables(names, nbytes):
                columns = {name: _value_column(table, name) for name in (self.id, *self.fields) if name in names}
                vectors = _vectors(table.column(self.key), self.dtype, self.key)
                yield Embeddings(vectors, self.key, columns.pop(self.id, None), columns, ranges=ranges)

    def _tables(self, names: list[str], nbytes: int | None) -> Iterator[Any]:
        if nbytes is None or not self.rows:
            yield self.file.read(columns=names)
            return
        type = self.file.schema_arrow.field(self.key).type
        width = type.list_size if pa.types.is_fixed_size_list(type) else _GUESSED_COUNT
        count = max(1, nbytes // max(1, 4 * width))
        for batch in self.file.iter_batches(count, columns=names, use_threads=False):
            yield pa.Table.from_batches([batch])


@contextmanager
def open_parquet(
    place: Place, key: str | None, fields: Sequence[str], dtype: DType, id: str = ID
) -> Iterator[ParquetSource]:
    """Opens a file: vectors, the ids (`_id` only if there is such a column), and the fields that are named."""
    open_file = parquet.ParquetFile  # first: without pyarrow, the error names the extra, whether the file exists or not
    with open_reader(place) as stream:
        with _parsing(place.shown):
            buffer_nbytes = _REQUESTED_NBYTES if place.remote else _BUFFER_NBYTES
            file = open_file(stream, buffer_size=buffer_nbytes, pre_buffer=False)
            schema = file.schema_arrow
            chosen = key or _only_vectors(schema)
            wanted = fields if id == ID else (*fields, id)
            check_paths(chosen, wanted)
            for name in (chosen, *wanted):
                if name not in schema.names:
                    raise TensorNotFound(
                        f"no column '{escape(name)}'{did_you_mean(name, schema.names)}", rule="parquet.column"
                    )
        yield ParquetSource(place.shown, file, chosen, fields, dtype, id)


@contextmanager
def _parsing(path: str) -> Iterator[None]:
    """Converts the errors that pyarrow raises for invalid bytes to FormatError."""
    try:
        yield
    except (TensorglotError, FileNotFoundError, PermissionError):  # the server's answer, not the file's bytes
        raise
    except (OSError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, MemoryError) as error:
        raise FormatError(f"not a valid Parquet file: {error}", rule="parquet.file", path=path) from error


def _only_vectors(schema: Any) -> str:
    is_ = pa.types
    lists = [field.name for field in schema if is_.is_fixed_size_list(field.type) or is_.is_list(field.type)]
    fixed = [name for name in lists if is_.is_fixed_size_list(schema.field(name).type)]
    found = fixed if len(fixed) == 1 else lists
    if len(found) != 1:
        shown = list_names(found)
        raise InputError(f"pass the name of the vector column to read (lists found: {shown})", rule="place.name")
    name: str = found[0]
    return name


def _ranges(metadata: dict[bytes, bytes]) -> Ranges | None:
    try:
        low, high = (np.array(json.loads(metadata[name]), np.float32) for name in (b"low", b"high"))
    except (KeyError, ValueError, TypeError):
        return None
    return low, high


def _vectors(column: Any, dtype: DType, name: str) -> VectorData:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    try:
        if pa.types.is_fixed_size_list(array.type) and not array.null_count and not array.flatten().null_count:
            flat = array.flatten().to_numpy(zero_copy_only=False)
            return coerce_vector(flat.reshape(len(array), array.type.list_size), dtype, None, 2)
        return coerce_vector(array, dtype, None, 2)
    except InputError as error:
        raise InputError(f"column '{escape(name)}': {error.message}", rule=error.rule) from error


def _value_column(table: Any, name: str) -> ValueColumn:
    column, marks = table.column(name), table.schema.field(name).metadata or {}
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    present = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    mark = marks.get(_MARK)
    if mark == b"document":
        return from_dump(b"".join(row or _EMPTY for row in array.to_pylist()), name)
    if mark == b"objectId" and array.type == pa.binary(12):
        rows = np.frombuffer(array.buffers()[1] or b"", "V12")[array.offset : array.offset + len(array)]
        return from_plain(rows, OBJECT_ID, present)
    if pa.types.is_date32(array.type):
        return from_dates(_counts(array, pa.int32()).astype("M8[D]"), name, present)
    if pa.types.is_date64(array.type) or pa.types.is_timestamp(array.type):
        unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
        return from_dates(_counts(array, pa.int64()).view(f"M8[{unit}]"), name, present)
    if str(array.type) in _KINDS:
        filled = array.fill_null(False if str(array.type) == "bool" else 0)
        return from_plain(filled.to_numpy(zero_copy_only=False), _KINDS[str(array.type)], present)
    try:
        return from_values(array.to_pylist())
    except (InputError, ValueError, OverflowError) as error:
        reason = error.message if isinstance(error, InputError) else str(error)
        hint = "; cast it to int64 or text" if pa.types.is_time(array.type) or pa.types.is_duration(array.type) else ""
        raise UnsupportedError(
            f"column '{escape(name)}' of {array.type}: {reason}{hint}", rule="parquet.column"
        ) from error


def _counts(array: Any, kind: Any) -> NDArray[Any]:
    """Dates or timestamps as their integers, zero for nulls."""
    counts: NDArray[Any] = array.view(kind).fill_null(0).to_numpy()
    return counts
