"""Splitting a checkpoint into shards, and merging shards or whole files into one.

A split writes the shards and then their index to a temporary directory beside the
target, which is renamed when everything is on disk. So it is atomic, and never mixes with
existing files: a directory that is not empty is not replaced. Nobody else can write to
the temporary directory, so no link can be planted at the name of a shard. Names of
tensors are used in the index only, never as file names.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_path
from tensorglot.containers.table import for_target
from tensorglot.errors import Hint, InputError, LossWarning, UnsupportedError, escape
from tensorglot.io.sink import AtomicFile, Writable, temporary_name
from tensorglot.io.source import Readable
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.operations._options import AUTO, Choice, SaveOptions
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations._shards import INDEX_SUFFIX, common_metadata, join_archives
from tensorglot.operations.open import open
from tensorglot.operations.save import save_archive
from tensorglot.operations.verify import Report

__all__ = ["merge", "split"]

SHARD_NBYTES = 5_000_000_000
STEM = "model"
_METADATA = Hint("pass metadata= to say what to write", "pass --metadata KEY=VALUE to say what to write")


def split(
    source: Readable,
    target: str | os.PathLike[str],
    *,
    shard_nbytes: int = SHARD_NBYTES,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
) -> list[Path]:
    """Writes the tensors of a file to a new directory, in shards of up to `shard_nbytes`, with their index.

    A larger tensor gets its own shard. The format is the source's unless `format` is
    given. Returns the files written, the index last. The directory can be opened like
    the source.
    """
    if not isinstance(shard_nbytes, int) or shard_nbytes < 1:
        raise InputError(f"shard_nbytes must be a positive integer, not {shard_nbytes!r}", rule="split.size")
    given = Path(as_path(target))
    directory = Path(os.path.realpath(given))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError("the target exists and is not an empty directory", rule="split.target", path=str(directory))
    with open(source, limits=limits) as archive, start_progress(progress, "splitting") as report, ExitStack() as stack:
        spec, version = for_target(None, format or archive.format)
        temporary = directory.parent / temporary_name()
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.mkdir()
        mode = temporary.stat().st_mode
        temporary.chmod(0o700)
        groups = list(_groups(archive.index, shard_nbytes))
        _warn_of_ties(archive, groups)
        files = [f"{STEM}-{i:05d}-of-{len(groups):05d}{spec.suffixes[0]}" for i in range(1, len(groups) + 1)]
        done, total = 0, int(archive.index.nbytes.sum())
        for name, tensors in zip(files, groups, strict=True):
            shard = archive.with_index(archive.index.take(tensors))
            shifted = None if report is None else partial(_add_progress, report, done, total)
            options = SaveOptions(durable=durable, progress=shifted)
            save_archive(temporary / name, shard, f"{spec.name}@{version}", options)
            done += int(shard.index.nbytes.sum())
        index = f"{STEM}{spec.suffixes[0]}{INDEX_SUFFIX}"
        names = archive.index.names
        weight_map = {names[i]: file for file, tensors in zip(files, groups, strict=True) for i in tensors.tolist()}
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        with AtomicFile(temporary / index, durable=durable) as file:
            file.write([json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"])
        temporary.chmod(mode)
        _rename(temporary, directory)
        _sync(directory.parent, durable)
    return [given / file for file in (*files, index)]


def _groups(index: Index, shard_nbytes: int) -> Iterator[NDArray[np.int64]]:
    """Positions of the tensors of each shard; at least one shard."""
    before = np.append(0, np.cumsum(index.nbytes))
    ends = before[index.row_offsets]
    first = 0
    while first < len(index.names):
        last = int(np.searchsorted(ends, ends[first] + shard_nbytes, side="right")) - 1
        last = max(last, first + 1)
        yield np.arange(first, last)
        first = last
    if not len(index.names):
        yield np.arange(0)


def _warn_of_ties(archive: Archive, groups: list[NDArray[np.int64]]) -> None:
    """Warns of tensors that share their bytes and are in different shards; `save_archive` does of those in one."""
    shard_of = np.repeat(np.arange(len(groups)), [len(tensors) for tensors in groups])
    names = archive.index.names
    apart = [(one, other) for one, other in archive.find_ties().items() if shard_of[one] != shard_of[other]]
    if apart:
        one, other = apart[0]
        more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
        warnings.warn(
            f"'{escape(names[one])}' shares its bytes with '{escape(names[other])}' in another shard{more}: "
            "each is stored separately",
            LossWarning,
            stacklevel=3,
        )


def _add_progress(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


def _rename(temporary: Path, directory: Path) -> None:
    try:
        temporary.rename(directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise InputError(
            "the target was written to by another process during the split", rule="split.target", path=str(directory)
        ) from error


def _sync(directory: Path, durable: bool) -> None:
    if durable:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def merge(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    target: Writable,
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: Choice = None,
    level: int | None = None,
    checksum: Choice = AUTO,
    durable: bool = True,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
) -> Report:
    """Writes the tensors of a sharded checkpoint, or of several files, to one file.

    No two files may have a tensor of the same name, or, without `metadata`, different
    values for a metadata key.
    """
    paths = _as_paths(sources)
    spec, version = for_target(target, format)
    with ExitStack() as stack:
        archives = [stack.enter_context(open(path, limits=limits)) for path in paths]
        said, conflicts = common_metadata(archives)
        if metadata is None:
            _refuse_conflicts(archives, conflicts)
        _refuse_duplicates(archives, paths)
        index = join_archives(archives, "memory", said if metadata is None else metadata)
        joined = Archive(index, None, verifier=archives[0].verifier if archives else None)
        options = SaveOptions(
            compression=compression, level=level, checksum=checksum, durable=durable, progress=progress
        )
        save_archive(target, joined, f"{spec.name}@{version}", options)
        return Report(
            f"{spec.name}@{version}",
            tensors=len(joined),
            nbytes=int(joined.index.nbytes.sum()),
            notes=joined.notes,
        )


def _as_paths(sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    if isinstance(sources, (str, os.PathLike)):
        return [sources]
    try:
        return list(sources)
    except (TypeError, ValueError):
        raise InputError(
            f"sources must be a path or a list of paths, not {type(sources).__name__}", rule="merge.sources"
        ) from None


def _refuse_conflicts(archives: Sequence[Archive], conflicts: Sequence[str]) -> None:
    if conflicts:
        raise UnsupportedError(
            f"the files differ in the metadata key '{escape(conflicts[0])}'", rule="merge.metadata", hint=_METADATA
        )
    for note in (note for archive in archives for note in archive.notes):
        if note.rule == "shards.metadata":
            raise UnsupportedError(note.message, rule="merge.metadata", hint=_METADATA)


def _refuse_duplicates(archives: Sequence[Archive], paths: Sequence[str | os.PathLike[str]]) -> None:
    owner: dict[str, str] = {}
    for archive, path in zip(archives, paths, strict=True):
        for name in archive:
            if name in owner:
                raise InputError(
                    f"the tensor is in both {escape(owner[name])} and {escape(os.fspath(path))}",
                    rule="merge.name",
                    tensor=name,
                )
            owner[name] = os.fspath(path)
