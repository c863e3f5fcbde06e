"""Walks the groups of an HDF5 file and adds each dataset to an index. Work is charged as it is done.

Links that lead elsewhere (soft, external) are noted and not followed. A group that is
reached twice is walked once; a dataset that has two names is two tensors of the same
bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorglot.containers.hdf5.codec import DatasetCodec, Filtered
from tensorglot.containers.hdf5.library import HDF5File
from tensorglot.errors import FormatError, LimitError, escape
from tensorglot.extras import library
from tensorglot.limits import Limits
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Note
from tensorglot.model.payload import Codec

__all__ = ["DTYPES", "add_datasets"]

DTYPES: dict[str, str] = {
    name: name
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
        "float64", "complex64", "complex128", "bfloat16",
    )
}  # fmt: skip
"""By h5py's name; Keras marks bfloat16 with an attribute."""
DEPTH = 64
EXPANSION = 1032
"""The largest compression ratio of deflate, the strongest of the filters."""
SPARE_NBYTES = 1 << 20
"""Datasets up to this size may consist of their fill value."""
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
"""deflate, shuffle, fletcher32, szip, nbit, scaleoffset and h5py's lzf; others would be loaded as plugins."""
_ATTRIBUTE_NBYTES = 1 << 24


def add_datasets(builder: IndexBuilder, file: HDF5File, limits: Limits) -> tuple[dict[str, Any] | None, list[Note]]:
    """Adds all datasets; returns the attributes of the root, and notes."""
    h5py = library("h5py", "hdf5")
    notes: list[Note] = []
    walked: set[Any] = set()
    entries = 0
    with file.errors():
        todo: list[tuple[str, Any, int]] = [("", file.root["/"], 0)]
        metadata = _attributes(file.root, notes)
    while todo:
        path, group, depth = todo.pop()
        with file.errors():
            address = h5py.h5o.get_info(group.id).addr
            if address in walked:
                notes.append(Note("hdf5.group", f"the group '{escape(path)}' is another name of one before"))
                continue
            walked.add(address)
            names = list(group)
        groups = []
        for name in names:
            entries += 1
            if entries > limits.tensors_or():
                raise LimitError("more datasets and groups than Limits.tensors", rule="hdf5.limit.tensors")
            inner = _join(path, name)
            with file.errors(inner):
                link = group.get(name, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    notes.append(Note("hdf5.link", f"the link '{escape(inner)}' is not followed"))
                    continue
                found = group[name]
            if isinstance(found, h5py.Dataset):
                with file.errors(inner):
                    builder.add(inner, _row(found, file, limits, inner))
            elif isinstance(found, h5py.Group):
                if depth >= DEPTH:
                    raise LimitError(f"groups nested deeper than {DEPTH} levels", rule="hdf5.limit.depth")
                groups.append((inner, found, depth + 1))
        todo += reversed(groups)
    file.end_walk()
    return metadata, notes


def _join(path: str, name: Any) -> str:
    try:
        text = name.decode() if isinstance(name, bytes) else name
        text.encode()
    except UnicodeError:
        raise FormatError("invalid UTF-8 in the name of an HDF5 object", rule="hdf5.name") from None
    return f"{path}/{text}" if path else str(text)


def _attributes(root: Any, notes: list[Note]) -> dict[str, Any] | None:
    """Text, numbers and arrays of them; others are noted."""
    found: dict[str, Any] = {}
    for key in root.attrs:
        attribute = root.attrs.get_id(key)
        value = None
        fixed = attribute.get_type().get_class() in (0, 1)
        if fixed and attribute.get_storage_size() <= _ATTRIBUTE_NBYTES and isinstance(key, str):
            value = _plain(root.attrs[key])
        if value is None:
            notes.append(Note("hdf5.attribute", f"the attribute '{escape(str(key))}' is not read"))
        else:
            found[str(key)] = value
    return found or None


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, list):
        items = [_plain(item) for item in value]
        return None if any(item is None for item in items) else items
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value if isinstance(value, (str, bool, int, float)) else None


def _row(dataset: Any, file: HDF5File, limits: Limits, name: str) -> Row:
    shape = dataset.shape
    if shape is None:
        return Row(dtype="empty", shape=())
    if len(shape) > limits.rank:
        raise LimitError(f"{len(shape)} dimensions exceed Limits.rank", rule="hdf5.limit.rank", tensor=name)
    if math.prod(size for size in shape if size) >= 1 << 56:
        raise FormatError("the dataset would have 2**56 elements or more", rule="hdf5.shape", tensor=name)
    dtype, itemsize, big_endian = _element(dataset)
    nbytes = math.prod(shape) * itemsize
    begin = dataset.id.get_offset()
    stored = dataset.id.get_storage_size()
    elsewhere = dataset.is_virtual or dataset.external
    if begin is not None and not elsewhere and dataset.chunks is None and stored == nbytes and _as_in_memory(dataset):
        begin += file.window.begin
        if begin + nbytes > file.window.end:
            raise FormatError("the dataset ends beyond the file", rule="hdf5.data.end", offset=begin, tensor=name)
        return Row(dtype=dtype, shape=shape, begin=begin, end=begin + nbytes, big_endian=big_endian)
    codec: Codec = DatasetCodec(dataset.name, shape, itemsize, _encoding(dataset))
    if elsewhere:
        codec = Filtered("storage in other files")
    elif not _filters(dataset) <= _FILTERS:
        codec = Filtered(f"filter {min(_filters(dataset) - _FILTERS)}")
    elif nbytes > EXPANSION * stored + SPARE_NBYTES:
        raise LimitError(
            f"{stored} stored bytes cannot be the {nbytes} of the dataset", rule="hdf5.data.expansion", tensor=name
        )
    elif dataset.chunks is not None and math.prod(dataset.chunks) * itemsize > nbytes + SPARE_NBYTES:
        raise LimitError("a chunk is larger than the dataset", rule="hdf5.data.chunk", tensor=name)
    if isinstance(dtype, str):
        codec = Filtered(f"type {dtype}")
    return Row(
        dtype=dtype, shape=shape, codec=codec, nbytes=nbytes, big_endian=big_endian, source=file, begin=0, end=stored
    )


def _as_in_memory(dataset: Any) -> bool:
    """Whether the bytes in the file are NumPy's; HDF5 also has numbers of other widths and bit orders."""
    if dataset.dtype.kind not in "biufc":
        return True
    standard = library("h5py", "hdf5").h5t.py_create(dataset.dtype, logical=True)
    return bool(dataset.id.get_type() == standard)


def _filters(dataset: Any) -> set[int]:
    plan = dataset.id.get_create_plist()
    return {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}


def _encoding(dataset: Any) -> str:
    return str(dataset.compression or ("chunked" if dataset.chunks else "compact"))


def _element(dataset: Any) -> tuple[DType | str, int, bool]:
    """Our element type, or HDF5's name of it; bytes for each; the byte order."""
    found = dataset.dtype
    if found.kind == "V" and found.itemsize == 2 and found.names is None and dataset.attrs.get("dtype") == "bfloat16":
        return BY_NAME["bfloat16"], 2, False
    plain = found.newbyteorder("=")
    if plain.kind in "biufc" and plain.name in DTYPES:
        return BY_NAME[DTYPES[plain.name]], found.itemsize, found.byteorder == ">"
    return str(found), found.itemsize, False
