"""`tensorglot hash`"""

from __future__ import annotations

import sys

import click

from tensorglot.cli.options import as_json, counted, file_argument, patterns_argument, reading_format, source_of
from tensorglot.cli.terminal import print_json, progress_bar
from tensorglot.errors import escape

__all__ = ["command"]


@click.command
@file_argument
@patterns_argument
@reading_format
@as_json
def command(file: str, patterns: tuple[str, ...], format: str | None, as_json: bool) -> None:
    """Print the identity of every tensor, and of them all.

    A CID says type, shape and values: it is the same for the same tensor in every
    container, compressed or not. The last line is for all tensors together, by name;
    it leaves out metadata. Checksums are checked where there are any.

    \b
    Examples:
      tensorglot hash model.bt
      tensorglot hash model.bt --json | jq -r .cid
    """
    import tensorglot as tg
    from tensorglot.operations.choose import selected
    from tensorglot.operations.identity import cids, together

    with tg.open(source_of(file), format=format, verify="lazy") as archive, progress_bar("hashing") as progress:
        found = dict(cids(archive, selected(archive.index.names, patterns or None), progress))
    if as_json:
        print_json({"file": file, "cid": together(found), "tensors": found})
        return
    for name, cid in found.items():
        print(f"{cid}  {escape(name, longest=sys.maxsize)}")
    print(f"\n{together(found)}  together, {counted(len(found), 'tensor')}")
