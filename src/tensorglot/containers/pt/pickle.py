"""An interpreter of pickles that makes values and does nothing.

It has a table of the opcodes that tensors need. The others, and every name that is not
in the vocabulary, are refused by name: nothing is imported, called or looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorglot.containers.pt.machine import Input, Machine
from tensorglot.containers.pt.opcodes import OPCODES
from tensorglot.errors import UnsupportedError

__all__ = ["load"]

PROTOCOLS = (2, 3, 4, 5)
_STOP = 0x2E


def load(
    data: Input, names: Mapping[str, Any], persistent: Callable[[Any], Any], build: Callable[[Any, Any], None]
) -> Any:
    """Interprets one pickle.

    `names` has the value of each name that may occur; those that can be called are
    functions. `persistent` makes a value of a persistent id, `build` takes the state
    that an object is given.
    """
    machine = Machine(data, names, persistent, build)
    if data.byte() != 0x80 or data.byte() not in PROTOCOLS:
        raise UnsupportedError("not a pickle of protocol 2 to 5", rule="pt.pickle.protocol", offset=machine.begin)
    while True:
        code = data.byte()
        if code == _STOP:
            break
        action = OPCODES.get(code)
        if action is None:
            raise UnsupportedError(
                f"pickle opcode {_opcode_name(code)} is not allowed; nothing was executed", rule="pt.pickle.opcode",
                offset=data.position - 1,
            )  # fmt: skip
        action(machine)
    value = machine.pop()
    if machine.stack or machine.marks:
        raise machine.fault("values left on the pickle stack", "stack")
    return value


def _opcode_name(code: int) -> str:
    from pickletools import opcodes

    return next((known.name for known in opcodes if known.code == chr(code)), f"0x{code:02X}")
