"""Interprets pickles of tensors: the opcodes that a pickler writes for them; all others are refused.

Nothing is imported, and nothing called but the functions that the caller allows. A dict is a
list of its pairs, of a type of its own, so no value of a pickle is hashed. A pickle can
create a container with one byte; a real pickler spends two, so their number is bounded by
the length. So is the work of calls, whose arguments may be large and referred to many times.
"""

from __future__ import annotations

import struct
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import little
else:
    from tensorglot.kernels.primitives import little

# Answers.
STOP = 1  # the pickle ends; `detail` is its value
MORE = 2  # `detail` bytes are needed at the position
LINE = 3  # a line is needed at the position
# Faults. The caller has the message of each.
OPCODE = 4
UNDERFLOW = 5
LEFT = 6
NO_MARK = 7
NO_CONTAINER = 8
ODD = 9
NOTHING = 10
MEMO_ORDER = 11
MEMO_ENTRY = 12
LENGTH = 13
LONG = 14
UTF8 = 15
FRAMED = 16
NAMES = 17
GLOBAL = 18
CALL = 19
CONTAINERS = 20
WORK = 21

BINPERSID = 0x51
BUILD = 0x62
NEWOBJ = 0x81
"""Opcodes that the caller implements: see `Machine`."""
_MARK = cython.declare(cython.int, 0x28)
_EMPTY_TUPLE = cython.declare(cython.int, 0x29)
_STOP = cython.declare(cython.int, 0x2E)
_BINBYTES = cython.declare(cython.int, 0x42)
_SHORT_BINBYTES = cython.declare(cython.int, 0x43)
_BINFLOAT = cython.declare(cython.int, 0x47)
_BININT = cython.declare(cython.int, 0x4A)
_BININT1 = cython.declare(cython.int, 0x4B)
_BININT2 = cython.declare(cython.int, 0x4D)
_NONE = cython.declare(cython.int, 0x4E)
_REDUCE = cython.declare(cython.int, 0x52)
_BINSTRING = cython.declare(cython.int, 0x54)
_SHORT_BINSTRING = cython.declare(cython.int, 0x55)
_BINUNICODE = cython.declare(cython.int, 0x58)
_EMPTY_LIST = cython.declare(cython.int, 0x5D)
_APPEND = cython.declare(cython.int, 0x61)
_GLOBAL = cython.declare(cython.int, 0x63)
_DICT = cython.declare(cython.int, 0x64)
_APPENDS = cython.declare(cython.int, 0x65)
_BINGET = cython.declare(cython.int, 0x68)
_LONG_BINGET = cython.declare(cython.int, 0x6A)
_LIST = cython.declare(cython.int, 0x6C)
_BINPUT = cython.declare(cython.int, 0x71)
_LONG_BINPUT = cython.declare(cython.int, 0x72)
_SETITEM = cython.declare(cython.int, 0x73)
_TUPLE = cython.declare(cython.int, 0x74)
_SETITEMS = cython.declare(cython.int, 0x75)
_EMPTY_DICT = cython.declare(cython.int, 0x7D)
_TUPLE1 = cython.declare(cython.int, 0x85)
_TUPLE3 = cython.declare(cython.int, 0x87)
_NEWTRUE = cython.declare(cython.int, 0x88)
_NEWFALSE = cython.declare(cython.int, 0x89)
_LONG1 = cython.declare(cython.int, 0x8A)
_LONG4 = cython.declare(cython.int, 0x8B)
_SHORT_BINUNICODE = cython.declare(cython.int, 0x8C)
_BINUNICODE8 = cython.declare(cython.int, 0x8D)
_BINBYTES8 = cython.declare(cython.int, 0x8E)
_STACK_GLOBAL = cython.declare(cython.int, 0x93)
_MEMOIZE = cython.declare(cython.int, 0x94)
_FRAME = cython.declare(cython.int, 0x95)

_LONG_NBYTES = cython.declare(cython.longlong, 16)
"""The longest integer."""
NAME_NBYTES = 256
"""The longest line of a global."""
_CALL_WORK = 24
"""Work of a call: a pickler writes at least 7 bytes for one, of which each allows 4."""
_MOST = cython.declare(cython.longlong, (1 << 63) - 1)
_DOUBLE = struct.Struct(">d")


@cython.final
@cython.cclass
class Machine:
    """The state of one pickle's interpreter: a stack, its marks and a memo.

    Invariant: floor <= len(stack), and no rule is broken before `at`, where the next step
    begins. A step changes nothing before all of its bytes are there; `after` is as far as it
    has read. A method returns 0 or a fault, of which `detail` says more.
    """

    names: dict[str, Any]
    functions: dict[int, Any]
    works: dict[Any, int]
    pairs: Any
    storage: Any
    view: Any
    data: bytes
    size: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    at: cython.Py_ssize_t
    after: cython.Py_ssize_t
    stack: list[Any]
    marks: list[int]
    memo: list[Any]
    floor: cython.Py_ssize_t
    """Stack position of the last mark."""
    containers: cython.Py_ssize_t
    work: cython.Py_ssize_t
    detail: Any

    def __init__(
        self,
        begin: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        names: dict[str, Any],
        functions: dict[int, Any],
        types: tuple[Any, Any, Any],
        works: dict[Any, int],
    ) -> None:
        """The pickle begins at `begin`, and its first step at `at`.

        `names` has the values of globals; those that can be called are functions of a tuple.
        `functions` are those of BINPERSID (of a persistent id), BUILD (of an object and its
        state) and NEWOBJ (of a class and its arguments), as far as they are allowed. `types`
        are those of dicts, storages and views: a dict is made without arguments, also by a call
        of the global OrderedDict, and a view by a call of `_rebuild_tensor_v2`. `works` has the
        work of functions that need another than _CALL_WORK, and of such opcodes.
        """
        self.names, self.functions, self.works = names, functions, works
        self.pairs, self.storage, self.view = types
        self.begin, self.at, self.after = begin, at, at
        self.stack, self.marks, self.memo = [], [], []
        self.floor = self.containers = self.work = 0
        self.detail = None

    def run(self, data: bytes, end: cython.Py_ssize_t) -> tuple[int, int, Any]:
        """Takes steps as far as `data` has their bytes; returns (answer, position, detail).

        `end` is where the file ends, which `data` may not reach yet. Errors of functions leave
        it, and `position` is where. After MORE and LINE, the next run takes the step again.
        """
        raw: cython.p_const_uchar = data
        code: cython.int
        width: cython.Py_ssize_t
        number: cython.ulonglong
        fault: cython.int = 0
        self.data, self.size = data, len(data)
        while fault == 0:
            if self.at == self.size:
                return MORE, self.at, 1
            code = raw[self.at]
            self.after = self.at + 1
            width = _number_nbytes(code)
            if width > self.size - self.after:
                return MORE, self.after, width
            number = little(raw, self.after, width)
            self.after += width
            if _has_contents(code):
                fault = self.contents(code, number, end)
            elif width > 0:
                fault = self.numbered(code, number, end)
            elif _is_container(code):
                fault = self.collect(code)
            else:
                fault = self.plain(code)
            if fault == 0:
                self.at = self.after
        return fault, self.after, self.detail

    def position(self) -> Any:
        return self.after

    @cython.cfunc
    def fail(self, fault: cython.int, detail: Any) -> cython.int:
        self.detail = detail
        return fault

    @cython.cfunc
    def plain(self, code: cython.int) -> cython.int:
        """A step of one byte, or of lines, that makes no container."""
        if code in (_NONE, _NEWTRUE, _NEWFALSE, _EMPTY_TUPLE):
            self.stack.append(None if code == _NONE else () if code == _EMPTY_TUPLE else code == _NEWTRUE)
            return 0
        if code == _MARK:
            self.marks.append(self.floor)
            self.floor = len(self.stack)
            return 0
        if code == _MEMOIZE:
            return self.put(len(self.memo))
        if code in (_APPEND, _SETITEM, _APPENDS, _SETITEMS):
            return self.extend(code)
        if code == _REDUCE:
            return self.call()
        if code == _GLOBAL:
            return self.lines()
        if code == _STACK_GLOBAL:
            return self.named()
        if code == _STOP:
            return self.stop()
        return self.implemented(code)

    @cython.cfunc
    def numbered(self, code: cython.int, number: cython.ulonglong, end: cython.Py_ssize_t) -> cython.int:
        """A step that has a number and nothing else."""
        if code in (_BINPUT, _LONG_BINPUT):
            return self.put(cython.cast(cython.Py_ssize_t, number))
        if code in (_BINGET, _LONG_BINGET):
            if number >= cython.cast(cython.ulonglong, len(self.memo)):
                return self.fail(MEMO_ENTRY, number)
            self.stack.append(self.memo[number])
        elif code in (_BININT1, _BININT2):
            self.stack.append(number)
        elif code == _BININT:
            self.stack.append(_signed(number, 4))
        elif code == _BINFLOAT:
            self.stack.append(_DOUBLE.unpack(self.data[self.after - 8 : self.after])[0])
        elif number > cython.cast(cython.ulonglong, end - self.after):  # a frame
            return FRAMED
        return 0

    @cython.cfunc
    def contents(self, code: cython.int, number: cython.ulonglong, end: cython.Py_ssize_t) -> cython.int:
        """A step that has a size, `number`, and as many bytes."""
        data: bytes = self.data
        begin: cython.Py_ssize_t = self.after
        nbytes: cython.Py_ssize_t
        if code in (_LONG1, _LONG4):
            if number > cython.cast(cython.ulonglong, _LONG_NBYTES):
                return self.fail(LONG, number if code == _LONG1 else _signed(number, 4))
        elif number > cython.cast(cython.ulonglong, end - begin):
            return self.fail(LENGTH, number)
        nbytes = cython.cast(cython.Py_ssize_t, number)
        if nbytes > self.size - begin:
            return self.fail(MORE, nbytes)
        self.after += nbytes
        if code in (_LONG1, _LONG4):
            if nbytes < 8:
                self.stack.append(_signed(little(data, begin, nbytes), nbytes))
            else:
                self.stack.append(int.from_bytes(data[begin : self.after], "little", signed=True))
        elif code in (_BINBYTES, _SHORT_BINBYTES, _BINBYTES8):
            self.stack.append(data[begin : self.after])
        else:
            try:
                self.stack.append(data[begin : self.after].decode("utf-8"))
            except UnicodeDecodeError:
                if code not in (_BINSTRING, _SHORT_BINSTRING):  # a string of Python 2 may be bytes
                    return UTF8
                self.stack.append(data[begin : self.after])
        return 0

    @cython.cfunc
    def put(self, index: cython.Py_ssize_t) -> cython.int:
        """Stores the top of the stack in the memo, whose entries are numbered in the order of their first use."""
        if len(self.stack) <= self.floor:
            return NOTHING
        if index > len(self.memo):
            return MEMO_ORDER
        if index == len(self.memo):
            self.memo.append(self.stack[len(self.stack) - 1])
        else:
            self.memo[index] = self.stack[len(self.stack) - 1]
        return 0

    @cython.cfunc
    def push_container(self, value: Any) -> cython.int:
        self.containers += 1
        if 2 * self.containers > self.after - self.begin + 64:
            return CONTAINERS
        self.stack.append(value)
        return 0

    @cython.cfunc
    def collect(self, code: cython.int) -> cython.int:
        """Makes a container, of the values above the last mark, of the last one to three, or of none."""
        size: cython.Py_ssize_t = len(self.stack)
        begin: cython.Py_ssize_t = size
        items: list[Any]
        if code >= _TUPLE1:
            begin -= code - _TUPLE1 + 1
            if begin < self.floor:
                return UNDERFLOW
        elif code not in (_EMPTY_LIST, _EMPTY_DICT):
            if not self.marks:
                return NO_MARK
            begin = self.floor
            self.floor = self.marks.pop()
        if begin == size:
            return self.push_container(
                [] if code in (_EMPTY_LIST, _LIST) else self.pairs() if code in (_EMPTY_DICT, _DICT) else ()
            )
        items = self.stack[begin:]
        del self.stack[begin:]
        if code == _LIST:
            return self.push_container(items)
        if code != _DICT:
            return self.push_container(tuple(items))
        return self.push_container(self.pairs(items)) if len(items) % 2 == 0 else ODD

    @cython.cfunc
    def extend(self, code: cython.int) -> cython.int:
        """Moves the last value, the last pair, or what is above the last mark, to the container below."""
        begin: cython.Py_ssize_t = self.floor
        if code in (_APPEND, _SETITEM):
            begin = len(self.stack) - (1 if code == _APPEND else 2)
            if begin < self.floor:
                return UNDERFLOW
        elif not self.marks:
            return NO_MARK
        else:
            self.floor = self.marks.pop()
        if code == _SETITEMS and (len(self.stack) - begin) % 2 != 0:
            return ODD
        if begin <= self.floor:
            return NO_CONTAINER
        target: Any = self.stack[begin - 1]
        if type(target) is not (list if code in (_APPEND, _APPENDS) else self.pairs):
            return NO_CONTAINER
        target.extend(self.stack[begin:])
        del self.stack[begin:]
        return 0

    @cython.cfunc
    def lines(self) -> cython.int:
        """A global, whose module and name are two lines."""
        first: cython.Py_ssize_t = self.after
        line: cython.Py_ssize_t
        for _ in range(2):
            line = self.data.find(b"\n", self.after, self.after + NAME_NBYTES + 1)
            if line < 0:
                return LINE
            self.after = line + 1
        return self.push_global(self.data[first : self.after - 1].decode("utf-8", "replace").replace("\n", "."))

    @cython.cfunc
    def named(self) -> cython.int:
        """A global, whose module and name are on the stack."""
        size: cython.Py_ssize_t = len(self.stack)
        if size - 2 < self.floor:
            return UNDERFLOW
        module: Any = self.stack[size - 2]
        name: Any = self.stack[size - 1]
        if type(module) is not str or type(name) is not str:
            return NAMES
        del self.stack[size - 2 :]
        return self.push_global(f"{module}.{name}")

    @cython.cfunc
    def push_global(self, name: str) -> cython.int:
        value: Any = self.names.get(name)
        if value is None:
            return self.fail(GLOBAL, name)
        self.stack.append(value)
        return 0

    @cython.cfunc
    def charge(self, work: cython.Py_ssize_t) -> cython.int:
        """Counts values that are looked at again: a memo lets two bytes refer to a container of any size."""
        self.work += work
        return 0 if self.work <= 4 * (self.after - self.begin) + 4096 else WORK

    @cython.cfunc
    def call(self) -> cython.int:
        """Replaces a function and the tuple above it by the result of the call."""
        size: cython.Py_ssize_t = len(self.stack)
        work: cython.Py_ssize_t
        if size - 2 < self.floor:
            return UNDERFLOW
        function: Any = self.stack[size - 2]
        arguments: Any = self.stack[size - 1]
        if type(arguments) is not tuple or not callable(function):
            return CALL
        if not arguments and function is self.names.get("collections.OrderedDict"):  # a pickler writes 4 bytes for it
            self.stack[size - 2] = self.pairs()
        else:
            work = self.works.get(function, _CALL_WORK) + len(arguments)
            if arguments and callable(arguments[0]):
                work += self.works.get(arguments[0], 0)  # a function that it calls
            for value in arguments:
                kind: Any = type(value)
                if kind is list or kind is tuple or kind is str or kind is self.pairs:
                    work += len(value)
            if self.charge(work) != 0:
                return WORK
            if function is self.names.get("torch._utils._rebuild_tensor_v2") and _is_view(arguments, self.storage):
                held: Any = arguments[0]
                view: Any = held, held[1], arguments[1], arguments[2], arguments[3]
                self.stack[size - 2] = tuple.__new__(self.view, view)
            else:
                self.stack[size - 2] = function(arguments)
        self.stack.pop()
        return 0

    @cython.cfunc
    def implemented(self, code: cython.int) -> cython.int:
        """An opcode that the caller implements, or one that is not allowed."""
        function: Any = self.functions.get(code)
        size: cython.Py_ssize_t = len(self.stack)
        count: cython.Py_ssize_t = 1 if code == BINPERSID else 2
        if function is None:
            self.after = self.at
            return self.fail(OPCODE, code)
        if size - count < self.floor:
            return UNDERFLOW
        if self.charge(self.works.get(code, 0)) != 0:
            return WORK
        value: Any = function(*self.stack[size - count :])
        del self.stack[size - count :]
        if code == NEWOBJ:
            return self.push_container(value)
        self.stack.append(value)
        return 0

    @cython.cfunc
    def stop(self) -> cython.int:
        """The value is all that is left on the stack."""
        if len(self.stack) <= self.floor:
            return UNDERFLOW
        if len(self.stack) > 1 or self.marks:
            return LEFT
        return self.fail(STOP, self.stack[0])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number_nbytes(code: cython.int) -> cython.Py_ssize_t:
    """The bytes of the number after an opcode."""
    if code in (_BININT1, _BINGET, _BINPUT, _LONG1, _SHORT_BINUNICODE, _SHORT_BINBYTES, _SHORT_BINSTRING):
        return 1
    if code in (_BINUNICODE, _LONG_BINGET, _LONG_BINPUT, _BININT, _LONG4, _BINBYTES, _BINSTRING):
        return 4
    if code in (_FRAME, _BINFLOAT, _BINUNICODE8, _BINBYTES8):
        return 8
    return 2 if code == _BININT2 else 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has_contents(code: cython.int) -> cython.bint:
    """Whether the number is the size of what follows."""
    return code in (
        _LONG1, _LONG4, _BINUNICODE, _SHORT_BINUNICODE, _BINUNICODE8, _BINBYTES, _SHORT_BINBYTES, _BINBYTES8,
        _BINSTRING, _SHORT_BINSTRING,
    )  # fmt: skip


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_container(code: cython.int) -> cython.bint:
    return code in (_EMPTY_LIST, _EMPTY_DICT, _TUPLE, _LIST, _DICT) or _TUPLE1 <= code <= _TUPLE3


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _signed(number: cython.ulonglong, nbytes: cython.Py_ssize_t) -> cython.longlong:
    """A number of up to seven bytes in two's complement."""
    sign: cython.longlong = number >> (8 * nbytes - 1) if nbytes > 0 else 0
    return cython.cast(cython.longlong, number) - (sign << (8 * nbytes))


@cython.cfunc
def _is_view(arguments: tuple[Any, ...], storage: Any) -> cython.bint:
    """Whether they are a storage with an element type, an offset, a shape, strides, and two more."""
    if len(arguments) != 6 or type(arguments[0]) is not storage or arguments[0][1] is None:
        return False
    if type(arguments[2]) is not tuple or type(arguments[3]) is not tuple or len(arguments[2]) != len(arguments[3]):
        return False
    return _are_natural(arguments[1:2]) and _are_natural(arguments[2]) and _are_natural(arguments[3])


@cython.cfunc
def _are_natural(numbers: tuple[Any, ...]) -> cython.bint:
    """Whether all are integers from 0 to 2**63 - 1."""
    at: cython.Py_ssize_t = 0
    while at < len(numbers) and type(numbers[at]) is int and 0 <= numbers[at] <= _MOST:
        at += 1
    return at == len(numbers)
