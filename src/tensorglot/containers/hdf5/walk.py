"""Walks the groups of an HDF5 file and adds each dataset to an index. All reads count against the header limit.

Links that lead elsewhere (soft, external) are noted and not followed. A group that is
reached twice is walked once. A dataset that has two names is parsed once, and becomes two
tensors of the same bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from tensorglot.containers.hdf5.attributes import read_attributes
from tensorglot.containers.hdf5.chunks import DEFLATE, FLETCHER32, SHUFFLE, CheckedChunks, Chunk, Chunked, Unreadable
from tensorglot.containers.hdf5.claims import Claims
from tensorglot.containers.hdf5.dense import dense_links
from tensorglot.containers.hdf5.indexes import ChunkIndex, Stored
from tensorglot.containers.hdf5.objects import (
    DATASPACE,
    DATATYPE,
    EXTERNAL,
    FILL,
    FILTERS,
    LAYOUT,
    UNDEFINED,
    Message,
    Objects,
)
from tensorglot.containers.hdf5.types import DTYPES, UNLIMITED, Element, parse_most, parse_shape, read_type
from tensorglot.errors import FormatError, LimitError, TruncatedError, add_tensor_to_errors, escape
from tensorglot.limits import Limits
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Note
from tensorglot.model.payload import Codec

__all__ = ["add_datasets"]

DEPTH = 64
EXPANSION = 1032
"""The largest compression ratio of deflate."""
_UNFILTERED_EDGES = 1
"""Flag of a layout: chunks that reach beyond the shape are stored without filters."""
_ALL = (1 << 32) - 1
"""The mask of a chunk that skips every filter."""
_FILTERS = {DEFLATE: "deflate", SHUFFLE: "shuffle", FLETCHER32: "fletcher32"}


def add_datasets(builder: IndexBuilder, objects: Objects, limits: Limits, notes: list[Note]) -> None:
    """Adds the datasets of all groups, depth first, in the order of the file."""
    claims = Claims(objects.end - objects.begin, limits)
    walked: set[int] = set()
    rows: dict[int, Row] = {}
    entries, most = 0, limits.tensors_or()
    todo: list[tuple[str, int, int]] = [("", objects.root(), 0)]
    while todo:
        path, address, depth = todo.pop()
        if address in rows:
            row = rows[address]
            claims.repeat(max(row.nbytes, row.end - row.begin), path)
            builder.add(path, row)
            continue
        if address in walked:
            notes.append(Note("hdf5.group", f"the group '{escape(path)}' is another name of one before"))
            continue
        messages = objects.header(address)
        if any(message.kind == LAYOUT for message in messages):
            with add_tensor_to_errors(path):
                rows[address] = _Dataset.read(path, objects, messages, claims, limits)
                builder.add(path, rows[address])
            continue
        walked.add(address)
        if depth > DEPTH:
            raise LimitError(f"groups nested deeper than {DEPTH} levels", rule="hdf5.limit.depth")
        inner: dict[str, int] = {}
        for link in chain(objects.links(messages, address), dense_links(objects, messages, address)):
            entries += 1
            if entries > most:
                limits.check_tensors(entries, rule="hdf5.limit.tensors", what="entries of groups")
            name = _join(path, link.name, objects, address)
            if link.address is None:
                notes.append(Note("hdf5.link", f"the link '{escape(name)}' is not followed"))
            elif inner.setdefault(name, link.address) is not link.address:
                raise FormatError("duplicate name in a group", rule="hdf5.name.duplicate", tensor=name)
        todo += [(name, place, depth + 1) for name, place in reversed(inner.items())]
    claims.check_spans()


def _join(path: str, name: bytes, objects: Objects, address: int) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise objects.fault("invalid UTF-8 in a name", "name", address) from None
    if not text or "/" in text:
        raise objects.fault("a name is empty or has a slash", "name", address)
    return f"{path}/{text}" if path else text


@dataclass(frozen=True, slots=True)
class _Dataset:
    """A dataset whose type and shape are known, while its layout is read."""

    path: str
    objects: Objects
    by_kind: dict[int, Message]
    claims: Claims
    base: Row
    """The row, still without the place of its values."""
    element: Element
    shape: tuple[int, ...]

    @classmethod
    def read(cls, path: str, objects: Objects, messages: list[Message], claims: Claims, limits: Limits) -> Row:
        """Reads the row of a dataset."""
        by_kind = {message.kind: message for message in messages}
        for kind, what in ((DATASPACE, "dataspace"), (DATATYPE, "datatype")):
            if kind not in by_kind:
                raise FormatError(f"a dataset has no {what}", rule="hdf5.dataset", offset=by_kind[LAYOUT].offset)
        space, element = by_kind[DATASPACE], read_type(objects, by_kind[DATATYPE])
        shape = parse_shape(objects, space.data, space.offset - objects.begin)
        if shape is None:
            return Row(dtype=f"empty {element.name}", shape=())
        limits.check_rank(len(shape), rule="hdf5.limit.rank", offset=space.offset)
        if math.prod(size for size in shape if size) * element.nbytes >= 1 << 60:
            raise FormatError("the dataset would have 2**60 bytes or more", rule="hdf5.shape", offset=space.offset)
        name = DTYPES[element.name] if element.known else _marked_type(objects, messages, element)
        base = Row(dtype=BY_NAME[name] if name else element.name, shape=shape, big_endian=element.big_endian)
        return cls(path, objects, by_kind, claims, base, element, shape)._placed()

    @property
    def _layout(self) -> Message:
        return self.by_kind[LAYOUT]

    @property
    def _nbytes(self) -> int:
        return math.prod(self.shape) * self.element.nbytes

    def _encoded(self, codec: Codec, stored: int = 0) -> Row:
        return replace(self.base, end=stored, codec=codec, nbytes=self._nbytes)

    def _placed(self) -> Row:
        """The row with the place of its values: compact, contiguous or chunked (IV.A.2.i)."""
        data, address = self._layout.data, self._layout.offset - self.objects.begin
        version, kind = self.objects.unpack("<2B", data, address)
        if version not in (3, 4, 5):
            return self._encoded(Unreadable(f"layout version {version} is not supported"))
        if EXTERNAL in self.by_kind or kind > 2:
            return self._encoded(Unreadable("values in other files are not followed"))
        if kind == 0:
            size = self.objects.unpack("<H", data, address, 2)[0]
            return self._span(self._layout.offset + 4, size)
        if kind == 1:
            begin, size = self.objects.unpack("<2Q", data, address, 2)
            if begin == UNDEFINED:  # never written: like a chunked dataset without chunks, all fill values
                shape = self.shape or (1,)
                return replace(self, shape=shape)._chunked(shape, {}, ())
            return self._span(self.objects.begin + begin, size)
        return self._chunked_4() if version > 3 else self._chunked_3()

    def _span(self, begin: int, size: int) -> Row:
        end = begin + self._nbytes
        if size < self._nbytes:
            raise FormatError(
                f"dtype and shape need {self._nbytes} bytes, the dataset has {size}",
                rule="hdf5.data.size",
                offset=begin,
            )
        if end > self.objects.end:
            raise TruncatedError(
                f"file truncated: needs {end} bytes, has {self.objects.end}",
                rule="hdf5.data.end",
                offset=min(begin, self.objects.end),
            )
        self.claims.span(begin, end, self.path)
        return replace(self.base, begin=begin, end=end)

    def _chunked_3(self) -> Row:
        data, address = self._layout.data, self._layout.offset - self.objects.begin
        rank, tree = self.objects.unpack("<BQ", data, address, 2)
        sizes = self.objects.unpack(f"<{rank}I", data, address, 11)
        grid = self._grid(sizes)
        return self._read_index(grid, () if tree == UNDEFINED else self._old_chunks(tree, grid))

    def _old_chunks(self, tree: int, grid: tuple[int, ...]) -> Iterator[Stored]:
        """III.A.1: a B-tree whose keys are the sizes and corners of chunks."""
        rank = len(grid)
        for key, place in self.objects.tree(tree, 1, 16 + 8 * rank):
            size, mask, *offsets = struct.unpack(f"<2I{rank + 1}Q", key)
            if any(at % step for at, step in zip(offsets, grid, strict=False)) or offsets[-1]:
                raise self.objects.fault("a chunk is not at a corner of the grid", "chunk.place", place)
            corner = tuple(at // step for at, step in zip(offsets, grid, strict=False))
            yield Stored(corner, place, size, mask)

    def _chunked_4(self) -> Row:
        data, address = self._layout.data, self._layout.offset - self.objects.begin
        flags, rank, width = self.objects.unpack("<3B", data, address, 2)
        at = 5 + rank * width
        kind = self.objects.unpack("<B", data, address, at)[0]
        grid = self._grid(
            tuple(int.from_bytes(data[5 + i * width : 5 + (i + 1) * width], "little") for i in range(rank))
        )
        space = self.by_kind[DATASPACE]
        most = parse_most(self.objects, space.data, space.offset - self.objects.begin)
        index = ChunkIndex(
            self.objects,
            kind,
            flags,
            data[at + 1 :],
            address,
            _chunk_counts(self.shape, grid),
            math.prod(grid) * self.element.nbytes,
            tuple(None if size == UNLIMITED else -(-size // step) for size, step in zip(most, grid, strict=True)),
        )
        found: Iterable[Stored] = index.chunks()
        if flags & _UNFILTERED_EDGES:
            found = (
                stored._replace(mask=_ALL) if _is_partial(stored.place, grid, self.shape) else stored
                for stored in found
            )
        return self._read_index(grid, found)

    def _grid(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a chunk, from sizes of the layout, which end with the size of an element."""
        if len(sizes) != len(self.shape) + 1 or 0 in sizes or sizes[-1] != self.element.nbytes:
            raise FormatError(
                "rank or element size of the chunks is not that of the dataset",
                rule="hdf5.chunk.grid",
                offset=self._layout.offset,
            )
        return sizes[:-1]

    def _read_index(self, grid: tuple[int, ...], stored: Iterable[Stored]) -> Row:
        filters = self._filters()
        unknown = [kind for kind in filters if kind not in _FILTERS]
        if unknown:
            return self._encoded(Unreadable(f"filter {unknown[0]} is not supported"))
        return self._chunked(grid, self._place_chunks(stored, grid), filters)

    def _place_chunks(self, stored: Iterable[Stored], grid: tuple[int, ...]) -> dict[tuple[int, ...], Chunk]:
        """Chunks by position. Checks that each is inside the shape and the file, alone at its position, and large
        enough to inflate to its size."""
        objects, nbytes = self.objects, math.prod(grid) * self.element.nbytes
        counts = _chunk_counts(self.shape, grid)
        found: dict[tuple[int, ...], Chunk] = {}
        for place, address, given, mask in stored:
            size = nbytes if given is None else given
            if any(at >= count for at, count in zip(place, counts, strict=True)) or place in found:
                raise objects.fault(
                    "a chunk is outside the grid of chunks, or two are at one place of it", "chunk.place", address
                )
            if objects.begin + address + size > objects.end or nbytes > EXPANSION * size + 64:
                raise objects.fault(
                    "a chunk is outside the file, or too small to decode to its size", "chunk.span", address
                )
            found[place] = Chunk(objects.begin + address, size, mask)
            self.claims.span(objects.begin + address, objects.begin + address + size, self.path)
        return found

    def _chunked(self, grid: tuple[int, ...], chunks: dict[tuple[int, ...], Chunk], filters: tuple[int, ...]) -> Row:
        stored = sum(chunk.nbytes for chunk in chunks.values())
        filled = self._nbytes - len(chunks) * math.prod(grid) * self.element.nbytes
        self.claims.repeat(max(0, filled), self.path)
        if isinstance(self.base.dtype, str):
            return self._encoded(Unreadable(f"type {self.base.dtype} is not supported"), stored)
        kind = Chunked
        if FLETCHER32 in filters:  # the values are checked if every chunk exists and none skips the checksum
            left_out = 1 << filters.index(FLETCHER32)
            every = len(chunks) == math.prod(_chunk_counts(self.shape, grid))
            if every and not any(chunk.mask & left_out for chunk in chunks.values()):
                kind = CheckedChunks
        itemsize = self.element.nbytes
        codec = kind(self.shape, grid, itemsize, filters, sorted(chunks.items()), self._fill(itemsize))
        return self._encoded(codec, stored)

    def _fill(self, nbytes: int) -> bytes:
        """The fill value (IV.A.2.f), of elements that were never written; zero by default."""
        message = self.by_kind.get(FILL)
        if message is not None and len(message.data) >= 2:
            data = message.data
            defined = data[3] if data[0] < 3 and len(data) > 3 else data[1] & 0x20
            at = 4 if data[0] < 3 else 2
            size = int.from_bytes(data[at : at + 4], "little")
            if defined and size == nbytes and len(data) >= at + 4 + size:
                return data[at + 4 : at + 4 + size]
        return bytes(nbytes)

    def _filters(self) -> tuple[int, ...]:
        """The filters, in the order in which they were applied (IV.A.2.l)."""
        message = self.by_kind.get(FILTERS)
        if message is None:
            return ()
        data, address = message.data, message.offset - self.objects.begin
        version, count = self.objects.unpack("<2B", data, address)
        at = 8 if version == 1 else 2
        found = []
        for _ in range(count):
            named = version == 1 or self.objects.unpack("<H", data, address, at)[0] >= 256
            if named:
                kind, name_nbytes, _, values = self.objects.unpack("<4H", data, address, at)
                at += 8 + (-(-name_nbytes // 8) * 8 if version == 1 else name_nbytes) + 4 * values
            else:
                kind, _, values = self.objects.unpack("<3H", data, address, at)
                at += 6 + 4 * values
            at += 4 if version == 1 and values % 2 else 0
            found.append(kind)
        return tuple(found)


def _marked_type(objects: Objects, messages: list[Message], element: Element) -> str | None:
    """Keras stores bfloat16 as opaque bytes, and says so in an attribute."""
    if element.kind != "opaque" or element.nbytes != 2:
        return None
    attributes = read_attributes(objects, messages) or {}
    return "bfloat16" if attributes.get("dtype") == "bfloat16" else None


def _chunk_counts(shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks along each axis."""
    return tuple(-(-size // step) for size, step in zip(shape, grid, strict=True))


def _is_partial(place: tuple[int, ...], grid: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a chunk reaches beyond the shape."""
    return any((at + 1) * step > size for at, step, size in zip(place, grid, shape, strict=True))
