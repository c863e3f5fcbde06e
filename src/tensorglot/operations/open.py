"""Opening: make a source, detect its format, read its index, return an archive; or join those of shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from tensorglot.arguments import as_path, check_choice
from tensorglot.containers.table import ReadOptions, detect, named
from tensorglot.errors import InputError, escape
from tensorglot.io.folder import Folder, as_folder, file_named_by, name_of
from tensorglot.io.local import FileSource, absolute, add_path_to_errors
from tensorglot.io.remote import RemoteSource
from tensorglot.io.source import Backend, Readable, source_for
from tensorglot.io.storage_options import StorageOptions
from tensorglot.io.urls import file_path, has_credentials, is_url, refuse_credentials, shown
from tensorglot.limits import Limits, as_limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Note
from tensorglot.model.payload import Source
from tensorglot.operations._checksums import Once
from tensorglot.operations._places import options_for, options_for_each
from tensorglot.operations._shards import (
    INDEX_SUFFIX,
    common_metadata,
    find_file,
    find_in_folder,
    is_sharded,
    join_archives,
    open_shards,
    refuse_duplicates,
)
from tensorglot.operations._sidecar import read_sidecar, with_sidecar
from tensorglot.providers import provided

__all__ = ["Opened", "Verify", "open"]

Opened: TypeAlias = "Readable | Sequence[Readable] | Archive"
"""A source of most verbs: what `open` takes, or an archive, which stays open."""
Verify: TypeAlias = Literal["auto", "never", "require"]


def open(
    source: Readable | Sequence[Readable],
    *,
    format: str | None = None,
    backend: Backend = "auto",
    strict: bool = False,
    verify: Verify = "auto",
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Archive:
    """Reads the index of a file and no tensor.

    `backend="auto"` and `"pread"` copy what is read, and a file that is truncated
    meanwhile is an error; `"mmap"` shares the file's memory. `strict` accepts only the
    canonical form of a file. `verify="auto"` compares the checksum of every tensor that
    is read as a whole; with `"require"` a tensor without a checksum is an error, and it
    is compared before a part of a tensor is read, too; `"never"` compares none. A file
    without checksums takes them from the sidecar `<name>.sums`, if there is one. A
    directory with a `*.index.json`, or that file, opens its shards as one archive; one
    without opens `model.safetensors`, or else its only tensor file. A list of files opens
    as one archive, too. At a URL only the ranges that are needed are read, all of one
    version of the object; `storage_options` say how to reach the server, in obstore's names.
    """
    if isinstance(source, (list, tuple)):
        return _open_several(
            source,
            format=format,
            backend=backend,
            strict=strict,
            verify=verify,
            limits=limits,
            storage_options=storage_options,
        )
    path = as_path(source) if isinstance(source, (str, os.PathLike)) else None
    check_choice(backend, ("auto", "pread", "mmap"), "backend", "source.backend")
    check_choice(verify, ("auto", "never", "require"), "verify", "verify.mode")
    if path is not None and path.startswith("store://"):
        return cast("Archive", provided("store.open")(path, storage_options, limits))
    options = options_for(path, storage_options)
    remote = path is not None and is_url(path)
    place = None if path is None else path if remote else absolute(file_path(path))
    limits = as_limits(limits)
    verifier = None if verify == "never" else Once(required=verify == "require")
    again = partial(
        open,
        source if place is None else place,
        format=format,
        backend=backend,
        strict=strict,
        verify=verify,
        limits=limits,
        storage_options=options,
    )
    one = partial(
        _open_file, format=format, backend=backend, strict=strict, verifier=verifier, limits=limits, options=options
    )
    if path is None:
        return one(cast("Readable", source), reopen=again if isinstance(source, (bytes, bytearray)) else None)
    reopen = None if remote and has_credentials(path) else again
    path = file_path(path)
    if path.endswith(INDEX_SUFFIX) or (remote and is_sharded(path, options)):
        found = find_file(path, options)
    else:
        try:
            return one(path, reopen=reopen, place=place)
        except FileNotFoundError:
            folder: Folder | None = Folder(f"{path}/", options) if remote else None
            if folder is None or not folder.names():
                raise
        except InputError:  # most paths are files: whether one is a directory is asked when opening it has failed
            folder = as_folder(path, options)
            if folder is None:
                raise
        found = find_in_folder(folder)
    if not found.endswith(INDEX_SUFFIX):
        return one(found, reopen=reopen)
    index = open_shards(found, limits, strict, one, options)
    return Archive(index, None, limits=limits, verifier=verifier, reopen=reopen)


def _open_several(
    sources: Sequence[Readable],
    *,
    verify: Verify,
    limits: Limits | None,
    storage_options: Mapping[str, Any] | None,
    **options: Any,
) -> Archive:
    """Several files of one format as one archive. No two may have a tensor of the same name."""
    if not sources:
        raise InputError("a list of files must not be empty", rule="source.list")
    options = {"verify": verify, "limits": limits, **options}
    of_list, *of_each = options_for_each(storage_options, sources, *sources)
    with ExitStack() as on_error:
        archives = [
            on_error.enter_context(open(source, storage_options=of_source, **options))
            for source, of_source in zip(sources, of_each, strict=True)
        ]
        formats = sorted({archive.format for archive in archives})
        if len(formats) > 1:
            message = f"the files have different formats: {', '.join(formats)}; merge them into one file"
            raise InputError(message, rule="source.formats")
        refuse_duplicates(archives, sources, rule="source.name")
        metadata, conflicts = common_metadata(archives)
        notes = [Note("source.metadata", f"the metadata key '{escape(key)}' differs") for key in conflicts]
        index = join_archives(archives, formats[0], metadata, notes)
        on_error.pop_all()
    places = [as_path(source) if isinstance(source, (str, os.PathLike)) else None for source in sources]
    kept = [place if place is None or "://" in place else absolute(place) for place in places]
    can_reopen = not any(place is None or has_credentials(place) for place in kept)
    return Archive(
        index,
        None,
        limits=as_limits(limits),
        verifier=None if verify == "never" else Once(required=verify == "require"),
        reopen=partial(open, cast("list[str]", kept), storage_options=of_list, **options) if can_reopen else None,
    )


def _open_file(
    source: Readable,
    *,
    format: str | None,
    backend: Backend,
    strict: bool,
    verifier: Once | None,
    limits: Limits,
    options: StorageOptions | None,
    reopen: Callable[[], Archive] | None = None,
    place: str | None = None,
) -> Archive:
    """Opens one file, which is not an index of shards. `place` is its path or URL, wherever the process goes."""
    path = source if isinstance(source, str) else None
    remote = path is not None and is_url(path)
    with add_path_to_errors(shown(path) if path is not None and remote else path):
        opened = source_for(source, backend, options)
        try:
            name = None if path is None else name_of(path)
            spec, version = named(format) if format is not None else (detect(opened, name), None)
            if path is not None and place is None:
                place = path if remote else absolute(path)
            beside = None if place is None else _Beside(place, options, backend)
            index = spec.container.read(opened, ReadOptions(version, strict, limits, name, beside, verifier))
            # At a URL, looking for a sidecar is one more request: it is made by who asks for checksums.
            wanted = verifier is not None and (verifier.required or not remote)
            if path is not None and wanted and index.checksums is None:
                sums = read_sidecar(path, limits, options)
                index = index if sums is None else with_sidecar(index, opened.size, sums)
        except BaseException:
            if isinstance(opened, (FileSource, RemoteSource)):
                opened.close()
            raise
    return Archive(index, opened, limits=limits, verifier=verifier, reopen=reopen)


@dataclass(frozen=True, slots=True)
class _Beside:
    """Opens other files of the same archive, by their names."""

    place: str
    options: StorageOptions | None
    backend: Backend

    def __call__(self, name: str) -> Source:
        return source_for(file_named_by(self.place, name, self.options), self.backend, self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        refuse_credentials(self.place)
        return _Beside, (self.place, self.options, self.backend)
