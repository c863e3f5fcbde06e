"""`.metadata` of `torch.distributed.checkpoint` as a checkpoint.

    state_dict_metadata   name → size, dtype and boxes of a tensor, or "bytes" for a plain value
    storage_data          (name, offsets of a box) → file, offset, length

Every box that a tensor lists must have its own entry in `storage_data`, so the work is
bounded by the number of entries, even if a pickle refers to one list of boxes many times.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tensorglot.containers.dcp.checkpoint import Checkpoint, Place, StoredTensor, check_shape
from tensorglot.containers.dcp.records import Record, load_records
from tensorglot.containers.torchsave.names import DTYPES, ElementType, Pairs
from tensorglot.errors import FormatError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.payload import Source
from tensorglot.wire.fetch import Fetched

__all__ = ["read_metadata"]

_END = 1 << 63
_RANK = 4096
"""Longer tuples are not sizes. Bounds the work for a long tuple that a pickle refers to many times."""
_TRANSFORMS = 16


def read_metadata(source: Source, limits: Limits) -> Checkpoint:
    """Reads the pickle, executing nothing."""
    limits.check_header(source.size, "metadata", rule="dcp.limit")
    root = load_records(Fetched(source.read_bytes, source.size, limits.header_or(), "dcp.pickle"))
    places = _read_places(root.get("storage_data"))
    tensors: dict[str, StoredTensor] = {}
    values: dict[str, Place] = {}
    for name, record in _pairs(root.get("state_dict_metadata"), "state_dict_metadata"):
        if type(name) is not str or name in tensors or name in values:
            raise FormatError("names of tensors must be unique strings", rule="dcp.name")
        if _is(record, "BytesStorageMetadata"):
            values[name] = _place(places, name, None)
        elif _is(record, "TensorStorageMetadata"):
            tensors[name] = _read_tensor(name, record, places, limits)
        else:
            _refuse("a tensor is neither TensorStorageMetadata nor BytesStorageMetadata", name)
    return Checkpoint("torch", list(tensors.values()), values)


_Places = dict[tuple[str, tuple[int, ...] | None], Place]


def _read_places(value: Any) -> _Places:
    places: _Places = {}
    for index, info in _pairs(value, "storage_data"):
        name, offset = (index.get("fqn"), index.get("offset")) if _is(index, "MetadataIndex") else (None, None)
        if type(name) is not str or not (offset is None or _are_sizes(offset)) or not _is(info, "_StorageInfo"):
            _refuse("invalid entry of storage_data", name if type(name) is str else None)
        if (name, offset) in places:
            _refuse("storage_data has two entries for one box", name)
        places[name, offset] = _read_place(name, info)
    return places


def _read_place(name: str, info: Record) -> Place:
    file, begin, nbytes = (info.get(key) for key in ("relative_path", "offset", "length"))
    transforms = info.get("transform_descriptors") or ()
    valid = type(file) is str and all(type(number) is int and 0 <= number < _END for number in (begin, nbytes))
    if not valid or begin + nbytes >= _END:
        _refuse("an item has no valid file, offset and length", name)
    if type(transforms) not in (list, tuple) or len(transforms) > _TRANSFORMS:
        _refuse("invalid transform_descriptors", name)
    if not all(type(text) is str for text in transforms):
        _refuse("invalid transform_descriptors", name)
    return Place(file, begin, begin + nbytes, transforms=tuple(transforms))


def _read_tensor(name: str, record: Record, places: _Places, limits: Limits) -> StoredTensor:
    properties, shape, chunks = (record.get(key) for key in ("properties", "size", "chunks"))
    dtype = properties.get("dtype") if _is(properties, "TensorProperties") else None
    if not isinstance(dtype, ElementType) or not _are_sizes(shape) or type(chunks) is not list:
        _refuse("a tensor needs a dtype, a size and a list of chunks", name)
    check_shape(shape, dtype.itemsize, limits, name)
    found: list[tuple[Any, Any, Place]] = []
    for chunk in chunks:
        starts, counts = (chunk.get("offsets"), chunk.get("sizes")) if _is(chunk, "ChunkStorageMetadata") else ((), ())
        if not (_are_sizes(starts) and _are_sizes(counts) and len(starts) == len(counts) == len(shape)):
            _refuse(f"a chunk needs offsets and sizes of {len(shape)} dimensions", name)
        place = _place(places, name, starts)
        found.append((starts, counts, Place(place.file, place.begin, place.end, "", dtype.name, place.transforms)))
    return StoredTensor(
        name,
        _element(dtype),
        dtype.itemsize,
        shape,
        np.array([starts for starts, _, _ in found], np.int64).reshape(len(found), len(shape)),
        np.array([counts for _, counts, _ in found], np.int64).reshape(len(found), len(shape)),
        [place for _, _, place in found],
    )


def _element(dtype: ElementType) -> DType | str:
    """Our element type; PyTorch's name if we have none, or if one of its elements is several of ours."""
    ours = BY_NAME[DTYPES[dtype.name]] if dtype.name in DTYPES else None
    return dtype.name if ours is None or ours.packed else ours


def _place(places: _Places, name: str, offset: tuple[int, ...] | None) -> Place:
    """Takes the entry of a box, or of a value. Each can be taken once: two boxes with the same start would overlap."""
    place = places.pop((name, offset), None)
    if place is None:
        where = "" if offset is None else f" for the chunk at {list(offset)}"
        raise FormatError(f"storage_data has no entry{where}", rule="dcp.item.missing", tensor=name)
    return place


def _pairs(value: Any, what: str) -> list[tuple[Any, Any]]:
    if type(value) is not Pairs:
        raise FormatError(f"'{what}' of .metadata must be a dict", rule="dcp.metadata")
    return list(zip(value[::2], value[1::2], strict=True))


def _are_sizes(value: Any) -> bool:
    """Whether a value is a tuple of at most _RANK integers from 0 to 2**63 - 1."""
    few = type(value) is tuple and len(value) <= _RANK
    return few and all(type(size) is int and 0 <= size < _END for size in value)


def _is(value: Any, kind: str) -> bool:
    return type(value) is Record and value.kind.name == kind


def _refuse(message: str, name: str | None) -> NoReturn:
    raise FormatError(message, rule="dcp.metadata", tensor=name)
