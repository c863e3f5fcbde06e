"""HDF5 files, and the weights of Keras in them (`.h5`, `.weights.h5`, `.keras`), read only.

    objects     superblock, object headers and their messages, groups of the old form
    btrees      B-trees of version 2
    heaps       fractal heaps
    dense       links and attributes in such heaps
    types       element types and shapes
    walk        the datasets of all groups: the name and the storage of each tensor
    attributes  the attributes of the root, as metadata
    claims      bounds the size of all datasets by that of the file
    indexes     where chunks are, in files of `libver="latest"`
    chunks      the codec of chunked datasets: deflate, shuffle

The reader does not use libhdf5, which crashes or loops on damaged files, and opens other
files that a file names. It reads what h5py and Keras write, with any `libver`. Checksums of
the file's structure are always compared, those of chunks whenever one is read. Features
that it does not support are listed or refused by name: other filters, types without a
counterpart, tables of shared messages. A tensor's name is the path of its dataset. Nothing
that leads elsewhere is followed: soft and external links, external storage, virtual datasets.
"""

from __future__ import annotations

from tensorglot.containers.hdf5.attributes import read_attributes
from tensorglot.containers.hdf5.objects import MAGIC, Objects
from tensorglot.containers.hdf5.types import DTYPES
from tensorglot.containers.hdf5.walk import add_datasets
from tensorglot.containers.table import Container, ReadOptions
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.index import Index, Note
from tensorglot.model.payload import Source
from tensorglot.wire import ziparchive

__all__ = ["CONTAINER"]

KERAS_MEMBER = "model.weights.h5"


def read(source: Source, options: ReadOptions) -> Index:
    if options.strict:
        raise UnsupportedError("HDF5 has no canonical form: open the file without strict", rule="hdf5.strict")
    if source.read_bytes(0, min(4, source.size)) == b"PK\3\4":
        begin, end = _find_weights(source, options)
        base = 0
    else:
        begin, end = _find_superblock(source), source.size
        base = begin
    objects = Objects(source, begin, end, options.limits.header_or(), base)
    builder = IndexBuilder(options.limits, "hdf5")
    notes: list[Note] = []
    root = objects.header(objects.root())
    metadata = read_attributes(objects, root, notes)
    add_datasets(builder, objects, options.limits, notes)
    return builder.index("hdf5@1", metadata, notes)


def _find_superblock(source: Source) -> int:
    """The offset of the superblock: 0, or after a user block of 512, 1024, 2048, … bytes (II.A); 0 if there is none."""
    places = [0, *(512 << i for i in range(max(0, source.size.bit_length() - 9)))]
    return next((at for at in places if at + 8 <= source.size and source.read_bytes(at, 8) == MAGIC), 0)


def _find_weights(source: Source, options: ReadOptions) -> tuple[int, int]:
    """The span of the weights in a file of Keras, which is a ZIP archive."""
    members = ziparchive.scan(
        source.read_bytes, source.size, rule="hdf5", max_members=1 << 16, max_directory=options.limits.header_or()
    )
    for member in members:
        if member.name == KERAS_MEMBER and member.method == ziparchive.STORED:
            return member.begin, member.end
    raise FormatError(f"the archive has no stored member {KERAS_MEMBER}", rule="hdf5.keras", offset=0)


CONTAINER = Container(DTYPES, read)
