"""A distributed checkpoint: a directory of files, one or more for each rank, and an index of them.

Two kinds of directory are read. `torch.distributed.checkpoint` writes `.metadata`, a
pickle, and `*.distcp` files of concatenated `torch.save` archives; nothing of it is
executed. `tensorglot.bridges.dcp` writes `dcp.json` and a tensor file for each rank.

    records     the objects in `.metadata`: which classes are allowed, and their fields
    metadata    `.metadata`, parsed to a checkpoint
    manifest    `dcp.json`, parsed to a checkpoint
    plain       plain Python values in JSON, both ways
    checkpoint  what both kinds describe: tensors, their boxes, values; and the checks
    directory   the files, opened when something in them is read
    joined      the codec of a tensor that consists of boxes
    values      the plain values of a PyTorch checkpoint

A tensor is stored in *boxes* (DCP calls them chunks): each is a block of the tensor that
starts at its offsets in the global shape. Boxes do not overlap and leave no hole. Opening
reads the index and the plain values, no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from tensorglot.containers.dcp.checkpoint import Checkpoint, check_checkpoint
from tensorglot.containers.dcp.directory import Directory, RankFiles, SavedItems
from tensorglot.containers.dcp.joined import Joined, Quantized
from tensorglot.containers.dcp.manifest import Manifest, read_manifest
from tensorglot.containers.dcp.metadata import read_metadata
from tensorglot.containers.dcp.values import read_values
from tensorglot.containers.table import Container, ReadOptions, WriteOptions
from tensorglot.containers.torchsave.names import DTYPES, QUANTIZED
from tensorglot.errors import FormatError, escape
from tensorglot.model.archive import Archive
from tensorglot.model.index import UNKNOWN, Index, Note, shape_columns
from tensorglot.model.payload import Chunk, Codec, Source

__all__ = ["CONTAINER", "read_index"]


def read(source: Source, options: ReadOptions) -> Index:
    if source.read_bytes(0, min(1, source.size)) == b"{":
        return read_index(source, RankFiles(options), options)
    checkpoint = read_metadata(source, options.limits)
    check_checkpoint(checkpoint, options.limits)
    items = SavedItems(options)
    return _index(read_values(checkpoint, items, options), items, options)


def read_index(source: Source, files: Directory, options: ReadOptions) -> Index:
    """The JSON index of a checkpoint whose boxes are in `files`."""
    checkpoint = read_manifest(source, options.limits)
    check_checkpoint(checkpoint, options.limits)
    return _index(checkpoint, files, options)


def _index(checkpoint: Checkpoint, files: Directory, options: ReadOptions) -> Index:
    """The index, with a row for each tensor. The spans of rows are adjacent in an imaginary file: none overlap."""
    if options.strict and checkpoint.notes:
        raise FormatError(checkpoint.notes[0].message, rule=checkpoint.notes[0].rule)
    tensors = files.tensors = checkpoint.tensors
    names = [tensor.name for tensor in tensors]
    options.limits.check_names(names, "dcp")
    codecs: dict[int, Codec] = {}
    unknown: dict[int, str] = {}
    notes = list(checkpoint.notes)
    for at, tensor in enumerate(tensors):
        codecs[at] = Joined(tensor)
        if isinstance(tensor.dtype, str):
            unknown[at] = tensor.dtype
            if tensor.dtype in QUANTIZED:
                codecs[at] = codec = Quantized(tensor.dtype)
                notes.append(Note("dcp.quantized", f"'{escape(tensor.name)}' is listed and not read: {codec.reason}"))
    sizes = [tensor.nbytes for tensor in tensors]
    ends = list(accumulate(sizes, initial=0))
    dims, dim_offsets = shape_columns([tensor.shape for tensor in tensors])
    return Index(
        format=f"dcp@{checkpoint.version}",
        names=names,
        dtypes=np.array([UNKNOWN if isinstance(t.dtype, str) else t.dtype.code for t in tensors], np.uint8),
        dims=dims,
        dim_offsets=dim_offsets,
        begins=np.array(ends[:-1], np.int64),
        ends=np.array(ends[1:], np.int64),
        metadata=checkpoint.metadata or None,
        codecs=codecs,
        decoded_nbytes=dict(enumerate(sizes)),
        unknown_dtypes=unknown,
        sources=dict.fromkeys(range(len(names)), files),
        notes=notes,
    )


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    """The index of a checkpoint, given as metadata under the key `manifest`: `bridges.dcp` writes the tensors."""
    manifest: Manifest = (archive.metadata or {})["manifest"]
    yield manifest.encode()


CONTAINER = Container(DTYPES, read, write)
