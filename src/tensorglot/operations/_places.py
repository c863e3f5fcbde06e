"""Converts paths and URLs among arguments to `Place`s; URLs with the caller's `storage_options`."""

from __future__ import annotations

import os
from typing import Any, TypeVar, cast

from tensorglot.arguments import as_path
from tensorglot.errors import Hint, InputError
from tensorglot.io.place import as_place
from tensorglot.io.storage_options import OptionsLike

__all__ = ["INDEX_SUFFIX", "NEED_A_URL", "locate", "locate_each"]

INDEX_SUFFIX = ".index.json"
"""The name of an index of shards ends with this."""

T = TypeVar("T")
NEED_A_URL = Hint("storage_options need a URL", "--storage-option needs a URL")


def locate(argument: T, options: OptionsLike) -> T:
    """A source or target; if it is a path or URL, or a list of them, each as a Place. Options need a URL."""
    if options is not None and not _has_url(argument):
        raise InputError("not a URL", rule="source.url", hint=NEED_A_URL)
    return cast("T", _located(argument, options))


def locate_each(options: OptionsLike, *arguments: Any) -> list[Any]:
    """`locate` for several arguments; if there are options, at least one argument must be a URL."""
    return locate(list(arguments), options)


def _located(argument: object, options: OptionsLike) -> object:
    if isinstance(argument, (str, os.PathLike)):
        return as_place(argument, options)
    if isinstance(argument, (list, tuple)):
        return [_located(each, options) for each in argument]
    return argument


def _has_url(argument: object) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(map(_has_url, argument))
    return isinstance(argument, (str, os.PathLike)) and "://" in as_path(argument)
