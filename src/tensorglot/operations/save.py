"""Saving: values become an archive, the format's writer turns it into chunks, a sink consumes them.

What the format cannot store is refused, by the tensor's name, before a byte is written.
The chunks go to a file that is replaced atomically, to a stream, or into one byte
string. Knows no format.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorglot.containers.table import UNNAMED, Format, WriteOptions, for_target, holders_of, shape_faults
from tensorglot.errors import InputError, LossWarning, UnsupportedError, escape
from tensorglot.io.local import Stamp, add_path_to_errors
from tensorglot.io.place import Place
from tensorglot.io.sink import Writable
from tensorglot.io.target import open_target, version_read
from tensorglot.limits import DEFAULT
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.names import check_name
from tensorglot.model.nonzero_bools import stored_payload
from tensorglot.model.payload import Encoded, Span, Undecodable, as_bytes, buffers
from tensorglot.model.tensor import NESTED, check_bool
from tensorglot.operations._as_archive import collect
from tensorglot.operations._options import AUTO, Choice, SaveOptions
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress, follow
from tensorglot.operations._sidecar import SetAside

__all__ = [
    "check_bools",
    "check_metadata",
    "dumps",
    "prepare",
    "save",
    "save_archive",
    "version_in_use",
    "warn_of_copies",
    "write_archive",
]


def save(
    target: Writable,
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: Choice = None,
    level: int | None = None,
    checksum: Choice = AUTO,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes tensors to a file, or to an object at a URL: atomic, and durable when it returns.

    The format is that of the target's suffix or of `format="bintensors@1"`. Arrays of
    any memory order, stride and byte order are saved correctly. `compression` and
    `checksum` are a choice for all tensors, or a mapping from names and patterns to
    choices; `checksum="auto"` is the format's fast one, if it has one. Arrays that share
    memory are stored once where the format can, else twice, with a warning. `progress`
    is called with the bytes done and the total; True draws a bar.
    """
    if isinstance(target, Mapping):
        raise InputError("the target comes first: save(target, tensors)", rule="save.target")
    options = SaveOptions.of(compression, level, checksum, durable, progress)
    save_archive(locate(target, storage_options), collect(tensors, metadata, attributes), format, options)


def dumps(
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: Choice = None,
    level: int | None = None,
    checksum: Choice = AUTO,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Progress | bool | None = None,
) -> bytes:
    """The bytes that `save` would write. `format` is required: there is no suffix."""
    spec, version = for_target(None, format)
    archive = collect(tensors, metadata, attributes)
    options = SaveOptions.of(compression, level, checksum)
    settled = prepare(archive, spec, version, options)
    check_bools(archive)
    warn_of_copies(archive, spec, stacklevel=2)
    with follow(spec.write(archive, settled), int(archive.index.nbytes.sum()), progress, "encoding") as chunks:
        return b"".join(chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else as_bytes(chunk) for chunk in chunks)


def save_archive(target: Writable, archive: Archive, format: str | None, options: SaveOptions) -> None:
    """Writes an archive in the format named, or in that of the target's suffix."""
    with add_path_to_errors(target if isinstance(target, Place) else None):
        spec, version = for_target(target, format)
        settled = prepare(archive, spec, version, options)
    check_bools(archive)
    warn_of_copies(archive, spec, stacklevel=3)
    write_archive(target, archive, spec, settled, options)


def write_archive(
    target: Writable, archive: Archive, spec: Format, settled: WriteOptions, options: SaveOptions
) -> None:
    """Writes an archive that was prepared. A target that the archive was read from must be unchanged since."""
    total = int(archive.index.nbytes.sum())
    with follow(spec.write(archive, settled), total, options.progress, "saving") as chunks:
        around = SetAside(target, durable=options.durable)
        expect = version_in_use(archive, target)
        with open_target(target, durable=options.durable, expect=expect, around=around) as file:
            if not settled.compression.choices or (isinstance(target, Place) and target.remote):
                file.reserve(total)
            file.write(chunks)


def version_in_use(archive: Archive, target: Writable) -> Stamp | str | None:
    """The stamp or ETag of a target that the archive was read from; None for any other target."""
    sources = {archive.source, *archive.index.sources.values()} - {None}
    return next((found for source in sources if (found := version_read(source, target)) is not None), None)


def warn_of_copies(archive: Archive, spec: Format, stacklevel: int) -> None:
    """Warns of tensors that share their bytes, in memory or in a file, if the format stores them twice."""
    ties = {} if spec.ties else archive.find_ties()
    if ties:
        names = archive.index.names
        one, other = next(iter(ties.items()))
        more = f", and {len(ties) - 1} more" if len(ties) > 1 else ""
        where = "bytes" if archive.index.payloads is None else "memory"
        warnings.warn(
            f"'{escape(names[one])}' shares its {where} with '{escape(names[other])}'{more}: "
            f"{spec.name} cannot share bytes between tensors and stores each separately",
            LossWarning,
            stacklevel=stacklevel + 1,
        )


def check_bools(archive: Archive) -> None:
    """Refuses bools of a file that are neither 0 nor 1, of which a copy would be true in zTensor 0.1."""
    index = archive.index
    payloads = index.payloads
    for row in np.flatnonzero(index.dtypes == BY_NAME["bool"].code).tolist():
        if payloads is not None and isinstance(payloads[row], np.ndarray):
            continue  # checked when it was coerced
        part = archive.part(row, name := index.name_of(row))
        payload = part.payload
        undecodable = isinstance(payload, Encoded) and isinstance(payload.codec, Undecodable)
        if undecodable or stored_payload(payload) is not payload:
            continue
        for piece in buffers(payload.chunks()):
            check_bool(np.frombuffer(piece, np.bool_), name, part.offset)


def prepare(archive: Archive, spec: Format, version: str, options: SaveOptions) -> WriteOptions:
    """The options for each tensor. What the format cannot store is refused before anything is written."""
    index = archive.index
    settled = options.settle(spec, version, index)
    if index.metadata is not None:
        check_metadata(index.metadata, spec, version)
    if len(index.names) > spec.most_tensors:
        raise UnsupportedError(
            f"{len(index.names)} tensors exceed the {spec.most_tensors} that a reader of {spec.name} accepts",
            rule="save.tensors.count",
        )
    if archive.limits.name_nbytes > DEFAULT.name_nbytes:  # read with a raised limit: the next reader has the usual one
        for name in index.names:
            check_name(name)
    if not spec.names and list(index.names) != [UNNAMED]:
        raise UnsupportedError(
            f"{spec.name} holds one tensor and stores no name: save exactly one, named '{UNNAMED}'",
            rule="save.names",
            tensor=next((name for name in index.names if name != UNNAMED), None),
        )
    for row, fault in shape_faults(index).items():
        raise UnsupportedError(fault.message, rule="save.shape", tensor=index.name_of(row))
    for position, layout in index.layouts.items():
        if not spec.holds_layout(layout.name):
            raise UnsupportedError(
                f"{spec.name} cannot store a tensor of layout '{escape(layout.name)}' and type {layout.type!s:.60}"
                + holders_of(layout.name),
                rule="save.layout",
                tensor=index.names[position],
            )
        if layout.name == NESTED:
            from tensorglot.model.types.text import text_of

            text_of(layout.type)
    for position in () if spec.attributes else index.attributes:
        from tensorglot.model.layouts import user_attributes

        if user_attributes(index, position):
            name = index.names[position]
            raise UnsupportedError(f"{spec.name} cannot store attributes", rule="save.attributes", tensor=name)
    return settled


def check_metadata(metadata: Mapping[str, Any], spec: Format, version: str) -> None:
    """Refuses metadata that the format cannot store."""
    if not isinstance(metadata, Mapping):
        raise InputError(f"metadata must be a mapping, not {type(metadata).__name__}", rule="save.metadata")
    if metadata and spec.metadata == "none":
        raise UnsupportedError(f"{spec.name} cannot store metadata", rule="save.metadata")
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise InputError(f"a metadata key must be a str, not {type(key).__name__}", rule="save.metadata")
        if spec.metadata == "text" and not isinstance(value, str):
            raise InputError(
                f"{spec.name} stores only text as metadata: '{escape(key)}' is of type {type(value).__name__}, "
                "pass str(value) or json.dumps(value)",
                rule="save.metadata",
            )
        for text in (key, value) if spec.metadata == "text" else (key,):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(
                    "metadata has a lone surrogate, which UTF-8 cannot encode", rule="save.metadata"
                ) from error
    for key, fault in spec.container.metadata_faults(metadata, version).items():
        raise UnsupportedError(
            f"{spec.name} cannot store the metadata '{escape(key)}': {fault}", rule=f"{spec.name}.write.metadata"
        )
