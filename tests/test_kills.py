"""A save that is broken off by a kill, a power cut or a full disk.

Kills strike every system call that writes, through strace.
Power cuts are copies of the disk of a mounted file system, taken while it is mounted.
Full disks are small file systems.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from faults import FaultyOs
from figures import seen
from mounts import mounted
from replaced import NEW, NEW_BYTES, OLD, OLD_BYTES, alone, check, save, write
from tensorglot.io import in_place, sink
from traced import CALLS, Traced, python

KILLED = """
import sys
from pathlib import Path
import replaced
from tensorglot.io import sink
sink.temporary_name = lambda: ".tensorglot-ffffffffffffffff.tmp"
getattr(replaced, sys.argv[2])(Path(sys.argv[1]))
"""
TEMPORARY = ".tensorglot-ffffffffffffffff.tmp"


@pytest.mark.parametrize("how", ["save", "write"])
def test_a_kill_at_any_system_call_never_loses_the_old_file(folder: Path, how: str) -> None:
    target = folder / "model.bt"
    target.write_bytes(OLD_BYTES)
    program = Traced(python(KILLED, target, how), f"{CALLS},flock")
    calls = program.system_calls()
    assert target.read_bytes() == NEW_BYTES
    assert {"pwrite64", "fsync", "ftruncate", "fchmod"} <= set(calls)
    assert calls.count("fsync") == 2
    linked = calls.index("linkat")
    outcomes = []
    for i, call in enumerate(calls):
        target.write_bytes(OLD_BYTES)
        program.kill(calls, i)
        contents = target.read_bytes()
        assert contents in (OLD_BYTES, NEW_BYTES), (call, i)
        outcomes.append(contents == NEW_BYTES)
        beside = {left for left in folder.iterdir() if left != target}
        assert beside <= ({folder / TEMPORARY} if i >= linked and not outcomes[-1] else set()), (call, i)
        for left in beside:
            left.unlink()
    seen("kills", len(outcomes))
    assert outcomes == sorted(outcomes), "new contents never give way to old ones"
    assert outcomes[0] is False
    assert outcomes[-1] is True, "killed between the rename and the end"
    for name in ("TERM", "HUP"):
        target.write_bytes(OLD_BYTES)
        ended = program.run(f"--inject=fsync:signal={name}:when=1")
        assert ended.returncode == -getattr(signal, f"SIG{name}")
        assert target.read_bytes() == OLD_BYTES
        assert alone(target), "a temporary file was left"


# Power cuts and full disks, on file systems of their own

EXT4 = "loop,noauto_da_alloc,commit=300,data=writeback"
"""Nothing reaches the disk before it is asked to."""


@dataclass(frozen=True)
class Disk:
    """An ext4 file system in an image, and where it is mounted."""

    image: Path
    folder: Path

    def after_power_cut(self, name: str) -> bytes | None:
        """What a file has on a copy of the disk as it is now, once its journal is replayed."""
        copy = self.image.with_name("copy")
        shutil.copyfile(self.image, copy)
        with mounted("-o", "loop", str(copy)) as folder:
            target = folder / name
            return target.read_bytes() if target.exists() else None


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with mounted("-o", EXT4, str(image)) as folder:
        yield Disk(image, folder)


def test_a_power_cut_at_any_operation_leaves_the_old_contents_or_the_new_ones(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = disk.folder / "model.bt"
    tg.save(target, OLD)
    assert disk.after_power_cut("model.bt") == OLD_BYTES, "a save that returned is durable"
    faulty = FaultyOs()
    found = []

    def cut(name: str, arguments: tuple[Any, ...]) -> None:
        contents = disk.after_power_cut("model.bt")
        assert contents in (OLD_BYTES, NEW_BYTES), f"torn before {name}"
        found.append(contents == NEW_BYTES)

    faulty.before = cut
    with monkeypatch.context() as patched:
        patched.setattr(sink, "os", faulty)
        tg.save(target, NEW)
    assert len(found) > 10
    assert found == sorted(found)
    seen("power cuts", len(found))
    assert disk.after_power_cut("model.bt") == NEW_BYTES, "a save that returned is durable"


def test_a_power_cut_at_any_operation_of_an_edit_in_place(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_power_cuts` has a model of a disk that is worse than this one."""
    target = disk.folder / "model.zt"
    tg.save(target, OLD, format="ztensor@2")
    faulty = FaultyOs()
    found = []

    def cut(name: str, arguments: tuple[Any, ...]) -> None:
        contents = disk.after_power_cut("model.zt")
        assert contents is not None
        names = set(tg.loads(contents))
        assert names in (set(OLD), {*OLD, "new"}), f"torn before {name}"
        found.append("new" in names)

    faulty.before = cut
    with monkeypatch.context() as patched:
        patched.setattr(in_place, "os", faulty)
        patched.setattr(sink, "os", faulty)
        assert tg.edit(target, add={"new": np.arange(3000)}, in_place=True).in_place
    assert found == sorted(found)
    assert found.count(False) > 5
    seen("power cuts", len(found))
    contents = disk.after_power_cut("model.zt")
    assert contents == target.read_bytes(), "an edit that returned is durable"


def test_without_durable_a_power_cut_may_take_the_new_contents(disk: Disk) -> None:
    """The check above can fail: this is what the two calls of fsync are for."""
    target = disk.folder / "model.bt"
    tg.save(target, OLD)
    tg.save(target, NEW, durable=False)
    assert target.read_bytes() == NEW_BYTES
    assert disk.after_power_cut("model.bt") != NEW_BYTES


def test_a_disk_that_is_really_full() -> None:
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs") as folder:
        tg.save(folder / "model.bt", OLD)
        for how in (save, write):
            with pytest.raises(OSError, match="No space left"):
                how(folder / "model.bt")
            check(folder, OLD_BYTES, (OLD_BYTES,))
        small = {f"t{i}": np.zeros(9_000, np.float32) for i in range(40)}  # no reservation for small tensors
        with pytest.raises(OSError, match="No space left"):
            tg.save(folder / "model.bt", small)
        check(folder, OLD_BYTES, (OLD_BYTES,))
