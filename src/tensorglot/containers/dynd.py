"""A file of DyND: one `array[Any]`, that is, a type and then a value of it.

    file = varint, that many bytes of type text | the serialized value

A struct is an archive of its fields; any other value is an archive of one tensor,
`data`. A tensor of that name alone is written so, and `strict` refuses a struct of it.

A field that is a block of elements is a dense tensor where it lies; every other is
kept as its bytes until somebody asks. Elements of less than a byte take one each.
Fields of a fixed size are found without reading them; one of another size is passed
over to find the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tensorglot.containers.table import UNNAMED, Container, ReadOptions, WriteOptions
from tensorglot.dynd.codec.decode import skip
from tensorglot.dynd.codec.encode import type_header
from tensorglot.dynd.codec.inputs import Stream
from tensorglot.dynd.coerce.value import tensor_pieces
from tensorglot.dynd.schema import plan_of
from tensorglot.dynd.tensors import SERIALIZED, from_tensor
from tensorglot.errors import FormatError, TruncatedError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import Index, Layout, shape_columns
from tensorglot.model.payload import Chunk, Source
from tensorglot.model.subbyte import UnpackedSubByte
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE
from tensorglot.model.types.algebra import Struct, dense_parts, symbolic
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse_canonical

__all__ = ["CONTAINER"]

TEXT_NBYTES = 1 << 16

DTYPES: dict[str, str] = {row.name: row.name for row in TABLE}
"""DyND's names are ours."""

_BYTES = BY_NAME["uint8"].code


def read(source: Source, options: ReadOptions) -> Index:
    type, begin = _header(source, options)
    if options.strict and isinstance(type, Struct) and _is_single(type.fields):
        raise FormatError(f"a value called '{UNNAMED}' stands alone, not in a struct", rule="dynd.strict", offset=0)
    fields = type.fields if isinstance(type, Struct) else ((UNNAMED, type),)
    spans = _spans(source, [field for _, field in fields], begin, options)
    blocks = [_block(field) for _, field in fields]
    dims, dim_offsets = shape_columns(
        [(end - start,) if block is None else block[1] for block, (start, end) in zip(blocks, spans, strict=True)]
    )
    nested = {i: field for i, ((_, field), block) in enumerate(zip(fields, blocks, strict=True)) if block is None}
    narrow = {
        i: UnpackedSubByte(TABLE[block[0]], math.prod(block[1]))
        for i, block in enumerate(blocks)
        if block is not None and TABLE[block[0]].packed
    }
    return Index(
        format="dynd@1",
        names=[name for name, _ in fields],
        dtypes=np.array([_BYTES if block is None else block[0] for block in blocks], np.uint8),
        dims=dims,
        dim_offsets=dim_offsets,
        begins=np.array([start for start, _ in spans], np.int64),
        ends=np.array([end for _, end in spans], np.int64),
        part_names=["data" if block is not None else SERIALIZED for block in blocks],
        layouts={i: Layout(NESTED, field) for i, field in nested.items()},
        attributes={i: {TYPE_ATTRIBUTE: str(field)} for i, field in nested.items()},
        codecs=narrow,
        decoded_nbytes={i: codec.dtype.nbytes(codec.count) for i, codec in narrow.items()},
    )


def _is_single(fields: Sequence[tuple[str, Type]]) -> bool:
    """Whether values are written as one that has no name."""
    return len(fields) == 1 and fields[0][0] == UNNAMED and not isinstance(fields[0][1], Struct)


def _block(type: Type) -> tuple[int, tuple[int, ...]] | None:
    """The element type and shape of a dense tensor."""
    block = dense_parts(type)
    return None if block is None else (block[0].code, block[1])


def _header(source: Source, options: ReadOptions) -> tuple[Type, int]:
    """The type, and where the value begins."""
    head = source.read_bytes(0, min(source.size, TEXT_NBYTES + 3))
    length = at = 0
    while True:
        if at == len(head):
            raise TruncatedError("the file ends within the length of the type", rule="dynd.truncated", offset=at)
        length |= (head[at] & 127) << 7 * at
        at += 1
        if head[at - 1] < 128:
            break
        if at == 3:
            raise FormatError("a type of too many characters", rule="dynd.type.length", offset=0)
    if head[at - 1] == 0 and at > 1:
        raise FormatError("a varint longer than its number needs", rule="dynd.varint.minimal", offset=0)
    if length > source.size - at:
        raise TruncatedError("the file ends within the type", rule="dynd.truncated", offset=source.size)
    try:
        type = parse_canonical(head[at : at + length].decode("ascii", "replace"), options.limits)
    except FormatError as error:
        error.offset = at
        raise
    if symbolic(type):
        raise FormatError(f"{type!s:.60} is symbolic: it has no data", rule="dynd.symbolic", offset=at)
    return type, at + length


def _spans(source: Source, types: list[Type], begin: int, options: ReadOptions) -> list[tuple[int, int]]:
    """Where each value begins and ends. The last one ends where the file does."""
    spans = []
    for i, type in enumerate(types):
        nbytes = plan_of(type).root.nbytes
        if nbytes is not None:
            end = begin + nbytes
        elif i == len(types) - 1:
            end = source.size
        else:
            end = begin + _skipped(source, type, begin, options)
        if end > source.size:
            raise TruncatedError("the file ends within a value", rule="dynd.truncated", offset=source.size)
        spans.append((begin, end))
        begin = end
    if begin != source.size:
        raise FormatError("bytes behind the value", rule="dynd.trailing", offset=begin)
    return spans


def _skipped(source: Source, type: Type, begin: int, options: ReadOptions) -> int:
    """The size of a value that is passed over."""
    stream = Stream(_Reader(source, begin))
    try:
        skip(stream, type, options.limits)
    except FormatError as error:
        if error.offset is not None:
            error.offset += begin
        raise
    return stream.base + stream.at


class _Reader:
    """A source from some byte on, as a stream."""

    def __init__(self, source: Source, at: int) -> None:
        self.source, self.at = source, at

    def read(self, nbytes: int, /) -> bytes:
        nbytes = min(nbytes, self.source.size - self.at)
        self.at += nbytes
        return bytes(self.source.read(self.at - nbytes, nbytes))


def inspect(archive: Archive) -> Iterator[FormatError]:
    """What is wrong with the values that opening does not look at."""
    for position in archive.index.layouts:
        try:
            from_tensor(archive.tensor_at(position))
        except FormatError as error:
            yield error


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    tensors = [archive.tensor_at(i) for i in range(len(archive))]
    fields = tuple((tensor.name, tensor.type) for tensor in tensors)
    type = tensors[0].type if _is_single(fields) else Struct(fields)
    if len(str(type)) > TEXT_NBYTES:
        raise UnsupportedError(f"a type of more than {TEXT_NBYTES} characters", rule="dynd.type.length")
    for tensor in tensors:
        if tensor.attributes.keys() - {TYPE_ATTRIBUTE}:
            raise UnsupportedError("dynd has no attributes", rule="save.attributes", tensor=tensor.name)
    yield type_header(type)
    for tensor in tensors:
        yield from tensor_pieces(tensor)


CONTAINER = Container(DTYPES, read, write, inspect=inspect)
