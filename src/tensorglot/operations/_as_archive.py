"""The other door: whatever a caller wants read becomes an open archive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from tensorglot.io.local import Readable
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.operations.collect import collect
from tensorglot.operations.open import Verify, open

__all__ = ["Given", "as_archive"]

Given: TypeAlias = "Readable | Archive | Mapping[str, Any]"


@contextmanager
def as_archive(
    source: Given, *, format: str | None = None, verify: Verify = "auto", limits: Limits | None = None
) -> Iterator[Archive]:
    """An archive that is given stays open; a file that is named is closed at the end."""
    if isinstance(source, Archive):
        yield source
    elif isinstance(source, Mapping):
        yield collect(source)
    else:
        with open(source, format=format, verify=verify, limits=limits) as archive:
            yield archive
