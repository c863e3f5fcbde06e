"""`tensorglot edit`: options become keys and values, `tg.edit` does the rest."""

from __future__ import annotations

import json
from typing import Any

import click

from tensorglot.cli.options import as_json, file_argument, pairs, reading_format
from tensorglot.cli.terminal import message, print_fields, print_json, progress_bar
from tensorglot.errors import escape

__all__ = ["command"]


@click.command
@file_argument
@click.option("--set", "set_", metavar="KEY=VALUE", multiple=True, help="Set a key to text; may be repeated.")
@click.option(
    "--set-json", metavar="KEY=JSON", multiple=True, help="Set a key to any JSON value, where the format allows."
)
@click.option("--remove", metavar="KEY", multiple=True, help="Remove a key; may be repeated.")
@click.option("--in-place", is_flag=True, help="Write only the end of the file, where the index is.")
@reading_format
@as_json
def command(
    file: str,
    set_: tuple[str, ...],
    set_json: tuple[str, ...],
    remove: tuple[str, ...],
    in_place: bool,
    format: str | None,
    as_json: bool,
) -> None:
    """Change the metadata of a file, and nothing else.

    Tensors stay as they are, with their encodings and checksums. The file is replaced
    atomically. --in-place copies nothing, in formats that have their index behind the
    tensors; if the process is killed or the machine crashes while it is written, the
    file is lost. If another process changes the file meanwhile, that is an error.

    \b
    Examples:
      tensorglot edit model.bt --set step=11 --remove draft
      tensorglot edit huge.zt --set-json 'layers=[1, 2]' --in-place
    """
    import tensorglot as tg

    values: dict[str, Any] = dict(pairs(set_, "--set"))
    for key, text in pairs(set_json, "--set-json").items():
        try:
            values[key] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"--set-json {key}: not JSON: {error}") from error
    if not values and not remove:
        raise click.UsageError("Nothing to do: pass --set, --set-json or --remove.")
    with progress_bar("copying") as progress:
        done = tg.edit(file, values, remove=remove, in_place=in_place, format=format, progress=progress)
    if as_json:
        print_json({"file": file, **done.to_dict()})
        return
    print_fields([(escape(key), escape(str(value))) for key, value in done.metadata.items()])
    if not done.changed:
        message("nothing changed: the metadata already had these values")
