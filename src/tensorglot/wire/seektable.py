"""The seek table at the end of a seekable zstd stream, which gives the offset of each frame.

It is a skippable frame, which any zstd decoder ignores. Encoded bytes come from a
function, `read(offset, nbytes)`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tensorglot.errors import FormatError, TruncatedError
from tensorglot.wire.zstd import Read

__all__ = ["read_seek_table", "seek_table"]

_SEEKABLE = 0x184D2A5E
_SEEK_MAGIC = 0x8F92EAB1
_SEEK_FOOTER = struct.Struct("<IBI")
_ENTRY, _CHECKED_ENTRY = struct.Struct("<II"), struct.Struct("<III")


def seek_table(sizes: Iterable[tuple[int, int]]) -> bytes:
    """Encodes the seek table from the encoded and decoded size of each frame."""
    entries = b"".join(_ENTRY.pack(encoded, decoded) for encoded, decoded in sizes)
    footer = _SEEK_FOOTER.pack(len(entries) // 8, 0, _SEEK_MAGIC)
    return struct.pack("<II", _SEEKABLE, len(entries) + len(footer)) + entries + footer


def read_seek_table(read: Read, size: int) -> list[tuple[int, int]]:
    """Reads the encoded and decoded size of each frame; frames and table must fill the stream."""
    if size < 8 + _SEEK_FOOTER.size:
        raise TruncatedError(
            f"truncated seek table: needs {8 + _SEEK_FOOTER.size} bytes, has {size}", rule="zstd.seek", offset=0
        )
    count, descriptor, magic = _SEEK_FOOTER.unpack(read(size - _SEEK_FOOTER.size, _SEEK_FOOTER.size))
    entry = _CHECKED_ENTRY if descriptor & 0x80 else _ENTRY
    nbytes = count * entry.size + _SEEK_FOOTER.size
    begin = size - nbytes - 8
    if magic != _SEEK_MAGIC or descriptor & 0x7F or begin < 0:
        raise FormatError("invalid seek table", rule="zstd.seek", offset=size - _SEEK_FOOTER.size)
    table = read(begin, nbytes + 8)
    if struct.unpack_from("<II", table) != (_SEEKABLE, nbytes):
        raise FormatError("invalid seek table", rule="zstd.seek", offset=begin)
    sizes = [(fields[0], fields[1]) for fields in entry.iter_unpack(table[8 : -_SEEK_FOOTER.size])]
    if sum(encoded for encoded, _ in sizes) != begin:
        raise FormatError(
            "the sizes in the seek table do not add up to the size of the frames", rule="zstd.seek", offset=begin
        )
    return sizes
