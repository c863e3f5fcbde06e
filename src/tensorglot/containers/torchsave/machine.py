"""The state of a pickle interpreter: a stack, its marks, a memo, and the storages found so far. Executes nothing.

A dict is a list of its pairs, so no value of a pickle is hashed. A pickle can create a
container with one byte; a real pickler spends two, so their number is bounded by the
length. So is the work of calls, whose arguments may be large and referred to many times.
"""

from __future__ import annotations

from typing import Any

from tensorglot.containers.torchsave.names import WORK, Pairs, Storage, View
from tensorglot.errors import FormatError, LimitError
from tensorglot.kernels.pickle_steps import steps
from tensorglot.wire.fetch import Fetched

__all__ = ["Machine"]

_TYPES = Pairs, Storage, View


class Machine:
    def __init__(self, data: Fetched, names: dict[str, Any], storages: dict[str, Storage]) -> None:
        """`names` has the value of each allowed global; `storages` collects the referenced storages."""
        self.data = data
        self.names = names
        self.storages = storages
        self.begin = data.position
        self.stack: list[Any] = []
        self.floor = 0
        """Stack position of the last mark."""
        self.marks: list[int] = []
        self.memo: list[Any] = []
        self.containers = 0
        self.work = 0

    def advance(self) -> int:
        """Takes the steps that need only the stack and the memo; returns the opcode that follows them."""
        data, at = self.data.ahead()
        state = [self.floor, self.containers, self.work]
        begin = at - (self.data.position - self.begin)
        end = steps(data, at, begin, state, self.stack, self.marks, self.memo, self.names, _TYPES, WORK)
        self.floor, self.containers, self.work = state
        self.data.skip(end - at)
        return self.data.byte()

    def fault(self, message: str, rule: str) -> FormatError:
        return FormatError(message, rule=f"pt.pickle.{rule}", offset=self.data.position)

    def pop(self) -> Any:
        if len(self.stack) <= self.floor:
            raise self.fault("pickle stack underflow", "stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """The container on top of the stack."""
        if len(self.stack) <= self.floor or type(self.stack[-1]) is not kind:
            raise self.fault("the pickle appends to a value that is not a container", "stack")
        return self.stack[-1]

    def mark(self) -> None:
        self.marks.append(self.floor)
        self.floor = len(self.stack)

    def items(self) -> list[Any]:
        """Pops the values pushed since the last mark."""
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

    def charge(self, count: int) -> None:
        """Counts values that are looked at again: a memo lets two bytes refer to a container of any size."""
        self.work += count
        if self.work > 4 * (self.data.position - self.begin) + 4096:
            raise LimitError(
                "more work than a pickle of this size needs", rule="pt.pickle.bomb", offset=self.data.position
            )
