"""A check that cannot fail is not one: each of these turns red on a deliberate defect.

A defect is something of ours replaced, by its public name, with something that is wrong:
the operations of a file system, a class's method, a rule of a kernel, a format's reader.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import faults
import tensorglot as tg
import test_attacks_bintensors as attacks
import test_corpus_bintensors as corpus
import test_crashes as crashes
import test_host as host
import test_pt as pt
import test_reading as reading
import test_reading_verified as verified
import test_roundtrip as roundtrip
import test_saving as saving
import test_slicing as slicing
import test_store_keeping as keeping
import test_two_writers as two_writers
from fuzzing import bintensors as fuzz
from replaced import OLD_BYTES
from tensorglot.containers import bintensors
from tensorglot.io import local, sink
from tensorglot.model import slicing as model_slicing
from tensorglot.model.payload import Memory, as_bytes
from tensorglot.store import Store, backend
from test_kernels import interpreted

Plant = Callable[[pytest.MonkeyPatch], object]


@dataclass(frozen=True)
class Defect:
    what: str
    plant: Plant
    check: Callable[[Path, pytest.MonkeyPatch], object]


# Checks


def strike_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashes.sweep(folder, monkeypatch, crashes.save, OLD_BYTES, OSError(5, "a fault"))


def strike_interrupts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashes.sweep(folder, monkeypatch, crashes.save, OLD_BYTES, KeyboardInterrupt(), after=True)


def all_attacks(*_: Any) -> None:
    for attack in attacks.ATTACKS:
        attacks.test_an_attack_is_refused_by_its_rule(attack)


def some_mutants(*_: Any) -> None:
    for data in fuzz.mutants(1500, seed=2):
        fuzz.check(data)


def reads_of_columns(*_: Any) -> None:
    array = slicing.an_array(np.dtype("<f4"), (40, 3000))
    tensor, source = slicing.recorded(array)
    for index in ((slice(None), slice(5, 9)), (slice(2, 30, 3), slice(None, None, -7)), 3):
        source.reads.clear()
        slicing.assert_same(tensor[index], array[index])
        reads = [(begin - (tensor.offset or 0), end - (tensor.offset or 0)) for begin, end in source.reads]
        slicing.check_reads(reads, slicing.needed_bytes(array, index), gap=4096)


def a_planted_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = folder / "model.bt"
    target.write_bytes(OLD_BYTES)
    saving.test_a_link_planted_at_the_temporary_name_is_not_followed(target, monkeypatch, "")


def open_a_fifo(folder: Path, _: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "fifo")
    host.test_only_regular_files_are_opened_and_the_refusal_comes_at_once("fifo", "pread", {"fifo": folder / "fifo"})


def every_form(*_: Any) -> None:
    roundtrip.test_every_type_in_every_form_and_shape("int32", "bintensors@1")


def damaged_files(folder: Path, _: pytest.MonkeyPatch) -> None:
    verified.test_checksums_are_verified_by_default("a.zt", folder)


def a_merge_beside_a_save(folder: Path, _: pytest.MonkeyPatch) -> None:
    path = folder / "model.zt"
    tg.save(path, two_writers.TENSORS, metadata={"step": "1"}, durable=False)
    two_writers.test_a_merge_into_one_of_its_sources_that_changes_meanwhile(path)


def views_of_one_element(*_: Any) -> None:
    for data, kind, rule in pt.REFUSED.values():
        if rule == "limit.repeated":
            with pytest.raises(kind):
                tg.load(data, format="pt")
            return
    raise LookupError("no case")


def collect_beside_a_writer(folder: Path, _: pytest.MonkeyPatch) -> None:
    root = folder / "store"
    keeping.test_the_temporary_file_of_a_running_writer_stays(Store.create(root), root)


# Defects


def nothing_is_expected(patched: pytest.MonkeyPatch) -> None:
    """A file is replaced, whatever has become of it."""
    right = sink.AtomicFile.__init__
    patched.setattr(
        sink.AtomicFile, "__init__", lambda file, target, **options: right(file, target, **{**options, "expect": None})
    )


def operations(module: Any, **wrong: Any) -> Plant:
    """The module with some operations of its `os` replaced."""
    return lambda patched: patched.setattr(module, "os", SimpleNamespace(**{**vars(os), **wrong}))


def does_nothing(*_: Any, **__: Any) -> None:
    pass


def open_in_place(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is None:
        return os.open(name, flags, mode)
    return os.open("model.bt", os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode, dir_fd=dir_fd)


def open_shared(name: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    return os.open(name, flags & ~(os.O_EXCL | os.O_NOFOLLOW), mode, dir_fd=dir_fd)


def link_over(source: str, name: str, *, dst_dir_fd: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(source, name, dst_dir_fd=dst_dir_fd)


def open_waiting(name: Any, flags: int) -> int:
    return os.open(name, flags & ~os.O_NONBLOCK)


def suppress_nothing(patched: pytest.MonkeyPatch) -> None:
    wrong = {**vars(contextlib), "suppress": lambda *_: contextlib.nullcontext()}
    patched.setattr(sink, "contextlib", SimpleNamespace(**wrong))


def read_less(patched: pytest.MonkeyPatch) -> None:
    right = local.FileSource.read_into

    def read_into(source: local.FileSource, offset: int, out: memoryview) -> None:
        with contextlib.suppress(tg.TruncatedError):
            right(source, offset, out)

    patched.setattr(local.FileSource, "read_into", read_into)


def without_rule(rule: str) -> Plant:
    """The kernel of BinTensors, in its interpreted form, never reports this fault."""

    def plant(patched: pytest.MonkeyPatch) -> None:
        kernel = interpreted("bintensors")
        ignored = getattr(kernel, rule)
        for name in ("note", "fail"):
            report = getattr(kernel.Cursor, name)
            patched.setattr(
                kernel.Cursor,
                name,
                lambda cursor, fault, position, report=report: (
                    0 if fault == ignored else report(cursor, fault, position)
                ),
            )
        patched.setattr(bintensors, "kernel", kernel)

    return plant


def trailing_bytes(patched: pytest.MonkeyPatch) -> None:
    right = bintensors.check_data_end

    def check(ends: Any, begin: int, size: int, **options: Any) -> None:
        right(ends, begin, min(size, int(ends[-1]) if len(ends) else begin), **options)

    patched.setattr(bintensors, "check_data_end", check)


def reader(read: Callable[..., Any]) -> Plant:
    """BinTensors is read by this, which is given the right reader."""

    def plant(patched: pytest.MonkeyPatch) -> None:
        right = cast("property", tg.Format.container).__get__
        wrong = bintensors.CONTAINER._replace(read=partial(read, bintensors.CONTAINER.read))
        patched.setattr(
            tg.Format, "container", property(lambda spec: wrong if spec.name == "bintensors" else right(spec))
        )

    return plant


def in_any_order(read: Any, source: Any, options: Any) -> Any:
    return read(source, replace(options, strict=False))


def in_the_first_layout(read: Any, source: Any, options: Any) -> Any:
    try:
        return read(source, options)
    except tg.AmbiguousFormat:
        return read(source, replace(options, version="0"))


def wide_reads(patched: pytest.MonkeyPatch) -> None:
    for name in ("GAP_NBYTES", "SCRATCH_NBYTES"):
        patched.setattr(model_slicing, name, 1 << 62)


def as_it_lies(memory: Memory) -> Iterator[memoryview]:
    flat = memory.array.ravel("K")
    yield as_bytes(flat.astype(flat.dtype.newbyteorder("<")))


def in_its_byte_order(memory: Memory) -> Iterator[memoryview]:
    yield as_bytes(np.ascontiguousarray(memory.array))


def fill_what_is_named(patched: pytest.MonkeyPatch) -> None:
    right = tg.load

    def load(source: Any, *, out: dict[str, Any], names: Any = ("x", "y")) -> Any:
        return right(source, names=names, out={name: array for name, array in out.items() if name in names})

    patched.setattr(tg, "load", load)


DEFECTS = [
    Defect(
        "checksums that nobody compares",
        lambda patched: patched.setattr(tg, "load", partial(tg.load, verify="never")),
        damaged_files,
    ),
    Defect("a file replaced that has changed since it was read", nothing_is_expected, a_merge_beside_a_save),
    Defect(
        "views without a limit",
        lambda patched: patched.setattr(tg, "load", partial(tg.load, limits=tg.Limits(view_ratio=1 << 62))),
        views_of_one_element,
    ),
    Defect(
        "a collector that sees no writers",
        lambda patched: patched.setattr(backend.Directory, "writers", lambda _: {}),
        collect_beside_a_writer,
    ),
    Defect(
        "a save that truncates in place",
        operations(faults, open=open_in_place, link=does_nothing, rename=does_nothing, unlink=does_nothing),
        strike_errors,
    ),
    Defect("a save that is not renamed", operations(faults, rename=does_nothing), strike_errors),
    Defect("a temporary file that stays", operations(faults, unlink=does_nothing), strike_errors),
    Defect("an interrupt behind the rename that becomes another error", suppress_nothing, strike_interrupts),
    Defect(
        "a temporary file that may be somebody else's",
        operations(sink, open=open_shared, link=link_over),
        a_planted_link,
    ),
    Defect(
        "a read that ends early in silence",
        read_less,
        lambda folder, _: host.test_a_file_cut_short_under_an_open_archive_is_a_truncated_error(folder),
    ),
    Defect("an open that waits for a writer", operations(local, open=open_waiting), open_a_fifo),
    Defect("long varints", without_rule("VARINT_LONG"), all_attacks),
    Defect("a product that overflows", without_rule("DIMS"), all_attacks),
    Defect("sizes that do not fit", without_rule("SIZE"), some_mutants),
    Defect("trailing bytes", trailing_bytes, some_mutants),
    Defect("strict that takes any order", reader(in_any_order), some_mutants),
    Defect(
        "the first of two layouts taken",
        reader(in_the_first_layout),
        lambda *_: corpus.test_a_file_valid_in_both_layouts_needs_the_caller_to_choose(),
    ),
    Defect("whole ranges read for columns", wide_reads, reads_of_columns),
    Defect("Fortran order saved as it lies", lambda patched: patched.setattr(Memory, "chunks", as_it_lies), every_form),
    Defect("byte order ignored", lambda patched: patched.setattr(Memory, "chunks", in_its_byte_order), every_form),
    Defect(
        "an array of the caller that nothing fills",
        fill_what_is_named,
        lambda folder, _: reading.test_out_for_a_tensor_that_is_not_read_is_refused(folder),
    ),
]


@pytest.mark.parametrize("case", DEFECTS, ids=lambda case: case.what)
def test_a_defect_turns_its_check_red_and_only_the_defect(
    case: Defect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("defective", "right"):
        (folder / name).mkdir()
    with monkeypatch.context() as patched:
        case.plant(patched)
        try:
            case.check(folder / "defective", patched)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            red: BaseException | None = error
        else:
            red = None
    assert red is not None, "the check did not notice"
    case.check(folder / "right", monkeypatch)
