"""`tensorglot edit`: options become keys and values, `tg.edit` does the rest."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.complete import complete_names
from tensorglot.cli.options import file_argument, pairs, reading_options, storage_options_for, storage_options_of
from tensorglot.cli.terminal import message, print_fields, print_json, progress_bar
from tensorglot.errors import escape

if TYPE_CHECKING:
    from tensorglot.model.tensor import Tensor

__all__ = ["command"]


@click.command
@file_argument
@click.option("--set", "set_", metavar="KEY=VALUE", multiple=True, help="Set a key to text; may be repeated.")
@click.option(
    "--set-json", metavar="KEY=JSON", multiple=True, help="Set a key to any JSON value, where the format allows."
)
@click.option("--remove", metavar="KEY", multiple=True, help="Remove a key; may be repeated.")
@click.option(
    "--replace",
    metavar="NAME=FILE[:TENSOR]",
    multiple=True,
    help="Replace a tensor by one of another file: TENSOR, or its only one, or the one of the same name.",
)
@click.option("--add", metavar="NAME=FILE[:TENSOR]", multiple=True, help="Add a tensor of another file.")
@click.option(
    "--drop", metavar="NAME", multiple=True, help="Drop a tensor; may be repeated.", shell_complete=complete_names
)
@click.option("--in-place", is_flag=True, help="Do not copy the file: append to it, or rewrite its end.")
@reading_options
def command(
    file: str,
    set_: tuple[str, ...],
    set_json: tuple[str, ...],
    remove: tuple[str, ...],
    replace: tuple[str, ...],
    add: tuple[str, ...],
    drop: tuple[str, ...],
    in_place: bool,
    format: str | None,
    as_json: bool,
) -> None:
    """Change the metadata and the tensors of a file.

    All other tensors stay as they are, with their encodings and checksums. The file is
    replaced atomically. --in-place copies nothing: zTensor 2 is appended to, and a kill
    leaves the old contents or the new ones; in zTensor 0.1 and .npz only metadata can be
    changed, and a kill or a crash while it is written loses the file. If another process
    changes the file meanwhile, that is an error. FILE and the files of --replace and --add
    may be at URLs; an object is downloaded and uploaded.

    \b
    Examples:
      tensorglot edit model.bt --set step=11 --remove draft
      tensorglot edit model.zt --replace head.weight=new.npy --drop head.bias
      tensorglot edit huge.zt --set-json 'layers=[1, 2]' --in-place
    """
    import tensorglot as tg

    if file == "-":
        raise click.UsageError("edit needs a file, not stdin.")
    values: dict[str, Any] = dict(pairs(set_, "--set"))
    for key, text in pairs(set_json, "--set-json").items():
        try:
            values[key] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"--set-json {key}: not JSON: {error}") from error
    if not (values or remove or replace or add or drop):
        raise click.UsageError("Nothing to do: pass --set, --set-json, --remove, --replace, --add or --drop.")
    storage_options_of(file, *pairs(replace, "--replace").values(), *pairs(add, "--add").values())
    with progress_bar("copying") as progress, ExitStack() as files:
        done = tg.edit(
            file,
            values or None,
            remove=remove,
            replace=_tensors(replace, "--replace", files),
            add=_tensors(add, "--add", files),
            drop=drop,
            in_place=in_place,
            format=format,
            progress=progress,
            storage_options=storage_options_for(file),
        )
    if as_json:
        print_json({"file": file, **done.to_dict()})
        return
    print_fields([(escape(key), escape(str(value))) for key, value in done.metadata.items()])
    for what, names in (("replaced", done.replaced), ("added", done.added), ("dropped", done.dropped)):
        for name in names:
            message(f"{what} {escape(name)}")
    if not done.changed:
        message("nothing changed: the metadata already had these values")


def _tensors(given: tuple[str, ...], option: str, files: ExitStack) -> dict[str, Tensor]:
    """The tensors of other files by their new names; the files stay open as long as `files`."""
    import tensorglot as tg
    from tensorglot.io.local import add_path_to_errors

    found = {}
    for name, place in pairs(given, option).items():
        path, tensor = _split(place)
        archive = files.enter_context(tg.open(path, storage_options=storage_options_for(path)))
        with add_path_to_errors(path):
            found[name] = archive[tensor or (next(iter(archive)) if len(archive) == 1 else name)]
    return found


def _split(place: str) -> tuple[str, str]:
    """FILE and TENSOR, which may be absent. The colons of a URL's scheme and port are no separators."""
    if "://" not in place and Path(place).exists():
        return place, ""
    whole = place.find("/", place.find("://") + 3) if "://" in place else 0
    path, _, tensor = place[max(whole, 0) :].rpartition(":")
    return (place[: max(whole, 0)] + path, tensor) if path else (place, "")
