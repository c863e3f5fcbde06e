"""One object of a version 2 manifest, whatever its form: the reader that knows every rule of §3.

The kernel reads dense objects of the common form; all others come here. Keys that
are not known are passed over, at every level (§3.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tensorglot.containers.ztensor.entries import SIZE_END
from tensorglot.errors import FormatError, LimitError
from tensorglot.limits import Limits
from tensorglot.wire.cbor import TEXT, Cursor

__all__ = ["Part", "Spec", "check_attributes", "check_name", "known_keys", "read_object"]

NAME_NBYTES = 1024
RANK = 64

_DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Part:
    """What a part says."""

    name: str
    dtype: str
    type: str | None
    offset: int
    length: int
    shard: str | None
    encoding: str | None
    decoded: int | None
    digest: str | None
    position: int

    @property
    def nbytes(self) -> int:
        """Decoded."""
        return self.length if self.decoded is None else self.decoded


@dataclass(frozen=True, slots=True)
class Spec:
    """What an object says."""

    name: str
    shape: tuple[int, ...]
    layout: str
    parts: tuple[Part, ...]
    attributes_begin: int | None
    position: int


def known_keys(cursor: Cursor, what: str) -> Iterator[str]:
    """The text keys of a map; the caller takes the value of each. Others are passed over with their values."""
    for _ in cursor.map(what):
        if cursor.major() == TEXT:
            yield cursor.text("key")
        else:
            cursor.skip()
            cursor.skip()


def check_name(name: str, offset: int, tensor: str | None = None) -> None:
    """§3.5."""
    if not 0 < len(name.encode()) <= NAME_NBYTES or "\0" in name:
        raise FormatError(
            f"a name is 1 to {NAME_NBYTES} bytes without NUL", rule="ztensor.name.form", offset=offset, tensor=tensor
        )


def check_attributes(cursor: Cursor, tensor: str | None = None) -> int:
    """§3.1: a map with names for keys. Passes over it, and returns where it began."""
    begin = cursor.pos
    for _ in cursor.map("attributes"):
        at = cursor.base + cursor.pos
        check_name(cursor.text("attribute"), at, tensor)
        cursor.skip()
    return begin


def read_object(cursor: Cursor, limits: Limits) -> Spec:
    """The pair of name and object at the cursor."""
    at = cursor.base + cursor.pos
    name = cursor.text("name")
    check_name(name, at, name)
    try:
        return _read_object(cursor, name, at, limits)
    except FormatError as error:
        error.tensor = name
        raise


def _read_object(cursor: Cursor, name: str, at: int, limits: Limits) -> Spec:
    shape = layout = parts = attributes = None
    for key in known_keys(cursor, "object"):
        if key == "shape":
            shape = _shape(cursor, limits)
        elif key == "layout":
            layout = cursor.text(key)
        elif key == "attributes":
            attributes = check_attributes(cursor, name)
        elif key == "parts":
            parts = tuple(_parts(cursor))
        else:
            cursor.skip()
    for key, value in (("shape", shape), ("layout", layout), ("parts", parts)):
        if value is None or (key == "parts" and not value):
            raise FormatError(f"an object without '{key}'", rule="ztensor.entry.missing", offset=at)
    return Spec(name, shape or (), layout or "", parts or (), attributes, at)


def _shape(cursor: Cursor, limits: Limits) -> tuple[int, ...]:
    at = cursor.base + cursor.pos
    dims: list[int] = []
    product = 1
    for _ in cursor.array("shape"):
        dims.append(cursor.uint("shape"))
        product *= dims[-1]
        if len(dims) > RANK:
            raise FormatError(f"more than {RANK} dimensions", rule="ztensor.shape.rank", offset=at)
        if len(dims) > limits.rank:
            raise LimitError("more dimensions than Limits.rank allows", rule="ztensor.limit.rank", offset=at)
        if product >= 1 << 64:
            raise FormatError("the product of the dimensions passes 2**64", rule="ztensor.shape.product", offset=at)
        if dims[-1] >= SIZE_END:
            raise LimitError("a dimension of 2**63 or more", rule="ztensor.limit.dimension", offset=at)
    return tuple(dims)


def _parts(cursor: Cursor) -> Iterator[Part]:
    for _ in cursor.map("parts"):
        at = cursor.base + cursor.pos
        name = cursor.text("part")
        check_name(name, at)
        yield _part(cursor, name, at)


def _part(cursor: Cursor, name: str, at: int) -> Part:
    texts: dict[str, str] = {}
    blob: list[int] | None = None
    decoded: int | None = None
    for key in known_keys(cursor, "part"):
        if key in ("dtype", "type", "shard", "encoding", "digest"):
            texts[key] = cursor.text(key)
        elif key == "blob":
            blob = [cursor.uint("blob") for _ in cursor.array("blob")]
        elif key == "decoded_length":
            decoded = cursor.uint(key)
        else:
            cursor.skip()
    if "dtype" not in texts or blob is None:
        raise FormatError("a part without 'dtype' or 'blob'", rule="ztensor.entry.missing", offset=at)
    if len(blob) != 2:
        raise FormatError("'blob' is an offset and a length", rule="ztensor.entry.blob", offset=at)
    if ("encoding" in texts) != (decoded is not None):
        raise FormatError(
            "'decoded_length' is there exactly where 'encoding' is", rule="ztensor.entry.decoded", offset=at
        )
    if "digest" in texts and _DIGEST.fullmatch(texts["digest"]) is None:
        raise FormatError(
            "a digest is an algorithm, a colon and lower-case hex", rule="ztensor.entry.digest", offset=at
        )
    if blob[0] + blob[1] >= SIZE_END or (decoded or 0) >= SIZE_END:
        raise FormatError("a blob beyond 2**63", rule="ztensor.blob.bounds", offset=at)
    return Part(
        name,
        texts["dtype"],
        texts.get("type"),
        blob[0],
        blob[1],
        texts.get("shard"),
        texts.get("encoding"),
        decoded,
        texts.get("digest"),
        at,
    )
