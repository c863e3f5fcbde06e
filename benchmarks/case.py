"""What a benchmark is: a name, a thing to prepare, and one action for each library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

__all__ = ["Action", "Case"]

Action: TypeAlias = Callable[[Path], Callable[[], object]]
"""Given the folder of prepared files, does what is not timed and returns what is."""


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
