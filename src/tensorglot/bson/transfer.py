"""`transfer`: embeddings from one place to another in batches, quantized on the way if requested.

Memory does not depend on the number of documents. Nothing is written before all of the
source has been read once and found valid: that pass counts the rows, and finds the types
of the fields and the ranges of the dimensions. Then the source is read a second time. A
collection may change between two reads, so its documents are kept in an unnamed file (a
dump) beside the target, or in the directory for temporary files if the target is not a
local file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tensorglot.arguments import check_choice
from tensorglot.bson.assemble import OnMissing
from tensorglot.bson.coerce import DType
from tensorglot.bson.embeddings import BATCH_NBYTES, ID, Digest, Embeddings, Ranges
from tensorglot.bson.mongodb import Progress
from tensorglot.bson.places import FileOrCollection, is_collection, locate_files
from tensorglot.bson.quantize import find_ranges
from tensorglot.bson.streams import ReadPlan, Stream, dump_batches, open_stream
from tensorglot.bson.upload import Written
from tensorglot.bson.writing import Survey, WritePlan, dump, write_batches
from tensorglot.io.local import FileSource
from tensorglot.io.place import as_place
from tensorglot.io.sink import open_spool
from tensorglot.operations._jsonable import Record, field_dict

__all__ = ["Transfer", "transfer"]


@dataclass(frozen=True, slots=True)
class Transfer(Record):
    """What `transfer` moved, or would move with `dry_run`."""

    key: str
    """The name of the vectors in the target."""
    vectors: int
    count: int
    """Numbers of a vector."""
    dtype: str
    ids: bool
    """Whether the source has an `_id` for each vector."""
    fields: tuple[str, ...]
    ranges: bool
    """Whether the vectors have ranges: int8 that was quantized here."""
    written: Written

    @property
    def ok(self) -> bool:
        """Whether every vector was written."""
        return self.written.ok

    def to_dict(self) -> dict[str, Any]:
        own = field_dict(self, "vectors", "count", "dtype", "ids", "ranges", "fields")
        return {"name": self.key, **own, **self.written.to_dict()}


def transfer(
    source: FileOrCollection,
    target: FileOrCollection,
    key: str | None = None,
    *,
    under: str | None = None,
    fields: Iterable[str] = (),
    filter: Mapping[str, Any] | None = None,
    on_missing: OnMissing = "error",
    dtype: DType = None,
    quantize: Literal["int8", "packed_bit"] | None = None,
    use_ranges: Ranges | None = None,
    ranges: str | os.PathLike[str] | None = None,
    update: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    id: str = ID,
) -> Transfer:
    """Moves vectors with their ids and fields from one place to another, however many there are.

    The source has the options of `read_embeddings`, the target those of
    `write_embeddings`. `under` is the key in the target. `quantize` makes the vectors
    smaller, with `use_ranges` or with their own ranges. A transfer to a collection that was
    interrupted is completed by running it again. `progress` follows the documents of a
    collection as they are read, and then the vectors as they are written. `storage_options`
    apply to source, target and `ranges` if they are URLs.
    """
    if quantize is not None:
        check_choice(quantize, ("int8", "packed_bit"), "quantize", "quantize.to")
    source, target, ranges = locate_files(storage_options, source, target, ranges)
    plan = WritePlan(target, update, ranges, dry_run, progress)
    with (
        open_stream(source, ReadPlan(key, tuple(fields), filter, on_missing, dtype, progress, id)) as opened,
        _repeatable(opened, plan) as stream,
    ):
        own_ranges = quantize == "int8" and use_ranges is None
        survey, ranges_found = _read_once(stream, ranges=own_ranges)
        change = _Change(under or stream.key, quantize, ranges_found if own_ranges else use_ranges, survey.ids)

        def batches() -> Iterator[Embeddings]:
            nothing = [Embeddings(np.empty((0, 0), np.float32), stream.key)]
            return map(change.apply, nothing if survey.row is None else stream.batches(BATCH_NBYTES))

        first = next(batches())
        plan.check(survey.fields, ids=first.ids is not None, new_ranges=own_ranges)
        numbered = _number(batches) if is_collection(target) and first.ids is None else batches
        written = write_batches(plan, survey, numbered())
    row = first.vectors.row
    return Transfer(
        first.key,
        survey.rows,
        row.count,
        row.kind.name,
        first.ids is not None,
        tuple(survey.fields),
        first.ranges is not None,
        written,
    )


@contextmanager
def _repeatable(stream: Stream, plan: WritePlan) -> Iterator[Stream]:
    """The stream; if it can be read only once, a copy in an unnamed file."""
    if stream.repeatable:
        yield stream
        return
    local = not is_collection(plan.place) and not as_place(plan.place).remote
    fields: tuple[str, ...] = ()
    with open_spool(as_place(plan.place)) if local else tempfile.TemporaryFile() as spool:
        for batch in stream.batches(BATCH_NBYTES):
            fields = tuple(batch.fields)
            spool.writelines(dump([batch]))
        spool.flush()
        with closing(FileSource(os.dup(spool.fileno()))) as file:
            yield replace(stream, batches=lambda nbytes: dump_batches(file, stream.key, fields), repeatable=True)


def _read_once(stream: Stream, *, ranges: bool) -> tuple[Survey, Ranges | None]:
    """The first pass over a source, and the ranges of the dimensions if they are requested.

    A key or a field that no document has is refused.
    """
    survey, low, high = Survey(), None, None
    for batch in stream.batches(BATCH_NBYTES):
        survey.add(batch)
        if ranges and len(batch):
            least, most = find_ranges(batch.matrix)
            low = least if low is None else np.minimum(low, least)
            high = most if high is None else np.maximum(high, most)
    for name in [stream.key] if survey.row is None else survey.absent:
        stream.refuse(name)
    return survey, None if low is None or high is None else (low, high)


def _number(batches: Callable[[], Iterator[Embeddings]]) -> Callable[[], Iterator[Embeddings]]:
    """Gives each row an id derived from the contents of all rows, which takes one more pass over them."""
    digest = Digest()
    for batch in batches():
        digest.add(batch)

    def numbered() -> Iterator[Embeddings]:
        first = 0
        for batch in batches():
            yield digest.number(batch, first)
            first += len(batch)

    return numbered


@dataclass(frozen=True, slots=True)
class _Change:
    """The changes to each batch: its key, whether it keeps ids, quantization."""

    key: str
    quantize: Literal["int8", "packed_bit"] | None
    ranges: Ranges | None
    keeps_ids: bool

    def apply(self, batch: Embeddings) -> Embeddings:
        kept = batch.under(self.key) if self.keeps_ids else batch.under(self.key).without_ids()
        return kept if self.quantize is None else kept.quantize(self.quantize, ranges=self.ranges)
