"""Element types (IV.A.2.d) and shapes (IV.A.2.b) of datasets and attributes.

NumPy's types in their usual form are known; all others have only a name and a size. A
message may refer to another object that has the type (a committed, or named, datatype:
IV.A.2). Such a reference is followed once: that object must have the type itself, so
references cannot form a cycle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tensorglot.containers.hdf5.objects import DATATYPE, Message, Objects
from tensorglot.errors import FormatError, UnsupportedError

__all__ = ["DTYPES", "UNLIMITED", "Element", "parse_most", "parse_shape", "read_type"]

DTYPES: dict[str, str] = {
    name: name
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64", "complex64", "complex128", "bfloat16",
    )
}  # fmt: skip
"""bfloat16 is the float of its layout, or, as Keras stores it, two opaque bytes with an attribute."""
_FLOATS = {  # bytes, position of the exponent, bits of exponent and mantissa, bias; `_float` checks the rest
    (2, 10, 5, 10, 15): "float16",
    (2, 7, 8, 7, 127): "bfloat16",
    (4, 23, 8, 23, 127): "float32",
    (8, 52, 11, 52, 1023): "float64",
}
_CLASSES = (
    "integer", "float", "time", "string", "bit field", "opaque", "compound", "reference", "enum", "vlen", "array",
)  # fmt: skip
_BOOL = (b"FALSE\0", b"TRUE\0")
_IN_HEAP = 1
"""Since version 2, the kind of a shared message that is in the heap of the file's table of shared messages."""
UNLIMITED = (1 << 64) - 1
"""The largest size that an unlimited axis declares."""


@dataclass(frozen=True, slots=True)
class Element:
    """A type of elements."""

    name: str
    """Our name of the type if it is known, otherwise a description."""
    nbytes: int
    known: bool
    big_endian: bool = False
    variable: bool = False
    """Text of variable length, which is elsewhere in the file."""
    kind: str = ""


def read_type(objects: Objects, message: Message) -> Element:
    """The type in a message, or in the object that the message refers to."""
    if not message.shared:
        return _parse_type(message.data, message.offset)
    address = message.offset - objects.begin
    version, kind = objects.unpack("<2B", message.data, address)
    if version not in (1, 2, 3) or (version > 1 and kind == _IN_HEAP):
        raise UnsupportedError(
            "messages in a table of shared messages are not supported", rule="hdf5.shared", offset=message.offset
        )
    place = objects.unpack("<Q", message.data, address, 8 if version == 1 else 2)[0]
    found = objects.committed.get(place)
    if found is None:
        types = [held for held in objects.header(place) if held.kind == DATATYPE]
        if len(types) != 1 or types[0].shared:
            raise objects.fault("a datatype refers to an object that has none of its own", "shared", place)
        found = objects.committed[place] = types[0]
    return _parse_type(found.data, found.offset)


def _parse_type(data: bytes, offset: int) -> Element:
    """The type that a message describes; `offset` is for errors."""
    if len(data) < 8:
        raise FormatError("a datatype is too short", rule="hdf5.type", offset=offset)
    kind, version = data[0] & 15, data[0] >> 4
    bits, nbytes = int.from_bytes(data[1:4], "little"), int.from_bytes(data[4:8], "little")
    title = _CLASSES[kind] if kind < len(_CLASSES) else f"class {kind}"
    if nbytes == 0:
        raise FormatError("a datatype has a size of 0 bytes", rule="hdf5.type", offset=offset)
    name = None
    big = bool(bits & 1)
    rest = data[8:]
    if kind == 0 and nbytes in (1, 2, 4, 8) and rest[:4] == struct.pack("<HH", 0, 8 * nbytes):
        name = f"{'int' if bits & 8 else 'uint'}{8 * nbytes}"
    elif kind == 1 and len(rest) >= 12:
        name = _float(bits, nbytes, rest)
    elif kind == 8 and bits & 0xFFFF == 2 and nbytes == 1:
        name = _bool(version, rest)
    elif kind == 6 and bits & 0xFFFF == 2:
        name, big = _complex(version, nbytes, rest, offset)
    variable = kind == 9 and bits & 15 == 1
    if name is None:
        return Element(f"{title} of {nbytes} bytes", nbytes, known=False, variable=variable, kind=title)
    return Element(name, nbytes, known=True, big_endian=big and nbytes > 1, kind=title)


def _float(bits: int, nbytes: int, rest: bytes) -> str | None:
    """The name of an IEEE 754 layout in either byte order, with the sign as the highest bit; otherwise None."""
    at, precision, exponent_at, exponent, mantissa_at, mantissa, bias = struct.unpack_from("<HHBBBBI", rest)
    usual = at == 0 and precision == 8 * nbytes and mantissa_at == 0 and bits >> 8 & 0xFF == 8 * nbytes - 1
    usual = usual and bits >> 4 & 3 == 2 and not bits & 0x40  # an implied leading bit; not VAX order
    return _FLOATS.get((nbytes, exponent_at, exponent, mantissa, bias)) if usual else None


def _bool(version: int, rest: bytes) -> str | None:
    """The name of h5py's bool, an enum of int8 with FALSE and TRUE; otherwise None."""
    base = rest[:12]
    if len(base) < 12 or base[0] & 15 or base[4:8] != b"\1\0\0\0":
        return None
    pad = (lambda text: text.ljust(8, b"\0")) if version < 3 else (lambda text: text)
    return "bool" if rest[12:][: len(b"".join(map(pad, _BOOL))) + 2] == b"".join(map(pad, _BOOL)) + b"\0\1" else None


def _complex(version: int, nbytes: int, rest: bytes, offset: int) -> tuple[str | None, bool]:
    """The name and byte order of h5py's complex numbers, a compound of two floats, r and i; otherwise None."""
    parts: list[tuple[bytes, int, Element]] = []
    at = 0
    for _ in range(2):
        end = rest.find(b"\0", at)
        if end < 0:
            return None, False
        name = rest[at:end]
        at = end + 1 if version >= 3 else at + (end - at) // 8 * 8 + 8
        width = 4 if version < 3 else 1
        place = int.from_bytes(rest[at : at + width], "little")
        at += width + (28 if version == 1 else 0)
        inner = rest[at:]
        if len(inner) < 20 or inner[0] & 15 != 1:
            return None, False
        parts.append((name, place, _parse_type(inner, offset)))
        at += 20
    (one, first, real), (two, second, imaginary) = parts
    if (one, two, first, second) != (b"r", b"i", 0, nbytes // 2) or real != imaginary or 2 * real.nbytes != nbytes:
        return None, False
    return {"float32": "complex64", "float64": "complex128"}.get(real.name), real.big_endian


def parse_shape(objects: Objects, data: bytes, address: int) -> tuple[int, ...] | None:
    """The shape in a dataspace (IV.A.2.b); None for a null dataspace, which h5py calls empty."""
    version, rank, _, kind = objects.unpack("<4B", data, address)
    if version not in (1, 2):
        raise UnsupportedError(
            f"unsupported dataspace version {version}", rule="hdf5.space", offset=objects.begin + address
        )
    if version == 2 and kind == 2:
        return None
    return objects.unpack(f"<{rank}Q", data, address, 8 if version == 1 else 4)


def parse_most(objects: Objects, data: bytes, address: int) -> tuple[int, ...]:
    """The largest shape in a dataspace that `parse_shape` accepts; UNLIMITED for an axis without limit."""
    version, rank, flags, _ = objects.unpack("<4B", data, address)
    begin = 8 if version == 1 else 4
    return objects.unpack(f"<{rank}Q", data, address, begin + (8 * rank if flags & 1 else 0))
