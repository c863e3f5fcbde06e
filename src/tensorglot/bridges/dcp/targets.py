"""Where a writer saves to: a folder, at a path or URL, or a ref of a store.

A rank writes its boxes under a name of its own; what `write` returns goes to the
coordinator with the results. `finish` makes the checkpoint visible, by writing the index
or by making the commit, and removes what earlier saves have left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from tensorglot.containers.dcp.manifest import INDEX, Manifest
from tensorglot.containers.table import Format, WriteOptions, named
from tensorglot.errors import InputError, escape, plural
from tensorglot.io.folder import Folder
from tensorglot.io.place import Place
from tensorglot.io.storage_options import StorageOptions
from tensorglot.model.archive import Archive
from tensorglot.operations._as_archive import collect
from tensorglot.operations._file_layout import RowPlace, file_layout
from tensorglot.operations._options import SaveOptions
from tensorglot.operations.save import prepare, write_archive
from tensorglot.store.distributed import METADATA, box_key, index_tensor
from tensorglot.store.location import split_url
from tensorglot.store.store import Store
from tensorglot.threads import for_each_request

__all__ = ["FolderTarget", "StoreTarget", "Target"]

_RANK_FILE = re.compile(r"[0-9a-f]{8}-[0-9]{5}\.[a-z]+")

ALIGNMENT = 64
"""Alignment of PyTorch's tensors in memory."""
PADDING = "padding"
"""Metadata key whose value is as long as the alignment of the rows requires."""

Links = Mapping[str, str]
"""CIDs by the names of boxes."""


class Target(Protocol):
    """A place for a checkpoint. Made by every rank."""

    def prepare(self) -> None:
        """Called by every rank before it writes."""
        ...

    def name_ranks(self, count: int) -> list[str]:
        """A name for what each rank will write; called by the coordinator."""
        ...

    def write(self, name: str, boxes: Mapping[str, NDArray[Any]]) -> Links:
        """Writes the boxes of a rank."""
        ...

    def finish(self, manifest: Manifest, links: Links) -> None:
        """Completes the checkpoint, with what all ranks have returned."""
        ...


class FolderTarget:
    """A tensor file for each rank, and `dcp.json`. Files of a save have a random prefix."""

    def __init__(self, place: Place, spec: Format, version: str, *, durable: bool) -> None:
        self._folder = Folder.at(place)
        self._spec = spec
        self._version = version
        self._options = SaveOptions(durable=durable)

    def prepare(self) -> None:
        if not self._folder.place.remote:
            Path(self._folder.place).mkdir(parents=True, exist_ok=True)

    def name_ranks(self, count: int) -> list[str]:
        prefix, suffix = os.urandom(4).hex(), self._spec.suffixes[0]
        return [f"{prefix}-{rank:05d}{suffix}" for rank in range(count)]

    def write(self, name: str, boxes: Mapping[str, NDArray[Any]]) -> Links:
        if boxes:
            archive = collect(boxes)
            settled = prepare(archive, self._spec, self._version, self._options)
            write_archive(
                self._folder.file(name), _align(archive, self._spec, settled), self._spec, settled, self._options
            )
        return {}

    def finish(self, manifest: Manifest, links: Links) -> None:
        archive = collect({}, {"manifest": manifest})
        write_archive(self._folder.file(INDEX), archive, named("dcp")[0], WriteOptions("json"), self._options)
        present = {name for name in self._folder.names() or () if _RANK_FILE.fullmatch(name)}
        for_each_request(self._folder.remove, present.difference(manifest.files))  # the files of earlier saves


def _align(archive: Archive, spec: Format, settled: WriteOptions) -> Archive:
    """Pads the header by a metadata value, so that rows are aligned like PyTorch's tensors: copying is faster."""
    if not spec.container.raw_rows:
        return archive
    padded = archive.with_index(replace(archive.index, metadata={PADDING: ""}))
    # The length of everything before the first row, with an empty value; then as many spaces as are missing.
    before = takewhile(lambda chunk: not isinstance(chunk, RowPlace), file_layout(padded, spec, settled))
    spaces = -sum(map(len, before)) % ALIGNMENT
    return archive.with_index(replace(archive.index, metadata={PADDING: " " * spaces}))


class StoreTarget:
    """One commit: the ranks stage their boxes, the coordinator commits them with the index."""

    def __init__(self, url: str, options: StorageOptions | None) -> None:
        self._where, ref = split_url(url)
        if ref is None:
            raise InputError(f"name the ref to commit to, as in {escape(url)}#main", rule="store.ref.name")
        self._ref = ref
        self._options = options
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = Store(self._where, self._options)
        return self._store

    def prepare(self) -> None:
        self.store.refs()

    def name_ranks(self, count: int) -> list[str]:
        return [f"{rank:05d}" for rank in range(count)]

    def write(self, name: str, boxes: Mapping[str, NDArray[Any]]) -> Links:
        staged = {box_key(name, box): array for box, array in boxes.items()}
        return self.store.stage(staged, ref=self._ref) if staged else {}

    def finish(self, manifest: Manifest, links: Links) -> None:
        message = f"distributed checkpoint of {plural(len(manifest.files), 'rank')}"
        self.store.commit(self._ref, index_tensor(manifest), message=message, metadata=METADATA, staged=links)
