"""HDF5 files, and the weights of Keras in them (`.h5`, `.weights.h5`, `.keras`), read only.

    walk        groups, links and datasets: the name and the storage of each tensor
    library     the file as the library h5py sees it: a window of our source, with a bound on what is read
    codec       datasets that only the library can decode: chunked, compressed, compact

A dataset's name is its path. A contiguous dataset is a span of the file, read without the
library. Nothing outside the file is followed: soft and external links, external storage,
virtual datasets. The structure of a file is parsed by libhdf5, which is C code that this
project does not control; what it raises becomes an error of ours.
"""

from __future__ import annotations

from tensorglot.containers.hdf5.library import HDF5File, Window
from tensorglot.containers.hdf5.walk import DTYPES, add_datasets
from tensorglot.containers.table import Container, ReadOptions
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.index import Index
from tensorglot.model.payload import Source
from tensorglot.wire import ziparchive

__all__ = ["CONTAINER"]

KERAS_MEMBER = "model.weights.h5"


def read(source: Source, options: ReadOptions) -> Index:
    if options.strict:
        raise UnsupportedError("HDF5 has no canonical form: open the file without strict", rule="hdf5.strict")
    window = Window(source, 0, source.size)
    if source.read_bytes(0, min(4, source.size)) == b"PK\3\4":
        window = _weights_in(source, options)
    file = HDF5File(window, options.limits)
    builder = IndexBuilder(options.limits, "hdf5")
    try:
        metadata, notes = add_datasets(builder, file, options.limits)
    except BaseException:
        file.close()
        raise
    return builder.index("hdf5@1", metadata, notes)


def _weights_in(source: Source, options: ReadOptions) -> Window:
    """The weights in a file of Keras, which is a ZIP archive."""
    limits = options.limits
    members = ziparchive.scan(
        source.read_bytes, source.size, rule="hdf5", max_members=1 << 16, max_directory=limits.header_or()
    )
    for member in members:
        if member.name == KERAS_MEMBER and member.method == ziparchive.STORED:
            return Window(source, member.begin, member.end)
    raise FormatError(f"the archive has no stored member {KERAS_MEMBER}", rule="hdf5.keras", offset=0)


CONTAINER = Container(DTYPES, read)
