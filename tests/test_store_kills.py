"""kill -9, errors and full disks in commit, collect, repack, push and unbundle.

Afterwards old commits are intact, the store checks clean, nothing acknowledged is lost, and
collect leaves no temporary file. Kills strike the calls of `os` in a forked process, and
system calls through strace. TENSORGLOT_STORE_KILLS=all strikes every one of both.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from descriptors import open_below
from faults import FaultyOs
from figures import seen
from mounts import mounted
from store_actions import ACTIONS, KillingOs, assert_intact, prepare
from stores import stray_files
from tensorglot.io import sink
from tensorglot.store import Store, backend
from traced import CALLS, Traced

ALL = os.environ.get("TENSORGLOT_STORE_KILLS") == "all"
EVERY = {"commit": 4, "collect": 4, "repack": 13, "push": 5, "unbundle": 5, "tag": 5}
"""Of the operations of an action, which are struck."""
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(sys.path),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
PROGRAM = [sys.executable, str(Path(__file__).with_name("store_actions.py"))]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills") / "prepared"
    prepare(folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_kill_at_any_operation(action: str, prepared: Path) -> None:
    command = [*PROGRAM, str(prepared.parent), action, "1" if ALL else str(EVERY[action])]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    seen("kills", len(outcomes) - 1)
    assert len(outcomes) > 3
    assert outcomes == sorted(outcomes), "what has taken place is not undone"
    assert outcomes[0] == "0"
    assert outcomes[-1] == "1"


def test_the_stand_in_covers_what_changes_files() -> None:
    text = "".join(Path(str(module.__file__)).read_text() for module in (sink, backend))
    used = set(re.findall(r"\bos\.([a-z_]+)\(", text))
    reading = {
        "close", "copy_file_range", "fchown", "fspath", "fstat", "lstat", "pread", "scandir", "stat", "urandom",
    }  # fmt: skip
    assert used - reading <= KillingOs.CHANGING


@pytest.mark.parametrize("action", ["commit", "collect", "push", "unbundle"])
def test_a_kill_at_any_system_call(action: str, prepared: Path, tmp_path: Path) -> None:
    def program(folder: Path) -> Traced:
        return Traced([*PROGRAM, str(folder), action], f"{CALLS},mkdir,unlink,flock")

    shutil.copytree(prepared, tmp_path / "whole")
    calls = program(tmp_path / "whole").system_calls()
    assert len(calls) > 15
    assert {"flock", "fsync", "unlink"} <= set(calls)
    outcomes = []
    for i in range(len(calls)) if ALL else (len(calls) // 2, len(calls) - 2):
        work = tmp_path / f"killed-{i}"
        shutil.copytree(prepared, work)
        program(work).kill(calls, i)
        outcomes.append(assert_intact(work, action, done=False))
        shutil.rmtree(work)
    assert outcomes == sorted(outcomes)
    seen("kills", len(outcomes))


# Errors and interrupts


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "a fault"), OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("action", ["commit", "push", "unbundle", "collect"])
def test_an_error_at_any_operation(
    action: str, fault: BaseException, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left behind, not even for a collector. A fault in giving up what is done is no failure."""
    struck, strike = 0, 1
    while True:
        work = tmp_path / f"{strike}"
        shutil.copytree(prepared, work)
        faulty = FaultyOs(strike, fault)
        raised = False
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            patched.setattr(backend, "os", faulty)
            try:
                ACTIONS[action](work)
            except type(fault) as error:
                raised = error is fault
                assert raised
        if not faulty.struck:
            break
        struck += 1
        at = faulty.calls[strike - 1]
        if action != "collect" and at not in ("unlink", "close"):
            left = [name for name in stray_files(work / "here") if "condemned" not in name] + stray_files(
                work / "there"
            )
            assert left == [], (strike, at)
        assert_intact(work, action, done=not raised)
        shutil.rmtree(work)
        strike += 1 if ALL else 7
    assert struck > 3
    fault.__traceback__ = fault.__context__ = None  # which hold what was open
    assert open_below(tmp_path) == []


# Full disks


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("action", ["commit", "repack", "push", "unbundle"])
@pytest.mark.parametrize("nbytes", [0, 50, 1000, 5000])
def test_files_that_cannot_grow(action: str, nbytes: int, folder: Path) -> None:
    with largest_file(nbytes), pytest.raises(OSError, match="File too large") as caught:
        ACTIONS[action](folder)
    assert caught.value.errno == errno.EFBIG
    assert_intact(folder, action, done=False)
    ACTIONS[action](folder)
    assert_intact(folder, action, done=True)


def test_a_disk_that_is_really_full(prepared: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=6m", "tmpfs") as mnt:
        folder = mnt / "work"
        shutil.copytree(prepared, folder)
        for room in (0, 4096, 8192):
            free = os.statvfs(mnt)
            (mnt / "ballast").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - room)))
            for action in ("commit", "push", "unbundle", "repack"):
                with contextlib.suppress(OSError):
                    ACTIONS[action](folder)
                    raise AssertionError(f"{action} fits into {room} bytes")
            with contextlib.suppress(OSError):  # which needs a little room for its own notes
                Store(folder / "here").collect(0)
            (mnt / "ballast").unlink()
            assert_intact(folder, "commit", done=False)
        ACTIONS["commit"](folder)
        assert_intact(folder, "commit", done=True)
