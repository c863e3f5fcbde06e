"""A folder with the files of one checkpoint: a directory, or a URL prefix.

HTTP cannot list files: there, their names must be known.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tensorglot.errors import FormatError, escape
from tensorglot.io.place import Place
from tensorglot.io.urls import BUCKETS, last_name
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from tensorglot.io.objects import Address

__all__ = ["Folder", "as_folder", "file_named_by"]


class Folder(NamedTuple):
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
        """The place of a file in the folder."""
        return self.place.beside(name) if self.place.remote else Place.at(str(_as_path(self.place) / name))

    def names(self) -> list[str] | None:
        """The names of all files, sorted; None if they cannot be listed."""
        place = self.place
        if not place.remote:
            with os.scandir(place) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        if place.text.partition("://")[0] not in BUCKETS:
            return None
        address = _address_of(place)
        return sorted(last_name(found["path"]) for found in address.list(address.key))

    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""
        place = self.file(name)
        if not place.remote:
            _as_path(place).unlink(missing_ok=True)
            return
        address = _address_of(place)
        with contextlib.suppress(FileNotFoundError):
            address.call("delete", address.key)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name at an HTTP URL, where files cannot be listed."""
        try:
            _address_of(self.file(name)).locate()
        except FileNotFoundError:
            return False
        return True


def _address_of(place: Place) -> Address:
    from tensorglot.io.objects import address_of  # imports ssl, http and email, which directories need not wait for

    return address_of(place.text, place.options)


def _as_path(place: Place) -> Path:
    from pathlib import Path  # only for folders: see `Place.beside`

    return Path(place)


def file_named_by(file: Place, name: str) -> Place:
    """The place of the file `name`, to which `file` refers, in the folder of `file`.

    If it is a symbolic link, it must lead into that folder, or into the folder where `file`
    really is: in a Hugging Face cache, the index and its shards are links into one folder of blobs.
    """
    found = file.beside(name)
    if file.remote:
        return found
    if os.path.basename(name) == name and not os.path.islink(found):  # noqa: PTH114, PTH119, of a thousand shards
        return found
    folder, real_file = os.path.dirname(file.absolute), os.path.realpath(file)  # noqa: PTH120
    allowed = {os.path.realpath(folder), os.path.dirname(real_file)}  # noqa: PTH120
    real = os.path.join(os.path.realpath(found), "")  # noqa: PTH118
    if not any(real.startswith(os.path.join(place, "")) for place in allowed):  # noqa: PTH118
        raise FormatError(
            f"the file '{escape(name)}' is a symbolic link that leads out of its directory: replace it by the file",
            rule="source.link",
            path=found.text,
        )
    return found


def as_folder(place: Place) -> Folder | None:
    """The folder at a place; None if it is a file. The URL of a folder ends with a slash, or is a whole repository."""
    if not place.remote:
        return Folder(place) if os.path.isdir(place) else None  # noqa: PTH112
    scheme, _, rest = place.text.partition("://")
    whole = 3 if rest.partition("/")[0] in ("datasets", "spaces") else 2
    if scheme == "hf" and len(rest.rstrip("/").split("/")) == whole:
        return Folder.at(place)
    return Folder(place) if place.text.endswith("/") else None
