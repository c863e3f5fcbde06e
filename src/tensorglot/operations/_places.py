"""Arguments that say where something is, and the `storage_options` for those of them that are URLs."""

from __future__ import annotations

import os

from tensorglot.arguments import as_path
from tensorglot.errors import InputError
from tensorglot.io.storage_options import Given, StorageOptions, as_storage_options

__all__ = ["options_for", "options_for_each"]


def _at_url(place: object) -> bool:
    if isinstance(place, (list, tuple)):
        return any(map(_at_url, place))
    return isinstance(place, (str, os.PathLike)) and "://" in as_path(place)


def options_for(place: object, given: Given) -> StorageOptions | None:
    """The options for a source or target; None if it is not at a URL, which must have none."""
    if given is None and not _at_url(place):
        return None
    return options_for_each(given, place)[0]


def options_for_each(given: Given, *places: object) -> list[StorageOptions | None]:
    """The options for each of several places; None for what is not at a URL. Options that nothing uses are an error."""
    if given is not None and not any(map(_at_url, places)):
        raise InputError("storage_options need a URL", rule="source.url")
    kept = as_storage_options(given)
    return [kept if _at_url(place) else None for place in places]
