"""`tensorglot ls`: a line for each tensor, from the columns of the index. Reads no tensor.

A column with the same value in every line is printed once, below the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tensorglot.cli.options import (
    as_json,
    file_argument,
    patterns_argument,
    ratio_text,
    reading_format,
    shape_text,
    source_of,
)
from tensorglot.cli.terminal import Column, escape_whole, informative, print_json, print_table
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.operations.listing import Entry

__all__ = ["command"]


@click.command
@file_argument
@patterns_argument
@click.option("-l", "--long", is_flag=True, help="Also offset, encoding, ratio, layout, parts and checksum.")
@reading_format
@as_json
def command(file: str, patterns: tuple[str, ...], long: bool, format: str | None, as_json: bool) -> None:
    """List the tensors of a file.

    With patterns, only those whose names match one of them, as in a shell: * matches
    any characters, ? any one. On a terminal long names are shortened in the middle, in
    a pipe they are not. Unprintable characters are escaped.

    \b
    Examples:
      tensorglot ls model.bt
      tensorglot ls model.bt 'layers.0.*' --long
      tensorglot ls model.bt --json | jq '.tensors[].name'
    """
    import tensorglot as tg
    from tensorglot.operations._patterns import select_names
    from tensorglot.operations.listing import entries

    with tg.open(source_of(file), format=format) as archive:
        rows = entries(archive, select_names(archive.index.names, patterns) if patterns else None)
        kind = archive.format
    nbytes = sum(row.nbytes for row in rows)
    if as_json:
        tensors = [row.to_dict() for row in rows]
        print_json({"file": file, "format": kind, "tensors": tensors, "count": len(rows), "nbytes": nbytes})
        return
    columns = [
        Column("name", [escape_whole(row.name) for row in rows], elastic=True),
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


def _long_columns(rows: Sequence[Entry]) -> tuple[list[Column], list[str]]:
    """Columns of the long form, and the values of those that are the same in every row."""
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
