"""Reads and writes the plain ZIP archives that hold arrays.

The reader accepts only unambiguous archives: one end record, a comment only if the caller
has searched for one, local headers that agree with the central directory, contiguous
members that fill the file, unique names, no encryption, only stored and deflated members.
Declared sizes that no deflate stream can reach are refused before decompression. The
writer is deterministic: no dates, data aligned to ALIGNMENT.

Bytes come from a function, `read(offset, nbytes)`. Knows no tensor and no file.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tensorglot.errors import FormatError, LimitError, TensorglotError, TruncatedError, UnsupportedError, escape

__all__ = [
    "ALIGNMENT",
    "APART_NBYTES",
    "COMMENT_NBYTES",
    "DEFLATED",
    "END_NBYTES",
    "STORED",
    "Directory",
    "Member",
    "Read",
    "ReadMany",
    "Window",
    "Writer",
    "find_comment",
    "read_directory",
    "scan",
    "with_comment",
]

Read: TypeAlias = "Callable[[int, int], bytes]"
"""`read(offset, nbytes)` returns exactly `nbytes` bytes."""
ReadMany: TypeAlias = "Callable[[Sequence[int], Sequence[int]], list[bytes]]"
"""`read_many(offsets, sizes)` reads several spans at once."""

STORED, DEFLATED = 0, 8
ALIGNMENT = 64
END_NBYTES = 22
"""Size of the end record, without its comment."""
COMMENT_NBYTES = 0xFFFF
"""The longest comment of an archive."""
RATIO = 1032
"""The largest compression ratio of deflate."""

_END_SIGN = b"PK\5\6"
_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_CENTRAL = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_END = struct.Struct("<4sHHHHLLH")
_END64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR = struct.Struct("<4sLQL")
_DESCRIPTOR, _UTF8 = 1 << 3, 1 << 11
_KNOWN_FLAGS = _DESCRIPTOR | _UTF8 | 0b110  # the last two bits are the compression level of deflate
_DESCRIPTOR_NBYTES = 24
"""The longest data descriptor. It follows a member's data, directly before the next local header."""
_AROUND_NBYTES = 1 << 10
"""Bytes read around a local header: the header, name, padding, and the beginning of the data."""
APART_NBYTES = 256 << 10
"""Members are large if their average size is at least this."""
_MOST_EXPECTED = 1 << 14  # local headers that are read at once
_FULL16, _FULL32 = 0xFFFF, 0xFFFF_FFFF
_DATE = 0x21
"""1980-01-01, the earliest date in ZIP."""
_PADDING_ID = 0x4C41
"""An extra field of zeros that aligns the data."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the archive."""

    name: str
    method: int
    crc32: int
    """Checksum of the decoded bytes."""
    begin: int
    end: int
    """Span of its stored bytes."""
    nbytes: int
    """Decoded size."""


class Window:
    """A read buffer that turns small reads close to each other into one. The caller keeps reads within `size`.

    With `read_many`, for a server, the surroundings of all local headers of large members
    are read by concurrent requests, before the first header is parsed.
    """

    NBYTES = 1 << 16

    def __init__(self, read: Read, size: int, read_many: ReadMany | None = None) -> None:
        self._read = read
        self._read_many = read_many
        self._size = size
        self._begin = 0
        self._data = b""
        self._expected: list[int] = []
        self._around: list[bytes] = []

    def __call__(self, offset: int, nbytes: int) -> bytes:
        data = self.up_to(offset, nbytes)
        if len(data) < nbytes:
            self._begin = offset
            self._data = bytes(self._read(offset, min(max(nbytes, self.NBYTES), self._size - offset)))
            data = self._data[:nbytes]
        return data

    def up_to(self, offset: int, nbytes: int) -> bytes:
        """The beginning of these bytes, as far as it is buffered; perhaps empty. Reads nothing."""
        begin, data = self._begin, self._data
        if self._expected and not begin <= offset < begin + len(data):
            place = max(0, bisect_right(self._expected, offset) - 1)
            begin, data = self._expected[place], self._around[place]
        return data[offset - begin : offset - begin + nbytes] if begin <= offset else b""

    def expect(self, offsets: Sequence[int]) -> None:
        """Reads ahead around the local headers at these ascending offsets, unless they are buffered.

        Does nothing without `read_many`, or if members are small.
        """
        if self._read_many is None or not 0 < len(offsets) <= _MOST_EXPECTED:
            return
        if self._size < len(offsets) * APART_NBYTES:
            return  # members are small, so each window has many of them
        least = _DESCRIPTOR_NBYTES + _LOCAL.size
        begins = [max(0, offset - _DESCRIPTOR_NBYTES) for offset in offsets if offset < self._size]
        begins = [begin for begin in begins if len(self.up_to(begin, least)) < least]
        ends = [min(begin + _AROUND_NBYTES, end) for begin, end in pairwise([*begins, self._size])]
        read = self._read_many(begins, [end - begin for begin, end in zip(begins, ends, strict=True)])
        around = sorted([*zip(self._expected, self._around, strict=True), *zip(begins, read, strict=True)])
        self._expected, self._around = [begin for begin, _ in around], [data for _, data in around]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the central directory."""

    name: bytes
    flags: int
    method: int
    crc32: int
    stored: int
    nbytes: int
    offset: int


def find_comment(read: Read, size: int) -> int:
    """Offset of the comment at the end of an archive; the file size if there is no comment, or it is ambiguous."""
    if size < END_NBYTES or read(size - END_NBYTES, 4) == _END_SIGN:
        return size
    least = max(0, size - END_NBYTES - COMMENT_NBYTES)
    tail = read(least, size - least)
    found = []
    at = tail.find(_END_SIGN)
    while 0 <= at <= len(tail) - END_NBYTES:
        if at + END_NBYTES + int.from_bytes(tail[at + END_NBYTES - 2 : at + END_NBYTES], "little") == len(tail):
            found.append(least + at + END_NBYTES)
        at = tail.find(_END_SIGN, at + 1)
    return found[0] if len(found) == 1 else size


def with_comment(record: bytes, comment: bytes) -> bytes:
    """The end record of an archive with its comment replaced."""
    return record[: END_NBYTES - 2] + len(comment).to_bytes(2, "little") + comment


@dataclass(frozen=True, slots=True)
class Directory:
    """The central directory: all about the members except where their data begins, which local headers tell."""

    names: list[str]
    entries: list[_Entry]
    ends: list[int]
    """For each entry, the begin of the next member in the file, or of the directory."""
    begin: int
    """Where the directory begins."""
    rule: str

    def is_sparse(self) -> bool:
        """Whether the members are large, so that their local headers are far apart."""
        return self.begin >= len(self.entries) * APART_NBYTES

    def locate(self, window: Window, chosen: Sequence[int]) -> list[Member]:
        """Reads and checks the local headers of the chosen members."""
        with _prefix_rules(self.rule):
            return self._locate(window, chosen)

    def _locate(self, window: Window, chosen: Sequence[int]) -> list[Member]:
        entries, ends = self.entries, self.ends
        order = sorted(chosen, key=lambda i: entries[i].offset)
        descriptors = {ends[i] for i in order if entries[i].flags & _DESCRIPTOR}
        window.expect(sorted({entries[i].offset for i in order} | descriptors))
        members: dict[int, Member] = {}
        for i in order:
            entry = entries[i]
            data = _check_local(window, entry, self.begin)
            stop = data + entry.stored
            position = _check_descriptor(window, entry, stop, ends[i])
            if position != ends[i]:
                raise FormatError("ZIP members overlap or have bytes between them", rule="zip.span", offset=position)
            members[i] = Member(self.names[i], entry.method, entry.crc32, data, stop, entry.nbytes)
        return [members[i] for i in chosen]


def scan(read: Read, size: int, *, rule: str, max_members: int, max_directory: int) -> list[Member]:
    """Reads the members of an archive without a comment, in the order of the directory."""
    directory = read_directory(read, size, rule=rule, max_members=max_members, max_directory=max_directory)
    return directory.locate(Window(read, size), range(len(directory.names)))


def read_directory(
    read: Read, size: int, *, rule: str, max_members: int, max_directory: int, comment_nbytes: int = 0
) -> Directory:
    """Reads the central directory of an archive. Its `size` is without the comment."""
    with _prefix_rules(rule):
        begin, end, count = _directory(read, size, comment_nbytes)
        if count > max_members:
            raise LimitError(f"{count} ZIP members exceed the limit of {max_members}", rule="limit.members", offset=end)
        if end - begin > max_directory:
            raise LimitError(
                f"ZIP directory of {end - begin} bytes exceeds Limits.header_nbytes ({max_directory})",
                rule="limit.directory",
                offset=begin,
            )
        if count * _CENTRAL.size > end - begin:
            raise FormatError(
                f"ZIP directory of {end - begin} bytes is too small for {count} members", rule="zip.count", offset=end
            )
        entries = _entries(read(begin, end - begin), begin, count)
        order = sorted(range(count), key=lambda i: entries[i].offset)
        ends = [begin] * count
        for i, following in pairwise(order):
            ends[i] = entries[following].offset
        if (entries[order[0]].offset if order else begin) != 0:
            raise FormatError("bytes before the first ZIP member", rule="zip.span", offset=0)
        names = [_decode_name(entry.name, entry.offset) for entry in entries]
        _check_names(names, entries)
        return Directory(names, entries, ends, begin, rule)


@contextmanager
def _prefix_rules(format: str) -> Iterator[None]:
    """Adds the name of the format to the rules of this module's errors; errors of `read` have rules of their own."""
    try:
        yield
    except TensorglotError as error:
        if error.rule.startswith(("zip.", "limit.")):
            error.rule = f"{format}.{error.rule}"
        raise


def _directory(read: Read, size: int, comment_nbytes: int) -> tuple[int, int, int]:
    """Returns the span of the central directory and its number of entries."""
    end = size - END_NBYTES
    if end < 0:
        raise TruncatedError(
            f"file truncated: a ZIP archive needs {END_NBYTES} bytes, has {size}", rule="zip.end", offset=0
        )
    sign, disk, start_disk, here, count, nbytes, offset, comment = _END.unpack(read(end, END_NBYTES))
    if sign != _END_SIGN or comment != comment_nbytes:
        raise FormatError(
            "no ZIP end record at the end of the file (truncated, or with a comment)", rule="zip.end", offset=end
        )
    locator = end - _LOCATOR.size
    if locator >= _END64.size:
        sign64, disk64, at, disks = _LOCATOR.unpack(read(locator, _LOCATOR.size))
        if sign64 == b"PK\6\7":
            end = locator - _END64.size
            plain = (disk, here, count, nbytes, offset)
            disk, start_disk, here, count, nbytes, offset = _read_end64(read, end, (disk64, at, disks), plain)
    if disk or start_disk or here != count:
        raise FormatError("multi-disk ZIP archives are not supported", rule="zip.disks", offset=end)
    if offset + nbytes != end:
        raise FormatError("the ZIP directory does not end at the end record", rule="zip.directory", offset=end)
    return offset, end, count


def _read_end64(read: Read, end: int, located: tuple[int, int, int], plain: tuple[int, ...]) -> tuple[int, ...]:
    """Reads the ZIP64 end record: two disk numbers, two counts of entries, size and offset of the directory."""
    sign, own, _, _, *fields = _END64.unpack(read(end, _END64.size))
    if sign != b"PK\6\6" or own != _END64.size - 12 or located != (0, end, 1):
        raise FormatError("missing or invalid ZIP64 end record", rule="zip.end64", offset=end)
    _, _, _, count, nbytes, offset = fields
    full = (_FULL16, _FULL16, _FULL16, _FULL32, _FULL32)
    for plain_value, value, saturated in zip(plain, (0, count, count, nbytes, offset), full, strict=True):
        if plain_value not in (value, saturated):
            raise FormatError("the ZIP and ZIP64 end records contradict each other", rule="zip.end64", offset=end)
    return tuple(fields)


def _entries(directory: bytes, begin: int, count: int) -> list[_Entry]:
    entries = []
    position = 0
    for _ in range(count):
        if len(directory) - position < _CENTRAL.size:
            raise FormatError("the ZIP directory ends inside an entry", rule="zip.entry", offset=begin + position)
        (
            sign, _, _, flags, method, _, _, crc32, stored, nbytes, name_nbytes, extra_nbytes, comment_nbytes,
            disk, _, _, offset,
        ) = _CENTRAL.unpack_from(directory, position)  # fmt: skip
        at = position + _CENTRAL.size
        position = at + name_nbytes + extra_nbytes + comment_nbytes
        if sign != b"PK\1\2" or position > len(directory) or disk or comment_nbytes:
            raise FormatError("invalid entry in the ZIP directory", rule="zip.entry", offset=begin + at)
        extra = directory[at + name_nbytes : at + name_nbytes + extra_nbytes]
        nbytes, stored, offset = _apply_zip64(extra, (nbytes, stored, offset), begin + at)
        entry = _Entry(directory[at : at + name_nbytes], flags, method, crc32, stored, nbytes, offset)
        _check_entry(entry, begin + at)
        entries.append(entry)
    if position != len(directory):
        raise FormatError(
            "trailing bytes after the entries of the ZIP directory", rule="zip.entry", offset=begin + position
        )
    return entries


def _apply_zip64(extra: bytes, fields: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """Replaces fields that did not fit 32 bits by those of the ZIP64 extra field, in their order."""
    found: bytes | None = None
    position = 0
    while position < len(extra):
        if len(extra) - position < 4:
            raise FormatError("truncated ZIP extra field", rule="zip.extra", offset=offset)
        kind, nbytes = struct.unpack_from("<HH", extra, position)
        position += 4 + nbytes
        if position > len(extra) or (kind == 1 and found is not None):
            raise FormatError("truncated or duplicate ZIP extra field", rule="zip.extra", offset=offset)
        if kind == 1:
            found = extra[position - nbytes : position]
    values = list(fields)
    used = 0
    for i, field in enumerate(fields):
        if field == _FULL32 and found is not None:
            if len(found) < used + 8:
                raise FormatError("the ZIP64 extra field lacks a value", rule="zip.extra", offset=offset)
            values[i] = int.from_bytes(found[used : used + 8], "little")
            used += 8
    return tuple(values)


def _check_entry(entry: _Entry, offset: int) -> None:
    if entry.flags & ~_KNOWN_FLAGS:
        raise UnsupportedError("encrypted or patched ZIP members are not supported", rule="zip.flags", offset=offset)
    if entry.method not in (STORED, DEFLATED):
        raise UnsupportedError(
            f"unsupported ZIP compression method {entry.method} (supported: stored, deflate)",
            rule="zip.method",
            offset=offset,
        )
    if entry.method == STORED and entry.stored != entry.nbytes:
        raise FormatError(
            f"stored ZIP member has two sizes, {entry.stored} and {entry.nbytes}", rule="zip.size", offset=offset
        )
    if entry.method == DEFLATED and entry.nbytes > RATIO * entry.stored:
        raise FormatError(
            f"deflate cannot expand {entry.stored} bytes to {entry.nbytes}", rule="zip.bomb", offset=offset
        )


def _check_local(window: Window, entry: _Entry, limit: int) -> int:
    """Compares the local header with the directory; returns where the data begins."""
    if entry.offset + _LOCAL.size + len(entry.name) + entry.stored > limit:
        raise TruncatedError("ZIP member extends past the ZIP directory", rule="zip.span", offset=entry.offset)
    sign, _, flags, method, _, _, crc32, stored, nbytes, name_nbytes, extra_nbytes = _LOCAL.unpack(
        window(entry.offset, _LOCAL.size)
    )
    data: int = entry.offset + _LOCAL.size + name_nbytes + extra_nbytes
    if sign != b"PK\3\4" or data + entry.stored > limit:
        raise FormatError("no local header where the ZIP directory says", rule="zip.local", offset=entry.offset)
    texts = window(entry.offset + _LOCAL.size, name_nbytes + extra_nbytes)
    nbytes, stored = _apply_zip64(texts[name_nbytes:], (nbytes, stored), entry.offset)
    local = (texts[:name_nbytes], flags, method, crc32, stored, nbytes)
    listed = (entry.name, entry.flags, entry.method, entry.crc32, entry.stored, entry.nbytes)
    if local != listed and not (flags & _DESCRIPTOR and local[:3] == listed[:3] and not (crc32 or stored or nbytes)):
        raise FormatError("local header contradicts the ZIP directory", rule="zip.local", offset=entry.offset)
    return data


def _check_descriptor(window: Window, entry: _Entry, end: int, limit: int) -> int:
    """Returns where the next member must begin: after the data, or after its data descriptor."""
    if not entry.flags & _DESCRIPTOR or limit == end:
        return end
    # The signature is optional, and sizes have 4 or 8 bytes; the length tells which of the forms it is.
    for form in ("<4sLLL", "<4sLQQ", "<LLL", "<LQQ"):
        layout = struct.Struct(form)
        if limit - end == layout.size:
            *sign, crc32, stored, nbytes = layout.unpack(window(end, layout.size))
            if sign in ([], [b"PK\7\x08"]) and (crc32, stored, nbytes) == (entry.crc32, entry.stored, entry.nbytes):
                return limit
    raise FormatError("missing or wrong data descriptor after a ZIP member", rule="zip.descriptor", offset=end)


def _decode_name(name: bytes, offset: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FormatError("invalid UTF-8 in the name of a ZIP member", rule="zip.name", offset=offset) from None


def _check_names(names: list[str], entries: list[_Entry]) -> None:
    """Refuses duplicate names, and names that would escape the folder they are unpacked to (zip slip)."""
    seen: set[str] = set()
    for name, entry in zip(names, entries, strict=True):
        if name in seen:
            raise FormatError(f"duplicate ZIP member '{escape(name)}'", rule="zip.duplicate", offset=entry.offset)
        if not is_safe(name):
            raise FormatError(f"unsafe path in a ZIP member: '{escape(name)}'", rule="zip.path", offset=entry.offset)
        seen.add(name)


def is_safe(name: str) -> bool:
    """Whether a name stays within the folder it is unpacked to, on any system."""
    parts = name.split("/")
    return not ("\0" in name or "\\" in name or parts[0] == "" or name[1:2] == ":" or {".", ".."} & set(parts))


class Writer:
    """Builds the records that are written around the data of the members."""

    def __init__(self) -> None:
        self._position = 0
        self._central: list[bytes] = []

    def begin(self, name: str, method: int, crc32: int, stored: int, nbytes: int) -> bytes:
        """Builds the header of a stored member; its data is aligned."""
        return self._header(name, method, 0, crc32, stored, nbytes)

    def begin_stream(self, name: str, method: int) -> bytes:
        """Builds the header of a member whose sizes follow in a data descriptor."""
        return self._header(name, method, _DESCRIPTOR, 0, 0, 0)

    def _header(self, name: str, method: int, flags: int, crc32: int, stored: int, nbytes: int) -> bytes:
        raw = name.encode()
        flags |= 0 if name.isascii() else _UTF8
        self._member = (raw, flags, method, self._position)
        wide = struct.pack("<HHQQ", 1, 16, nbytes, stored) if max(stored, nbytes) >= _FULL32 else b""
        sizes = (_FULL32, _FULL32) if wide else (stored, nbytes)
        fixed = self._position + _LOCAL.size + len(raw) + len(wide)
        padding = -(fixed + 4) % ALIGNMENT
        extra = wide + struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
        self._position = fixed + 4 + padding
        local = _LOCAL.pack(b"PK\3\4", 45 if wide else 20, flags, method, 0, _DATE, crc32, *sizes, len(raw), len(extra))
        return local + raw + extra

    def end(self, crc32: int, stored: int, nbytes: int) -> bytes:
        """Ends a member; returns its data descriptor, if it has one."""
        raw, flags, method, offset = self._member
        self._position += stored
        wide_fields = [value for value in (nbytes, stored, offset) if value >= _FULL32]
        wide = struct.pack(f"<HH{len(wide_fields)}Q", 1, 8 * len(wide_fields), *wide_fields) if wide_fields else b""
        self._central.append(
            _CENTRAL.pack(
                b"PK\1\2", 45, 45 if wide else 20, flags, method, 0, _DATE, crc32, min(stored, _FULL32),
                min(nbytes, _FULL32), len(raw), len(wide), 0, 0, 0, 0, min(offset, _FULL32),
            )
            + raw
            + wide
        )  # fmt: skip
        if not flags & _DESCRIPTOR:
            return b""
        form = "<4sLQQ" if max(stored, nbytes) >= _FULL32 else "<4sLLL"
        descriptor = struct.pack(form, b"PK\7\x08", crc32, stored, nbytes)
        self._position += len(descriptor)
        return descriptor

    def finish(self, comment: bytes = b"") -> bytes:
        """Builds the central directory and the end records."""
        directory = b"".join(self._central)
        count, begin = len(self._central), self._position
        records = b""
        if count >= _FULL16 or begin >= _FULL32 or len(directory) >= _FULL32:
            end64 = begin + len(directory)
            records = _END64.pack(b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, len(directory), begin)
            records += _LOCATOR.pack(b"PK\6\7", 0, end64, 1)
        plain = min(count, _FULL16)
        nbytes, offset = min(len(directory), _FULL32), min(begin, _FULL32)
        return directory + records + _END.pack(_END_SIGN, 0, 0, plain, plain, nbytes, offset, len(comment)) + comment
