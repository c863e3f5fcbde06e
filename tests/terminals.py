"""Runs the command line as a process: in pipes, or on a pseudo-terminal of a given width."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import tensorglot

__all__ = ["COMMAND", "environment", "on_terminal", "piped", "wait_until_writing"]

UNSET = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONUNBUFFERED", "PYTHONIOENCODING")
COMMAND = [sys.executable, "-m", "tensorglot"]


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in UNSET}
    return {**kept, "PYTHONPATH": str(Path(tensorglot.__file__).parents[1]), "TERM": "xterm", **changes}


def piped(*args: str | os.PathLike[str], **changes: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *args], capture_output=True, env=environment(**changes), timeout=60)


def on_terminal(
    *args: str | os.PathLike[str], columns: int = 80, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """The exit code, and everything that was printed to the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**(env or {}))
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:
        pass  # Linux tells the end of a terminal by an error
    finally:
        os.close(ours)
    return process.wait(60), seen.decode().replace("\r\n", "\n")


def wait_until_writing(pid: int, folder: Path) -> None:
    """Waits until a process has opened a file or directory in the folder, named or not."""
    for _ in range(2000):
        if any(folder.glob(".tensorglot-*")):
            return
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith(f"{folder}/") and target.endswith(" (deleted)"):
                    return
        time.sleep(0.005)
    raise AssertionError("nothing is being written")
