"""`tensorglot merge`: shards, or several files, to one, by `tg.merge`."""

from __future__ import annotations

from typing import Any

import click

from tensorglot.cli.options import PATH, as_json, pairs, storage_option, target_of, verb_options, writing_options
from tensorglot.cli.terminal import message, print_json
from tensorglot.errors import human_nbytes, plural

__all__ = ["command"]


@click.command
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=PATH)
@click.argument("target", type=PATH)
@writing_options
@click.option("--metadata", metavar="KEY=VALUE", multiple=True, help="Write this metadata instead of the sources'.")
@storage_option
@as_json
def command(sources: tuple[str, ...], target: str, metadata: tuple[str, ...], as_json: bool, **writing: Any) -> None:
    """Write a directory of shards, or several files, to one file.

    A SOURCE is a file of any format, a directory with an index of shards, or such an
    index. No two may have a tensor of the same name, or different values for a
    metadata key. - is stdout.

    \b
    Examples:
      tensorglot merge checkpoint model.safetensors
      tensorglot merge encoder.zt decoder.bt both.zt --compression zstd
    """
    import tensorglot as tg

    out = target_of(target, writing["format"], as_json=as_json)
    with verb_options("merging") as options:
        report = tg.merge(sources, out, metadata=pairs(metadata, "--metadata") or None, **writing, **options)
    if as_json:
        print_json({"sources": list(sources), "target": target, **report.to_dict()})
        return
    where = "" if target == "-" else f" to {target}"
    message(f"{plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)}{where}: {report.format}")
    for note in report.notes:
        message(f"note: {note.message}")
