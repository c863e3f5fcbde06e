"""`tensorglot diff`: the result of `tg.diff` as a table or as JSON, and an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorglot.cli.options import as_json, source_of
from tensorglot.cli.terminal import WIDE, Column, escape_whole, informative, print_json, print_table, progress_bar
from tensorglot.errors import escape, plural

if TYPE_CHECKING:
    from tensorglot.operations.diff import Change, Diff

__all__ = ["command", "print_diff"]


@click.command
@click.argument("one", type=click.Path())
@click.argument("two", type=click.Path())
@as_json
def command(one: str, two: str, as_json: bool) -> int:
    """Compare two files: names, types, shapes, values, metadata.

    Exits with 1 if they differ. Formats do not count: the same tensors in two formats
    are the same. NaN equals NaN. The relative difference is to the larger of the two
    magnitudes. Values are compared in bounded memory. - is stdin.

    \b
    Examples:
      tensorglot diff before.bt after.bt
      tensorglot diff model.bt model.zt && rm model.bt
      tensorglot diff a.bt b.bt --json | jq '.changes[].tensor'
    """
    import tensorglot as tg

    with progress_bar("comparing") as progress:
        found = tg.diff(source_of(one), source_of(two), progress=progress)
    return print_diff(found, one, two, as_json=as_json)


def print_diff(found: Diff, one: str, two: str, *, as_json: bool) -> int:
    """Prints the differences; returns the exit code."""
    if as_json:
        print_json({"one": one, "two": two, **found.to_dict()})
    else:
        _print(found)
    return 0 if found.same else 1


def _print(found: Diff) -> None:
    tensors = plural(found.tensors, "tensor")
    if found.same:
        print(f"the same: {tensors}")
        return
    changes = found.changes
    values = [change.values for change in changes]
    differences = [_difference(change) for change in changes]
    columns = [
        Column("name", [_name(change) for change in changes], elastic=True),
        Column("change", [change.kind for change in changes]),
        Column("difference", differences, elastic=max(map(len, differences)) > WIDE),
        Column("absolute", ["" if v is None else _number(v.largest_absolute) for v in values], right=True),
        Column("relative", ["" if v is None else _number(v.largest_relative) for v in values], right=True),
        Column("NaN", ["" if v is None or not v.nan else f"{v.nan:,}" for v in values], right=True),
        Column("bits", ["" if v is None or not v.bits_only else f"{v.bits_only:,}" for v in values], right=True),
    ]
    print_table([column for column in columns if informative(column, "")])
    print(f"different: {plural(found.tensors - found.equal, 'tensor')} of {found.tensors:,}, {found.equal:,} equal")


def _name(change: Change) -> str:
    name = "#".join(part for part in (change.tensor, change.key) if part is not None)
    return escape_whole(name)


def _difference(change: Change) -> str:
    """Old and new; for values, the number and share of those that changed."""
    values = change.values
    if values is not None:
        return f"{values.changed:,} of {values.count:,}, {values.share:.2%}"
    sides = ["-" if side is None else escape(str(side), longest=200) for side in (change.old, change.new)]
    return "" if sides == ["-", "-"] else " → ".join(sides)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
