"""`tensorglot verify`"""

from __future__ import annotations

from typing import Literal

import click

from tensorglot.cli.options import file_argument, reading_options, source_of, verb_options
from tensorglot.cli.terminal import message, one_line, print_json
from tensorglot.errors import human_nbytes, plural

__all__ = ["command"]


@click.command
@file_argument
@click.option("--deep", is_flag=True, help="Also read all values and check the format's rules for values.")
@click.option("--strict", is_flag=True, help="Accept only the canonical form of a file.")
@click.option("--write-sums", is_flag=True, help="Write checksums to FILE.sums instead of checking them.")
@reading_options
def command(file: str, deep: bool, strict: bool, write_sums: bool, format: str | None, as_json: bool) -> int:
    """Check a file against the rules of its format.

    Prints every problem with its rule, tensor and byte, and exits with 1 if there is
    one. Checksums are compared if the file has any, or if there is a file FILE.sums
    beside it (--write-sums), for formats that store none.

    \b
    Examples:
      tensorglot verify model.bt
      tensorglot verify model.bt --deep --strict && upload model.bt
      tensorglot verify model.bt --write-sums
    """
    import tensorglot as tg

    if write_sums and file == "-":
        raise click.UsageError("--write-sums needs a file, not stdin.")
    mode: Literal["check", "write"] = "write" if write_sums else "check"
    with verb_options("verifying") as options:
        report = tg.verify(source_of(file), format=format, deep=deep, strict=strict, sums=mode, **options)
    written = f"{file}.sums" if write_sums and report.ok else None
    if as_json:
        sums = {} if written is None else {"sums": written}
        print_json({"file": file, **report.to_dict(), **sums})
    elif report.ok:
        checked = f"{plural(report.checksums, 'checksum')}" if report.checksums else "no checksums to check"
        if report.checksums and report.unverified:
            checked += f", {plural(len(report.unverified), 'tensor')} without a verifiable checksum"
        print(f"ok: {report.format}, {plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)}, {checked}")
    else:
        for problem in report.problems:
            print(one_line(f"{file}: {problem}"))
        print(f"failed: {plural(len(report.problems), 'problem')}")
    for note in () if as_json else report.notes:
        message(f"note: {note.message}")
    if written is not None and not as_json:
        message(f"wrote checksums of {plural(report.tensors, 'tensor')} and of all other bytes to {written}")
    return 0 if report.ok else 1
