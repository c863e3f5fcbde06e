"""Other tensors in an existing file: dropped, replaced or added, by one atomic copy, or in place.

A format that can copies the stored bytes of the tensors that stay (`revise` of its
container); in others they are saved again as spans, compressed ones with the compression
that they had. In place, new bytes are appended (`append` of the container), and nothing
is copied unless most of the file would be unused then. Whoever revises a file holds its
lock, and changes it only if it is still the one that was read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from tensorglot.containers.table import Format, PerTensor, Revision, WriteOptions
from tensorglot.errors import Hint, UnsupportedError
from tensorglot.io.in_place import append_tail
from tensorglot.io.local import FileSource, Stamp
from tensorglot.io.place import Place
from tensorglot.io.sink import AtomicFile, open_spool
from tensorglot.io.stream import write_stream
from tensorglot.io.target import open_target
from tensorglot.io.upload import Upload
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, as_bytes
from tensorglot.operations._options import AUTO, SaveOptions
from tensorglot.operations._progress import Progress, follow
from tensorglot.operations.save import prepare

__all__ = ["append", "inherited_options", "revise", "write_revision"]


def revise(
    archive: Archive,
    spec: Format,
    version: str,
    *,
    added: Archive,
    drop: Collection[str] = (),
    metadata: Mapping[str, Any] | None,
    options: SaveOptions,
) -> tuple[Iterator[Chunk], Archive]:
    """The chunks of the new file, and the archive that they are of. What the format cannot store is refused.

    A new tensor takes the place of one of the same name.
    """
    names = _names(archive, added, drop)
    whole = _combine(archive, added, names, metadata)
    prepare(whole, spec, version, SaveOptions(checksum=None))
    settled = prepare(added, spec, version, options)
    if spec.container.revise is not None:
        return spec.container.revise(archive, Revision(names, added, metadata, settled)), whole
    return spec.write(whole, _options_of_all(archive, added, spec, settled)), whole


def append(
    archive: Archive,
    spec: Format,
    version: str,
    path: str,
    *,
    added: Archive,
    drop: Collection[str] = (),
    metadata: Mapping[str, Any] | None,
    options: SaveOptions,
    stamp: Stamp,
    durable: bool,
) -> Stamp | None:
    """Makes the same changes behind the end of the file. Returns its new stamp; None if a copy is better."""
    if spec.container.append is None or version not in spec.appends:
        raise UnsupportedError(
            f"{archive.format} cannot be edited in place",
            rule="edit.in_place",
            hint=Hint("leave out in_place", "leave out --in-place"),
        )
    names = _names(archive, added, drop)
    whole = _combine(archive, added, names, metadata)
    prepare(whole, spec, version, SaveOptions(checksum=None))
    settled = prepare(added, spec, version, options)
    chunks = spec.container.append(archive, Revision(names, added, metadata, settled))
    if chunks is None:
        return None
    with open_spool(path) as spool:
        held: Chunk = b""
        for chunk in chunks:
            write_stream(spool, [held])
            held = chunk
        spool.flush()
        tail = FileSource(os.dup(spool.fileno()))
        try:
            return append_tail(path, tail, bytes(as_bytes(held)), expect=stamp, durable=durable)
        finally:
            tail.close()


def _names(archive: Archive, added: Archive, drop: Collection[str]) -> list[str]:
    """The names of all tensors in their new order."""
    dropped = set(drop)
    names = [name for name in archive.index.names if name not in dropped]
    existing = set(names)
    return names + [name for name in added.index.names if name not in existing]


def _combine(archive: Archive, added: Archive, names: Sequence[str], metadata: Mapping[str, Any] | None) -> Archive:
    """The tensors that stay and the new ones, in their order."""
    old = archive.index
    joined = Index.concat([old, added.index.in_source(added.source)], format=old.format, metadata=metadata)
    new = {name: len(old.names) + position for name, position in added.index.positions.items()}
    order = [new.get(name, old.positions.get(name, -1)) for name in names]
    return archive.with_index(joined.take(np.array(order, np.int64)))


def _options_of_all(archive: Archive, added: Archive, spec: Format, settled: WriteOptions) -> WriteOptions:
    """Tensors that stay are compressed as they were."""
    compressed = {
        name: encoding
        for name in archive.index.names
        if name not in added and (encoding := archive[name].encoding) in spec.compression
    }
    new = {name: settled.compression.of(name) for name in added.index.names}
    checksums = {name: settled.checksum.of(name) for name in added.index.names}
    return replace(
        settled,
        compression=PerTensor(None, {**compressed, **new}),
        checksum=PerTensor(None, checksums),
    )


def inherited_options(archive: Archive, names: Iterable[str], spec: Format, version: str) -> SaveOptions:
    """New tensors get the compression and checksum algorithm of the tensors that they replace."""
    compression: dict[str, str | None] = {}
    checksum: dict[str, str | None] = {}
    for name in names:
        if name not in archive:
            continue
        old = archive[name]
        compression[name] = next((kind for kind in spec.compression if kind in old.encoding), None)
        algorithm = (old.checksum or "").partition(":")[0]
        checksum[name] = algorithm if algorithm in spec.checksums_in(version) else AUTO
    return SaveOptions(compression=compression or None, checksum=checksum or AUTO)


def write_revision(
    place: Place,
    chunks: Iterator[Chunk],
    total: int,
    *,
    expect: Stamp | str,
    durable: bool,
    progress: Progress | bool | None,
    around: AbstractContextManager[object] | None = None,
) -> Stamp | None:
    """Replaces the file or object, which must still have the stamp or the ETag. Returns the new stamp of a file."""
    with (
        follow(chunks, total, progress, "copying") as followed,
        open_target(place, durable=durable, expect=expect, around=around) as target,
    ):
        if isinstance(target, Upload):
            target.reserve(total)
        target.write(followed)
    return target.stamp if isinstance(target, AtomicFile) else None
