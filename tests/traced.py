"""Runs a program or function under strace, which lists system calls that change files, or kills it at one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peers import missing

__all__ = ["CALLS", "Traced", "TracedCall", "python"]

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


class Tracing:
    """What is run under strace; `run` does so, with options for strace."""

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        raise NotImplementedError

    def system_calls(self) -> list[str]:
        """Runs to the end. The calls, in order."""
        if shutil.which("strace") is None:
            missing("strace is not installed")
        done = self.run()
        if "Operation not permitted" in done.stderr:
            missing("strace may not trace here")
        assert done.returncode == 0, done.stderr
        return re.findall(r"^(?:\[pid +\d+\] )?(\w+)\(", done.stderr, re.MULTILINE)

    def kill(self, calls: Sequence[str], i: int) -> None:
        """Runs again, and is killed at one of its calls."""
        when = calls[: i + 1].count(calls[i])
        killed = self.run(f"--inject={calls[i]}:signal=KILL:when={when}")
        assert killed.returncode == -9, (calls[i], when, killed)


@dataclass(frozen=True)
class Traced(Tracing):
    """A program."""

    command: Sequence[str]
    calls: str = CALLS

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = ["strace", "-f", "-qq", f"--trace={self.calls}", *options, *self.command]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=_ENVIRONMENT)


@dataclass(frozen=True)
class TracedCall(Tracing):
    """A function, in a fork of this process: no time goes into starting Python."""

    function: Callable[[], object]
    calls: str = CALLS

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        waiting, ready = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                os.close(ready)
                os.read(waiting, 1)
                self.function()
                code = 0
            os._exit(code)
        os.close(waiting)
        command = ["strace", "-f", "-qq", f"--trace={self.calls}", *options, "-p", str(child)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            while "TracerPid:\t0" in Path(f"/proc/{child}/status").read_text() and strace.poll() is None:
                time.sleep(0.001)
            os.write(ready, b"x")
            os.close(ready)
            said = strace.communicate(timeout=120)[1]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return subprocess.CompletedProcess(command, code, "", said)
