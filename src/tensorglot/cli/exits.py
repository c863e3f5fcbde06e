"""How a command ends: every outcome has an exit code, and an error is one line on stderr.

With `--json` on the command line that line is an object instead:
`{"error": {"kind", "message", "rule", "offset", "tensor", "path", "exit"}}`. A closed pipe
(`| head`) is not an error and prints no message. Shell completion prints none either.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

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

__all__ = ["EXITS", "finish", "raise_interrupt", "wrap_streams"]

DEFECT = 70
NO_NAME = "''"
"""An empty path in a message."""
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
_INTERRUPTS: list[int] = []
"""The interrupts that came."""


class _Stdout(io.FileIO):
    """Names stdout in the errors of writing to it, such as a full disk. Else they would name the file that is read."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "stdout"
            raise


class _Stderr(io.FileIO):
    """Drops messages that cannot be written: how a command ends does not depend on who can read them."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def wrap_streams() -> None:
    """Replaces `sys.stdout` and `sys.stderr`, if they are files of the operating system."""
    for name, kind in (("stdout", _Stdout), ("stderr", _Stderr)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            buffer = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
            wrapped = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
            setattr(sys, name, wrapped)


def raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of an interrupt, which is noted: C code may turn the exception into another.

    Importing NumPy also prints a traceback then. It is imported before anything is written, so the process just ends.
    """
    _INTERRUPTS.append(number)
    spec = getattr(sys.modules.get("numpy"), "__spec__", None)
    if getattr(spec, "_initializing", False):
        _report(KeyboardInterrupt(), 130, as_json="--json" in sys.argv)
        os._exit(130)
    signal.default_int_handler(number, frame)


def finish(run: Callable[[], int | None], given: Sequence[str]) -> NoReturn:
    """Runs, reports what went wrong, exits. `given` are the arguments of the command line."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
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
    except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 - every outcome has its code
        error = KeyboardInterrupt() if _INTERRUPTS else raised
        code = next((code for kind, code in _CODES if isinstance(error, kind)), DEFECT)
        _name_as_given(error, given)
        _report(error, code, as_json="--json" in given)
    sys.exit(code)


def _name_as_given(error: BaseException, given: Sequence[str]) -> None:
    """An open file, or one in an open store, is known by its absolute path; an error names it as the user did."""
    attribute = "filename" if isinstance(error, OSError) else "path"
    path = getattr(error, attribute, None)
    if not isinstance(path, str) or path in given or not path.startswith(os.sep):
        return
    from tensorglot.io.place import absolute

    for each in filter(None, given):
        whole = absolute(each)
        if path == whole or path.startswith(whole.rstrip(os.sep) + os.sep):
            setattr(error, attribute, each + path[len(whole) :])
            return
        if whole.startswith(path + os.sep) and len(whole) - len(path) < len(each):  # the folder of a file
            setattr(error, attribute, each[: len(path) - len(whole)])
            return


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
    if "_TENSORGLOT_COMPLETE" in os.environ:
        return
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
    """The names in the same folder that are most similar to a missing file, or the target of a broken link."""
    if not isinstance(error, FileNotFoundError) or error.filename2 is not None or not error.filename:
        return ""
    path = Path(os.fsdecode(error.filename))
    try:
        if path.is_symlink():
            return f"; it is a symbolic link to {path.readlink()}"
        return did_you_mean(path.name, sorted(found.name for found in path.parent.iterdir()))
    except OSError:
        return ""


def _message(error: BaseException) -> str:
    if isinstance(error, TensorglotError):
        return error.advise(command_line=True)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        text = error.format_message().replace("\t", "")  # click lists choices on lines of their own
        if isinstance(error, click.NoSuchOption) and context is not None:
            shown = [each for each in context.command.get_params(context) if not getattr(each, "hidden", False)]
            known = [name for each in shown for name in each.opts + each.secondary_opts if name.startswith("--")]
            text = f"No such option '{error.option_name}'{did_you_mean(error.option_name, known)}"
        text += "" if text.endswith((".", "?", "!")) else "."
        return text + (f" Try '{context.command_path} --help'." if context else "")
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return what if error.filename is None else f"{os.fsdecode(error.filename) or NO_NAME}: {what}{_near(error)}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "interrupted"
    return f"{type(error).__name__}: {error} (a bug in tensorglot: please report it)"
