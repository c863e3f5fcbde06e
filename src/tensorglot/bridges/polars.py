"""polars Series and DataFrames, through Arrow, without copying their contents."""

from __future__ import annotations

from typing import Any

from tensorglot.bridges import arrow_tables
from tensorglot.bridges.table import Bridge
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.extras import polars
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE"]


def to_tensor(value: Any, type: Type | None) -> Tensor:
    if not isinstance(value, polars.Series | polars.DataFrame):
        raise InputError(f"expected a polars Series or DataFrame, not {value.__class__.__name__}", rule="polars.value")
    columns = value.get_columns() if isinstance(value, polars.DataFrame) else [value]
    for column in columns:
        if column.dtype == polars.Object:  # its Arrow form is the addresses of the objects
            raise UnsupportedError(
                f"polars' Object column '{escape(column.name)}' has no Arrow type: pass column.to_list()",
                rule="polars.object",
            )
    return arrow_tables.from_polars(value.to_arrow(), type)


BRIDGE = Bridge(to_tensor)
