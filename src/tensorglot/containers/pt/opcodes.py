"""The opcodes of a pickle that tensors need, and what each does to the machine. There are no others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tensorglot.containers.pt.machine import Input, Machine, Number, Pairs
from tensorglot.errors import LimitError, TensorglotError, UnsupportedError, escape

__all__ = ["OPCODES"]

LONG_NBYTES = 16
NAME_NBYTES = 256


def _number(code: str) -> Number:
    """Reads a number of a fixed width."""
    layout = struct.Struct(code)

    def read(data: Input) -> Any:
        return layout.unpack(data.take(layout.size))[0]

    return read


def _byte(data: Input) -> int:
    return data.byte()


_U16, _I32, _U32, _U64, _F64 = (_number(code) for code in ("<H", "<i", "<I", "<Q", ">d"))


def _constant(value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.push(value)


def _value(number: Number) -> Callable[[Machine], None]:
    return lambda machine: machine.push(number(machine.data))


def _long(number: Number) -> Callable[[Machine], None]:
    def action(machine: Machine) -> None:
        nbytes = number(machine.data)
        if not 0 <= nbytes <= LONG_NBYTES:
            raise LimitError(
                f"integer of {nbytes} bytes exceeds the limit of {LONG_NBYTES}",
                rule="pt.pickle.long",
                offset=machine.data.position,
            )
        machine.push(int.from_bytes(machine.data.take(nbytes), "little", signed=True))

    return action


def _text(number: Number) -> Callable[[Machine], None]:
    def action(machine: Machine) -> None:
        raw = machine.sized(number)
        try:
            machine.push(raw.decode())
        except UnicodeDecodeError:
            raise machine.fault("invalid UTF-8 in a string", "utf8") from None

    return action


def _old_text(number: Number) -> Callable[[Machine], None]:
    """A string of Python 2: text if it can be."""

    def action(machine: Machine) -> None:
        raw = machine.sized(number)
        try:
            machine.push(raw.decode())
        except UnicodeDecodeError:
            machine.push(raw)

    return action


def _bytes(number: Number) -> Callable[[Machine], None]:
    return lambda machine: machine.push(machine.sized(number))


def _new(kind: type) -> Callable[[Machine], None]:
    return lambda machine: machine.push_container(kind())


def _tuple(machine: Machine) -> None:
    machine.push_container(tuple(machine.items()))


def _tuple_of(count: int) -> Callable[[Machine], None]:
    def action(machine: Machine) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push_container(tuple(reversed(values)))

    return action


def _list(machine: Machine) -> None:
    machine.push_container(machine.items())


def _dict(machine: Machine) -> None:
    machine.push_container(Pairs(_even(machine, machine.items())))


def _append(machine: Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _appends(machine: Machine) -> None:
    values = machine.items()
    machine.top(list).extend(values)


def _setitem(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.top(Pairs).extend((key, value))


def _setitems(machine: Machine) -> None:
    values = _even(machine, machine.items())
    machine.top(Pairs).extend(values)


def _even(machine: Machine, values: list[Any]) -> list[Any]:
    if len(values) % 2:
        raise machine.fault("dict key without a value", "stack")
    return values


def _put(number: Number) -> Callable[[Machine], None]:
    def action(machine: Machine) -> None:
        _remember(machine, number(machine.data))

    return action


def _memoize(machine: Machine) -> None:
    _remember(machine, len(machine.memo))


def _remember(machine: Machine, index: int) -> None:
    if len(machine.stack) <= machine.floor:
        raise machine.fault("pickle stack is empty, nothing to memoize", "stack")
    if index > len(machine.memo):
        raise machine.fault("memo index out of sequence", "memo")
    machine.memo[index : index + 1] = [machine.stack[-1]]


def _get(number: Number) -> Callable[[Machine], None]:
    def action(machine: Machine) -> None:
        index = number(machine.data)
        if index >= len(machine.memo):
            raise machine.fault(f"memo has no entry {index}", "memo")
        machine.push(machine.memo[index])

    return action


def _global(machine: Machine) -> None:
    module, name = machine.data.line(NAME_NBYTES), machine.data.line(NAME_NBYTES)
    _push_name(machine, module.decode(errors="replace"), name.decode(errors="replace"))


def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise machine.fault("STACK_GLOBAL needs two strings", "global")
    _push_name(machine, module, name)


def _push_name(machine: Machine, module: str, name: str) -> None:
    full = f"{module}.{name}"
    if full not in machine.names:
        raise UnsupportedError(
            f"the pickle refers to {escape(full)}, which is not allowed; nothing was executed",
            rule="pt.pickle.global",
            offset=machine.data.position,
        )
    machine.push(machine.names[full])


def _reduce(machine: Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    if not callable(function) or type(arguments) is not tuple:
        raise machine.fault("REDUCE needs a function and a tuple", "call")
    machine.push(_call(machine, function, arguments))


def _build(machine: Machine) -> None:
    state = machine.pop()
    target = machine.pop()
    _call(machine, machine.build_state, target, state)
    machine.push(target)


def _persistent(machine: Machine) -> None:
    machine.push(_call(machine, machine.persistent, machine.pop()))


def _call(machine: Machine, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function; its errors get the current offset."""
    try:
        return function(*arguments)
    except TensorglotError as error:
        error.offset = machine.data.position
        raise


def _frame(machine: Machine) -> None:
    if _U64(machine.data) > machine.data.left:
        raise machine.fault("pickle frame extends past the end of the file", "length")


OPCODES: dict[int, Callable[[Machine], None]] = {
    0x28: Machine.mark,  # MARK
    0x29: _constant(()),  # EMPTY_TUPLE
    0x42: _bytes(_U32),  # BINBYTES
    0x43: _bytes(_byte),  # SHORT_BINBYTES
    0x47: _value(_F64),  # BINFLOAT
    0x4A: _value(_I32),  # BININT
    0x4B: _value(_byte),  # BININT1
    0x4D: _value(_U16),  # BININT2
    0x4E: _constant(None),  # NONE
    0x51: _persistent,  # BINPERSID
    0x52: _reduce,  # REDUCE
    0x54: _old_text(_U32),  # BINSTRING
    0x55: _old_text(_byte),  # SHORT_BINSTRING
    0x58: _text(_U32),  # BINUNICODE
    0x5D: _new(list),  # EMPTY_LIST
    0x61: _append,  # APPEND
    0x62: _build,  # BUILD
    0x63: _global,  # GLOBAL
    0x64: _dict,  # DICT
    0x65: _appends,  # APPENDS
    0x68: _get(_byte),  # BINGET
    0x6A: _get(_U32),  # LONG_BINGET
    0x6C: _list,  # LIST
    0x71: _put(_byte),  # BINPUT
    0x72: _put(_U32),  # LONG_BINPUT
    0x73: _setitem,  # SETITEM
    0x74: _tuple,  # TUPLE
    0x75: _setitems,  # SETITEMS
    0x7D: _new(Pairs),  # EMPTY_DICT
    0x85: _tuple_of(1),  # TUPLE1
    0x86: _tuple_of(2),  # TUPLE2
    0x87: _tuple_of(3),  # TUPLE3
    0x88: _constant(True),  # NEWTRUE
    0x89: _constant(False),  # NEWFALSE
    0x8A: _long(_byte),  # LONG1
    0x8B: _long(_I32),  # LONG4
    0x8C: _text(_byte),  # SHORT_BINUNICODE
    0x8D: _text(_U64),  # BINUNICODE8
    0x8E: _bytes(_U64),  # BINBYTES8
    0x93: _stack_global,  # STACK_GLOBAL
    0x94: _memoize,  # MEMOIZE
    0x95: _frame,  # FRAME
}
