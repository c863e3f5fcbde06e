"""`tensorglot stats`: the result of `tg.stats` as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tensorglot.cli.options import file_argument, patterns_argument, reading_options, source_of, verb_options
from tensorglot.cli.terminal import Column, informative, message, name_text, print_json, print_table
from tensorglot.errors import escape, plural
from tensorglot.operations._cells import bars, number

if TYPE_CHECKING:
    from tensorglot.operations.stats import TensorStats

__all__ = ["command"]

SHOWN = ("1", "25", "50", "75", "99")
"""Percentiles that fit a terminal; --json has also 5 and 95."""


@click.command
@file_argument
@patterns_argument
@click.option("-l", "--long", is_flag=True, help="Percentiles instead of mean, deviation, norm and histogram.")
@reading_options
def command(file: str, patterns: tuple[str, ...], long: bool, format: str | None, as_json: bool) -> int:
    """Print minimum, maximum, mean, deviation, norm, a histogram.

    These are computed from the finite values; zeros, NaN and infinite values are
    counted. The deviation is that of the population, the histogram has 16 equal bins
    from minimum to maximum. Every value is read once, in bounded memory; therefore
    percentiles of large tensors of more than 16 bits are approximate, to 1 part in 128,
    as the last line says. GGUF's blocks are dequantized; other tensors that are not dense are
    shown part by part, as NAME#PART. With --json the mean of complex numbers is a pair.
    Checksums are compared where there are any: a tensor that fails has no numbers, is
    listed, and makes the exit code 1.

    \b
    Examples:
      tensorglot stats model.bt
      tensorglot stats model.bt 'layers.*' --long
      tensorglot stats model.bt '*.bias' --json
    """
    import tensorglot as tg

    with verb_options("reading") as options:
        rows = tg.stats(source_of(file), patterns or None, format=format, **options).rows
    if as_json:
        print_json({"file": file, "tensors": [row.to_dict() for row in rows]})
    else:
        _print(rows, long=long)
    wrong = {str(row.problem) for row in rows if row.problem is not None}
    left_out = [row for row in rows if row.unsupported is not None]
    for text in sorted(wrong):
        message(text)
    for row in left_out:
        message(f"{escape(row.name)}: {row.unsupported}")
    return 1 if wrong else 4 if left_out else 0


def _print(rows: Sequence[TensorStats], *, long: bool) -> None:
    names = [row.name if row.part == "data" else f"{row.name}#{row.part}" for row in rows]
    counts = [
        Column("zeros", [f"{row.zeros:,}" for row in rows], right=True),
        Column("NaN", [f"{row.nan:,}" for row in rows], right=True),
        Column("Inf", [f"{row.inf:,}" for row in rows], right=True),
    ]
    shown = [column for column in counts if informative(column, "0")]
    histogram = Column("histogram", [bars(row.histogram, 8) for row in rows])
    print_table([*_columns(rows, names, long=long), *shown, *([] if long else [histogram])])
    absent = [f"no {column.title}" for column in counts if column not in shown]
    approximate = ["percentiles to 1 part in 128"] if long and not all(row.exact for row in rows) else []
    print(", ".join([plural(len({row.name for row in rows}), "tensor"), *absent, *approximate]))


def _columns(rows: Sequence[TensorStats], names: Sequence[str], *, long: bool) -> list[Column]:
    """The name, minimum and maximum; between them percentiles (long), or after them moments and the norm."""
    found = [row.percentiles or {} for row in rows]
    percentiles = [Column(f"{share}%", [number(one.get(share)) for one in found], right=True) for share in SHOWN]
    moments = [
        Column("mean", [number(row.mean) for row in rows], right=True),
        Column("std", [number(row.std) for row in rows], right=True),
        Column("norm", [number(row.norm) for row in rows], right=True),
    ]
    return [
        Column("name", [name_text(name) for name in names], elastic=True),
        Column("min", [number(row.min) for row in rows], right=True),
        *(percentiles if long else []),
        Column("max", [number(row.max) for row in rows], right=True),
        *([] if long else moments),
    ]
