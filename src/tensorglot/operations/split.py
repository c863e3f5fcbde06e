"""Splitting a checkpoint into shards, and merging shards or whole files into one.

A split is a new directory: the shards, then the index that names them, made beside the
target and renamed to it when all of it is on disk. So it is whole or absent, and never
mixes with what was there. Names of tensors are written into the index and nowhere else.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tensorglot.containers.table import PerTensor, WriteOptions, for_target
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.io.local import Readable
from tensorglot.io.sink import AtomicFile, Writable, temporary_name
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive, Verifier
from tensorglot.operations._shards import INDEX_SUFFIX, common_metadata, join_archives
from tensorglot.operations.collect import collect
from tensorglot.operations.open import open
from tensorglot.operations.save import Progress, save_archive
from tensorglot.operations.verify import Report

__all__ = ["merge", "split"]

SHARD_NBYTES = 5_000_000_000
STEM = "model"


def split(
    source: Readable,
    target: str | os.PathLike[str],
    *,
    shard_nbytes: int = SHARD_NBYTES,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> list[Path]:
    """Writes the tensors of a file to a new directory, in shards of up to `shard_nbytes`, with their index.

    A tensor larger than that has a shard of its own. The format is the source's unless
    another is named. Returns the files written, the index last; `open` of the directory
    gives the same tensors as `open` of the source.
    """
    if shard_nbytes < 1:
        raise InputError("a shard has room for a byte at least", rule="split.size")
    directory = Path(target)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} exists, and is not an empty directory", rule="split.target")
    with open(source, limits=limits) as archive, ExitStack() as stack:
        spec, version = for_target(None, format or archive.format)
        temporary = directory.absolute().parent / temporary_name()
        temporary.mkdir()
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        groups = list(_groups(archive, shard_nbytes))
        files = [f"{STEM}-{i:05d}-of-{len(groups):05d}{spec.suffixes[0]}" for i in range(1, len(groups) + 1)]
        done, total = 0, int(archive.index.nbytes.sum())
        for file, names in zip(files, groups, strict=True):
            shard = collect({name: archive[name] for name in names}, archive.metadata)
            shifted = None if progress is None else _shifted(progress, done, total)
            save_archive(temporary / file, shard, spec, WriteOptions(version), durable=durable, progress=shifted)
            done += int(shard.index.nbytes.sum())
        index = f"{STEM}{spec.suffixes[0]}{INDEX_SUFFIX}"
        weight_map = {name: file for file, names in zip(files, groups, strict=True) for name in names}
        _write_index(temporary / index, {"metadata": {"total_size": total}, "weight_map": weight_map}, durable)
        temporary.rename(directory)
        _sync(directory.absolute().parent, durable)
    return [directory / file for file in (*files, index)]


def _groups(archive: Archive, shard_nbytes: int) -> Iterator[list[str]]:
    """Tensors in the order of the file, as many as fit; one shard at least."""
    group: list[str] = []
    nbytes = 0
    for name, tensor in archive.items():
        if group and nbytes + tensor.nbytes > shard_nbytes:
            yield group
            group, nbytes = [], 0
        group.append(name)
        nbytes += tensor.nbytes
    yield group


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda now, _: progress(done + now, total)


def _write_index(path: Path, value: Mapping[str, Any], durable: bool) -> None:
    with AtomicFile(path, durable=durable) as file:
        file.write([json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"])


def _sync(directory: Path, durable: bool) -> None:
    if durable:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def merge(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: Writable,
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: str | None = None,
    level: int | None = None,
    checksum: str | None = None,
    durable: bool = True,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Report:
    """Writes the tensors of a sharded checkpoint, or of several files, to one file.

    No two files may have a tensor of one name, nor contradict one another in their
    metadata unless `metadata` says what to write.
    """
    paths = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    spec, version = for_target(target, format)
    with ExitStack() as stack:
        archives = [stack.enter_context(open(path, limits=limits)) for path in paths]
        said, conflicts = common_metadata(archives)
        if metadata is None:
            _refuse_conflicts(archives, conflicts)
        _refuse_duplicates(archives, paths)
        index = join_archives(archives, "memory", said if metadata is None else metadata)
        joined = Archive(index, None, verifier=_verifier(archives))
        options = WriteOptions(version, PerTensor(compression), level, PerTensor(checksum))
        save_archive(target, collect(joined), spec, options, durable=durable, progress=progress)
        return Report(
            f"{spec.name}@{version}",
            tensors=len(joined),
            nbytes=int(joined.index.nbytes.sum()),
            notes=joined.notes,
        )


def _verifier(archives: Sequence[Archive]) -> Verifier | None:
    """What compares checksums on the way; where some are of stored bytes and some of decoded ones, before it."""
    if len({archive.index.checksums_decoded for archive in archives if archive.index.checksums is not None}) <= 1:
        return archives[0].verifier if archives else None
    for archive in archives:
        for tensor in archive.values():
            tensor.verify()
    return None


def _refuse_conflicts(archives: Sequence[Archive], conflicts: Sequence[str]) -> None:
    if conflicts:
        raise UnsupportedError(
            f"the files differ in the metadata key '{escape(conflicts[0])}'; give metadata to say which",
            rule="merge.metadata",
        )
    for note in (note for archive in archives for note in archive.notes):
        if note.rule == "shards.metadata":
            raise UnsupportedError(f"{note.message}; give metadata to say which", rule="merge.metadata")


def _refuse_duplicates(archives: Sequence[Archive], paths: Sequence[str | os.PathLike[str]]) -> None:
    owner: dict[str, str] = {}
    for archive, path in zip(archives, paths, strict=True):
        for name in archive:
            if name in owner:
                raise InputError(f"both {owner[name]} and {os.fspath(path)} have it", rule="merge.name", tensor=name)
            owner[name] = os.fspath(path)
