"""Parquet files of values, through pyarrow: the tables of `arrow_tables`, stored and read back with the same type.

A column of a type that Parquet does not restore is stored as canonical bytes. A file is
written atomically. Any Parquet file can be read; a file of another program has the types
that Arrow gives it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tensorglot.arguments import as_names
from tensorglot.bridges.arrow_tables import from_table, to_table
from tensorglot.errors import FormatError, TensorglotError, TensorNotFound, UnsupportedError, did_you_mean, escape
from tensorglot.extras import pa, parquet
from tensorglot.io.place import as_place
from tensorglot.io.reader import open_reader
from tensorglot.io.storage_options import OptionsLike
from tensorglot.io.target import open_target
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.operations._places import locate

__all__ = ["from_parquet", "to_parquet"]


def to_parquet(value: Any, path: str | os.PathLike[str], type: Type | None = None, options: OptionsLike = None) -> None:
    """Writes any value as a Parquet file."""
    place = locate(path, options)
    try:
        data = _encode(to_table(value, type, _storable))
    except pa.ArrowInvalid:  # seconds that Parquet's milliseconds cannot represent
        data = _encode(to_table(value, type, lambda array: _storable(array) and "timestamp[s" not in str(array.type)))
    with open_target(place) as target:
        target.write([data])


def _encode(table: Any) -> memoryview:
    sink = pa.BufferOutputStream()
    # No dictionaries: they would make one value of NaNs with different bits.
    parquet.write_table(table, sink, compression="zstd", use_dictionary=False)
    return memoryview(sink.getvalue())


def _storable(array: Any) -> bool:
    """Whether pyarrow can write an array to Parquet and read the same array back."""
    return _returns(array.type) and not _hides_fixed_lists(array.type, bool(array.null_count))


def _hides_fixed_lists(kind: Any, missing: bool, record: bool = False) -> bool:
    """Whether there are lists of a fixed size in records that may be missing, which pyarrow cannot read."""
    is_ = pa.types
    if is_.is_fixed_size_list(kind) and record and missing:
        return True
    fields = [kind.field(i) for i in range(kind.num_fields)]
    inside = record or is_.is_struct(kind)
    return any(_hides_fixed_lists(field.type, missing or field.nullable, inside) for field in fields)


@lru_cache(maxsize=256)
def _returns(kind: Any) -> bool:
    """Whether Parquet restores an Arrow type; units of time and the names of list elements may differ."""
    sink = pa.BufferOutputStream()
    try:
        parquet.write_table(pa.table({"x": pa.array([], kind)}), sink)
        return _same(parquet.read_schema(pa.BufferReader(sink.getvalue())).field("x").type, kind)
    except (pa.ArrowException, OSError):  # OSError is Parquet's own refusal; nothing touches a disk here
        return False


def _same(found: Any, kind: Any) -> bool:
    is_ = pa.types
    if is_.is_fixed_size_list(kind) and kind.list_size == 0:
        return False
    if found.num_fields != kind.num_fields or found.id != kind.id:
        return False
    if kind.num_fields:
        return all(_same(found.field(i).type, kind.field(i).type) for i in range(kind.num_fields))
    return bool(is_.is_temporal(kind) or found == kind)


def from_parquet(
    path: str | os.PathLike[str], columns: Iterable[str] | None = None, options: OptionsLike = None
) -> Tensor:
    """Reads a Parquet file, or some of its columns, as one value."""
    open_file = parquet.ParquetFile  # first: without pyarrow, the error names the extra, whether the file exists or not
    place = as_place(locate(path, options))
    text = place.shown
    names = None if columns is None else as_names(columns, "columns", "parquet.columns")
    with open_reader(place) as stream:
        try:
            file = open_file(stream)
            for name in names or ():
                if name not in file.schema_arrow.names:
                    hint = did_you_mean(name, file.schema_arrow.names)
                    raise TensorNotFound(f"no column '{escape(name)}'{hint}", rule="parquet.column", path=text)
            table = file.read(columns=names)
            table.validate(full=True)
            return from_table(table)
        except (TensorglotError, FileNotFoundError, PermissionError):  # the server's answer, not the file's bytes
            raise
        except pa.ArrowNotImplementedError as error:
            raise UnsupportedError(str(error), rule="parquet.unsupported", path=text) from error
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise FormatError(f"not a valid Parquet file: {error}", rule="parquet.file", path=text) from error
