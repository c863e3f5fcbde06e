"""pandas Series and DataFrames.

A column of a NumPy type is its array: NaN stays NaN, NaT is a missing value. All others
(nullable and Arrow types, categories, objects) go through Arrow, with pandas' missing values.
A DataFrame is an array of structs, each column as its Series would be. Its index is kept as
`reset_index()` keeps it, unless it only numbers the rows; a Series is its values. The type
that `to_pandas` notes in `attrs` is used where it fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorglot.bridges import arrow, arrow_tables
from tensorglot.bridges.table import Bridge
from tensorglot.dynd.coerce.anything import coerce, typeof
from tensorglot.dynd.schema import plan_of
from tensorglot.dynd.tensors import from_tensor
from tensorglot.dynd.value import Value
from tensorglot.errors import InputError, escape
from tensorglot.extras import pa, pandas
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import Fixed, Struct, Var
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE"]


def to_tensor(value: Any, type: Type | None) -> Tensor:
    if isinstance(value, pandas.DataFrame):
        return _frame(value, type)
    if value is pandas.NA or value is pandas.NaT:
        return coerce(None, type)
    if not isinstance(value, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray):
        return coerce(np.asarray(value), type)
    if _is_numpy(value):
        return coerce(value.to_numpy(), type)
    rows, row = arrow_tables.known_rows(getattr(value, "attrs", {}))
    if row is not None and not (isinstance(row, Struct) and row.fields):  # those are the attrs of a DataFrame
        tensor = arrow_tables.from_rows(_as_arrow(value), rows, row)
        if type in (None, tensor.type):
            return tensor
    return arrow.to_tensor(_as_arrow(value), type)


def _is_numpy(column: Any) -> bool:
    return isinstance(column.dtype, np.dtype) and not column.dtype.hasobject


def _as_arrow(column: Any) -> Any:
    try:
        return pa.array(column, from_pandas=True)
    except pa.ArrowException as error:
        raise InputError(
            f"Arrow does not support this column of {column.dtype}: {error}", rule="pandas.column"
        ) from error


def _frame(frame: Any, type: Type | None) -> Tensor:
    """Records of the type given, if its fields are the columns; else each column has its own type."""
    frame = _with_index(frame)
    series = {str(name): frame.iloc[:, i] for i, name in enumerate(frame.columns)}
    if len(series) < frame.shape[1]:
        twice = next(name for name in series if [*map(str, frame.columns)].count(name) > 1)
        raise InputError(f"the DataFrame has several columns '{escape(twice)}': rename them", rule="pandas.column")
    rows, row = arrow_tables.known_rows(frame.attrs)
    known = dict(row.fields) if isinstance(row, Struct) else {}
    wanted = _fields_for(type, list(series), len(frame))
    if wanted and wanted != known:
        rows = "var" if isinstance(type, Var) else "fixed"
        columns = [(name, each, _column(series[name], each)) for name, each in wanted.items()]
    else:
        columns = [(name, *_own_column(column, known.get(name))) for name, column in series.items()]
    return arrow_tables.from_columns(columns, rows, len(frame))


def _with_index(frame: Any) -> Any:
    """The frame with its index as columns, unless the index has no name and only numbers the rows from 0."""
    index = frame.index
    numbers = isinstance(index, pandas.RangeIndex) and (index.start, index.step) == (0, 1)
    return frame if numbers and index.name is None else frame.reset_index()


def _fields_for(type: Type | None, names: list[str], count: int) -> dict[str, Type]:
    """The fields of a type, if it is one of `count` records with exactly these names; else empty."""
    fits = isinstance(type, Var) or (isinstance(type, Fixed) and type.size == count)
    row = type.element if fits and isinstance(type, Var | Fixed) else None
    return dict(row.fields) if isinstance(row, Struct) and {name for name, _ in row.fields} == set(names) else {}


def _own_column(column: Any, known: Type | None) -> tuple[Type, Value]:
    """The element type of a column, and its value as a `var`. `known` is the type that `to_pandas` noted."""
    if not _is_numpy(column):
        return arrow_tables.read_column(_as_arrow(column), known)
    element = typeof(np.zeros((), column.dtype))
    return element, _column(column, element)


def _column(column: Any, element: Type) -> Value:
    if _is_numpy(column):
        return from_tensor(coerce(column.to_numpy(), Var(element)))
    return arrow.to_value(_as_arrow(column), plan_of(Var(element)))


BRIDGE = Bridge(to_tensor)
