"""A check that cannot fail is not one: each of these turns red on a deliberate defect.

A defect is a change to the source of one module, run in the place of the module for
the time of the check, for everybody who has imported from it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import test_attacks_bintensors as attacks
import test_corpus_bintensors as corpus
import test_crashes as crashes
import test_host as host
import test_reading as reading
import test_roundtrip as roundtrip
import test_saving as saving
import test_slicing as slicing
from fuzzing import bintensors as fuzz
from replaced import OLD_BYTES

SOURCES = Path(__file__).parents[1] / "src"


@contextmanager
def defect(name: str, changes: tuple[tuple[str, str], ...]) -> Iterator[None]:
    """The module with its source changed. What others took from it by name is replaced there, too."""
    module = import_module(name)
    path = SOURCES.joinpath(*name.split(".")).with_suffix(".py")
    source = path.read_text()
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}"
        source = source.replace(old, new)
    right = dict(vars(module))
    takers = [
        other for other in list(sys.modules.values()) if str(getattr(other, "__name__", "")).startswith("tensorglot")
    ]
    exec(compile(source, path, "exec"), vars(module))
    wrong = {id(value): vars(module)[key] for key, value in right.items() if vars(module)[key] is not value}
    taken = [(other, key, value) for other in takers for key, value in list(vars(other).items()) if id(value) in wrong]
    try:
        for other, key, value in taken:
            vars(other)[key] = wrong[id(value)]
        yield
    finally:
        for other, key, value in taken:
            vars(other)[key] = value
        vars(module).clear()
        vars(module).update(right)


@dataclass(frozen=True)
class Defect:
    what: str
    module: str
    changes: tuple[tuple[str, str], ...]
    check: Callable[[Path, pytest.MonkeyPatch], object]


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
    saving.test_a_link_planted_at_the_temporary_name_is_not_followed(target, monkeypatch)


def open_a_fifo(folder: Path, _: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "fifo")
    host.test_only_regular_files_are_opened_and_the_refusal_comes_at_once("fifo", "pread", {"fifo": folder / "fifo"})


def every_form(*_: Any) -> None:
    roundtrip.test_every_type_in_every_form_and_shape("int32", "bintensors@1")


SINK, SOURCE = "tensorglot.io.sink", "tensorglot.io.local"
KERNEL, FORMAT = "tensorglot.kernels.bintensors", "tensorglot.containers.bintensors"
NAMED = ('if hasattr(os, "O_TMPFILE"):', "if False:")
EXCLUSIVE = (" | os.O_EXCL | os.O_NOFOLLOW", "")
DEFECTS = [
    Defect(
        "a save that truncates in place",
        SINK,
        (
            NAMED,
            ("self._open(self._temporary, ", "self._temporary = self._name; self._open(self._temporary, "),
            ("os.O_EXCL | os.O_NOFOLLOW", "os.O_TRUNC"),
        ),
        strike_errors,
    ),
    Defect(
        "a save that is not renamed",
        SINK,
        (
            (
                "        os.rename(self._temporary, self._name",
                "        (lambda *_, **__: None)(self._temporary, self._name",
            ),
        ),
        strike_errors,
    ),
    Defect(
        "a temporary file that stays",
        SINK,
        (("            os.unlink(temporary, dir_fd=self._directory)", "            pass"),),
        strike_errors,
    ),
    Defect(
        "an interrupt behind the rename that becomes another error",
        SINK,
        (("contextlib.suppress(FileNotFoundError)", "contextlib.suppress()"),),
        strike_interrupts,
    ),
    Defect("a temporary file that may be somebody else's", SINK, (NAMED, EXCLUSIVE), a_planted_link),
    Defect(
        "a read that ends early in silence",
        SOURCE,
        (
            (
                "                if got == 0:\n                    raise _truncated",
                "                if got == 0:\n                    return _truncated",
            ),
        ),
        lambda folder, _: host.test_a_file_cut_short_under_an_open_archive_is_a_truncated_error(folder),
    ),
    Defect(
        "an open that waits for a writer",
        SOURCE,
        ((" | os.O_NONBLOCK", ""),),
        open_a_fifo,
    ),
    Defect("long varints", KERNEL, (("        if value < least:", "        if value < 0:"),), all_attacks),
    Defect(
        "a product that overflows",
        KERNEL,
        (("                cursor.fail(DIMS, start)", "                pass"),),
        all_attacks,
    ),
    Defect("sizes that do not fit", KERNEL, (("elif end - begin != nbytes:", "elif False:"),), some_mutants),
    Defect("trailing bytes", FORMAT, (("if data + end < size:", "if False:"),), some_mutants),
    Defect(
        "strict that takes any order",
        FORMAT,
        (("        _check_order(scan.codes, names)\n", ""), ("        _check_sorted(header, ours)\n", "")),
        some_mutants,
    ),
    Defect(
        "the first of two layouts taken",
        FORMAT,
        (("    if len(accepted) > 1:", "    if False:"),),
        lambda *_: corpus.test_a_file_valid_in_both_layouts_needs_the_caller_to_choose(),
    ),
    Defect(
        "whole ranges read for columns",
        "tensorglot.model.slicing",
        (("gap > widest_gap or wider > widest", "False"),),
        reads_of_columns,
    ),
    Defect(
        "Fortran order saved as it lies",
        "tensorglot.model.payload",
        (
            ("    return array.flags.c_contiguous and", "    return array.flags.forc and"),
            ("data.reshape(-1)", "data.ravel('K')"),
        ),
        every_form,
    ),
    Defect(
        "byte order ignored",
        "tensorglot.model.payload",
        ((' and array.dtype.newbyteorder("<") == array.dtype', ""),),
        every_form,
    ),
    Defect(
        "an array of the caller that nothing fills",
        "tensorglot.operations.load",
        (("    for name in out.keys() - set(names):", "    for name in ():"),),
        lambda folder, _: reading.test_out_for_a_tensor_that_is_not_read_is_refused(folder),
    ),
]


@pytest.mark.parametrize("case", DEFECTS, ids=lambda case: case.what)
def test_a_defect_turns_its_check_red_and_only_the_defect(
    case: Defect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("defective", "right"):
        (folder / name).mkdir()
    with defect(case.module, case.changes), monkeypatch.context() as patched:
        try:
            case.check(folder / "defective", patched)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001
            red = True
        else:
            red = False
    assert red, "the check did not notice"
    case.check(folder / "right", monkeypatch)
