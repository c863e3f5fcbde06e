"""The cards of one archive, or of two that are compared.

A report compares all tensors before it makes cards. A viewer compares a tensor when its
card is opened; which tensors are added, removed, or have another shape or type it knows
from the indexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorglot.model.archive import Archive
from tensorglot.operations.diff import Change, tensor_changes
from tensorglot.report.changes import change_card
from tensorglot.report.data import card

__all__ = ["Cards"]


@dataclass(frozen=True, slots=True)
class Cards:
    """Makes cards; several threads may share it."""

    one: Archive
    two: Archive | None
    cells: int
    changes: Mapping[str, list[Change]] | None = None
    """The changes of all tensors; None if a tensor is compared when its card is requested."""

    @property
    def names(self) -> list[str]:
        """The names of the first archive, then those that only the second has."""
        return [*self.one, *(name for name in self.two or () if name not in self.one)]

    def changes_of(self, name: str) -> list[Change]:
        if self.two is None:
            return []
        return tensor_changes([name], self.one, self.two) if self.changes is None else self.changes.get(name, [])

    def card(self, name: str) -> dict[str, Any]:
        archive = self.one if name in self.one or self.two is None else self.two
        made = card(archive[name], self.cells)
        changes = self.changes_of(name)
        if changes and self.two is not None:
            made["changes"] = change_card(changes, self.one, self.two, self.cells)
            if archive is self.one and name in self.two:
                made["after"] = card(self.two[name], self.cells)
        return made
