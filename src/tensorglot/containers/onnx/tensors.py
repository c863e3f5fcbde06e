"""Rows of an index for initializers: the values at a span of the model or of another file, raw or as varints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.containers.onnx.external import ExternalFile, check_location, external_offset
from tensorglot.containers.onnx.messages import DATA_FIELDS, DTYPES, Initializers, Model, SparseInitializers
from tensorglot.containers.onnx.unravel import Unravelled
from tensorglot.containers.onnx.varints import Varints
from tensorglot.containers.table import ReadOptions
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.dtypes import BY_NAME, TABLE, DType
from tensorglot.model.index import UNKNOWN, BlockLayout, Index
from tensorglot.model.layouts import COO
from tensorglot.model.payload import Codec, Encoded, Payload, Source, Span
from tensorglot.model.strided import Strided
from tensorglot.model.subbyte import UnpackedSubByte

__all__ = ["Rows"]

_FIXED = {"float_data": ("float32", "complex64"), "double_data": ("float64", "complex128")}
"""Fields whose values are little-endian numbers of the type itself."""
_VARINTS = {
    "int32_data": frozenset({"int32", *(name for name in DTYPES.values() if name and BY_NAME[name].bits <= 16)}),
    "int64_data": frozenset({"int64"}),
    "uint64_data": frozenset({"uint32", "uint64"}),
}
"""Fields of varints, and the types that they may have."""
_TYPES = max(DTYPES) + 2
"""Numbers of element types, the last for all that are unknown; and below, by such a number: code, bits."""
_CODES = np.full(_TYPES, UNKNOWN, np.uint8)
_BITS = np.zeros(_TYPES, np.int64)
_RAW = np.zeros((max(DATA_FIELDS) + 1, _TYPES), np.bool_)
"""By the field that has the values, and the type: whether they are stored as in memory, and whether as varints."""
_AS_VARINTS = np.zeros_like(_RAW)
for _number, _name in DTYPES.items():
    if _name:
        _CODES[_number], _BITS[_number] = BY_NAME[_name].code, BY_NAME[_name].bits
        for _field, _data in {0: "", **DATA_FIELDS}.items():
            _RAW[_field, _number] = _data in ("", "raw_data") or _name in _FIXED.get(_data, ())
            _AS_VARINTS[_field, _number] = _name in _VARINTS.get(_data, ())
_COUNT_END = 1 << 55


class Rows:
    """Initializers as an index. The values of several may be in one file."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self._source = source
        self._options = options
        self._files: dict[str, ExternalFile] = {}
        self._codecs: dict[tuple[int, int], tuple[Codec, int]] = {}

    def index(self, model: Model) -> Index:
        indexes = [self._dense_index(model.tensors, model.tensors.names)] if model.tensors.at else []
        indexes += [self._sparse_index(model.sparse)] if model.sparse.at else []
        index = indexes[0] if len(indexes) == 1 else Index.concat(indexes, format="onnx@1")
        return replace(index, metadata=model.metadata)

    def _dense_index(self, found: Initializers, names: list[str]) -> Index:
        """Rows of tensors; `names` are those of the tensors that they belong to."""
        types = np.minimum(np.array(found.types, np.uint64), _TYPES - 1).astype(np.int64)
        fields, counts = np.array(found.fields, np.int64), np.array(found.counts, np.int64)
        begins, ends = np.array(found.begins, np.int64), np.array(found.ends, np.int64)
        offsets = prefix_sums(np.array(found.ranks, np.int64))
        codes = _CODES[types]
        small = counts < _COUNT_END  # the number of bits does not overflow
        nbytes = (np.where(small, counts, 0) * _BITS[types] + 7) // 8
        unknown = {at: _unknown(found.types[at]) for at in np.flatnonzero(codes == UNKNOWN).tolist()}
        sources: dict[int, Source] = {}
        codecs: dict[int, Codec] = {}
        sizes: dict[int, int] = {}
        plain = (_RAW[fields, types] & small & (nbytes == ends - begins)) | (codes == UNKNOWN)
        plain[list(found.external)] = True
        for at in np.flatnonzero(~plain & _AS_VARINTS[fields, types] & small).tolist():
            codec, stored = self._codec(found.types[at], found.counts[at])
            if stored <= found.ends[at] - found.begins[at] <= 10 * stored:
                plain[at] = True
                codecs[at], sizes[at] = codec, int(nbytes[at])
        for at, entries in found.external.items():
            if at in unknown:
                continue
            try:
                sources[at] = self._file(entries, found.at[at])
                size = int(nbytes[at]) if small[at] else BY_NAME[DTYPES[found.types[at]]].nbytes(found.counts[at])
                begins[at] = begin = external_offset(entries, size, found.at[at])
                ends[at] = begin + size
            except FormatError as error:
                error.tensor = names[at]
                raise
        if not plain.all():
            at = int(plain.argmin())
            raise self._refusal(found, at, names[at])
        return Index(
            format="onnx@1",
            names=names,
            dtypes=codes,
            dims=np.array(found.dims, np.int64),
            dim_offsets=offsets,
            begins=begins,
            ends=ends,
            codecs=codecs,
            decoded_nbytes=sizes,
            unknown_dtypes=unknown,
            sources=sources,
        )

    def _refusal(self, found: Initializers, at: int, name: str) -> FormatError:
        """The error for values that are not those of the type and shape."""
        kind, data = DTYPES[found.types[at]], DATA_FIELDS.get(found.fields[at], "")
        begin, have = found.begins[at], found.ends[at] - found.begins[at]
        if data in ("raw_data", "") or kind in _FIXED.get(data, ()):
            needed = BY_NAME[kind].nbytes(found.counts[at])
            message = f"dtype and shape need {needed} bytes, the model has {have}"
            return FormatError(message, rule="onnx.data.size", offset=begin or found.at[at], tensor=name)
        if kind not in _VARINTS.get(data, ()):
            return FormatError(f"{data} cannot have {kind}", rule="onnx.data.field", offset=begin, tensor=name)
        stored = self._codec(found.types[at], found.counts[at])[1]
        message = f"{have} bytes cannot be {stored} varints"
        return FormatError(message, rule="onnx.data.size", offset=begin, tensor=name)

    def _file(self, entries: dict[str, str], at: int) -> ExternalFile:
        """The file of values; files of one location are one."""
        location = entries.get("location", "")
        if location not in self._files:
            path = check_location(location, at)
            if path not in self._files:
                self._files[path] = ExternalFile(path, self._options)
            self._files[location] = self._files[path]
        return self._files[location]

    def _codec(self, type: int, count: int) -> tuple[Codec, int]:
        """The codec of values that are varints, and their number; equal ones are one."""
        if (type, count) not in self._codecs:
            self._codecs[type, count] = _codec(BY_NAME[DTYPES[type]], count)
        return self._codecs[type, count]

    def _sparse_index(self, sparse: SparseInitializers) -> Index:
        """COO: coordinates as rows of a matrix, or as one number each, which is the position in C order."""
        names = sparse.values.names
        ranks, values, found = (np.array(held.ranks, np.int64) for held in (sparse, sparse.values, sparse.indices))
        counts, _ = _first_dims(sparse.values.dims, values)
        first, second = _first_dims(sparse.indices.dims, found)
        valid = (ranks > 0) & (values == 1) & (np.array(sparse.indices.types, np.uint64) == 7) & (first == counts)
        valid &= (found == 1) | ((found == 2) & (second == ranks))
        for at in np.flatnonzero(~valid).tolist():
            raise FormatError(
                "a sparse tensor needs int64 indices, one or a row of them for each value",
                rule="onnx.sparse",
                offset=sparse.indices.at[at],
                tensor=names[at],
            )
        numbers = self._dense_index(sparse.values, names)
        for at in numbers.unknown_dtypes:
            raise UnsupportedError(
                "a sparse tensor of text is not supported",
                rule="onnx.sparse",
                offset=sparse.values.at[at],
                tensor=names[at],
            )
        indices = self._dense_index(sparse.indices, names)
        flat = found == 1
        self._check_bounds(sparse, indices, np.flatnonzero(flat).tolist())
        shapes = [tuple(sparse.dims[begin:end]) for begin, end in pairwise(prefix_sums(ranks).tolist())]
        codecs, sizes = dict(indices.codecs), dict(indices.decoded_nbytes)
        # One axis, or one value, is in the same order in both forms.
        for at in np.flatnonzero((ranks > 1) & (counts > np.where(flat, 0, 1))).tolist():
            shape, count = shapes[at], int(counts[at])
            codecs[at] = (
                Unravelled(shape, count, codecs.get(at))
                if flat[at]
                else Strided((len(shape), count), (8, 8 * len(shape)), 8, codecs.get(at))
            )
            sizes[at] = 8 * len(shape) * count

        codes = numbers.dtypes.tolist()

        def interleave(first: Mapping[int, Any], second: Mapping[int, Any]) -> dict[int, Any]:
            return {2 * at: held for at, held in first.items()} | {2 * at + 1: held for at, held in second.items()}

        return Index(
            format="onnx@1",
            names=names,
            dtypes=np.column_stack((numbers.dtypes, indices.dtypes)).reshape(-1),
            dims=np.column_stack((counts, ranks, counts)).reshape(-1),
            dim_offsets=prefix_sums(np.tile((1, 2), len(names))),
            begins=np.column_stack((numbers.begins, indices.begins)).reshape(-1),
            ends=np.column_stack((numbers.ends, indices.ends)).reshape(-1),
            first_rows=np.arange(0, 2 * len(names) + 1, 2),
            part_names=["values", "coords"] * len(names),
            layouts={at: BlockLayout(COO, TABLE[c], s) for at, (c, s) in enumerate(zip(codes, shapes, strict=True))},
            codecs=interleave(numbers.codecs, codecs),
            decoded_nbytes=interleave(numbers.decoded_nbytes, sizes),
            sources=interleave(numbers.sources, indices.sources),
        )

    def _check_bounds(self, sparse: SparseInitializers, indices: Index, flat: list[int]) -> None:
        """Positions in C order must be below the number of elements; those that are not known are read."""
        for at in flat:
            largest = sparse.largest[at]
            if largest is None:
                begin, end = int(indices.begins[at]), int(indices.ends[at])
                source = indices.sources.get(at, self._source)
                name, codec = sparse.values.names[at], indices.codecs.get(at)
                held: Payload = Span(source, begin, end)
                if codec is not None:
                    held = Encoded(source, begin, end, indices.decoded_nbytes[at], codec, name)
                largest = int(np.frombuffer(held.read(0, held.nbytes), "<u8").max(initial=0)) if held.nbytes else -1
            if largest >= sparse.counts[at]:
                raise FormatError(
                    "an index is out of bounds",
                    rule="onnx.sparse",
                    offset=sparse.indices.at[at],
                    tensor=sparse.values.names[at],
                )


def _first_dims(dims: list[int], ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the second dimension of each shape; any numbers where there is none."""
    begins = prefix_sums(ranks)[:-1]
    padded = np.array([*dims, 0, 0], np.int64)
    return padded[begins], padded[begins + 1]


def _codec(dtype: DType, count: int) -> tuple[Codec, int]:
    """The codec of values that are varints, and their number."""
    codec = Varints(count, max(1, dtype.bits // 8), signed=dtype.signed and not dtype.packed)
    if dtype.packed and 8 % dtype.bits:
        return UnpackedSubByte(dtype, count, codec), count
    if dtype.packed:  # each number is a byte of packed elements
        stored = dtype.nbytes(count)
        return replace(codec, count=stored), stored
    return codec, count


def _unknown(type: int) -> str:
    """What an element type is called that has no name here."""
    return "STRING" if type == 8 else f"data type {type}"
