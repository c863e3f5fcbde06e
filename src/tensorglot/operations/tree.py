"""The names of an archive as a tree of prefixes, each with its totals.

A name is split at its dots and slashes. The tree is built level by level, as deep as is
shown and no deeper, so that names of any depth cost no recursion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensorglot.operations.listing import Entry
from tensorglot.tuples import NamedTuple

__all__ = ["DEEPEST", "Branch", "branches", "depth_that_fits"]

DEEPEST = 64
"""Levels that are looked at to find those that fit."""
_SEPARATOR = re.compile(r"(?<=[./])")
_NUMBER = re.compile(r"[0-9]{1,18}")


class Branch(NamedTuple):
    """A prefix of names, or a whole name."""

    prefix: str
    level: int
    tensors: int
    elements: int
    nbytes: int
    entry: Entry | None
    """The tensor, where the prefix is a name."""

    @property
    def label(self) -> str:
        """The last component, with its separator if there is more below it."""
        return self.prefix[max(self.prefix.rfind(".", 0, -1), self.prefix.rfind("/", 0, -1)) + 1 :]

    def to_dict(self) -> dict[str, Any]:
        dtype = None if self.entry is None else self.entry.dtype
        return {**self._asdict(), "entry": None if self.entry is None else self.entry.name, "dtype": dtype}


def branches(entries: Sequence[Entry], depth: int, key: Callable[[Branch], Any] | None = None) -> list[Branch]:
    """All prefixes of at most `depth` components, each before those below it, siblings in the order of `key`.

    Without a key, as in the file; by number where their components begin with one.
    """

    def below(prefix: str, level: int, entries: Sequence[Entry]) -> list[tuple[Branch, list[Entry]]]:
        groups = _group(entries, len(prefix))
        made = [(_branch(name, level, groups[name]), groups[name]) for name in _by_number(groups, len(prefix))]
        if key is not None:
            made.sort(key=lambda pair: key(pair[0]))
        return made[::-1]  # `waiting` is a stack: the first of them must be popped first

    found: list[Branch] = []
    waiting = below("", 0, entries)
    while waiting:
        branch, inside = waiting.pop()
        found.append(branch)
        if branch.entry is None and branch.level + 1 < depth:
            waiting += below(branch.prefix, branch.level + 1, inside)
    return found


def _group(entries: Iterable[Entry], start: int) -> dict[str, list[Entry]]:
    """Entries by their prefix that is one component longer."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        cut = _SEPARATOR.search(entry.name, start + 1)
        end = len(entry.name) if cut is None else cut.start()
        groups.setdefault(entry.name[:end], []).append(entry)
    return groups


def _by_number(prefixes: Iterable[str], start: int) -> list[str]:
    """In the order of the file; by number where all components begin with one: 2 before 10."""
    found = list(prefixes)
    numbers = [_NUMBER.match(prefix, start) for prefix in found]
    if all(numbers):
        found.sort(key=dict(zip(found, (int(number[0]) for number in numbers if number), strict=True)).__getitem__)
    return found


def _branch(prefix: str, level: int, entries: Sequence[Entry]) -> Branch:
    leaf = entries[0] if len(entries) == 1 and entries[0].name == prefix else None
    elements = sum(math.prod(entry.shape) for entry in entries)
    return Branch(prefix, level, len(entries), elements, sum(entry.nbytes for entry in entries), leaf)


def depth_that_fits(entries: Sequence[Entry], lines: int) -> int:
    """The largest depth whose tree has at most that many lines; at least 1."""
    total, depth = 0, 0
    starts = [(entry.name, 0) for entry in entries]
    while starts and depth < DEEPEST:
        ends: dict[str, None] = {}
        deeper = []
        for name, start in starts:
            cut = _SEPARATOR.search(name, start + 1)
            end = len(name) if cut is None else cut.start()
            ends[name[:end]] = None
            if end < len(name):
                deeper.append((name, end))
        total += len(ends)
        if total > lines:
            break
        depth += 1
        starts = deeper
    return max(1, depth)
