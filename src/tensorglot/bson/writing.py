"""`write_embeddings`: vectors with ids, fields and ranges, to a collection, a dump, Parquet or a container.

`reading` says how each place stores them. The ranges of int8 vectors are kept in any
case: beside the vectors where the place can hold them, else in a file that the caller
names, before the first vector is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorglot.arguments import as_path
from tensorglot.bson.columns import BSON_SUFFIX, ValueColumn
from tensorglot.bson.embeddings import ID, Embeddings
from tensorglot.bson.lookup import check_collection
from tensorglot.bson.mongodb import Progress
from tensorglot.bson.parquet import write_parquet
from tensorglot.bson.places import Place, collection_at, is_collection, is_dump, is_parquet, place_text
from tensorglot.bson.reading import HIGH, LOW
from tensorglot.bson.upload import Written, documents, upload
from tensorglot.containers.table import UNNAMED, Format, for_target
from tensorglot.dynd import array
from tensorglot.errors import InputError, escape
from tensorglot.io.sink import AtomicFile
from tensorglot.operations.save import save
from tensorglot.wire.bson_value import DATE, OBJECT_ID, STRING

__all__ = ["write_embeddings"]

_PIECE_ROWS = 1000


def write_embeddings(
    place: Place,
    embeddings: Embeddings,
    *,
    update: bool = False,
    ranges: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Writes vectors, ids and fields to a file, which is replaced, or to a collection.

    In a collection documents are inserted, or with `update` those with the same ids are
    changed; `upload` says what running it again does. `ranges` is a file for the ranges
    of int8 vectors; a place that cannot hold new ones needs it. With `dry_run` nothing is
    written, and the target of a collection is compared.
    """
    holds_ranges = not is_collection(place) and not is_dump(place) and not as_path(place).endswith(".npy")
    if embeddings.new_ranges and ranges is None and not holds_ranges:
        raise InputError(
            f"queries need the ranges, and {escape(place_text(place))} cannot hold them: pass a file for them",
            rule="place.ranges",
        )
    if update and not is_collection(place):
        raise InputError("update= applies only to collections", rule="place.update")
    if not is_collection(place):
        _check_file(as_path(place), embeddings)
    if ranges is not None and not dry_run:
        if embeddings.ranges is None:
            raise InputError("the vectors have no ranges: only int8 that was quantized here has", rule="place.ranges")
        save(ranges, dict(zip(("low", "high"), embeddings.ranges, strict=True)))
    if is_collection(place):
        with collection_at(place) as collection:
            if update:
                check_collection(collection)
            return upload(collection, embeddings, update=update, dry_run=dry_run, progress=progress)
    if not dry_run:
        _write_file(as_path(place), embeddings)
    return Written(len(embeddings), dry_run, inserted=len(embeddings))


def _check_file(path: str, found: Embeddings) -> None:
    """Refuses what a file cannot hold, before anything is written."""
    if is_parquet(path):
        return
    spec = for_target(path, None)[0]
    if not spec.names and found.fields:
        raise InputError(f"{spec.name} holds one matrix without fields: write .npz or .parquet", rule="place.fields")


def _write_file(path: str, found: Embeddings) -> None:
    if is_parquet(path):
        write_parquet(path, found)
    elif is_dump(path):
        with AtomicFile(path) as target:
            target.write(_dump(found))
    else:
        spec = for_target(path, None)[0]
        save(path, _tensors(found, spec) if spec.names else {UNNAMED: found.matrix})


def _dump(found: Embeddings) -> Iterator[bytes]:
    for begin in range(0, len(found), _PIECE_ROWS):
        yield b"".join(documents(found, begin, min(begin + _PIECE_ROWS, len(found))))


def _tensors(found: Embeddings, spec: Format) -> dict[str, Any]:
    """The matrix, and what is beside it, as tensors."""
    columns = {**({} if found.ids is None else {ID: found.ids}), **found.fields}
    tensors: dict[str, Any] = {found.key: found.matrix}
    for name, column in columns.items():
        value = _tensor(column, name, nested=bool({"nested", "*"} & set(spec.layouts)))
        stored = name + BSON_SUFFIX if isinstance(value, bytes) else name
        if stored in tensors:
            raise InputError(f"two fields would be the tensor '{escape(stored)}'", rule="place.fields")
        tensors[stored] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    if found.ranges is not None:
        tensors[found.key + LOW], tensors[found.key + HIGH] = found.ranges
    return tensors


def _tensor(column: ValueColumn, name: str, *, nested: bool) -> Any:
    """A column as an array; as texts or dates where the format holds nested values; else as bytes of documents."""
    kind, plain = column.kind, column.plain()
    if column.there.all() and len(column):
        if kind == STRING and nested:
            return array(column.tolist(), f"{len(column)} * string")
        if kind == DATE and nested and plain is not None:
            return array(plain, f"{len(column)} * datetime['ms', tz='UTC']")
        if kind == OBJECT_ID and name == ID and plain is not None:
            return plain.view(np.uint8).reshape(-1, 12)
        if plain is not None and kind not in (DATE, OBJECT_ID):
            return plain
    return column.dump(name)
