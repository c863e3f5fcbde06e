"""Editing the metadata of a file, and nothing else.

A format that has its index at the end of a file can implement `edit`: then everything
before the index is one span, and only the index is new. In any other format the tensors
are saved again as spans. Either way the OS copies them (copy_file_range), and the file is
replaced atomically. In place, only the index is written: if the process is killed or the
machine crashes meanwhile, the file is lost, so it is done only on request.

Editors lock the file against each other. A process that ignores the lock is detected:
the edit stops unless the file is still the one that was read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorglot.arguments import as_names, as_path
from tensorglot.containers.table import Format, WriteOptions, named
from tensorglot.errors import Hint, InputError, UnsupportedError, escape
from tensorglot.io.in_place import lock_for_edit, replace_tail
from tensorglot.io.local import Stamp, change_error, file_stamp
from tensorglot.io.sink import AtomicFile
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.operations._jsonable import Record
from tensorglot.operations._progress import Progress, follow
from tensorglot.operations._shards import is_sharded
from tensorglot.operations._sidecar import check_target, move_sidecar, read_sidecar
from tensorglot.operations.open import open
from tensorglot.operations.save import check_metadata

__all__ = ["Edit", "edit"]


@dataclass(frozen=True, slots=True)
class Edit(Record):
    """What `edit` did."""

    format: str
    metadata: Mapping[str, Any]
    changed: bool
    in_place: bool


def edit(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    *,
    remove: Iterable[str] = (),
    in_place: bool = False,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
) -> Edit:
    """Sets and removes keys of a file's metadata. Tensors keep their encodings and checksums.

    `in_place` writes only the end of the file, in formats that have their index there. It
    is fast for any size of file; a kill or a crash while it is written loses the file. If
    another process changes the file meanwhile, that is an error and its change is kept.
    """
    path = as_path(path)
    if is_sharded(path):
        raise UnsupportedError(
            "a sharded checkpoint cannot be edited as a whole: edit one of its files", rule="edit.source"
        )
    with lock_for_edit(path) as stamp, open(path, format=format, verify="never", limits=limits) as archive:
        spec, version = _editable(archive)
        if file_stamp(archive.source) != stamp:
            raise change_error(path)
        old = dict(archive.metadata or {})
        new = _changed(old, metadata, remove, spec)
        if new == old:
            return Edit(archive.format, new, changed=False, in_place=False)
        sums = read_sidecar(path, archive.limits)
        if sums is not None:
            check_target(path)
        chunks = _chunks(archive, new, spec, version)
        written: Stamp | None
        if in_place:
            written = _write_tail(path, archive, chunks, stamp, durable)
        else:
            total = int((archive.index.ends - archive.index.begins).sum())
            with (
                follow(chunks, total, progress, "copying") as followed,
                AtomicFile(path, durable=durable, expect=stamp) as file,
            ):
                file.write(followed)
            written = file.stamp
        if sums is not None:
            with open(path, format=archive.format, verify="never", limits=limits) as edited:
                if file_stamp(edited.source) != written:
                    raise change_error(path)
                move_sidecar(edited, path, sums)
        return Edit(archive.format, new, changed=True, in_place=in_place)


def _editable(archive: Archive) -> tuple[Format, str]:
    spec, version = named(archive.format)
    if spec.metadata == "none":
        raise UnsupportedError(f"{spec.name} cannot store metadata", rule="save.metadata")
    if version is None or version not in spec.writes:
        raise UnsupportedError(
            f"{archive.format} can be read but not written: convert the file to another format", rule="format.write"
        )
    return spec, version


def _changed(
    old: Mapping[str, Any], metadata: Mapping[str, Any] | None, remove: Iterable[str], spec: Format
) -> dict[str, Any]:
    if metadata is not None:
        check_metadata(metadata, spec)
    new = {**old, **(metadata or {})}
    for key in as_names(remove, "remove", "edit.remove"):
        if key not in old:
            raise InputError(f"the metadata has no key '{escape(key)}'", rule="edit.remove")
        new.pop(key, None)
    return new


def _chunks(archive: Archive, metadata: Mapping[str, Any], spec: Format, version: str) -> Iterator[Chunk]:
    if spec.container.edit is not None:
        return spec.container.edit(archive, metadata)
    return spec.write(archive.with_index(replace(archive.index, metadata=metadata)), WriteOptions(version))


def _write_tail(
    path: str | os.PathLike[str], archive: Archive, chunks: Iterator[Chunk], stamp: Stamp, durable: bool
) -> Stamp:
    first, *rest = chunks
    if not (isinstance(first, Span) and first.source is archive.source and first.begin == 0) or any(
        isinstance(chunk, Span) for chunk in rest
    ):
        raise UnsupportedError(
            f"{archive.format} has its index before the tensors and cannot be edited in place",
            rule="edit.in_place",
            hint=Hint("leave out in_place", "leave out --in-place"),
        )
    tail = b"".join(as_bytes(chunk) for chunk in rest)
    return replace_tail(path, first.end, tail, expect=stamp, durable=durable)
