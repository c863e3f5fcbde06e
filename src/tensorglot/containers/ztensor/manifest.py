"""Encodes the manifest of version 2, and computes the content digest of its tensors (§6.4).

Keys are written in the order of deterministic CBOR: by their encoded bytes, so shorter
keys come first. Knows no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorglot.containers.ztensor.constants import IN_PART, LOGICAL_2, OVER, SEEKABLE, STORAGE_2
from tensorglot.containers.ztensor.stored import Blob, is_opaque
from tensorglot.errors import UnsupportedError, escape
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.payload import Encoded
from tensorglot.model.tensor import Part
from tensorglot.wire import cbor, checksums

__all__ = [
    "OBJECT_FORM",
    "ROOT_FORM",
    "PartSpec",
    "TensorSpec",
    "codes_of",
    "content_digest",
    "encode_manifest",
    "keeps",
]

_LOGICAL: dict[DType, tuple[str, str | None]] = {dtype: (storage, code) for code, (dtype, storage) in LOGICAL_2.items()}
_STORAGE: dict[DType, tuple[str, str | None]] = {dtype: (code, None) for code, dtype in STORAGE_2.items()}


@dataclass(frozen=True, slots=True)
class PartSpec:
    """A part as the manifest describes it."""

    name: str
    dtype: str
    type: str | None
    blob: Blob

    @property
    def encoding(self) -> str | None:
        payload = self.blob.part.payload
        if isinstance(payload, Encoded) and is_opaque(self.blob.part):
            return payload.codec.name
        return SEEKABLE if self.blob.compressed else None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An object as the manifest describes it."""

    name: str
    shape: tuple[int, ...]
    layout: str
    parts: Sequence[PartSpec]
    """Sorted by name."""
    attributes: Mapping[str, Any] | None


def codes_of(part: Part, tensor: str) -> tuple[str, str | None]:
    """The dtype and logical type of a part, or UnsupportedError."""
    unknown = part.unknown_dtype or ""
    dtype = part.dtype or BY_NAME.get(unknown.removesuffix(IN_PART))
    codes = _codes_of_unknown(unknown) if dtype is None else _STORAGE.get(dtype) or _LOGICAL.get(dtype)
    if codes is None or (part.dtype is None and part.big_endian):
        name = escape(unknown) if dtype is None else dtype.name
        raise UnsupportedError(f"ztensor@2 does not support {name}", rule="ztensor.write.dtype", tensor=tensor)
    return codes


def _codes_of_unknown(unknown: str) -> tuple[str, str | None] | None:
    """The dtype and logical type of an unknown element type of version 2: `type over dtype`."""
    logical, over, storage = unknown.rpartition(OVER)
    return (storage, logical) if over and storage in STORAGE_2 else None


def keeps(unknown: str) -> bool:
    """Whether version 2 can describe an unknown element type."""
    return unknown.removesuffix(IN_PART) in BY_NAME or _codes_of_unknown(unknown) is not None


def encode_manifest(tensors: Iterable[TensorSpec], attributes: Mapping[str, Any] | None) -> bytes:
    objects = sorted((cbor.text(tensor.name), _tensor(tensor)) for tensor in tensors)
    pairs = [_OBJECTS, cbor.head(cbor.MAP, len(objects)), *(piece for pair in objects for piece in pair)]
    if attributes is not None:
        pairs += [_ATTRIBUTES, cbor.encode(attributes, ROOT_FORM)]
    return cbor.head(cbor.MAP, 1 + (attributes is not None)) + b"".join(pairs)


_OBJECTS, _ATTRIBUTES, _PARTS, _SHAPE, _LAYOUT, _BLOB, _TYPE, _DTYPE, _DIGEST, _ENCODING, _DECODED = map(
    cbor.text,
    ("objects", "attributes", "parts", "shape", "layout", "blob", "type", "dtype", "digest", "encoding",
     "decoded_length"),
)  # fmt: skip
ROOT_FORM, OBJECT_FORM = (cbor.with_depth(cbor.DETERMINISTIC, 32 - above) for above in (1, 3))
"""Profiles for the attributes of the file and of an object. The manifest may nest 32 levels deep, and these are inside
1 or 3 of them."""


def _tensor(tensor: TensorSpec) -> bytes:
    parts = sorted((cbor.text(part.name), _part(part)) for part in tensor.parts)
    pieces = [
        cbor.head(cbor.MAP, 3 + (tensor.attributes is not None)),
        _PARTS,
        cbor.head(cbor.MAP, len(parts)),
        *(piece for pair in parts for piece in pair),
        _SHAPE,
        cbor.head(cbor.ARRAY, len(tensor.shape)),
        *(cbor.head(cbor.UINT, size) for size in tensor.shape),
        _LAYOUT,
        cbor.text(tensor.layout),
    ]
    if tensor.attributes is not None:
        pieces += [_ATTRIBUTES, cbor.encode(tensor.attributes, OBJECT_FORM)]
    return b"".join(pieces)


def _part(part: PartSpec) -> bytes:
    blob, encoding = part.blob, part.encoding
    texts = [
        (_TYPE, part.type),
        (_DTYPE, part.dtype),
        (_DIGEST, blob.checksum),
        (_ENCODING, encoding),
    ]
    pieces = [_BLOB, b"\x82", cbor.head(cbor.UINT, blob.offset), cbor.head(cbor.UINT, blob.size)]
    count = 1
    for key, value in texts:
        if value is not None:
            pieces += [key, cbor.text(value)]
            count += 1
    if encoding is not None:
        pieces += [_DECODED, cbor.head(cbor.UINT, blob.part.nbytes)]
        count += 1
    return cbor.head(cbor.MAP, count) + b"".join(pieces)


def content_digest(archive: Archive) -> str | None:
    """§6.4: a digest of the tensors that is independent of their offsets; None if a part has no digest."""
    objects: dict[str, Any] = {}
    for name, tensor in archive.items():
        parts: dict[str, Any] = {}
        for part_name, part in tensor.parts.items():
            if part.checksum is None:
                return None
            dtype, logical = codes_of(part, name)
            parts[part_name] = {"dtype": dtype, "digest": part.checksum} | (
                {} if logical is None else {"type": logical}
            )
        objects[name] = {"shape": list(tensor.shape), "layout": tensor.layout, "parts": parts}
        if tensor.attributes:
            objects[name]["attributes"] = dict(tensor.attributes)
    encoded = cbor.encode(["zt.content/1", objects], cbor.with_depth(cbor.DETERMINISTIC, 40))
    return str(checksums.Checksum("sha256", hashlib.sha256(encoded).digest()))
