"""Arguments that several commands share, and the text form of some values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, BinaryIO, TypedDict, TypeVar, cast

import click

from tensorglot.cli.complete import complete_checksums, complete_compression, complete_formats, complete_names
from tensorglot.cli.terminal import progress_bar

__all__ = [
    "PATH",
    "as_json",
    "file_argument",
    "pairs",
    "patterns_argument",
    "ratio_text",
    "reading_options",
    "shape_text",
    "source_of",
    "storage_option",
    "storage_options",
    "storage_options_for",
    "storage_options_of",
    "target_of",
    "verb_options",
    "write_output",
    "writing_options",
]

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(readable=False)
"""A path or URL. Opening it tells whether it can be read: click would call that a usage error."""
_STORAGE_OPTIONS = "tensorglot.storage_options"
_STDIN = "tensorglot.stdin"
"""Set once stdin is a source of the command that runs."""


def file_argument(command: F) -> F:
    """The argument FILE. Its path is added to every error of the command."""

    @wraps(command)
    def with_path(*args: Any, file: str, **options: Any) -> Any:
        from tensorglot.io.local import add_path_to_errors

        with add_path_to_errors(None if file == "-" else file):
            return command(*args, file=file, **options)

    return click.argument("file", type=PATH)(cast("F", with_path))


patterns_argument = click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=complete_names)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def writing_options(command: F) -> F:
    """The options for writing the target: `format`, `compression`, `level` and `checksum` of a verb."""
    for option in (
        click.option("--format", "_format", hidden=True, expose_value=False, callback=_name_the_option),
        click.option(
            "--checksum",
            metavar="NAME",
            default="auto",
            show_default=True,
            shell_complete=complete_checksums,
            callback=lambda _context, _parameter, name: None if name == "none" else name,
            help="Checksum of each tensor, e.g. sha256, or none; auto keeps the source's algorithm, "
            "or is the fast one of the format.",
        ),
        click.option("--level", type=int, help="Compression level."),
        click.option("--compression", metavar="NAME", shell_complete=complete_compression, help="Compress, e.g. zstd."),
        click.option(
            "--to",
            "format",
            metavar="FORMAT",
            shell_complete=complete_formats,
            help="Format to write, e.g. bintensors@1; default: by suffix.",
        ),
    ):
        command = option(command)
    return command


def _name_the_option(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
    """Explains that --format, which other commands have for the file they read, is --to here."""
    if given is not None:
        raise click.UsageError("No such option '--format': --to is the format to write.", context)


def reading_options(command: F) -> F:
    """The options for reading one file, and --json."""
    return click.option(
        "--format",
        metavar="NAME",
        shell_complete=complete_formats,
        help="Format of the file, e.g. bintensors@1; detected by default.",
    )(storage_option(as_json(command)))


def storage_option(command: F) -> F:
    """The option --storage-option. `storage_options` returns what was given."""
    return click.option(
        "--storage-option",
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        callback=_keep_storage_options,
        help="How to reach the server of a URL, e.g. endpoint=URL or region=NAME; may be repeated.",
    )(command)


def _keep_storage_options(context: click.Context, parameter: click.Parameter, given: Sequence[str]) -> None:
    """Keeps the pairs for `storage_options`. A value may be a secret, so errors do not quote it."""
    if any("=" not in text for text in given):
        raise click.UsageError("--storage-option takes KEY=VALUE.", context)
    if given:
        context.meta[_STORAGE_OPTIONS] = pairs(given, "--storage-option")


def storage_options() -> dict[str, str] | None:
    """What --storage-option gave to the command that runs."""
    found: dict[str, str] | None = click.get_current_context().meta.get(_STORAGE_OPTIONS)
    return found


class VerbOptions(TypedDict):
    """Arguments that every verb has."""

    progress: Callable[[int, int], None] | None
    storage_options: dict[str, str] | None


@contextmanager
def verb_options(what: str) -> Iterator[VerbOptions]:
    """A progress bar, and what --storage-option gave to the command that runs."""
    with progress_bar(what) as progress:
        yield {"progress": progress, "storage_options": storage_options()}


def storage_options_for(place: str) -> dict[str, str] | None:
    """The storage options for one of several places; None if it is not a URL."""
    return storage_options() if "://" in place else None


def storage_options_of(*places: str | None) -> list[dict[str, str] | None]:
    """The storage options for each of several places. Refused if they were given and no place is a URL."""
    found = [None if place is None else storage_options_for(place) for place in places]
    if storage_options() is not None and not any(found):
        raise click.UsageError("--storage-option needs a URL.")
    return found


def shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def ratio_text(nbytes: int, stored_nbytes: int) -> str:
    """Bytes of values for each stored byte."""
    return f"{nbytes / stored_nbytes:.2f}" if stored_nbytes else "-"


def source_of(file: str) -> str | BinaryIO:
    """The file to open, or stdin for `-`."""
    if file != "-":
        return file
    if sys.stdin.isatty():
        raise click.UsageError("- reads stdin, which is a terminal: pipe a file into it.")
    known = click.get_current_context().meta
    if _STDIN in known:
        raise click.UsageError("- reads stdin, which can be read once: write one of the two to a file.")
    known[_STDIN] = True
    return sys.stdin.buffer


def target_of(file: str, format: str | None, *, as_json: bool, dry_run: bool = False) -> str | BinaryIO:
    """The file to write, or stdout for `-`, which needs a format as it has no suffix."""
    if file != "-":
        return file
    if as_json and not dry_run:
        raise click.UsageError("--json cannot be used when the file goes to stdout: write to a file.")
    if format is None:
        raise click.UsageError("- writes to stdout: pass --to FORMAT.")
    if sys.stdout.isatty() and not dry_run:
        raise click.UsageError("stdout is a terminal: redirect the output to a file or a pipe.")
    return sys.stdout.buffer


def write_output(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file or an object at a URL, atomically."""
    from tensorglot.io.place import as_place
    from tensorglot.io.target import open_target

    with open_target(as_place(path, storage_options_for(path))) as target:
        target.write(pieces)


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            parameters = click.get_current_context().command.params
            form = next((each.metavar for each in parameters if option in each.opts), None) or "KEY=VALUE"
            raise click.UsageError(f"{option} takes {form.replace('[PATTERN=]', 'PATTERN=')}, not '{text}'.")
        found[key] = value
    return found
