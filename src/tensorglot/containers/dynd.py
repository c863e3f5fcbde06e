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
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from operator import mul
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorglot.cached import cached_property
from tensorglot.containers.table import UNNAMED, Container, ReadOptions, WriteOptions, check_header
from tensorglot.dynd.codec.decode import decode
from tensorglot.dynd.codec.encode import measure as serialized_nbytes
from tensorglot.dynd.codec.encode import varint
from tensorglot.dynd.codec.inputs import PIECE_NBYTES, Stream
from tensorglot.dynd.codec.skip import skip
from tensorglot.dynd.schema import HUGE, Node, check_readable, void_error
from tensorglot.dynd.sizes import NO_LIMITS, VARIABLE, Sizes, fixed_nbytes, measure, read_types
from tensorglot.dynd.tensors import SERIALIZED, from_tensor, tensor_pieces
from tensorglot.dynd.value import Value
from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError, TruncatedError, add_tensor_to_errors
from tensorglot.kernels import type_codes as codes
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import UNKNOWN, Index, RowLayout
from tensorglot.model.payload import Chunk, Source
from tensorglot.model.subbyte import UnpackedSubByte
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE, Tensor
from tensorglot.model.types.algebra import dense, dense_parts
from tensorglot.model.types.base import Type, quote
from tensorglot.model.types.rows import Rows
from tensorglot.model.types.text import parse, parse_canonical, text_of

__all__ = ["CONTAINER", "check_writable", "index_of"]

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
_PACKED = {row.code for row in TABLE if row.packed}
_SLOW_PATH = {row.code for row in TABLE if row.packed or row.name == "bool" or row.numpy is None}
"""Element types that are converted or checked one tensor at a time."""

R = TypeVar("R")


@dataclass(frozen=True)
class Kinds:
    """The types of values: the rows of the distinct ones, and for each value the position among them."""

    types: Rows
    distinct: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def of(cls, types: Rows, known: Mapping[Any, int], keys: Sequence[Hashable]) -> Kinds:
        """The types of values that have these keys; `known` has the row of each."""
        numbers = dict(zip(known, count(), strict=False))
        positions = np.fromiter(map(numbers.__getitem__, keys), np.int64, len(keys))
        return cls(types, np.array(list(known.values()), np.int64), positions)

    @cached_property
    def sizes(self) -> Sizes:
        return measure(self.types)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The row of the type of each value."""
        return self.distinct[self.positions]

    @cached_property
    def nested(self) -> dict[int, int]:
        """The rows of the distinct types that are not blocks of elements, by their numbers."""
        numbers = np.flatnonzero(self.types.dtypes[self.distinct] < 0)
        return dict(zip(numbers.tolist(), self.distinct[numbers].tolist(), strict=True))

    def check_shared(self, limits: Limits, offset: int | None = None) -> None:
        """Bounds what tensors of one type claim together: in a store, the bytes of all of them may be the same."""
        numbers, rows = list(self.nested), list(self.nested.values())
        counts = np.bincount(self.positions, minlength=len(self.distinct))[numbers].tolist()
        charges = self.sizes.charge[rows].tolist()
        if sum(map(mul, counts, charges)) > limits.void_count:
            raise void_error(limits, offset)
        inside = (self.types.after[rows] - rows).tolist()
        columns = sum((count - 1) * size for count, size in zip(counts, inside, strict=True))
        limits.check_tensors(
            columns, rule="dynd.limit.columns", offset=offset, what="columns of tensors that share a type"
        )

    def entries(self, of_type: dict[int, R]) -> dict[int, R]:
        """The entries of a sparse column, from those of distinct types: one object for all values of a type."""
        if not of_type:
            return {}
        return {i: of_type[number] for i, number in enumerate(self.positions.tolist()) if number in of_type}


def read(source: Source, options: ReadOptions) -> Index:
    text, begin = _header(source, options)
    if text == str(_TABLE):
        names, texts, kinds, edges = _table(source, begin, options)
    else:
        names, texts, kinds = _fields(text, options.limits, begin - len(text))
        options.limits.check_tensors(len(names), rule="dynd.limit.tensors", offset=begin)
        _check_names(names, options, begin)
        edges = _edges(source, kinds, begin, options.limits)
    if options.strict and text != _whole_text(names, texts):
        raise FormatError("not canonical: the tensors would be written in another form", rule="dynd.strict", offset=0)
    places = np.array(edges, np.int64)
    kinds.check_shared(options.limits, begin)
    return _index(names, kinds, places[:-1], places[1:])


def index_of(fields: Sequence[tuple[str, Type]], spans: Sequence[tuple[int, int]], limits: Limits = DEFAULT) -> Index:
    """The index of serialized values at spans of a source."""
    kinds = _kinds_of([type for _, type in fields])
    begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
    kinds.check_shared(limits)
    return _index([name for name, _ in fields], kinds, begins, ends)


def check_writable(types: Iterable[Type]) -> None:
    """Refuses to write together what a reader with default limits would refuse."""
    try:
        _kinds_of(list(types)).check_shared(DEFAULT)
    except LimitError as error:
        raise InputError(error.message, rule=error.rule) from None


def _kinds_of(types: Sequence[Type]) -> Kinds:
    texts = {id(type): str(type) for type in types}
    distinct = list(dict.fromkeys(texts.values()))
    rows = read_types(distinct, NO_LIMITS)
    known = dict(zip(distinct, rows.roots.tolist(), strict=True))
    return Kinds.of(rows, known, [texts[id(type)] for type in types])


def _index(names: list[str], kinds: Kinds, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Index:
    types, rows = kinds.types, kinds.rows
    dtypes = types.dtypes[rows]
    dims, dim_offsets = types.shapes(rows)
    layouts = kinds.entries({number: RowLayout(NESTED, types, row) for number, row in kinds.nested.items()})
    nested = np.fromiter(layouts, np.int64, len(layouts))
    dims[dim_offsets[nested]] = ends[nested] - begins[nested]
    part_names = ["data"] * len(names)
    for position in layouts:
        part_names[position] = SERIALIZED
    narrow = {
        position: UnpackedSubByte(block[0], math.prod(block[1]))
        for position, block in enumerate(types.blocks(rows) if _PACKED & {*dtypes.tolist()} else ())
        if block is not None and block[0].packed
    }
    return Index(
        format="dynd@1",
        names=names,
        dtypes=np.where(dtypes < 0, _BYTES, dtypes).astype(np.uint8),
        dims=dims,
        dim_offsets=dim_offsets,
        begins=begins,
        ends=ends,
        part_names=part_names,
        layouts=layouts,
        attributes=kinds.entries(
            {number: {TYPE_ATTRIBUTE: types.text_of(row)} for number, row in kinds.nested.items()}
        ),
        codecs=narrow,
        decoded_nbytes={i: codec.dtype.nbytes(codec.count) for i, codec in narrow.items()},
    )


def _whole_text(names: Sequence[str], texts: Sequence[str]) -> str:
    """Returns the type of a file with tensors of these names and types."""
    if list(names) == [UNNAMED] and not texts[0].startswith("{"):
        return texts[0]
    fields, nbytes = [], 0
    for name, text in zip(names, texts, strict=True):
        fields.append(f"{quote(name)}: {text}")
        nbytes += len(fields[-1]) + len(", ")
        if nbytes > DEFAULT.type_nbytes:
            return str(_TABLE)
    whole = f"{{{', '.join(fields)}}}"
    try:
        parse_canonical(whole)
    except TensorglotError:
        return str(_TABLE)
    return whole


def _header(source: Source, options: ReadOptions) -> tuple[str, int]:
    """Reads the text of the type; returns also where the value begins."""
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
    return source.read_bytes(at, length).decode("ascii", "replace"), at + length


def _fields(text: str, limits: Limits, at: int) -> tuple[list[str], list[str], Kinds]:
    """The names and types of the tensors in a type at a byte of the file."""
    types = read_types([text], limits, at)
    if types.code[0] != codes.STRUCT:
        return [UNNAMED], [text], Kinds.of(types, {text: 0}, [text])
    inside = types.inside(0)
    texts = types.texts(inside)
    known = dict(zip(reversed(texts), reversed(inside.tolist()), strict=True))
    return types.names(0, inside), texts, Kinds.of(types, known, texts)


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


def _table(source: Source, begin: int, options: ReadOptions) -> tuple[list[str], list[str], Kinds, list[int]]:
    """Reads the index of the third form."""
    limits = options.limits
    stream = Stream(_Reader(source, begin, limits.header_or()))
    try:
        value = decode(stream, _ROWS, limits)
    except FormatError as error:
        error.offset = begin + (error.offset or 0)
        raise
    rows, names, texts, sizes = (value.plan.nodes[i] for i in (0, 2, 4, 6))
    number = int(value.lists(rows).stops[0])
    length, data = _length(source, begin + stream.base + stream.at)
    limits.check_tensors(number, rule="dynd.limit.tensors", offset=begin)
    nbytes = value.array(sizes)[:number]
    edges = list(accumulate(nbytes.tolist(), initial=data))
    if nbytes.min(initial=0) < 0 or edges[-1] != data + length or data + length > source.size:
        raise FormatError(
            "the sizes of the tensors do not add up to the size of the values", rule="dynd.table.size", offset=data
        )
    if data + length != source.size:
        raise FormatError("trailing bytes after the value", rule="dynd.trailing", offset=data + length)
    types = _texts(value, texts)
    distinct = list(dict.fromkeys(types))
    held = read_types(distinct, limits, begin)
    kinds = Kinds.of(held, dict(zip(distinct, held.roots.tolist(), strict=True)), types)
    _check_sizes(kinds, nbytes, begin)
    found = _texts(value, names)
    _check_names(found, options, begin)
    return found, types, kinds, edges


def _texts(value: Value, node: Node) -> list[str]:
    """Decodes the strings of a node, which are valid UTF-8 already."""
    starts, stops = (column.tolist() for column in value.lists(node))
    data = value.array(node.child).tobytes()
    if data.isascii():
        text = data.decode()
        return [text[a:b] for a, b in zip(starts, stops, strict=True)]
    return [data[a:b].decode() for a, b in zip(starts, stops, strict=True)]


def _check_sizes(kinds: Kinds, nbytes: NDArray[np.int64], begin: int) -> None:
    """Checks the sizes of tensors whose types have a fixed size."""
    needed = kinds.sizes.nbytes[kinds.rows]
    for wrong in np.flatnonzero((needed != VARIABLE) & (needed != nbytes))[:1].tolist():
        raise FormatError(
            f"value of type {kinds.types.text_of(kinds.rows.item(wrong)):.60} needs {needed[wrong]} bytes, "
            f"found {nbytes[wrong]}",
            rule="dynd.table.size",
            offset=begin,
        )


def _check_names(names: list[str], options: ReadOptions, begin: int) -> None:
    most = options.limits.name_nbytes
    if len(set(names)) < len(names):
        raise FormatError("duplicate tensor name", rule="dynd.table.name", offset=begin)
    if any(len(name.encode()) > most for name in names if 4 * len(name) > most):
        raise LimitError(f"tensor name longer than Limits.name_nbytes ({most})", rule="dynd.limit.name", offset=begin)


def _edges(source: Source, kinds: Kinds, begin: int, limits: Limits) -> list[int]:
    """Returns where each value begins. The last one ends the file."""
    sizes = kinds.sizes.nbytes[kinds.rows].tolist()
    edges, last = [begin], len(sizes) - 1
    while (i := len(edges) - 1) <= last:
        if sizes[i] != VARIABLE:
            stop = next((j for j in range(i, len(sizes)) if sizes[j] == VARIABLE), len(sizes))
            edges += accumulate(sizes[i:stop], initial=edges.pop())
        elif i < last:
            stop = next((j for j in range(i + 1, last) if sizes[j] > _NEAR_NBYTES), last)
            edges += skip(_Window(source, edges[-1]), kinds.types, kinds.sizes, kinds.rows[i:stop], limits)
        else:
            edges.append(source.size)
        if edges[-1] > source.size:
            raise TruncatedError(
                f"file truncated: needs {edges[bisect_right(edges, source.size)]} bytes, has {source.size}",
                rule="dynd.truncated",
                offset=source.size,
            )
    if edges[-1] != source.size:
        raise FormatError("trailing bytes after the value", rule="dynd.trailing", offset=edges[-1])
    return edges


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
    check_writable(types[position] for position in archive.index.layouts)
    names = list(archive.index.names)
    text = _whole_text(names, [str(type) for type in types])
    yield varint(len(text)) + text.encode()
    if text == str(_TABLE):
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
    return tensor.parts[SERIALIZED].nbytes if SERIALIZED in tensor.parts else serialized_nbytes(from_tensor(tensor))


CONTAINER = Container(DTYPES, read, write, inspect=inspect)
