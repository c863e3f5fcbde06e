"""Opening: make a source, detect its format, read its index, return an archive.

What few programs need is imported by the line that needs it: sources that are not one file,
formats that a server holds, and the explanation of a refusal. These are seven modules, a
twelfth of the instructions of importing `load` and `save`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from tensorglot.arguments import check_choice, check_flags
from tensorglot.containers.table import HEAD_NBYTES, ReadOptions, detect, named
from tensorglot.errors import FormatError, InputError, UnsupportedError
from tensorglot.io.local import add_path_to_errors
from tensorglot.io.place import Place
from tensorglot.io.source import Backend, Readable, source_for
from tensorglot.io.urls import refuse_credentials
from tensorglot.limits import DEFAULT, Limits, as_limits
from tensorglot.model.archive import Archive
from tensorglot.model.payload import HeaderSource, Source
from tensorglot.operations._checksums import OnceVerifier
from tensorglot.operations._places import INDEX_SUFFIX, locate
from tensorglot.operations._sidecar import read_sidecar, with_sidecar
from tensorglot.providers import provided
from tensorglot.tuples import NamedTuple

__all__ = ["ArchiveLike", "OpenOptions", "Verify", "can_reopen", "open", "open_file", "open_source"]

ArchiveLike: TypeAlias = "Readable | Sequence[Readable] | Archive"
"""A source of most verbs: what `open` takes, or an archive, which stays open."""
Verify: TypeAlias = Literal["auto", "never", "require"]


class OpenOptions(NamedTuple):
    """How to open a source, wherever it is; see `open`."""

    format: str | None = None
    backend: Backend = "auto"
    strict: bool = False
    verify: Verify = "auto"
    limits: Limits = DEFAULT
    defer: bool = False
    """Reads what describes the tensors when it is needed, if that takes many requests."""

    @classmethod
    def of(
        cls,
        format: str | None = None,
        backend: Backend = "auto",
        strict: bool = False,
        verify: Verify = "auto",
        limits: Limits | None = None,
        defer: bool = False,
    ) -> OpenOptions:
        """The arguments of a verb, checked."""
        check_flags(strict=strict)
        check_choice(backend, ("auto", "pread", "mmap"), "backend", "source.backend")
        check_choice(verify, ("auto", "never", "require"), "verify", "verify.mode")
        return cls(format, backend, strict, verify, as_limits(limits), defer)

    def verifier(self) -> OnceVerifier | None:
        return None if self.verify == "never" else OnceVerifier(required=self.verify == "require")


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
    options = OpenOptions.of(format, backend, strict, verify, limits, defer=True)
    return open_source(locate(source, storage_options), options)


def open_source(source: Readable | Sequence[Readable], options: OpenOptions) -> Archive:
    """Opens a source that `locate` has returned."""
    if isinstance(source, Place):
        return _open_place(source, options)
    if isinstance(source, (list, tuple)):
        from tensorglot.operations._open_several import open_several

        return open_several(source, options)
    reopen = partial(open_source, source, options) if can_reopen(source) else None
    return open_file(cast("Readable", source), options, options.verifier(), reopen)


def _open_place(place: Place, options: OpenOptions) -> Archive:
    """Opens a path or URL: a file, an index of shards, a folder with one of these, a commit in a store."""
    if place.is_commit:
        return cast("Archive", provided("store.open")(place.text, place.options, options.limits))
    verifier = options.verifier()
    reopen = partial(open_source, place, options) if can_reopen(place) else None
    if not place.remote and not place.text.endswith(INDEX_SUFFIX):
        try:
            return open_file(place, options, verifier, reopen)
        except InputError:  # most paths are files, so a path is tested for a directory only after opening it failed
            if not os.path.isdir(place):  # noqa: PTH112
                raise
    from tensorglot.operations._open_several import open_place

    return open_place(place, options, verifier, reopen)


def can_reopen(source: object) -> bool:
    """Whether a source can be opened again in another process."""
    return not source.secret if isinstance(source, Place) else isinstance(source, (bytes, bytearray))


def open_file(
    source: Readable, options: OpenOptions, verifier: OnceVerifier | None, reopen: Callable[[], Archive] | None = None
) -> Archive:
    """Opens one file, which is not an index of shards."""
    place = source if isinstance(source, Place) else None
    limits = options.limits
    with add_path_to_errors(place):
        opened = source_for(source, options.backend)
        head = b""
        try:
            name = None if place is None else place.name
            head = opened.read_bytes(0, min(opened.size, HEAD_NBYTES))
            if options.format is None:
                spec, version = detect(head, opened.size, name), None
            else:
                spec, version = named(options.format)
            beside = None if place is None else _Beside(place, options.backend)
            reading = ReadOptions(version, options.strict, limits, name, beside, verifier, head)
            container = spec.container
            if options.defer and container.outline is not None and isinstance(opened, HeaderSource):
                whole = options.strict or (verifier is not None and verifier.required)
                outline = None if whole else container.outline(opened, reading)
                if outline is not None:
                    from tensorglot.model.deferred import DeferredArchive

                    return DeferredArchive(outline, opened, limits, verifier, reopen, add_path_to_errors(place))
            index = container.read(opened, reading)
            # At a URL, looking for a sidecar costs a request: only with verify="require" is it made.
            if place is not None and verifier is not None and (verifier.required or not place.remote):
                sums = None if index.checksums is not None else read_sidecar(place, limits)
                index = index if sums is None else with_sidecar(index, opened.size, sums)
        except (FormatError, UnsupportedError) as error:
            opened.close()
            from tensorglot.operations._mistaken import explain

            clearer = explain(error, head, opened.size)
            if clearer is None:
                raise
            raise clearer from error
        except BaseException:
            opened.close()
            raise
    return Archive(index, opened, limits=limits, verifier=verifier, reopen=reopen)


class _Beside:
    """Opens other files of the same archive, by their names."""

    __slots__ = ("_backend", "_place")

    def __init__(self, place: Place, backend: Backend) -> None:
        self._place, self._backend = place, backend

    def __call__(self, name: str) -> Source:
        from tensorglot.io.folder import file_named_by

        place = replace(self._place, text=self._place.absolute)  # the working directory may have changed
        return source_for(file_named_by(place, name), self._backend)

    def __reduce__(self) -> tuple[Any, ...]:
        refuse_credentials(self._place.text)
        return _Beside, (self._place, self._backend)
