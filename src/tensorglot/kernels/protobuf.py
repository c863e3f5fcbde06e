"""The wire format of Protocol Buffers: the fields of a message, and the tensors of an ONNX graph as columns.

Both scans stop before a field whose head is not all there and before any that breaks a rule, and
leave that to the caller, who has the messages. So do tensors that have anything unusual.
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

_VARINT = cython.declare(cython.int, 0)
_FIXED64 = cython.declare(cython.int, 1)
_BYTES = cython.declare(cython.int, 2)
_FIXED32 = cython.declare(cython.int, 5)
_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)
_TENSOR = cython.declare(cython.ulonglong, 5)
_SPARSE_TENSOR = cython.declare(cython.ulonglong, 15)
_COUNT_END = cython.declare(cython.ulonglong, 1 << 60)
_TOGETHER = cython.declare(cython.Py_ssize_t, 1024)
"""Fields that are found at a time, so that a caller who stops early has not waited for all."""


@cython.final
@cython.cclass
class _Head:
    """The head of a field: its key, its number (of a varint, or the length of its contents), and what follows.

    The number begins at `number`; the contents, which a varint does not have, begin at `first` and end at `end`.
    """

    key: cython.ulonglong
    value: cython.ulonglong
    number: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t

    @cython.cfunc
    def read(
        self, raw: cython.p_const_uchar, at: cython.Py_ssize_t, limit: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.bint:
        """Reads the head at `at`; False if not all of it is below `limit` and `size`, or it breaks a rule."""
        self.number = _end(raw, at, limit, size)
        if self.number < 0:
            return False
        self.key = _value(raw, at, self.number)
        self.first = self.number
        if self.key & 7 == _VARINT or self.key & 7 == _BYTES:
            self.first = _end(raw, self.number, limit, size)
            if self.first < 0:
                return False
        self.value = _value(raw, self.number, self.first)
        self.end = _contents_end(self.key, self.value, self.first, limit)
        return self.end >= 0

    @cython.cfunc
    @cython.inline
    def nbytes(self, taken: cython.bint) -> cython.Py_ssize_t:
        """The bytes of the contents, -1 if they were not taken."""
        return self.end - self.first if taken else -1


def scan_fields(
    data: bytes,
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    wanted: cython.ulonglong,
    pair: cython.ulonglong,
    make: Any,
    found: list[Any],
    pairs: dict[str, str],
) -> tuple[int, int]:
    """Scans fields from `at` up to `end`; returns where it stopped, and how many of `left` bytes may still be read.

    `data` are the bytes of the file from `base` on. Fields whose numbers are bits of `wanted`
    are appended to `found`, as tuples of the type `make`: number, kind, value of a varint, begin
    and end. A field of the number `pair` that is a key and its value is added to `pairs` instead,
    unless the key is there.
    """
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = at - base
    limit: cython.Py_ssize_t = end - base
    head: _Head = _Head()
    spent: cython.Py_ssize_t
    whole: cython.bint
    one: Any
    # Invariant: `found` has the fields before `position`; a byte is read only below `size`.
    while position < limit and position < size and head.read(raw, position, limit, size):
        spent = head.first - position
        if spent > left:
            break
        whole = head.end <= size and head.end - position <= left
        if whole and head.key == (pair << 3 | _BYTES) and _add_pair(data, head.first, head.end, pairs):
            left -= head.end - position
            position = head.end
            continue
        if head.key >> 3 < 64 and wanted >> (head.key >> 3) & 1:
            if len(found) == _TOGETHER:
                break
            if head.key & 7 == _VARINT:
                one = head.key >> 3, head.key & 7, head.value, base + head.number, base + head.first
            else:
                one = head.key >> 3, head.key & 7, 0, base + head.first, base + head.end
            found.append(tuple.__new__(make, one))
        left -= spent
        position = head.end
    return base + position, left


def scan_tensors(
    data: bytes,
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
    max_rank: cython.Py_ssize_t,
    columns: Any,
    external: dict[int, dict[str, str]],
    sparse: tuple[Any, ...],
) -> tuple[int, int]:
    """Scans fields from `at` up to `end`; returns where it stopped, and how many of `left` bytes may still be read.

    `data` are the bytes of the file from `base` on. Tensors are added to the columns until
    there are `most`: where the message begins, its name, type, rank and number of elements,
    the field of its values (0 for none), their begin and their end; and to the last column
    all dimensions. `external` has where the values are of a tensor that says that they are
    elsewhere, by its position. `sparse` has columns and `external` of the values of sparse
    tensors, the same of their indices, and columns of their own: where the message begins, rank,
    number of elements, dimensions, and the largest index as an unsigned number, -1 if there is
    none, None if that is not known here.
    """
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = at - base
    limit: cython.Py_ssize_t = end - base
    head: _Head = _Head()
    spent: cython.Py_ssize_t
    inside: cython.Py_ssize_t
    # Invariant: fields before `position` are done, and columns have their tensors; a byte is read only below `size`.
    while position < limit and position < size and head.read(raw, position, limit, size):
        spent = head.first - position
        if spent > left:
            break
        if head.key >> 3 == _TENSOR or head.key >> 3 == _SPARSE_TENSOR:
            if head.key & 7 != _BYTES or len(columns[0]) + len(sparse[4]) >= most:
                break
            if head.key >> 3 == _TENSOR:
                inside = _add_tensor(data, base, head.first, head.end, left - spent, max_rank, columns, external)
            else:
                inside = _add_sparse(data, base, head.first, head.end, left - spent, max_rank, sparse)
            if inside < 0:
                break
            spent += inside
        left -= spent
        position = head.end
    return base + position, left


@cython.final
@cython.cclass
class _Tensor:
    """The fields of a tensor's message that were read so far."""

    name: str
    type: cython.ulonglong
    elsewhere: cython.bint
    """Whether data_location says that the values are in another file."""
    entries: dict[str, str]
    """external_data"""
    sizes: list[Any]
    field: cython.ulonglong
    """The number of the field that has the values, 0 for none; they are between `first` and `end`."""
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    seen: cython.ulonglong
    """A bit for the number of each field that may not be repeated."""

    def __init__(self, none: cython.Py_ssize_t) -> None:
        self.name, self.type, self.elsewhere, self.entries, self.sizes = "", 0, False, {}, []
        self.field, self.first, self.end, self.seen = 0, none, none, 0

    @cython.cfunc
    def take(self, data: bytes, head: _Head, size: cython.Py_ssize_t, max_rank: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Takes a field; returns how many bytes of its contents were read, -1 if it is unusual or not all there."""
        key: cython.ulonglong = head.key
        number: cython.ulonglong = key >> 3
        if number == 1:  # dims
            return _take_sizes(data, head, size, max_rank, self.sizes)
        if key == (13 << 3 | _BYTES):  # external_data
            return head.nbytes(head.end <= size and _add_pair(data, head.first, head.end, self.entries))
        if key == (6 << 3 | _BYTES) and self.field == 6:  # string_data: each text is a field
            self.end = head.end
            return 0
        if number > 14 or number == 12:  # no field of a tensor, or doc_string
            return 0
        if self.seen >> number & 1:
            return -1
        self.seen |= cython.cast(cython.ulonglong, 1) << number
        if key == (8 << 3 | _BYTES):  # name
            if head.end > size:
                return -1
            try:
                self.name = data[head.first : head.end].decode("utf-8")
            except UnicodeDecodeError:
                return -1
            return head.end - head.first
        if key == 2 << 3:  # data_type
            self.type = head.value
        elif key == 14 << 3 and head.value <= 1:  # data_location
            self.elsewhere = head.value == 1
        elif self.field == 0 and (_is_data(key) or key == (6 << 3 | _BYTES)):
            self.field, self.first, self.end = number, head.first, head.end
        else:
            return -1
        return 0


@cython.cfunc
def _add_tensor(
    data: bytes,
    base: cython.Py_ssize_t,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    max_rank: cython.Py_ssize_t,
    columns: Any,
    external: dict[int, dict[str, str]],
) -> cython.Py_ssize_t:
    """Adds the tensor of a message to the columns; returns how many of `left` bytes were read.

    -1, and nothing is added, for a message that has anything unusual, or needs more bytes.
    """
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = begin
    spent: cython.Py_ssize_t = 0
    inside: cython.Py_ssize_t
    whole: cython.ulonglong
    head: _Head = _Head()
    tensor: _Tensor = _Tensor(-base)
    # Invariant: `tensor` has the fields of the message before `position`.
    while position < end:
        if not head.read(raw, position, end, size):
            return -1
        inside = tensor.take(data, head, size, max_rank)
        if inside < 0:
            return -1
        spent += head.first - position + inside
        position = head.end
    whole = _product(tensor.sizes)
    if spent > left or whole == 0 or (tensor.elsewhere and tensor.field != 0):
        return -1
    if tensor.elsewhere:
        external[len(columns[0])] = tensor.entries
    begins, names, types, ranks, counts, fields, firsts, ends, dims = columns
    begins.append(base + begin)
    names.append(tensor.name)
    types.append(tensor.type)
    ranks.append(len(tensor.sizes))
    counts.append(0 if 0 in tensor.sizes else whole)
    fields.append(tensor.field)
    firsts.append(base + tensor.first)
    ends.append(base + tensor.end)
    dims.extend(tensor.sizes)
    return spent


@cython.cfunc
def _add_sparse(
    data: bytes,
    base: cython.Py_ssize_t,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    max_rank: cython.Py_ssize_t,
    sparse: tuple[Any, ...],
) -> cython.Py_ssize_t:
    """The same for a sparse tensor: its values, its indices, its dimensions."""
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = begin
    spent: cython.Py_ssize_t = 0
    inside: cython.Py_ssize_t
    whole: cython.ulonglong
    head: _Head = _Head()
    # The messages of values and indices; -1 as long as there is none.
    values: cython.Py_ssize_t = -1
    values_end: cython.Py_ssize_t = -1
    indices: cython.Py_ssize_t = -1
    indices_end: cython.Py_ssize_t = -1
    sizes: list[Any] = []
    # Invariant: the fields of the message before `position` are in the variables above.
    while position < end:
        if not head.read(raw, position, end, size):
            return -1
        spent += head.first - position
        if head.key == (1 << 3 | _BYTES) and values < 0:
            values = head.first
            values_end = head.end
        elif head.key == (2 << 3 | _BYTES) and indices < 0:
            indices = head.first
            indices_end = head.end
        elif head.key >> 3 == 3:  # dims
            inside = _take_sizes(raw, head, size, max_rank, sizes)
            if inside < 0:
                return -1
            spent += inside
        elif head.key >> 3 <= 3:
            return -1
        position = head.end
    whole = _product(sizes)
    if values < 0 or indices < 0 or whole == 0:
        return -1
    value_columns, value_external, index_columns, index_external, begins, ranks, counts, dims, largest = sparse
    inside = _add_tensor(data, base, values, values_end, left - spent, max_rank, value_columns, value_external)
    if inside < 0:
        return -1
    spent += inside
    inside = _add_tensor(data, base, indices, indices_end, left - spent, max_rank, index_columns, index_external)
    if inside < 0:
        _drop_last(value_columns, value_external)
        return -1
    begins.append(base + begin)
    ranks.append(len(sizes))
    counts.append(0 if 0 in sizes else whole)
    dims.extend(sizes)
    last: cython.Py_ssize_t = len(index_columns[5]) - 1
    if last in index_external:
        largest.append(None)
    else:
        largest.append(
            _largest(data, index_columns[5][last], index_columns[6][last] - base, index_columns[7][last] - base)
        )
    return spent + inside


@cython.cfunc
def _drop_last(columns: Any, external: dict[int, dict[str, str]]) -> cython.void:
    """Removes the tensor that was added last."""
    begins, names, types, ranks, counts, fields, firsts, ends, dims = columns
    del dims[len(dims) - ranks[len(ranks) - 1] :]
    for column in (begins, names, types, ranks, counts, fields, firsts, ends):
        column.pop()
    external.pop(len(begins), None)


@cython.cfunc
def _largest(data: bytes, field: cython.int, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> Any:
    """The largest number of 64 bits, unsigned; -1 if there is none, None if it is not known."""
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    after: cython.Py_ssize_t
    value: cython.ulonglong
    most: cython.ulonglong = 0
    if end == begin:
        return -1
    if end > size or (field != 7 and field != 9) or (field == 9 and (end - begin) % 8 != 0):
        return None
    while begin < end:
        if field == 9:
            after = begin + 8
            value = little(raw, begin, 8)
        else:
            after = _end(raw, begin, end, size)
            if after < 0:
                return None
            value = _value(raw, begin, after)
        most = max(most, value)
        begin = after
    return most


@cython.cfunc
def _add_pair(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t, pairs: dict[str, str]) -> cython.bint:
    """Adds the texts of the fields 1 and 2 of a message, key and value, "" for one that it lacks.

    False, and nothing is added, if the key is there or the message breaks a rule. `end` is at most the size of `data`.
    """
    raw: cython.p_const_uchar = data
    position: cython.Py_ssize_t = begin
    head: _Head = _Head()
    number: cython.ulonglong
    text: Any = None
    value: Any = None
    # Invariant: the fields before `position` are done; a byte is read only below `end`.
    while position < end:
        if not head.read(raw, position, end, end):
            return False
        number = head.key >> 3
        if number == 1 or number == 2:
            if head.key & 7 != _BYTES or (text if number == 1 else value) is not None:
                return False
            try:
                if number == 1:
                    text = data[head.first : head.end].decode("utf-8")
                else:
                    value = data[head.first : head.end].decode("utf-8")
            except UnicodeDecodeError:
                return False
        position = head.end
    text = "" if text is None else text
    if text in pairs:
        return False
    pairs[text] = "" if value is None else value
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _end(
    raw: cython.p_const_uchar, at: cython.Py_ssize_t, limit: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where a varint ends; -1 if it has more than ten bytes or not all of them are there."""
    after: cython.Py_ssize_t = at
    while after < limit and after < size and after - at < 10:
        if raw[after] < 0x80:
            return after + 1
        after += 1
    return -1


@cython.cfunc
def _take_sizes(
    raw: cython.p_const_uchar, head: _Head, size: cython.Py_ssize_t, most: cython.Py_ssize_t, sizes: list[Any]
) -> cython.Py_ssize_t:
    """Takes a field of dimensions, one varint or several packed; returns as `_Tensor.take`."""
    if head.key & 7 == _VARINT:
        return 0 if _add_sizes(raw, head.number, head.first, size, most, sizes) else -1
    return head.nbytes(head.key & 7 == _BYTES and _add_sizes(raw, head.first, head.end, size, most, sizes))


@cython.cfunc
def _add_sizes(
    raw: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
    sizes: list[Any],
) -> cython.bint:
    """Appends the varints up to `end`; False if they are not all there, or there are more than `most` in all."""
    after: cython.Py_ssize_t
    while at < end:
        after = _end(raw, at, end, size)
        if after < 0 or len(sizes) >= most:
            return False
        sizes.append(_value(raw, at, after))
        at = after
    return True


@cython.cfunc
def _product(sizes: list[Any]) -> cython.ulonglong:
    """The product of all sizes but the zeros; 0 where that is 2**60 or more."""
    count: cython.ulonglong = 1
    value: cython.ulonglong
    for item in sizes:
        value = item
        if value > 0:
            if value >= _COUNT_END or exceeds(count, value, _COUNT_END - 1):
                return 0
            count *= value
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _value(raw: cython.p_const_uchar, at: cython.Py_ssize_t, after: cython.Py_ssize_t) -> cython.ulonglong:
    """The number of a varint that ends at `after`."""
    value: cython.ulonglong = 0
    while after > at:
        after -= 1
        value = (value << 7 | (raw[after] & 0x7F)) & _MASK
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _contents_end(
    key: cython.ulonglong, value: cython.ulonglong, first: cython.Py_ssize_t, limit: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where a field ends whose contents begin at `first`; -1 if it breaks a rule of the wire format."""
    kind: cython.ulonglong = key & 7
    room: cython.ulonglong = limit - first
    if key >> 3 == 0:
        return -1
    if kind == _VARINT:
        return first
    if kind == _BYTES:
        return first + cython.cast(cython.Py_ssize_t, value) if value <= room else -1
    if kind == _FIXED64:
        return first + 8 if room >= 8 else -1
    return first + 4 if kind == _FIXED32 and room >= 4 else -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_data(key: cython.ulonglong) -> cython.bint:
    """Whether a field has the values of a tensor, packed: float, int32, int64, raw, double, uint64."""
    number: cython.ulonglong = key >> 3
    if key & 7 != _BYTES:
        return False
    return number == 4 or number == 5 or number == 7 or number == 9 or number == 10 or number == 11
