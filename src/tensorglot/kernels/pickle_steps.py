"""The steps of a pickle that need nothing but its stack and its memo: values, containers, references, calls.

It takes as many steps as it can and stops before the first that it leaves to the caller:
an opcode that it does not know, one whose bytes are not all there, and any that would
break a rule. So every fault has its message in one place, the interpreter of the caller.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import little
else:
    from tensorglot.kernels.primitives import little

MARK = cython.declare(cython.int, 0x28)
EMPTY_TUPLE = cython.declare(cython.int, 0x29)
BININT1 = cython.declare(cython.int, 0x4B)
BININT2 = cython.declare(cython.int, 0x4D)
NONE = cython.declare(cython.int, 0x4E)
REDUCE = cython.declare(cython.int, 0x52)
BINUNICODE = cython.declare(cython.int, 0x58)
EMPTY_LIST = cython.declare(cython.int, 0x5D)
APPEND = cython.declare(cython.int, 0x61)
GLOBAL = cython.declare(cython.int, 0x63)
APPENDS = cython.declare(cython.int, 0x65)
BINGET = cython.declare(cython.int, 0x68)
LONG_BINGET = cython.declare(cython.int, 0x6A)
LIST = cython.declare(cython.int, 0x6C)
BINPUT = cython.declare(cython.int, 0x71)
LONG_BINPUT = cython.declare(cython.int, 0x72)
SETITEM = cython.declare(cython.int, 0x73)
TUPLE = cython.declare(cython.int, 0x74)
SETITEMS = cython.declare(cython.int, 0x75)
EMPTY_DICT = cython.declare(cython.int, 0x7D)
TUPLE1 = cython.declare(cython.int, 0x85)
TUPLE2 = cython.declare(cython.int, 0x86)
TUPLE3 = cython.declare(cython.int, 0x87)
NEWTRUE = cython.declare(cython.int, 0x88)
NEWFALSE = cython.declare(cython.int, 0x89)
LONG1 = cython.declare(cython.int, 0x8A)
SHORT_BINUNICODE = cython.declare(cython.int, 0x8C)
STACK_GLOBAL = cython.declare(cython.int, 0x93)
MEMOIZE = cython.declare(cython.int, 0x94)

FRAME = cython.declare(cython.int, 0x95)

LONG_NBYTES = cython.declare(cython.int, 16)
NAME_NBYTES = cython.declare(cython.Py_ssize_t, 256)
"""The longest integer, and the longest line of a global."""
CALL_WORK = 24
"""Work of a call: a pickler writes at least 7 bytes for one, of which each allows 4."""
_MOST = cython.declare(cython.longlong, (1 << 63) - 1)


def steps(
    data: bytes,
    at: cython.Py_ssize_t,
    begin: cython.Py_ssize_t,
    state: list[int],
    stack: list[Any],
    marks: list[int],
    memo: list[Any],
    names: dict[str, Any],
    types: tuple[Any, Any, Any],
    works: dict[Any, int],
) -> int:
    """Takes steps from `at` on; returns the position of the first opcode that is left.

    The pickle begins at `begin`. `state` has the stack position of the last mark, the number
    of containers, of which there may be half as many as bytes and 32, and the work of calls,
    which may be 4 for each byte and 4096. `names` has the values of globals. `types` are those of
    dicts, storages and views: a dict is made without arguments, also by a call of the global
    OrderedDict, and a view by a call of `_rebuild_tensor_v2`. `works` has the work of functions
    that need more than CALL_WORK. A call that fails is left.
    """
    pairs: Any = types[0]
    raw: cython.p_const_uchar = data
    end: cython.Py_ssize_t = len(data)
    floor: cython.Py_ssize_t = state[0]
    containers: cython.Py_ssize_t = state[1]
    work: cython.Py_ssize_t = state[2]
    more: cython.Py_ssize_t
    code: cython.int
    after: cython.Py_ssize_t
    nbytes: cython.Py_ssize_t
    # Invariant: at <= end, floor <= len(stack), and no rule is broken before `at`.
    while at < end:
        code = raw[at]
        after = at + 1
        nbytes = _argument_nbytes(code)
        if nbytes > end - after:
            break
        if _is_container(code):
            if 2 * (containers + 1) > after - begin + 64 or not _container(code, floor, stack, marks, pairs):
                break
            containers += 1
            if code in (TUPLE, LIST):
                floor = marks.pop()
        elif code in (APPENDS, SETITEMS):
            if not _extend(code, floor, stack, marks, pairs):
                break
            floor = marks.pop()
        elif code == MARK:
            marks.append(floor)
            floor = len(stack)
        elif code == GLOBAL:
            after = _global(data, after, stack, names)
        elif code == REDUCE:
            more = _call(floor, stack, names, types, works, 4 * (after - begin) + 4096 - work)
            if more < 0:
                break
            work += more
        elif code == FRAME:
            if little(raw, after, nbytes) > cython.cast(cython.ulonglong, end - after - nbytes):
                break
            after += nbytes
        elif nbytes > 0:
            after = _with_number(data, code, little(raw, after, nbytes), after + nbytes, floor, stack, memo)
        elif not _step(code, floor, stack, memo, names, pairs):
            break
        if after < 0:
            break
        at = after
    state[:] = [floor, containers, work]
    return int(at)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_container(code: cython.int) -> cython.bint:
    return code in (EMPTY_LIST, EMPTY_DICT, TUPLE, LIST, TUPLE1, TUPLE2, TUPLE3)


@cython.cfunc
def _container(
    code: cython.int, floor: cython.Py_ssize_t, stack: list[Any], marks: list[int], pairs: Any
) -> cython.bint:
    """Pushes a new container, with the items that it takes from the stack."""
    size: cython.Py_ssize_t = len(stack)
    begin: cython.Py_ssize_t
    items: list[Any]
    if code == EMPTY_LIST:
        stack.append([])
    elif code == EMPTY_DICT:
        stack.append(pairs())
    else:
        begin = floor if code in (TUPLE, LIST) else size - (code - TUPLE1 + 1)
        if begin < floor or (code in (TUPLE, LIST) and not marks):
            return False
        if begin == size:
            stack.append([] if code == LIST else ())
            return True
        if begin == size - 1 and code != LIST:
            stack[begin] = (stack[begin],)
            return True
        items = stack[begin:]
        del stack[begin:]
        if code == LIST:
            stack.append(items)
        else:
            stack.append(tuple(items))
    return True


@cython.cfunc
def _extend(code: cython.int, floor: cython.Py_ssize_t, stack: list[Any], marks: list[int], pairs: Any) -> cython.bint:
    """Moves what is above the last mark to the container below it."""
    target: Any
    if not marks or floor <= marks[len(marks) - 1]:
        return False
    target = stack[floor - 1]
    if type(target) is not (list if code == APPENDS else pairs):
        return False
    if code == SETITEMS and (len(stack) - floor) % 2 != 0:
        return False
    target.extend(stack[floor:])
    del stack[floor:]
    return True


@cython.cfunc
def _global(data: bytes, at: cython.Py_ssize_t, stack: list[Any], names: dict[str, Any]) -> cython.Py_ssize_t:
    """Pushes the value of a global, two lines; returns where they end, or -1."""
    line: cython.Py_ssize_t = data.find(b"\n", at, at + NAME_NBYTES + 1)
    end: cython.Py_ssize_t = -1 if line < 0 else data.find(b"\n", line + 1, line + NAME_NBYTES + 2)
    value: Any
    if end < 0:
        return -1
    value = names.get(f"{data[at:line].decode('latin-1')}.{data[line + 1 : end].decode('latin-1')}")
    if value is None:
        return -1
    stack.append(value)
    return end + 1


@cython.cfunc
def _with_number(
    data: bytes,
    code: cython.int,
    number: cython.Py_ssize_t,
    after: cython.Py_ssize_t,
    floor: cython.Py_ssize_t,
    stack: list[Any],
    memo: list[Any],
) -> cython.Py_ssize_t:
    """A step whose opcode has a number, which ends at `after`; returns where the step ends, or -1."""
    known: cython.Py_ssize_t = len(memo)
    if code in (BINPUT, LONG_BINPUT):
        if len(stack) <= floor or number > known:
            return -1
        if number == known:
            memo.append(stack[len(stack) - 1])
        else:
            memo[number] = stack[len(stack) - 1]
    elif code in (BININT1, BININT2):
        stack.append(number)
    elif code in (BINGET, LONG_BINGET):
        if number >= known:
            return -1
        stack.append(memo[number])
    elif number > len(data) - after or (code == LONG1 and number > LONG_NBYTES):
        return -1
    elif code == LONG1:
        stack.append(_signed(data, after, number))
        return after + number
    else:
        try:
            stack.append(data[after : after + number].decode("utf-8"))
        except UnicodeDecodeError:
            return -1
        return after + number
    return after


@cython.cfunc
def _signed(data: bytes, at: cython.Py_ssize_t, nbytes: cython.Py_ssize_t) -> Any:
    """An integer in two's complement."""
    raw: cython.p_const_uchar = data
    value: cython.longlong
    if nbytes > 7:
        return int.from_bytes(data[at : at + nbytes], "little", signed=True)
    value = little(raw, at, nbytes)
    if nbytes > 0 and raw[at + nbytes - 1] >= 0x80:
        value -= cython.cast(cython.longlong, 1) << (8 * nbytes)
    return value


@cython.cfunc
def _step(
    code: cython.int, floor: cython.Py_ssize_t, stack: list[Any], memo: list[Any], names: dict[str, Any], pairs: Any
) -> cython.bint:
    """A step of one byte that makes no container."""
    size: cython.Py_ssize_t = len(stack)
    if code in (NONE, NEWTRUE, NEWFALSE, EMPTY_TUPLE):
        stack.append(None if code == NONE else () if code == EMPTY_TUPLE else code == NEWTRUE)
    elif code == MEMOIZE:
        if size <= floor:
            return False
        memo.append(stack[size - 1])
    elif code in (APPEND, SETITEM):
        return _set(code, floor, stack, pairs)
    elif code == STACK_GLOBAL:
        if size - 2 < floor or type(stack[size - 2]) is not str or type(stack[size - 1]) is not str:
            return False
        value: Any = names.get(f"{stack[size - 2]}.{stack[size - 1]}")
        if value is None:
            return False
        del stack[size - 2 :]
        stack.append(value)
    else:
        return False
    return True


@cython.cfunc
def _set(code: cython.int, floor: cython.Py_ssize_t, stack: list[Any], pairs: Any) -> cython.bint:
    """Moves a value, or a key and its value, to the container below."""
    size: cython.Py_ssize_t = len(stack)
    below: cython.Py_ssize_t = size - (2 if code == APPEND else 3)
    if below < floor or type(stack[below]) is not (list if code == APPEND else pairs):
        return False
    stack[below].extend(stack[below + 1 :])
    del stack[below + 1 :]
    return True


@cython.cfunc
def _call(
    floor: cython.Py_ssize_t,
    stack: list[Any],
    names: dict[str, Any],
    types: tuple[Any, Any, Any],
    works: dict[Any, int],
    most: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Calls a function with the tuple above it on the stack, and returns the work, or -1 for more than `most`.

    Also -1 if there is no such function or it fails: the caller knows how to report that.
    """
    size: cython.Py_ssize_t = len(stack)
    work: cython.Py_ssize_t
    function: Any
    arguments: Any
    pairs: Any = types[0]
    if size - 2 < floor:
        return -1
    function = stack[size - 2]
    arguments = stack[size - 1]
    if type(arguments) is not tuple or not callable(function):
        return -1
    if not arguments and function is names.get("collections.OrderedDict"):
        stack[size - 2] = pairs()
        work = 0  # a pickler writes 4 bytes for it
    else:
        work = works.get(function, CALL_WORK) + len(arguments)
        if arguments and callable(arguments[0]):
            work += works.get(arguments[0], 0)  # a function that it calls
        for value in arguments:
            kind: Any = type(value)
            if kind is list or kind is tuple or kind is str or kind is pairs:
                work += len(value)
        if work > most:
            return -1
        if function is names.get("torch._utils._rebuild_tensor_v2") and _is_view(arguments, types[1]):
            held: Any = arguments[0]
            view: Any = held, held[1], arguments[1], arguments[2], arguments[3]
            stack[size - 2] = tuple.__new__(types[2], view)
        else:
            try:
                stack[size - 2] = function(arguments)
            except Exception:  # noqa: BLE001, the caller calls it again and reports
                return -1
    stack.pop()
    return work


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


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _argument_nbytes(code: cython.int) -> cython.Py_ssize_t:
    """The bytes of the number after an opcode."""
    if code in (BININT1, BINGET, BINPUT, LONG1, SHORT_BINUNICODE):
        return 1
    if code in (BINUNICODE, LONG_BINGET, LONG_BINPUT):
        return 4
    if code == FRAME:
        return 8
    return 2 if code == BININT2 else 0
