"""The sizes of values of types, which are rows of `type_rows`. Knows no texts; the sizes of words are the caller's."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels import type_codes as codes
    from cython.cimports.tensorglot.kernels.primitives import exceeds, longlongs_at, longlongs_of
else:
    from tensorglot.kernels import type_codes as codes
    from tensorglot.kernels.primitives import exceeds, longlongs_at, longlongs_of

COLUMNS = 3
VARIABLE = -1
"""In place of the size of values that differ in it."""
OBJECTS_PER_BYTE = 64
"""Values without bytes that each byte of data allows, before they count against Limits.void_count."""
_VARIABLE = cython.declare(cython.longlong, VARIABLE)
_PER_BYTE = cython.declare(cython.longlong, OBJECTS_PER_BYTE)
_HUGE = cython.declare(cython.longlong, 1 << 62)  # numbers saturate here
_CID_NBYTES = cython.declare(cython.longlong, 36)
_LINK_NBYTES = cython.declare(cython.longlong, 39)  # a length, a type of two characters such as `()`, a CID


@cython.final
@cython.cclass
class Sizes:
    """The columns of rows, and of their sizes."""

    code: cython.p_const_longlong
    parent: cython.p_const_longlong
    number: cython.p_const_longlong
    word: cython.p_const_longlong
    symbolic: cython.p_const_longlong
    nbytes: cython.p_longlong
    least: cython.p_longlong
    objects: cython.p_longlong
    word_nbytes: cython.p_const_longlong
    sentinels: cython.p_const_longlong
    held: list[Any]

    def __init__(self, words: tuple[Any, Any]) -> None:
        """A word has a size, to be taken as often as the number of its row says, and whether one of its values is
        missing in an option."""
        self.held = [words, None]
        self.word_nbytes = longlongs_of(words[0])
        self.sentinels = longlongs_of(words[1])

    def use(self, columns: Any, sizes: Any, capacity: cython.Py_ssize_t) -> None:
        """Reads rows from `columns`, those of `type_rows`, and fills COLUMNS columns after one another.

        They are the size of all values of a type, or VARIABLE; the size of the smallest; and the charge, which is the
        Python objects in a value, without those in lists and options, in excess of OBJECTS_PER_BYTE.
        """
        column: cython.p_const_longlong = longlongs_of(columns)
        size: cython.p_longlong = longlongs_of(sizes)
        self.held[1] = (columns, sizes)
        self.code = column
        self.parent = longlongs_at(column, 3 * capacity)
        self.number = longlongs_at(column, 5 * capacity)
        self.word = longlongs_at(column, 6 * capacity)
        self.symbolic = longlongs_at(column, 8 * capacity)
        self.nbytes = size
        self.least = longlongs_at(size, capacity)
        self.objects = longlongs_at(size, 2 * capacity)

    def measure(self, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> None:
        """Measures the types in some rows."""
        row: cython.Py_ssize_t
        for row in range(begin, end):
            self.put(row, 0, 0, 0)
        # Invariant: the rows behind `row`, among them those of the types inside it, are measured and in the sums of
        # the types around them. `of_row` completes or replaces these.
        for row in range(end - 1, begin - 1, -1):
            self.of_row(row)
            if self.parent[row] >= 0:
                self.add(self.parent[row], row)
        for row in range(begin, end):
            self.charge(row)

    @cython.cfunc
    @cython.exceptval(check=False)
    def put(
        self, row: cython.Py_ssize_t, nbytes: cython.longlong, least: cython.longlong, objects: cython.longlong
    ) -> cython.void:
        self.nbytes[row] = nbytes
        self.least[row] = least
        self.objects[row] = objects

    @cython.cfunc
    @cython.exceptval(check=False)
    def of_row(self, row: cython.Py_ssize_t) -> cython.void:
        """Measures a type; the first type inside it, if any, is the next row."""
        code: cython.longlong = self.code[row]
        number: cython.longlong = self.number[row]
        inner: cython.Py_ssize_t = row + 1
        nbytes: cython.longlong
        if code <= codes.FLAT:
            nbytes = _product(number, self.word_nbytes[self.word[row]])
            self.put(row, nbytes, nbytes, 1)
        elif code == codes.FIXED:
            nbytes = self.nbytes[inner]
            nbytes = _product(number, nbytes) if nbytes >= 0 else nbytes
            self.put(row, nbytes, _product(number, self.least[inner]), _more(_product(number, self.objects[inner]), 1))
        elif code == codes.OPTION:
            self.put(row, _VARIABLE, 1, 1)
            while self.code[inner] == codes.POINTER:
                inner += 1
            if self.code[inner] <= codes.FLAT and self.sentinels[self.word[inner]] != 0:
                self.put(row, self.nbytes[inner], self.nbytes[inner], 1)
        elif code == codes.TUPLE or code == codes.STRUCT or code == codes.PAIR:
            self.objects[row] = _more(self.objects[row], 1)  # all else is the sum of its items already
        elif code == codes.MERKLE and self.symbolic[inner] == 0:
            self.put(row, _CID_NBYTES, _CID_NBYTES, 1)
        elif code != codes.POINTER and code != codes.STORAGE:  # these have the sizes of what they are around
            self.put(row, _VARIABLE, _LINK_NBYTES if code == codes.MERKLE else 2 if code == codes.ARRAY else 1, 1)

    @cython.cfunc
    @cython.exceptval(check=False)
    def add(self, row: cython.Py_ssize_t, item: cython.Py_ssize_t) -> cython.void:
        """Adds the sizes of a type to those of the type around it."""
        variable: cython.bint = self.nbytes[row] < 0 or self.nbytes[item] < 0
        self.nbytes[row] = _VARIABLE if variable else _more(self.nbytes[row], self.nbytes[item])
        self.least[row] = _more(self.least[row], self.least[item])
        self.objects[row] = _more(self.objects[row], self.objects[item])

    @cython.cfunc
    @cython.exceptval(check=False)
    def charge(self, row: cython.Py_ssize_t) -> cython.void:
        """Replaces the objects by what they are charged with."""
        free: cython.bint = self.least[row] > self.objects[row] // _PER_BYTE
        self.objects[row] = 0 if free else self.objects[row] - _PER_BYTE * self.least[row]


def measure(columns: Any, rows: int, words: tuple[Any, Any], sizes: Any) -> None:
    """Measures all types in columns."""
    found: Sizes = Sizes(words)
    found.use(columns, sizes, rows)
    found.measure(0, rows)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _product(count: cython.longlong, size: cython.longlong) -> cython.longlong:
    return _HUGE if exceeds(count, size, _HUGE) else count * size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _more(one: cython.longlong, other: cython.longlong) -> cython.longlong:
    """The sum of two numbers that are at most _HUGE, without overflow in C."""
    return _HUGE if one > _HUGE - other else one + other
