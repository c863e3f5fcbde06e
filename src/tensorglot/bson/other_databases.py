"""Encodes and decodes vectors as pgvector, sqlite-vec and Redis store them.

The table is the code: for each database and dtype the header, the byte order of the
elements and the order of bits in a byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from tensorglot.arguments import check_choice
from tensorglot.bson.coerce import DType, apply_ignored_bits
from tensorglot.bson.vector import Vector
from tensorglot.errors import FormatError, InputError, UnsupportedError
from tensorglot.wire.bson import view
from tensorglot.wire.bson_vector import Kind, find_kind

__all__ = ["Database", "from_database", "to_database"]

Database: TypeAlias = Literal["pgvector", "sqlite-vec", "redis"]


@dataclass(frozen=True, slots=True)
class _Form:
    """How one database stores vectors of one dtype."""

    numpy: str
    """Element type; bytes for packed_bit."""
    header: struct.Struct | None = None
    """The number of elements, followed by zero bytes."""
    max_count: int | None = None
    lowest_first: bool = False
    """The first element is the lowest bit of a byte."""
    whole_bytes: bool = False
    """Only whole bytes can be stored: the number of bits must be a multiple of eight."""


# pgvector's limits are those of its types vector (16,000 dimensions) and bit (83,886,080 bits).
_FORMS: Final[dict[tuple[str, str], _Form]] = {
    ("pgvector", "float32"): _Form(">f4", header=struct.Struct(">Hxx"), max_count=16_000),
    ("pgvector", "packed_bit"): _Form("|u1", header=struct.Struct(">i"), max_count=83_886_080),
    ("sqlite-vec", "float32"): _Form("<f4"),
    ("sqlite-vec", "int8"): _Form("|i1"),
    ("sqlite-vec", "packed_bit"): _Form("|u1", lowest_first=True, whole_bytes=True),
    ("redis", "float32"): _Form("<f4"),
}


def _form(database: str, dtype: str) -> _Form:
    check_choice(database, get_args(Database), "database", "database.name")
    form = _FORMS.get((database, dtype))
    if form is None:
        known = ", ".join(f"{name} {kind}" for name, kind in _FORMS)
        raise UnsupportedError(f"{database} does not support {dtype} (supported: {known})", rule="database.form")
    return form


def to_database(vector: Any, database: Database) -> bytes:
    """Encodes a vector, or any value that `encode` accepts, for pgvector's binary protocol, sqlite-vec or Redis."""
    vector = vector if isinstance(vector, Vector) else Vector(vector)
    form = _form(database, vector.dtype)
    if form.whole_bytes and vector.padding:
        raise UnsupportedError(
            f"{database} needs a multiple of 8 bits, the vector has {vector.count}", rule="database.padding"
        )
    if form.max_count is not None and vector.count > form.max_count:
        raise UnsupportedError(
            f"{database} allows {form.max_count} elements, the vector has {vector.count}", rule="database.size"
        )
    apply_ignored_bits(vector.data, vector.padding, "error", InputError)
    data = _reverse_bits(vector.data).tobytes() if form.lowest_first else vector.data.astype(form.numpy).tobytes()
    return data if form.header is None else form.header.pack(vector.count) + data


def from_database(data: Any, database: Database, dtype: DType = "float32") -> Vector:
    """Decodes a vector from the bytes of a database. Only pgvector stores a count, and none stores the dtype."""
    kind = find_kind(dtype)
    form = _form(database, kind.name)
    raw = view(data)
    count, raw = (None, raw) if form.header is None else _split_header(raw, form.header)
    itemsize = np.dtype(form.numpy).itemsize
    if len(raw) % itemsize:
        raise FormatError(
            f"{len(raw)} bytes are not a multiple of {itemsize}, the size of {kind.name}", rule="database.size"
        )
    values = np.frombuffer(raw, form.numpy)
    padding = 0 if count is None else _check_count(count, kind, len(raw))
    try:
        return Vector(_reverse_bits(values) if form.lowest_first else values, kind.name, padding)
    except InputError as error:
        raise FormatError(error.message, rule=error.rule) from error


def _split_header(raw: memoryview, header: struct.Struct) -> tuple[int, memoryview]:
    """Returns the number of elements that the header declares, and the data after it."""
    if len(raw) < header.size:
        raise FormatError(
            f"truncated header: needs {header.size} bytes, has {len(raw)}", rule="database.header", offset=0
        )
    count: int = header.unpack_from(raw)[0]
    if header.pack(count) != raw[: header.size]:
        raise FormatError("the second field of the header is not zero", rule="database.header", offset=2)
    return count, raw[header.size :]


def _check_count(count: int, kind: Kind, nbytes: int) -> int:
    """Returns the padding of `count` elements in `nbytes`."""
    padding = 8 * nbytes - count if kind.name == "packed_bit" else 0
    if count < 0 or not 0 <= padding <= 7 or kind.count(nbytes, padding) != count:
        raise FormatError(f"the header declares {count} elements, {nbytes} bytes follow", rule="database.size")
    return padding


def _reverse_bits(values: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Reverses the order of the bits in each byte."""
    return np.packbits(np.unpackbits(values), bitorder="little")
