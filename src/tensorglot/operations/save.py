"""Saving: the door, the format's writer, a sink.

`collect` makes an archive of whatever the caller has; what the format has no place for
is refused by name before a byte is written; the writer yields chunks, which a file that
is whole or absent, a stream, or one byte string consumes. Knows no format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from tensorglot.containers.table import UNNAMED, Format, PerTensor, WriteOptions, for_target
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.io.local import Stamp
from tensorglot.io.sink import AtomicFile, Writable, write_stream
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.model.tensor import NESTED
from tensorglot.model.types.text import text_of
from tensorglot.operations.collect import collect

__all__ = ["Progress", "check_expressible", "check_metadata", "dumps", "reported", "save", "save_archive"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes written so far and the bytes in all."""

_PROGRESS_NBYTES = 32 << 20


def save(
    target: Writable,
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: str | None = None,
    level: int | None = None,
    checksum: str | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    durable: bool = True,
    progress: Progress | None = None,
) -> None:
    """Writes tensors to a file, whole or not at all, durable when it returns.

    The format goes by the suffix of the target or by `format="bintensors@1"`. Arrays of
    any memory order, stride and byte order are saved right.
    """
    spec, version = for_target(target, format)
    options = WriteOptions(version, PerTensor(compression), level, PerTensor(checksum))
    save_archive(target, collect(tensors, metadata, attributes), spec, options, durable=durable, progress=progress)


def dumps(
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: str | None = None,
    level: int | None = None,
    checksum: str | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> bytes:
    """The bytes that `save` would write. There is no suffix that could say the format, so `format` does."""
    spec, version = for_target(None, format)
    options = WriteOptions(version, PerTensor(compression), level, PerTensor(checksum))
    chunks, _ = _chunks(collect(tensors, metadata, attributes), spec, options, progress)
    return b"".join(chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else as_bytes(chunk) for chunk in chunks)


def save_archive(
    target: Writable,
    archive: Archive,
    spec: Format,
    options: WriteOptions,
    *,
    durable: bool,
    progress: Progress | None,
    expect: Stamp | None = None,
) -> None:
    """Writes an archive in a given format. With `expect` only over the file of that stamp, as it was read."""
    chunks, total = _chunks(archive, spec, options, progress)
    if not isinstance(target, (str, os.PathLike)):
        if not hasattr(target, "write"):
            raise InputError(f"a path or a binary file, not {type(target).__name__}", rule="sink.target")
        write_stream(target, chunks)
        return
    with AtomicFile(target, durable=durable, expect=expect) as file:
        if not options.compression.choices:
            file.reserve(total)
        file.write(chunks)


def _chunks(
    archive: Archive, spec: Format, options: WriteOptions, progress: Progress | None
) -> tuple[Iterator[Chunk], int]:
    """What the format's writer makes, and the bytes of all tensors."""
    check_expressible(archive, spec, options)
    chunks = spec.write(archive, options)
    total = int(archive.index.nbytes.sum())
    return (chunks if progress is None else reported(chunks, total, progress)), total


def check_expressible(archive: Archive, spec: Format, options: WriteOptions) -> None:
    """What the format has no place for is refused by name, before anything is written."""
    index = archive.index
    if index.metadata is not None:
        check_metadata(index.metadata, spec)
    if len(index.names) > spec.most_tensors:
        raise UnsupportedError(
            f"{len(index.names)} tensors; a reader of {spec.name} takes {spec.most_tensors}", rule="save.tensors.count"
        )
    if not spec.names and list(index.names) != [UNNAMED]:
        raise UnsupportedError(
            f"{spec.name} has one tensor and keeps no name: call it '{UNNAMED}'",
            rule="save.names",
            tensor=next((name for name in index.names if name != UNNAMED), None),
        )
    if index.attributes and not spec.attributes:
        name = index.names[next(iter(index.attributes))]
        raise UnsupportedError(f"{spec.name} has no attributes", rule="save.attributes", tensor=name)
    for position, layout in index.layouts.items():
        if layout.name not in spec.layouts and "*" not in spec.layouts:
            raise UnsupportedError(
                f"{spec.name} has no layout '{escape(layout.name)}'", rule="save.layout", tensor=index.names[position]
            )
        if layout.name == NESTED:
            text_of(layout.type)
    for what, asked, offered in (
        ("compression", options.compression.choices, spec.compression),
        ("checksum", options.checksum.choices, spec.checksums_in(options.version)),
    ):
        for choice in asked.difference(offered):
            supported = f"supported: {', '.join(offered)}" if offered else f"it has no {what}"
            raise UnsupportedError(
                f"{spec.name}@{options.version} does not support {choice} ({supported})", rule=f"save.{what}"
            )
    if options.level is not None and not options.compression.choices:
        raise InputError("a level goes with a compression", rule="save.level")


def check_metadata(metadata: Mapping[str, Any], spec: Format) -> None:
    """Refuses metadata that the format has no place for."""
    if spec.metadata == "none":
        raise UnsupportedError(f"{spec.name} has no metadata", rule="save.metadata")
    if not isinstance(metadata, Mapping):
        raise InputError(f"metadata is a mapping, not {type(metadata).__name__}", rule="save.metadata")
    for key, value in metadata.items():
        for text in (key, value) if spec.metadata == "text" else (key,):
            if not isinstance(text, str):
                raise InputError(f"metadata of {spec.name} is text, not {type(text).__name__}", rule="save.metadata")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError("metadata has a lone surrogate", rule="save.metadata") from error


def reported(chunks: Iterable[Chunk], total: int, progress: Progress) -> Iterator[Chunk]:
    """Cuts large chunks so that progress is seen."""
    done = 0
    for chunk in chunks:
        whole = chunk if isinstance(chunk, Span) else as_bytes(chunk)
        for start in range(0, whole.nbytes, _PROGRESS_NBYTES):
            end = min(start + _PROGRESS_NBYTES, whole.nbytes)
            if isinstance(whole, Span):
                yield Span(whole.source, whole.begin + start, whole.begin + end)
            else:
                yield whole[start:end]
            done += end - start
            progress(min(done, total), total)
