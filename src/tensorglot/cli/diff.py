"""`tensorglot diff`: the result of `tg.diff` as a table or as JSON, and an exit code.

A tensor has one row, whatever differs about it. Metadata has a row for each key.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import click

from tensorglot.cli.options import PATH, as_json, source_of, storage_option, verb_options
from tensorglot.cli.terminal import (
    WIDE,
    Column,
    informative,
    name_text,
    natural_order,
    print_json,
    print_table,
)
from tensorglot.errors import escape, plural
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    from tensorglot.operations._compare import Comparison
    from tensorglot.operations.diff import Change, Diff

__all__ = ["COLOURS", "command", "print_diff"]

COLOURS = {"added": "green", "removed": "red", "shape": "magenta", "type": "magenta", "layout": "magenta"}
"""Colour of a row on a terminal, by its change. A row in which many values changed is yellow."""
MANY = 0.1
"""The share of a tensor's values that counts as many."""


class Row(NamedTuple):
    """All changes of one tensor, or one of the metadata."""

    changes: Sequence[Change]

    @property
    def name(self) -> str:
        first = self.changes[0]
        if first.tensor is None:
            return str(first.key)
        parts = {change.key for change in self.changes}
        return f"{first.tensor}#{first.key}" if len(parts) == 1 and first.key is not None else first.tensor

    @property
    def values(self) -> Comparison | None:
        found = [change.values for change in self.changes if change.values is not None]
        return reduce(add, found) if found else None


SORTS: dict[str, Callable[[Row], tuple[float, list[tuple[int, str]]]]] = {
    "name": lambda row: (0.0, natural_order(row.name)),
    "absolute": lambda row: (-_largest(row, "largest_absolute"), natural_order(row.name)),
    "relative": lambda row: (-_largest(row, "largest_relative"), natural_order(row.name)),
    "share": lambda row: (-_largest(row, "share"), natural_order(row.name)),
}


def _largest(row: Row, measure: str) -> float:
    """A measure of a row, to sort by; -1 for rows without it (added, removed, another shape), which come last."""
    found = None if row.values is None else getattr(row.values, measure)
    return -1.0 if found is None else float(found)


@click.command
@click.argument("one", type=PATH)
@click.argument("two", type=PATH)
@click.option("--atol", type=click.FloatRange(min=0), default=0.0, help="Absolute tolerance.")
@click.option("--rtol", type=click.FloatRange(min=0), default=0.0, help="Tolerance relative to the larger magnitude.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), help="By name, or by the largest difference or share; default: as in ONE."
)
@click.option("--limit", type=click.IntRange(min=1), help="Show only this many rows.")
@storage_option
@as_json
def command(one: str, two: str, atol: float, rtol: float, sort: str | None, limit: int | None, as_json: bool) -> int:
    """Compare two files: names, types, shapes, values, metadata.

    Exits with 1 if they differ. Formats do not count: the same tensors in two formats
    are the same. NaN equals NaN. Numbers are the same if they differ by at most atol +
    rtol times the larger of the two magnitudes; relative differences are relative to
    that one, too. Each tensor that differs has one row, and the last line sums up. Values
    are compared in bounded memory. - is stdin.

    \b
    Examples:
      tensorglot diff before.bt after.bt
      tensorglot diff before.bt after.bt --rtol 1e-3 --sort absolute --limit 10
      tensorglot diff model.bt model.zt && rm model.bt
      tensorglot diff before.bt after.bt --json | jq '.changes[].tensor'
    """
    import tensorglot as tg

    with verb_options("comparing") as options:
        found = tg.diff(source_of(one), source_of(two), atol=atol, rtol=rtol, **options)
    return print_diff(found, one, two, sort=sort, limit=limit, as_json=as_json)


def print_diff(
    found: Diff, one: str, two: str, *, sort: str | None = None, limit: int | None = None, as_json: bool
) -> int:
    """Prints the differences; returns the exit code."""
    rows = _rows(found)
    if sort is not None:
        rows.sort(key=SORTS[sort])
    shown = rows[:limit]
    if as_json:
        changes = [change.to_dict() for row in shown for change in row.changes]
        print_json({"one": one, "two": two, **found.to_dict(), "changes": changes})
    elif found.same:
        print(f"the same: {plural(found.tensors, 'tensor')}")
    else:
        _print(shown)
        if len(shown) < len(rows):
            print(f"… {len(rows) - len(shown):,} more of {plural(len(rows), 'row')}")
        print(_summary(found, rows))
    return 0 if found.same else 1


def _rows(found: Diff) -> list[Row]:
    """The changes grouped by tensor, in the order of the files."""
    groups: dict[tuple[str | None, str | None], list[Change]] = {}
    for change in found.changes:
        groups.setdefault((change.tensor, None if change.tensor is not None else change.key), []).append(change)
    return [Row(changes) for changes in groups.values()]


def _print(rows: Sequence[Row]) -> None:
    values = [row.values for row in rows]
    differences = [", ".join(filter(None, map(_difference, row.changes))) for row in rows]
    kinds = [", ".join(dict.fromkeys(change.kind for change in row.changes)) for row in rows]
    columns = [
        Column("name", [name_text(row.name) for row in rows], elastic=True),
        Column("change", kinds),
        Column("difference", differences, elastic=max(map(len, differences)) > WIDE),
        Column("absolute", ["" if v is None else _number(v.largest_absolute) for v in values], right=True),
        Column("relative", ["" if v is None else _number(v.largest_relative) for v in values], right=True),
        Column("NaN", ["" if v is None or not v.nan else f"{v.nan:,}" for v in values], right=True),
        Column("bits", ["" if v is None or not v.bits_only else f"{v.bits_only:,}" for v in values], right=True),
    ]
    print_table([column for column in columns if informative(column, "")], list(map(_colour, rows)))


def _colour(row: Row) -> str | None:
    found = next((COLOURS[change.kind] for change in row.changes if change.kind in COLOURS), None)
    return found or ("yellow" if row.values is not None and row.values.share >= MANY else None)


def _summary(found: Diff, rows: Sequence[Row]) -> str:
    """How many tensors differ, in what, and by how much at most."""
    kinds = Counter(kind for row in rows for kind in {change.kind for change in row.changes})
    keys = kinds.pop("metadata", 0)
    text = f"different: {found.tensors - found.equal:,} of {plural(found.tensors, 'tensor')}"
    if kinds:
        text += f" ({', '.join(f'{count:,} {kind}' for kind, count in sorted(kinds.items()))})"
    values = [row.values for row in rows if row.values is not None]
    most = [each.largest_absolute for each in values if each.largest_absolute]
    text += f", by at most {_number(max(most))}" if most else ""
    nan = sum(each.nan for each in values)
    text += f", {nan:,} NaN on one side" if nan else ""
    return text + (f"; {plural(keys, 'metadata key')}" if keys else "")


def _difference(change: Change) -> str:
    """Old and new; for values, the number and share of changed elements."""
    values = change.values
    if values is not None:
        return f"{values.changed:,} of {values.count:,}, {values.share:.2%}"
    if change.kind == "unreadable":
        return change.what
    narrow = change.kind == "metadata" and sys.stdout.isatty()  # leaves room for the names of tensors
    longest = shutil.get_terminal_size().columns // 5 if narrow else 200
    sides = ["-" if side is None else escape(str(side), longest=longest) for side in (change.old, change.new)]
    return "" if sides == ["-", "-"] else " → ".join(sides)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
