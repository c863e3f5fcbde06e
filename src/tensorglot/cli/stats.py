"""`tensorglot stats`: the result of `tg.stats` as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tensorglot.cli.options import as_json, file_argument, patterns_argument, reading_format, source_of
from tensorglot.cli.terminal import Column, escape_whole, informative, message, print_json, print_table, progress_bar
from tensorglot.errors import escape, plural

if TYPE_CHECKING:
    from tensorglot.operations.stats import TensorStats

__all__ = ["command"]


@click.command
@file_argument
@patterns_argument
@reading_format
@as_json
def command(file: str, patterns: tuple[str, ...], format: str | None, as_json: bool) -> int:
    """Minimum, maximum, mean, deviation, zeros, NaN and Inf.

    Of the finite values; NaN and infinite ones are only counted. The deviation is
    that of the population. Every value is read once, in bounded memory. The parts of
    a tensor that is not dense are shown one by one, as NAME#PART. With --json the
    mean of complex numbers is a pair. Checksums are compared where there are any: a
    tensor that fails has no numbers, is listed, and makes the exit code 1.

    \b
    Examples:
      tensorglot stats model.bt
      tensorglot stats model.bt '*.bias' --json
    """
    import tensorglot as tg

    with progress_bar("reading") as progress:
        rows = tg.stats(source_of(file), patterns or None, format=format, progress=progress).rows
    if as_json:
        print_json({"file": file, "tensors": [row.to_dict() for row in rows]})
    else:
        _print(rows)
    wrong = {str(row.problem) for row in rows if row.problem is not None}
    left_out = [row for row in rows if row.unsupported is not None]
    for text in sorted(wrong):
        message(text)
    for row in left_out:
        message(f"{escape(row.name)}: {row.unsupported}")
    return 1 if wrong else 4 if left_out else 0


def _print(rows: Sequence[TensorStats]) -> None:
    names = [row.name if row.part == "data" else f"{row.name}#{row.part}" for row in rows]
    columns = [
        Column("name", [escape_whole(name) for name in names], elastic=True),
        Column("min", [_number(row.min) for row in rows], right=True),
        Column("max", [_number(row.max) for row in rows], right=True),
        Column("mean", [_number(row.mean) for row in rows], right=True),
        Column("std", [_number(row.std) for row in rows], right=True),
    ]
    counts = [
        Column("zeros", [str(row.zeros) for row in rows], right=True),
        Column("NaN", [str(row.nan) for row in rows], right=True),
        Column("Inf", [str(row.inf) for row in rows], right=True),
    ]
    print_table(columns + [column for column in counts if informative(column, "0")])
    absent = [f"no {column.title}" for column in counts if not informative(column, "0")]
    print(", ".join([plural(len({row.name for row in rows}), "tensor"), *absent]))


def _number(value: float | complex | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
