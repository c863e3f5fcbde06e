"""`tensorglot cat`"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import click

from tensorglot.cli.complete import complete_names
from tensorglot.cli.options import PATH, file_argument, reading_options, source_of, storage_options_of, write_output
from tensorglot.cli.terminal import clip, message, screen_lines

__all__ = ["command"]

MOST_WIDTH = 2000
"""Characters of a line that are kept in memory: no terminal is wider."""


@click.command
@file_argument
@click.argument("name", shell_complete=complete_names)
@click.argument("index", default="...")
@click.option("--npy", is_flag=True, help="Write a .npy file instead of text.")
@click.option("-o", "--output", type=PATH, help="Write to this file, atomically; also at a URL.")
@reading_options
def command(file: str, name: str, index: str, npy: bool, output: str | None, format: str | None, as_json: bool) -> None:
    """Print a tensor or a slice of it.

    INDEX is a basic NumPy index: integers, slices, ... and None. Only the selection
    is read.

    As text, a vector has a value per line; with more dimensions, each line is a row,
    with an empty line between matrices. On a terminal, output of more than a screen is
    shortened, and a message says so; in a pipe and with -o it is complete. With --json
    a complex number is a pair, and NaN and the infinities are text.

    \b
    Examples:
      tensorglot cat model.bt lm_head.weight '[10:20, ::2]'
      tensorglot cat model.bt lm_head.weight '[0, -5:]' --json
      tensorglot cat model.bt lm_head.weight --npy -o head.npy
    """
    import tensorglot as tg
    from tensorglot.io.stream import write_stream
    from tensorglot.operations.excerpt import json_document, npy_bytes, parse_index, text_lines

    if npy and as_json:
        raise click.UsageError("--npy and --json cannot be combined.")
    if npy and output is None and sys.stdout.isatty():
        raise click.UsageError("stdout is a terminal: redirect the .npy file, or pass -o FILE.")
    chosen = parse_index(index)
    of_source, _ = storage_options_of(file, output)
    with tg.open(source_of(file), format=format, storage_options=of_source) as archive:
        tensor = archive[name]
        form = npy_bytes if npy else json_document if as_json else text_lines
        pieces = form(tensor, chosen)
        if output is None and form is text_lines and sys.stdout.isatty():
            _print_screen(pieces, tensor.ndim)
        elif output is None:
            write_stream(sys.stdout.buffer, pieces)
        else:
            write_output(output, pieces)
    kind = tensor.dtype
    if npy and kind is not None and kind.isbuiltin != 1:
        message(
            f"NumPy has no dtype {kind}: read it with tensorglot, or numpy.load(file)['{kind}'].view(ml_dtypes.{kind})"
        )


def _print_screen(pieces: Iterable[bytes | memoryview], rank: int) -> None:
    """The first lines, each as wide as the terminal, and a message if that is not everything."""
    shown: list[str] = []
    cut = False
    for line in _lines(pieces, MOST_WIDTH):
        if len(shown) == screen_lines() - 2:
            cut = True
            break
        shown.append(clip(line))
        cut = cut or shown[-1] != line
    print("\n".join(shown))
    if cut:
        part = f"pass an index such as '[{'0, ' * (rank - 2)}{':5, :8' if rank > 1 else ':20'}]'; " if rank else ""
        message(f"shortened: {part}a pipe and -o FILE get all of it")


def _lines(pieces: Iterable[bytes | memoryview], most: int) -> Iterator[str]:
    """Lines of text in pieces of any size, each cut after `most` characters."""
    begun = ""
    for piece in pieces:
        *ended, rest = bytes(piece).decode().split("\n")
        for line in ended:
            yield (begun + line)[:most]
            begun = ""
        begun = (begun + rest)[:most]
    if begun:
        yield begun
