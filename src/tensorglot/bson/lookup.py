"""Errors for collections and fields that do not exist, with the nearest names. MongoDB itself returns no documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorglot.errors import TensorNotFound, did_you_mean, escape
from tensorglot.extras import library
from tensorglot.wire.bson import path_bytes

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["check_collection", "check_field", "no_field"]

_SAMPLE = 100
"""Documents whose field names are collected for suggestions."""


def check_collection(collection: Collection[Any]) -> None:
    """Refuses a collection that does not exist. A user who may not list collections gets no error here."""
    errors = library("pymongo.errors", "mongo")
    database = collection.database
    try:
        names = database.list_collection_names()
        if collection.name in names:
            return
        if names:
            hint = did_you_mean(collection.name, names)
        else:
            hint = did_you_mean(database.name, database.client.list_database_names())
    except errors.OperationFailure:
        return
    what = f"database '{escape(database.name)}' has no collection '{escape(collection.name)}'"
    raise TensorNotFound(f"{what if names else f'no database {database.name!r}'}{hint}", rule="mongodb.collection")


def check_field(collection: Collection[Any], key: str) -> None:
    """Refuses a collection that does not exist, and a field that no document of a collection has."""
    check_collection(collection)
    path_bytes(key)  # refuses an invalid path
    if collection.find_one({key: {"$exists": True}}, {"_id": 1}) is None:
        names = sorted({path for document in collection.find({}, limit=_SAMPLE) for path in _paths(document)})
        if names:
            raise no_field(key, names, collection.full_name)


def no_field(key: str, names: list[str], where: str) -> TensorNotFound:
    """The error for a field that no document has."""
    hint = did_you_mean(key, names) or f" (fields found: {', '.join(map(escape, names[:10]))})"
    return TensorNotFound(f"no document of {escape(where)} has a field '{escape(key)}'{hint}", rule="mongodb.field")


def _paths(document: dict[str, Any], before: str = "") -> list[str]:
    """The dotted paths of all fields."""
    found = []
    for name, value in document.items():
        found.append(before + name)
        if isinstance(value, dict):
            found += _paths(value, f"{before}{name}.")
    return found
