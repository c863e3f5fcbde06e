"""Editing a file: keys of its metadata set and removed; tensors replaced, dropped and added.

For metadata alone, a format that has its index at the end of a file can implement `edit`: then
everything before the index is one span, and only the index is new. In any other format
the tensors are saved again as spans. Either way the OS copies them (copy_file_range), and
the file is replaced atomically. Tensors are changed by such a copy, too (`_revise`). In
place, on request, nothing is copied. A format whose last bytes say where the index is
(zTensor 2) is appended to, which a kill cannot tear. In others only metadata is changed,
by a new index over the old one: a kill or a crash meanwhile loses the file.

Editors lock the file against each other. A process that ignores the lock is detected:
the edit stops unless the file is still the one that was read. An object at a URL is
uploaded anew, by the same chunks; it has no lock, and is replaced only if it still has the
ETag that was read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any

from tensorglot.arguments import as_names, check_flags, check_mapping
from tensorglot.containers.table import Format, WriteOptions, named
from tensorglot.errors import Hint, InputError, TensorNotFound, UnsupportedError, escape
from tensorglot.io.in_place import replace_tail
from tensorglot.io.local import Stamp, add_path_to_errors, change_error, file_stamp
from tensorglot.io.place import Place, as_place
from tensorglot.io.urls import check_target as check_url_target
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.names import check_name
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.operations._as_archive import collect
from tensorglot.operations._jsonable import Record
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress
from tensorglot.operations._revise import (
    NOT_IN_PLACE,
    Revised,
    inherited_options,
    open_to_edit,
    refuse_sidecar,
    sidecar_error,
    write_revision,
)
from tensorglot.operations._same_value import same_value
from tensorglot.operations._shards import is_sharded
from tensorglot.operations._sidecar import SetAside, Sums, check_target, move_sidecar, read_sidecar
from tensorglot.operations.open import OpenOptions, open_source
from tensorglot.operations.save import check_metadata, warn_of_copies

__all__ = ["Edit", "edit"]


@dataclass(frozen=True, slots=True)
class Edit(Record):
    """What `edit` did."""

    format: str
    metadata: Mapping[str, Any]
    changed: bool
    in_place: bool
    replaced: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


def edit(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    *,
    remove: Iterable[str] = (),
    replace: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    add: Mapping[str, Any] | None = None,
    in_place: bool = False,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Edit:
    """Sets and removes keys of a file's metadata; replaces, drops and adds tensors.

    The tensors that stay keep their encodings and checksums, and are copied without being
    decoded where the format allows it (zTensor; raw tensors in every format). A tensor that
    is replaced may change its type and shape; it keeps its compression and kind of checksum.
    The file is replaced atomically: all changes are made, or none.

    `in_place` copies nothing. Tensors are changed in place in zTensor 2: new ones and a new
    manifest are appended, and a kill at any time leaves the old contents or the new ones;
    what was dropped or replaced stays in the file, unused, until the next copy, which is
    made at once if more than half of the file would be unused (`Edit.in_place` says so).
    Metadata alone is changed by a new index at the end of the file, in formats that have it
    there; in zTensor 0.1 and `.npz` a kill or a crash while it is written loses the file.
    If another process changes the file meanwhile, that is an error and its change is kept.
    An object at a URL is downloaded and uploaded, piece by piece.
    """
    check_flags(in_place=in_place, durable=durable)
    place = as_place(locate(path, storage_options))
    if place.remote:
        _check_object(place, in_place)
    if is_sharded(place):
        raise UnsupportedError(
            "a sharded checkpoint cannot be edited as a whole: edit one of its files", rule="edit.source"
        )
    removed = tuple(as_names(remove, "remove", "edit.remove"))
    replace, add = replace if replace is not None else {}, add if add is not None else {}
    check_mapping(replace, "replace", "edit.replace")
    check_mapping(add, "add", "edit.add")
    tensors = _Changes(replace, tuple(as_names(drop, "drop", "edit.drop")), add)
    options = OpenOptions.of(format, verify="auto" if tensors else "never", limits=limits)
    with add_path_to_errors(place), open_to_edit(place, options) as (archive, expect):
        spec, version = _editable(archive, metadata=metadata is not None or bool(removed))
        old = dict(archive.metadata or {})
        new = _changed(old, metadata, removed, spec, version)
        save = SaveOptions(durable=durable, progress=progress)
        if tensors:
            return _change_tensors(place, archive, tensors, new, expect, save, in_place)
        if same_value(new, old, exact=True):
            return Edit(archive.format, new, changed=False, in_place=False)
        sums = _sidecar_to_move(place, archive)
        chunks = _chunks(archive, new, spec, version)
        written: Stamp | None = None
        if in_place and not isinstance(expect, str):
            with SetAside(place, durable=durable) as aside:
                if version in spec.appends:
                    revised = Revised.of(archive, collect({}), new, save, in_place=True)
                    written = revised.append(place.text, expect, durable=durable)
                    if written is None:
                        aside.put_back()
                else:
                    written = _write_tail(place.text, archive, chunks, expect, durable)
        placed = written is not None
        if not placed:
            total = int((archive.index.ends - archive.index.begins).sum())
            written = write_revision(place, chunks, total, expect, save)
        if sums is not None:
            with open_source(place, OpenOptions(archive.format, verify="never", limits=options.limits)) as edited:
                if file_stamp(edited.source) != written:
                    raise change_error(place)
                move_sidecar(edited, place, sums)
        return Edit(archive.format, new, changed=True, in_place=placed)


def _check_object(place: Place, in_place: bool) -> None:
    """Refuses what cannot be done at a URL before anything is read."""
    if place.is_commit:
        raise UnsupportedError(
            "a commit is immutable: commit the changed tensors instead", rule="edit.source", path=place.shown
        )
    check_url_target(place.text)
    if in_place:
        raise UnsupportedError(
            "an object at a URL cannot be changed in place", rule="edit.in_place", path=place.shown, hint=NOT_IN_PLACE
        )


def _sidecar_to_move(place: Place, archive: Archive) -> Sums | None:
    """The sidecar of a file. Its checksums of tensors stay valid when only the metadata changes."""
    sums = read_sidecar(place, archive.limits)
    if sums is not None:
        if place.remote:
            raise sidecar_error(place)
        check_target(place)
    return sums


@dataclass(frozen=True, slots=True)
class _Changes:
    """Tensors to be changed."""

    replace: Mapping[str, Any]
    drop: tuple[str, ...]
    add: Mapping[str, Any]

    def __bool__(self) -> bool:
        return bool(self.replace or self.drop or self.add)

    def check(self, archive: Archive) -> None:
        """What is replaced or dropped is in the file, what is added is not; no tensor is changed twice."""
        for name in (*self.replace, *self.add):
            check_name(name)
        for name in (*self.replace, *self.drop):
            if name not in archive:
                raise TensorNotFound.among(name, archive.index.names)
        for name in self.add:
            if name in archive:
                raise InputError(
                    "the file already has a tensor of this name",
                    rule="edit.add",
                    tensor=name,
                    hint=Hint("pass it in replace=", "pass it with --replace"),
                )
        for name in self.drop:
            if name in self.replace or self.drop.count(name) > 1:
                raise InputError(
                    "the tensor is dropped twice, or both dropped and replaced", rule="edit.drop", tensor=name
                )


def _change_tensors(
    place: Place,
    archive: Archive,
    changes: _Changes,
    metadata: Mapping[str, Any],
    expect: Stamp | str,
    save: SaveOptions,
    in_place: bool,
) -> Edit:
    changes.check(archive)
    kept = metadata if metadata or archive.metadata is not None else None
    added = collect({**changes.replace, **changes.add})
    refuse_sidecar(archive, place)
    options = inherited_options(archive, changes.replace, save)
    revised = Revised.of(archive, added, kept, options, changes.drop, in_place=in_place)
    warn_of_copies(added, revised.spec, stacklevel=3)
    placed = revised.write(place, expect, save)
    return Edit(
        archive.format,
        metadata,
        changed=True,
        in_place=placed,
        replaced=tuple(changes.replace),
        dropped=changes.drop,
        added=tuple(changes.add),
    )


def _editable(archive: Archive, *, metadata: bool) -> tuple[Format, str]:
    spec, version = named(archive.format)
    if metadata and spec.metadata == "none":
        raise UnsupportedError(f"{spec.name} cannot store metadata", rule="save.metadata")
    if version is None or version not in spec.writes:
        raise UnsupportedError(
            f"{archive.format} can be read but not written: convert the file to another format", rule="format.write"
        )
    return spec, version


def _changed(
    old: Mapping[str, Any], metadata: Mapping[str, Any] | None, remove: Iterable[str], spec: Format, version: str
) -> dict[str, Any]:
    if metadata is not None:
        check_metadata(metadata, spec, version)
    new = {**old, **(metadata or {})}
    for key in remove:
        if key in (metadata or {}):
            raise InputError(f"the key '{escape(key)}' is both set and removed", rule="edit.remove")
        if key not in old:
            raise InputError(f"the metadata has no key '{escape(key)}'", rule="edit.remove")
        new.pop(key, None)
    return new


def _chunks(archive: Archive, metadata: Mapping[str, Any], spec: Format, version: str) -> Iterator[Chunk]:
    if spec.container.edit is not None:
        return spec.container.edit(archive, metadata)
    return spec.write(archive.with_index(with_fields(archive.index, metadata=metadata)), WriteOptions(version))


def _write_tail(
    path: str | os.PathLike[str], archive: Archive, chunks: Iterator[Chunk], stamp: Stamp, durable: bool
) -> Stamp:
    # The index is at the end exactly if the first chunk is everything before it, copied from the file itself.
    first, *rest = chunks
    if not (isinstance(first, Span) and first.source is archive.source and first.begin == 0) or any(
        isinstance(chunk, Span) for chunk in rest
    ):
        raise UnsupportedError(
            f"{archive.format} has its index before the tensors and cannot be edited in place",
            rule="edit.in_place",
            hint=NOT_IN_PLACE,
        )
    tail = b"".join(as_bytes(chunk) for chunk in rest)
    return replace_tail(path, first.end, tail, expect=stamp, durable=durable)
