"""`tensorglot formats`"""

from __future__ import annotations

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import Column, print_fields, print_json, print_table

__all__ = ["command"]


@click.command
@as_json
def command(as_json: bool) -> None:
    """List the formats with what each can read, write and hold.

    The first version under "writes" is the default. Element types and layouts are in
    the output of --json.

    \b
    Examples:
      tensorglot formats
      tensorglot formats --json | jq '.[] | {name, dtypes}'
    """
    import tensorglot as tg

    rows = tg.formats()
    if as_json:
        print_json([row.to_dict() for row in rows])
        return
    print_table(
        [
            Column("format", [row.name for row in rows]),
            Column("suffix", [" ".join(row.suffixes) for row in rows]),
            Column("reads", [" ".join(row.versions) or "-" for row in rows]),
            Column("writes", [" ".join(row.writes) or "-" for row in rows]),
            Column("metadata", [row.metadata for row in rows]),
            Column("compression", [" ".join(row.compression) or "-" for row in rows]),
        ]
    )
    print()
    print_fields([(f"{row.name}@{version}", note) for row in rows for version, note in row.notes.items()])
    print()
    print_fields([(f"checksums of {row.name}", " ".join(row.checksums)) for row in rows if row.checksums])
