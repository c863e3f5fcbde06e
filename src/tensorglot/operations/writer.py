"""Writing more than fits in memory: values are spooled to disk, the file is written at the end.

A header depends on all tensors, and most formats have it first. So values are written,
raw, to an unnamed file beside the target (for a URL, in the directory for temporary
files). Closing the writer saves an archive of spans of that file, by the same path as
every other save: in any format, copied by the OS (copy_file_range), atomic.

Appending revises the file that exists when the writer closes: under its lock, by one
atomic copy or in place. Two writers that append both succeed, unless they add the same name.
"""

from __future__ import annotations

import math
import operator
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike

from tensorglot.arguments import check_flags, check_mapping
from tensorglot.containers.table import for_target, named
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError, plural
from tensorglot.io.local import FileSource, add_path_to_errors
from tensorglot.io.place import Place
from tensorglot.io.sink import Writable, open_spool
from tensorglot.io.stream import write_stream
from tensorglot.io.target import open_target
from tensorglot.limits import DEFAULT
from tensorglot.model.dtypes import DType, dtype_of
from tensorglot.model.layouts import replace_attributes
from tensorglot.model.names import check_name
from tensorglot.model.payload import Chunk, Encoded, Memory, Span, Undecodable, as_bytes
from tensorglot.model.tensor import Part, Tensor, has_bad_bool
from tensorglot.operations._as_archive import collect, named_tensor
from tensorglot.operations._options import AUTO, Choice, SaveOptions
from tensorglot.operations._patterns import by_pattern
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress
from tensorglot.operations._revise import Appended
from tensorglot.operations.save import check_metadata, save_archive

__all__ = ["TensorStream", "Writer"]


class TensorStream:
    """A tensor being written in pieces, in C order. It must be complete at the end of its `with` block."""

    def __init__(self, spool: BinaryIO, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        self._spool = spool
        self._name = name
        self._dtype = dtype
        self._shape = shape
        self._left = dtype.nbytes(math.prod(shape))
        self._begin = spool.tell()
        self._in_place = True
        self.written = 0
        """Bytes so far."""
        self.complete = False

    def write(self, data: Any) -> None:
        """Appends one or more slices along the first axis, a flat array of elements, or little-endian bytes.

        A piece may be any value that `save` accepts, of exactly the tensor's element type.
        """
        if self.complete or self._spool.closed:
            raise InputError("the stream is closed", rule="stream.closed", tensor=self._name)
        nbytes, chunks = self._chunks(data)
        if nbytes > self._left:
            raise InputError(
                f"too much data: {nbytes} bytes written, {self._left} bytes left",
                rule="stream.size",
                tensor=self._name,
            )
        if not self._in_place:  # a piece was written in part, perhaps to a full disk: this one takes its place
            self._spool.seek(self._begin + self.written)
        self._in_place = False
        for chunk in chunks:
            self._spool.write(as_bytes(chunk))
        self._in_place = True
        self._left -= nbytes
        self.written += nbytes

    def _chunks(self, data: Any) -> tuple[int, Iterable[Chunk]]:
        """The number of bytes of a piece, and the bytes. An invalid piece is refused before anything is written."""
        if _is_bytes(data):
            piece = as_bytes(bytes(data) if isinstance(data, memoryview) and not data.c_contiguous else data)
            if self._dtype.name == "bool" and has_bad_bool(np.frombuffer(piece, np.bool_)):
                raise InputError("a bool byte must be 0 or 1", rule="values.bool", tensor=self._name)
            return len(piece), [piece]
        value = coerce(data, name=self._name)
        if self._dtype.packed:
            raise InputError(
                f"elements of {self._dtype.name} share bytes: write the packed bytes, or add the tensor as a whole",
                rule="stream.packed",
                tensor=self._name,
            )
        if value.dtype is None or dtype_of(value.dtype, self._name) is not self._dtype:
            raise InputError(
                f"a stream of {self._dtype.name} needs pieces of that type, not {value.type}",
                rule="stream.dtype",
                tensor=self._name,
            )
        slices = len(value.shape) == len(self._shape) and value.shape[1:] == self._shape[1:]
        if not slices and value.shape != self._shape[1:] and len(value.shape) != 1:
            row = list(self._shape[1:])
            raise InputError(
                f"a piece of shape {list(value.shape)} for {list(self._shape)}: write whole slices along the first "
                f"axis, of shape {row} or {['n', *row]}, or a flat array".replace("'", ""),
                rule="stream.shape",
                tensor=self._name,
            )
        held = Memory(value.numpy())
        return held.nbytes, held.chunks()

    def __enter__(self) -> TensorStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        """Ends the tensor, all of which must have been written; `with` does so."""
        if self._left:
            raise InputError(f"too little data: {self._left} bytes are missing", rule="stream.size", tensor=self._name)
        self.complete = True


def _is_bytes(data: Any) -> bool:
    try:
        return isinstance(data, (bytes, bytearray)) or (isinstance(data, memoryview) and data.format == "B")
    except ValueError:  # a released memoryview, which `coerce` refuses
        return False


class Writer:
    """Writes a file tensor by tensor, which need not fit in memory: `with Writer("big.bt") as out: out.add("w", w)`.

    `append=True` adds to the tensors of the file, which must exist: they keep their bytes,
    encodings and checksums, and `metadata` sets keys. The file is replaced when the writer
    closes, and stays as it is after an error. With `in_place`, in zTensor 2, nothing is
    copied: see `edit`.
    """

    def __init__(
        self,
        target: Writable,
        *,
        format: str | None = None,
        append: bool = False,
        in_place: bool = False,
        metadata: Mapping[str, Any] | None = None,
        compression: Choice = None,
        level: int | None = None,
        checksum: Choice = AUTO,
        durable: bool = True,
        progress: Progress | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_flags(append=append, in_place=in_place)
        self._options = SaveOptions.of(compression, level, checksum, durable, progress)
        self._target = target = locate(target, storage_options)
        self._in_place = in_place
        if in_place and not append:
            raise InputError("in_place= needs append=True", rule="writer.append")
        self._append_to = Appended.of(target, format, direct=in_place) if append else None
        if self._append_to is None:
            spec, version = for_target(target, format)
            self._format = f"{spec.name}@{version}"
        else:
            self._format = self._append_to.format
        self._check_options(self._options, metadata)
        self._choices: dict[str, dict[str, str | None]] = {"compression": {}, "checksum": {}}
        self._metadata = metadata
        open_target(target)  # writes nothing yet: a target that cannot be written is refused before any tensor is added
        beside = target if isinstance(target, Place) and not target.remote else None
        self._spool = tempfile.TemporaryFile() if beside is None else open_spool(beside)  # noqa: SIM115
        # A descriptor of its own: spans of tensors refer to this source, and each is closed once.
        self._source = FileSource(os.dup(self._spool.fileno()))
        self._tensors: dict[str, Tensor] = {}
        self._streams: list[TensorStream] = []

    def add(
        self,
        name: str,
        value: Any,
        *,
        attributes: Mapping[str, Any] | None = None,
        compression: str | EllipsisType | None = ...,
        checksum: str | EllipsisType | None = ...,
    ) -> None:
        """Writes one tensor; the value is not kept in memory.

        `compression` and `checksum` override those of the writer.
        """
        self._check(name)
        self._check_options(
            SaveOptions(
                compression={} if isinstance(compression, EllipsisType) else {name: compression},
                checksum={} if isinstance(checksum, EllipsisType) else {name: checksum},
            )
        )
        tensor = named_tensor(name, value)
        if attributes is not None:
            check_mapping(attributes, "attributes of a tensor", "save.attributes", name)
            new = replace_attributes(tensor.layout, tensor.attributes, attributes, name)
            tensor = replace(tensor, attributes=new)
        parts = {part_name: self._spool_part(part) for part_name, part in tensor.parts.items()}
        self._tensors[name] = replace(tensor, parts=parts)
        for what, choice in (("compression", compression), ("checksum", checksum)):
            if not isinstance(choice, EllipsisType):
                self._choices[what][name] = choice

    def _spool_part(self, part: Part) -> Part:
        payload, begin = part.payload, self._spool.tell()
        if isinstance(payload, Encoded) and isinstance(payload.codec, Undecodable):  # some formats can copy it
            stored = Span(payload.source, payload.begin, payload.end)
            end = begin + write_stream(self._spool, stored.chunks())
            return part._replace(payload=payload._replace(source=self._source, begin=begin, end=end, held=None))
        end = begin + write_stream(self._spool, payload.chunks())
        return part._replace(payload=Span(self._source, begin, end))

    def stream(self, name: str, dtype: DTypeLike | DType, shape: Sequence[int]) -> TensorStream:
        """Declares a tensor whose values are written in pieces."""
        self._check(name)
        element = dtype_of(dtype, name)
        try:
            dims = tuple(operator.index(size) for size in shape)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"a shape must be a sequence of integers, not {shape!r}", rule="stream.shape", tensor=name
            ) from error
        if len(dims) > DEFAULT.rank or not all(0 <= size < 1 << 63 for size in dims):
            raise InputError(
                f"a shape has at most {DEFAULT.rank} dimensions, each from 0 to 2**63 - 1, not {list(dims)}",
                rule="stream.shape",
                tensor=name,
            )
        begin = self._spool.tell()
        span = Span(self._source, begin, begin + element.nbytes(math.prod(dims)))
        self._tensors[name] = Tensor(name, {"data": Part(element, dims, span)})
        self._streams.append(TensorStream(self._spool, name, element, dims))
        return self._streams[-1]

    def _check_options(self, options: SaveOptions, metadata: Mapping[str, Any] | None = None) -> None:
        spec, version = named(self._format)
        with add_path_to_errors(self._target if isinstance(self._target, Place) else None):
            options.check(spec, version or "")
            if metadata is not None:
                check_metadata(metadata, spec, version or "")

    def _check(self, name: str) -> None:
        check_name(name)
        if self._spool.closed:
            raise InputError("the writer is closed", rule="writer.closed", tensor=name)
        if name in self._tensors or (self._append_to is not None and name in self._append_to.names):
            raise InputError("a tensor of this name was added before", rule="writer.name", tensor=name)
        if self._streams and not self._streams[-1].complete:
            raise InputError(
                "the stream before it is not complete: end its `with` block or close() it first",
                rule="writer.stream",
                tensor=name,
            )

    def __repr__(self) -> str:
        return (
            f"Writer({self._format}, {plural(len(self._tensors), 'tensor')}{', closed' if self._spool.closed else ''})"
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._release()

    def close(self) -> None:
        """Writes the file; the end of a `with` block does it, unless there was an error. A second call does nothing."""
        if self._spool.closed:
            return
        try:
            self._finish()
        finally:
            self._release()

    def _release(self) -> None:
        self._spool.close()
        self._source.close()

    def _finish(self) -> None:
        if self._streams and not self._streams[-1].complete:
            raise InputError(
                "the last stream is not complete: end its `with` block or close() it first", rule="writer.stream"
            )
        self._spool.flush()
        self._source.size = self._spool.tell()  # it was 0 when the source was made
        options = self._options._replace(
            compression=self._override(self._options.compression, self._choices["compression"]),
            checksum=self._override(self._options.checksum, self._choices["checksum"]),
        )
        if self._append_to is None:
            save_archive(self._target, collect(self._tensors, self._metadata), self._format, options)
        else:
            self._append_to.append(collect(self._tensors), self._metadata, options, direct=self._in_place)

    def _override(self, default: Choice, choices: Mapping[str, str | None]) -> Choice:
        """The writer's choice for all tensors, overridden by choices that were passed to `add`."""
        if not choices:
            return default
        if isinstance(default, Mapping):
            return {**by_pattern(default, [*self._tensors]), **choices}
        return {**dict.fromkeys(self._tensors, default), **choices}
