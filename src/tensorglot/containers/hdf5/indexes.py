"""Where the chunks of a dataset are: the five indexes of `libver="latest"` (IV.A.2.i versions 4 and 5; VII).

Each yields the chunks that exist: position in the grid, address, stored size (None: the size
of an unfiltered chunk) and the filters that were skipped. Arrays number the chunks in C
order of the largest shape that the dataset may grow to. Headers, blocks and pages of arrays
each have a checksum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensorglot.containers.hdf5 import btrees
from tensorglot.containers.hdf5.objects import UNDEFINED, Objects
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.tuples import NamedTuple

__all__ = ["ChunkIndex", "Stored"]

SINGLE, IMPLICIT, FIXED_ARRAY, EXTENSIBLE_ARRAY, BTREE = 1, 2, 3, 4, 5
_CHECKSUM = 4
_RULE = "chunk.index"
_FILTERED = 2
"""Flag of a single chunk whose size and filters are in the layout message."""


class Stored(NamedTuple):
    """A chunk that exists."""

    place: tuple[int, ...]
    """Position in the grid of chunks."""
    address: int
    nbytes: int | None
    mask: int


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The index that a layout message describes."""

    objects: Objects
    kind: int
    flags: int
    details: bytes
    """Bytes of the message, from the parameters of the index on."""
    address: int
    """Address of the message."""
    counts: tuple[int, ...]
    """Chunks along each axis of the present shape."""
    chunk_nbytes: int
    """Size of a whole chunk without filters."""
    most: tuple[int | None, ...]
    """Chunks along each axis of the largest shape; None for an axis without limit."""

    def chunks(self) -> Iterator[Stored]:
        readers = {
            SINGLE: self._single,
            IMPLICIT: self._implicit,
            FIXED_ARRAY: self._fixed_array,
            EXTENSIBLE_ARRAY: self._extensible_array,
            BTREE: self._btree,
        }
        if self.kind not in readers:
            raise UnsupportedError(
                f"unsupported index of chunks {self.kind} (supported: 1 to 5)",
                rule="hdf5.chunk.index",
                offset=self.objects.begin + self.address,
            )
        return readers[self.kind]()

    def _root(self, skip: int) -> int:
        return self.objects.unpack("<Q", self.details, self.address, skip)[0]

    def _single(self) -> Iterator[Stored]:
        nbytes: int | None = None
        mask = skip = 0
        if self.flags & _FILTERED:
            nbytes, mask = self.objects.unpack("<QI", self.details, self.address)
            skip = 12
        root = self._root(skip)
        if root != UNDEFINED:
            yield Stored((0,) * len(self.counts), root, nbytes, mask)

    def _implicit(self) -> Iterator[Stored]:
        """All chunks, adjacent and unfiltered (VII.B)."""
        root, count = self._root(0), math.prod(self._limited())
        if root == UNDEFINED:
            return
        if self.objects.begin + root + count * self.chunk_nbytes > self.objects.end:
            raise self._fault("chunks lie outside the file", root)
        for number in range(count):
            place = self._place(number, None)
            if place is not None:
                yield Stored(place, root + number * self.chunk_nbytes, None, 0)

    def _limited(self) -> tuple[int, ...]:
        """The largest number of chunks along each axis; an unlimited axis is an error."""
        if None in self.most:
            raise self._fault("an array of chunks needs limited axes", self.address)
        return tuple(count for count in self.most if count is not None)

    def _place(self, number: int, free: int | None) -> tuple[int, ...] | None:
        """The position of a chunk in the grid, from its number; None if it is outside the present shape.

        `free` is the unlimited axis, if there is one: it varies slowest.
        """
        order = [*range(len(self.most))]
        if free is not None:
            order.insert(0, order.pop(free))
        place = [0] * len(order)
        for axis in reversed(order[1:]):
            number, place[axis] = divmod(number, self.most[axis] or 1)
        place[order[0]] = number
        inside = all(at < count for at, count in zip(place, self.counts, strict=True))
        return tuple(place) if inside else None

    def _elements(
        self, runs: Iterable[tuple[int, bytes]], size: int, free: int | None, filtered: bool
    ) -> Iterator[Stored]:
        """The chunks that the elements of an array describe; each run has the number of its first element."""
        for first, data in runs:
            for i in range(len(data) // size):
                element = data[i * size : (i + 1) * size]
                address = int.from_bytes(element[:8], "little")
                place = None if address == UNDEFINED else self._place(first + i, free)
                if place is None:
                    continue
                nbytes = int.from_bytes(element[8:-4], "little") if filtered else None
                yield Stored(place, address, nbytes, int.from_bytes(element[-4:], "little") if filtered else 0)

    def _check_element(self, filtered: int, size: int, address: int) -> None:
        if filtered not in (0, 1) or (size != 8 if not filtered else not 13 <= size <= 20):
            raise self._fault("the elements are not the addresses of chunks", address)

    def _fault(self, what: str, address: int) -> FormatError:
        return self.objects.fault(f"{what}, in an index of chunks", _RULE, address)

    def _fixed_array(self) -> Iterator[Stored]:
        """The chunks of a fixed array (VII.C)."""
        objects, root = self.objects, self._root(1)
        if root == UNDEFINED:
            return
        head = self.objects.read_checked(root, 24, b"FAHD\0", "fixed array", _RULE)
        filtered, size, page_bits = objects.unpack("<3B", head, root, 5)
        count, block = objects.unpack("<2Q", head, root, 8)
        if page_bits > 63:
            raise self._fault("the page size of a fixed array is invalid", root)
        self._check_element(filtered, size, root)
        if count != math.prod(self._limited()):
            raise self._fault("a fixed array does not have an element for each chunk", root)
        if block == UNDEFINED:
            return
        yield from self._elements(self._pages(block, count, size, 1 << page_bits), size, None, bool(filtered))

    def _pages(self, address: int, count: int, size: int, page: int) -> Iterator[tuple[int, bytes]]:
        """The elements of a block. Large blocks store them in pages; pages that were never written are skipped."""
        objects = self.objects
        pages = -(-count // page) if count > page else 0
        nbytes = 14 + (-(-pages // 8) if pages else count * size)
        block = objects.read_checked(address, nbytes, b"FADB\0", "fixed array block", _RULE)
        if not pages:
            yield 0, block[14:]
        for number in range(pages):
            if block[14 + number // 8] & 0x80 >> number % 8:
                length = min(page, count - number * page)
                place = address + nbytes + _CHECKSUM + number * (page * size + _CHECKSUM)
                yield number * page, objects.read_checked(place, length * size, b"", "page", _RULE)

    def _extensible_array(self) -> Iterator[Stored]:
        """The chunks of an extensible array (VII.D)."""
        objects, root = self.objects, self._root(5)
        if root == UNDEFINED:
            return
        free = [axis for axis, count in enumerate(self.most) if count is None]
        head = objects.read_checked(root, 68, b"EAHD\0", "extensible array", _RULE)
        filtered, size, bits, direct, least, pointers, page_bits = objects.unpack("<7B", head, root, 5)
        block = objects.unpack("<Q", head, root, 60)[0]
        powers = (least, pointers)
        if len(free) != 1:
            raise self._fault("an extensible array needs exactly one unlimited axis", root)
        if page_bits > 63 or bits > 64 or any(value == 0 or value & (value - 1) for value in powers):
            raise self._fault("the block sizes of an extensible array are not powers of two", root)
        self._check_element(filtered, size, root)
        if block == UNDEFINED:
            return
        array = _ExtensibleArray(self, size, bits, direct, least, pointers, 1 << page_bits)
        yield from self._elements(array.runs(block), size, free[0], bool(filtered))

    def _btree(self) -> Iterator[Stored]:
        root, rank = self._root(6), len(self.counts)
        if root == UNDEFINED:
            return
        filtered = self.objects.read(root, 6)[5] == btrees.FILTERED_CHUNKS
        for record in btrees.records(self.objects, root, btrees.FILTERED_CHUNKS if filtered else btrees.CHUNKS):
            fixed = len(record) - 8 * rank
            if (not 13 <= fixed <= 20) if filtered else fixed != 8:
                raise self._fault("a record does not have the size of a chunk's", root)
            place = self.objects.unpack(f"<{rank}Q", record, root, fixed)
            nbytes = int.from_bytes(record[8 : fixed - 4], "little") if filtered else None
            mask = int.from_bytes(record[fixed - 4 : fixed], "little") if filtered else 0
            yield Stored(place, int.from_bytes(record[:8], "little"), nbytes, mask)


@dataclass(frozen=True, slots=True)
class _ExtensibleArray:
    """An extensible array: elements in its index block, in data blocks that the index block lists, and in data
    blocks that secondary blocks list.

    Group u has 2**(u // 2) data blocks of least × 2**((u + 1) // 2) elements.
    """

    index: ChunkIndex
    size: int
    bits: int
    direct: int
    least: int
    pointers: int
    page: int

    def runs(self, address: int) -> Iterator[tuple[int, bytes]]:
        """Runs of elements with the number of the first."""
        objects = self.index.objects
        groups = 1 + self.bits - (self.least.bit_length() - 1)
        listed = 2 * (self.pointers.bit_length() - 1)
        blocks, secondary = 2 * (self.pointers - 1), max(0, groups - listed)
        nbytes = 14 + self.direct * self.size + 8 * (blocks + secondary)
        data = objects.read_checked(address, nbytes, b"EAIB\0", "index block of an extensible array", _RULE)
        at = 14 + self.direct * self.size
        yield 0, data[14:at]
        places = objects.unpack(f"<{blocks + secondary}Q", data, address, at)
        first, next_block = self.direct, 0
        for group in range(groups):
            count, length = 1 << group // 2, self.least << (group + 1) // 2
            if group < listed:
                for place in places[next_block : next_block + count]:
                    yield from self._block(place, first, length, b"")
                    first += length
                next_block += count
                continue
            place = places[blocks + group - listed] if blocks + group - listed < len(places) else UNDEFINED
            if place != UNDEFINED:
                yield from self._secondary(place, first, count, length)
            first += count * length

    @property
    def _prefix_nbytes(self) -> int:
        """Signature, version, client, address of the header, offset of the block."""
        return 14 + (self.bits + 7) // 8

    def _secondary(self, address: int, first: int, count: int, length: int) -> Iterator[tuple[int, bytes]]:
        objects, prefix = self.index.objects, self._prefix_nbytes
        flags_nbytes = -(-(length // self.page) // 8) if length > self.page else 0
        nbytes = prefix + count * (flags_nbytes + 8)
        data = objects.read_checked(address, nbytes, b"EASB\0", "secondary block of an extensible array", _RULE)
        places = objects.unpack(f"<{count}Q", data, address, prefix + count * flags_nbytes)
        written = data[prefix : prefix + count * flags_nbytes]
        for i, place in enumerate(places):
            yield from self._block(place, first + i * length, length, written, i * (length // self.page))

    def _block(
        self, address: int, first: int, length: int, written: bytes, page: int = 0
    ) -> Iterator[tuple[int, bytes]]:
        """The elements of a data block. Of its pages, if it has any, only those marked in `written` are read.

        `page` is the bit of the block's first page in that bitmap.
        """
        if address == UNDEFINED:
            return
        objects, prefix = self.index.objects, self._prefix_nbytes
        nbytes = prefix + (length * self.size if length <= self.page else 0)
        data = objects.read_checked(address, nbytes, b"EADB\0", "data block of an extensible array", _RULE)
        if length <= self.page:
            yield first, data[prefix:]
            return
        begin = address + prefix + _CHECKSUM
        for number in range(length // self.page):
            bit = page + number
            if written[bit // 8 : bit // 8 + 1] and written[bit // 8] & 0x80 >> bit % 8:
                place = begin + number * (self.page * self.size + _CHECKSUM)
                yield first + number * self.page, objects.read_checked(place, self.page * self.size, b"", "page", _RULE)
