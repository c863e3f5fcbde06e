"""Opening: make a source, detect its format, read its index, return an archive; or join those of shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from tensorglot.arguments import as_path, check_choice
from tensorglot.containers.table import ReadOptions, detect, named
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.io.local import FileSource, absolute, add_path_to_errors
from tensorglot.io.source import Backend, Readable, source_for
from tensorglot.limits import Limits, as_limits
from tensorglot.model.archive import Archive
from tensorglot.operations._checksums import Once
from tensorglot.operations._shards import INDEX_SUFFIX, find_file, is_sharded, open_shards
from tensorglot.operations._sidecar import read_sidecar, with_sidecar
from tensorglot.providers import provided

__all__ = ["Verify", "open"]

Verify: TypeAlias = Literal["auto", "never", "require"]


def open(
    source: Readable,
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
    without opens `model.safetensors`, or else its only tensor file.
    """
    path = as_path(source) if isinstance(source, (str, os.PathLike)) else None
    check_choice(backend, ("auto", "pread", "mmap"), "backend", "source.backend")
    check_choice(verify, ("auto", "never", "require"), "verify", "verify.mode")
    if path is not None and path.startswith("store://"):
        return cast("Archive", provided("store.open")(path, storage_options, limits))
    if path is not None and "://" in path:
        raise UnsupportedError("URLs are not supported: download the file first", rule="source.url")
    if storage_options is not None:
        raise InputError("storage_options need a URL", rule="source.url")
    limits = as_limits(limits)
    verifier = None if verify == "never" else Once(required=verify == "require")
    again = partial(
        open,
        source if path is None else absolute(path),
        format=format,
        backend=backend,
        strict=strict,
        verify=verify,
        limits=limits,
    )
    one = partial(_open_file, format=format, backend=backend, strict=strict, verifier=verifier, limits=limits)
    if path is None or not is_sharded(path):
        reopen = again if path is not None or isinstance(source, (bytes, bytearray)) else None
        return one(source if path is None else path, reopen=reopen)
    found = find_file(path)
    if not found.name.endswith(INDEX_SUFFIX):
        return one(found, reopen=again)
    index = open_shards(found, limits, strict, one)
    return Archive(index, None, limits=limits, verifier=verifier, reopen=again)


def _open_file(
    source: Readable,
    *,
    format: str | None,
    backend: Backend,
    strict: bool,
    verifier: Once | None,
    limits: Limits,
    reopen: Callable[[], Archive] | None = None,
) -> Archive:
    """Opens one file, which is not an index of shards."""
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
    with add_path_to_errors(path):
        opened = source_for(source, backend)
        try:
            spec, version = named(format) if format is not None else (detect(opened, path), None)
            beside = None if path is None else absolute(path)
            index = spec.container.read(
                opened, ReadOptions(version, strict, limits, beside, partial(source_for, backend=backend), verifier)
            )
            if path is not None and verifier is not None and index.checksums is None:
                sums = read_sidecar(path, limits)
                index = index if sums is None else with_sidecar(index, opened.size, sums)
        except BaseException:
            if isinstance(opened, FileSource):
                opened.close()
            raise
    return Archive(index, opened, limits=limits, verifier=verifier, reopen=reopen)
