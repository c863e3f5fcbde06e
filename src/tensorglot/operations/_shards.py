"""A checkpoint in several files: an index that says which tensor is in which shard, opened as one archive.

    {"metadata": {"total_size": 12}, "weight_map": {"w": "model-00001-of-00002.safetensors", …}}

The index decides: a tensor that it does not list is not part of the archive, one that it
lists and its shard does not have is an error. Unlisted files and tensors are notes, and
errors for a strict reader. A shard is a plain file name in the directory of the index,
checked before it is used; it is one file, never a directory or another index, and no
file is two shards: so the work is bounded by the sizes of the files. A directory without
an index is opened by its only tensor file. Knows no format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from tensorglot.containers.store import MARKER
from tensorglot.containers.table import TABLE, for_target
from tensorglot.errors import FormatError, Hint, InputError, escape
from tensorglot.io.folder import Folder, as_folder, file_named_by
from tensorglot.io.local import BaseSource, Stamp, add_path_to_errors, file_stamp
from tensorglot.io.place import Place, as_place
from tensorglot.io.source import source_for
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index, Note
from tensorglot.operations._places import INDEX_SUFFIX
from tensorglot.operations._same_value import same_value
from tensorglot.threads import for_each_request

__all__ = [
    "Shards",
    "common_metadata",
    "find_file",
    "find_in_folder",
    "is_sharded",
    "join_archives",
    "open_shards",
    "refuse_duplicates",
]

PREFERRED = ("model.safetensors.index.json", "model.safetensors")
"""Opened if a directory has several candidates."""
DISTRIBUTED = ("dcp.json", ".metadata")
"""The index of a distributed checkpoint: ours, beside tensor files, and PyTorch's."""
DEPTH = 8

Shards: TypeAlias = dict[str, list[str]]
"""Names of tensors by file name of the shard."""


def is_sharded(place: Place) -> bool:
    """A folder, or the index of a sharded checkpoint."""
    return place.text.endswith(INDEX_SUFFIX) or as_folder(place) is not None


def find_file(place: Place) -> Place:
    """The file to open: the one at the place; for a folder its index of shards, else its only tensor file."""
    folder = as_folder(place)
    return place if folder is None else find_in_folder(folder)


def find_in_folder(folder: Folder) -> Place:
    """The index of shards of a folder, else its only tensor file."""
    names, shown = folder.names(), folder.place.shown
    if names is None:
        names = next(([name] for name in PREFERRED if folder.has(name)), [])
    if DISTRIBUTED[0] in names:
        return folder.file(DISTRIBUTED[0])
    suffixes = tuple(suffix for spec in TABLE for suffix in spec.suffixes)
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    found = indexes or [name for name in names if name.lower().endswith(suffixes)]
    found = found or [name for name in names if name == DISTRIBUTED[1]]
    for name in PREFERRED:
        if name in found:
            return folder.file(name)
    if not found and MARKER in names:
        raise InputError(
            f"the directory is a store: open one of its commits, as in store://{shown}#main",
            rule="store.url",
            path=shown,
            hint=Hint("Store(path).refs() lists them", f"`tensorglot store refs {shown}` lists them"),
        )
    if not found:
        raise InputError(
            f"the directory has no index of shards (*{INDEX_SUFFIX}) and no tensor file",
            rule="source.regular",
            path=shown,
        )
    if len(found) > 1:
        raise InputError(
            f"the directory has {len(found)} candidates; open one of them: {', '.join(map(escape, found))}",
            rule="shards.index",
            path=shown,
        )
    return folder.file(found[0])


def open_shards(place: Place, limits: Limits, strict: bool, open_file: Callable[[Place], Archive]) -> Index:
    """All shards of the index at a place as one index; `open_file` opens one file."""
    files: dict[Stamp, str] = {}
    with add_path_to_errors(place), ExitStack() as on_error:
        shards = _read_index(source_for(place), limits)
        notes = _stray_shards(place, shards)
        archives = _open_all(place, shards, open_file, on_error)
        for archive, (shard, names) in zip(archives, shards.items(), strict=True):
            stamp = file_stamp(archive.source)
            if stamp is not None and files.setdefault(stamp, shard) != shard:
                raise FormatError(
                    f"the shards {escape(shard)} and {escape(files[stamp])} are the same file", rule="shards.same"
                )
            archive.index, more = _take_listed(archive.index, shard, names)
            notes += more
        metadata, conflicts = common_metadata(archives)
        formats = sorted({archive.format for archive in archives})
        if len(formats) > 1:
            raise FormatError(f"the shards have different formats: {', '.join(formats)}", rule="shards.format")
        notes += [
            Note("shards.metadata", f"the metadata key '{escape(key)}' differs between shards") for key in conflicts
        ]
        if strict and notes:
            raise FormatError(notes[0].message, rule=notes[0].rule)
        # From here on the joined index owns the files.
        joined = join_archives(archives, formats[0] if formats else _format_of(place.name), metadata, notes)
        on_error.pop_all()
    return joined


def _open_all(
    index: Place, shards: Iterable[str], open_file: Callable[[Place], Archive], on_error: ExitStack
) -> list[Archive]:
    """The archive of each shard; those at URLs are opened at the same time."""
    opened: dict[str, Archive] = {}

    def work(shard: str) -> None:
        place = file_named_by(index, shard)
        opened[shard] = on_error.enter_context(_open_shard(place, shard, open_file))

    if index.remote:
        for_each_request(work, shards)
    else:
        for shard in shards:
            work(shard)
    return [opened[shard] for shard in shards]


def _open_shard(place: Place, name: str, open_file: Callable[[Place], Archive]) -> Archive:
    try:
        return open_file(place)
    except FileNotFoundError as error:
        raise FormatError(f"the shard {escape(name)} is missing", rule="shards.missing", path=error.filename) from error
    except InputError as error:
        if error.rule != "source.regular":
            raise
        raise FormatError(
            f"the shard {escape(name)} is {error.message}", rule="shards.file", path=error.path
        ) from error


def _read_index(source: BaseSource, limits: Limits) -> Shards:
    limits.check_header(source.size, "an index", rule="shards.limit.index")
    from tensorglot.wire import json

    value = json.parse(source.read_bytes(0, source.size), depth=DEPTH, rule="shards.json")
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict):
        raise FormatError("the index has no weight_map", rule="shards.weight_map")
    limits.check_tensors(len(weight_map), rule="shards.limit.tensors")
    shards: Shards = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise FormatError("the shard of a tensor must be a string", rule="shards.weight_map", tensor=name)
        if shard not in shards:
            _check_file_name(shard, name)
            shards[shard] = []
        shards[shard].append(name)
    return shards


_PLAIN_NAME = re.compile(r"(?!\.)[^/\\:]+")


def _check_file_name(shard: str, tensor: str) -> None:
    """A plain file name in the directory of the index: no path, no hidden file."""
    plain = _PLAIN_NAME.fullmatch(shard) is not None and shard.isprintable() and not shard.endswith(INDEX_SUFFIX)
    if not plain or (len(shard) > 63 and len(os.fsencode(shard)) > 255):
        raise FormatError(
            f"the shard '{escape(shard)}' must be a plain file name in the directory of the index",
            rule="shards.name",
            tensor=tensor,
        )


def _stray_shards(index: Place, shards: Mapping[str, Any]) -> list[Note]:
    suffixes = {_suffix(shard) for shard in shards} or {_suffix(index.name.removesuffix(INDEX_SUFFIX))}
    return [
        Note("shards.stray", f"{escape(name)} is not listed in {escape(index.name)}")
        for name in Folder.of(index).names() or []
        if _suffix(name) in suffixes and name not in shards
    ]


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]  # noqa: PTH122


def _take_listed(index: Index, shard: str, names: Sequence[str]) -> tuple[Index, list[Note]]:
    """The tensors of a shard that the index of shards lists; a note if there are others."""
    wanted = set(names)
    absent = wanted.difference(index.positions)
    if absent:
        raise FormatError(
            f"the index lists the tensor in {escape(shard)}, which does not contain it",
            rule="shards.tensor",
            tensor=min(absent),
        )
    if len(wanted) == len(index.names):
        return index, []
    unlisted = [name for name in index.names if name not in wanted]
    others = f" and {len(unlisted) - 1} more" if len(unlisted) > 1 else ""
    note = Note(
        "shards.unlisted",
        f"{escape(shard)} contains tensors that the index does not list: '{escape(unlisted[0])}'{others}",
    )
    positions = np.array([position for name, position in index.positions.items() if name in wanted], np.int64)
    return index.take(positions), [note]


def common_metadata(archives: Sequence[Archive]) -> tuple[dict[str, Any] | None, list[str]]:
    """The metadata that the archives agree on, and the keys on which they differ."""
    merged: dict[str, Any] = {}
    conflicts: dict[str, None] = {}
    for archive in archives:
        for key, value in (archive.metadata or {}).items():
            if key in merged and not same_value(merged[key], value):
                conflicts[key] = None
            merged[key] = value
    metadata = {key: value for key, value in merged.items() if key not in conflicts}
    return metadata if any(archive.metadata is not None for archive in archives) else None, list(conflicts)


def join_archives(
    archives: Sequence[Archive], format: str, metadata: Mapping[str, Any] | None, notes: Sequence[Note] = ()
) -> Index:
    """One index of the tensors of several archives. Its owner closes their files."""
    return Index.concat(
        [archive.index.in_source(archive.source) for archive in archives],
        format=format,
        metadata=metadata,
        notes=[*notes, *(note for archive in archives for note in archive.notes)],
    )


def refuse_duplicates(archives: Sequence[Archive], sources: Sequence[object], *, rule: str) -> None:
    """Archives that are joined must not have a tensor of the same name; `sources` are what they were opened from."""
    owner: dict[str, str] = {}
    for i, (archive, source) in enumerate(zip(archives, sources, strict=True), 1):
        name = as_place(source).shown if isinstance(source, (str, os.PathLike)) else f"source {i}"
        for tensor in archive:
            if tensor in owner:
                message = f"the tensor is in both {escape(owner[tensor])} and {escape(name)}"
                raise InputError(message, rule=rule, tensor=tensor)
            owner[tensor] = name


def _format_of(index_name: str) -> str:
    """The format of an index without shards, by its name."""
    spec, version = for_target(index_name.removesuffix(INDEX_SUFFIX), None)
    return f"{spec.name}@{version}"
