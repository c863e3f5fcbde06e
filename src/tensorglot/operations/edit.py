"""Editing the metadata of a file, and nothing else.

A format whose index stands last can say so (`edited` in its module): then everything
before the index is one span, and the index alone is new. In any other format the
tensors are saved again as spans. Either way the kernel copies, and the file is whole
or as it was. In place, only the index is written; should the process or the machine
die in that moment, the file is lost, and so it is done on request only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorglot.containers.table import Format, WriteOptions, named
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.io.sink import AtomicFile, replace_tail
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.operations._sidecar import move_sidecar, read_sidecar
from tensorglot.operations.open import open
from tensorglot.operations.save import Progress, check_metadata, reported

__all__ = ["Edit", "edit"]


@dataclass(frozen=True, slots=True)
class Edit:
    """What `edit` did."""

    format: str
    metadata: Mapping[str, Any]
    changed: bool
    in_place: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "metadata": dict(self.metadata),
            "changed": self.changed,
            "in_place": self.in_place,
        }


def edit(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    *,
    remove: Iterable[str] = (),
    in_place: bool = False,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Edit:
    """Sets and removes keys of a file's metadata. Its tensors stay as they are, encodings and checksums included.

    `in_place` writes only the end of the file, where the format has its index there. It
    is quick however large the file is, and safe from everything but a kill or a crash
    in that moment.
    """
    with open(path, format=format, verify="never", limits=limits) as archive:
        spec, version = _editable(archive)
        old = dict(archive.metadata or {})
        new = _changed(old, metadata or {}, remove)
        if new == old:
            return Edit(archive.format, new, changed=False, in_place=False)
        check_metadata(new, spec)
        sums = read_sidecar(path, archive.limits)
        chunks = _chunks(archive, new, spec, version)
        if in_place:
            _write_tail(path, archive, chunks, durable)
        else:
            total = int((archive.index.ends - archive.index.begins).sum())
            with AtomicFile(path, durable=durable) as file:
                file.write(chunks if progress is None else reported(chunks, total, progress))
        kind = archive.format
    if sums is not None:
        with open(path, format=kind, verify="never", limits=limits) as archive:
            move_sidecar(archive, path, sums)
    return Edit(kind, new, changed=True, in_place=in_place)


def _editable(archive: Archive) -> tuple[Format, str]:
    spec, version = named(archive.format)
    if archive.source is None:
        raise UnsupportedError("a checkpoint in several files: edit one of them", rule="edit.source")
    if spec.metadata == "none":
        raise UnsupportedError(f"{spec.name} has no metadata", rule="save.metadata")
    if version is None or version not in spec.writes:
        raise UnsupportedError(f"{archive.format} can be read, not written: convert it", rule="format.write")
    return spec, version


def _changed(old: Mapping[str, Any], metadata: Mapping[str, Any], remove: Iterable[str]) -> dict[str, Any]:
    new = {**old, **metadata}
    for key in remove:
        if key not in old:
            raise InputError(f"the metadata has no '{key}'", rule="edit.remove")
        new.pop(key, None)
    return new


def _chunks(archive: Archive, metadata: Mapping[str, Any], spec: Format, version: str) -> Iterator[Chunk]:
    if spec.container.edit is not None:
        return spec.container.edit(archive, metadata)
    return spec.write(archive.with_index(replace(archive.index, metadata=metadata)), WriteOptions(version))


def _write_tail(path: str | os.PathLike[str], archive: Archive, chunks: Iterator[Chunk], durable: bool) -> None:
    first, *rest = chunks
    if not (isinstance(first, Span) and first.source is archive.source and first.begin == 0) or any(
        isinstance(chunk, Span) for chunk in rest
    ):
        raise UnsupportedError(f"{archive.format} has its index in front of the tensors", rule="edit.in_place")
    replace_tail(path, first.end, b"".join(as_bytes(chunk) for chunk in rest), durable=durable)
