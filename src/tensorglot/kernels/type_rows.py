"""Canonical texts of types as rows: one for each type in a text, before the types inside it.

The walk accepts the canonical spelling alone (docs/dynd-format.md), and of that nothing
that is no valid type. Anything else ends it, and the caller finds out what is wrong there.
The types that are still open are a chain of rows, each with the row of the type around it,
so nesting takes no recursion. The names of types are the caller's: `words`.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels import type_codes as codes
    from cython.cimports.tensorglot.kernels.primitives import exceeds, longlongs_at, longlongs_of, same
else:
    from tensorglot.kernels import type_codes as codes
    from tensorglot.kernels.primitives import exceeds, longlongs_at, longlongs_of, same

COLUMNS = 9
"""Columns of a row: its code, where its text begins and ends, the row of the type around it (-1: none), the row after
the types inside it, its number, its word, its leaf, and whether no value has the type (it is symbolic).

The number is the size of a dimension, of `bytes[N]`, or the bytes of a fixed_string; 1 for other leaves. The leaf of
a fixed dimension is that of its elements, that of any other type the type itself."""

DONE = 0
REFUSED = -1
DUPLICATE = -2
"""Answers: all texts are canonical; one is not, at the position; a name is twice in the list at the position."""

_OPENED = cython.declare(cython.int, 1)  # a type begins at the position
_CLOSED = cython.declare(cython.int, 2)  # the type `last` has ended
_DONE = cython.declare(cython.int, DONE)
_REFUSED = cython.declare(cython.int, REFUSED)
_DUPLICATE = cython.declare(cython.int, DUPLICATE)

_MOST = cython.declare(cython.longlong, 0x7FFF_FFFF_FFFF_FFFF)
_WORD_NBYTES = cython.declare(cython.Py_ssize_t, 24)  # more than any word has


def scan(
    text: bytes,
    edges: Any,
    columns: Any,
    capacity: int,
    words: tuple[dict[bytes, int], Any, Any],
    digits: int,
    depth: int,
    rank: int,
) -> tuple[int, int, int, int]:
    """Reads the texts text[edges[i]:edges[i + 1]] into `columns`, COLUMNS after one another of `capacity` rows each.

    Returns the answer, the position at which the walk ended, the number of the text, and the number of rows; those of
    open types have no end, -1.
    """
    reader: Reader = Reader(words, digits, depth, rank)
    edge: cython.p_const_longlong = longlongs_of(edges)
    answer: cython.int = _DONE
    last: cython.Py_ssize_t = len(edges) - 2
    i: cython.Py_ssize_t = -1
    reader.use(columns, capacity)
    reader.begin(text, 0)
    # Invariant: the rows of the texts up to `i` are complete. Edges ascend, and none is beyond the end of `text`.
    while answer == _DONE and i < last:
        i += 1
        answer = reader.read(edge[i], edge[i + 1])
    return answer, reader.at, i, reader.count


@cython.final
@cython.cclass
class Reader:
    """A position in a text, and the rows so far.

    Invariant: at <= end, and every read of `data` is below `end`. Rows are added below `capacity` only. `top` is the
    innermost type that is still open, or -1; `last` the type that has just ended; `names` has a set for each open list
    with names, whose number is 1.
    """

    text: bytes
    data: cython.p_const_uchar
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    words: dict[Any, Any]
    kinds: cython.p_const_longlong
    unit_nbytes: cython.p_const_longlong
    names: list[Any]
    capacity: cython.Py_ssize_t
    count: cython.Py_ssize_t
    top: cython.Py_ssize_t
    last: cython.Py_ssize_t
    depth: cython.longlong
    run: cython.longlong
    most_depth: cython.longlong
    most_run: cython.longlong
    most_digits: cython.longlong
    code: cython.p_longlong
    begins: cython.p_longlong
    ends: cython.p_longlong
    parent: cython.p_longlong
    after: cython.p_longlong
    number: cython.p_longlong
    word: cython.p_longlong
    leaf: cython.p_longlong
    symbolic: cython.p_longlong
    held: list[Any]

    def __init__(
        self,
        words: tuple[dict[bytes, int], Any, Any],
        digits: cython.longlong,
        depth: cython.longlong,
        rank: cython.longlong,
    ) -> None:
        """`words` have a number, and by that a kind, and, of an encoding, the bytes of a unit. Decimals have at most
        `digits`; types nest at most `depth` deep, and at most `rank` dimensions follow each other.
        """
        self.held = [words, None]
        self.words = words[0]
        self.kinds = longlongs_of(words[1])
        self.unit_nbytes = longlongs_of(words[2])
        self.most_depth = depth
        self.most_run = rank
        self.most_digits = digits
        self.at = self.capacity = self.count = 0

    def use(self, columns: Any, capacity: cython.Py_ssize_t) -> None:
        """Writes rows to these columns."""
        column: cython.p_longlong = longlongs_of(columns)
        self.held[1] = columns
        self.capacity = capacity
        self.code = column
        self.begins = longlongs_at(column, capacity)
        self.ends = longlongs_at(column, 2 * capacity)
        self.parent = longlongs_at(column, 3 * capacity)
        self.after = longlongs_at(column, 4 * capacity)
        self.number = longlongs_at(column, 5 * capacity)
        self.word = longlongs_at(column, 6 * capacity)
        self.leaf = longlongs_at(column, 7 * capacity)
        self.symbolic = longlongs_at(column, 8 * capacity)

    def type(self, text: bytes, first: cython.Py_ssize_t) -> int:
        """Reads a text into rows from `first` on. Returns the row behind the last, or REFUSED."""
        self.begin(text, first)
        return int(self.count) if self.read(0, len(text)) == _DONE else REFUSED

    @cython.cfunc
    def begin(self, text: bytes, first: cython.Py_ssize_t) -> cython.void:
        self.text = text
        self.data = text
        self.names = []
        self.count = first

    @cython.cfunc
    def read(self, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """Reads one text, which is one type."""
        answer: cython.int = _OPENED
        self.at = begin
        self.end = end
        self.top = -1
        self.depth = self.run = 0
        while answer == _OPENED:
            answer = self.begin_type()
            while answer == _CLOSED:
                answer = self.end_type()
        return answer

    # A type begins.

    @cython.cfunc
    def begin_type(self) -> cython.int:
        """Reads a type without types inside, or what is before the first type inside."""
        sign: cython.int = self.peek()
        begin: cython.Py_ssize_t = self.at
        number: cython.longlong
        if _is_digit(sign):
            number = self.integer()
            if number < 0 or not self.accept(b" * ", 3):
                return _REFUSED
            return self.open_dim(codes.FIXED, begin, number)
        if _is_name(sign):
            self.at = _name_end(self.data, begin, self.end)
            return self.variable(begin) if _is_capital(sign) else self.named(begin)
        if sign == 0x3F:  # ?
            self.at += 1
            return self.open_around(codes.OPTION, begin)
        if sign == 0x28 or sign == 0x7B:  # ( {
            self.at += 1
            return self.open_list(codes.TUPLE if sign == 0x28 else codes.STRUCT, begin)
        if self.accept(b"... * ", 6):
            return self.open_dim(codes.SYMBOLIC_DIM, begin, 0)
        return _REFUSED

    @cython.cfunc
    def variable(self, begin: cython.Py_ssize_t) -> cython.int:
        """After a name that begins with a capital letter."""
        if self.accept(b" * ", 3) or self.accept(b"... * ", 6):
            return self.open_dim(codes.SYMBOLIC_DIM, begin, 0)
        return self.add_leaf(codes.SYMBOL, begin, 0, 1)

    @cython.cfunc
    def named(self, begin: cython.Py_ssize_t) -> cython.int:
        """After any other name."""
        stop: cython.Py_ssize_t = self.at
        bracket: cython.bint = self.accept_sign(0x5B)  # [
        word: cython.longlong = self.find(begin, self.at)
        kind: cython.longlong
        if word < 0:
            if bracket or stop - begin != 3 or not same(self.data, begin, b"var", 0, 3) or not self.accept(b" * ", 3):
                return _REFUSED
            return self.open_dim(codes.VAR, begin, 0)
        kind = self.kinds[word]
        if kind <= codes.CHAR:
            return self.add_leaf(kind, begin, word, 1)
        if kind <= codes.STORAGE:
            return self.open_around(kind, begin)
        return self.bracketed(kind, begin, word) if bracket else _REFUSED

    @cython.cfunc
    def bracketed(self, kind: cython.longlong, begin: cython.Py_ssize_t, word: cython.longlong) -> cython.int:
        """After the bracket of a type that has no types in it."""
        number: cython.longlong = 1
        valid: cython.bint
        if (kind == codes.COMPLEX or kind == codes.BYTES) and _is_capital(self.peek()):
            self.at = _name_end(self.data, self.at, self.end)
            return self.add_leaf(codes.SYMBOL, begin, word, 1) if self.accept_sign(0x5D) else _REFUSED  # ]
        if kind == codes.BYTES:
            number = self.integer()
            valid = number >= 0 and self.accept_sign(0x5D)
        elif kind == codes.FIXED_STRING:
            number = self.units()
            valid = number >= 0
        elif kind == codes.DATETIME:
            valid = self.unit_and_zone()
        elif kind == codes.DECIMAL:
            valid = self.digits_and_scale()
        else:  # all that may be in the brackets is in the words
            word = self.find_to_bracket(begin)
            return self.add_leaf(self.kinds[word], begin, word, 1) if word >= 0 else _REFUSED
        return self.add_leaf(codes.FLAT, begin, word, number) if valid else _REFUSED

    @cython.cfunc
    def units(self) -> cython.longlong:
        """The bytes of a fixed_string, whose size and encoding follow; -1 if they are invalid."""
        count: cython.longlong = self.integer()
        word: cython.longlong = self.find_to_bracket(self.at)
        if count < 1 or word < 0 or self.kinds[word] != codes.ENCODING or exceeds(count, self.unit_nbytes[word], _MOST):
            return -1
        return count * self.unit_nbytes[word]

    @cython.cfunc
    def unit_and_zone(self) -> cython.bint:
        begin: cython.Py_ssize_t = self.at
        word: cython.longlong = -1
        if self.quoted():
            word = self.find(begin, self.at)
        if word < 0:  # no other words are in quotes
            return False
        if self.accept(b", tz=", 5):
            begin = self.at
            if not self.quoted() or self.at - begin == 2:  # of no characters
                return False
        return self.accept_sign(0x5D)

    @cython.cfunc
    def digits_and_scale(self) -> cython.bint:
        digits: cython.longlong = self.integer()
        negative: cython.bint
        scale: cython.longlong
        if digits < 1 or digits > self.most_digits or not self.accept(b", ", 2):
            return False
        negative = self.accept_sign(0x2D)  # -
        scale = self.integer()
        if scale < 0 or scale > self.most_digits or (negative and scale == 0):
            return False
        return self.accept_sign(0x5D)

    @cython.cfunc
    def add_leaf(
        self, code: cython.longlong, begin: cython.Py_ssize_t, word: cython.longlong, number: cython.longlong
    ) -> cython.int:
        """Adds a type that ends at the position."""
        row: cython.Py_ssize_t = self.add(code, begin)
        if row < 0:
            return _REFUSED
        self.word[row] = word
        self.number[row] = number
        self.symbolic[row] = code == codes.SYMBOL
        self.last = row
        return _CLOSED

    @cython.cfunc
    def open_dim(self, code: cython.longlong, begin: cython.Py_ssize_t, size: cython.longlong) -> cython.int:
        row: cython.Py_ssize_t = -1
        if self.run < self.most_run:
            row = self.add(code, begin)
        if row < 0:
            self.at = begin
            return _REFUSED
        self.run += 1
        self.number[row] = size
        self.symbolic[row] = code == codes.SYMBOLIC_DIM
        self.top = row
        return _OPENED

    @cython.cfunc
    def open_around(self, code: cython.longlong, begin: cython.Py_ssize_t) -> cython.int:
        """Opens a type that nests, with one type inside it, or with the pair of a map."""
        row: cython.Py_ssize_t = -1
        if self.nest():
            row = self.add(code, begin)
        if row >= 0 and code == codes.MAP:
            self.top = row
            row = self.add(codes.PAIR, self.at)
        if row < 0:
            self.at = begin
            return _REFUSED
        self.top = row
        return _OPENED

    @cython.cfunc
    def open_list(self, code: cython.longlong, begin: cython.Py_ssize_t) -> cython.int:
        row: cython.Py_ssize_t = self.add(code, begin)
        if row < 0:
            return _REFUSED
        self.top = row
        if self.accept_sign(_closing(code)) or self.dots(row, code):
            return self.end_list(row)
        return self.begin_item(row) if self.nest() else _REFUSED

    @cython.cfunc
    def begin_item(self, row: cython.Py_ssize_t) -> cython.int:
        """Reads the name of an item, if it has one."""
        begin: cython.Py_ssize_t = self.at
        name: bytes
        names: Any
        if self.peek() == 0x27:  # '
            bare: cython.bint = self.quoted() and _name_end(self.data, begin + 1, self.at) == self.at - 1
            if self.at == begin or (bare and self.at - begin > 2):
                return _REFUSED
        elif _is_name(self.peek()):
            self.at = _name_end(self.data, begin, self.end)
        if self.at > begin and self.accept(b": ", 2):
            name = self.text[begin : self.at - 2]
            if self.number[row] == 0:
                self.number[row] = 1
                self.names.append(set())
            names = self.names[len(self.names) - 1]
            if name in names:
                self.at = self.begins[row]
                return _DUPLICATE
            names.add(name)
            return _OPENED
        # Items of a tuple have no names. If it has the parameters of a function, those after a name have one, too.
        if self.code[row] == codes.STRUCT or self.number[row] == 1 or (self.at > begin and self.data[begin] == 0x27):
            return _REFUSED
        self.at = begin
        return _OPENED

    @cython.cfunc
    def dots(self, row: cython.Py_ssize_t, code: cython.longlong) -> cython.bint:
        """Reads the dots at the end of an open list, and its bracket. Other dots are a dimension."""
        begin: cython.Py_ssize_t = self.at
        if self.accept(b"...", 3) and self.accept_sign(_closing(code)):
            self.symbolic[row] = 1
            return True
        self.at = begin
        return False

    # A type has ended.

    @cython.cfunc
    def end_type(self) -> cython.int:
        """Reads what follows the type `last`, and ends the type around it if nothing more is inside that."""
        row: cython.Py_ssize_t = self.last
        around: cython.Py_ssize_t = self.parent[row]
        code: cython.longlong
        self.ends[row] = self.at
        self.after[row] = self.count
        self.run = 0
        self.top = self.last = around
        if around < 0:
            return _DONE if self.at == self.end else _REFUSED
        code = self.code[around]
        if self.symbolic[row] != 0 and code != codes.ARRAY and code != codes.MERKLE:  # their values bring a type
            self.symbolic[around] = 1
        if code == codes.TUPLE or code == codes.STRUCT:
            return self.after_item(around, code)
        if code == codes.PAIR and row == around + 1:  # the key
            return _OPENED if self.accept(b", ", 2) else _REFUSED
        if code == codes.FIXED:
            self.leaf[around] = self.leaf[row]
        if code <= codes.SYMBOLIC_DIM or code == codes.PAIR:
            return _CLOSED
        self.depth -= 1
        if code == codes.OPTION:
            return _REFUSED if self.is_option(row) else _CLOSED
        if code == codes.STORAGE:
            return _CLOSED if self.axes(row) else _REFUSED
        return _CLOSED if code == codes.FUNCTION or self.accept_sign(0x5D) else _REFUSED

    @cython.cfunc
    def after_item(self, row: cython.Py_ssize_t, code: cython.longlong) -> cython.int:
        if self.accept(b", ", 2):
            if not self.dots(row, code):
                return self.begin_item(row)
        elif not self.accept_sign(_closing(code)):
            return _REFUSED
        self.depth -= 1
        return self.end_list(row)

    @cython.cfunc
    def end_list(self, row: cython.Py_ssize_t) -> cython.int:
        """After the bracket of a list. The parameters of a function are followed by its result."""
        if self.number[row] == 1:
            self.names.pop()
        if self.code[row] == codes.TUPLE:
            if self.accept(b" -> ", 4):
                self.code[row] = codes.FUNCTION
                self.symbolic[row] = 1
                return _OPENED if self.nest() else _REFUSED
            if self.number[row] == 1:
                return _REFUSED
        self.last = row
        return _CLOSED

    @cython.cfunc
    @cython.exceptval(check=False)
    def is_option(self, row: cython.Py_ssize_t) -> cython.bint:
        """Whether a type is an option, or a pointer to one."""
        while self.code[row] == codes.POINTER:
            row += 1
        return self.code[row] == codes.OPTION

    @cython.cfunc
    def axes(self, element: cython.Py_ssize_t) -> cython.bint:
        """Reads the rest of a storage: the order of leading fixed dimensions, without those that stay at the end."""
        dims: cython.longlong = self.leaf[element] - element
        valid: cython.bint = self.accept(b", axis=[", 8)
        most: cython.longlong = -1
        count: cython.longlong = 0
        axis: cython.longlong = -1
        dim: cython.Py_ssize_t
        # Invariant: the dimensions whose axes were read are `count`, `most` is the last of them. Each is marked by a
        # negative size, so none is counted twice.
        while valid:
            axis = self.integer()
            dim = element + axis
            valid = 0 <= axis < dims and self.number[dim] >= 0
            if valid:
                self.number[dim] = -1 - self.number[dim]
                most = max(most, axis)
                count += 1
                if not self.accept(b", ", 2):
                    break
        for dim in range(element, element + dims):
            if self.number[dim] < 0:
                self.number[dim] = -1 - self.number[dim]
        return valid and most == count - 1 and axis != most and self.accept(b"]]", 2)

    # Tokens.

    @cython.cfunc
    @cython.exceptval(check=False)
    def peek(self) -> cython.int:
        """The next character, or -1."""
        return self.data[self.at] if self.at < self.end else -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def accept_sign(self, sign: cython.int) -> cython.bint:
        """Moves past the next character if it is this one."""
        if self.at == self.end or self.data[self.at] != sign:
            return False
        self.at += 1
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def accept(self, signs: cython.p_const_uchar, count: cython.Py_ssize_t) -> cython.bint:
        """Moves past the next characters if they are these."""
        if self.end - self.at < count or not same(self.data, self.at, signs, 0, count):
            return False
        self.at += count
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def integer(self) -> cython.longlong:
        """Reads a number of 0 to 2**63 - 1 without leading zeros; -1, and moves nowhere, if there is none."""
        at: cython.Py_ssize_t = self.at
        value: cython.longlong = 0
        digit: cython.longlong
        while at < self.end and _is_digit(self.data[at]):
            digit = self.data[at] - 0x30
            if (value == 0 and at > self.at) or value > (_MOST - digit) // 10:
                return -1
            value = 10 * value + digit
            at += 1
        if at == self.at:
            return -1
        self.at = at
        return value

    @cython.cfunc
    def quoted(self) -> cython.bint:
        """Moves past a text in quotes, as `model.types.base.quote_text` writes it; moves nowhere if there is none."""
        at: cython.Py_ssize_t = self.at + 1
        sign: cython.int
        if self.peek() != 0x27:
            return False
        while at < self.end:
            sign = self.data[at]
            if sign == 0x27:
                self.at = at + 1
                return True
            if sign < 0x20 or sign > 0x7E:
                return False
            at = _escape_end(self.data, at, self.end) if sign == 0x5C else at + 1
            if at < 0:
                return False
        return False

    @cython.cfunc
    def find(self, begin: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> cython.longlong:
        """The number of a word, or -1."""
        found: Any = self.words.get(self.text[begin:stop]) if stop - begin <= _WORD_NBYTES else None
        return -1 if found is None else found

    @cython.cfunc
    def find_to_bracket(self, begin: cython.Py_ssize_t) -> cython.longlong:
        """The number of the word from `begin` to the next closing bracket, past which it moves; or -1."""
        stop: cython.Py_ssize_t = begin
        while stop < self.end and stop - begin < _WORD_NBYTES:
            stop += 1
            if self.data[stop - 1] == 0x5D:
                self.at = stop
                return self.find(begin, stop)
        return -1

    # Rows.

    @cython.cfunc
    @cython.exceptval(check=False)
    def add(self, code: cython.longlong, begin: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Adds a type inside the innermost open one. Returns its row, or -1 if there is no room for it."""
        row: cython.Py_ssize_t = self.count
        if row >= self.capacity:
            return -1
        self.count += 1
        self.code[row] = code
        self.begins[row] = begin
        self.ends[row] = -1
        self.parent[row] = self.top
        self.number[row] = self.word[row] = self.symbolic[row] = 0
        self.leaf[row] = row
        return row

    @cython.cfunc
    @cython.exceptval(check=False)
    def nest(self) -> cython.bint:
        """Whether another level of nesting is allowed."""
        self.run = 0
        self.depth += 1
        return self.depth <= self.most_depth


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _closing(code: cython.longlong) -> cython.int:
    return 0x29 if code == codes.TUPLE else 0x7D  # ) }


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_digit(sign: cython.int) -> cython.bint:
    return 0x30 <= sign <= 0x39


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_capital(sign: cython.int) -> cython.bint:
    return 0x41 <= sign <= 0x5A


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_name(sign: cython.int) -> cython.bint:
    """Whether a name can begin with this character."""
    return 0x61 <= sign <= 0x7A or _is_capital(sign) or sign == 0x5F


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _name_end(data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after a name; `at` itself if none begins there."""
    if at < end and _is_digit(data[at]):
        return at
    while at < end and (_is_name(data[at]) or _is_digit(data[at])):
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _escape_end(data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after the escape at `at`, or -1 if the character is written in another way or does not exist."""
    sign: cython.int = data[at + 1] if at + 1 < end else -1
    code: cython.longlong = 0
    digit: cython.int
    i: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    if sign == 0x27 or sign == 0x5C or sign == 0x62 or sign == 0x66:  # ' \ b f
        return at + 2
    if sign == 0x6E or sign == 0x72 or sign == 0x74:  # n r t
        return at + 2
    stop = at + (6 if sign == 0x75 else 10)
    if (sign != 0x75 and sign != 0x55) or stop > end:  # u U
        return -1
    for i in range(at + 2, stop):
        digit = data[i]
        if _is_digit(digit):
            code = code << 4 | (digit - 0x30)
        elif 0x61 <= digit <= 0x66:  # a to f
            code = code << 4 | (digit - 0x57)
        else:
            return -1
    if sign == 0x55:
        return stop if 0x10000 <= code <= 0x10FFFF else -1
    if 0x20 <= code <= 0x7E or 0xD800 <= code <= 0xDFFF:
        return -1
    if code == 8 or code == 9 or code == 10 or code == 12 or code == 13:
        return -1
    return stop
