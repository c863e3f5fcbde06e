"""A file system that fails on request: stands in for the `os` module of one of ours.

Every call of a file operation is counted. At the chosen one the fault strikes: an
OSError or a KeyboardInterrupt in place of the operation, or an interrupt directly
after it. A close that fails has closed, as on Linux. `lacks` has the operations that
this file system does not have (O_TMPFILE, link), `answers` what an operation returns
instead of being done.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["OPERATIONS", "FaultyOs", "copied_nbytes"]

OPERATIONS = frozenset(
    {
        "close", "copy_file_range", "fchmod", "fchown", "fstat", "fsync", "ftruncate", "link", "open",
        "posix_fallocate", "pread", "pwrite", "rename", "stat", "unlink",
    }
)  # fmt: skip


def copied_nbytes(do: Callable[[], object]) -> int:
    """How many bytes the operating system copies (copy_file_range) while something is done."""
    copied: list[int] = []
    copy = os.copy_file_range

    def counted(*arguments: Any) -> int:
        copied.append(copy(*arguments))
        return copied[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "copy_file_range", counted)
        do()
    return sum(copied)


class FaultyOs:
    """`FaultyOs(3, OSError(ENOSPC, "full"))` fails the third operation; `after` lets it happen first."""

    def __init__(self, strike: int = 0, fault: BaseException | None = None, *, after: bool = False) -> None:
        self.strike = strike
        self.fault = fault
        self.after = after
        self.struck = False
        self.calls: list[str] = []
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda name, arguments: None
        self.short_writes = False
        self.lacks: frozenset[str] = frozenset()
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in OPERATIONS:
            return real

        def operation(*arguments: Any, **options: Any) -> Any:
            self.before(name, arguments)
            self.calls.append(name)
            unnamed = name == "open" and arguments[1] & os.O_TMPFILE == os.O_TMPFILE
            if name in self.lacks or (unnamed and "O_TMPFILE" in self.lacks):
                raise OSError(errno.EOPNOTSUPP, "not supported")
            strikes = len(self.calls) == self.strike and self.fault is not None
            self.struck = self.struck or strikes
            if strikes and not self.after and name != "close":
                raise self.fault  # type: ignore[misc]
            if name == "pwrite" and self.short_writes:
                arguments = (arguments[0], arguments[1][: max(1, len(arguments[1]) // 3)], arguments[2])
            result = self.answers[name] if name in self.answers else real(*arguments, **options)
            if strikes:
                raise self.fault  # type: ignore[misc]
            return result

        return operation
