"""Interprets a pickle with a table of the opcodes that tensors need: how to read the argument, what to do with it.

Other opcodes, and globals that are not in `names`, are refused by name: nothing is
imported, called or looked up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from tensorglot.containers.torchsave.machine import Machine
from tensorglot.containers.torchsave.names import WORK, Pairs, Storage, build_state, storage
from tensorglot.errors import FormatError, LimitError, TensorglotError, UnsupportedError, escape
from tensorglot.kernels.pickle_steps import CALL_WORK
from tensorglot.wire.fetch import Fetched

__all__ = ["OPCODES", "Opcode", "load"]

PROTOCOLS = (2, 3, 4, 5)
LONG_NBYTES = 16
NAME_NBYTES = 256
_STOP = 0x2E
_STATE_WORK = 64
"""Work of a state or a storage: a pickler writes at least 16 bytes for one, of which each allows 4."""

Reader: TypeAlias = "Callable[[Fetched], Any]"
"""Reads the argument of an opcode."""


class Opcode(NamedTuple):
    action: Callable[..., None]
    """Called with the machine, and with the argument if there is one."""
    read: Reader | None = None


def load(
    data: Fetched,
    names: dict[str, Any],
    storages: dict[str, Storage],
    opcodes: Mapping[int, Opcode] | None = None,
) -> Any:
    """Interprets one pickle.

    `names` has the value of each global that is allowed; those that can be called are
    functions. The storages that the pickle refers to are added to `storages`. `opcodes`
    are those that are interpreted, OPCODES unless given.
    """
    table = OPCODES if opcodes is None else opcodes
    machine = Machine(data, names, storages)
    if data.byte() != 0x80 or data.byte() not in PROTOCOLS:
        raise UnsupportedError("not a pickle of protocol 2 to 5", rule="pt.pickle.protocol", offset=machine.begin)
    while (code := machine.advance()) != _STOP:
        opcode = table.get(code)
        if opcode is None:
            raise UnsupportedError(
                f"pickle opcode {_opcode_name(code)} is not allowed; nothing was executed",
                rule="pt.pickle.opcode",
                offset=data.position - 1,
            )
        action, read = opcode
        if read is None:
            action(machine)
        else:
            action(machine, read(data))
    value = machine.pop()
    if machine.stack or machine.marks:
        raise machine.fault("values left on the pickle stack", "stack")
    return value


def _opcode_name(code: int) -> str:
    from pickletools import opcodes

    return next((known.name for known in opcodes if known.code == chr(code)), f"0x{code:02X}")


def _number(code: str) -> Reader:
    layout = struct.Struct(code)
    return lambda data: layout.unpack(data.take(layout.size))[0]


_BYTE = Fetched.byte
_U16, _I32, _U32, _U64, _F64 = map(_number, ("<H", "<i", "<I", "<Q", ">d"))


def _sized(number: Reader) -> Reader:
    """Reads a length, and as many bytes."""

    def read(data: Fetched) -> bytes:
        nbytes = number(data)
        if nbytes > data.left:
            message = f"string of {nbytes} bytes extends past the end of the file"
            raise FormatError(message, rule="pt.pickle.length", offset=data.position)
        return data.take(nbytes)

    return read


def _long(machine: Machine, nbytes: int) -> None:
    if not 0 <= nbytes <= LONG_NBYTES:
        raise LimitError(
            f"integer of {nbytes} bytes exceeds the limit of {LONG_NBYTES}",
            rule="pt.pickle.long",
            offset=machine.data.position,
        )
    machine.push(int.from_bytes(machine.data.take(nbytes), "little", signed=True))


def _text(machine: Machine, raw: bytes) -> None:
    try:
        machine.push(raw.decode())
    except UnicodeDecodeError:
        raise machine.fault("invalid UTF-8 in a string", "utf8") from None


def _old_text(machine: Machine, raw: bytes) -> None:
    """A string of Python 2: text if it is UTF-8, else bytes."""
    try:
        machine.push(raw.decode())
    except UnicodeDecodeError:
        machine.push(raw)


def _tuple(machine: Machine) -> None:
    machine.push_container(tuple(machine.items()))


def _tuple_of(machine: Machine, count: int) -> None:
    values = [machine.pop() for _ in range(count)]
    machine.push_container(tuple(reversed(values)))


def _list(machine: Machine) -> None:
    machine.push_container(machine.items())


def _dict(machine: Machine) -> None:
    machine.push_container(Pairs(_pairs(machine)))


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
    pairs = _pairs(machine)
    machine.top(Pairs).extend(pairs)


def _pairs(machine: Machine) -> list[Any]:
    values = machine.items()
    if len(values) % 2:
        raise machine.fault("dict key without a value", "stack")
    return values


def _memoize(machine: Machine) -> None:
    _put(machine, len(machine.memo))


def _put(machine: Machine, index: int) -> None:
    if len(machine.stack) <= machine.floor:
        raise machine.fault("pickle stack is empty, nothing to memoize", "stack")
    if index > len(machine.memo):
        raise machine.fault("memo index out of sequence", "memo")
    machine.memo[index : index + 1] = [machine.stack[-1]]


def _get(machine: Machine, index: int) -> None:
    if index >= len(machine.memo):
        raise machine.fault(f"memo has no entry {index}", "memo")
    machine.push(machine.memo[index])


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
            f"the pickle refers to {escape(full)}, which is not allowed; nothing was executed. "
            "A file of a state_dict() has tensors and plain values only",
            rule="pt.pickle.global",
            offset=machine.data.position,
        )
    machine.push(machine.names[full])


def _reduce(machine: Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    if not callable(function) or type(arguments) is not tuple:
        raise machine.fault("REDUCE needs a function and a tuple", "call")
    machine.charge(WORK.get(function, CALL_WORK) + len(arguments))
    if arguments and callable(arguments[0]):
        machine.charge(WORK.get(arguments[0], 0))  # a function that it calls
    machine.charge(sum([len(value) for value in arguments if type(value) in (list, tuple, str, Pairs)]))
    machine.push(_call(machine, function, arguments))


def _build(machine: Machine) -> None:
    state = machine.pop()
    target = machine.pop()
    machine.charge(_STATE_WORK)
    _call(machine, build_state, target, state)
    machine.push(target)


def _persistent(machine: Machine) -> None:
    machine.charge(_STATE_WORK)
    found = _call(machine, storage, machine.pop())
    before = machine.storages.setdefault(found.key, found)
    if (before.dtype, before.size) != (found.dtype, found.size):
        message = f"storage '{escape(found.key)}' is referred to with two dtypes or sizes"
        raise FormatError(message, rule="pt.storage.size", offset=machine.data.position)
    machine.push(found)


def _call(machine: Machine, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function; its errors get the current offset."""
    try:
        return function(*arguments)
    except TensorglotError as error:
        error.offset = machine.data.position
        raise


def _frame(machine: Machine, nbytes: int) -> None:
    if nbytes > machine.data.left:
        raise machine.fault("pickle frame extends past the end of the file", "length")


OPCODES: dict[int, Opcode] = {
    0x28: Opcode(Machine.mark),  # MARK
    0x29: Opcode(Machine.push, lambda _: ()),  # EMPTY_TUPLE
    0x42: Opcode(Machine.push, _sized(_U32)),  # BINBYTES
    0x43: Opcode(Machine.push, _sized(_BYTE)),  # SHORT_BINBYTES
    0x47: Opcode(Machine.push, _F64),  # BINFLOAT
    0x4A: Opcode(Machine.push, _I32),  # BININT
    0x4B: Opcode(Machine.push, _BYTE),  # BININT1
    0x4D: Opcode(Machine.push, _U16),  # BININT2
    0x4E: Opcode(Machine.push, lambda _: None),  # NONE
    0x51: Opcode(_persistent),  # BINPERSID
    0x52: Opcode(_reduce),  # REDUCE
    0x54: Opcode(_old_text, _sized(_U32)),  # BINSTRING
    0x55: Opcode(_old_text, _sized(_BYTE)),  # SHORT_BINSTRING
    0x58: Opcode(_text, _sized(_U32)),  # BINUNICODE
    0x5D: Opcode(Machine.push_container, lambda _: []),  # EMPTY_LIST
    0x61: Opcode(_append),  # APPEND
    0x62: Opcode(_build),  # BUILD
    0x63: Opcode(_global),  # GLOBAL
    0x64: Opcode(_dict),  # DICT
    0x65: Opcode(_appends),  # APPENDS
    0x68: Opcode(_get, _BYTE),  # BINGET
    0x6A: Opcode(_get, _U32),  # LONG_BINGET
    0x6C: Opcode(_list),  # LIST
    0x71: Opcode(_put, _BYTE),  # BINPUT
    0x72: Opcode(_put, _U32),  # LONG_BINPUT
    0x73: Opcode(_setitem),  # SETITEM
    0x74: Opcode(_tuple),  # TUPLE
    0x75: Opcode(_setitems),  # SETITEMS
    0x7D: Opcode(Machine.push_container, lambda _: Pairs()),  # EMPTY_DICT
    0x85: Opcode(_tuple_of, lambda _: 1),  # TUPLE1
    0x86: Opcode(_tuple_of, lambda _: 2),  # TUPLE2
    0x87: Opcode(_tuple_of, lambda _: 3),  # TUPLE3
    0x88: Opcode(Machine.push, lambda _: True),  # NEWTRUE
    0x89: Opcode(Machine.push, lambda _: False),  # NEWFALSE
    0x8A: Opcode(_long, _BYTE),  # LONG1
    0x8B: Opcode(_long, _I32),  # LONG4
    0x8C: Opcode(_text, _sized(_BYTE)),  # SHORT_BINUNICODE
    0x8D: Opcode(_text, _sized(_U64)),  # BINUNICODE8
    0x8E: Opcode(Machine.push, _sized(_U64)),  # BINBYTES8
    0x93: Opcode(_stack_global),  # STACK_GLOBAL
    0x94: Opcode(_memoize),  # MEMOIZE
    0x95: Opcode(_frame, _U64),  # FRAME
}
