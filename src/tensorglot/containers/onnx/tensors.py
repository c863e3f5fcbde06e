"""Rows of an index for initializers: the values at a span of the model or of another file, raw or as varints."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tensorglot.containers.onnx.external import ExternalFile, external_span
from tensorglot.containers.onnx.messages import DTYPES, Initializer, SparseInitializer
from tensorglot.containers.onnx.varints import Varints
from tensorglot.containers.table import ReadOptions
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Layout
from tensorglot.model.layouts import COO
from tensorglot.model.payload import Codec, Encoded, Source, Span
from tensorglot.model.strided import Strided
from tensorglot.model.subbyte import UnpackedSubByte
from tensorglot.model.types.algebra import dense

__all__ = ["Rows"]

_FIXED = {"float_data": ("float32", "complex64"), "double_data": ("float64", "complex128")}
"""Fields whose values are little-endian numbers of the type itself."""
_VARINTS = {
    "int32_data": frozenset({"int32", *(name for name in DTYPES.values() if name and BY_NAME[name].bits <= 16)}),
    "int64_data": frozenset({"int64"}),
    "uint64_data": frozenset({"uint32", "uint64"}),
}
"""Fields of varints, and the types that they may have."""


class Rows:
    """Adds initializers to an index. Several may be in one file."""

    def __init__(self, builder: IndexBuilder, source: Source, options: ReadOptions) -> None:
        self._builder = builder
        self._source = source
        self._options = options
        self._files: dict[str, ExternalFile] = {}

    def add(self, tensor: Initializer) -> None:
        self._builder.add(tensor.name, self._row(tensor))

    def _row(self, tensor: Initializer) -> Row:
        shape = tuple(tensor.shape)
        count = math.prod(shape)
        if count >= 1 << 60 or (count == 0 and math.prod(size for size in shape if size) >= 1 << 60):
            raise FormatError("the tensor would have 2**60 elements or more", rule="onnx.shape", offset=tensor.at)
        name = DTYPES.get(tensor.type)
        if not name:
            what = "STRING" if name == "" else f"data type {tensor.type}"
            return Row(dtype=what, shape=shape, begin=tensor.begin, end=tensor.end)
        dtype = BY_NAME[name]
        nbytes = dtype.nbytes(count)
        if tensor.external is not None:
            file, begin = external_span(tensor.external, nbytes, tensor.at)
            source = self._files.setdefault(file, ExternalFile(file, self._options))
            return Row(dtype=dtype, shape=shape, begin=begin, end=begin + nbytes, source=source)
        row = Row(dtype=dtype, shape=shape, begin=tensor.begin, end=tensor.end)
        if tensor.data in ("raw_data", "") or name in _FIXED.get(tensor.data, ()):
            self._check_size(tensor, nbytes)
            return row
        codec = _codec(tensor, dtype, count)
        return replace(row, codec=codec, nbytes=nbytes)

    def _check_size(self, tensor: Initializer, nbytes: int) -> None:
        have = tensor.end - tensor.begin
        if have != nbytes:
            raise FormatError(
                f"dtype and shape need {nbytes} bytes, the model has {have}",
                rule="onnx.data.size",
                offset=tensor.begin or tensor.at,
            )

    def add_sparse(self, sparse: SparseInitializer) -> None:
        """COO: coordinates as rows of a matrix, or as one number each, which is the position in C order."""
        values, shape = self._row(sparse.values), sparse.shape
        found = tuple(sparse.indices.shape)
        if (
            not shape
            or len(values.shape) != 1
            or sparse.indices.type != 7
            or found not in (values.shape, (*values.shape, len(shape)))
            or math.prod(size for size in shape if size) >= 1 << 63
        ):
            raise FormatError(
                "a sparse tensor needs int64 indices, one or a row of them for each value",
                rule="onnx.sparse",
                offset=sparse.indices.at,
            )
        if isinstance(values.dtype, str):
            raise UnsupportedError(
                "a sparse tensor of text is not supported", rule="onnx.sparse", offset=sparse.values.at
            )
        indices = self._row(sparse.indices)
        if len(found) == 2:
            strides = (8, 8 * len(shape))
            codec = Strided((len(shape), *values.shape), strides, 8, indices.codec)
            nbytes = 8 * len(shape) * values.shape[0]
            coords = replace(indices, shape=codec.shape, codec=None if codec.in_order else codec, nbytes=nbytes)
            if codec.in_order and indices.codec is not None:
                coords = replace(coords, codec=indices.codec)
        else:
            coords = self._spread(indices, sparse)
        layout = Layout(COO, dense(values.dtype, shape))
        rows = (replace(values, part="values"), replace(coords, part="coords"))
        self._builder.add(sparse.values.name, *rows, layout=layout)

    def _spread(self, indices: Row, sparse: SparseInitializer) -> Row:
        """Coordinates of positions in C order; they are read, 8 bytes for each at most 10 in the file."""
        source = indices.source or self._source
        if indices.codec is None:
            raw = Span(source, indices.begin, indices.end).read(0, indices.end - indices.begin)
        else:
            held = Encoded(source, indices.begin, indices.end, indices.nbytes, indices.codec, sparse.values.name)
            raw = held.read(0, indices.nbytes)
        flat = np.frombuffer(raw, "<i8")
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < math.prod(sparse.shape):
            raise FormatError("an index is out of bounds", rule="onnx.sparse", offset=sparse.indices.at)
        coords = np.array(np.unravel_index(flat, sparse.shape), np.int64).reshape(len(sparse.shape), -1)
        return Row(dtype=BY_NAME["int64"], shape=coords.shape, end=coords.nbytes, payload=np.ascontiguousarray(coords))


def _codec(tensor: Initializer, dtype: DType, count: int) -> Codec:
    """The codec of values that are varints."""
    if dtype.name not in _VARINTS.get(tensor.data, ()):
        raise FormatError(f"{tensor.data} cannot have {dtype.name}", rule="onnx.data.field", offset=tensor.begin)
    stored, codec = count, Varints(count, max(1, dtype.bits // 8), signed=dtype.signed and not dtype.packed)
    wrapped: Codec = codec
    if dtype.packed and 8 % dtype.bits:
        wrapped = UnpackedSubByte(dtype, count, codec)
    elif dtype.packed:  # each number is a byte of packed elements
        stored = dtype.nbytes(count)
        wrapped = replace(codec, count=stored)
    if not stored <= tensor.end - tensor.begin <= 10 * stored:
        raise FormatError(
            f"{tensor.end - tensor.begin} bytes cannot be {stored} varints", rule="onnx.data.size", offset=tensor.begin
        )
    return wrapped
