"""DyND files: one `array[Any]`, which is a type followed by a value of it.

    file = varint, that many bytes of type text | the serialized value

Tensors are written in the first of three forms that fits:

1. One tensor called `data` that is not a struct: its value.
2. Tensors whose type fits 64 KiB of text: a struct with a field for each.
3. Any number: a value of `{tensors: var * {name: string, type: type, nbytes: int64},
   values: bytes}`. `values` has the serialized values of all tensors, concatenated.
   Tensors that form 2 would give this very type are written in this form, too.

All three are read, also where another one would fit; any other value is an archive of one
tensor, `data`. `strict` accepts only the form in which the tensors would be written.

A field that is a block of elements is a dense tensor, read in place; other fields are
decoded when they are read. Sub-byte elements take a byte each. In the first two forms
fields of variable size are skipped to find the next; the third has an index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import UNNAMED, Container, ReadOptions, WriteOptions, check_header
from tensorglot.dynd.codec.decode import decode, skip
from tensorglot.dynd.codec.encode import measure, type_header, varint
from tensorglot.dynd.codec.inputs import PIECE_NBYTES, Stream
from tensorglot.dynd.schema import HUGE, Node, check_readable, fixed_nbytes, parse_data_type
from tensorglot.dynd.tensors import SERIALIZED, from_tensor, tensor_pieces
from tensorglot.dynd.value import Value
from tensorglot.errors import FormatError, InputError, LimitError, TruncatedError, add_tensor_to_errors
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import UNKNOWN, Index, Layout, shape_columns
from tensorglot.model.payload import Chunk, Source
from tensorglot.model.subbyte import UnpackedSubByte
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE, Tensor
from tensorglot.model.types.algebra import Struct, dense, dense_parts
from tensorglot.model.types.base import Type, quote
from tensorglot.model.types.text import parse, text_of

__all__ = ["CONTAINER", "index_of"]

DTYPES: dict[str, str] = {row.name: row.name for row in TABLE}
"""DyND's names are the same as ours."""

_BYTES = BY_NAME["uint8"].code
_TABLE = parse("{tensors: var * {name: string, type: type, nbytes: int64}, values: bytes}")
_ROWS = parse("var * {name: string, type: string, nbytes: int64}")
"""The index of `_TABLE`, with types as text: each distinct text is parsed once."""
_LENGTH_NBYTES = 9
"""Bytes of the longest varint."""
_AHEAD_NBYTES, _NEAR_NBYTES = 64 << 10, 4 << 10
"""What is read at least to skip values, and the size up to which a value between them is read, too."""
_SLOW_PATH = {row.code for row in TABLE if row.packed or row.name == "bool" or row.numpy is None}
"""Element types that are converted or checked one tensor at a time."""

Field = tuple[str, Type]
Spans = list[tuple[int, int]]


def read(source: Source, options: ReadOptions) -> Index:
    type, begin = _header(source, options)
    if type == _TABLE:
        fields, spans = _table(source, begin, options)
    else:
        fields = list(type.fields) if isinstance(type, Struct) else [(UNNAMED, type)]
        _check_fields(fields, options, begin)
        spans = _spans(source, [field for _, field in fields], begin, options)
    if options.strict and type != _whole_type(fields):
        raise FormatError("not canonical: the tensors would be written in another form", rule="dynd.strict", offset=0)
    return index_of(fields, spans)


def index_of(fields: Sequence[Field], spans: Spans) -> Index:
    """The index of serialized values at spans of a source."""
    known = {key: dense_parts(field) for key, field in {id(field): field for _, field in fields}.items()}
    blocks = [known[id(field)] for _, field in fields]
    dims, dim_offsets = shape_columns(
        [(end - start,) if block is None else block[1] for block, (start, end) in zip(blocks, spans, strict=True)]
    )
    nested = {i: field for i, ((_, field), block) in enumerate(zip(fields, blocks, strict=True)) if block is None}
    layouts = {key: Layout(NESTED, field) for key, field in {id(field): field for field in nested.values()}.items()}
    narrow = {
        i: UnpackedSubByte(block[0], math.prod(block[1]))
        for i, block in enumerate(blocks)
        if block is not None and block[0].packed
    }
    return Index(
        format="dynd@1",
        names=[name for name, _ in fields],
        dtypes=np.array([_BYTES if block is None else block[0].code for block in blocks], np.uint8),
        dims=dims,
        dim_offsets=dim_offsets,
        begins=np.array([start for start, _ in spans], np.int64),
        ends=np.array([end for _, end in spans], np.int64),
        part_names=["data" if block is not None else SERIALIZED for block in blocks],
        layouts={i: layouts[id(field)] for i, field in nested.items()},
        attributes={i: {TYPE_ATTRIBUTE: str(field)} for i, field in nested.items()},
        codecs=narrow,
        decoded_nbytes={i: codec.dtype.nbytes(codec.count) for i, codec in narrow.items()},
    )


def _whole_type(fields: Sequence[Field]) -> Type:
    """Returns the type of a file with these tensors."""
    if len(fields) == 1 and fields[0][0] == UNNAMED and not isinstance(fields[0][1], Struct):
        return fields[0][1]
    nbytes = 0
    for name, field in fields:
        nbytes += len(quote(name)) + len(": ") + len(str(field)) + len(", ")
        if nbytes > DEFAULT.type_nbytes:
            return _TABLE
    try:
        parse(str(type := Struct(tuple(fields))))
    except InputError:
        return _TABLE
    return type


def _header(source: Source, options: ReadOptions) -> tuple[Type, int]:
    """Reads the type; returns also where the value begins."""
    length, at = _length(source, 0)
    if length > options.limits.type_nbytes:
        raise LimitError(
            f"type of {length} bytes exceeds Limits.type_nbytes ({options.limits.type_nbytes})",
            rule="dynd.type.length",
            offset=0,
        )
    if length > source.size - at:
        raise TruncatedError(
            f"file truncated: the type needs {at + length} bytes, has {source.size}",
            rule="dynd.truncated",
            offset=source.size,
        )
    return _data_type(source.read_bytes(at, length).decode("ascii", "replace"), options.limits, at), at + length


def _data_type(text: str, limits: Limits, at: int) -> Type:
    """Parses the text of a type at a byte of the file."""
    try:
        return parse_data_type(text, limits)
    except FormatError as error:
        error.offset = at
        raise


def _length(source: Source, begin: int) -> tuple[int, int]:
    """Reads a varint; returns also where it ends."""
    head = source.read_bytes(begin, min(source.size - begin, _LENGTH_NBYTES))
    length = 0
    for i, byte in enumerate(head):
        length |= (byte & 127) << 7 * i
        if byte < 128:
            if byte == 0 and i:
                raise FormatError("varint is not in its shortest form", rule="dynd.varint.minimal", offset=begin)
            return length, begin + i + 1
    if len(head) == _LENGTH_NBYTES:
        raise FormatError("varint longer than nine bytes", rule="dynd.varint.long", offset=begin)
    raise TruncatedError("file truncated within a varint", rule="dynd.truncated", offset=source.size)


def _table(source: Source, begin: int, options: ReadOptions) -> tuple[list[Field], Spans]:
    """Reads the index of the third form."""
    limits = options.limits
    stream = Stream(_Reader(source, begin, limits.header_or()))
    try:
        value = decode(stream, _ROWS, limits)
    except FormatError as error:
        error.offset = begin + (error.offset or 0)
        raise
    rows, names, texts, sizes = (value.plan.nodes[i] for i in (0, 2, 4, 6))
    count = int(value.lists(rows).stops[0])
    length, data = _length(source, begin + stream.base + stream.at)
    limits.check_tensors(count, rule="dynd.limit.tensors", offset=begin)
    nbytes = value.array(sizes)[:count].tolist()
    edges = [data]
    for size in nbytes:
        edges.append(edges[-1] + size)
    if min(nbytes, default=0) < 0 or edges[-1] != data + length or data + length > source.size:
        raise FormatError(
            "the sizes of the tensors do not add up to the size of the values", rule="dynd.table.size", offset=data
        )
    if data + length != source.size:
        raise FormatError("trailing bytes after the value", rule="dynd.trailing", offset=data + length)
    fields = list(zip(_texts(value, names), _types(_texts(value, texts), nbytes, limits, begin), strict=True))
    _check_fields(fields, options, begin)
    return fields, list(pairwise(edges))


def _texts(value: Value, node: Node) -> list[str]:
    """Decodes the strings of a node, which are valid UTF-8 already."""
    starts, stops = value.lists(node)
    data = value.array(node.child).tobytes()
    return [data[a:b].decode() for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _types(texts: list[str], nbytes: list[int], limits: Limits, begin: int) -> list[Type]:
    """Parses the types of tensors, and checks the sizes of fixed-size ones."""
    known = {text: _data_type(text, limits, begin) for text in dict.fromkeys(texts)}
    sizes = {text: fixed_nbytes(type) for text, type in known.items()}
    for text, size in zip(texts, nbytes, strict=True):
        if sizes[text] not in (None, size):
            raise FormatError(
                f"value of type {text:.60} needs {sizes[text]} bytes, found {size}",
                rule="dynd.table.size",
                offset=begin,
            )
    return [known[text] for text in texts]


def _check_fields(fields: list[Field], options: ReadOptions, begin: int) -> None:
    options.limits.check_tensors(len(fields), rule="dynd.limit.tensors", offset=begin)
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise FormatError("duplicate tensor name", rule="dynd.table.name", offset=begin)
    if any(len(name.encode()) > options.limits.name_nbytes for name in names):
        raise LimitError(
            f"tensor name longer than Limits.name_nbytes ({options.limits.name_nbytes})",
            rule="dynd.limit.name",
            offset=begin,
        )


def _spans(source: Source, types: list[Type], begin: int, options: ReadOptions) -> Spans:
    """Returns the span of each value. The last one ends the file."""
    known = {key: fixed_nbytes(type) for key, type in {id(type): type for type in types}.items()}
    sizes = [known[id(type)] for type in types]
    edges, last = [begin], len(types) - 1
    while len(edges) <= len(types):
        i = len(edges) - 1
        nbytes = sizes[i]
        if nbytes is None and i < last:
            stop = next((j for j in range(i + 1, last) if (sizes[j] or 0) > _NEAR_NBYTES), last)
            edges += skip(_Window(source, edges[-1]), types[i:stop], options.limits)
            continue
        edges.append(source.size if nbytes is None else edges[-1] + nbytes)
        if edges[-1] > source.size:
            raise TruncatedError(
                f"file truncated: needs {edges[-1]} bytes, has {source.size}",
                rule="dynd.truncated",
                offset=source.size,
            )
    if edges[-1] != source.size:
        raise FormatError("trailing bytes after the value", rule="dynd.trailing", offset=edges[-1])
    return list(pairwise(edges))


class _Window:
    """A source as an input of the decoder. It reads ahead, because unused bytes can be read again."""

    beyond = HUGE

    def __init__(self, source: Source, begin: int) -> None:
        self.source, self.base, self.at = source, begin, 0
        self.window = np.empty(0, np.uint8)

    def more(self, least: int) -> None:
        rest = self.window[self.at :]
        begin = self.base + len(self.window)
        nbytes = min(max(least - len(rest), _AHEAD_NBYTES), PIECE_NBYTES, self.source.size - begin)
        if nbytes == 0:
            raise TruncatedError(
                "file truncated: it ends inside a value", rule="dynd.truncated", offset=self.source.size
            )
        self.base, self.at = self.base + self.at, 0
        self.window = np.concatenate([rest, np.frombuffer(self.source.read(begin, nbytes), np.uint8)])


class _Reader:
    """A stream over at most `most` bytes of a source, from `at` on."""

    def __init__(self, source: Source, at: int, most: int) -> None:
        self.source, self.at, self.most, self.end = source, at, most, at + most

    def read(self, nbytes: int, /) -> bytes:
        nbytes = min(nbytes, self.source.size - self.at)
        if self.at + nbytes > self.end:
            raise LimitError(f"index of more than {self.most} bytes (Limits.header_nbytes)", rule="dynd.limit.header")
        self.at += nbytes
        return bytes(self.source.read(self.at - nbytes, nbytes))


def inspect(archive: Archive) -> Iterator[FormatError]:
    """Checks the values that opening does not read; yields the errors."""
    for position in archive.index.layouts:
        try:
            from_tensor(archive.tensor_at(position))
        except FormatError as error:
            yield error


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    plain = _plain_rows(archive)
    types = _tensor_types(archive, plain)
    names = list(archive.index.names)
    type = _whole_type(list(zip(names, types, strict=True)))
    yield type_header(type)
    if type == _TABLE:
        yield from _table_head(archive, plain, names, types)
    for begin, end in pairwise(_runs(plain)):
        if plain[begin]:
            yield from archive.chunks(_first_rows(archive)[begin:end])
        else:
            yield from tensor_pieces(archive.tensor_at(begin))


def _first_rows(archive: Archive) -> NDArray[np.int64]:
    rows = archive.index.first_rows
    return np.arange(len(archive)) if rows is None else rows[:-1]


def _plain_rows(archive: Archive) -> list[bool]:
    """Returns which tensors are dense and stored as they are serialized, so that many can be written at once."""
    index = archive.index
    slow = {*_SLOW_PATH, UNKNOWN}
    codes = index.dtypes[_first_rows(archive)].tolist()
    return [archive.verifier is None and code not in slow and i not in index.layouts for i, code in enumerate(codes)]


def _runs(plain: list[bool]) -> list[int]:
    """Returns where runs of plain tensors begin, every other tensor, and the end."""
    return [i for i in range(len(plain)) if not (i and plain[i] and plain[i - 1])] + [len(plain)]


def _tensor_types(archive: Archive, plain: list[bool]) -> list[Type]:
    """Returns the type of each tensor (equal plain types share an object), refusing what readers refuse."""
    known: dict[tuple[int, tuple[int, ...]], Type] = {}
    index, shapes = archive.index, archive.index.shapes
    types = []
    for position, row in enumerate(_first_rows(archive).tolist()):
        kind = int(index.dtypes[row]), shapes[row]
        type = known.get(kind) if plain[position] else archive.tensor_at(position).type
        if type is None or not plain[position]:
            type = type or dense(TABLE[kind[0]], kind[1])
            _check_type(type, index.names[position])
        if plain[position]:
            known[kind] = type
        types.append(type)
    return types


def _check_type(type: Type, name: str) -> None:
    block = dense_parts(type)
    if block is not None and 0 not in block[1] and len(block[1]) <= DEFAULT.rank:
        return
    with add_tensor_to_errors(name):
        check_readable(type)
        text_of(type)


def _table_head(archive: Archive, plain: list[bool], names: list[str], types: list[Type]) -> Iterator[Chunk]:
    """Writes the third form up to its values."""
    sizes = archive.index.nbytes[_first_rows(archive)].tolist()
    for i, fast in enumerate(plain):
        if not fast:
            sizes[i] = _value_nbytes(archive.tensor_at(i))
    encoded = {id(type): str(type).encode() for type in types}
    table = bytearray(varint(len(names)))
    for name, type, size in zip(names, types, sizes, strict=True):
        for text in (name.encode(), encoded[id(type)]):
            table += varint(len(text)) + text
        table += size.to_bytes(8, "little")
    check_header(len(table), "dynd")
    yield table
    yield varint(sum(sizes))


def _value_nbytes(tensor: Tensor) -> int:
    """Returns the serialized size of any tensor."""
    nbytes = fixed_nbytes(tensor.type)
    if nbytes is not None:
        return nbytes
    return tensor.parts[SERIALIZED].nbytes if SERIALIZED in tensor.parts else measure(from_tensor(tensor))


CONTAINER = Container(DTYPES, read, write, inspect=inspect)
