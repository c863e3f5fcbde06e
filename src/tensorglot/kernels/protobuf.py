"""Reads the messages of a Protocol Buffers file: fields without a schema, and the tensors of an ONNX graph as columns.

Heads are read, and contents that are wanted: names, dimensions, keys and their values. All
others are skipped, so scanning a model of many gigabytes reads little. Every byte that is
read counts against a limit. Groups, which are deprecated, are refused.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import exceeds, little
else:
    from tensorglot.kernels.primitives import exceeds, little

# Faults. The caller has the message of each.
LIMIT = 1
TRUNCATED = 2
SPAN = 3
VARINT = 4
WIRE = 5
NUMBER = 6
KIND = 7
UTF8 = 8
PACKED = 9
TWICE = 10
PROPERTY_TWICE = 11
ENTRY_TWICE = 12
TENSORS = 13
RANK = 14
NEGATIVE = 15
COUNT = 16
SEGMENT = 17
PIECES = 18
UNPACKED = 19
BOTH = 20
LOCATION = 21
INLINE = 22
PART_TWICE = 23
PARTS = 24
SPARSE_COUNT = 25

_VARINT = cython.declare(cython.int, 0)
_FIXED64 = cython.declare(cython.int, 1)
_BYTES = cython.declare(cython.int, 2)
_FIXED32 = cython.declare(cython.int, 5)
_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)
_MOST = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_MOST_ELEMENTS = cython.declare(cython.longlong, (1 << 60) - 1)
_WINDOW_NBYTES = cython.declare(cython.Py_ssize_t, 1 << 16)


@cython.final
@cython.cclass
class Reader:
    """A window of a file, the head of a field that was read last, and the first fault.

    Invariant: a byte is read only before the end of its message, which is at most the end of
    the file. After a fault nothing is read: a method returns False, None or -1.
    """

    read: Any
    size: cython.Py_ssize_t
    left: cython.Py_ssize_t
    window: bytes
    raw: cython.p_const_uchar
    begin: cython.Py_ssize_t
    reach: cython.Py_ssize_t
    """Where the window begins and ends in the file."""
    number: cython.ulonglong
    kind: cython.int
    value: cython.ulonglong
    """The number of a varint."""
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    """The contents of the field."""
    data: cython.ulonglong
    values: cython.Py_ssize_t
    values_end: cython.Py_ssize_t
    """The number of the field that has the values of the current tensor, 0 for none, and their span."""
    fault: cython.int
    place: cython.Py_ssize_t
    detail: Any

    def __init__(self, read: Any, size: cython.Py_ssize_t, left: cython.Py_ssize_t) -> None:
        """`read(offset, nbytes)` returns bytes of the file, of which at most `left` are read."""
        self.read, self.size, self.left = read, size, left
        self.begin = self.reach = 0
        self.fault = self.place = 0
        self.detail = ()

    def failure(self) -> tuple[int, int, tuple[Any, ...]]:
        """The fault, 0 if there is none, its position, and what its message says."""
        return self.fault, self.place, self.detail

    @cython.cfunc
    def fail(self, fault: cython.int, place: cython.Py_ssize_t, detail: tuple[Any, ...] = ()) -> cython.bint:
        self.fault, self.place, self.detail = fault, place, detail
        return False

    @cython.cfunc
    def beyond(self, needed: Any, end: cython.Py_ssize_t, place: cython.Py_ssize_t) -> cython.bint:
        """The fault of a field that needs bytes behind the end of its message."""
        return self.fail(TRUNCATED if end >= self.size else SPAN, place, (needed, self.size))

    @cython.cfunc
    def charge(self, nbytes: cython.Py_ssize_t, place: cython.Py_ssize_t) -> cython.bint:
        self.left -= nbytes
        return True if self.left >= 0 else self.fail(LIMIT, place)

    @cython.cfunc
    def varint(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Reads a varint into `value`; returns where it ends, or -1."""
        first: cython.Py_ssize_t = at
        value: cython.ulonglong = 0
        shift: cython.int = 0
        byte: cython.ulonglong
        # Invariant: `value` has the lowest `shift` bits of the number, which the bytes before `at` have.
        while at < end:
            if not self.begin <= at < self.reach:
                self.window = self.read(at, min(_WINDOW_NBYTES, self.size - at))
                self.raw = self.window
                self.begin, self.reach = at, at + len(self.window)
                if at == self.reach:
                    break
            byte = self.raw[at - self.begin]
            at += 1
            value |= ((byte & 0x7F) << shift) & _MASK
            if byte < 0x80:
                self.value = value
                return at if self.charge(at - first, first) else -1
            shift += 7
            if shift == 70:
                self.fail(VARINT, first)
                return -1
        self.beyond(at + 1, end, first)
        return -1

    @cython.cfunc
    def head(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Reads the head of the field at a position of the message that ends at `end`."""
        nbytes: cython.ulonglong = 0
        room: cython.ulonglong
        self.first = self.varint(at, end)
        if self.first < 0:
            return False
        self.number = self.value >> 3
        self.kind = cython.cast(cython.int, self.value & 7)
        self.value = 0
        self.end = self.first
        if self.kind == _VARINT:
            self.end = self.varint(self.first, end)
            if self.end < 0:
                return False
        elif self.kind == _BYTES:
            self.first = self.varint(self.first, end)
            if self.first < 0:
                return False
            nbytes, self.value = self.value, 0
        elif self.kind == _FIXED64:
            nbytes = 8
        elif self.kind == _FIXED32:
            nbytes = 4
        else:
            return self.fail(WIRE, at, (self.kind,))
        if self.number == 0:
            return self.fail(NUMBER, at)
        if self.kind != _VARINT:
            room = end - self.first
            if nbytes > room:
                needed: Any = nbytes
                return self.beyond(self.first + needed, end, at)
            self.end = self.first + cython.cast(cython.Py_ssize_t, nbytes)
        return True

    @cython.cfunc
    def require(self, kind: cython.int) -> cython.bint:
        """Whether the field is of this kind."""
        return True if self.kind == kind else self.fail(KIND, self.first, (self.number, self.kind, kind))

    @cython.cfunc
    def contents(self) -> Any:
        """The contents of the field."""
        nbytes: cython.Py_ssize_t = self.end - self.first
        if not self.charge(nbytes, self.first):
            return None
        if self.begin <= self.first and self.end <= self.reach:
            return self.window[self.first - self.begin : self.end - self.begin]
        return bytes(self.read(self.first, nbytes))

    def text(self) -> Any:
        """The contents of the field that was read last, as text; None after a fault."""
        return self.decoded()

    @cython.cfunc
    def decoded(self) -> Any:
        raw: Any = self.contents()
        try:
            return None if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(UTF8, self.first)
            return None

    def next(
        self,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        wanted: cython.ulonglong,
        pair: cython.ulonglong,
        pairs: dict[str, str] | None,
    ) -> tuple[int, int, int, int, int] | None:
        """The first field from `at` up to `end` whose number is a bit of `wanted`: number, kind, value, begin, end.

        None if there is none, and after a fault. Fields before it of the number `pair` (0: none),
        which are a key and its value, are added to `pairs`.
        """
        while at < end:
            if not self.head(at, end):
                return None
            at = self.end
            if self.number == pair:
                if not self.pair(pairs, PROPERTY_TWICE):
                    return None
            elif self.number < 64 and wanted >> self.number & 1:
                return self.number, self.kind, self.value, self.first, self.end
        return None

    @cython.cfunc
    def pair(self, pairs: Any, twice: cython.int) -> cython.bint:
        """Adds the texts of the fields 1 and 2 of the field, a message: key and value, "" for one that it lacks."""
        begin: cython.Py_ssize_t = self.first
        end: cython.Py_ssize_t = self.end
        at: cython.Py_ssize_t = begin
        texts: list[Any] = [None, None]
        if not self.require(_BYTES):
            return False
        while at < end:
            if not self.head(at, end):
                return False
            at = self.end
            if self.number > 2:
                continue
            if texts[self.number - 1] is not None:
                return self.fail(TWICE, self.first, (self.number,))
            if not self.require(_BYTES):
                return False
            texts[self.number - 1] = self.decoded()
            if self.fault != 0:
                return False
        key: Any = texts[0] or ""
        if key in pairs:
            return self.fail(twice, begin)
        pairs[key] = texts[1] or ""
        return True

    def tensors(
        self,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        most: cython.Py_ssize_t,
        max_rank: cython.Py_ssize_t,
        columns: Any,
        external: dict[int, dict[str, str]],
        sparse: tuple[Any, ...],
    ) -> None:
        """Adds the tensors of a graph to the columns, up to a fault.

        The columns have where the message begins, name, type, rank and number of elements, the
        field of the values (0 for none), their begin and their end; and in the last one all
        dimensions. `external` has where the values are of a tensor that says that they are
        elsewhere, by its position. `sparse` has columns and `external` of the values of sparse
        tensors, the same of their indices, and columns of their own: where the message begins,
        rank, number of elements, dimensions, and the largest index as an unsigned number, -1 if
        there is none, None if that is not known here.
        """
        good: cython.bint = True
        while good and at < end and self.head(at, end):
            at = self.end
            if self.number != 5 and self.number != 15:
                continue
            if not self.require(_BYTES):
                return
            if len(columns[0]) + len(sparse[4]) >= most:
                good = self.fail(TENSORS, self.first)
            elif self.number == 5:
                good = self.tensor(max_rank, columns, external)
            else:
                good = self.sparse(max_rank, sparse)

    @cython.cfunc
    def tensor(self, max_rank: cython.Py_ssize_t, columns: Any, external: dict[int, dict[str, str]]) -> cython.bint:
        """Adds the tensor that is the contents of the field."""
        begin: cython.Py_ssize_t = self.first
        at: cython.Py_ssize_t = begin
        end: cython.Py_ssize_t = self.end
        name: Any = ""
        type: cython.ulonglong = 0
        location: cython.ulonglong = 0
        seen: cython.ulonglong = 0
        count: cython.longlong
        good: cython.bint = True
        entries: dict[str, str] = {}
        sizes: list[Any] = []
        self.data = self.values = self.values_end = 0
        # Invariant: the fields before `at` are in the variables above, and those with values in `data`.
        while at < end:
            if not self.head(at, end):
                return False
            at = self.end
            if self.number == 1:
                good = self.dims(sizes, max_rank)
            elif self.number == 13:
                good = self.pair(entries, ENTRY_TWICE)
            elif self.number == 2 or self.number == 8 or self.number == 14:
                if seen >> self.number & 1:
                    return self.fail(TWICE, self.first, (self.number,))
                seen |= cython.cast(cython.ulonglong, 1) << self.number
                if not self.require(_BYTES if self.number == 8 else _VARINT):
                    return False
                if self.number == 2:
                    type = self.value
                elif self.number == 14:
                    location = self.value
                else:
                    name = self.decoded()
                    good = self.fault == 0
            elif self.number == 3:
                return self.fail(SEGMENT, self.first)
            elif 4 <= self.number <= 11:
                good = self.take_values()
            if not good:
                return False
        if location > 1:
            return self.fail(LOCATION, begin, (location,))
        if location == 1 and self.data != 0:
            return self.fail(INLINE, begin)
        count = _count(sizes, _MOST_ELEMENTS)
        if count < 0:
            return self.fail(COUNT, begin)
        begins, names, types, ranks, counts, fields, firsts, ends, dims = columns
        if location == 1:
            external[len(begins)] = entries
        begins.append(begin)
        names.append(name)
        types.append(type)
        ranks.append(len(sizes))
        counts.append(count)
        fields.append(self.data)
        firsts.append(self.values)
        ends.append(self.values_end)
        dims.extend(sizes)
        return True

    @cython.cfunc
    def dims(self, sizes: list[Any], most: cython.Py_ssize_t) -> cython.bint:
        """Appends the numbers of a field of dimensions, one varint or several packed; at most `most` in all."""
        found: list[Any] = [self.value]
        value: cython.ulonglong
        if self.kind != _VARINT:
            if not self.require(_BYTES):
                return False
            if len(sizes) + (self.end - self.first) // 10 > most:
                return self.fail(RANK, self.first)
            raw: Any = self.contents()
            found = _unpacked(raw or b"")
            if raw is None or found is None:
                return False if raw is None else self.fail(PACKED, self.first)
        if len(sizes) + len(found) > most:
            return self.fail(RANK, self.first)
        for item in found:
            value = item
            if value > cython.cast(cython.ulonglong, _MOST):
                return self.fail(NEGATIVE, self.first)
        sizes += found
        return True

    @cython.cfunc
    def take_values(self) -> cython.bint:
        """Takes a field that has the values of a tensor. Texts are a field each; other values are in one, packed."""
        if self.number == 6:
            if not self.require(_BYTES):
                return False
        elif self.data == self.number:
            return self.fail(PIECES, self.first, (self.number,))
        elif self.kind != _BYTES:
            return self.fail(UNPACKED, self.first, (self.number,))
        if self.data != 0 and self.data != self.number:
            return self.fail(BOTH, self.first, (self.data, self.number))
        if self.data == 0:
            self.data, self.values = self.number, self.first
        self.values_end = self.end
        return True

    @cython.cfunc
    def sparse(self, max_rank: cython.Py_ssize_t, columns: tuple[Any, ...]) -> cython.bint:
        """Adds the sparse tensor that is the contents of the field: its values, its indices, its dimensions."""
        begin: cython.Py_ssize_t = self.first
        at: cython.Py_ssize_t = begin
        end: cython.Py_ssize_t = self.end
        seen: cython.int = 0
        count: cython.longlong
        good: cython.bint = True
        sizes: list[Any] = []
        values, values_external, indices, indices_external, begins, ranks, counts, dims, largest = columns
        # Invariant: `seen` has bit 1 if the values are in their columns, and bit 2 if the indices are.
        while at < end:
            if not self.head(at, end):
                return False
            at = self.end
            if self.number == 3:
                good = self.dims(sizes, max_rank)
            elif self.number < 3:
                if not self.require(_BYTES):
                    return False
                if seen >> self.number & 1:
                    return self.fail(PART_TWICE, self.first)
                seen |= 1 << self.number
                if self.number == 1:
                    good = self.tensor(max_rank, values, values_external)
                else:
                    good = self.tensor(max_rank, indices, indices_external)
                    largest.append(None if len(indices[0]) - 1 in indices_external else self.largest())
            if not good:
                return False
        if seen != 6:
            return self.fail(PARTS, begin)
        count = _count(sizes, _MOST)
        if count < 0:
            return self.fail(SPARSE_COUNT, begin)
        begins.append(begin)
        ranks.append(len(sizes))
        counts.append(count)
        dims.extend(sizes)
        return True

    @cython.cfunc
    def largest(self) -> Any:
        """The largest of the values of the current tensor, unsigned numbers of 64 bits, if they are in the window."""
        at: cython.Py_ssize_t = self.values - self.begin
        end: cython.Py_ssize_t = self.values_end - self.begin
        most: cython.ulonglong = 0
        if self.values == self.values_end:
            return -1
        if at < 0 or self.values_end > self.reach:
            return None
        if self.data == 7:
            found: Any = _unpacked(self.window[at:end])
            return None if found is None else max(found)
        if self.data != 9 or (end - at) % 8 != 0:
            return None
        while at < end:
            most = max(most, little(self.raw, at, 8))
            at += 8
        return most


@cython.cfunc
def _unpacked(data: bytes) -> Any:
    """The numbers of consecutive varints; None if the last one is cut or one has more than ten bytes."""
    raw: cython.p_const_uchar = data
    at: cython.Py_ssize_t
    value: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    found: list[Any] = []
    for at in range(len(data)):
        byte = raw[at]
        value |= ((byte & 0x7F) << shift) & _MASK
        shift += 7
        if byte < 0x80:
            found.append(value)
            value = 0
            shift = 0
        elif shift == 70:
            return None
    return found if shift == 0 else None


@cython.cfunc
def _count(sizes: list[Any], most: cython.longlong) -> cython.longlong:
    """The product of sizes; -1 if without the zeros it is more than `most`."""
    count: cython.longlong = 1
    value: cython.longlong
    for item in sizes:
        value = item
        if value > 0:
            if exceeds(count, value, most):
                return -1
            count *= value
    return 0 if 0 in sizes else count
