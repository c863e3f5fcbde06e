"""Printing: tables that fit a terminal and are complete in a pipe, JSON, messages, progress bars.

Escape sequences are printed only to a terminal, and not where NO_COLOR is set. Names
from files pass through `escape` first, so none comes from a file. Tables are built by
column, which is fast enough for a file of 100,000 tensors. Imports no NumPy, and rich
only when it is needed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TextIO

from tensorglot.errors import escape

__all__ = [
    "WIDE",
    "Column",
    "bold",
    "clip",
    "escape_whole",
    "fit_names",
    "informative",
    "message",
    "name_text",
    "natural_order",
    "one_line",
    "print_fields",
    "print_json",
    "print_result",
    "print_table",
    "progress_bar",
    "screen_lines",
    "styled",
]

GAP = "  "
PIPE_PADDING = 60
"""In a pipe nothing is elided, but cells are padded to this width at most."""
NARROWEST = 12
"""The minimum width of a column, even if the table then does not fit."""
WIDE = 40
"""The width from which a column that is usually short becomes elastic."""
WRAPPED_LINES = 8
"""A value that would take more lines is elided."""

_NUMBER = re.compile("([0-9]+)")

escape_whole = partial(escape, longest=sys.maxsize)
"""A text that is safe to print, and not shortened."""


def name_text(name: str) -> str:
    """The name of a tensor in a table. An empty name is shown as '', as in errors."""
    return escape_whole(name) or "''"


def natural_order(name: str) -> list[tuple[int, str]]:
    """A key to sort names by: numbers in them count as numbers, so that `layers.2` is before `layers.10`."""
    digits = _NUMBER.split(name)
    digits[1::2] = [number.lstrip("0") for number in digits[1::2]]
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(digits)]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. The cells of `elastic` ones are elided in the middle if the terminal is too narrow."""

    title: str
    cells: Sequence[str]
    right: bool = False
    elastic: bool = False
    prose: bool = False
    """Whether cells are cut at the end instead: of a sentence, the beginning says most."""


def styled(stream: TextIO) -> bool:
    """Whether escape sequences may be printed."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def one_line(text: str) -> str:
    """Text on one line of a terminal: unprintable characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.replace("\n", " "))


def message(text: str) -> None:
    """Prints to stderr."""
    print(one_line(text), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One document, indented on a terminal. NaN and infinities must be text already."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, allow_nan=False))


def print_result(document: Any, text: str, *, as_json: bool) -> None:
    """A result as a JSON document or as text."""
    if as_json:
        print_json(document)
    else:
        print(text)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """One name and value per line; on a terminal long values are wrapped."""
    width = max((len(name) for name, _ in fields), default=0)
    room = max(NARROWEST, _terminal_width() - width - len(GAP)) if sys.stdout.isatty() else None
    for name, value in fields:
        first, *others = [value] if room is None else _wrap(value, room)
        print(bold(name.ljust(width)) + GAP + first)
        for line in others:
            print(" " * width + GAP + line)


def _wrap(text: str, width: int) -> list[str]:
    if _width(text) <= width or not text.isascii() or len(text) > width * WRAPPED_LINES // 2:
        return [_shorten(text, width)]
    return textwrap.wrap(text, width, break_on_hyphens=False)


def informative(column: Column, usual: str) -> bool:
    """Whether a column has any other value than the usual one."""
    return not set(column.cells) <= {usual}


def print_table(columns: Sequence[Column], colours: Sequence[str | None] | None = None) -> None:
    """Aligned columns under bold titles; rows in colours, where stdout allows escape sequences.

    Where a terminal is too narrow for the table, or would show different cells of the first
    column alike, a row takes several lines: that column is above the others, which are as
    many on a line as fit.
    """
    if not sys.stdout.isatty():
        _print_rows([_lines(columns, [min(width, PIPE_PADDING) for width in _widths(columns)])], None)
        return
    room = _terminal_width()
    shown, widths = _fit_columns(columns, room)
    first, *others = columns
    if others and (_total(widths) > room or (first.elastic and len({*shown[0].cells}) < len({*first.cells}))):
        narrower = room - len(GAP)
        top, *below = [[first], *_groups(others, narrower)] if first.elastic else _groups(columns, narrower)
        indented = [[GAP + line for line in _lines(*_fit_columns(group, narrower))] for group in below]
        _print_rows([_lines(*_fit_columns(top, room)), *indented], colours)
    else:
        _print_rows([_lines(shown, widths)], colours)


def _groups(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """Consecutive columns that fit a line, each line as full as possible."""
    widths = _widths(columns)
    begins = [0]
    for end in range(1, len(columns) + 1):
        if _total(_fit(columns[begins[-1] : end], widths[begins[-1] : end], room)) > room and end - 1 > begins[-1]:
            begins.append(end - 1)
    return [list(columns[begin:end]) for begin, end in itertools.pairwise([*begins, len(columns)])]


def _lines(columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """The titles and the rows, aligned."""
    last = len(columns) - 1
    bodies = []
    for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
        pad = width if column.right or i < last else 0
        bodies.append([_pad(cell, pad, column.right) for cell in (column.title, *column.cells)])
    return list(map(GAP.join, zip(*bodies, strict=True)))


def _print_rows(groups: Sequence[list[str]], colours: Sequence[str | None] | None) -> None:
    """Prints rows that have a line of each group, unless it is blank."""
    joined = ("\n".join(filter(str.strip, lines)) for lines in zip(*groups, strict=True))
    title, *rows = groups[0] if len(groups) == 1 else joined
    if colours is not None and styled(sys.stdout):
        from click import style

        rows = [row if colour is None else style(row, fg=colour) for row, colour in zip(rows, colours, strict=True)]
    print("\n".join([*map(bold, title.split("\n")), *rows]))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widths(columns: Sequence[Column]) -> list[int]:
    return [max(map(_width, (column.title, *column.cells))) for column in columns]


def _fit_columns(columns: Sequence[Column], room: int) -> tuple[list[Column], list[int]]:
    """Columns whose cells are shortened to fit a width, if that can be, and their widths."""
    widths = _fit(columns, _widths(columns), room)
    pairs = zip(columns, widths, strict=True)
    return [replace(column, cells=_shorten_cells(column, width)) for column, width in pairs], widths


def _fit(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Shrinks elastic columns, the widest first."""
    elastic = [i for i, column in enumerate(columns) if column.elastic and widths[i] > NARROWEST]
    rigid = sum(widths) - sum(widths[i] for i in elastic)
    left = room - rigid - len(GAP) * (len(widths) - 1)
    # The narrowest first: what it does not need of its share is left for the wider ones.
    for done, i in enumerate(sorted(elastic, key=widths.__getitem__)):
        share = max(NARROWEST, left // (len(elastic) - done))
        widths[i] = min(widths[i], share)
        left -= widths[i]
    return widths


def _width(text: str) -> int:
    """The number of terminal cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _pad(text: str, width: int, right: bool) -> str:
    if text.isascii():
        return text.rjust(width) if right else text.ljust(width)
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


def _shorten_cells(column: Column, width: int) -> list[str]:
    """Cells shortened to a width. The common prefix of the long ones is elided first, since it distinguishes nothing.

    If that is not enough, two ways are tried, eliding before the middle or at the beginning: the one that leaves
    more cells distinct is used. If it is more than enough, as much of the prefix is kept as fits.
    """
    cells = column.cells
    if column.prose:
        return [_cut(cell, width) for cell in cells]
    long = [cell for cell in cells if _width(cell) > width]
    pairs = zip(min(long, default=""), max(long, default=""), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)) if len(long) > 1 else 0
    if shared <= 1:
        return [_shorten(cell, width) for cell in cells]
    ways = (_shorten, _suffix)
    made = [[_elide(cell, shared, width, way) for cell in cells] for way in ways]
    return max(made, key=lambda cells: len(set(cells)))


def _elide(text: str, shared: int, width: int, way: Callable[[str, int], str]) -> str:
    """Elides in the first `shared` characters; if the rest is still too long, all of these, and the rest by `way`."""
    if _width(text) <= width:
        return text
    spare = width - 1 - _width(text[shared:])
    if spare <= 0:
        return f"…{way(text[shared:], width - 1)}"
    head = _prefix(text, min(spare, width // 6))
    return f"{head}…{_suffix(text, width - 1 - _width(head))}"


def _shorten(text: str, width: int) -> str:
    """Elides before the middle: names of tensors differ towards their end."""
    if _width(text) <= width:
        return text
    head = _prefix(text, width // 6)
    return f"{head}…{_suffix(text, width - 1 - width // 6)}"


def _prefix(text: str, width: int) -> str:
    end = taken = 0
    while end < len(text) and (taken := taken + _width(text[end])) <= width:
        end += 1
    return text[:end]


def _suffix(text: str, width: int) -> str:
    return _prefix(text[::-1], width)[::-1]


def fit_names(names: Sequence[str], taken: int) -> list[str]:
    """Names shortened to what a terminal has beside `taken` cells; in a pipe they are complete."""
    if not sys.stdout.isatty():
        return list(names)
    return _shorten_cells(Column("", names), max(NARROWEST, _terminal_width() - taken))


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns


def screen_lines() -> int:
    """The lines of the terminal; 24 without a terminal."""
    return shutil.get_terminal_size().lines


def clip(text: str) -> str:
    """A line that fits the terminal, with an ellipsis if it was cut."""
    return _cut(text, _terminal_width())


def _cut(text: str, width: int) -> str:
    return text if _width(text) <= width else _prefix(text, width - 1) + "…"


def bold(text: str) -> str:
    """Bold text, where stdout allows escape sequences."""
    return f"\x1b[1m{text}\x1b[0m" if styled(sys.stdout) else text


@contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr; None if that is not a terminal, or one that cannot move the cursor."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from tensorglot.operations._progress import bar

    with bar(what, unit) as progress:
        yield progress
