"""Loads a pickle: the kernel interprets it, and every fault has its message here. Nothing is imported or looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorglot.containers.torchsave.names import WORK, Pairs, Storage, View, build_state, storage
from tensorglot.errors import FormatError, LimitError, TensorglotError, UnsupportedError, escape
from tensorglot.kernels import pickle_steps as kernel
from tensorglot.wire.fetch import Fetched

__all__ = ["interpret", "load"]

PROTOCOLS = (2, 3, 4, 5)
_STATE_WORK = 64
"""Work of a state or a storage: a pickler writes at least 16 bytes for one, of which each allows 4."""
_WORKS: dict[Any, int] = {**WORK, kernel.BINPERSID: _STATE_WORK, kernel.BUILD: _STATE_WORK}

_BOMB = "than a pickle of this size"
_FAULTS: dict[int, tuple[type[FormatError | UnsupportedError], str, str]] = {
    kernel.OPCODE: (UnsupportedError, "opcode", "pickle opcode {} is not allowed; nothing was executed"),
    kernel.UNDERFLOW: (FormatError, "stack", "pickle stack underflow"),
    kernel.LEFT: (FormatError, "stack", "values left on the pickle stack"),
    kernel.NO_MARK: (FormatError, "stack", "MARK is missing on the pickle stack"),
    kernel.NO_CONTAINER: (FormatError, "stack", "the pickle appends to a value that is not a container"),
    kernel.ODD: (FormatError, "stack", "dict key without a value"),
    kernel.NOTHING: (FormatError, "stack", "pickle stack is empty, nothing to memoize"),
    kernel.MEMO_ORDER: (FormatError, "memo", "memo index out of sequence"),
    kernel.MEMO_ENTRY: (FormatError, "memo", "memo has no entry {}"),
    kernel.LENGTH: (FormatError, "length", "string of {} bytes extends past the end of the file"),
    kernel.FRAMED: (FormatError, "length", "pickle frame extends past the end of the file"),
    kernel.LONG: (LimitError, "long", "integer of {} bytes exceeds the limit of 16"),
    kernel.UTF8: (FormatError, "utf8", "invalid UTF-8 in a string"),
    kernel.NAMES: (FormatError, "global", "STACK_GLOBAL needs two strings"),
    kernel.GLOBAL: (
        UnsupportedError,
        "global",
        "the pickle refers to {}, which is not allowed; nothing was executed. "
        "A file of a state_dict() has tensors and plain values only",
    ),
    kernel.CALL: (FormatError, "call", "REDUCE needs a function and a tuple"),
    kernel.CONTAINERS: (LimitError, "bomb", f"more containers {_BOMB} can have"),
    kernel.WORK: (LimitError, "bomb", f"more work {_BOMB} needs"),
}


def load(data: Fetched, names: dict[str, Any], storages: dict[str, Storage]) -> Any:
    """Interprets one pickle. The storages that it refers to are added to `storages`."""

    def refer(pid: Any) -> Storage:
        found = storage(pid)
        before = storages.setdefault(found.key, found)
        if (before.dtype, before.size) != (found.dtype, found.size):
            message = f"storage '{escape(found.key)}' is referred to with two dtypes or sizes"
            raise FormatError(message, rule="pt.storage.size")
        return found

    return interpret(data, names, {kernel.BINPERSID: refer, kernel.BUILD: build_state}, _WORKS)


def interpret(
    data: Fetched, names: dict[str, Any], functions: Mapping[int, Callable[..., Any]], works: dict[Any, int]
) -> Any:
    """The value of a pickle. `names` has the value of each global that is allowed; see the kernel's `Machine`."""
    _, begin = data.ahead()
    offset = data.position
    if data.byte() != 0x80 or data.byte() not in PROTOCOLS:
        raise UnsupportedError("not a pickle of protocol 2 to 5", rule="pt.pickle.protocol", offset=offset)
    machine = kernel.Machine(begin, begin + 2, names, dict(functions), (Pairs, Storage, View), works)
    while True:
        held, at = data.ahead()
        try:
            answer, place, detail = machine.run(held, at + data.left)
        except TensorglotError as error:
            data.move(machine.position())
            error.offset = data.position
            raise
        data.move(place)
        if answer == kernel.STOP:
            return detail
        if answer == kernel.MORE:
            data.take(detail)
        elif answer == kernel.LINE:
            data.line(kernel.NAME_NBYTES)
        else:
            kind, rule, message = _FAULTS[answer]
            shown = _opcode_name(detail) if answer == kernel.OPCODE else escape(str(detail))
            raise kind(message.format(shown), rule=f"pt.pickle.{rule}", offset=data.position)


def _opcode_name(code: int) -> str:
    from pickletools import opcodes

    return next((known.name for known in opcodes if known.code == chr(code)), f"0x{code:02X}")
