"""`tensorglot report`"""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from tensorglot.cli.options import PATH, reading_options, source_of, storage_options, verb_options
from tensorglot.cli.terminal import escape_whole, message, print_json
from tensorglot.errors import human_nbytes

__all__ = ["command"]


@click.command
@click.argument("file", type=PATH, required=False)
@click.argument("file2", type=PATH, required=False)
@click.option(
    "-o", "--output", type=PATH, metavar="HTML", required=True, help="The page to write, also at a URL; - is stdout."
)
@reading_options
def command(file: str | None, file2: str | None, output: str, format: str | None, as_json: bool) -> None:
    """Write a page with pictures of every tensor, or of what changed.

    One HTML file that works without a network: a map of the file, the tree of names,
    and for each tensor a histogram, quantiles, norms and a heat map. With two files it
    shows which tensors changed, how much, and where inside. Without a file it is a page
    that opens files dropped on it and reads their headers in the browser. Every value
    is read once, in bounded memory; for files too large for that there is
    `tensorglot view`.

    \b
    Examples:
      tensorglot report model.bt -o model.html
      tensorglot report before.bt after.bt -o changes.html
      tensorglot report -o open.html
    """
    from tensorglot.report import opener, write

    if as_json and output == "-":
        raise click.UsageError("--json cannot be used when the page goes to stdout: write to a file.")
    target: str | BinaryIO = sys.stdout.buffer if output == "-" else output
    if file is None:
        nbytes = opener(target, storage_options=storage_options())
    else:
        other = None if file2 is None else source_of(file2)
        with verb_options("reading") as options:
            nbytes = write(source_of(file), target, other=other, format=format, **options)
    if output == "-":
        return
    if as_json:
        print_json({"file": file, "file2": file2, "output": output, "nbytes": nbytes})
    else:
        message(f"wrote {escape_whole(output)}, {human_nbytes(nbytes)}: open it in a browser")
