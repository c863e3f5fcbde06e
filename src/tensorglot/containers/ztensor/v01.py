"""Version 0.1, the document: reading.

    file = "ZTEN0001", blobs at multiples of 64, index, u64 size of the index

The index is a CBOR array of maps, one for each tensor (§4), read as rows by
`entries`, of which `parts` makes tensors. Blobs may stand in any order
and two tensors may share one; no blob touches another, the magic number or the index.
Unknown words are no error (§8): such a tensor is listed, and its bytes can be copied.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor import rules
from tensorglot.containers.ztensor.codecs import Zstd
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_01
from tensorglot.containers.ztensor.entries import KNOWN, read_entries
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.parts import gather_parts, metadata_field
from tensorglot.containers.ztensor.strict import check_01
from tensorglot.errors import TruncatedError
from tensorglot.limits import Limits
from tensorglot.model.index import Index
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["index_bytes", "read"]

_HIDDEN: Mapping[str, str | None] = {**dict.fromkeys(KNOWN), "layout": "dense"}
"""What is no attribute. To the document `layout` is; to the packages 0.1.0 to 0.1.4 it is required."""


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    data, begin = index_bytes(source, limits)
    cbor.check(data, cbor.with_depth(cbor.LENIENT, limits.cbor_depth), base=begin)
    cursor = cbor.Cursor(data, base=begin, rule="ztensor.index.root")
    count = cursor.count("index")
    rules.check_count(count, begin, limits)
    catalogue, marked = read_entries(cursor, count)
    rules.check_names(catalogue, limits)
    rules.check_ranks(catalogue, limits)
    rules.check_products(catalogue)
    rules.check_sizes(catalogue)
    rules.check_places(catalogue, rules.Region(ALIGNMENT_01, ALIGNMENT_01, begin, source.size))
    rules.check_unique(catalogue)
    metadata = metadata_field(catalogue)
    catalogue = gather_parts(catalogue, marked, [] if metadata is None else [metadata[0]])
    index = catalogue.to_index(
        "ztensor@0.1",
        Zstd(),
        metadata_at(data, None if metadata is None else metadata[1]),
        hidden=_HIDDEN,
        any_nonzero=not options.strict,  # §5.1
    )
    if options.strict:
        check_01(source, index, data, begin)
    return index


def index_bytes(source: Source, limits: Limits) -> tuple[bytes, int]:
    """The bytes of the index, and where they stand."""
    if source.size < len(MAGIC_01) + 8:
        raise TruncatedError("too short for a magic number and a size", rule="ztensor.size", offset=0)
    nbytes = int.from_bytes(source.read_bytes(source.size - 8, 8), "little")
    room = source.size - len(MAGIC_01) - 8
    if nbytes > room or (nbytes == 0 and room):
        raise TruncatedError(
            f"an index of {nbytes} bytes in a file of {source.size}", rule="ztensor.index.size", offset=source.size - 8
        )
    rules.check_index_nbytes(nbytes, source.size - 8, limits)
    begin = source.size - 8 - nbytes
    return source.read_bytes(begin, nbytes) or b"\x80", begin
