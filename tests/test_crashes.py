"""A save that is broken off at every operation, by an error or an interrupt.

They strike every file operation of a save in turn, through a stand-in for the `os`
module of the sink. After each the target has its old contents or its new ones, whole,
and there is nothing beside it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorglot as tg
from descriptors import open_below
from faults import OPERATIONS, FaultyOs
from figures import seen
from replaced import NEW, NEW_BYTES, OLD_BYTES, check, save, write
from tensorglot.io import in_place, sink
from tensorglot.operations.edit import edit

ERRNOS = [
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENOENT,
    errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EFBIG, errno.EEXIST,
]  # fmt: skip


def sweep(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[Path], None],
    old: bytes | None,
    fault: BaseException,
    *,
    after: bool = False,
    lacks: str = "",
) -> list[str]:
    """Strikes operation 1, 2, … until a run has none left to strike. Returns the operations of that run."""
    target = folder / "model.bt"
    if old is not None:
        target.write_bytes(old)
    for strike in range(1, 100):
        faulty = FaultyOs(strike, fault, after=after)
        faulty.lacks = frozenset(lacks.split())
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            try:
                how(target)
            except type(fault) as error:
                assert error is fault, (strike, faulty.calls)  # noqa: PT017
                renamed = "rename" in faulty.calls[: strike if after else strike - 1]
                check(folder, old, (NEW_BYTES,) if renamed else (old,))
                seen("faults")
            else:
                check(folder, old, (NEW_BYTES,))
                if not faulty.struck:
                    return faulty.calls
    raise AssertionError("a save without end")


@pytest.mark.parametrize("old", [OLD_BYTES, None], ids=["old file", "no old file"])
@pytest.mark.parametrize("how", [save, write])
@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
def test_an_error_at_any_operation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], None], number: int, old: bytes | None
) -> None:
    calls = sweep(folder, monkeypatch, how, old, OSError(number, os.strerror(number)))
    assert open_below(folder) == []
    assert set(calls) >= {"open", "posix_fallocate", "pwrite", "ftruncate", "fsync", "link", "close", "rename"}


FILE_SYSTEMS = {"no O_TMPFILE": "O_TMPFILE", "no link": "link", "no link or copy": "link copy_file_range"}


@pytest.mark.parametrize("old", [OLD_BYTES, None], ids=["old file", "no old file"])
@pytest.mark.parametrize("lacks", FILE_SYSTEMS.values(), ids=FILE_SYSTEMS.keys())
@pytest.mark.parametrize("fault", [OSError(errno.EIO, "a fault"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_file_system_that_cannot_do_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lacks: str, fault: BaseException, old: bytes | None
) -> None:
    calls = sweep(folder, monkeypatch, save, old, fault, lacks=lacks)
    assert open_below(folder) == []
    assert calls.count("open") == 3, "the directory, a file without a name, one with a name"


@pytest.mark.parametrize("old", [OLD_BYTES, None], ids=["old file", "no old file"])
@pytest.mark.parametrize("how", [save, write])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupt_around_any_operation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], None], after: bool, old: bytes | None
) -> None:
    sweep(folder, monkeypatch, how, old, KeyboardInterrupt(), after=after)


def test_an_interrupt_that_no_handler_sees(folder: Path) -> None:
    """Between the call that makes the file and the `with` block, and before `__exit__` begins."""
    target = folder / "model.bt"
    target.write_bytes(OLD_BYTES)
    file = sink.AtomicFile(target).__enter__()
    file.write([b"half"])
    del file
    check(folder, OLD_BYTES, (OLD_BYTES,))
    assert open_below(folder) == []


@pytest.mark.parametrize("durable", [True, False])
def test_the_order_of_a_durable_save(folder: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    target = folder / "model.bt"
    target.write_bytes(OLD_BYTES)
    faulty = FaultyOs()
    monkeypatch.setattr(sink, "os", faulty)
    tg.save(target, NEW, durable=durable)
    made = [call for call in faulty.calls if call != "pwrite"]
    fsync = ["fsync"] if durable else []
    assert made == [
        "open", "stat", "open", "posix_fallocate", "ftruncate", "fstat", "fchmod", *fsync, "link", "fstat", "close",
        "rename", *fsync, "close",
    ]  # fmt: skip
    assert target.read_bytes() == NEW_BYTES


def test_short_writes_are_completed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = FaultyOs()
    faulty.short_writes = True
    monkeypatch.setattr(sink, "os", faulty)
    tg.save(folder / "model.bt", NEW)
    assert (folder / "model.bt").read_bytes() == NEW_BYTES
    assert faulty.calls.count("pwrite") > 10


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "a fault"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_metadata_edited_in_place_is_undone_at_any_operation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    target = folder / "model.zt"
    tg.save(target, NEW, metadata={"step": "1"})
    old = target.read_bytes()
    for strike in range(1, 20):
        faulty = FaultyOs(strike, fault)
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            patched.setattr(in_place, "os", faulty)
            try:
                edit(target, {"step": "22"}, in_place=True)
            except type(fault) as error:
                assert error is fault  # noqa: PT017
        if not faulty.struck:
            break
        if faulty.calls[-1] != "close" or len(faulty.calls) > strike:
            assert target.read_bytes() == old, faulty.calls
        target.write_bytes(old)
    assert strike > 5
    with tg.open(target) as archive:
        assert archive.metadata == {"step": "22"}


def test_the_stand_in_covers_every_file_operation_of_the_sink() -> None:
    text = "".join(Path(str(module.__file__)).read_text() for module in (sink, in_place))
    used = set(re.findall(r"\bos\.([a-z_]+)\(", text))
    assert used - {"urandom", "fspath"} <= OPERATIONS
