"""`Place`: where a file or an object is. A caller's path or URL is parsed once, into this value.

Code that has a `Place` asks it whether it is remote and how to reach the server, and does
not parse the text again. Its repr shows no credentials. Pickled, it means the same file in
another process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tensorglot.arguments import as_path
from tensorglot.io.storage_options import OptionsLike, StorageOptions, as_storage_options
from tensorglot.io.urls import beside, file_path, has_credentials, is_url, last_name, shown

__all__ = ["Place", "absolute", "as_place"]

_STORE = "store://"


@dataclass(slots=True, repr=False, unsafe_hash=True)
class Place:
    """A path, the URL of an object, or the URL of a commit in a store. It can be used as a path (`os.PathLike`).

    Never modified. It is not `frozen`, because setting each field by a call would take 3 % of the instructions of
    opening a small file.
    """

    text: str
    """The path or URL as the caller wrote it, for messages and for opening it; for `file://`, the path."""
    absolute: str
    """The same, valid in any working directory."""
    remote: bool = False
    options: StorageOptions | None = None
    """The storage options for the server of a URL; None for a path."""

    @classmethod
    def at(cls, path: str) -> Place:
        """The place of a path, whatever characters it has."""
        return cls(path, absolute(path))

    @property
    def is_commit(self) -> bool:
        """Whether it is a commit in a store, which is not a file."""
        return self.remote and self.text.startswith(_STORE)

    @property
    def shown(self) -> str:
        """The text without credentials, for messages."""
        return shown(self.text) if self.remote else self.text

    @property
    def name(self) -> str:
        """The file name."""
        return last_name(self.text) if self.remote else os.path.basename(self.text)  # noqa: PTH119, every open asks

    @property
    def secret(self) -> bool:
        """Whether the URL has credentials."""
        return self.remote and has_credentials(self.text)

    def beside(self, name: str) -> Place:
        """Another file in the same folder; for a URL that ends with a slash, a file inside it."""
        if self.remote:
            return self.at_url(beside(self.text, name))
        return Place.at(os.path.join(os.path.dirname(self.text), name))  # noqa: PTH118, PTH120

    def at_url(self, url: str) -> Place:
        """Another object of the same server."""
        return Place(url, url, True, self.options)

    def __fspath__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Place({self.shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, (self.absolute, self.absolute, self.remote, self.options)


def absolute(path: str) -> str:
    """The path, valid in any working directory. Links in it are not resolved."""
    if path.startswith(os.sep):
        return path
    try:
        folder = os.getcwd()  # noqa: PTH109
    except OSError as error:  # the working directory was removed
        error.filename = path
        raise
    return os.path.join(folder, path)  # noqa: PTH118


def as_place(place: object, options: OptionsLike = None) -> Place:
    """Checks and parses what a caller passes as a path or URL. `options` apply to URLs only."""
    if isinstance(place, Place):
        return place
    text = as_path(place)
    if "://" not in text:
        return Place.at(text)
    if text.startswith(_STORE) or is_url(text):
        return Place(text, text, True, as_storage_options(options))
    return Place.at(file_path(text))
