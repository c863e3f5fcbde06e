"""A benchmark: a name, a preparation, one action for each library, and a check of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["FIRST_USE", "Action", "Case", "Check", "Counted"]

FIRST_USE = "first_use"
"""The name of a folder in the one of the prepared files."""

Action: TypeAlias = Callable[[Path], Callable[[], object]]
"""Given the folder of prepared files, does what is not timed and returns what is."""

Check: TypeAlias = Callable[[Path, str, Any], None]
"""Given the folder, the library and what the timed call returned, raises AssertionError if that is wrong."""


class Counted(dict[str, float]):
    """Counts that a timed call returns, such as requests. `ms` in them replaces the time measured around the call."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    actions: Mapping[str, Action]
    """By library; the first is ours."""
    prepare: Callable[[Path], None]
    payload_nbytes: int
    """How much memory the action will need: touched and freed before the clock starts."""
    repeats: int = 1
    """Calls in one process, of which the quickest counts."""
    goals: Mapping[str, float] = field(default_factory=dict)
    """How many times quicker than a library we mean to be."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The most that a figure of ours may be: `ms`, `extra_nbytes`, or what the action counts."""
    check: Check | None = None
    """None where the action itself asserts."""
    first_use: bool = False
    """Every library does its action once before the clock starts, because many import half of themselves only
    then: with small files, which `prepare` makes in a folder named FIRST_USE. Not needed where the
    quickest of several repeats counts."""
    requires: tuple[str, ...] = ()
    """Distributions and programs without which there is nothing to compare."""
    rounds: int = 5
    """Processes for each library in a full run."""
    together: str = ""
    """Cases with this in common take turns in one loop, and an action that several of them have is measured once."""
    quick: bool = False
    """One of the few that `make bench-quick` runs."""
