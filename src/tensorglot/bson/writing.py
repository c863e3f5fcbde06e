"""`write_embeddings`: vectors with ids, fields and ranges, to a collection, a dump, Parquet or a container.

`reading` says how each place stores them. Vectors come in batches. A `Survey` has the facts
that a writer needs before the first batch: the number of rows, the types of the fields. The
ranges of int8 vectors are always kept: beside the vectors if the place can store them, else
in a file that the caller names, which is written before the first vector.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from tensorglot.arguments import as_path, check_flags
from tensorglot.bson.embeddings import ID, Embeddings
from tensorglot.bson.lookup import check_collection
from tensorglot.bson.mongodb import Progress
from tensorglot.bson.parquet import write_parquet
from tensorglot.bson.places import (
    FileOrCollection,
    collection_at,
    is_collection,
    is_dump,
    is_parquet,
    locate_files,
    place_text,
)
from tensorglot.bson.stored_columns import ColumnSpool, form_of, stored_name
from tensorglot.bson.streams import HIGH, LOW
from tensorglot.bson.upload import Written, documents, upload
from tensorglot.containers.table import UNNAMED, Format, for_target
from tensorglot.errors import Hint, InputError, escape
from tensorglot.io.place import Place, as_place
from tensorglot.io.target import open_target
from tensorglot.operations._progress import ProgressCounter, counted
from tensorglot.operations._sidecar import SetAside
from tensorglot.operations.save import save
from tensorglot.operations.writer import Writer
from tensorglot.wire.bson_vector import Row

__all__ = ["Survey", "WritePlan", "dump", "write_batches", "write_embeddings"]

_PIECE_ROWS = 1000


@dataclass(slots=True)
class Survey:
    """What a writer must know of all batches before it writes the first: each of them is added."""

    rows: int = 0
    row: Row | None = None
    ids: bool = True
    """Whether every row has an id."""
    _kinds: dict[str, set[int]] = field(default_factory=dict)
    _incomplete: set[str] = field(default_factory=set)

    def add(self, batch: Embeddings) -> None:
        row = batch.vectors.row
        if self.row not in (None, row):
            raise InputError(f"row {self.rows} is {row}, the rows before it are {self.row}", rule="bson.vector.row")
        self.row = row
        self.rows += len(batch)
        self.ids = self.ids and batch.ids is not None
        for name, column in batch.columns.items():
            self._kinds.setdefault(name, set()).update(column.present_kinds)
            if not column.present.all():
                self._incomplete.add(name)

    @property
    def kinds(self) -> dict[str, int | None]:
        """The BSON type of `_id` and of each field, None where it has several, or no values."""
        found = {name: kinds for name, kinds in self._kinds.items() if name != ID or self.ids}
        return {name: next(iter(kinds)) if len(kinds) == 1 else None for name, kinds in found.items()}

    @property
    def fields(self) -> list[str]:
        return [name for name in self._kinds if name != ID]

    @property
    def absent(self) -> list[str]:
        """The columns that no row has."""
        return [name for name, kinds in self._kinds.items() if self.rows and not kinds]

    def is_complete(self, name: str) -> bool:
        """Whether every row has a value in a column."""
        return name not in self._incomplete


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where embeddings go, and how."""

    place: FileOrCollection
    update: bool = False
    ranges: str | os.PathLike[str] | None = None
    dry_run: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_flags(update=self.update, dry_run=self.dry_run)

    def check(self, fields: Sequence[str], *, ids: bool, new_ranges: bool) -> None:
        """Refuses what the place cannot hold, before anything is written."""
        place = self.place
        holds_ranges = not is_collection(place) and not is_dump(place) and not as_path(place).endswith(".npy")
        if new_ranges and self.ranges is None and not holds_ranges:
            raise InputError(
                f"{escape(place_text(place))} cannot store the ranges of the dimensions, which queries need",
                rule="place.ranges",
                hint=Hint("pass ranges= with a file for them", "pass --ranges FILE"),
            )
        if self.update and not is_collection(place):
            hint = Hint("update= needs one", "--update needs one")
            raise InputError(f"{escape(place_text(place))} is not a collection", rule="place.update", hint=hint)
        if self.update and not ids:
            raise InputError("an update needs the _id of each row, and the source has none", rule="bson.ids")
        if not is_collection(place) and not is_parquet(place):
            spec = for_target(as_path(place), None)[0]
            if not spec.names and fields:
                raise InputError(
                    f"{spec.name} holds one matrix without fields: write .npz or .parquet", rule="place.fields"
                )


def write_embeddings(
    place: FileOrCollection,
    embeddings: Embeddings,
    *,
    update: bool = False,
    ranges: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Written:
    """Writes vectors, ids and fields to a file, which is replaced, or to a collection.

    In a collection documents are inserted, or with `update` those with the same ids are
    changed; `upload` says what running it again does. `ranges` is a file for the ranges
    of int8 vectors; a place that cannot hold new ones needs it. With `dry_run` nothing is
    written, and the target of a collection is compared. `storage_options` are for files at
    URLs.
    """
    place, ranges = locate_files(storage_options, place, ranges)
    plan = WritePlan(place, update, ranges, dry_run, progress)
    survey = Survey()
    survey.add(embeddings)
    plan.check(survey.fields, ids=survey.ids, new_ranges=embeddings.new_ranges)
    found = embeddings.with_ids() if is_collection(place) else embeddings
    return write_batches(plan, survey, iter([found]))


def write_batches(plan: WritePlan, survey: Survey, batches: Iterator[Embeddings]) -> Written:
    """Writes batches that were surveyed, to a place that was checked; for a collection each row has an id."""
    place = plan.place
    if plan.ranges is not None and not plan.dry_run:
        first = next(batches)
        batches = chain([first], batches)
        if first.ranges is None:
            raise InputError(
                "only int8 vectors that were quantized from numbers have ranges",
                rule="place.ranges",
                hint=Hint("leave out ranges=", "leave out --ranges"),
            )
        save(plan.ranges, dict(zip(("low", "high"), first.ranges, strict=True)))
    if is_collection(place):
        with collection_at(place) as collection:
            if plan.update:
                check_collection(collection)
            return upload(
                collection, batches, survey.rows, update=plan.update, dry_run=plan.dry_run, progress=plan.progress
            )
    if not plan.dry_run:
        _write_file(as_place(place), survey, counted(batches, len, ProgressCounter(plan.progress, survey.rows)))
    return Written(survey.rows, plan.dry_run, inserted=survey.rows)


def _write_file(file: Place, survey: Survey, batches: Iterator[Embeddings]) -> None:
    if is_parquet(file):
        write_parquet(file, survey.kinds, batches)
    elif is_dump(file):
        with open_target(file, around=SetAside(file)) as target:
            target.write(dump(batches))
    else:
        _write_container(file, survey, batches)


def dump(batches: Iterable[Embeddings]) -> Iterator[bytes]:
    """The documents of all rows."""
    for found in batches:
        for begin in range(0, len(found), _PIECE_ROWS):
            yield b"".join(documents(found.rows(begin, min(begin + _PIECE_ROWS, len(found)))))


def _write_container(file: Place, survey: Survey, batches: Iterator[Embeddings]) -> None:
    """Writes the matrix batch by batch, then the columns. A tensor must be complete before the next one begins, so
    the columns are spooled meanwhile."""
    spec = for_target(file, None)[0]
    first = next(batches)
    only = len(first) == survey.rows
    key = first.key if spec.names else UNNAMED
    ranges = dict(zip((key + LOW, key + HIGH), first.ranges or (), strict=False)) if spec.names else {}
    with ExitStack() as spools:
        # For a URL, or a single batch, files are in the directory for temporary files; else beside the target.
        directory = None if file.remote or only else os.path.dirname(os.path.realpath(file))  # noqa: PTH120
        columns = _spools(directory, key, survey, spec, spools) if spec.names else {}
        if only:
            for name, spool in columns.items():
                spool.add(first.columns[name])
            save(file, {key: first.matrix, **dict(spool.tensor() for spool in columns.values()), **ranges})
            next(batches, None)  # progress counts a batch when the next one is requested
            return
        with Writer(file) as out:
            matrix = first.matrix
            with out.stream(key, matrix.dtype, (survey.rows, matrix.shape[1])) as sink:
                for batch in chain([first], batches):
                    sink.write(batch.matrix)
                    for name, spool in columns.items():
                        spool.add(batch.columns[name])
            for spool in columns.values():
                out.add(*spool.tensor())
            for name, values in ranges.items():
                out.add(name, values)


def _spools(directory: str | None, key: str, survey: Survey, spec: Format, spools: ExitStack) -> dict[str, ColumnSpool]:
    """A file for each column."""
    nested = bool({"nested", "*"} & set(spec.layouts))
    made: dict[str, ColumnSpool] = {}
    names = {key}
    for name, kind in survey.kinds.items():
        form = form_of(name, kind, complete=survey.is_complete(name), nested=nested)
        stored = stored_name(name, form)
        if stored in names:
            raise InputError(
                f"two fields would both be stored as the tensor '{escape(stored)}'; leave one out", rule="place.fields"
            )
        names.add(stored)
        made[name] = ColumnSpool(name, kind, form, directory)
        spools.callback(made[name].close)
    return made
