"""Appending tensors to an existing file: its names are read at the beginning, the file itself at the end.

Between the two another writer may have replaced the file. The new tensors do not depend
on the old ones, so the revision is made again from the current file, until no other writer
has interfered; it fails only if another writer has added one of the same names.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorglot.containers.table import named
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.io import in_place
from tensorglot.io.local import add_path_to_errors, change_error, file_stamp
from tensorglot.io.place import Place
from tensorglot.model.archive import Archive
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._revise import Revised, check_in_place, refuse_sidecar
from tensorglot.operations._shards import is_sharded
from tensorglot.operations.open import OpenOptions, open_source

__all__ = ["Appended"]


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
        end = time.monotonic() + in_place.PATIENCE_SECONDS
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
        with in_place.lock_for_edit(self.place) as stamp, open_source(self.place, OpenOptions(self.format)) as archive:
            if file_stamp(archive.source) != stamp:
                raise change_error(self.place)
            for name in added.index.names:
                if name in archive:
                    raise InputError("another writer has added this name", rule="writer.name", tensor=name)
            refuse_sidecar(archive, self.place)
            new = archive.metadata if metadata is None else {**(archive.metadata or {}), **metadata}
            Revised.of(archive, added, new, options, in_place=direct).write(self.place, stamp, options)
