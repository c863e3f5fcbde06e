"""File systems of their own for tests: small disks that fill up, images that lose power.

A mount point is not below pytest's temporary folder: a test run that is killed leaves its file systems mounted,
and a later run could not remove the folder of the killed one.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(*arguments: str) -> Iterator[Path]:
    """The folder where `mount` with these arguments mounts; skips the test if nothing can be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="tensorglot-mount-"))
    try:
        done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()
