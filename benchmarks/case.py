"""What a benchmark is: a name, a thing to prepare, one action for each library, and a check of what it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Action", "Case", "Check"]

Action: TypeAlias = Callable[[Path], Callable[[], object]]
"""Given the folder of prepared files, does what is not timed and returns what is."""

Check: TypeAlias = Callable[[Path, str, Any], None]
"""Given the folder, the library and what the timed call returned, raises AssertionError if that is wrong."""


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
    extra_nbytes: int | None = None
    """How much memory we mean to take at most, beyond what the process had before."""
    check: Check | None = None
    """None where the action itself asserts."""
    requires: tuple[str, ...] = ()
    """Distributions without which there is nothing to compare."""
    quick: bool = False
    """One of the few that `make bench-quick` runs."""
