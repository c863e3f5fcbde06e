"""A folder that holds the files of one checkpoint: a directory, or the beginning of URLs.

HTTP has no listing: there, the names of files must be known.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tensorglot.io.objects import address_of
from tensorglot.io.place import Place
from tensorglot.io.urls import BUCKETS, last_name

__all__ = ["Folder", "as_folder"]


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, or a URL that ends with a slash."""

    place: Place

    @classmethod
    def of(cls, file: Place) -> Folder:
        """The folder that a file is in."""
        return cls(file.beside("") if file.remote else Place.at(os.path.dirname(file) or os.curdir))  # noqa: PTH120

    @classmethod
    def at(cls, place: Place) -> Folder:
        """The folder at a place, with the slash that the URL of a folder has."""
        return cls(place.at_url(f"{place.text.rstrip('/')}/") if place.remote else place)

    def file(self, name: str) -> Place:
        """The place of a file in it."""
        return self.place.beside(name) if self.place.remote else Place.at(str(Path(self.place) / name))

    def names(self) -> list[str] | None:
        """The names of all files, sorted; None if they cannot be listed."""
        place = self.place
        if not place.remote:
            return sorted(entry.name for entry in Path(place).iterdir() if entry.is_file())
        if place.text.partition("://")[0] not in BUCKETS:
            return None
        address = address_of(place.text, place.options)
        return sorted(last_name(found["path"]) for found in address.list(address.key))

    def remove(self, name: str) -> None:
        """Removes a file. One that is absent is no error."""
        place = self.file(name)
        if not place.remote:
            Path(place).unlink(missing_ok=True)
            return
        address = address_of(place.text, place.options)
        with contextlib.suppress(FileNotFoundError):
            address.call("delete", address.key)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        place = self.file(name)
        if not place.remote:
            return os.path.exists(place)  # noqa: PTH110
        try:
            address_of(place.text, place.options).located().size()
        except FileNotFoundError:
            return False
        return True


def as_folder(place: Place) -> Folder | None:
    """The folder at a place; None if a file is there. A URL of a folder ends with a slash, or is a whole repo."""
    if not place.remote:
        return Folder(place) if os.path.isdir(place) else None  # noqa: PTH112
    scheme, _, rest = place.text.partition("://")
    whole = 3 if rest.partition("/")[0] in ("datasets", "spaces") else 2
    if scheme == "hf" and len(rest.rstrip("/").split("/")) == whole:
        return Folder.at(place)
    return Folder(place) if place.text.endswith("/") else None
