"""Other tensors in an existing file: dropped, replaced or added, by one atomic copy, or in place.

A format that can copies the stored bytes of the tensors that stay (`revise` of its
container); in others they are saved again as spans, compressed ones with the compression
that they had. In place, new bytes are appended (`append` of the container), and nothing
is copied unless most of the file would be unused then. Whoever revises a file holds its
lock, and changes it only if it is still the one that was read.

Of a file that is appended to, the names are read at the beginning, the file itself at the end.
Between the two another writer may have replaced it. The new tensors do not depend on the old
ones, so the revision is made again from the current file, until no other writer has
interfered; it fails only if another writer has added one of the same names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorglot.containers.table import Format, PerTensor, Revision, WriteOptions, named
from tensorglot.errors import Hint, InputError, UnsupportedError
from tensorglot.io.in_place import PATIENCE_SECONDS, append_tail, lock_for_edit
from tensorglot.io.local import FileSource, Stamp, add_path_to_errors, change_error, file_stamp
from tensorglot.io.place import Place
from tensorglot.io.sink import AtomicFile, open_spool
from tensorglot.io.stream import write_stream
from tensorglot.io.target import open_target, version_read
from tensorglot.io.upload import Upload
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, as_bytes
from tensorglot.operations._options import AUTO, SaveOptions
from tensorglot.operations._progress import follow
from tensorglot.operations._shards import is_sharded
from tensorglot.operations._sidecar import SetAside, read_sidecar
from tensorglot.operations.open import OpenOptions, open_source
from tensorglot.operations.save import check_bools, prepare

__all__ = [
    "NOT_IN_PLACE",
    "Appended",
    "Revised",
    "inherited_options",
    "open_to_edit",
    "refuse_sidecar",
    "sidecar_error",
    "write_revision",
]

NOT_IN_PLACE = Hint("leave out in_place", "leave out --in-place")


def check_in_place(format: str) -> None:
    """Refuses a format whose tensors cannot be changed without a copy of the file."""
    spec, version = named(format)
    if spec.container.append is None or version not in spec.appends:
        raise UnsupportedError(f"{format} cannot be edited in place", rule="edit.in_place", hint=NOT_IN_PLACE)


@dataclass(frozen=True, slots=True)
class Revised:
    """An archive with other tensors, all of which its format can store."""

    archive: Archive
    spec: Format
    whole: Archive
    """The archive with the tensors that stay and the new ones."""
    revision: Revision
    in_place: bool

    @classmethod
    def of(
        cls,
        archive: Archive,
        added: Archive,
        metadata: Mapping[str, Any] | None,
        options: SaveOptions,
        drop: Collection[str] = (),
        *,
        in_place: bool,
    ) -> Revised:
        """What the format cannot store is refused. A new tensor takes the place of one of the same name."""
        spec, version = named(archive.format)
        if in_place:
            check_in_place(archive.format)
        dropped = set(drop)
        names = [name for name in archive.index.names if name not in dropped]
        existing = set(names)
        names += [name for name in added.index.names if name not in existing]
        whole = _combine(archive, added, names, metadata)
        prepare(whole, spec, version or "", SaveOptions(checksum=None))  # refuses what the format cannot store
        settled = prepare(added, spec, version or "", options)
        check_bools(added)
        return cls(archive, spec, whole, Revision(names, added, metadata, settled), in_place)

    def write(self, place: Place, expect: Stamp | str, options: SaveOptions) -> bool:
        """Changes the file or object, which must still have this stamp or ETag. Returns whether it was in place."""
        if self.in_place and not isinstance(expect, str) and self.append(place.text, expect, durable=options.durable):
            return True
        if self.spec.container.revise is not None:
            chunks = self.spec.container.revise(self.archive, self.revision)
        else:
            chunks = self.spec.write(self.whole, self._options_of_all())
        write_revision(place, chunks, int(self.whole.index.nbytes.sum()), expect, options)
        return False

    def append(self, path: str, stamp: Stamp, *, durable: bool) -> Stamp | None:
        """Appends the changes to the file. Returns its new stamp; None if a copy is better."""
        assert self.spec.container.append is not None  # noqa: S101
        chunks = self.spec.container.append(self.archive, self.revision)
        if chunks is None:
            return None
        with open_spool(path) as spool:
            # The last chunk is the footer. It is kept apart, because `append_tail` writes it after all other bytes.
            held: Chunk = b""
            for chunk in chunks:
                write_stream(spool, [held])
                held = chunk
            spool.flush()
            with closing(FileSource(os.dup(spool.fileno()))) as tail:
                return append_tail(path, tail, bytes(as_bytes(held)), expect=stamp, durable=durable)

    def _options_of_all(self) -> WriteOptions:
        """Tensors that stay are compressed as they were."""
        added, settled = self.revision.added, self.revision.options
        compressed = {
            name: encoding
            for name in self.archive.index.names
            if name not in added and (encoding := self.archive[name].encoding) in self.spec.compression
        }
        new = {name: settled.compression.of(name) for name in added.index.names}
        checksums = {name: settled.checksum.of(name) for name in added.index.names}
        return settled._replace(compression=PerTensor(None, {**compressed, **new}), checksum=PerTensor(None, checksums))


def _combine(archive: Archive, added: Archive, names: Sequence[str], metadata: Mapping[str, Any] | None) -> Archive:
    """The tensors that stay and the new ones, in their order."""
    old = archive.index
    joined = Index.concat([old, added.index.in_source(added.source)], format=old.format, metadata=metadata)
    new = {name: len(old.names) + position for name, position in added.index.positions.items()}
    order = [new.get(name, old.positions.get(name, -1)) for name in names]
    return archive.with_index(joined.take(np.array(order, np.int64)))


def refuse_sidecar(archive: Archive, place: Place) -> None:
    """Refuses to change the tensors of a file with a sidecar: its checksums would be wrong."""
    if read_sidecar(place, archive.limits) is not None:
        raise sidecar_error(place)


def sidecar_error(place: Place) -> UnsupportedError:
    return UnsupportedError(
        "the file has a sidecar of checksums, which would not match: verify the file, remove the sidecar, and "
        "write it again afterwards",
        rule="edit.sidecar",
        path=place.shown,
    )


def inherited_options(archive: Archive, names: Iterable[str], options: SaveOptions) -> SaveOptions:
    """New tensors get the compression and checksum algorithm of the tensors that they replace."""
    spec, version = named(archive.format)
    compression: dict[str, str | None] = {}
    checksum: dict[str, str | None] = {}
    for name in names:
        old = archive[name]
        compression[name] = next((kind for kind in spec.compression if kind in old.encoding), None)
        algorithm = (old.checksum or "").partition(":")[0]
        checksum[name] = algorithm if algorithm in spec.checksums_in(version or "") else AUTO
    return options._replace(compression=compression or None, checksum=checksum or AUTO)


@contextmanager
def open_to_edit(place: Place, options: OpenOptions) -> Iterator[tuple[Archive, Stamp | str]]:
    """The archive, and the version that must still be there when it is replaced: a file's stamp, or an ETag.

    A local file is locked meanwhile.
    """
    with nullcontext() if place.remote else lock_for_edit(place) as stamp, open_source(place, options) as archive:
        found = version_read(archive.source, place) if stamp is None else file_stamp(archive.source)
        if found is None:
            raise UnsupportedError(
                "the server sends no ETag, so a concurrent change could go unnoticed: edit a local copy and upload it",
                rule="edit.etag",
                path=place.shown,
            )
        if stamp not in (None, found):
            raise change_error(place)
        yield archive, found


@dataclass(frozen=True, slots=True)
class Appended:
    """A file that is appended to."""

    place: Place
    format: str
    names: frozenset[str]

    @classmethod
    def of(cls, target: object, format: str | None, *, direct: bool) -> Appended:
        """Reads the names in the file. A file that cannot be appended to is refused here, before any work is done."""
        if not isinstance(target, Place) or target.remote or is_sharded(target):
            raise InputError("append needs the path of one file", rule="writer.append")
        with add_path_to_errors(target), open_source(target, OpenOptions(format, verify="never")) as archive:
            spec, version = named(archive.format)
            if version is None or version not in spec.writes or not spec.names:
                raise UnsupportedError(
                    f"{archive.format} cannot be appended to: convert the file to another format",
                    rule="format.write",
                )
            if direct:
                check_in_place(archive.format)
            return cls(target, archive.format, frozenset(archive.index.names))

    def append(self, added: Archive, metadata: Mapping[str, Any] | None, options: SaveOptions, *, direct: bool) -> None:
        """Adds these tensors to the file: in a copy that replaces it, or in place."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with add_path_to_errors(self.place):
                    return self._try(added, metadata, options, direct=direct)
            except InputError as error:
                # Another writer holds the lock, or has replaced the file since it was read: try again.
                if error.rule not in ("source.locked", "source.changed") or time.monotonic() > end:
                    raise
            time.sleep(0.005)

    def _try(self, added: Archive, metadata: Mapping[str, Any] | None, options: SaveOptions, *, direct: bool) -> None:
        with open_to_edit(self.place, OpenOptions(self.format)) as (archive, stamp):
            for name in added.index.names:
                if name in archive:
                    raise InputError("another writer has added this name", rule="writer.name", tensor=name)
            refuse_sidecar(archive, self.place)
            new = archive.metadata if metadata is None else {**(archive.metadata or {}), **metadata}
            Revised.of(archive, added, new, options, in_place=direct).write(self.place, stamp, options)


def write_revision(
    place: Place, chunks: Iterator[Chunk], total: int, expect: Stamp | str, options: SaveOptions
) -> Stamp | None:
    """Replaces the file or object, which must still have the stamp or the ETag. Returns the new stamp of a file."""
    around = SetAside(place, durable=options.durable)
    with (
        follow(chunks, total, options.progress, "copying") as followed,
        open_target(place, durable=options.durable, expect=expect, around=around) as target,
    ):
        if isinstance(target, Upload):
            target.reserve(total)
        target.write(followed)
    return target.stamp if isinstance(target, AtomicFile) else None
