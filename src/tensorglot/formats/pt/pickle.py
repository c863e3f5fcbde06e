"""An interpreter of pickles that makes values and does nothing.

It has a table of the opcodes that tensors need. The others, and every name that is not
in the vocabulary, are refused by name: nothing is imported, called or looked up. A dict
is a list of its pairs, so nothing that the pickle says is hashed. Containers cost memory
that a pickle can ask for with one byte each; a real pickler spends two, and so the
number of them is bounded by the length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tensorglot.errors import FormatError, LimitError, TensorglotError, UnsupportedError, escape

__all__ = ["Input", "Pairs", "Reference", "load"]

PROTOCOLS = (2, 3, 4, 5)
LONG_NBYTES = 16
NAME_NBYTES = 256


class Input(Protocol):
    """Where a pickle is read from."""

    @property
    def position(self) -> int: ...
    @property
    def left(self) -> int: ...
    def take(self, nbytes: int) -> bytes: ...
    def line(self, most: int) -> bytes: ...


class Pairs(list[Any]):
    """A dict: keys and values in turn, in their order."""

    __slots__ = ()


Reference = Callable[[tuple[Any, ...]], Any]
"""What a name of the vocabulary does with arguments: checks them, and makes a value."""


class _Mark:
    """Where the items of a container begin on the stack."""


_MARK = _Mark()


class _Machine:
    def __init__(
        self, data: Input, names: Mapping[str, Any], persistent: Callable[[Any], Any], build: Callable[[Any, Any], None]
    ) -> None:
        self.data = data
        self.names = names
        self.persistent = persistent
        self.build_state = build
        self.begin = data.position
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.containers = 0

    def fault(self, message: str, rule: str) -> FormatError:
        return FormatError(message, rule=f"pt.pickle.{rule}", offset=self.data.position)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise self.fault("the pickle takes more from the stack than it has put there", "stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """What lies on top, which must be of a kind that can be added to."""
        if not self.stack or type(self.stack[-1]) is not kind:
            raise self.fault("the pickle adds to what is no container", "stack")
        return self.stack[-1]

    def items(self) -> list[Any]:
        """What was pushed since the last mark."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                found = self.stack[at + 1 :]
                del self.stack[at:]
                return found
        raise self.fault("a mark is missing", "stack")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if 2 * self.containers > self.data.position - self.begin + 64:
            raise LimitError("more containers than a pickler makes", rule="pt.pickle.bomb", offset=self.data.position)
        self.stack.append(value)

    def number(self, code: str) -> int:
        layout = struct.Struct(code)
        value: int = layout.unpack(self.data.take(layout.size))[0]
        return value

    def sized(self, code: str) -> bytes:
        """Bytes behind their length."""
        nbytes = self.number(code)
        if nbytes > self.data.left:
            raise self.fault("a string longer than the file", "length")
        return self.data.take(nbytes)


def load(
    data: Input, names: Mapping[str, Any], persistent: Callable[[Any], Any], build: Callable[[Any, Any], None]
) -> Any:
    """The value of one pickle.

    `names` has the value of each name that may occur; those that can be called are
    functions. `persistent` makes a value of a persistent id, `build` takes the state
    that an object is given.
    """
    machine = _Machine(data, names, persistent, build)
    if data.take(1) != b"\x80" or machine.number("B") not in PROTOCOLS:
        raise UnsupportedError("not a pickle of protocol 2 to 5", rule="pt.pickle.protocol", offset=machine.begin)
    while True:
        code = data.take(1)[0]
        if code == 0x2E:
            break
        action = OPCODES.get(code)
        if action is None:
            raise UnsupportedError(
                f"the opcode {_opcode_name(code)}, which tensors do not need", rule="pt.pickle.opcode",
                offset=data.position - 1,
            )  # fmt: skip
        action(machine)
    value = machine.pop()
    if machine.stack:
        raise machine.fault("the pickle leaves values on the stack", "stack")
    return value


def _opcode_name(code: int) -> str:
    from pickletools import opcodes

    return next((known.name for known in opcodes if known.code == chr(code)), f"0x{code:02X}")


def _constant(value: Any) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(value)


def _integer(code: str) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(machine.number(code))


def _long(code: str) -> Callable[[_Machine], None]:
    def action(machine: _Machine) -> None:
        nbytes = machine.number(code)
        if not 0 <= nbytes <= LONG_NBYTES:
            raise LimitError(f"an integer of {nbytes} bytes", rule="pt.pickle.long", offset=machine.data.position)
        machine.push(int.from_bytes(machine.data.take(nbytes), "little", signed=True))

    return action


def _text(code: str) -> Callable[[_Machine], None]:
    def action(machine: _Machine) -> None:
        raw = machine.sized(code)
        try:
            machine.push(raw.decode())
        except UnicodeDecodeError:
            raise machine.fault("a string is not UTF-8", "utf8") from None

    return action


def _old_text(code: str) -> Callable[[_Machine], None]:
    """A string of Python 2: text if it can be."""

    def action(machine: _Machine) -> None:
        raw = machine.sized(code)
        try:
            machine.push(raw.decode())
        except UnicodeDecodeError:
            machine.push(raw)

    return action


def _bytes(code: str) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(machine.sized(code))


def _new(kind: type) -> Callable[[_Machine], None]:
    return lambda machine: machine.push_container(kind())


def _tuple(machine: _Machine) -> None:
    machine.push_container(tuple(machine.items()))


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def action(machine: _Machine) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.push_container(tuple(reversed(values)))

    return action


def _list(machine: _Machine) -> None:
    machine.push_container(machine.items())


def _dict(machine: _Machine) -> None:
    machine.push_container(Pairs(_even(machine, machine.items())))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.items()
    machine.top(list).extend(values)


def _setitem(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.top(Pairs).extend((key, value))


def _setitems(machine: _Machine) -> None:
    values = _even(machine, machine.items())
    machine.top(Pairs).extend(values)


def _even(machine: _Machine, values: list[Any]) -> list[Any]:
    if len(values) % 2:
        raise machine.fault("a key without a value", "stack")
    return values


def _put(code: str) -> Callable[[_Machine], None]:
    def action(machine: _Machine) -> None:
        _remember(machine, machine.number(code))

    return action


def _memoize(machine: _Machine) -> None:
    _remember(machine, len(machine.memo))


def _remember(machine: _Machine, index: int) -> None:
    if not machine.stack or machine.stack[-1] is _MARK:
        raise machine.fault("nothing on the stack to remember", "stack")
    if index > len(machine.memo):
        raise machine.fault("the memo has holes", "memo")
    machine.memo[index : index + 1] = [machine.stack[-1]]


def _get(code: str) -> Callable[[_Machine], None]:
    def action(machine: _Machine) -> None:
        index = machine.number(code)
        if index >= len(machine.memo):
            raise machine.fault("the memo does not have it", "memo")
        machine.push(machine.memo[index])

    return action


def _global(machine: _Machine) -> None:
    module, name = machine.data.line(NAME_NBYTES), machine.data.line(NAME_NBYTES)
    _push_name(machine, module.decode(errors="replace"), name.decode(errors="replace"))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise machine.fault("a name that is no text", "global")
    _push_name(machine, module, name)


def _push_name(machine: _Machine, module: str, name: str) -> None:
    full = f"{module}.{name}"
    if full not in machine.names:
        raise UnsupportedError(
            f"the pickle refers to {escape(full)}, which tensors do not need: nothing was executed",
            rule="pt.pickle.global",
            offset=machine.data.position,
        )
    machine.push(machine.names[full])


def _reduce(machine: _Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    if not callable(function) or type(arguments) is not tuple:
        raise machine.fault("a call of what cannot be called", "call")
    machine.push(_placed(machine, function, arguments))


def _build(machine: _Machine) -> None:
    state = machine.pop()
    target = machine.pop()
    _placed(machine, machine.build_state, target, state)
    machine.push(target)


def _persistent(machine: _Machine) -> None:
    machine.push(_placed(machine, machine.persistent, machine.pop()))


def _placed(machine: _Machine, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a value's maker refuses, it refuses here."""
    try:
        return function(*arguments)
    except TensorglotError as error:
        error.offset = machine.data.position
        raise


def _frame(machine: _Machine) -> None:
    if machine.number("<Q") > machine.data.left:
        raise machine.fault("a frame longer than the file", "length")


OPCODES: dict[int, Callable[[_Machine], None]] = {
    0x28: lambda machine: machine.push(_MARK),  # MARK
    0x29: _constant(()),  # EMPTY_TUPLE
    0x42: _bytes("<I"),  # BINBYTES
    0x43: _bytes("B"),  # SHORT_BINBYTES
    0x47: lambda machine: machine.push(machine.number(">d")),  # BINFLOAT
    0x4A: _integer("<i"),  # BININT
    0x4B: _integer("B"),  # BININT1
    0x4D: _integer("<H"),  # BININT2
    0x4E: _constant(None),  # NONE
    0x51: _persistent,  # BINPERSID
    0x52: _reduce,  # REDUCE
    0x54: _old_text("<I"),  # BINSTRING
    0x55: _old_text("B"),  # SHORT_BINSTRING
    0x58: _text("<I"),  # BINUNICODE
    0x5D: _new(list),  # EMPTY_LIST
    0x61: _append,  # APPEND
    0x62: _build,  # BUILD
    0x63: _global,  # GLOBAL
    0x64: _dict,  # DICT
    0x65: _appends,  # APPENDS
    0x68: _get("B"),  # BINGET
    0x6A: _get("<I"),  # LONG_BINGET
    0x6C: _list,  # LIST
    0x71: _put("B"),  # BINPUT
    0x72: _put("<I"),  # LONG_BINPUT
    0x73: _setitem,  # SETITEM
    0x74: _tuple,  # TUPLE
    0x75: _setitems,  # SETITEMS
    0x7D: _new(Pairs),  # EMPTY_DICT
    0x85: _tuple_of(1),  # TUPLE1
    0x86: _tuple_of(2),  # TUPLE2
    0x87: _tuple_of(3),  # TUPLE3
    0x88: _constant(True),  # NEWTRUE
    0x89: _constant(False),  # NEWFALSE
    0x8A: _long("B"),  # LONG1
    0x8B: _long("<i"),  # LONG4
    0x8C: _text("B"),  # SHORT_BINUNICODE
    0x8D: _text("<Q"),  # BINUNICODE8
    0x8E: _bytes("<Q"),  # BINBYTES8
    0x93: _stack_global,  # STACK_GLOBAL
    0x94: _memoize,  # MEMOIZE
    0x95: _frame,  # FRAME
}
