"""Versions of a file in a store, restic, borg, git-lfs and dvc: size, and time of a process, of what is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def folder_nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def compare(files: list[Path], folder: Path) -> list[dict[str, Any]]:
    """Size after each version, and the quickest commit, of each tool that is installed."""
    work = folder / "work"
    work.mkdir()
    target = work / "model.safetensors"
    environment = {**os.environ, "RESTIC_PASSWORD": "x", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}

    def call(*command: str) -> None:
        subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True)

    def ours() -> tuple[Path, Callable[[int], object]]:
        call(sys.executable, "-m", "tensorglot", "store", "init", str(folder / "ours"))
        command = (sys.executable, "-m", "tensorglot", "store", "commit", str(folder / "ours"), str(target))
        return folder / "ours", lambda i: call(*command)

    def restic() -> tuple[Path, Callable[[int], object]]:
        call("restic", "init", "-r", str(folder / "restic"))
        return folder / "restic", lambda i: call("restic", "-r", str(folder / "restic"), "backup", str(target))

    def borg() -> tuple[Path, Callable[[int], object]]:
        call("borg", "init", "-e", "none", str(folder / "borg"))
        return folder / "borg", lambda i: call("borg", "create", "-C", "zstd,1", f"{folder}/borg::{i}", str(target))

    def git_lfs() -> tuple[Path, Callable[[int], object]]:
        call("git", "init", "-q")
        call("git", "lfs", "install", "--local")
        call("git", "lfs", "track", "*.safetensors")

        def commit(i: int) -> None:
            call("git", "add", "-A")
            call("git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", str(i))

        return work / ".git", commit

    def dvc() -> tuple[Path, Callable[[int], object]]:
        call("dvc", "init", "--no-scm", "-q")
        return work / ".dvc", lambda i: call("dvc", "add", "-q", target.name)

    found = []
    for name, program, begin in (
        ("tensorglot", "true", ours),
        ("restic", "restic", restic),
        ("borg, zstd 1", "borg", borg),
        ("git-lfs", "git-lfs", git_lfs),
        ("dvc", "dvc", dvc),
    ):
        if shutil.which(program) is None:
            continue
        place, commit = begin()
        sizes, seconds = [], []
        for i, file in enumerate(files):
            target.unlink(missing_ok=True)
            shutil.copyfile(file, target)
            os.sync()
            start = time.perf_counter()
            commit(i)
            seconds.append(time.perf_counter() - start)
            sizes.append(folder_nbytes(place))
        found.append({"tool": name, "nbytes": files[0].stat().st_size, "sizes": sizes, "seconds": min(seconds)})
    return found
