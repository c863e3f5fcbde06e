"""Version 0.1, the document: reading.

    file = "ZTEN0001", blobs at multiples of 64, index, u64 size of the index

The index is a CBOR array of maps, one for each tensor (§4). `entries` reads them as
rows, `parts` groups rows to tensors. Blobs may be in any order, and two tensors may share
one; otherwise no blob overlaps another, the magic number or the index. Unknown dtypes and
encodings are not errors (§8): such a tensor is listed, and its bytes can be copied.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor import rules
from tensorglot.containers.ztensor.codecs import Zstd
from tensorglot.containers.ztensor.constants import ALIGNMENT_01
from tensorglot.containers.ztensor.entries import KNOWN, read_entries
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.parts import gather_parts, metadata_field
from tensorglot.containers.ztensor.strict import check_01
from tensorglot.limits import Limits
from tensorglot.model.index import Index
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["index_bytes", "read"]

_HIDDEN: Mapping[str, str | None] = {**dict.fromkeys(KNOWN), "layout": "dense"}
"""Fields that are not attributes. `layout` is not in the document, but the packages 0.1.0 to 0.1.4 require it."""


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    data, begin = index_bytes(source, limits)
    cbor.check(data, cbor.with_depth(cbor.LENIENT, limits.cbor_depth), base=begin)
    cursor = cbor.Cursor(data, base=begin, rule="ztensor.index.root")
    count = cursor.count("index")
    limits.check_tensors(count, rule=rules.COUNT_RULE, offset=begin)
    catalogue, marked = read_entries(cursor, count)
    rules.check_limits(catalogue, limits)
    rules.check_sizes(catalogue)
    rules.check_places(catalogue, rules.Region(ALIGNMENT_01, ALIGNMENT_01, begin, source.size))
    rules.check_unique(catalogue)
    metadata = metadata_field(catalogue)
    catalogue = gather_parts(catalogue, marked, [] if metadata is None else [metadata[0]])
    index = catalogue.to_index(
        "ztensor@0.1",
        Zstd(),
        None if metadata is None else metadata_at(data, metadata[1]),
        hidden=_HIDDEN,
        any_nonzero=not options.strict,  # §5.1
    )
    if options.strict:
        check_01(source, index, data, begin)
    return index


def index_bytes(source: Source, limits: Limits) -> tuple[bytes, int]:
    """Reads the index; returns also its offset. A file without tensors may have none."""
    data, begin = rules.read_index(source, source.size - 8, limits)
    return data or b"\x80", begin
