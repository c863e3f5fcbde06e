"""Vectors as other databases have them: the same numbers, other bytes.

The table is all there is to know: where a header stands, in which byte order the
elements are, and which bit of a byte comes first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tensorglot.bson.coerce import DType
from tensorglot.bson.vector import Vector
from tensorglot.errors import FormatError, InputError, UnsupportedError
from tensorglot.wire.bson import view
from tensorglot.wire.bson_vector import kind_called

__all__ = ["Neighbour", "from_neighbour", "to_neighbour"]

Neighbour: TypeAlias = Literal["pgvector", "sqlite-vec", "redis"]


@dataclass(frozen=True, slots=True)
class _Form:
    """How one database keeps vectors of one dtype."""

    numpy: str
    """The elements; of bits, bytes."""
    header: struct.Struct | None = None
    """The number of elements, with zero bytes behind it where there is room."""
    longest: int | None = None
    lowest_first: bool = False
    """The first element is the lowest bit of a byte."""
    whole_bytes: bool = False
    """Bits come in eights: there is no place for the number of ignored ones."""


_FORMS: Final[dict[tuple[str, str], _Form]] = {
    ("pgvector", "float32"): _Form(">f4", header=struct.Struct(">Hxx"), longest=16_000),
    ("pgvector", "packed_bit"): _Form("|u1", header=struct.Struct(">i"), longest=83_886_080),
    ("sqlite-vec", "float32"): _Form("<f4"),
    ("sqlite-vec", "int8"): _Form("|i1"),
    ("sqlite-vec", "packed_bit"): _Form("|u1", lowest_first=True, whole_bytes=True),
    ("redis", "float32"): _Form("<f4"),
}


def _form(database: str, dtype: str) -> _Form:
    form = _FORMS.get((database, dtype))
    if form is None:
        known = ", ".join(f"{name} {kind}" for name, kind in _FORMS)
        raise UnsupportedError(f"{database} does not support {dtype} (supported: {known})", rule="neighbour.form")
    return form


def to_neighbour(vector: Any, database: Neighbour) -> bytes:
    """The bytes of a vector, or of what `encode` takes, as pgvector's binary protocol, sqlite-vec or Redis has them."""
    vector = vector if isinstance(vector, Vector) else Vector(vector)
    form = _form(database, vector.dtype)
    if form.whole_bytes and vector.padding:
        raise UnsupportedError(
            f"{database} needs a multiple of 8 bits, the vector has {vector.count}", rule="neighbour.padding"
        )
    if form.longest is not None and vector.count > form.longest:
        raise UnsupportedError(
            f"{database} allows {form.longest} elements, the vector has {vector.count}", rule="neighbour.size"
        )
    data = _reverse_bits(vector.data).tobytes() if form.lowest_first else vector.data.astype(form.numpy).tobytes()
    return data if form.header is None else form.header.pack(vector.count) + data


def from_neighbour(data: Any, database: Neighbour, dtype: DType = "float32") -> Vector:
    """The vector of such bytes. What has no header does not say its dtype: name it."""
    dtype = kind_called(dtype).name
    form = _form(database, dtype)
    raw = view(data)
    count = None
    if form.header is not None:
        if len(raw) < form.header.size:
            raise FormatError(
                f"truncated header: needs {form.header.size} bytes, has {len(raw)}", rule="neighbour.header", offset=0
            )
        head, raw = raw[: form.header.size], raw[form.header.size :]
        (count,) = form.header.unpack(head)
        if form.header.pack(count) != head:
            raise FormatError("the second field of the header is not zero", rule="neighbour.header", offset=2)
    itemsize = np.dtype(form.numpy).itemsize
    if len(raw) % itemsize:
        raise FormatError(
            f"{len(raw)} bytes are not a multiple of {itemsize}, the size of {dtype}", rule="neighbour.size"
        )
    values = np.frombuffer(raw, form.numpy)
    padding = 0
    if count is not None:
        padding = 8 * len(values) - count if dtype == "packed_bit" else 0
        if count < 0 or not 0 <= padding <= 7 or (dtype != "packed_bit" and count != len(values)):
            raise FormatError(f"the header declares {count} elements, {len(raw)} bytes follow", rule="neighbour.size")
    try:
        return Vector(_reverse_bits(values) if form.lowest_first else values, dtype, padding)
    except InputError as error:
        raise FormatError(error.message, rule=error.rule) from error


def _reverse_bits(values: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Each byte with its bits in the opposite order."""
    return np.packbits(np.unpackbits(values), bitorder="little")
