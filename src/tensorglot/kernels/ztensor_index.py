"""The indices of zTensor files, between CBOR and columns, for entries of the common form.

The bytes have passed `cbor_check`. A scan fills the columns of every entry that has
the common form: definite texts, known words, no field of somebody's own. An entry of
any other form, lawful or not, is only marked as SLOW_PATH, and the format's reader, which
knows every rule, looks at it alone. So there are no refusals here, and a file of a
hundred thousand ordinary tensors costs no Python for each.

Words (names of element types and the like) are compared with tables that the format
passes in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

SLOW_PATH = 1
"""The entry is for the format's reader."""
CUSTOM = 2
"""The entry has fields beside the known ones."""

_UINT = cython.declare(cython.int, 0)
_TEXT = cython.declare(cython.int, 3)
_ARRAY = cython.declare(cython.int, 4)
_MAP = cython.declare(cython.int, 5)

_MAX = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class Walk:
    """A position in checked CBOR. Once something is not of the common form, `odd` stays true."""

    data: bytes
    p: cython.p_uchar
    end: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    odd: cython.bint
    major: cython.int
    argument: cython.ulonglong
    open_ended: cython.bint

    def __init__(self, data: bytes, pos: cython.Py_ssize_t) -> None:
        self.data = data
        self.p = data
        self.end = len(data)
        self.pos = pos
        self.odd = False
        self.major = 0
        self.argument = 0
        self.open_ended = False

    @cython.cfunc
    @cython.exceptval(check=False)
    def head(self) -> cython.int:
        """Reads a head: its major type, or -1."""
        info: cython.int
        width: cython.Py_ssize_t
        i: cython.Py_ssize_t
        if self.odd or self.pos >= self.end:
            self.odd = True
            return -1
        self.major = self.p[self.pos] >> 5
        info = self.p[self.pos] & 31
        self.pos += 1
        self.open_ended = info == 31
        self.argument = info
        if info < 24 or info == 31:
            return self.major
        width = 1 << (info - 24) if info < 28 else 64
        if self.end - self.pos < width:
            self.odd = True
            return -1
        self.argument = 0
        for i in range(width):
            self.argument = (self.argument << 8) | self.p[self.pos + i]
        self.pos += width
        return self.major

    @cython.cfunc
    @cython.exceptval(check=False)
    def uint(self) -> cython.longlong:
        """An unsigned integer below 2**63."""
        if self.head() != _UINT or self.argument > _MAX:
            self.odd = True
            return 0
        return cython.cast(cython.longlong, self.argument)

    @cython.cfunc
    @cython.exceptval(check=False)
    def text(self) -> cython.Py_ssize_t:
        """A definite text: its length, with the position behind it."""
        if self.head() != _TEXT or self.open_ended:
            self.odd = True
            return 0
        if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
            self.odd = True
            return 0
        self.pos += cython.cast(cython.Py_ssize_t, self.argument)
        return cython.cast(cython.Py_ssize_t, self.argument)

    @cython.cfunc
    def word(self, words: list, likely: cython.int) -> cython.int:  # type: ignore[type-arg]
        """A text out of a table: its position there. The one before had the position `likely`."""
        size: cython.Py_ssize_t = self.text()
        i: cython.int
        if not self.odd:
            if self.matches(size, words[likely]):
                return likely
            for i in range(len(words)):
                if self.matches(size, words[i]):
                    return i
        self.odd = True
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def matches(self, size: cython.Py_ssize_t, word: bytes) -> cython.bint:
        """Whether the `size` bytes before the position are `word`."""
        i: cython.Py_ssize_t
        begin: cython.Py_ssize_t = self.pos - size
        if len(word) != size:
            return False
        q: cython.p_uchar = word
        if not cython.compiled:
            return self.data[begin : self.pos] == word
        i = 0
        while i < size and self.p[begin + i] == q[i]:
            i += 1
        return i == size

    @cython.cfunc
    @cython.exceptval(check=False)
    def shape(
        self, dims: cython.longlong[::1], filled: cython.Py_ssize_t, max_rank: cython.longlong
    ) -> cython.longlong:
        """An array of dims, written at dims[filled:]: the product, where it is below 2**63."""
        i: cython.Py_ssize_t
        rank: cython.Py_ssize_t
        dim: cython.longlong
        bound: cython.ulonglong = 1
        product: cython.longlong = 1
        if self.head() != _ARRAY or self.open_ended:
            self.odd = True
            return 0
        if self.argument > cython.cast(cython.ulonglong, len(dims) - filled):
            self.odd = True
            return 0
        rank = cython.cast(cython.Py_ssize_t, self.argument)
        if rank > max_rank:
            self.odd = True
            return 0
        for i in range(rank):
            dim = self.uint()
            if dim > 1 and bound > _MAX // cython.cast(cython.ulonglong, dim):
                self.odd = True
            if self.odd:
                return 0
            if dim > 0:
                bound *= cython.cast(cython.ulonglong, dim)
            product = cython.cast(cython.longlong, bound) if dim > 0 and product > 0 else 0
            dims[filled + i] = dim
        self.argument = cython.cast(cython.ulonglong, rank)
        return product

    @cython.cfunc
    @cython.exceptval(check=False)
    def skip(self) -> cython.int:
        """Passes over one item of definite length."""
        left: cython.ulonglong = 1
        major: cython.int
        while left > 0:
            left -= 1
            major = self.head()
            if major < 0 or self.open_ended:
                self.odd = True
                return 0
            if major == 2 or major == _TEXT:
                if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
                    self.odd = True
                    return 0
                self.pos += cython.cast(cython.Py_ssize_t, self.argument)
            elif major == 4 or major == 5:
                if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
                    self.odd = True
                    return 0
                left += self.argument * (2 if major == _MAP else 1)
            elif major == 6:
                left += 1
        return 0


class Columns:
    """What a scan fills: for each entry its numbers, and where its texts are."""

    def __init__(self, count: int, dims: int) -> None:
        numbers = iter(np.zeros((7, count), np.int64))
        self.name_begins, self.name_ends = next(numbers), next(numbers)
        self.offsets, self.sizes = next(numbers), next(numbers)
        self.counts = next(numbers)
        """Elements."""
        self.decoded = next(numbers)
        """Decoded bytes where the index says them, else -1."""
        self.checksum_begins = next(numbers)
        self.checksum_sizes = np.full(count, -1, np.int64)
        codes = iter(np.zeros((5, count), np.uint8))
        self.flags = next(codes)
        self.dtypes = next(codes)
        self.types = next(codes)
        """One more than the position of the logical type, 0 where there is none."""
        self.encodings = next(codes)
        self.endians = next(codes)
        """One more than the position of the byte order, 0 where there is none."""
        self.entries = np.zeros(count + 1, np.int64)
        """Where each entry begins, and where the last one ends."""
        self.dims = np.zeros(dims, np.int64)
        self.dim_offsets = np.zeros(count + 1, np.int64)


@cython.cfunc
@cython.exceptval(check=False)
def _definite(walk: Walk) -> cython.Py_ssize_t:
    """A map: how many pairs it has, or -1 where a break ends it."""
    if walk.head() != _MAP:
        walk.odd = True
        return 0
    if walk.open_ended:
        return -1
    if walk.argument > cython.cast(cython.ulonglong, walk.end):
        walk.odd = True
        return 0
    return cython.cast(cython.Py_ssize_t, walk.argument)


@cython.cfunc
@cython.exceptval(check=False)
def _another(walk: Walk, pairs: cython.Py_ssize_t, done: cython.Py_ssize_t) -> cython.bint:
    """Whether a map has one more pair."""
    if walk.odd:
        return False
    if pairs >= 0:
        return done < pairs
    if walk.pos >= walk.end:
        walk.odd = True
        return False
    if walk.p[walk.pos] == 0xFF:
        walk.pos += 1
        return False
    return True


@cython.boundscheck(False)
def scan_entries(
    data: bytes,
    begin: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    skip: Any,
    max_rank: cython.longlong,
    max_name: cython.longlong,
    dtypes: list,  # type: ignore[type-arg]
    encodings: list,  # type: ignore[type-arg]
    endians: list,  # type: ignore[type-arg]
    columns: Any,
) -> None:
    """The entries of version 0.1: `count` maps from `begin` on. `skip` finds the end of an odd one."""
    walk: Walk = Walk(data, begin)
    name_begins: cython.longlong[::1] = columns.name_begins
    name_ends: cython.longlong[::1] = columns.name_ends
    flags: cython.uchar[::1] = columns.flags
    entries: cython.longlong[::1] = columns.entries
    offsets: cython.longlong[::1] = columns.offsets
    sizes: cython.longlong[::1] = columns.sizes
    counts: cython.longlong[::1] = columns.counts
    dtype_codes: cython.uchar[::1] = columns.dtypes
    encoding_codes: cython.uchar[::1] = columns.encodings
    endian_codes: cython.uchar[::1] = columns.endians
    checksum_begins: cython.longlong[::1] = columns.checksum_begins
    checksum_sizes: cython.longlong[::1] = columns.checksum_sizes
    dims: cython.longlong[::1] = columns.dims
    dim_offsets: cython.longlong[::1] = columns.dim_offsets
    filled: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    pairs: cython.Py_ssize_t
    done: cython.Py_ssize_t
    size: cython.Py_ssize_t
    rank: cython.Py_ssize_t
    seen: cython.int
    for row in range(count):
        entries[row] = walk.pos
        seen = 0
        rank = 0
        done = 0
        pairs = _definite(walk)
        while _another(walk, pairs, done):
            done += 1
            size = walk.text()
            if size == 4 and walk.matches(4, b"name"):
                seen |= 1
                size = walk.text()
                if size > max_name:
                    walk.odd = True
                if not walk.odd:
                    name_begins[row] = walk.pos - size
                    name_ends[row] = walk.pos
            elif size == 6 and walk.matches(6, b"offset"):
                seen |= 2
                offsets[row] = walk.uint()
            elif size == 4 and walk.matches(4, b"size"):
                seen |= 4
                sizes[row] = walk.uint()
            elif size == 5 and walk.matches(5, b"dtype"):
                seen |= 8
                dtype_codes[row] = walk.word(dtypes, dtype_codes[max(row - 1, 0)])
            elif size == 6 and walk.matches(6, b"layout"):
                size = walk.text()
                if not walk.matches(size, b"dense"):
                    walk.odd = True
            elif size == 5 and walk.matches(5, b"shape"):
                seen |= 16
                counts[row] = walk.shape(dims, filled, max_rank)
                if not walk.odd:
                    rank = cython.cast(cython.Py_ssize_t, walk.argument)
            elif size == 8 and walk.matches(8, b"encoding"):
                seen |= 32
                encoding_codes[row] = walk.word(encodings, encoding_codes[max(row - 1, 0)])
            elif size == 15 and walk.matches(15, b"data_endianness"):
                endian_codes[row] = walk.word(endians, 0) + 1
            elif size == 8 and walk.matches(8, b"checksum"):
                size = walk.text()
                checksum_begins[row] = walk.pos - size
                checksum_sizes[row] = size
            elif size == 7 and walk.matches(7, b"part_of"):
                walk.odd = True
            else:
                flags[row] = CUSTOM
                walk.skip()
        if walk.odd or seen != 63:
            flags[row] = SLOW_PATH
            rank = 0
            checksum_sizes[row] = -1
            walk.odd = False
            walk.pos = skip(data, entries[row], walk.end)
            if walk.pos < 0:
                walk.pos = walk.end
        filled += rank
        dim_offsets[row + 1] = filled
    entries[count] = walk.pos


@cython.boundscheck(False)
def scan_objects(
    data: bytes,
    begin: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    skip: Any,
    max_rank: cython.longlong,
    max_name: cython.longlong,
    dtypes: list,  # type: ignore[type-arg]
    types: list,  # type: ignore[type-arg]
    encodings: list,  # type: ignore[type-arg]
    columns: Any,
) -> None:
    """The objects of version 2: `count` pairs of name and map, from `begin` on, dense ones of one part."""
    walk: Walk = Walk(data, begin)
    name_begins: cython.longlong[::1] = columns.name_begins
    name_ends: cython.longlong[::1] = columns.name_ends
    flags: cython.uchar[::1] = columns.flags
    entries: cython.longlong[::1] = columns.entries
    offsets: cython.longlong[::1] = columns.offsets
    sizes: cython.longlong[::1] = columns.sizes
    counts: cython.longlong[::1] = columns.counts
    decoded: cython.longlong[::1] = columns.decoded
    dtype_codes: cython.uchar[::1] = columns.dtypes
    type_codes: cython.uchar[::1] = columns.types
    encoding_codes: cython.uchar[::1] = columns.encodings
    checksum_begins: cython.longlong[::1] = columns.checksum_begins
    checksum_sizes: cython.longlong[::1] = columns.checksum_sizes
    dims: cython.longlong[::1] = columns.dims
    dim_offsets: cython.longlong[::1] = columns.dim_offsets
    filled: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    pairs: cython.Py_ssize_t
    part_pairs: cython.Py_ssize_t
    done: cython.Py_ssize_t
    part_done: cython.Py_ssize_t
    size: cython.Py_ssize_t
    rank: cython.Py_ssize_t
    seen: cython.int
    for row in range(count):
        entries[row] = walk.pos
        seen = 0
        rank = 0
        done = 0
        decoded[row] = -1
        size = walk.text()
        if size == 0 or size > max_name:
            walk.odd = True
        if not walk.odd:
            walk.odd = _has_zero(walk.p, walk.pos - size, walk.pos)
            name_begins[row] = walk.pos - size
            name_ends[row] = walk.pos
        pairs = _definite(walk)
        while _another(walk, pairs, done):
            done += 1
            size = walk.text()
            if size == 5 and walk.matches(5, b"shape"):
                seen |= 1
                counts[row] = walk.shape(dims, filled, max_rank)
                if not walk.odd:
                    rank = cython.cast(cython.Py_ssize_t, walk.argument)
            elif size == 6 and walk.matches(6, b"layout"):
                seen |= 2
                size = walk.text()
                if not walk.matches(size, b"dense"):
                    walk.odd = True
            elif size == 5 and walk.matches(5, b"parts"):
                part_pairs = _definite(walk)
                size = walk.text()
                if part_pairs != 1 or not walk.matches(size, b"data"):
                    walk.odd = True
                part_pairs = _definite(walk)
                part_done = 0
                while _another(walk, part_pairs, part_done):
                    part_done += 1
                    size = walk.text()
                    if size == 4 and walk.matches(4, b"blob"):
                        seen |= 4
                        if walk.head() != _ARRAY or walk.argument != 2 or walk.open_ended:
                            walk.odd = True
                        offsets[row] = walk.uint()
                        sizes[row] = walk.uint()
                    elif size == 5 and walk.matches(5, b"dtype"):
                        seen |= 8
                        dtype_codes[row] = walk.word(dtypes, dtype_codes[max(row - 1, 0)])
                    elif size == 4 and walk.matches(4, b"type"):
                        type_codes[row] = walk.word(types, 0) + 1
                    elif size == 6 and walk.matches(6, b"digest"):
                        size = walk.text()
                        checksum_begins[row] = walk.pos - size
                        checksum_sizes[row] = size
                        if not _digest(walk, size):
                            walk.odd = True
                    elif size == 8 and walk.matches(8, b"encoding"):
                        encoding_codes[row] = walk.word(encodings, 0) + 1
                    elif size == 14 and walk.matches(14, b"decoded_length"):
                        decoded[row] = walk.uint()
                    else:
                        walk.odd = True
            else:
                walk.odd = True
        if walk.odd or seen != 15 or (encoding_codes[row] > 0) != (decoded[row] >= 0):
            flags[row] = SLOW_PATH
            rank = 0
            checksum_sizes[row] = -1
            walk.odd = False
            walk.pos = skip(data, entries[row], walk.end)
            if walk.pos >= 0:
                walk.pos = skip(data, walk.pos, walk.end)
            if walk.pos < 0:
                walk.pos = walk.end
        filled += rank
        dim_offsets[row + 1] = filled
    entries[count] = walk.pos


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has_zero(p: cython.p_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    i: cython.Py_ssize_t
    found: cython.bint = False
    for i in range(begin, end):
        found |= p[i] == 0
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _digest(walk: Walk, size: cython.Py_ssize_t) -> cython.bint:
    """Whether the text before the position is `xxh3:` and sixteen digits of lower-case hex."""
    i: cython.Py_ssize_t
    c: cython.int
    if walk.odd or size != 21:
        return False
    for i in range(walk.pos - 16, walk.pos):
        c = walk.p[i]
        if not (48 <= c <= 57 or 97 <= c <= 102):
            return False
    begin: cython.Py_ssize_t = walk.pos
    walk.pos -= 16
    same: cython.bint = walk.matches(5, b"xxh3:")
    walk.pos = begin
    return same


def encode_entries(
    names: Any,
    dtypes: Any,
    codes: bytes,
    dims: Any,
    dim_offsets: Any,
    offsets: Any,
    sizes: Any,
    layouts: Any,
    fields: Any,
) -> bytearray:
    """The index of version 0.1, from CBOR texts and columns.

    `dtypes` has the element types by code, `layouts` and `fields` have the layout and
    the pairs from the key `encoding` on of each entry.
    """
    texts: list[Any] = [name.encode("utf-8") for name in names]
    strings: cython.Py_ssize_t = sum(map(len, texts)) + sum(map(len, fields)) + sum(map(len, layouts))
    keys: cython.Py_ssize_t = len(b"\xbf\x64name\x66offset\x64size\x65dtype\x66layout\x65shape\xff")
    largest = [max(map(len, texts), default=0), int(offsets.max(initial=0)), int(sizes.max(initial=0)), len(dims)]
    entry: cython.Py_ssize_t = keys + sum(map(_head_nbytes, largest)) + max(map(len, dtypes), default=0)
    dims_nbytes: cython.Py_ssize_t = _head_nbytes(int(dims.max(initial=0))) * len(dims)
    capacity: cython.Py_ssize_t = 9 + entry * len(texts) + dims_nbytes + strings
    buffer: bytearray = bytearray(capacity)
    position: cython.Py_ssize_t = _fill_entries(
        buffer,
        texts,
        dtypes,
        codes,
        memoryview(dims),
        memoryview(dim_offsets),
        memoryview(offsets),
        memoryview(sizes),
        layouts,
        fields,
    )
    del buffer[position:]
    return buffer


@cython.cfunc
@cython.boundscheck(False)
def _fill_entries(
    buffer: bytearray,
    texts: list,  # type: ignore[type-arg]
    dtypes: list,  # type: ignore[type-arg]
    codes: cython.const[cython.uchar][::1],
    dims: cython.const[cython.longlong][::1],
    dim_offsets: cython.const[cython.longlong][::1],
    offsets: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    layouts: list,  # type: ignore[type-arg]
    fields: list,  # type: ignore[type-arg]
) -> cython.Py_ssize_t:
    out: cython.uchar[::1] = buffer
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    position: cython.Py_ssize_t = _put_head(out, 0, _ARRAY, len(texts))
    for row in range(len(texts)):
        position = _put(out, position, b"\xbf\x64name")
        position = _put_head(out, position, _TEXT, len(texts[row]))
        position = _put(out, position, texts[row])
        position = _put(out, position, b"\x66offset")
        position = _put_head(out, position, _UINT, offsets[row])
        position = _put(out, position, b"\x64size")
        position = _put_head(out, position, _UINT, sizes[row])
        position = _put(out, position, b"\x65dtype")
        position = _put(out, position, dtypes[codes[row]])
        position = _put(out, position, b"\x66layout")
        position = _put(out, position, layouts[row])
        position = _put(out, position, b"\x65shape")
        position = _put_head(out, position, _ARRAY, dim_offsets[row + 1] - dim_offsets[row])
        for i in range(dim_offsets[row], dim_offsets[row + 1]):
            position = _put_head(out, position, _UINT, dims[i])
        position = _put(out, position, fields[row])
        out[position] = 0xFF
        position += 1
    return position


@cython.cfunc
def _put(out: cython.uchar[::1], position: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    p: cython.p_uchar = data
    size: cython.Py_ssize_t = len(data)
    i: cython.Py_ssize_t
    for i in range(size):
        out[position + i] = p[i]
    return position + size


def _head_nbytes(number: int) -> int:
    """How many bytes a head takes: memory that nobody fills still costs its pages."""
    for most, nbytes in ((23, 1), (0xFF, 2), (0xFFFF, 3), (0xFFFF_FFFF, 5)):
        if number <= most:
            return nbytes
    return 9


@cython.cfunc
@cython.exceptval(check=False)
def _put_head(
    out: cython.uchar[::1], position: cython.Py_ssize_t, major: cython.int, value: cython.longlong
) -> cython.Py_ssize_t:
    """The shortest head."""
    width: cython.int
    i: cython.int
    if value < 24:
        out[position] = major << 5 | value
        return position + 1
    if value <= 0xFF:
        out[position], width = major << 5 | 24, 1
    elif value <= 0xFFFF:
        out[position], width = major << 5 | 25, 2
    elif value <= 0xFFFF_FFFF:
        out[position], width = major << 5 | 26, 4
    else:
        out[position], width = major << 5 | 27, 8
    for i in range(width):
        out[position + 1 + i] = (value >> (8 * (width - 1 - i))) & 0xFF
    return position + 1 + width
