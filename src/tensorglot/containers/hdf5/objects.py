"""The objects of an HDF5 file: superblock, object headers, groups. Section numbers are of the format's version 3.0.

Every read is checked against the file, and counts against the limit for headers, so a
structure that refers to itself ends there. A structure with a checksum is compared with it
before anything in it is used. Addresses are relative to the beginning of the HDF5 file
inside its source.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tensorglot.errors import FormatError, IntegrityError, LimitError, TruncatedError, UnsupportedError
from tensorglot.kernels.lookup3 import lookup3
from tensorglot.model.payload import Source
from tensorglot.tuples import NamedTuple

__all__ = ["MAGIC", "UNDEFINED", "Link", "Message", "Objects"]

MAGIC = b"\x89HDF\r\n\x1a\n"
UNDEFINED = (1 << 64) - 1
NODES = 1 << 16
"""The most nodes of one B-tree; each has hundreds of entries."""
_CHECKSUM = 4
"""Bytes of a checksum, at the end of what it covers."""
_SHARED = 2
"""Flag of a message that only refers to the place of its contents."""

(
    DATASPACE, LINK_INFO, DATATYPE, FILL, LINK, EXTERNAL, LAYOUT, FILTERS, ATTRIBUTE, CONTINUATION, SYMBOL_TABLE,
    ATTRIBUTE_INFO,
) = 0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x08, 0x0B, 0x0C, 0x10, 0x11, 0x15  # fmt: skip


class Message(NamedTuple):
    """A message of an object header (IV.A)."""

    kind: int
    data: bytes
    offset: int
    """Offset in the source."""
    shared: bool = False
    """Whether `data` only refers to the place of the contents."""


class Link(NamedTuple):
    """An entry of a group; a soft or external link has no address."""

    name: bytes
    address: int | None


class Objects:
    """Reads the objects of one file."""

    def __init__(self, source: Source, begin: int, end: int, most: int, base: int = 0) -> None:
        """Addresses count from `begin`; the superblock must declare the base address `base`."""
        self.source = source
        self._base = base
        self.begin = begin
        self.end = end
        self.committed: dict[int, Message] = {}
        """Datatypes that other objects refer to, by the address of their own object."""
        self.texts: dict[int, dict[int, str | bytes]] = {}
        """Texts of variable length: the objects of each global heap collection, by its address."""
        self.collected = 0
        """Bytes of these collections."""
        self._left = most

    def fault(self, message: str, rule: str, address: int) -> FormatError:
        return FormatError(message, rule=f"hdf5.{rule}", offset=min(self.begin + address, self.end))

    def read(self, address: int, nbytes: int) -> bytes:
        if address + nbytes > self.end - self.begin:
            raise TruncatedError(
                f"file truncated: needs {address + nbytes} bytes, has {self.end - self.begin}",
                rule="hdf5.end",
                offset=min(self.begin + address, self.end),
            )
        self.charge(nbytes, address)
        return self.source.read_bytes(self.begin + address, nbytes)

    def charge(self, nbytes: int, address: int) -> None:
        """Counts bytes against the limit for headers."""
        self._left -= nbytes + 16
        if self._left < 0:
            raise LimitError(
                "the structure of the file exceeds Limits.header_nbytes",
                rule="hdf5.limit.header",
                offset=self.begin + address,
            )

    def read_checked(self, address: int, nbytes: int, sign: bytes, what: str, rule: str) -> bytes:
        """Reads a structure that begins with `sign`, and compares it with the checksum that follows it."""
        data = self.read(address, nbytes + _CHECKSUM)
        if not data.startswith(sign):
            raise self.fault(f"no {what} at this address", rule, address)
        self.compare(data[:nbytes], data[nbytes:], address, address + nbytes)
        return data[:nbytes]

    def compare(self, data: bytes, stored: bytes, address: int, place: int) -> None:
        """Compares a structure with its checksum, which is at `place`."""
        found, expected = lookup3(data), int.from_bytes(stored, "little")
        if found != expected:
            raise IntegrityError(
                f"checksum mismatch in the structure of the file: 0x{expected:08x} at byte {self.begin + place}, "
                f"computed 0x{found:08x}",
                rule="hdf5.checksum",
                offset=self.begin + address,
            )

    def root(self) -> int:
        """The address of the root group (II.A)."""
        if self.read(0, 8) != MAGIC:
            raise self.fault("not an HDF5 file: wrong magic number", "magic", 0)
        version = self.read(8, 1)[0]
        if version in (0, 1):
            sizes = self.read(13, 2)
            at = 24 if version == 0 else 28
            base, *_, root = struct.unpack("<4Q8xQ", self.read(at, 48))
        elif version in (2, 3):
            data = self.read_checked(0, 44, MAGIC, "superblock", "magic")
            sizes = data[9:11]
            base, *_, root = struct.unpack_from("<4Q", data, 12)
        else:
            raise UnsupportedError(
                f"unsupported superblock version {version}", rule="hdf5.version", offset=self.begin + 8
            )
        if sizes != b"\x08\x08" or base != self._base:
            raise UnsupportedError(
                "only files with addresses of 8 bytes, counted from the superblock, are supported",
                rule="hdf5.superblock",
                offset=self.begin,
            )
        return int(root)

    def header(self, address: int) -> list[Message]:
        """The messages of an object header, continuation blocks included."""
        first = self.read(address, 16)
        flags = 0
        if first[:4] == b"OHDR":
            flags = first[5]
            blocks, version = [self._first_block_2(address, flags)], 2
        elif first[0] == 1:
            blocks, version = [(address + 16, int.from_bytes(first[8:12], "little"), 0)], 1
        else:
            raise self.fault("no object header at this address", "object", address)
        messages: list[Message] = []
        seen: set[int] = set()
        while blocks:
            begin, nbytes, skip = blocks.pop(0)
            if begin in seen:
                raise self.fault("an object header continues in itself", "object.cycle", begin)
            seen.add(begin)
            if version == 1:
                data = self.read(begin, nbytes)
            else:
                sign = b"OCHK" if begin != address else b"OHDR\2"
                data = self.read_checked(begin, nbytes, sign, "block of an object header", "object")[skip:]
            for message in self._messages(begin + skip, data, version, flags):
                if message.kind == CONTINUATION:
                    at, size = self.unpack("<2Q", message.data, begin)
                    blocks.append((at, max(4, size - _CHECKSUM), 4) if version == 2 else (at, size, 0))
                elif message.kind:
                    messages.append(message)
        return messages

    def _first_block_2(self, address: int, flags: int) -> tuple[int, int, int]:
        """The first block without its checksum, and the bytes before its messages."""
        at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        return address, at + width + int.from_bytes(self.read(address + at, width), "little"), at + width

    def _messages(self, begin: int, data: bytes, version: int, flags: int) -> Iterator[Message]:
        position, head = 0, 8 if version == 1 else 4 + (2 if flags & 4 else 0)
        while len(data) - position >= head:
            if version == 1:
                kind, nbytes, options = struct.unpack_from("<HHB", data, position)
            else:
                kind, nbytes, options = struct.unpack_from("<BHB", data, position)
            at = position + head
            position = at + nbytes
            if position > len(data):
                raise self.fault("a message ends beyond its object header", "object.message", begin + at)
            shared = bool(options & _SHARED)
            if shared and kind in (DATASPACE, FILL, FILTERS, ATTRIBUTE):
                raise UnsupportedError(
                    "messages in a table of shared messages are not supported",
                    rule="hdf5.shared",
                    offset=self.begin + begin + at,
                )
            yield Message(kind, data[at:position], self.begin + begin + at, shared)

    def unpack(self, form: str, data: bytes, address: int, at: int = 0) -> tuple[int, ...]:
        """Unpacks numbers of a message; a message that is too short is an error."""
        try:
            return struct.unpack_from(form, data, at)
        except struct.error:
            raise self.fault("a message is too short", "object.message", address) from None

    def links(self, messages: list[Message], address: int) -> Iterator[Link]:
        """The entries of a group in its object header, or in the old form; module `dense` reads all others."""
        for message in messages:
            if message.kind == SYMBOL_TABLE:
                tree, heap = self.unpack("<2Q", message.data, address)
                yield from self._symbols(tree, heap)
            elif message.kind == LINK:
                yield self.link(message.data, address)

    def link(self, data: bytes, address: int) -> Link:
        """Parses a link message (IV.A.2.g)."""
        if len(data) < 2:
            raise self.fault("a message is too short", "object.message", address)
        flags, at, kind = data[1], 2, 0
        if flags & 8:
            kind = self.unpack("<B", data, address, at)[0]
            at += 1
        at += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
        begin = at + (1 << (flags & 3))
        end = begin + int.from_bytes(data[at:begin], "little")
        if end + (0 if kind else 8) > len(data):
            raise self.fault("a message is too short", "object.message", address)
        return Link(data[begin:end], None if kind else int.from_bytes(data[end : end + 8], "little"))

    def _symbols(self, tree: int, heap: int) -> Iterator[Link]:
        """The entries of a group of the old form: a B-tree of symbol nodes, and a heap of names (III)."""
        head = self.read(heap, 32)
        if head[:4] != b"HEAP":
            raise self.fault("no local heap at this address", "heap", heap)
        nbytes, _, data = struct.unpack_from("<3Q", head, 8)
        names = self.read(data, nbytes)
        for _, node in self.tree(tree, 0, 8):
            block = self.read(node, 8)
            if block[:4] != b"SNOD":
                raise self.fault("no symbol table node at this address", "group.node", node)
            count = int.from_bytes(block[6:8], "little")
            entries = self.read(node + 8, 40 * count)
            for at in range(0, len(entries), 40):
                place, address, cache = struct.unpack_from("<QQI", entries, at)
                end = names.find(b"\0", place)
                if place >= len(names) or end < 0:
                    raise self.fault("the name of an entry is outside its heap", "group.name", node)
                yield Link(names[place:end], None if cache == 2 else address)

    def tree(self, root: int, kind: int, key_nbytes: int) -> Iterator[tuple[bytes, int]]:
        """The key before each child of the leaves of a B-tree of version 1, and the child's address (III.A.1)."""
        todo, count = [(root, -1)], 0
        while todo:
            node, level = todo.pop()
            head = self.read(node, 24)
            count += 1
            if head[:4] != b"TREE" or head[4] != kind or (level >= 0 and head[5] != level) or count > NODES:
                raise self.fault("no B-tree node of this kind and level at this address", "tree", node)
            used = int.from_bytes(head[6:8], "little")
            step = key_nbytes + 8
            body = self.read(node + 24, used * step + key_nbytes)
            children = [
                (
                    body[i * step : i * step + key_nbytes],
                    int.from_bytes(body[i * step + key_nbytes : (i + 1) * step], "little"),
                )
                for i in range(used)
            ]
            if head[5] == 0:
                yield from children
            else:
                todo += [(child, head[5] - 1) for _, child in reversed(children)]
