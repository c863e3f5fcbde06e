"""The door: whatever a caller wants saved becomes one archive in memory.

Arrays of any order, stride and byte order, tensors of PyTorch and JAX, whatever speaks
DLPack, arrays of awkward and Arrow, scalars, nested lists of numbers, tensors of
another archive, or such an archive itself. A framework is known by being loaded already: none is imported here
that the caller did not import. Behind the door there are columns and
payloads, and nobody asks again what kind of thing a value was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_mapping
from tensorglot.errors import InputError, TensorglotError, UnsupportedError
from tensorglot.limits import DEFAULT
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE, dtype_of
from tensorglot.model.index import UNKNOWN, Index, Layout, permuted, shape_columns
from tensorglot.model.payload import Memory, Payload
from tensorglot.model.tensor import Part, Tensor, has_bad_bool

__all__ = ["as_tensor", "collect"]


PLAIN = {
    row.numpy: row
    for row in TABLE
    if row.numpy is not None and not row.packed and row.name != "bool" and row.numpy.newbyteorder("<") == row.numpy
}
"""Types whose arrays are at rest what they are in memory, whatever their values."""


BRIDGES = {
    "awkward": "tensorglot.bridges.awkward",
    "pyarrow": "tensorglot.bridges.arrow",
    "scipy": "tensorglot.bridges.scipy",
}
"""Libraries whose values are not arrays: the module that makes tensors of them, imported when one comes."""


class _Columns:
    """Rows and tensors as they come in."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.dtypes: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        self.payloads: list[Payload] = []
        self.part_names: list[str] = []
        self.first_rows: list[int] = [0]
        self.layouts: dict[int, Layout] = {}
        self.attributes: dict[int, Mapping[str, Any]] = {}
        self.big_endian: set[int] = set()
        self.unknown_dtypes: dict[int, str] = {}
        self.checksums: list[str | None] = []
        self.checksums_decoded: set[bool] = set()

    def add(self, tensor: Tensor) -> None:
        position = len(self.names)
        self.names.append(tensor.name)
        if tensor.declared is not None:
            self.layouts[position] = Layout(tensor.layout, tensor.declared)
        if tensor.attributes:
            self.attributes[position] = tensor.attributes
        for part_name, part in tensor.parts.items():
            self._add_part(part_name, part)
        self.first_rows.append(len(self.dtypes))

    def _add_part(self, name: str, part: Part) -> None:
        row = len(self.dtypes)
        if part.big_endian:
            self.big_endian.add(row)
        if part.unknown_dtype is not None:
            self.unknown_dtypes[row] = part.unknown_dtype
        self.dtypes.append(UNKNOWN if part.dtype is None else part.dtype.code)
        self.shapes.append(part.shape)
        self.payloads.append(part.payload)
        self.part_names.append(name)
        self.checksums.append(part.checksum)
        if part.checksum is not None:
            self.checksums_decoded.add(part.checksum_decoded)

    def index(self, metadata: Mapping[str, Any] | None) -> Index:
        several = bool(self.layouts) or len(self.names) != len(self.dtypes)
        return Index.of_payloads(
            self.names,
            self.dtypes,
            self.shapes,
            self.payloads,
            metadata=metadata,
            first_rows=np.array(self.first_rows) if several else None,
            part_names=self.part_names if several else None,
            layouts=self.layouts,
            attributes=self.attributes,
            big_endian=frozenset(self.big_endian),
            unknown_dtypes=self.unknown_dtypes,
            checksums=self.checksums if len(self.checksums_decoded) == 1 else None,
            checksums_decoded=True in self.checksums_decoded,
        )


def collect(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Archive:
    """An archive in memory. The metadata and attributes given replace those of an archive given."""
    if isinstance(tensors, Archive):
        metadata = tensors.metadata if metadata is None else metadata
    elif not isinstance(tensors, Mapping):
        raise InputError(f"a mapping of names to tensors, not {type(tensors).__name__}", rule="save.tensors")
    if attributes is not None:
        check_mapping(attributes, "attributes", "save.attributes")
    index = None if attributes else _plain_index(tensors, metadata)
    if index is None:
        columns = _Columns()
        for name, value in tensors.items():
            columns.add(as_tensor(name, value))
        _attach(columns, attributes or {})
        index = columns.index(metadata)
    return Archive(index, None)


def _plain_index(tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> Index | None:
    """All columns at once, if every value is an array that needs no look of its own; None if one does.

    Most arrays have a type and shape that others have, too: those are looked at once.
    """
    names, values = list(tensors), list(tensors.values())
    if set(map(type, values)) != {np.ndarray} or set(map(type, names)) != {str}:
        return None
    kinds: dict[tuple[np.dtype[Any], tuple[int, ...]], int] = {}
    kind_of = np.array([kinds.setdefault((value.dtype, value.shape), len(kinds)) for value in values])
    try:
        "".join(names).encode()
        codes = np.array([PLAIN[dtype].code for dtype, _ in kinds], np.uint8)
    except (KeyError, UnicodeEncodeError):
        return None
    if 4 * max(map(len, names)) > DEFAULT.name_nbytes:  # no character takes more than 4 bytes
        for name in names:
            check_name(name)
    dims, dim_offsets = permuted(*shape_columns([shape for _, shape in kinds]), kind_of)
    sizes = np.array([dtype.itemsize * math.prod(shape) for dtype, shape in kinds], np.int64)
    return Index(
        format="memory",
        names=names,
        dtypes=codes[kind_of],
        dims=dims,
        dim_offsets=dim_offsets,
        begins=np.zeros(len(values), np.int64),
        ends=sizes[kind_of],
        payloads=[value if value.flags.c_contiguous else Memory(value) for value in values],
        metadata=metadata,
    )


def as_tensor(name: str, value: Any) -> Tensor:
    """Any one value as a tensor in memory."""
    check_name(name)
    if isinstance(value, Tensor):
        return Tensor(name, value.parts, value.layout, value.declared, value.attributes)
    bridge = BRIDGES.get(type(value).__module__.partition(".")[0])
    if bridge is not None:
        return cast("Tensor", import_module(bridge).to_tensor(name, value))
    array = _as_array(name, value)
    dtype = dtype_of(array.dtype, name)
    if has_bad_bool(array):
        raise InputError("a bool byte is neither 0 nor 1", rule="values.bool", tensor=name)
    return Tensor.of_array(name, array, dtype)


def check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InputError(f"a name is a str, not {type(name).__name__}", rule="name.text")
    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise InputError("a name has a lone surrogate", rule="name.utf8", tensor=name) from error
    if nbytes > DEFAULT.name_nbytes:
        raise InputError(
            f"a name of {nbytes} bytes; a reader takes {DEFAULT.name_nbytes}", rule="name.length", tensor=name
        )


def _as_array(name: str, value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        if np.ma.is_masked(value):
            raise UnsupportedError("values are masked: fill the array first", rule="save.masked", tensor=name)
        return np.asarray(value)
    try:
        return _foreign(name, value)
    except TensorglotError:
        raise
    except Exception as error:  # whatever a stranger's __array__ raises is about this value
        raise InputError(
            f"{type(value).__name__} cannot become an array: {error}", rule="save.value", tensor=name
        ) from error


def _foreign(name: str, value: Any) -> NDArray[Any]:
    """A tensor of a framework through its bridge; anything else as NumPy or DLPack takes it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return cast("NDArray[Any]", import_module("tensorglot.bridges.torch").to_numpy(name, value))
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return cast("NDArray[Any]", import_module("tensorglot.bridges.dlpack").to_numpy(value))
    return np.asarray(value)


def _attach(columns: _Columns, attributes: Mapping[str, Mapping[str, Any]]) -> None:
    positions = dict(zip(columns.names, range(len(columns.names)), strict=True))
    for name, fields in attributes.items():
        check_mapping(fields, "attributes of a tensor", "save.attributes")
        if name not in positions:
            raise InputError("attributes for a tensor that is not given", rule="save.attributes", tensor=name)
        columns.attributes[positions[name]] = fields
