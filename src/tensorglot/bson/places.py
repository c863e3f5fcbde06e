"""Matrices of vectors wherever they are: a file of any format here, a `.npy` file, a MongoDB collection.

A place is text: a path, or `mongodb://host/database.collection`. What is read is in one
of three natural forms, float32, int8, or bool for bits, and those can go to any place.
Failures of a server come out as OSError, like those of a disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tensorglot.bson.assemble import MatrixOptions, OnMissing, assemble
from tensorglot.bson.coerce import coerce_vector
from tensorglot.bson.inspect import FieldReport, inspect
from tensorglot.bson.mongodb import Progress, Query, require, write_matrix
from tensorglot.bson.sources import batches
from tensorglot.containers.table import for_target, named
from tensorglot.errors import InputError, escape
from tensorglot.model.archive import Archive
from tensorglot.operations.open import open
from tensorglot.operations.save import save

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = [
    "Named",
    "collection_at",
    "holds_several",
    "inspect_place",
    "is_url",
    "natural",
    "read_place",
    "write_place",
]

_URLS = ("mongodb://", "mongodb+srv://")
_NAMELESS = "data"
"""What the one tensor of a file without names is called."""
_LOOKED_AT = 100
"""Documents in which a field is looked for that was not named."""


@dataclass(frozen=True, slots=True)
class Named:
    """A matrix and what it is called where it was."""

    name: str | None
    matrix: NDArray[Any]


def is_url(place: str) -> bool:
    return place.startswith(_URLS)


@contextmanager
def collection_at(url: str) -> Iterator[Collection[Any]]:
    """The collection that a URL names."""
    require()
    from pymongo import MongoClient
    from pymongo.errors import InvalidURI, PyMongoError
    from pymongo.uri_parser import parse_uri

    try:
        parts = parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise InputError(f"not a MongoDB URL: {error}", rule="place.url") from error
    if not parts["database"] or not parts["collection"]:
        raise InputError("the URL names no collection; write mongodb://HOST/DATABASE.COLLECTION", rule="place.url")
    try:
        with MongoClient[Any](url, serverSelectionTimeoutMS=5000) as client:
            yield client[parts["database"]][parts["collection"]]
    except PyMongoError as error:
        raise OSError(str(error)) from error


def read_place(
    place: str, name: str | None, *, on_missing: OnMissing = "error", progress: Progress | None = None
) -> Named:
    """The matrix of that name, or the only one there is."""
    if is_url(place):
        with collection_at(place) as collection:
            return _read_collection(collection, name, on_missing, progress)
    if place.endswith((".bson", ".bson.gz")):
        return Named(name, assemble(batches(place, name, None), MatrixOptions(on_missing=on_missing)).numbers())
    with open(place) as archive:
        chosen = name or _only_matrix(archive)
        bears_name = named(archive.format)[0].names
        return Named(chosen if bears_name else name, archive[chosen].numpy())


def _only_matrix(archive: Archive) -> str:
    matrices = [name for name, tensor in archive.items() if len(tensor.shape) == 2]
    if len(matrices) != 1:
        found = ", ".join(f"'{escape(name)}'" for name in matrices[:10]) or "none"
        raise InputError(f"name the matrix to read (matrices found: {found})", rule="place.name")
    return matrices[0]


def _read_collection(
    collection: Collection[Any], name: str | None, on_missing: OnMissing, progress: Progress | None
) -> Named:
    if name is None:
        fields = inspect(collection.find_raw_batches({}, limit=_LOOKED_AT))
        if len(fields) != 1:
            found = ", ".join(f"'{escape(field.name)}'" for field in fields[:10]) or "none"
            raise InputError(f"name the vector field to read (fields found: {found})", rule="place.name")
        name = fields[0].name
    query = Query(collection, name, progress=progress)
    options = MatrixOptions(on_missing=on_missing, expected_rows=query.expected_rows())
    return Named(name, assemble(query.batches(), options).numbers())


def natural(matrix: Any, dtype: str | None = None) -> NDArray[Any]:
    """Numbers as float32 or int8, bits as bool: what every place can hold. Bytes of bits need `dtype="packed_bit"`."""
    return coerce_vector(matrix, dtype, None, 2).unpacked()


def holds_several(place: str) -> bool:
    """Whether tensors of other shapes can go beside the vectors."""
    return not is_url(place) and not place.endswith((".npy", ".bson"))


def write_place(
    place: str,
    name: str,
    matrix: NDArray[Any],
    *,
    others: Mapping[str, NDArray[Any]],
    progress: Progress | None,
) -> None:
    """Writes a matrix in its natural form under a name; `others` go with it where a file holds several tensors."""
    if is_url(place):
        with collection_at(place) as collection:
            write_matrix(collection, matrix, name, progress=progress)
    else:
        bears_name = for_target(place, None)[0].names
        save(place, {name if bears_name else _NAMELESS: matrix, **others})


def inspect_place(place: str) -> list[FieldReport]:
    """The vector fields of a dump or of a collection."""
    if not is_url(place):
        return inspect(place)
    with collection_at(place) as collection:
        return inspect(collection.find_raw_batches({}))
