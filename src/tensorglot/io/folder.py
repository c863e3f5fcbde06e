"""A folder that holds the files of one checkpoint: a directory, or the beginning of URLs.

HTTP has no listing: there, the names of files must be known.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tensorglot.io.objects import address_of
from tensorglot.io.storage_options import StorageOptions
from tensorglot.io.urls import BUCKETS, beside, is_url, last_name, shown

__all__ = ["Folder", "as_folder", "name_of"]


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, or a URL that ends with a slash."""

    place: str
    options: StorageOptions | None = None

    @classmethod
    def of(cls, file: str, options: StorageOptions | None) -> Folder:
        """The folder that a file is in."""
        return cls(beside(file, "") if is_url(file) else os.path.dirname(file) or os.curdir, options)  # noqa: PTH120

    @property
    def shown(self) -> str:
        """As it may be printed."""
        return shown(self.place) if self.remote else self.place

    @property
    def remote(self) -> bool:
        return is_url(self.place)

    def file(self, name: str) -> str:
        """The path or URL of a file in it."""
        return beside(self.place, name) if self.remote else str(Path(self.place) / name)

    def names(self) -> list[str] | None:
        """The names of all files, sorted; None if they cannot be listed."""
        if not self.remote:
            return sorted(entry.name for entry in Path(self.place).iterdir() if entry.is_file())
        if self.place.partition("://")[0] not in BUCKETS:
            return None
        address = address_of(self.place, self.options)
        return sorted(last_name(found["path"]) for found in address.list(address.key))

    def remove(self, name: str) -> None:
        """Removes a file. One that is absent is no error."""
        if not self.remote:
            Path(self.place, name).unlink(missing_ok=True)
            return
        address = address_of(self.file(name), self.options)
        with contextlib.suppress(FileNotFoundError):
            address.call("delete", address.key)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        if not self.remote:
            return os.path.exists(self.file(name))  # noqa: PTH110
        try:
            address, answer = address_of(self.file(name), self.options).locate()
            if answer is None:
                address.size()
        except FileNotFoundError:
            return False
        return True


def as_folder(place: str, options: StorageOptions | None) -> Folder | None:
    """The folder at a path or URL; None if a file is there. A URL of a folder ends with a slash, or is a whole repo."""
    if not is_url(place):
        return Folder(place) if os.path.isdir(place) else None  # noqa: PTH112
    scheme, _, rest = place.partition("://")
    whole = 3 if rest.partition("/")[0] in ("datasets", "spaces") else 2
    if scheme == "hf" and len(rest.rstrip("/").split("/")) == whole:
        return Folder(f"{place.rstrip('/')}/", options)
    return Folder(place, options) if place.endswith("/") else None


def name_of(file: str) -> str:
    """The file name of a path or URL."""
    return last_name(file) if is_url(file) else os.path.basename(file)  # noqa: PTH119, every open asks
