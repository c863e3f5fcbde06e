"""Writing more than fits in memory: tensors go to disk as they come, the file is made at the end.

What a format's header says depends on every tensor, and most formats put it first.
So values are spooled, raw, to an unnamed file beside the target, and closing the
writer saves an archive of spans of that file: in any format, by the same path as
every other save, with the kernel copying. The target is whole or absent.
"""

from __future__ import annotations

import math
import operator
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from tensorglot.arguments import as_path
from tensorglot.containers.table import PerTensor, WriteOptions, for_target
from tensorglot.errors import InputError
from tensorglot.io.local import FileSource
from tensorglot.io.sink import Writable, write_stream
from tensorglot.model.dtypes import DType, dtype_of
from tensorglot.model.payload import Chunk, Memory, Span, as_bytes
from tensorglot.model.tensor import Part, Tensor, has_bad_bool
from tensorglot.operations.collect import as_tensor, check_name, collect
from tensorglot.operations.save import Progress, save_archive

__all__ = ["TensorStream", "Writer"]


class TensorStream:
    """One tensor being written in pieces, in C order. It must be complete when its `with` block ends."""

    def __init__(self, spool: BinaryIO, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        self._spool = spool
        self._name = name
        self._dtype = dtype
        self._left = dtype.nbytes(math.prod(shape))
        self.complete = False

    def write(self, data: Any) -> None:
        """Appends an array of the tensor's type, or raw little-endian bytes."""
        for chunk in self._chunks(data):
            piece = as_bytes(chunk)
            if self._dtype.name == "bool" and has_bad_bool(np.frombuffer(piece, np.bool_)):
                raise InputError("a bool byte is neither 0 nor 1", rule="values.bool", tensor=self._name)
            if len(piece) > self._left:
                raise InputError(
                    f"{len(piece)} bytes more where {self._left} are left", rule="stream.size", tensor=self._name
                )
            self._spool.write(piece)
            self._left -= len(piece)

    def _chunks(self, data: Any) -> Iterable[Chunk]:
        if isinstance(data, (np.ndarray, np.generic)):
            if dtype_of(data.dtype, self._name) is not self._dtype or self._dtype.packed:
                raise InputError(f"{data.dtype} for {self._dtype.name}", rule="stream.dtype", tensor=self._name)
            return Memory(np.asarray(data)).chunks()
        try:
            return [as_bytes(data)]
        except TypeError as error:
            raise InputError(
                f"an array or bytes, not {type(data).__name__}", rule="stream.data", tensor=self._name
            ) from error

    def __enter__(self) -> TensorStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._left:
                raise InputError(f"{self._left} bytes are missing", rule="stream.size", tensor=self._name)
            self.complete = True


class Writer:
    """`with Writer("big.bt") as out: out.add("w", array)`; see also `stream`."""

    def __init__(
        self,
        target: Writable,
        *,
        format: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        compression: str | None = None,
        level: int | None = None,
        checksum: str | None = None,
        durable: bool = True,
        progress: Progress | None = None,
    ) -> None:
        path = as_path(target) if isinstance(target, (str, os.PathLike)) else None
        self._target = target
        self._row, version = for_target(target, format)
        self._options = WriteOptions(version, PerTensor(compression), level, PerTensor(checksum))
        self._metadata = metadata
        self._durable = durable
        self._progress = progress
        directory = None if path is None else os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        self._spool = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self._source = FileSource(os.dup(self._spool.fileno()))
        self._tensors: dict[str, Tensor] = {}
        self._streams: list[TensorStream] = []

    def add(self, name: str, value: Any, *, attributes: Mapping[str, Any] | None = None) -> None:
        """Takes one tensor, all of it; the value is not kept in memory."""
        self._check(name)
        tensor = as_tensor(name, value)
        parts = {part_name: self._spooled(part) for part_name, part in tensor.parts.items()}
        self._tensors[name] = Tensor(name, parts, tensor.layout, tensor.declared, attributes or tensor.attributes)

    def _spooled(self, part: Part) -> Part:
        begin = self._spool.tell()
        end = begin + write_stream(self._spool, part.payload.chunks())
        return Part(
            part.dtype,
            part.shape,
            Span(self._source, begin, end),
            big_endian=part.big_endian,
            unknown_dtype=part.unknown_dtype,
        )

    def stream(self, name: str, dtype: DTypeLike | DType, shape: Sequence[int]) -> TensorStream:
        """Declares a tensor whose values are then written in pieces."""
        self._check(name)
        row = dtype_of(dtype, name)
        try:
            dims = tuple(operator.index(size) for size in shape)
        except (TypeError, ValueError) as error:
            raise InputError(f"a shape is whole numbers, not {shape!r}", rule="stream.shape", tensor=name) from error
        if any(size < 0 for size in dims):
            raise InputError(f"a negative size in {list(dims)}", rule="stream.shape", tensor=name)
        begin = self._spool.tell()
        span = Span(self._source, begin, begin + row.nbytes(math.prod(dims)))
        self._tensors[name] = Tensor(name, {"data": Part(row, dims, span)})
        self._streams.append(TensorStream(self._spool, name, row, dims))
        return self._streams[-1]

    def _check(self, name: str) -> None:
        check_name(name)
        if self._spool.closed:
            raise InputError("the writer is closed", rule="writer.closed", tensor=name)
        if name in self._tensors:
            raise InputError("two tensors of one name", rule="writer.name", tensor=name)
        if self._streams and not self._streams[-1].complete:
            raise InputError("the stream before this tensor is not finished", rule="writer.stream", tensor=name)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._spool.close()
            self._source.close()

    def _finish(self) -> None:
        if self._streams and not self._streams[-1].complete:
            raise InputError("the last stream is not finished", rule="writer.stream")
        self._spool.flush()
        self._source.size = self._spool.tell()
        save_archive(
            self._target,
            collect(self._tensors, self._metadata),
            self._row,
            self._options,
            durable=self._durable,
            progress=self._progress,
        )
