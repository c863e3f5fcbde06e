"""The state of a pickle that is being read: a stack, marks on it, a memo. It makes values and does nothing.

A dict is a list of its pairs, so nothing that a pickle says is hashed. Containers cost
memory that a pickle can ask for with one byte each; a real pickler spends two, and so
the number of them is bounded by the length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tensorglot.errors import FormatError, LimitError

__all__ = ["Input", "Machine", "Number", "Pairs"]


class Input(Protocol):
    """Where a pickle is read from."""

    @property
    def position(self) -> int: ...
    @property
    def left(self) -> int: ...
    def take(self, nbytes: int) -> bytes: ...
    def byte(self) -> int: ...
    def line(self, most: int) -> bytes: ...


class Pairs(list[Any]):
    """A dict: keys and values in turn, in their order."""

    __slots__ = ()


Number = Callable[[Input], Any]
"""Reads a number of a fixed width."""


class Machine:
    def __init__(
        self, data: Input, names: Mapping[str, Any], persistent: Callable[[Any], Any], build: Callable[[Any, Any], None]
    ) -> None:
        self.data = data
        self.names = names
        self.persistent = persistent
        self.build_state = build
        self.begin = data.position
        self.stack: list[Any] = []
        self.floor = 0
        """Where the items since the last mark begin."""
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.containers = 0

    def fault(self, message: str, rule: str) -> FormatError:
        return FormatError(message, rule=f"pt.pickle.{rule}", offset=self.data.position)

    def pop(self) -> Any:
        if len(self.stack) <= self.floor:
            raise self.fault("pickle stack underflow", "stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """What lies on top, which must be of a kind that can be added to."""
        if len(self.stack) <= self.floor or type(self.stack[-1]) is not kind:
            raise self.fault("the pickle appends to a value that is not a container", "stack")
        return self.stack[-1]

    def mark(self) -> None:
        self.marks.append(self.floor)
        self.floor = len(self.stack)

    def items(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self.marks:
            raise self.fault("MARK is missing on the pickle stack", "stack")
        found = self.stack[self.floor :]
        del self.stack[self.floor :]
        self.floor = self.marks.pop()
        return found

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if 2 * self.containers > self.data.position - self.begin + 64:
            raise LimitError(
                "more containers than a pickle of this size can have", rule="pt.pickle.bomb", offset=self.data.position
            )
        self.stack.append(value)

    def sized(self, number: Number) -> bytes:
        """Bytes behind their length."""
        nbytes = number(self.data)
        if nbytes > self.data.left:
            raise self.fault(f"string of {nbytes} bytes extends past the end of the file", "length")
        return self.data.take(nbytes)
