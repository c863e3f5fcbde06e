"""Reads and writes matrices of vectors in files of any format and in MongoDB collections.

A place is a string: a path, or `mongodb://host/database.collection`. A matrix is read as
float32, int8, or bool for bits; each of these can be written to any place. Errors of the
server are raised as OSError, like those of a disk.
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

__all__ = ["Named", "collection_at", "holds_several", "inspect_place", "is_url", "natural", "read_place", "write_place"]

_URLS = ("mongodb://", "mongodb+srv://")
_NAMELESS = "data"
"""Name of the tensor in a file format without names."""
_LOOKED_AT = 100
"""Documents searched for a vector field if none was named."""


@dataclass(frozen=True, slots=True)
class Named:
    """A matrix and its name in the place it was read from."""

    name: str | None
    matrix: NDArray[Any]


def is_url(place: str) -> bool:
    return place.startswith(_URLS)


@contextmanager
def collection_at(url: str) -> Iterator[Collection[Any]]:
    """Connects to the collection of a URL."""
    require()
    from pymongo import MongoClient
    from pymongo.errors import InvalidURI, PyMongoError
    from pymongo.uri_parser import parse_uri

    try:
        parts = parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise InputError(f"not a MongoDB URL: {error}", rule="place.url") from error
    if not parts["database"] or not parts["collection"]:
        raise InputError("the URL has no collection; write mongodb://HOST/DATABASE.COLLECTION", rule="place.url")
    try:
        with MongoClient[Any](url, serverSelectionTimeoutMS=5000) as client:
            yield client[parts["database"]][parts["collection"]]
    except PyMongoError as error:
        raise OSError(str(error)) from error


def read_place(
    place: str, name: str | None, *, on_missing: OnMissing = "error", progress: Progress | None = None
) -> Named:
    """Reads the matrix of a name, or the only one."""
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
        raise InputError(f"pass the name of the matrix to read (matrices found: {found})", rule="place.name")
    return matrices[0]


def _read_collection(
    collection: Collection[Any], name: str | None, on_missing: OnMissing, progress: Progress | None
) -> Named:
    if name is None:
        fields = inspect(collection.find_raw_batches({}, limit=_LOOKED_AT))
        if len(fields) != 1:
            found = ", ".join(f"'{escape(field.name)}'" for field in fields[:10]) or "none"
            raise InputError(f"pass the name of the vector field to read (fields found: {found})", rule="place.name")
        name = fields[0].name
    query = Query(collection, name, progress=progress)
    options = MatrixOptions(on_missing=on_missing, expected_rows=query.expected_rows())
    return Named(name, assemble(query.batches(), options).numbers())


def natural(matrix: Any, dtype: str | None = None) -> NDArray[Any]:
    """Converts to float32, int8 or bool, which every place supports. Packed bits need `dtype="packed_bit"`."""
    return coerce_vector(matrix, dtype, None, 2).numbers()


def holds_several(place: str) -> bool:
    """Whether tensors of other shapes can be stored beside the vectors."""
    return not is_url(place) and not place.endswith((".npy", ".bson"))


def write_place(
    place: str, name: str, matrix: NDArray[Any], *, others: Mapping[str, NDArray[Any]], progress: Progress | None
) -> None:
    """Writes a matrix under a name, and `others` beside it if the place holds several tensors."""
    if is_url(place):
        with collection_at(place) as collection:
            write_matrix(collection, matrix, name, progress=progress)
    else:
        bears_name = for_target(place, None)[0].names
        save(place, {name if bears_name else _NAMELESS: matrix, **others})


def inspect_place(place: str) -> list[FieldReport]:
    """Lists the vector fields of a dump or of a collection."""
    if not is_url(place):
        return inspect(place)
    with collection_at(place) as collection:
        return inspect(collection.find_raw_batches({}))
