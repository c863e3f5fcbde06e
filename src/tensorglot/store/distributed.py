"""A distributed checkpoint as a commit: each box a tensor, and the index of all of them.

The ranks stage their boxes under `RANK/NAME`, the coordinator commits them together with
`dcp.json`, the index that a directory has (`containers/dcp/manifest.py`), as a tensor of
bytes. The metadata of the commit says so. When such a commit is checked out, its tensors
are joined from their boxes, as those of a directory are: who reads it sees whole tensors.
A later checkpoint of the same shards shares the boxes that did not change, and stores the
others as differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.dcp import read_index
from tensorglot.containers.dcp.checkpoint import Place
from tensorglot.containers.dcp.directory import Directory, box_in
from tensorglot.containers.dcp.manifest import INDEX, Manifest
from tensorglot.containers.table import ReadOptions
from tensorglot.errors import FormatError
from tensorglot.io.local import BufferSource
from tensorglot.model.archive import Archive, Verifier
from tensorglot.model.payload import CheckedBy
from tensorglot.model.tensor import Part
from tensorglot.store.objects import Commit

__all__ = ["METADATA", "box_key", "index_tensor", "is_distributed", "join_boxes"]

METADATA: Mapping[str, Any] = {"tensorglot": "dcp"}
"""Metadata of a commit that is a distributed checkpoint."""


def box_key(rank: str, name: str) -> str:
    """The name in the commit of a box that a rank has staged."""
    return f"{rank}/{name}"


def index_tensor(manifest: Manifest) -> dict[str, NDArray[np.uint8]]:
    """What the coordinator adds to the boxes."""
    return {INDEX: np.frombuffer(manifest.encode(), np.uint8)}


def is_distributed(commit: Commit) -> bool:
    return commit.metadata == METADATA


class _Boxes(Directory):
    """The boxes of a commit, which has no files."""

    checked_by: ClassVar[CheckedBy] = "block"

    def __init__(self, archive: Archive, options: ReadOptions) -> None:
        super().__init__(options)
        self._archive = archive

    def __reduce__(self) -> tuple[Any, ...]:
        return _Boxes, (self._archive, self._options)

    def box(self, place: Place, tensor: str, verifier: Verifier | None = None) -> Part:
        return box_in(self._archive, box_key(place.file, place.name), "the commit", tensor)

    def span(self, place: Place, tensor: str) -> None:
        return None

    def members(self) -> list[tuple[str, int, int]]:
        return []

    def close(self) -> None:
        super().close()
        self._archive.close()


def join_boxes(boxes: Archive, reopen: Callable[[], Archive] | None) -> Archive:
    """The tensors of a checkpoint, of whose commit `boxes` is the archive."""
    limits = boxes.limits
    if INDEX not in boxes or boxes[INDEX].layout != "dense":
        raise FormatError(f"the commit of a distributed checkpoint needs {INDEX}", rule="store.dcp")
    limits.check_header(boxes[INDEX].nbytes, "index", rule="dcp.limit")
    source = BufferSource(boxes[INDEX].numpy().tobytes())
    options = ReadOptions(limits=limits)
    return Archive(read_index(source, _Boxes(boxes, options), options), source, limits=limits, reopen=reopen)
