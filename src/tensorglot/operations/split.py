"""Splitting a checkpoint into shards, and merging shards or whole files into one.

A split writes the shards and then their index to a temporary directory beside the
target, which is renamed when everything is on disk. At a URL the index comes last, and
after an error what was written is removed. So it is atomic, and never mixes with
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
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, check_flags
from tensorglot.arrays import prefix_sums
from tensorglot.containers.table import Format, for_target
from tensorglot.errors import Hint, InputError, LossWarning, TensorglotError, UnsupportedError, escape
from tensorglot.io.folder import Folder
from tensorglot.io.local import add_path_to_errors
from tensorglot.io.place import Place, as_place
from tensorglot.io.sink import Writable, name_in_errors, sync_folder, temporary_name
from tensorglot.io.target import open_target
from tensorglot.io.urls import check_target
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.operations._as_archive import MEMORY, TensorsLike, as_archive
from tensorglot.operations._options import AUTO, Choice, SaveOptions
from tensorglot.operations._places import INDEX_SUFFIX, locate_each
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations._shards import common_metadata, join_archives, refuse_duplicates
from tensorglot.operations.open import OpenOptions
from tensorglot.operations.save import save_archive
from tensorglot.operations.verify import Report
from tensorglot.threads import for_each_request

__all__ = ["merge", "split"]

SHARD_NBYTES = 5_000_000_000
STEM = "model"
_FORMAT = Hint("pass format=", "pass --to FORMAT")
_METADATA = Hint("pass metadata= to say what to write", "pass --metadata KEY=VALUE to say what to write")


def split(
    source: TensorsLike,
    target: str | os.PathLike[str],
    *,
    shard_nbytes: int = SHARD_NBYTES,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Path] | list[str]:
    """Writes the tensors of a file to a new directory, in shards of up to `shard_nbytes`, with their index.

    A larger tensor gets its own shard. The format is the source's unless `format` is
    given. Returns the files written, the index last: paths, or URLs if the target is one.
    Without tensors there is one file, and no index.
    The directory can be opened like the source. `storage_options` are for whichever of
    source and target is a URL.
    """
    check_flags(durable=durable)
    shard_nbytes = as_integer(shard_nbytes, "shard_nbytes", "split.size", least=1, most=(1 << 62) - 1)
    source, target = locate_each(storage_options, source, target)
    place = as_place(target)
    with (
        as_archive(source, OpenOptions.of(limits=limits)) as archive,
        add_path_to_errors(source if isinstance(source, Place) else None),
        start_progress(progress, "splitting") as report,
        ExitStack() as stack,
    ):
        spec, version = _format_of_source(archive) if format is None else for_target(None, format)
        groups = list(_groups(archive.index, shard_nbytes))
        _warn_of_ties(archive, groups)
        files = [f"{STEM}-{i:05d}-of-{len(groups):05d}{spec.suffixes[0]}" for i in range(1, len(groups) + 1)]
        index = f"{STEM}{spec.suffixes[0]}{INDEX_SUFFIX}"
        # An index of no tensors would list no shard, and so hide the metadata.
        written = [*files, index] if len(archive) else files
        given = Folder.at(place)
        new = _new_folder(given, written) if place.remote else _new_directory(given, durable)
        folder = stack.enter_context(new)
        done, total = 0, int(archive.index.nbytes.sum())
        for name, tensors in zip(files, groups, strict=True):
            shard = archive.with_index(archive.index.take(tensors))
            shifted = None if report is None else partial(_add_progress, report, done, total)
            options = SaveOptions(durable=durable, progress=shifted)
            save_archive(folder.file(name), shard, f"{spec.name}@{version}", options)
            done += int(shard.index.nbytes.sum())
        names = list(archive.index.names)
        weight_map = {names[i]: file for file, tensors in zip(files, groups, strict=True) for i in tensors.tolist()}
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        if index in written:
            with open_target(folder.file(index), durable=durable) as file:
                file.write([json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"])
    paths = [given.file(name).text for name in written]
    return paths if place.remote else [Path(path) for path in paths]


def _format_of_source(archive: Archive) -> tuple[Format, str]:
    if archive.format == MEMORY:
        return for_target(None, None)
    try:
        return for_target(None, archive.format)
    except InputError as error:
        error.hint = _FORMAT
        raise


@contextmanager
def _new_directory(given: Folder, durable: bool) -> Iterator[Folder]:
    """A temporary directory, which gets the name of the given one at the end."""
    directory = Path(os.path.realpath(given.place))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError("the target exists and is not an empty directory", rule="split.target", path=str(directory))
    temporary = directory.parent / temporary_name()
    try:
        with name_in_errors(directory):
            temporary.mkdir()
        mode = temporary.stat().st_mode  # after the umask, for the finished directory
        temporary.chmod(0o700)
        with _name_files_in(given, temporary):
            yield Folder(Place.at(str(temporary)))
        temporary.chmod(mode)
        _rename(temporary, directory)
        if durable:
            sync_folder(directory.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _name_files_in(given: Folder, temporary: Path) -> Iterator[None]:
    """Makes errors name the files of the directory that the caller knows, not those of the temporary one."""
    try:
        yield
    except TensorglotError as error:
        if error.path is not None and Path(error.path).parent == temporary:
            error.path = given.file(Path(error.path).name).text
        raise
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)).parent == temporary:
            error.filename = given.file(Path(os.fsdecode(error.filename)).name).text
        raise


@contextmanager
def _new_folder(given: Folder, names: Sequence[str]) -> Iterator[Folder]:
    """An empty folder at a URL. After an error the objects of these names are removed."""
    check_target(given.place.text)
    if given.names():
        raise InputError("the target exists and is not empty", rule="split.target", path=given.place.shown)
    try:
        yield given
    except BaseException:
        with suppress(OSError):  # the first error is what matters
            for_each_request(given.remove, names)
        raise


def _groups(index: Index, shard_nbytes: int) -> Iterator[NDArray[np.int64]]:
    """Positions of the tensors of each shard; at least one shard."""
    before = prefix_sums(index.nbytes)
    ends = before[index.row_offsets]
    first = 0
    while first < len(index.names):
        # The last tensor whose end is within the size; at least one tensor, however large it is.
        last = int(np.searchsorted(ends, ends[first] + shard_nbytes, side="right")) - 1
        last = max(last, first + 1)
        yield np.arange(first, last)
        first = last
    if not len(index.names):
        yield np.arange(0)


def _warn_of_ties(archive: Archive, groups: list[NDArray[np.int64]]) -> None:
    """Warns of tensors that share their bytes but go to different shards; `save_archive` warns of the others."""
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


def merge(
    sources: TensorsLike | Iterable[TensorsLike],
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
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Writes the tensors of a sharded checkpoint, or of several sources, to one file.

    No two sources may have a tensor of the same name, or, without `metadata`, different
    values for a metadata key. `storage_options` are for those of sources and target that
    are URLs.
    """
    opening = OpenOptions.of(limits=limits)
    options = SaveOptions.of(compression, level, checksum, durable, progress)
    target, *given = locate_each(storage_options, target, *_as_sources(sources))
    with add_path_to_errors(target if isinstance(target, Place) else None):
        spec, version = for_target(target, format)
    with ExitStack() as stack:
        archives = [stack.enter_context(as_archive(source, opening)) for source in given]
        said, conflicts = common_metadata(archives)
        if metadata is None:
            _refuse_conflicts(archives, conflicts)
        refuse_duplicates(archives, given, rule="merge.name")
        index = join_archives(archives, MEMORY, said if metadata is None else metadata)
        verifier = next((archive.verifier for archive in archives if archive.verifier is not None), None)
        joined = Archive(index, None, verifier=verifier)
        save_archive(target, joined, f"{spec.name}@{version}", options)
        return Report(
            f"{spec.name}@{version}",
            tensors=len(joined),
            nbytes=int(joined.index.nbytes.sum()),
            notes=joined.notes,
        )


def _as_sources(sources: Any) -> list[TensorsLike]:
    if isinstance(sources, (str, os.PathLike, Mapping)) or hasattr(sources, "read"):
        return [sources]
    try:
        memoryview(sources)
    except (TypeError, ValueError, BufferError):
        pass
    else:
        return [sources]
    try:
        return list(sources)
    except (TypeError, ValueError):
        raise InputError(
            f"sources must be a source or a list of sources, not {type(sources).__name__}", rule="merge.sources"
        ) from None


def _refuse_conflicts(archives: Sequence[Archive], conflicts: Sequence[str]) -> None:
    if conflicts:
        raise UnsupportedError(
            f"the files differ in the metadata key '{escape(conflicts[0])}'", rule="merge.metadata", hint=_METADATA
        )
    for note in (note for archive in archives for note in archive.notes):
        if note.rule == "shards.metadata":
            raise UnsupportedError(note.message, rule="merge.metadata", hint=_METADATA)
