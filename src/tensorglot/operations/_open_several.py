"""Opening what is not one file: a list of files, a folder, an index of shards, a URL that may be one of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from tensorglot.errors import InputError, escape
from tensorglot.io.folder import Folder
from tensorglot.io.place import Place
from tensorglot.io.source import Readable
from tensorglot.model.archive import Archive
from tensorglot.model.index import Note
from tensorglot.operations._checksums import OnceVerifier
from tensorglot.operations._places import INDEX_SUFFIX
from tensorglot.operations._shards import (
    common_metadata,
    find_file,
    find_in_folder,
    is_sharded,
    join_archives,
    open_shards,
    refuse_duplicates,
)
from tensorglot.operations.open import OpenOptions, can_reopen, open_file, open_source

__all__ = ["open_place", "open_several"]


def open_place(
    place: Place, options: OpenOptions, verifier: OnceVerifier | None, reopen: Callable[[], Archive] | None
) -> Archive:
    """Opens a folder or an index of shards, or a URL, which may also be that of a file."""
    if is_sharded(place):
        found = find_file(place)
    else:
        try:
            return open_file(place, options, verifier, reopen)
        except FileNotFoundError:
            folder = Folder.at(place)
            if not _has_files(folder):
                raise
        found = find_in_folder(folder)
    if not found.text.endswith(INDEX_SUFFIX):
        return open_file(found, options, verifier, reopen)
    open_shard = partial(open_file, options=options._replace(defer=False), verifier=verifier)
    index = open_shards(found, options.limits, options.strict, open_shard)
    return Archive(index, None, limits=options.limits, verifier=verifier, reopen=reopen)


def _has_files(folder: Folder) -> bool:
    with suppress(FileNotFoundError):  # no such bucket
        return bool(folder.names())
    return False


def open_several(sources: Sequence[Readable], options: OpenOptions) -> Archive:
    """Several files of one format as one archive. No two may have a tensor of the same name."""
    if not sources:
        raise InputError("a list of files must not be empty", rule="source.list")
    with ExitStack() as on_error:
        at_once = options._replace(defer=False)
        archives = [on_error.enter_context(open_source(source, at_once)) for source in sources]
        formats = sorted({archive.format for archive in archives})
        if len(formats) > 1:
            message = f"the files have different formats: {', '.join(formats)}; merge them into one file"
            raise InputError(message, rule="source.formats")
        refuse_duplicates(archives, sources, rule="source.name")
        metadata, conflicts = common_metadata(archives)
        notes = [Note("source.metadata", f"the metadata key '{escape(key)}' differs") for key in conflicts]
        index = join_archives(archives, formats[0], metadata, notes)
        on_error.pop_all()
    return Archive(
        index,
        None,
        limits=options.limits,
        verifier=options.verifier(),
        reopen=partial(open_source, sources, options) if all(map(can_reopen, sources)) else None,
    )
