"""How a command ends: every outcome has an exit code, and an error is one line on stderr.

With `--json` on the command line that line is an object instead:
`{"error": {"kind", "message", "rule", "offset", "tensor", "path", "exit"}}`. A closed pipe
(`| head`) is not an error and prints no message.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TextIO

import click

from tensorglot.cli.terminal import one_line, styled
from tensorglot.errors import (
    FormatError,
    InputError,
    LossWarning,
    TensorglotError,
    TensorNotFound,
    UnsupportedError,
    did_you_mean,
)

__all__ = ["EXITS", "finish"]

DEFECT = 70
EXITS: dict[int, str] = {
    0: "success",
    1: "files differ, or verification failed",
    2: "usage error, or a name that does not exist",
    3: "corrupt input: it breaks a rule of its format",
    4: "valid but unsupported, or a loss was refused",
    5: "I/O error",
    DEFECT: "a bug in tensorglot",
    129: "the terminal was closed",
    130: "interrupted",
    141: "the reader of the output was closed (broken pipe)",
    143: "terminated",
}

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    # The first class that matches decides.
    (click.ClickException, 2),
    (InputError, 2),
    (TensorNotFound, 2),
    (FormatError, 3),
    (UnsupportedError, 4),
    (OSError, 5),
    (MemoryError, 5),
    (click.Abort, 130),
    (KeyboardInterrupt, 130),
)


def finish(run: Callable[[], int | None], given: Sequence[str]) -> NoReturn:
    """Runs, reports what went wrong, exits. `given` are the arguments of the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", LossWarning)
                warnings.showwarning = _show_warning
                code = run() or 0
        finally:
            _flush()
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except BrokenPipeError:
        code = 141
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every outcome has its code
        code = next((code for kind, code in _CODES if isinstance(error, kind)), DEFECT)
        _name_as_given(error, given)
        _report(error, code, as_json="--json" in given)
    sys.exit(code)


def _name_as_given(error: BaseException, given: Sequence[str]) -> None:
    """An open file is known by its absolute path; an error names it as the user did."""
    if not isinstance(error, TensorglotError) or error.path is None or error.path in given:
        return
    from tensorglot.io.place import absolute

    error.path = next((each for each in given if each and absolute(each) == error.path), error.path)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a warning in one line, without the source line: that would not help a user of the command line."""
    label = click.style("warning:", fg="yellow", bold=True) if styled(sys.stderr) else "warning:"
    print(label, one_line(str(message)), file=sys.stderr, flush=True)


def _flush() -> None:
    """Flushes stdout. If that fails, the interpreter must not try it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _report(error: BaseException, code: int, *, as_json: bool) -> None:
    if code == DEFECT:
        traceback.print_exception(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    if as_json:
        where = {name: getattr(error, name, None) for name in ("rule", "offset", "tensor", "path")}
        if isinstance(error, OSError) and error.filename is not None:
            where["path"] = os.fsdecode(error.filename)
        kind = "UsageError" if isinstance(error, click.ClickException) else type(error).__name__
        fields = {"kind": kind, "message": _message(error), **where, "exit": code}
        print(json.dumps({"error": fields}), file=sys.stderr, flush=True)
        return
    message = error.describe(command_line=True) if isinstance(error, TensorglotError) else _message(error)
    label = click.style("error:", fg="red", bold=True) if styled(sys.stderr) else "error:"
    # An error in the text of a type has a second line, with a caret under the position.
    lines = message.split("\n") if getattr(error, "rule", "").startswith("dynd.type.") else [message]
    print(label, "\n".join(map(one_line, lines)), file=sys.stderr, flush=True)


def _near(error: OSError) -> str:
    """The names in the same folder that are most similar to a missing file."""
    if not isinstance(error, FileNotFoundError) or error.filename2 is not None:
        return ""
    path = Path(os.fsdecode(error.filename))
    try:
        return did_you_mean(path.name, sorted(found.name for found in path.parent.iterdir()))
    except OSError:
        return ""


def _message(error: BaseException) -> str:
    if isinstance(error, TensorglotError):
        return error.advise(command_line=True)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        text = error.format_message().replace("\t", "")  # click lists choices on lines of their own
        text += "" if text.endswith((".", "?", "!")) else "."
        return text + (f" Try '{context.command_path} --help'." if context else "")
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return what if error.filename is None else f"{error.filename}: {what}{_near(error)}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "interrupted"
    return f"{type(error).__name__}: {error} (a bug in tensorglot: please report it)"
