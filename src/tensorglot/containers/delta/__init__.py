"""A delta: what turns the tensors of one version into those of another. Listed here; the store makes and applies it.

    file   = magic | bodies | index | footer
    body   = the encoding of one chunk that differs (`docs/store.md`), in the order of rows and chunks
    footer = offset of the index, its size (two uint64), BLAKE3 of the index, magic

The index (module `index`) is a DAG-CBOR map. `names` are the tensors of the new version,
`rows` their values: one for each tensor, or for each part. A row has the type, size and
digest of the new value, and those of its base if they differ. Bodies are stored without
gaps, so their offsets follow from their sizes, and every byte of the file belongs to one.

As an archive, a delta lists the tensors of the new version. Reading values needs the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tensorglot.containers.delta.index import INDEX_NBYTES, MAGIC, Change, DeltaIndex, PartName, read_index
from tensorglot.containers.table import Container, ReadOptions
from tensorglot.dynd.tensors import SERIALIZED
from tensorglot.errors import Hint, UnsupportedError, escape, plural
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import Index, Layout, Note, RowLayout
from tensorglot.model.payload import Encoded, Source, Undecodable
from tensorglot.model.tensor import NESTED
from tensorglot.model.types.rows import Block
from tensorglot.model.types.text import parse_canonical, parse_each

__all__ = ["CONTAINER"]


@dataclass(frozen=True, slots=True)
class _NeedsBase(Undecodable):
    """The codec of a value that is not in the file."""

    name: str

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(
            "a delta has no values of its own, only what differs from its base",
            rule="delta.base",
            tensor=payload.tensor,
            hint=Hint(
                "apply it with tg.store.apply(delta, tensors)", "apply it with tensorglot store apply DELTA FILE -o OUT"
            ),
        )


def read(source: Source, options: ReadOptions) -> Index:
    found = read_index(source, options.limits)
    builder = IndexBuilder(options.limits, "delta")
    codecs = {state: _NeedsBase(state) for state in ("unchanged", "changed", "added")}
    types = parse_each(list(dict.fromkeys(row.type for row in found.rows)), options.limits)
    roots = dict(zip(types.texts(types.roots), types.roots.tolist(), strict=True))
    blocks = dict(zip(roots, types.blocks(types.roots), strict=True))
    rows_of = found.rows_of()
    for position, (name, changes) in enumerate(zip(found.names, rows_of, strict=True)):
        special = found.special.get(position)
        nested = special is None and blocks[changes[0].type] is None
        whole = SERIALIZED if nested else "data"
        parts: tuple[PartName, ...] = ((whole, None, None),) if special is None else special.parts
        rows = [_row(row, blocks[row.type], part, codecs[row.state]) for row, part in zip(changes, parts, strict=True)]
        layout: Layout | RowLayout | None = RowLayout(NESTED, types, roots[changes[0].type]) if nested else None
        if special is not None and special.layout != "dense":
            layout = Layout(special.layout, parse_canonical(special.type, options.limits))
        builder.add(name, *rows, layout=layout, attributes=None if special is None else special.attributes)
    return builder.index("delta@1", found.metadata, list(_notes(found, rows_of)))


def _row(row: Change, block: Block | None, part: PartName, codec: _NeedsBase) -> Row:
    name, unknown, shape = part
    dtype, sizes = (BY_NAME["uint8"], (row.nbytes,)) if block is None else block
    return Row(
        dtype=dtype if unknown is None else unknown,
        shape=sizes if shape is None else shape,
        begin=row.bodies[0].begin if row.bodies else len(MAGIC),
        end=row.bodies[-1].end if row.bodies else len(MAGIC),
        part=name,
        codec=codec,
        nbytes=row.nbytes if block is None else dtype.nbytes(math.prod(sizes)),
        checksum=f"xxh3:{row.checksum:016x}",
        checksum_decoded=False,
    )


def _notes(index: DeltaIndex, rows_of: list[list[Change]]) -> Iterator[Note]:
    states = [{row.state for row in rows} for rows in rows_of]
    counts = [f"{sum(state in found for found in states):,} {state}" for state in ("changed", "added")] + [
        f"{len(index.removed):,} removed"
    ]
    yield Note("delta.summary", f"a delta: {', '.join(counts)} of {plural(len(states), 'tensor')}")
    if index.removed:
        names = ", ".join(escape(name, longest=40) for name in index.removed[:4])
        yield Note("delta.removed", f"removes {names}" + (", …" if len(index.removed) > 4 else ""))


CONTAINER = Container({row.name: row.name for row in TABLE}, read, header_nbytes_max=INDEX_NBYTES)
