"""`tensorglot info`: the summary of a file, or all that its index has for one tensor. Reads no tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.complete import complete_names
from tensorglot.cli.options import file_argument, ratio_text, reading_options, shape_text, source_of, storage_options
from tensorglot.cli.terminal import Column, escape_whole, message, name_text, print_fields, print_json, print_table
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.model.archive import Archive
    from tensorglot.operations.listing import Shard, Summary

__all__ = ["command"]

SHARDS_SHOWN = 16
"""Up to here each shard has a line; --json has all of them."""


@click.command
@file_argument
@click.argument("name", required=False, shell_complete=complete_names)
@reading_options
def command(file: str, name: str | None, format: str | None, as_json: bool) -> None:
    """Describe a file, or one tensor of it.

    For a file: the format and the packages that read it, tensors and bytes of each
    element type, and the metadata; for a directory also its shards. For a tensor:
    everything that the file says about it. No values are read.

    \b
    Examples:
      tensorglot info model.bt
      tensorglot info model.bt lm_head.weight
      tensorglot info model.bt --json | jq .metadata
    """
    import tensorglot as tg
    from tensorglot.operations._jsonable import jsonable
    from tensorglot.operations.listing import summarize

    with tg.open(source_of(file), format=format, storage_options=storage_options()) as archive:
        if name is not None:
            fields = jsonable(archive.info(name))
            (print_json if as_json else _print_tensor)(fields)
            return
        summary = summarize(archive)
        metadata, notes = jsonable(archive.metadata), archive.notes
        opened = _opened(file, archive)
    if as_json:
        said = [{"rule": note.rule, "message": note.message} for note in notes]
        print_json({"file": file, **summary.to_dict(), "metadata": metadata, "notes": said})
        return
    _print_summary(opened, summary, metadata)
    for note in notes:
        message(f"note: {note.message}")


def _opened(file: str, archive: Archive) -> str:
    """The file, as it was given; of a directory the file in it that was opened, if that is only one."""
    from tensorglot.io.local import BaseSource

    path = archive.source.path if isinstance(archive.source, BaseSource) else None
    given = Path(file)
    return str(given / Path(path).name) if path is not None and given.is_dir() else file


def _print_summary(file: str, summary: Summary, metadata: Mapping[str, Any] | None) -> None:
    size = human_nbytes(summary.nbytes)
    if summary.stored_nbytes != summary.nbytes:
        ratio = ratio_text(summary.nbytes, summary.stored_nbytes)
        size += f", stored as {human_nbytes(summary.stored_nbytes)}, ratio {ratio}"
    whole = summary.file_nbytes
    fields = [
        ("file", escape_whole(file)),
        ("size", "-" if whole is None else f"{human_nbytes(whole)} ({whole:,} bytes)"),
        *([("shards", _shards(summary.shards))] if summary.shards else []),
        ("format", summary.format),
        *([("", summary.note)] if summary.note else []),
        ("tensors", f"{summary.tensors:,} ({summary.elements:,} elements, {size})"),
        ("checksums", _checksums(summary)),
    ]
    for title, counts in (("encodings", summary.encodings), ("layouts", summary.layouts)):
        if set(counts) - {"raw", "dense", "joined"}:
            fields.append((title, ", ".join(f"{escape(name)} {count:,}" for name, count in counts.items())))
    print_fields(fields)
    if 1 < len(summary.shards) <= SHARDS_SHOWN:
        print()
        print_table(
            [
                Column("shard", [escape_whole(shard.file) for shard in summary.shards], elastic=True),
                Column("tensors", [f"{shard.tensors:,}" for shard in summary.shards], right=True),
                Column("size", [human_nbytes(shard.nbytes) for shard in summary.shards], right=True),
            ]
        )
    if summary.dtypes:
        print()
        uses = summary.dtypes.values()
        print_table(
            [
                Column("dtype", [escape(name) for name in summary.dtypes]),
                Column("tensors", [f"{use.tensors:,}" for use in uses], right=True),
                Column("elements", [f"{use.elements:,}" for use in uses], right=True),
                Column("size", [human_nbytes(use.nbytes) for use in uses], right=True),
            ]
        )
    print()
    if metadata:
        print_table(
            [
                Column("metadata", [escape_whole(key) for key in metadata]),
                Column("value", [_text(value) for value in metadata.values()], elastic=True),
            ]
        )
    else:
        print("no metadata" if metadata is None else "empty metadata")


def _checksums(summary: Summary) -> str:
    match summary.checked_by:
        case "tensor":
            return f"{summary.checksums:,} of {plural(summary.tensors, 'tensor')}"
        case "box":
            return "those in the files, compared when tensors are read"
        case "block":
            return "every block is compared with its hash when it is read"


def _shards(shards: Sequence[Shard]) -> str:
    """How many, and how large."""
    sizes = [shard.nbytes for shard in shards]
    low, high = human_nbytes(min(sizes)), human_nbytes(max(sizes))
    return f"{len(shards):,} of {low}" + ("" if low == high else f" to {high}")


def _print_tensor(fields: Mapping[str, Any]) -> None:
    shown = [
        ("name", name_text(fields["name"])),
        ("type", escape_whole(fields["type"])),
        ("dtype", fields["dtype"] or "-"),
        ("shape", shape_text(fields["shape"])),
        ("size", f"{human_nbytes(fields['nbytes'])} ({fields['nbytes']:,} bytes)"),
        ("stored", _stored(fields)),
        ("encoding", escape(fields["encoding"])),
        ("layout", escape(fields["layout"])),
        ("checksum", escape(fields["checksum"] or "none")),
    ]
    shown += [(escape(key), _text(value)) for key, value in fields["attributes"].items()]
    print_fields(shown)
    parts = fields["parts"]
    if len(parts) > 1:
        print()
        print_table(
            [
                Column("part", [escape(name) for name in parts]),
                Column("dtype", [escape(str(part["dtype"])) for part in parts.values()]),
                Column("shape", [shape_text(part["shape"]) for part in parts.values()], elastic=True),
                Column("size", [human_nbytes(part["nbytes"]) for part in parts.values()], right=True),
                Column("offset", [str(part["offset"]) for part in parts.values()], right=True),
                Column("encoding", [escape(part["encoding"]) for part in parts.values()]),
                Column("checksum", [escape(part["checksum"] or "-") for part in parts.values()], elastic=True),
            ]
        )


def _stored(fields: Mapping[str, Any]) -> str:
    text = f"{fields['stored_nbytes']:,} bytes at byte {fields['offset']:,}"
    if fields["stored_nbytes"] == fields["nbytes"]:
        return text
    return f"{text}, ratio {ratio_text(fields['nbytes'], fields['stored_nbytes'])}"


def _text(value: Any) -> str:
    return escape_whole(value if isinstance(value, str) else json.dumps(value))
