"""Places of vectors: files, and collections as `mongodb://host/database.collection` or pymongo's objects.

Connects to the collection of a URL, with errors of the server and the driver as one line
in an OSError, like those of a disk. No password of a URL gets into a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from tensorglot.arguments import as_path
from tensorglot.bson.inspect import FieldReport, inspect
from tensorglot.bson.lookup import check_collection
from tensorglot.bson.mongodb import require
from tensorglot.containers.table import TABLE
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.io.place import as_place
from tensorglot.io.source import source_for
from tensorglot.io.storage_options import OptionsLike
from tensorglot.io.urls import shown
from tensorglot.operations._places import locate, locate_each

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = [
    "FileOrCollection",
    "collection_at",
    "inspect_place",
    "is_collection",
    "is_dump",
    "is_parquet",
    "locate_files",
    "place_text",
]

FileOrCollection: TypeAlias = Union[str, os.PathLike[str], "Collection[Any]"]

_URLS = ("mongodb://", "mongodb+srv://")
_NOT_BSON = tuple(suffix for spec in TABLE if spec.name != "bson" for suffix in spec.suffixes)
_USER = re.compile("//[^/]*@")
_TIMEOUT_MS = 5000
_TAIL = re.compile(r" \(configured timeouts:.*|, Timeout: .*|, full error: .*", re.S)
"""The details that pymongo appends to a message, and that are removed: its settings, the state of every server."""


def is_collection(place: FileOrCollection) -> bool:
    """Whether a place is a collection, not a file."""
    return place.startswith(_URLS) if isinstance(place, str) else hasattr(place, "full_name")


def is_dump(place: FileOrCollection) -> bool:
    return _has_suffix(place, (".bson", ".bson.gz"))


def is_parquet(place: FileOrCollection) -> bool:
    return _has_suffix(place, (".parquet", ".pq"))


def _has_suffix(place: FileOrCollection, suffixes: tuple[str, ...]) -> bool:
    """Whether a place is a file whose name has one of the suffixes. The query of a URL is ignored."""
    return not is_collection(place) and as_place(place).name.endswith(suffixes)


def place_text(place: FileOrCollection) -> str:
    """A place for messages, without user and password."""
    if not is_collection(place):
        return shown(as_path(place))
    return _USER.sub("//", place) if isinstance(place, str) else str(getattr(place, "full_name", place))


def locate_files(given: OptionsLike, *places: FileOrCollection | None) -> list[Any]:
    """The places; files become Places with the options for their servers. Options need a file at a URL."""
    files = [None if place is None or is_collection(place) else place for place in places]
    located = locate_each(given, *files)
    return [place if file is None else file for place, file in zip(places, located, strict=True)]


@contextmanager
def collection_at(place: FileOrCollection) -> Iterator[Collection[Any]]:
    """Connects to the collection of a URL. A collection of pymongo is yielded as it is, and keeps pymongo's errors."""
    require()
    if not isinstance(place, str):
        yield place
        return
    from pymongo import MongoClient
    from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError
    from pymongo.uri_parser import parse_uri

    try:
        parts = parse_uri(place)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        user = _USER.search(place)
        # The driver's message may quote the user and the password.
        reason = str(error) if user is None else str(error).replace(user.group()[2:-1], "…")
        raise InputError(f"not a MongoDB URL: {reason}", rule="place.url") from error
    if not parts["database"] or not parts["collection"]:
        raise InputError("the URL has no collection; write mongodb://HOST/DATABASE.COLLECTION", rule="place.url")
    timeout = {} if "serverselectiontimeoutms" in place.lower() else {"serverSelectionTimeoutMS": _TIMEOUT_MS}
    try:
        with MongoClient[Any](place, **timeout) as client:
            yield client[parts["database"]][parts["collection"]]
    except PyMongoError as error:
        raise OSError(f"MongoDB: {_TAIL.sub('', str(error))}") from error


def inspect_place(place: FileOrCollection, storage_options: OptionsLike = None) -> list[FieldReport]:
    """Lists the fields of a dump or of a collection that have vectors, or arrays that could be vectors."""
    if is_parquet(place) or _has_suffix(place, _NOT_BSON):
        raise UnsupportedError(
            "the file has no BSON documents to inspect (inspected: .bson files and collections)",
            rule="place.kind",
            path=place_text(place),
        )
    if not is_collection(place):
        with closing(source_for(locate(place, storage_options))) as file:
            return inspect(file)
    with collection_at(place) as collection:
        check_collection(collection)
        return inspect(collection.find_raw_batches({}))
