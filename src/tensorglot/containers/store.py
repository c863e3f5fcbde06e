"""The container for commits of a store, which are archives but not files.

The store itself opens `store://path#ref`. This module only lets every verb ask what such
an archive can hold.
"""

from __future__ import annotations

from tensorglot.containers.table import Container, ReadOptions
from tensorglot.errors import InputError
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import Index
from tensorglot.model.payload import Source

__all__ = ["CONTAINER", "MARKER"]

MARKER = "tensorglot-store.json"
"""The file that makes a directory a store."""


def read(source: Source, options: ReadOptions) -> Index:
    raise InputError("a store is not a file: open store://path#ref", rule="store.url")


CONTAINER = Container({row.name: row.name for row in TABLE}, read)
