"""`tensorglot verify`"""

from __future__ import annotations

import click

from tensorglot.cli.options import as_json, counted, file_argument, reading_format, source_of
from tensorglot.cli.terminal import one_line, print_json

__all__ = ["command"]


@click.command
@file_argument
@click.option("--deep", is_flag=True, help="Also read every value and check what the format says of values.")
@click.option("--strict", is_flag=True, help="Accept only the one form that a canonical writer gives.")
@reading_format
@as_json
def command(file: str, deep: bool, strict: bool, format: str | None, as_json: bool) -> int:
    """Check that a file keeps the rules of its format.

    Prints every problem with its rule, tensor and byte, and exits with 1 if there is
    one. Checksums are checked where the format has them.

    \b
    Examples:
      tensorglot verify model.bt
      tensorglot verify model.bt --deep --strict && upload model.bt
    """
    import tensorglot as tg
    from tensorglot.model.tensor import human_nbytes

    report = tg.verify(source_of(file), format=format, deep=deep, strict=strict)
    if as_json:
        print_json({"file": file, **report.to_dict()})
    elif report.ok:
        checked = f"{counted(report.checksums, 'checksum')}" if report.checksums else "no checksums to check"
        if report.checksums and report.unverified:
            checked += f", none that could be checked for {counted(len(report.unverified), 'tensor')}"
        print(f"ok: {report.format}, {counted(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)}, {checked}")
    else:
        for problem in report.problems:
            print(one_line(str(problem)))
        print(f"failed: {counted(len(report.problems), 'problem')}")
    return 0 if report.ok else 1
