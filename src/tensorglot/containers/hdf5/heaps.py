"""Fractal heaps (III.G): the links of large groups, and attributes that do not fit an object header.

A heap is one range of addresses, divided into direct blocks whose sizes double from row to
row; indirect blocks list them. The blocks are located once, and each is read once and
compared with its checksum. An object is a span of a block. Objects larger than a block are
elsewhere in the file, and have no checksum.
"""

from __future__ import annotations

import bisect
from functools import cached_property

from tensorglot.containers.hdf5.btrees import HUGE, encoded_nbytes, records
from tensorglot.containers.hdf5.objects import UNDEFINED, Objects
from tensorglot.errors import FormatError, UnsupportedError

__all__ = ["FractalHeap"]

_MANAGED, _HUGE, _TINY = 0, 1, 2
_CHECKED = 2
"""Flag of a heap whose direct blocks have checksums."""
_ROWS = 64
_DEPTH = 8
"""Nesting of indirect blocks. Each level adds at least one bit to the size of the heap."""


class FractalHeap:
    """The objects of one heap, by their ids."""

    def __init__(self, objects: Objects, address: int) -> None:
        self._objects = objects
        self._address = address
        self._seen: set[int] = set()
        self._held: dict[int, bytes] = {}
        first = objects.read(address, 9)
        if first[:5] == b"FRHP\0" and first[7:] != b"\0\0":
            raise UnsupportedError(
                "compressed heaps are not supported", rule="hdf5.heap.filter", offset=objects.begin + address
            )
        head = objects.read_checked(address, 142, b"FRHP\0", "fractal heap", "heap")
        self.id_nbytes, _, flags = objects.unpack("<2HB", head, address, 5)
        self._checked = bool(flags & _CHECKED)
        largest = objects.unpack("<I", head, address, 10)[0]
        self._huge_tree = objects.unpack("<Q", head, address, 22)[0]
        self._width, self._start, self._direct = objects.unpack("<H2Q", head, address, 110)
        bits, _, self._root, self._rows = objects.unpack("<2HQH", head, address, 128)
        powers = (self._width, self._start, self._direct)
        if any(value == 0 or value & (value - 1) for value in powers) or bits > 64 or self._direct < self._start:
            raise objects.fault(
                "the block sizes of a fractal heap are not powers of two, or exceed 64 bits", "heap", address
            )
        self._offset_nbytes = (bits + 7) // 8
        self._length_nbytes = min((self._direct.bit_length() + 6) // 8, encoded_nbytes(largest))

    def get(self, own_id: bytes) -> bytes:
        """The object with an id (III.G): managed in a block, huge elsewhere in the file, or tiny in the id itself."""
        if len(own_id) != self.id_nbytes or not own_id or own_id[0] >> 6:
            raise self._fault(f"the object id {own_id.hex() or 'of no bytes'} is invalid")
        kind = own_id[0] >> 4 & 3
        if kind == _TINY and self.id_nbytes <= 17:
            return own_id[1 : (own_id[0] & 15) + 2]
        if kind == _HUGE:
            begin, nbytes = self._huge.get(int.from_bytes(own_id[1:9], "little"), (UNDEFINED, 0))
            if begin == UNDEFINED:
                raise self._fault("a huge object is missing")
            return self._objects.read(begin, nbytes)
        if kind != _MANAGED:
            raise self._fault(f"an object id of type {kind} is invalid")
        number = int.from_bytes(own_id, "little") >> 8
        offset = number & (1 << 8 * self._offset_nbytes) - 1
        nbytes = number >> 8 * self._offset_nbytes & (1 << 8 * self._length_nbytes) - 1
        begins, blocks = self._blocks
        i = bisect.bisect_right(begins, offset) - 1
        if i < 0 or offset + nbytes > begins[i] + blocks[i][1]:
            raise self._fault("an object lies outside the blocks")
        address, block_nbytes = blocks[i]
        self._objects.charge(nbytes, address)
        block = self._held.get(address) or self._block(address, block_nbytes)
        return block[offset - begins[i] : offset - begins[i] + nbytes]

    def _block(self, address: int, nbytes: int) -> bytes:
        """Reads a direct block. Its checksum covers all of it, with zeros in place of the checksum itself."""
        held = self._held[address] = self._objects.read(address, nbytes)
        if held[:5] != b"FHDB\0":
            raise self._objects.fault("no direct block at this address", "heap", address)
        if self._checked:
            at = 13 + self._offset_nbytes
            self._objects.compare(held[:at] + bytes(4) + held[at + 4 :], held[at : at + 4], address, address + at)
        return held

    def _fault(self, what: str) -> FormatError:
        return self._objects.fault(f"{what} in its fractal heap", "heap", self._address)

    @cached_property
    def _huge(self) -> dict[int, tuple[int, int]]:
        """Address and size of the objects that are not in blocks."""
        if self._huge_tree == UNDEFINED:
            return {}
        found = {}
        for record in records(self._objects, self._huge_tree, HUGE):
            address, nbytes, number = self._objects.unpack("<3Q", record, self._huge_tree)
            found[number] = (address, nbytes)
        return found

    @cached_property
    def _blocks(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The offsets of all direct blocks in the heap, and the address and size of each."""
        found: list[tuple[int, int, int]] = []
        if self._root != UNDEFINED:
            if self._rows:
                self._add_indirect(self._root, 0, self._rows, found, 0)
            else:
                found.append((0, self._root, self._start))
        found.sort()
        return [begin for begin, _, _ in found], [(address, size) for _, address, size in found]

    def _add_indirect(self, address: int, begin: int, rows: int, found: list[tuple[int, int, int]], depth: int) -> None:
        """Adds the direct blocks below an indirect block, whose part of the heap begins at offset `begin`."""
        if rows > _ROWS or depth > _DEPTH or address in self._seen:
            raise self._fault("an indirect block has too many rows, or is reached twice,")
        self._seen.add(address)
        head = 13 + self._offset_nbytes
        nbytes = head + 8 * rows * self._width
        data = self._objects.read_checked(address, nbytes, b"FHIB\0", "indirect block", "heap")
        for i in range(rows * self._width):
            at = head + 8 * i
            child = int.from_bytes(data[at : at + 8], "little")
            nbytes = self._start << max(0, i // self._width - 1)  # blocks double from row to row (the doubling table)
            if child != UNDEFINED and nbytes <= self._direct:
                found.append((begin, child, nbytes))
            elif child != UNDEFINED:
                inner = nbytes.bit_length() - (self._start * self._width).bit_length() + 1
                self._add_indirect(child, begin, inner, found, depth + 1)
            begin += nbytes
