"""Packs that a collector is about to remove.

A pack that no ref reaches is condemned first: it gets an empty object of its name in
`condemned/`. Writers that start later do not rely on its blocks. It is removed by a later
step, when nobody can rely on it any more. So a writer never waits for a collector.
"""

from __future__ import annotations

from tensorglot.store.backend import Backend

__all__ = ["condemn", "condemned", "pardon"]

_FOLDER = "condemned"


def condemned(backend: Backend) -> dict[str, float]:
    """The packs that are condemned, and since when."""
    return {entry.name: entry.time for entry in backend.list(_FOLDER)}


def condemn(backend: Backend, pack: str) -> None:
    backend.swap(f"{_FOLDER}/{pack}", None, b"")


def pardon(backend: Backend, pack: str) -> None:
    backend.delete(f"{_FOLDER}/{pack}")
