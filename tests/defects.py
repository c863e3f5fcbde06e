"""A defect for each promise of docs/trust.md: planted in a copy of the library, it makes the promise's command fail.

`python tests/promises.py defects` plants each and runs the whole command; the tests run one
test of the command, the one that is named here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tensorglot as tg

__all__ = ["DEFECTS", "Defect", "run"]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Defect:
    what: str
    module: str
    right: str
    wrong: str
    test: str
    """Of the promise's command: it fails."""


DEFECTS: dict[int, Defect] = {
    1: Defect(
        "a pickle's globals are imported",
        "containers/torchsave/opcodes.py",
        "        else:\n            kind, rule, message = _FAULTS[answer]\n",
        "        elif answer == kernel.GLOBAL:\n            import importlib\n\n"
        "            module, _, name = detail.rpartition('.')\n"
        "            function = getattr(importlib.import_module(module), name)\n"
        "            names[detail] = lambda arguments, function=function: function(*arguments)\n"
        "        else:\n            kind, rule, message = _FAULTS[answer]\n",
        "tests/test_pt.py::TestNothingIsExecuted::test_refused",
    ),
    2: Defect(
        "a duplicate name is a KeyError",
        "model/names.py",
        '            raise FormatError("duplicate tensor name"',
        '            raise KeyError(self[twice])\n            raise FormatError("duplicate tensor name"',
        "tests/test_fuzz_bintensors.py::test_the_invariant_holds_for_mutants",
    ),
    3: Defect(
        "a buffer of 64 MB for every header",
        "containers/bintensors.py",
        "def read(source: Source, options: ReadOptions) -> Index:\n",
        "def read(source: Source, options: ReadOptions) -> Index:\n    bytearray(64_000_000)\n",
        "tests/test_attacks_bintensors.py::test_all_attacks_are_refused_in_10_ms_and_10_mb_in_every_way_to_open",
    ),
    4: Defect(
        "bytes beyond those that were declared",
        "wire/zstd.py",
        "        if position > limit:\n            raise _mismatch(position, limit)\n",
        "",
        "tests/test_zstd.py::test_a_broken_frame_is_refused_by_its_rule",
    ),
    5: Defect(
        "strict that takes any order",
        "containers/bintensors.py",
        "        _check_order(codes, names)\n",
        "",
        "tests/test_fuzz_bintensors.py::test_the_invariant_holds_for_mutants",
    ),
    6: Defect(
        "bytes behind the last tensor",
        "containers/bintensors.py",
        "    check_data_end(scan.ends, data, size,",
        "    check_data_end(scan.ends, data, int(scan.ends[-1]) if len(scan.ends) else data,",
        "tests/test_attacks_bintensors.py::test_an_attack_is_refused_by_its_rule",
    ),
    7: Defect(
        "a rename that is not on the disk",
        "io/sink.py",
        "            os.fsync(self._directory)\n",
        "            pass\n",
        "tests/test_crashes.py::test_the_order_of_a_durable_save",
    ),
    8: Defect(
        "a temporary file that stays",
        "io/sink.py",
        "                        os.unlink(temporary, dir_fd=self._directory)\n",
        "                        pass\n",
        "tests/test_faults.py::test_a_fault_in_a_file[save model.bt]",
    ),
    9: Defect(
        "of a checksum only the last bit is compared",
        "operations/_checksums.py",
        "digest != self.expected.digest:",
        "digest[-1] % 2 != self.expected.digest[-1] % 2:",
        "tests/test_reading_verified.py::test_every_bit_of_a_tensor[zt 0.1 crc32c]",
    ),
    10: Defect(
        "what is condemned stays condemned",
        "store/collect.py",
        "        if pack in needed or nbytes is None:\n",
        "        if nbytes is None:\n",
        "tests/test_store_keeping.py::test_what_was_condemned_is_pardoned_when_it_is_needed_again",
    ),
    11: Defect(
        "names as they are",
        "errors.py",
        '    if not name.isprintable() or "\\\\" in name:\n',
        "    if not name:\n",
        "tests/test_attacks_bintensors.py::test_a_name_is_data_and_is_printed_escaped",
    ),
    12: Defect(
        "checksums that nobody asked for are not compared",
        "operations/open.py",
        'return None if self.verify == "never" else OnceVerifier',
        'return None if self.verify != "require" else OnceVerifier',
        "tests/test_reading_verified.py::test_checksums_are_verified_by_default",
    ),
    13: Defect(
        "a file is replaced, whatever has become of it",
        "io/sink.py",
        "                if now is None or stamp_of(now) != self._expect:\n",
        "                if now is None:\n",
        "tests/test_two_writers.py::test_a_merge_into_one_of_its_sources_that_changes_meanwhile",
    ),
    14: Defect(
        "stores that claim anything",
        "store/checkout.py",
        "        if claimed > spare + limits.store_ratio * stored:\n",
        "        if claimed < 0:\n",
        "tests/test_attacks_store.py::test_a_store_may_not_claim_far_more_than_it_holds",
    ),
}


def run(defect: Defect, folder: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether the tests fail on a copy that has the defect, and what pytest said."""
    package = Path(tg.__file__).parent
    copy = folder / "copy"
    shutil.copytree(package, copy / "tensorglot")
    module = copy / "tensorglot" / defect.module
    text = module.read_text("utf-8")
    assert text.count(defect.right) == 1, f"{defect.module} has changed"
    module.write_text(text.replace(defect.right, defect.wrong), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    shutil.rmtree(copy)
    return done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
