"""Places as streams: embeddings in batches, so that memory does not depend on the number of documents.

A file can be read again, and gives the same batches each time; a collection is read once.
A container keeps each column in a tensor of its own, and each is read in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_names, check_choice
from tensorglot.bson.assemble import MISSING_RULE, OnMissing, assemble_each
from tensorglot.bson.coerce import DType, coerce_vector
from tensorglot.bson.columns import BSON_SUFFIX, ValueColumn, concat, gather
from tensorglot.bson.embeddings import ID, Embeddings, Ranges, check_counts, check_paths
from tensorglot.bson.inspect import FieldReport, inspect
from tensorglot.bson.lookup import check_collection, check_field, no_field
from tensorglot.bson.mongodb import Progress, Query
from tensorglot.bson.parquet import open_parquet
from tensorglot.bson.places import FileOrCollection, collection_at, is_collection, is_dump, is_parquet, place_text
from tensorglot.bson.sources import Batch, Run, batches
from tensorglot.bson.stored_columns import ColumnSource, PartBytes, open_column
from tensorglot.containers.table import named
from tensorglot.errors import FormatError, Hint, InputError, list_names
from tensorglot.io.local import BaseSource
from tensorglot.io.place import as_place
from tensorglot.io.source import source_for
from tensorglot.model.archive import Archive
from tensorglot.model.payload import as_bytes
from tensorglot.model.tensor import Tensor, check_bool
from tensorglot.operations.open import OpenOptions, open_source
from tensorglot.wire import bson as wire
from tensorglot.wire.bson_vector import find_kind

__all__ = ["DEFAULT_KEY", "HIGH", "LOW", "ReadPlan", "Stream", "dump_batches", "open_stream"]

DEFAULT_KEY = "embedding"
"""The name of vectors that come from a place without names."""
LOW, HIGH = ".low", ".high"
_BATCH_ROWS = 1 << 14
"""Most vectors of a batch, however short they are: the other fields of their documents may be long."""
_SAMPLE = 100
"""Documents searched for a vector field if none was named."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What to read of a place."""

    key: str | None = None
    fields: Sequence[str] = ()
    filter: Mapping[str, Any] | None = None
    on_missing: OnMissing = "error"
    dtype: DType = None
    progress: Progress | None = None
    id: str = ID
    """The field or column that has the ids."""

    def __post_init__(self) -> None:
        check_choice(self.on_missing, get_args(OnMissing), "on_missing", "bson.on_missing")
        if self.dtype is not None:
            find_kind(self.dtype)
        object.__setattr__(self, "fields", as_names(self.fields, "fields", "place.fields"))

    def check(self, key: str) -> None:
        """Refuses names that overlap."""
        check_paths(key, self.fields if self.id == ID else (*self.fields, self.id))


def _ignore(name: str) -> None:
    """The default of `Stream.refuse`, for places whose names were checked before anything was read."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Embeddings of a place, in batches."""

    key: str
    batches: Callable[[int | None], Iterator[Embeddings]]
    """Called with the bytes of a batch, or None for as much at once as the place allows."""
    repeatable: bool = True
    expected_rows: int = 0
    refuse: Callable[[str], None] = field(default=_ignore)
    """Called with a key or field that no document had; raises an error that says why, if it does not exist."""


@contextmanager
def open_stream(place: FileOrCollection, plan: ReadPlan) -> Iterator[Stream]:
    """Opens a place. The names of its fields are checked where it lists them."""
    if plan.filter is not None and not is_collection(place):
        raise InputError("filter= applies only to collections", rule="place.filter")
    if is_collection(place):
        with collection_at(place) as collection:
            yield _collection_stream(collection, plan)
    elif is_dump(place):
        with closing(source_for(as_place(place))) as file:
            yield _dump_stream(place_text(place), file, plan)
    elif is_parquet(place):
        with open_parquet(as_place(place), plan.key, plan.fields, plan.dtype, plan.id) as found:
            yield Stream(found.key, found.batches, expected_rows=found.rows)
    else:
        with open_source(as_place(place), OpenOptions()) as archive:
            yield _archive_stream(archive, plan)


def _collection_stream(collection: Any, plan: ReadPlan) -> Stream:
    key = plan.key
    if key is None:
        check_collection(collection)
        key = _only(inspect(collection.find_raw_batches(plan.filter or {}, limit=_SAMPLE)))
    plan.check(key)
    query = Query(collection, key, plan.filter, (plan.id, *plan.fields), plan.progress)

    def refuse(name: str) -> None:
        check_field(collection, name)

    def read(nbytes: int | None) -> Iterator[Embeddings]:
        return _document_batches(query.batches(), key, plan, refuse)

    return Stream(key, read, False, query.expected_rows(), refuse)


def _dump_stream(path: str, file: BaseSource, plan: ReadPlan) -> Stream:
    key = _only(inspect(file)) if plan.key is None else plan.key
    plan.check(key)

    def refuse(name: str) -> None:
        names = [report.name for report in inspect(file)] if name == key else []
        if name not in names:
            raise no_field(name, names, path)

    def read(nbytes: int | None) -> Iterator[Embeddings]:
        return _document_batches(batches(file, key, None), key, plan, refuse)

    return Stream(key, read, refuse=refuse)


def dump_batches(file: BaseSource, key: str, fields: Sequence[str]) -> Iterator[Embeddings]:
    """The embeddings of a dump, also a gzipped one."""
    return _document_batches(batches(file, key, None), key, ReadPlan(fields=fields))


def _document_batches(
    parts: Iterable[Batch], key: str, plan: ReadPlan, refuse: Callable[[str], None] = _ignore
) -> Iterator[Embeddings]:
    tap = _Tap((plan.id, *plan.fields), skip=plan.on_missing == "skip")
    try:
        for vectors in assemble_each(tap.watch(parts), plan.on_missing):
            columns = tap.take()
            ids = columns.pop(plan.id)
            if plan.id != ID and not ids.kinds.any():
                refuse(plan.id)
            yield Embeddings(vectors, key, ids if plan.id != ID or ids.kinds.all() else None, columns)
    except FormatError as error:
        if error.rule == MISSING_RULE:
            refuse(key)
        raise


def _only(reports: Iterable[FieldReport]) -> str:
    names = [report.name for report in reports if report.vectors]
    if len(names) != 1:
        found = list_names(names)
        what = "there are several vector fields" if names else "there is no vector field"
        hint = Hint("pass the name of one", "pass --from NAME") if names else None
        raise InputError(f"{what} (found: {found})", rule="place.name", hint=hint)
    return names[0]


class _Tap:
    """Collects ids and fields of batches while `assemble_each` consumes their vectors."""

    def __init__(self, names: Sequence[str], *, skip: bool) -> None:
        self._paths = {name: wire.path_bytes(name) for name in names}
        self._parts: dict[str, list[ValueColumn]] = {name: [] for name in names}
        self._skip = skip

    def watch(self, parts: Iterable[Batch]) -> Iterator[Batch]:
        for part in parts:
            assert isinstance(part, Run)  # noqa: S101 - raw documents come in runs
            for name, path in self._paths.items():
                column = gather(part.data, wire.find(part.data, path, part.start))
                self._parts[name].append(column.take(~part.missing) if self._skip else column)
            yield part

    def take(self) -> dict[str, ValueColumn]:
        """The columns of the batches since the last call."""
        taken = {name: concat(parts) for name, parts in self._parts.items()}
        self._parts = {name: [] for name in taken}
        return taken


def _archive_stream(archive: Archive, plan: ReadPlan) -> Stream:
    if not named(archive.format)[0].names:
        unnamed = _ArchiveSource(archive[next(iter(archive))], plan.key or DEFAULT_KEY, plan.dtype)
        return Stream(unnamed.key, unnamed.batches)
    key = plan.key or _only_matrix(archive, plan.id)
    plan.check(key)
    has_ids = plan.id != ID or ID in archive or ID + BSON_SUFFIX in archive
    ids = open_column(archive, plan.id) if has_ids else None
    columns = {name: open_column(archive, name) for name in plan.fields}
    ranges: Ranges | None = None
    if key + LOW in archive and key + HIGH in archive:
        ranges = (archive[key + LOW].numpy(), archive[key + HIGH].numpy())
    return Stream(key, _ArchiveSource(archive[key], key, plan.dtype, ids, columns, ranges).batches)


@dataclass(frozen=True, slots=True)
class _ArchiveSource:
    """A matrix, and the columns beside it."""

    tensor: Tensor
    key: str
    dtype: DType
    ids: ColumnSource | None = None
    columns: Mapping[str, ColumnSource] = field(default_factory=dict)
    ranges: Ranges | None = None

    def batches(self, nbytes: int | None) -> Iterator[Embeddings]:
        ids = None
        columns: dict[str, Callable[[int], ValueColumn]] = {}
        for number, block in enumerate(_row_blocks(self.tensor, nbytes)):
            vectors = coerce_vector(block, self.dtype, None, 2)
            rows = len(vectors.data)
            if not number:
                check_counts(self.ids, self.columns, rows if nbytes is None else len(self.tensor))
                ids = None if self.ids is None else self.ids.read()
                columns = {name: column.read() for name, column in self.columns.items()}
            beside = {name: take(rows) for name, take in columns.items()}
            yield Embeddings(vectors, self.key, None if ids is None else ids(rows), beside, ranges=self.ranges)


def _row_blocks(tensor: Tensor, nbytes: int | None) -> Iterator[NDArray[Any]]:
    """A matrix in blocks of rows, decoded in one pass. One block with nbytes=None, or if it is not a plain matrix, or
    empty: it tells the size of a row."""
    part = tensor.parts.get("data")
    dtype = tensor.dtype
    row_nbytes = tensor.shape[1] * dtype.itemsize if dtype is not None and tensor.ndim == 2 else 0
    if nbytes is None or part is None or dtype is None or row_nbytes * len(tensor) != part.nbytes or not part.nbytes:
        yield tensor.numpy()
        return
    step = min(_BATCH_ROWS, max(1, nbytes // row_nbytes))
    stored = PartBytes(part)
    for first in range(0, len(tensor), step):
        block = np.empty((min(step, len(tensor) - first), tensor.shape[1]), dtype)
        stored.read_into(as_bytes(block))
        check_bool(block, tensor.name, tensor.offset)
        yield block


def _only_matrix(archive: Archive, id: str) -> str:
    matrices = [name for name, tensor in archive.items() if len(tensor.shape) == 2 and tensor.dtype and name != id]
    if len(matrices) != 1:
        found = list_names(matrices)
        raise InputError(f"pass the name of the matrix to read (matrices found: {found})", rule="place.name")
    return matrices[0]
