"""`tensorglot hash`"""

from __future__ import annotations

import sys

import click

from tensorglot.cli.options import as_json, counted, file_argument, patterns_argument, reading_format, source_of
from tensorglot.cli.terminal import message, one_line, print_json, progress_bar
from tensorglot.errors import FormatError, escape

__all__ = ["command"]


@click.command
@file_argument
@patterns_argument
@reading_format
@as_json
def command(file: str, patterns: tuple[str, ...], format: str | None, as_json: bool) -> int:
    """Print the identity of every tensor, and of them all.

    A CID says type, shape and values: it is the same for the same tensor in every
    container, compressed or not. The last line is for all tensors together, by name;
    it leaves out metadata. Checksums are checked where there are any: a tensor that
    fails has no CID, is named, and makes the exit code 1.

    \b
    Examples:
      tensorglot hash model.bt
      tensorglot hash model.bt --json | jq -r .cid
    """
    import tensorglot as tg
    from tensorglot.operations._patterns import selected
    from tensorglot.operations.identify import cids, together
    from tensorglot.operations.verify import Problem

    with tg.open(source_of(file), format=format, verify="auto") as archive, progress_bar("hashing") as progress:
        given = list(cids(archive, selected(archive.index.names, patterns or None), progress))
    found = {name: cid for name, cid in given if isinstance(cid, str)}
    wrong = [error for _, error in given if not isinstance(error, str)]
    whole = None if wrong else together(found)
    if as_json:
        problems = [Problem.of(error).to_dict() for error in wrong]
        print_json({"file": file, "cid": whole, "tensors": found, "problems": problems})
    else:
        for name, cid in found.items():
            print(f"{cid}  {escape(name, longest=sys.maxsize)}")
        for error in wrong:
            message(one_line(str(error)))
        if whole is not None:
            print(f"\n{whole}  together, {counted(len(found), 'tensor')}")
    return 1 if any(isinstance(error, FormatError) for error in wrong) else 4 if wrong else 0
