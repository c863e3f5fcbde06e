"""A program under strace, which sees the system calls that change something, and ends it at one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from peers import missing

__all__ = ["CALLS", "Traced", "python"]

CALLS = "fallocate,pwrite64,copy_file_range,ftruncate,fchmod,fsync,linkat,rename,renameat,renameat2,unlinkat"
"""What changes something outside the process. Between two of them it does not matter when a kill comes."""
_ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(sys.path),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def python(code: str, *arguments: object) -> list[str]:
    """The command that runs a text."""
    return [sys.executable, "-c", code, *map(str, arguments)]


@dataclass(frozen=True)
class Traced:
    command: Sequence[str]
    calls: str = CALLS

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = ["strace", "-f", "-qq", f"--trace={self.calls}", *options, *self.command]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=_ENVIRONMENT)

    def system_calls(self) -> list[str]:
        """Runs the program to its end. Its calls, in order."""
        if shutil.which("strace") is None:
            missing("strace is not installed")
        done = self.run()
        if "Operation not permitted" in done.stderr:
            missing("strace may not trace here")
        assert done.returncode == 0, done.stderr
        return re.findall(r"^(?:\[pid +\d+\] )?(\w+)\(", done.stderr, re.MULTILINE)

    def kill(self, calls: Sequence[str], i: int) -> None:
        """Runs it again, and kills it at one of its calls."""
        when = calls[: i + 1].count(calls[i])
        killed = self.run(f"--inject={calls[i]}:signal=KILL:when={when}")
        assert killed.returncode == -9, (calls[i], when, killed)
