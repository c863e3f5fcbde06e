"""Editing the metadata of a file, and nothing else.

A format whose index stands last can say so (`edit` in its spec): then everything before
the index is one span, and the index alone is new. In any other format the tensors are
saved again as spans. Either way the operating system copies, and the file is replaced
atomically. In place, only the index is written; should the process or the machine die in
that moment, the file is lost, and so it is done on request only.

An edit is a read and a write of the same file, and others may write meanwhile. Editors
keep each other out with a lock on the file. Who does not know of the lock is found out:
what is there must still be what was read, or the edit stops.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorglot.arguments import as_names, as_path
from tensorglot.containers.table import Format, WriteOptions, named
from tensorglot.errors import Hint, InputError, UnsupportedError, escape
from tensorglot.io.local import Stamp, changed, file_stamp
from tensorglot.io.sink import AtomicFile, editing, replace_tail
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.operations._jsonable import field_dict
from tensorglot.operations._progress import Progress, follow
from tensorglot.operations._shards import stands_for_others
from tensorglot.operations._sidecar import check_place, move_sidecar, read_sidecar
from tensorglot.operations.open import open
from tensorglot.operations.save import check_metadata

__all__ = ["Edit", "edit"]


@dataclass(frozen=True, slots=True)
class Edit:
    """What `edit` did."""

    format: str
    metadata: Mapping[str, Any]
    changed: bool
    in_place: bool

    def to_dict(self) -> dict[str, Any]:
        return field_dict(self, metadata=dict(self.metadata))


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
    """Sets and removes keys of a file's metadata. Its tensors stay as they are, encodings and checksums included.

    `in_place` writes only the end of the file, where the format has its index there. It
    is quick however large the file is, and safe from everything but a kill or a crash
    in that moment. A file that somebody else changes meanwhile is left as they made it,
    and that is an error.
    """
    path = as_path(path)
    if stands_for_others(path):
        raise UnsupportedError(
            "a sharded checkpoint cannot be edited as a whole: edit one of its files", rule="edit.source"
        )
    with editing(path) as stamp, open(path, format=format, verify="never", limits=limits) as archive:
        spec, version = _editable(archive)
        if file_stamp(archive.source) != stamp:
            raise changed(path)
        old = dict(archive.metadata or {})
        new = _changed(old, metadata, remove, spec)
        if new == old:
            return Edit(archive.format, new, changed=False, in_place=False)
        sums = read_sidecar(path, archive.limits)
        if sums is not None:
            check_place(path)
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
                    raise changed(path)
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
