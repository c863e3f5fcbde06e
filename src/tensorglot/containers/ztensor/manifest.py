"""The manifest of version 2, from what it says to its bytes, and the identity that follows from it (§6.4).

Keys are written in the order that deterministic CBOR asks for, which is that of their
encoded bytes: the shorter first. Nothing here depends on where a file is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorglot.containers.ztensor.constants import IN_PART, LOGICAL_2, OVER, STORAGE_2
from tensorglot.errors import UnsupportedError, escape
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.tensor import Part
from tensorglot.wire import cbor, checksums

__all__ = ["PartSpec", "TensorSpec", "codes_of", "content_digest", "encode_manifest", "keeps"]

_LOGICAL: dict[DType, tuple[str, str | None]] = {dtype: (storage, code) for code, (dtype, storage) in LOGICAL_2.items()}
_STORAGE: dict[DType, tuple[str, str | None]] = {dtype: (code, None) for code, dtype in STORAGE_2.items()}


@dataclass(slots=True)
class PartSpec:
    """What the manifest says of a part."""

    name: str
    dtype: str
    type: str | None
    digest: str | None = None
    offset: int = 0
    length: int = 0
    encoding: str | None = None
    decoded: int | None = None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What the manifest says of an object."""

    name: str
    shape: tuple[int, ...]
    layout: str
    parts: Sequence[PartSpec]
    attributes: Mapping[str, Any] | None


def codes_of(part: Part, tensor: str) -> tuple[str, str | None]:
    """The dtype and the type of a part, or a refusal that names them."""
    unknown = part.unknown_dtype or ""
    dtype = part.dtype or BY_NAME.get(unknown.removesuffix(IN_PART))
    codes = _codes_of_unknown(unknown) if dtype is None else _STORAGE.get(dtype) or _LOGICAL.get(dtype)
    if codes is None or (part.dtype is None and part.big_endian):
        name = escape(unknown) if dtype is None else dtype.name
        raise UnsupportedError(f"ztensor@2 has no {name}", rule="ztensor.write.dtype", tensor=tensor)
    return codes


def _codes_of_unknown(unknown: str) -> tuple[str, str | None] | None:
    """The dtype and the type of elements that we do not know: `type over dtype`."""
    logical, over, storage = unknown.rpartition(OVER)
    return (storage, logical) if over and storage in STORAGE_2 else None


def keeps(unknown: str) -> bool:
    """Whether elements that we do not know are such as version 2 has words for."""
    return unknown.removesuffix(IN_PART) in BY_NAME or _codes_of_unknown(unknown) is not None


def encode_manifest(tensors: Iterable[TensorSpec], attributes: Mapping[str, Any] | None) -> bytes:
    objects = sorted((cbor.text(tensor.name), _tensor(tensor)) for tensor in tensors)
    pairs = [_OBJECTS, cbor.head(cbor.MAP, len(objects)), *(piece for pair in objects for piece in pair)]
    if attributes is not None:
        pairs += [_ATTRIBUTES, cbor.encode(attributes, _ROOT_FORM)]
    return cbor.head(cbor.MAP, 1 + (attributes is not None)) + b"".join(pairs)


_OBJECTS, _ATTRIBUTES, _PARTS, _SHAPE, _LAYOUT, _BLOB, _TYPE, _DTYPE, _DIGEST, _ENCODING, _DECODED = map(
    cbor.text,
    ("objects", "attributes", "parts", "shape", "layout", "blob", "type", "dtype", "digest", "encoding",
     "decoded_length"),
)  # fmt: skip
_ROOT_FORM, _OBJECT_FORM = (cbor.with_depth(cbor.DETERMINISTIC, 32 - above) for above in (1, 3))
"""Attributes: all is at most 32 deep, of which the root is one, and objects and an object are two more."""


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
        pieces += [_ATTRIBUTES, cbor.encode(tensor.attributes, _OBJECT_FORM)]
    return b"".join(pieces)


def _part(part: PartSpec) -> bytes:
    pieces = [_BLOB, b"\x82", cbor.head(cbor.UINT, part.offset), cbor.head(cbor.UINT, part.length)]
    count = 2
    for key, value in (
        (_TYPE, part.type),
        (_DTYPE, part.dtype),
        (_DIGEST, part.digest),
        (_ENCODING, part.encoding),
    ):
        if value is not None:
            pieces += [key, cbor.text(value)]
            count += key is not _DTYPE
    if part.decoded is not None:
        pieces += [_DECODED, cbor.head(cbor.UINT, part.decoded)]
        count += 1
    return cbor.head(cbor.MAP, count) + b"".join(pieces)


def content_digest(archive: Archive, algorithm: str = "sha256") -> str | None:
    """§6.4: the identity of the tensors, wherever their bytes are; None where a part has no digest."""
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
    hasher = checksums.hasher(algorithm)
    hasher.update(memoryview(cbor.encode(["zt.content/1", objects], cbor.with_depth(cbor.DETERMINISTIC, 40))))
    return str(checksums.Checksum(algorithm, hasher.digest()))
