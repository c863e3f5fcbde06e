"""Descriptors that a test has left open, found by their files: servers and other tests may have open ones, too."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["open_below"]


def open_below(folder: Path) -> list[str]:
    """The target of each descriptor of this process that is this folder or below it, removed files included."""
    gc.collect()
    top = os.path.realpath(folder)
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            target = str(descriptor.readlink())
            if target == top or target.startswith(top + os.sep):
                found.append(target)
    return sorted(found)
