"""`tensorglot split`"""

from __future__ import annotations

import re
from pathlib import Path

import click

from tensorglot.cli.options import PATH, as_json, source_of, storage_option, verb_options
from tensorglot.cli.terminal import message, print_json
from tensorglot.errors import plural

__all__ = ["command"]

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


class Size(click.ParamType):  # type: ignore[type-arg]  # generic in its stubs only
    """`5GB`, `500 MB`, `4GiB`, or a number of bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d{1,15}) ?(?:([KMG]I?)?B)?", str(value).upper(), re.ASCII)
        if match is None:
            self.fail(f"'{value}' is not a size: pass 5GB, 500MB, 4GiB or a number of bytes.", param, ctx)
        return int(match[1]) * _UNITS[match[2] or ""]


@click.command
@click.argument("source", type=PATH)
@click.argument("directory", type=PATH)
@click.option("--shard-size", type=Size(), default="5GB", show_default=True, help="Maximum size of a shard.")
@click.option("--to", metavar="FORMAT", help="Format to write; default: the source's.")
@storage_option
@as_json
def command(source: str, directory: str, shard_size: int, to: str | None, as_json: bool) -> None:
    """Write a file to a directory of shards with their index.

    DIRECTORY must be new or empty, and is written atomically. A tensor larger than
    the shard size gets its own shard. - is stdin.

    \b
    Examples:
      tensorglot split model.safetensors model --shard-size 2GB
      tensorglot split model.zt model --to safetensors
    """
    import tensorglot as tg

    with verb_options("splitting") as options:
        files = tg.split(source_of(source), directory, shard_nbytes=shard_size, format=to, **options)
    if as_json:
        print_json({"source": source, "target": directory, "files": [str(file) for file in files]})
    else:
        # Without tensors there is one shard, and no index.
        index = f" and {Path(files[-1]).name}" if len(files) > 1 else ""
        message(f"{plural(max(1, len(files) - 1), 'shard')}{index} in {directory}")
