"""`tensorglot formats`"""

from __future__ import annotations

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.terminal import Column, print_fields, print_json, print_table

__all__ = ["command"]


@click.command
@as_json
def command(as_json: bool) -> None:
    """List the formats and what each can read, write and store.

    The first version under "writes" is the default. Element types and layouts are in
    the output of --json.

    \b
    Examples:
      tensorglot formats
      tensorglot formats --json | jq '.[] | {name, dtypes}'
    """
    import tensorglot as tg

    specs = tg.formats()
    if as_json:
        print_json([spec.to_dict() for spec in specs])
        return
    print_table(
        [
            Column("format", [spec.name for spec in specs]),
            Column("suffix", [" ".join(spec.suffixes) for spec in specs]),
            Column("reads", [" ".join(spec.versions) or "-" for spec in specs]),
            Column("writes", [" ".join(spec.writes) or "-" for spec in specs]),
            Column("metadata", [spec.metadata for spec in specs]),
            Column("compression", [" ".join(spec.compression) or "-" for spec in specs]),
        ]
    )
    print()
    print_fields([(f"{spec.name}@{version}", note) for spec in specs for version, note in spec.notes.items()])
    print()
    print_fields([(f"checksums of {spec.name}", " ".join(spec.checksums)) for spec in specs if spec.checksums])
