"""`tensorglot ls`: a line for each tensor, from the columns of the index. Reads no tensor.

A column with the same value in every line is printed once, below the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.options import (
    file_argument,
    patterns_argument,
    ratio_text,
    reading_options,
    shape_text,
    source_of,
    storage_options,
)
from tensorglot.cli.terminal import Column, informative, name_text, natural_order, print_json, print_table, screen_lines
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.operations.listing import Entry
    from tensorglot.operations.tree import Branch

__all__ = ["command"]

SORTS: dict[str, Callable[[Entry], Any]] = {
    "size": lambda row: -row.nbytes,
    "name": lambda row: natural_order(row.name),
    "dtype": lambda row: (row.dtype, natural_order(row.name)),
}
BRANCH_SORTS: dict[str, Callable[[Branch], Any]] = {
    "size": lambda branch: -branch.nbytes,
    "name": lambda branch: natural_order(branch.prefix),
    "dtype": lambda branch: ("" if branch.entry is None else branch.entry.dtype, natural_order(branch.prefix)),
}
AROUND = 4
"""Lines of a screen for the titles, the total and the prompts."""


@click.command
@file_argument
@patterns_argument
@click.option("-l", "--long", is_flag=True, help="Also offset, encoding, ratio, layout, parts and checksum.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), help="By size (largest first), name or dtype; default: as in the file."
)
@click.option("--tree", is_flag=True, help="Prefixes of names, with their totals.")
@click.option("--depth", type=click.IntRange(min=1), help="Levels of the tree; default: as many as fit the screen.")
@reading_options
def command(
    file: str,
    patterns: tuple[str, ...],
    long: bool,
    sort: str | None,
    tree: bool,
    depth: int | None,
    format: str | None,
    as_json: bool,
) -> None:
    """List the tensors of a file.

    With patterns, only those whose names match one of them, as in a shell: * matches
    any characters, ? any one. On a terminal long names are shortened in the middle, in
    a pipe they are not. Unprintable characters are escaped.

    \b
    Examples:
      tensorglot ls model.bt
      tensorglot ls model.bt 'layers.0.*' --long
      tensorglot ls model.bt --sort size | head
      tensorglot ls model.bt --tree --depth 2
      tensorglot ls model.bt --json | jq '.tensors[].name'
    """
    import tensorglot as tg

    if depth is not None and not tree:
        raise click.UsageError("--depth needs --tree.")
    if tree and long:
        raise click.UsageError("--tree and --long cannot be combined.")
    from tensorglot.operations._patterns import select_names
    from tensorglot.operations.listing import entries

    with tg.open(source_of(file), format=format, storage_options=storage_options()) as archive:
        rows = entries(archive, select_names(archive.index.names, patterns) if patterns else None)
        kind = archive.format
    nbytes = sum(row.nbytes for row in rows)
    if tree:
        _print_tree(file, kind, rows, sort, depth, as_json=as_json)
        return
    if sort is not None:
        rows = sorted(rows, key=SORTS[sort])
    if as_json:
        tensors = [row.to_dict() for row in rows]
        print_json({"file": file, "format": kind, "tensors": tensors, "count": len(rows), "nbytes": nbytes})
        return
    columns = [
        Column("name", [name_text(row.name) for row in rows], elastic=True),
        Column("dtype", [escape(row.dtype) for row in rows]),
        Column("shape", [shape_text(row.shape) for row in rows], elastic=True),
        Column("size", [human_nbytes(row.nbytes) for row in rows], right=True),
    ]
    layout = Column("layout", [escape(row.layout) for row in rows], elastic=True)
    if not long and informative(layout, "dense"):
        columns.append(layout)
    total = f"{plural(len(rows), 'tensor')}, {human_nbytes(nbytes)}"
    if long:
        more, alike = _long_columns(rows)
        columns += more
        total += f"; {', '.join(alike)}" if rows and alike else ""
    print_table(columns)
    print(total)


def _print_tree(
    file: str, format: str, rows: Sequence[Entry], sort: str | None, depth: int | None, *, as_json: bool
) -> None:
    from tensorglot.operations.tree import branches, depth_that_fits

    fitting = depth or depth_that_fits(rows, screen_lines() - AROUND)
    nbytes = sum(row.nbytes for row in rows)
    key = None if sort is None else BRANCH_SORTS[sort]
    found = branches(rows, fitting, key)
    if as_json:
        tree = [branch.to_dict() for branch in found]
        print_json({"file": file, "format": format, "tree": tree, "count": len(rows), "nbytes": nbytes})
        return
    leaves = [branch.entry for branch in found]
    kinds = Column("dtype", ["" if leaf is None else escape(leaf.dtype) for leaf in leaves])
    shapes = Column("shape", ["" if leaf is None else shape_text(leaf.shape) for leaf in leaves], elastic=True)
    print_table(
        [
            Column("name", ["  " * b.level + name_text(b.label) for b in found], elastic=True),
            Column("tensors", [f"{b.tensors:,}" if b.entry is None else "" for b in found], right=True),
            Column("elements", [f"{b.elements:,}" for b in found], right=True),
            Column("size", [human_nbytes(b.nbytes) for b in found], right=True),
            Column("share", [f"{b.nbytes / nbytes:.1%}" if nbytes else "-" for b in found], right=True),
            *(column for column in (kinds, shapes) if informative(column, "")),
        ]
    )
    more = (
        f"; --depth {fitting + 1} shows more" if any(b.entry is None and b.level + 1 == fitting for b in found) else ""
    )
    print(f"{plural(len(rows), 'tensor')}, {human_nbytes(nbytes)}; {plural(fitting, 'level')} shown{more}")


def _long_columns(rows: Sequence[Entry]) -> tuple[list[Column], list[str]]:
    """Columns of the long form, and the values of columns that are the same in every row."""
    columns, alike = [], []
    if any(row.stored_nbytes != row.nbytes for row in rows):
        columns.append(Column("stored", [human_nbytes(row.stored_nbytes) for row in rows], right=True))
        columns.append(Column("ratio", [ratio_text(row.nbytes, row.stored_nbytes) for row in rows], right=True))
    columns.append(Column("offset", ["-" if row.offset is None else str(row.offset) for row in rows], right=True))
    for title, usual, cells in (
        ("encoding", "raw", [escape(row.encoding) for row in rows]),
        ("layout", "dense", [escape(row.layout) for row in rows]),
        ("checksum", "none", [escape(row.checksum or "none") for row in rows]),
    ):
        column = Column(title, cells, elastic=True)
        if informative(column, usual):
            columns.append(column)
        else:
            alike.append(f"{title} {usual}")
    if any(row.parts > 1 for row in rows):
        columns.append(Column("parts", [str(row.parts) for row in rows], right=True))
    return columns, alike
