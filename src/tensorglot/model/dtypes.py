"""The only table of element types: name, width in bits, NumPy's type.

Names are those of NumPy and ml_dtypes, and also DyND's for the types that DyND has. Types
of fewer than eight bits are packed in files, the first element in the lowest bits, and
take one byte for each element in NumPy. The 128-bit types exist in DyND but not in NumPy:
they are carried as bytes. Each format's module has a table from its own codes to these names.

`ml_dtypes` is imported when one of its types is needed: it takes a twelfth of the time to import `load`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tensorglot.errors import InputError, UnsupportedError, did_you_mean

__all__ = ["ALIASES", "BY_NAME", "TABLE", "DType", "Kind", "dtype_of", "pack", "unpack"]

Kind: TypeAlias = Literal["bool", "integer", "real", "complex"]
_KINDS: tuple[tuple[str, Kind], ...] = (
    ("bool", "bool"), ("int", "integer"), ("uint", "integer"), ("complex", "complex"),
)  # fmt: skip


class DType:
    """One row of the table. Rows are compared by identity."""

    __slots__ = ("bits", "code", "name")

    def __init__(self, code: int, name: str, bits: int) -> None:
        self.code = code
        self.name = name
        self.bits = bits

    def __repr__(self) -> str:
        return f"DType({self.name}, {self.bits} bits)"

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """NumPy's type in the machine's byte order; None if it has none."""
        try:
            return _NUMPY[self.code]
        except KeyError:
            return _with_ml_dtypes()[self.code]

    @property
    def packed(self) -> bool:
        """Whether several elements share a byte in a file."""
        return self.bits < 8

    @property
    def kind(self) -> Kind:
        """The kind of number."""
        return next((kind for beginning, kind in _KINDS if self.name.startswith(beginning)), "real")

    @property
    def signed(self) -> bool:
        """Whether it is a signed integer type."""
        return self.name.startswith("int")

    def nbytes(self, count: int) -> int:
        """Bytes of `count` elements in a file."""
        return (count * self.bits + 7) // 8

    def require_numpy(self, tensor: str | None = None) -> np.dtype[Any]:
        """NumPy's type in the machine's byte order; UnsupportedError if NumPy has none."""
        dtype = _NUMPY.get(self.code) or self.numpy
        if dtype is None:
            raise UnsupportedError(f"NumPy does not support {self.name}", rule="dtype.numpy", tensor=tensor)
        return dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_of, (self.name,)


_ML_DTYPES = "ml_dtypes"
"""Stands for the type of the same name in ml_dtypes."""
_ROWS: tuple[tuple[str, int, Any], ...] = (
    ("bool", 8, np.bool_),
    ("int8", 8, np.int8),
    ("int16", 16, np.int16),
    ("int32", 32, np.int32),
    ("int64", 64, np.int64),
    ("uint8", 8, np.uint8),
    ("uint16", 16, np.uint16),
    ("uint32", 32, np.uint32),
    ("uint64", 64, np.uint64),
    ("float16", 16, np.float16),
    ("float32", 32, np.float32),
    ("float64", 64, np.float64),
    ("complex64", 64, np.complex64),
    ("complex128", 128, np.complex128),
    ("bfloat16", 16, _ML_DTYPES),
    ("float8_e3m4", 8, _ML_DTYPES),
    ("float8_e4m3", 8, _ML_DTYPES),
    ("float8_e4m3b11fnuz", 8, _ML_DTYPES),
    ("float8_e4m3fn", 8, _ML_DTYPES),
    ("float8_e4m3fnuz", 8, _ML_DTYPES),
    ("float8_e5m2", 8, _ML_DTYPES),
    ("float8_e5m2fnuz", 8, _ML_DTYPES),
    ("float8_e8m0fnu", 8, _ML_DTYPES),
    ("float6_e2m3fn", 6, _ML_DTYPES),
    ("float6_e3m2fn", 6, _ML_DTYPES),
    ("float4_e2m1fn", 4, _ML_DTYPES),
    ("int4", 4, _ML_DTYPES),
    ("uint4", 4, _ML_DTYPES),
    ("int2", 2, _ML_DTYPES),
    ("uint2", 2, _ML_DTYPES),
    ("int1", 1, _ML_DTYPES),
    ("uint1", 1, _ML_DTYPES),
    ("int128", 128, None),
    ("uint128", 128, None),
    ("float128", 128, None),
)

TABLE: tuple[DType, ...] = tuple(DType(code, name, bits) for code, (name, bits, _) in enumerate(_ROWS))
BY_NAME: dict[str, DType] = {row.name: row for row in TABLE}
ALIASES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "fp16": "float16", "half": "float16",
    "fp32": "float32", "fp64": "float64",
}  # fmt: skip
"""Other names that people type."""
_NUMPY: dict[int, np.dtype[Any] | None] = {
    code: None if kind is None else np.dtype(kind) for code, (_, _, kind) in enumerate(_ROWS) if kind != _ML_DTYPES
}
"""NumPy types by code. The types of ml_dtypes are added when one of them is needed."""
_BY_NUMPY: dict[np.dtype[Any], DType] = {dtype: TABLE[code] for code, dtype in _NUMPY.items() if dtype is not None}


def _with_ml_dtypes() -> dict[int, np.dtype[Any] | None]:
    """Adds the types of ml_dtypes to `_NUMPY`, and returns it."""
    import ml_dtypes

    for row in TABLE:
        if row.code not in _NUMPY:
            dtype = np.dtype(getattr(ml_dtypes, row.name))
            _BY_NUMPY[dtype] = row
            _NUMPY[row.code] = dtype
    return _NUMPY


def dtype_of(kind: DType | DTypeLike, tensor: str | None = None) -> DType:
    """The row for a name, a NumPy type of either byte order, or a row itself."""
    if isinstance(kind, DType):
        return kind
    if isinstance(kind, str):
        kind = ALIASES.get(kind, kind)
        if kind in BY_NAME:
            return BY_NAME[kind]
    try:
        numpy = np.dtype(kind)
    except (TypeError, ValueError) as error:
        near = did_you_mean(kind, [*BY_NAME, *ALIASES]) if isinstance(kind, str) else ""
        near = near or f" (known: {', '.join(BY_NAME)})"
        raise InputError(f"unknown element type {kind!r}{near}", rule="dtype.name", tensor=tensor) from error
    row = _BY_NUMPY.get(numpy)
    if row is None and numpy.byteorder in "<>":  # types without a byte order, such as StringDType, may refuse another
        row = _BY_NUMPY.get(numpy.newbyteorder("="))
    if row is None:
        _with_ml_dtypes()
        row = _BY_NUMPY.get(numpy)
    if row is None:
        raise UnsupportedError(f"NumPy's {numpy} is not supported as an element type", rule="dtype.name", tensor=tensor)
    return row


def pack(values: NDArray[Any], row: DType) -> NDArray[np.uint8]:
    """Packs elements of one byte each into `row.bits` bits each, the first in the lowest bits, padded with zeros."""
    bits = np.unpackbits(values.reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")[:, : row.bits]
    return np.packbits(bits.reshape(-1), bitorder="little")


def unpack(packed: NDArray[np.uint8], count: int, row: DType) -> NDArray[Any]:
    """The inverse of `pack`."""
    bits = np.unpackbits(packed, count=count * row.bits, bitorder="little").reshape(count, row.bits)
    return np.packbits(bits, axis=1, bitorder="little").reshape(count).view(row.require_numpy())
