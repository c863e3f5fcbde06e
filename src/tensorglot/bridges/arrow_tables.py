"""Values as Arrow tables, and back with the same type: the way to Parquet, pandas and polars.

A value of `N * {…}` or `var * {…}` has a column for each field; any other value is one
column named `data`, with a row for each element of its first dimension. Arrow does not
tell `?int64` without nulls from `int64`, `var` from `N`, or a tuple from a struct. So the
metadata of the schema has the type of a row (`dynd.type`) and of the dimension
(`dynd.rows`). A column that Arrow has no type for holds the canonical bytes of each row.

If another program has changed the table, and the noted types no longer fit, its Arrow types are used.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tensorglot.bridges import arrow
from tensorglot.bridges.arrow_export import arrow_array
from tensorglot.bridges.table import Bridge
from tensorglot.dynd.codec.decode import decode_all
from tensorglot.dynd.codec.encode import encode, varint
from tensorglot.dynd.coerce.anything import as_tensor, coerce
from tensorglot.dynd.schema import plan_of
from tensorglot.dynd.tensors import from_tensor
from tensorglot.dynd.value import Column, Lists, Value, take
from tensorglot.errors import FormatError, InputError, UnsupportedError, escape
from tensorglot.extras import pa, pandas, polars
from tensorglot.model.tensor import Tensor
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type
from tensorglot.model.types.temporal import DateTime, Unit
from tensorglot.model.types.text import parse

__all__ = [
    "BRIDGE",
    "COLUMN",
    "METADATA",
    "from_columns",
    "from_polars",
    "from_rows",
    "from_table",
    "known_rows",
    "read_column",
    "to_pandas",
    "to_polars",
    "to_table",
]

COLUMN = "data"
"""The column of a value whose rows are not records."""
_ROWS, _TYPE = "dynd.rows", "dynd.type"
METADATA = (_ROWS, _TYPE)
_POLARS = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double",
    "string", "large_string", "binary", "large_binary", "date32[day]",
}  # fmt: skip
"""Arrow types without parameters that a round trip through polars preserves."""
Storable = Callable[[Any], bool]
"""Whether an Arrow array can be stored."""


def to_table(value: Any, type: Type | None = None, storable: Storable = lambda array: True) -> Any:
    """An Arrow table of any value."""
    tensor = coerce(value, type)
    rows, row = _split(tensor.type)
    if isinstance(row, ty.Struct) and row.fields:
        columns = {name: _column(each, storable) for name, each in _fields(tensor, row).items()}
    else:
        columns = {COLUMN: _column(tensor, storable)}
    schema = pa.schema([pa.field(name, array.type) for name, array in columns.items()])
    return pa.table(list(columns.values()), schema.with_metadata({_ROWS: rows, _TYPE: str(row)}))


def _split(type: Type) -> tuple[str, Type]:
    """The dimension of the rows of a value ("fixed", "var", or "one" without a dimension), and the type of a row."""
    if isinstance(type, ty.Fixed):
        return "fixed", type.element
    return ("var", type.element) if isinstance(type, ty.Var) else ("one", type)


def _fields(tensor: Tensor, row: ty.Struct) -> dict[str, Tensor]:
    """The fields of the rows of a value, each as a `var`."""
    value = from_tensor(tensor)
    node, rows = value.plan.root, slice(0, 1)
    if isinstance(tensor.type, ty.Var):
        lists = value.lists(node)
        node, rows = node.child, slice(int(lists.starts[0]), int(lists.stops[0]))
    elif isinstance(tensor.type, ty.Fixed):
        node, rows = node.child, slice(0, tensor.type.size)
    found = {}
    for (name, type), child in zip(row.fields, node.children, strict=True):
        found[name] = as_tensor(_lists_value(type, rows.stop - rows.start, take(child, value.columns, rows)))
    return found


def _lists_value(element: Type, count: int, columns: list[Column]) -> Value:
    """`count` values as one `var`."""
    return Value(plan_of(ty.Var(element)), (Lists(np.array([0]), np.array([count])), *columns))


def _column(tensor: Tensor, storable: Storable) -> Any:
    """The array of the rows of a value, or of their canonical bytes if Arrow has no type for them."""
    rows, row = _split(tensor.type)
    try:
        array = arrow.from_tensor(tensor) if rows != "one" else arrow_array(from_tensor(tensor))
        if storable(array):
            return array
    except UnsupportedError:
        pass
    return pa.array(_cells(tensor, rows, row), pa.large_binary())


def _cells(tensor: Tensor, rows: str, row: Type) -> list[bytes]:
    """The canonical bytes of each row."""
    data = bytes(tensor.serialize())
    if rows == "one":
        return [data]
    # As a `var` of rows: its first column is the count, whichever dimension the value has.
    value = decode_all(data if rows == "var" else varint(len(tensor)) + data, ty.Var(row))
    node, plan, lists = value.plan.root.child, plan_of(row), value.lists(value.plan.root)
    positions = range(int(lists.starts[0]), int(lists.stops[0]))
    return [encode(Value(plan, tuple(take(node, value.columns, slice(i, i + 1))))).tobytes() for i in positions]


def from_table(table: Any) -> Tensor:
    """The value of a table: of the type in its metadata where that fits, else of its Arrow types."""
    metadata = table.schema.metadata or {}
    rows, row = known_rows(
        {key.decode(errors="replace"): text.decode(errors="replace") for key, text in metadata.items()}
    )
    if isinstance(row, ty.Struct) and row.fields:
        known = dict(row.fields)
        columns = [(name, *read_column(table.column(name), known.get(name))) for name in table.column_names]
        return from_columns(columns, rows, table.num_rows)
    if row is None or table.column_names != [COLUMN]:
        return arrow.to_tensor(table, None)
    return from_rows(table.column(COLUMN), rows, row)


def from_rows(column: Any, rows: str, row: Type) -> Tensor:
    """The value of a column: of the type of a row where that fits, else of its Arrow type."""
    array = arrow.as_array(column)
    return as_tensor(_read(array, row, _rows_of(rows, len(array)))[1])


def _rows_of(rows: str, count: int) -> str:
    """The dimension of rows. A table of one value may have been changed to one of several."""
    return "fixed" if rows == "one" and count != 1 else rows


def known_rows(metadata: Mapping[Any, Any]) -> tuple[str, Type | None]:
    """The dimension of the rows and the type of a row, as `_split` gives them, from metadata; else "fixed" and None."""
    rows, row = metadata.get(_ROWS), metadata.get(_TYPE)
    if not (isinstance(rows, str) and isinstance(row, str)):
        return "fixed", None
    try:
        return rows, parse(row)
    except InputError:
        return "fixed", None


def read_column(column: Any, type: Type | None) -> tuple[Type, Value]:
    """The type of the elements of a column, and its value as a `var`."""
    return _read(arrow.as_array(column), type, "var")


def from_columns(columns: Iterable[tuple[str, Type, Value]], rows: str, count: int) -> Tensor:
    """The records of columns, each of them a `var`."""
    fields: list[tuple[str, Type]] = []
    parts: list[Column] = [None]
    for name, type, value in columns:
        fields.append((name, type))
        parts += value.columns[1:]
    row, rows = ty.Struct(tuple(fields)), _rows_of(rows, count)
    if rows == "var":
        return as_tensor(_lists_value(row, count, parts))
    if rows == "one":
        return as_tensor(Value(plan_of(row), tuple(parts)))
    return as_tensor(Value(plan_of(ty.Fixed(count, row)), (None, *parts)))


def _read(array: Any, type: Type | None, rows: str) -> tuple[Type, Value]:
    """The rows of a column, of the type given if that fits, else of the type that Arrow has."""
    if type is not None:
        whole = _type_of_rows(rows, len(array), type)
        try:
            # The noted type fits if Arrow cannot tell it from the type that the column has.
            if _plain(type) == _plain(arrow.element_type(array)):
                return type, arrow.to_value(array[0] if rows == "one" else array, plan_of(whole))
            if str(array.type) == "large_binary" and not array.null_count:
                data = b"".join(array.to_pylist())
                return type, decode_all(varint(len(array)) + data if rows == "var" else data, whole)
        except (InputError, FormatError):  # another program has changed the table: use its Arrow types
            pass
    type = arrow.element_type(array)
    whole = _type_of_rows(rows, len(array), type)
    return type, arrow.to_value(array[0] if rows == "one" else array, plan_of(whole))


def _type_of_rows(rows: str, count: int, row: Type) -> Type:
    return row if rows == "one" else ty.Var(row) if rows == "var" else ty.Fixed(count, row)


def _plain(type: Type) -> Type:
    """A type as Arrow and Parquet restore it: without options, pointers and storage orders, units all seconds.

    Tuples are structs, and all kinds of text are strings. Two types that are equal in this form may be the same.
    """
    if isinstance(type, ty.Option | ty.Pointer | ty.Storage):
        return _plain(type.element)
    if isinstance(type, ty.Char | ty.FixedString | ty.TypeType):
        return ty.String()
    if isinstance(type, ty.Fixed):
        return ty.Fixed(type.size, _plain(type.element))
    if isinstance(type, ty.Var):
        return ty.Var(_plain(type.element))
    if isinstance(type, ty.Map):
        return ty.Map(_plain(type.key), _plain(type.item))
    if isinstance(type, ty.Tuple):
        return ty.Struct(tuple((str(i), _plain(each)) for i, each in enumerate(type.elements)))
    if isinstance(type, ty.Struct):
        return ty.Struct(tuple((name, _plain(each)) for name, each in type.fields))
    if isinstance(type, DateTime):
        return DateTime("s", type.tz)
    return type.__class__("s") if isinstance(type, Unit) else type


def to_tensor(value: Any, type: Type | None) -> Tensor:
    """Any of Arrow's collections as a tensor."""
    if isinstance(value, pa.Tensor):
        return coerce(value.to_numpy(), type)
    if isinstance(value, pa.Buffer):
        return coerce(memoryview(value).cast("B"), type)
    if type is None and isinstance(value, pa.Table):
        return from_table(value)
    return arrow.to_tensor(value, type)


def to_pandas(value: Any, type: Type | None = None) -> Any:
    """A DataFrame of records, or a Series, with Arrow's types; `attrs` keep the DyND type."""
    arrow_dtype = pandas.ArrowDtype  # before `to_table`: if both libraries are missing, the error names pandas
    table = to_table(value, type)
    frame = table.to_pandas(types_mapper=arrow_dtype)
    found = frame if _has_records(table) else frame[COLUMN]
    found.attrs.update({name: table.schema.metadata[name.encode()].decode() for name in METADATA})
    return found


def to_polars(value: Any, type: Type | None = None) -> Any:
    """A DataFrame of records, or a Series of other values. polars keeps no metadata: pass the type to `from_polars`."""
    from_arrow = polars.from_arrow  # before `to_table`: if both libraries are missing, the error names polars
    table = to_table(value, type, lambda array: _polars_has(array.type))
    for name in table.column_names:
        if not _polars_names(name):
            raise UnsupportedError(
                f"polars cannot have a column named '{escape(name)}': rename the field", rule="polars.name"
            )
    found = from_arrow(table)
    return found if _has_records(table) else found[COLUMN]


def _has_records(table: Any) -> bool:
    """Whether a table that `to_table` made has a column for each field of records, one of them perhaps `data`."""
    _, row = known_rows({name: table.schema.metadata[name.encode()].decode() for name in METADATA})
    return isinstance(row, ty.Struct) and bool(row.fields)


def from_polars(table: Any, type: Type | None) -> Tensor:
    """The value of an Arrow table or array of polars, of the type given if `to_polars` made it of that type."""
    if type is not None:
        rows, row = _split(type)
        whole = table if isinstance(table, pa.Table) else pa.table({COLUMN: table})
        found = from_table(whole.replace_schema_metadata({_ROWS: rows, _TYPE: str(row)}))
        if found.type == type:
            return found
    return arrow.to_tensor(table, type)


def _polars_names(name: str) -> bool:
    """Whether polars accepts a column name: it replaces an empty one, and fails for a NUL."""
    return name != "" and "\0" not in name


def _polars_has(kind: Any) -> bool:
    """Whether a round trip through polars preserves an Arrow type. polars converts other types, or panics on them."""
    is_ = pa.types
    if is_.is_timestamp(kind):
        return kind.unit != "s" and (kind.tz is None or kind.tz in zoneinfo.available_timezones())
    if is_.is_duration(kind):
        return bool(kind.unit != "s")
    if is_.is_time(kind):
        return bool(kind.unit == "ns")
    if is_.is_decimal128(kind):
        return bool(0 <= kind.scale <= kind.precision)
    if is_.is_fixed_size_list(kind) and kind.list_size == 0:
        return False
    if is_.is_struct(kind) or is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        return bool(inner) and all(_polars_names(field.name) and _polars_has(field.type) for field in inner)
    return str(kind) in _POLARS


def type_of(value: Any) -> Type:
    if isinstance(value, pa.Tensor | pa.Buffer | pa.Table):
        return to_tensor(value, None).type
    return arrow.type_of(value)


BRIDGE = Bridge(to_tensor, type_of)
