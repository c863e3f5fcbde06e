"""What is printed, and for whom: a terminal gets a table that fits, a pipe gets every character.

No escape sequence leaves for anything but a terminal, nor where NO_COLOR is set, and
none from a file ever: names pass through `escape` first. Tables are made by the column,
which is fast enough for a file of 100,000 tensors. Imports no NumPy, and rich only
when it is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TextIO

__all__ = [
    "WIDE",
    "Column",
    "bold",
    "informative",
    "message",
    "one_line",
    "print_fields",
    "print_json",
    "print_table",
    "progress_bar",
    "styled",
]

GAP = "  "
PIPE_PADDING = 60
"""In a pipe nothing is elided, but one long name does not widen every row beyond this."""
NARROWEST = 12
"""No column is made narrower, even if the table then does not fit."""
WIDE = 40
"""Columns that are usually short are elastic from here on."""
WRAPPED_LINES = 8
"""What would take about as many lines is elided."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. `elastic` ones give way, in the middle of their text, where a terminal is too narrow."""

    title: str
    cells: Sequence[str]
    right: bool = False
    elastic: bool = False


def styled(stream: TextIO) -> bool:
    """Whether escape sequences are welcome."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def one_line(text: str) -> str:
    """Text for one line of a terminal: what cannot be printed is shown by its code."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.replace("\n", " "))


def message(text: str) -> None:
    """For the person, not for the data."""
    print(one_line(text), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One document: indented for a person, compact for a program. NaN and infinities must be text by now."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, allow_nan=False))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """A name and a value a line; on a terminal a long value takes several."""
    width = max((len(name) for name, _ in fields), default=0)
    room = max(NARROWEST, _terminal_width() - width - len(GAP)) if sys.stdout.isatty() else None
    for name, value in fields:
        first, *others = [value] if room is None else _wrapped(value, room)
        print(bold(name.ljust(width)) + GAP + first)
        for line in others:
            print(" " * width + GAP + line)


def _wrapped(text: str, width: int) -> list[str]:
    if _width(text) <= width or not text.isascii() or len(text) > width * WRAPPED_LINES // 2:
        return [_shorten(text, width)]
    return textwrap.wrap(text, width, break_on_hyphens=False)


def informative(column: Column, usual: str) -> bool:
    """Whether a column says anything but the usual."""
    return not set(column.cells) <= {usual}


def print_table(columns: Sequence[Column]) -> None:
    """Aligned columns under bold titles."""
    widths = [max(map(_width, (column.title, *column.cells))) for column in columns]
    if sys.stdout.isatty():
        widths = _fitted(columns, widths, _terminal_width())
    else:
        widths = [min(width, PIPE_PADDING) for width in widths]
    last = len(columns) - 1
    titles, bodies = [], []
    for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
        cells = _shortened(column.cells, width) if sys.stdout.isatty() else column.cells
        pad = width if column.right or i < last else 0
        titles.append(_padded(column.title, pad, column.right))
        bodies.append([_padded(cell, pad, column.right) for cell in cells])
    print(bold(GAP.join(titles)))
    if bodies and bodies[0]:
        print("\n".join(map(GAP.join, zip(*bodies, strict=True))))


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Elastic columns give way, the widest until it is as wide as the next one, then both."""
    elastic = [i for i, column in enumerate(columns) if column.elastic and widths[i] > NARROWEST]
    rigid = sum(widths) - sum(widths[i] for i in elastic)
    left = room - rigid - len(GAP) * (len(widths) - 1)
    for done, i in enumerate(sorted(elastic, key=widths.__getitem__)):
        share = max(NARROWEST, left // (len(elastic) - done))
        widths[i] = min(widths[i], share)
        left -= widths[i]
    return widths


def _width(text: str) -> int:
    """How many cells of a terminal it takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _padded(text: str, width: int, right: bool) -> str:
    if text.isascii():
        return text.rjust(width) if right else text.ljust(width)
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank


def _shortened(cells: Sequence[str], width: int) -> list[str]:
    """Cells that fit. What all long ones begin with tells nothing, and goes first."""
    long = [cell for cell in cells if _width(cell) > width]
    pairs = zip(min(long, default=""), max(long, default=""), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) if len(long) > 1 else 0
    if shared <= 1:
        return [_shorten(cell, width) for cell in cells]
    return [cell if _width(cell) <= width else f"…{_shorten(cell[shared:], width - 1)}" for cell in cells]


def _shorten(text: str, width: int) -> str:
    """Elides what is in front of the middle: names of tensors differ towards their end."""
    if _width(text) <= width:
        return text
    head = _prefix(text, width // 6)
    tail = _prefix(text[::-1], width - 1 - width // 6)
    return f"{head}…{tail[::-1]}"


def _prefix(text: str, width: int) -> str:
    end = taken = 0
    while end < len(text) and (taken := taken + _width(text[end])) <= width:
        end += 1
    return text[:end]


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns


def bold(text: str) -> str:
    """Where escape sequences are welcome on stdout."""
    return f"\x1b[1m{text}\x1b[0m" if styled(sys.stdout) else text


@contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from tensorglot.operations._progress import bar

    with bar(what, unit) as progress:
        yield progress
