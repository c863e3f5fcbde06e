"""pandas Series and DataFrames.

A column of a NumPy type is its array; a NaN stays NaN. All others (nullable and Arrow
types, categories, objects) go through Arrow, with pandas' missing values. A DataFrame
becomes an array of structs, without its index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorglot.bridges import arrow, tables
from tensorglot.bridges.table import Bridge
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError
from tensorglot.extras import library
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE"]


def to_tensor(value: Any, type: Type | None) -> Tensor:
    pandas, pa = library("pandas", "pandas"), library("pyarrow", "arrow")
    if isinstance(value, pandas.DataFrame):
        table = pa.Table.from_pandas(value, preserve_index=False)
        return tables.to_tensor(table.replace_schema_metadata(tables.metadata_of(value.attrs)), type)
    if value is pandas.NA or value is pandas.NaT:
        return coerce(None, type)
    if not isinstance(value, pandas.Series | pandas.Index | pandas.api.extensions.ExtensionArray):
        return coerce(np.asarray(value), type)
    if isinstance(value.dtype, np.dtype) and not value.dtype.hasobject:
        return coerce(value.to_numpy(), type)
    try:
        return arrow.to_tensor(pa.array(value, from_pandas=True), type)
    except pa.ArrowException as error:
        raise InputError(
            f"Arrow does not support this column of {value.dtype}: {error}", rule="pandas.column"
        ) from error


BRIDGE = Bridge(to_tensor)
