"""Where a store is: a directory or a URL, and the object that says that it is one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tensorglot.arguments import as_path
from tensorglot.containers.store import MARKER
from tensorglot.errors import FormatError, Hint, InputError, UnsupportedError
from tensorglot.io.place import absolute
from tensorglot.io.sink import is_temporary
from tensorglot.io.storage_options import as_storage_options
from tensorglot.io.urls import file_path, is_url
from tensorglot.operations._places import NEED_A_URL
from tensorglot.store.backend import Backend, Directory
from tensorglot.store.remote import Bucket

__all__ = ["create_store", "open_store", "split_url"]

_CONTENT = json.dumps({"format": "tensorglot-store", "version": 1}).encode()
_SCHEME = "store://"


def _backend(url: str | os.PathLike[str], options: Mapping[str, Any] | None) -> Backend:
    path = as_path(url).removeprefix(_SCHEME)
    if is_url(path):
        return Bucket(path, options)
    if options is not None and as_storage_options(options) and "://" not in path:
        raise InputError("not a URL", rule="store.url", hint=NEED_A_URL)
    return Directory(absolute(file_path(path)))


def create_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None) -> None:
    """Makes an empty store. A directory that has other files in it is refused."""
    backend = _backend(url, options)
    if isinstance(backend, Directory):
        os.makedirs(backend.url, exist_ok=True)  # noqa: PTH103
        others = {name for name in os.listdir(backend.url) if name != "lock" and not is_temporary(name)}  # noqa: PTH208
        if others and MARKER not in others:
            raise InputError("the directory is not empty", rule="store.create", path=backend.url)
    elif backend.get(MARKER) is None and backend.list(""):
        raise InputError("the folder is not empty", rule="store.create", path=backend.url)
    if backend.get(MARKER) is not None or not backend.swap(MARKER, None, _CONTENT):
        hint = Hint("open it with Store(path)", "")
        raise InputError("there is a store already", rule="store.create", path=backend.url, hint=hint)


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any] | None) -> Backend:
    backend = _backend(url, options)
    content = None if isinstance(backend, Directory) and os.path.isfile(backend.url) else backend.get(MARKER)  # noqa: PTH113
    if content is None:
        if isinstance(backend, Directory) and not os.path.exists(backend.url):  # noqa: PTH110
            raise FileNotFoundError(2, "no such store", backend.url)
        raise InputError(
            "not a store",
            rule="store.open",
            path=backend.url,
            hint=Hint("make one with Store.create(path)", "make one with `tensorglot store init`"),
        )
    if content != _CONTENT:
        try:
            version = json.loads(content).get("version")
        except (ValueError, AttributeError):
            raise FormatError(f"{MARKER} is damaged", rule="store.open", path=backend.url) from None
        raise UnsupportedError(
            f"version {version} of the store is not supported (supported: 1)", rule="store.version", path=backend.url
        )
    return backend


def split_url(url: str) -> tuple[str, str | None]:
    """Path or URL of the store, and the ref, of `store://path#ref` and `store://s3://bucket/folder#ref`."""
    where, mark, ref = url.removeprefix(_SCHEME).rpartition("#")
    return (where, ref) if mark else (ref, None)
