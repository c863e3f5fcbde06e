"""The tests of safetensors and ztensor, from their source distributions, with our modules in place of their own.

TENSORGLOT_SUITES names a folder with the unpacked source distributions of safetensors
0.8.0 and ztensor 2.1.2. What fails is listed here with the reason, and nothing else does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peers import missing, needs
from terminals import environment

FAILING = {
    "test_bogus": "compares the whole message of an error",
    "test_sparse": "compares the whole message of an error",
    "test_file_not_found": "compares the whole message of an error",
    "test_numpy_slice": "compares whole messages; a slice beyond the end and a list are as in NumPy here",
    "test_cannot_serialize_a_non_contiguous_tensor": "a tensor of any stride is saved correctly here",
    "test_end_ptr": "a private function",
    "test_find_shared_tensors": "a private function",
    "test_find_shared_non_shared_tensors": "a private function",
    "test_is_complete": "a private function",
    "test_remove_duplicate_names": "a private function",
    "test_pt_sf_save_model_overlapping_storage": "a private function",
}
FRAMEWORKS_WE_LACK = ("tf", "paddle", "mlx")


@pytest.mark.frameworks
@pytest.mark.peers
def test_safetensors(tmp_path: Path) -> None:
    folder = os.environ.get("TENSORGLOT_SUITES")
    if folder is None:
        pytest.skip("TENSORGLOT_SUITES is not set")
    found = list(Path(folder).glob("safetensors-*/bindings/python/tests"))
    if not found:
        missing(f"no source distribution of safetensors in {folder}")
    for library in ("torch", "flax", "fsspec"):
        needs(library)
    shutil.copytree(found[0], tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "data").mkdir(exist_ok=True)
    ignored = [f"--ignore=tests/test_{name}_comparison.py" for name in FRAMEWORKS_WE_LACK]
    here = str(Path(__file__).parent)
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + here
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "drop_in_shims", "-p", "no:cacheprovider", *ignored]
    done = subprocess.run([*command, "tests"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    failed = set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.M))
    assert failed == set(FAILING), done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 59


FAILING_OF_ZTENSOR = {
    "test_buffer_protocol_is_zero_copy": "a Tensor has DLPack, not the buffer protocol",
    "test_a_memoryview_outlives_the_handle": "a Tensor has DLPack, not the buffer protocol",
    "test_an_indexed_source_locates_but_does_not_map": "the buffer protocol, and a function of theirs",
    "test_parts_are_tensors_too": "logical types given by name when writing",
    "test_a_logical_type_numpy_cannot_name_is_refused_not_reinterpreted": "logical types given by name when writing",
    "test_open_accepts_a_list": "several files as one archive need a directory of shards",
    "test_a_name_in_two_files_is_refused": "several files as one archive need a directory of shards",
    "test_attributes_round_trip": "attributes set after the writer was made",
    "test_a_single_part_tensor_resolves_whatever_it_is_called": "parts of layouts of one's own",
    "test_verify_covers_every_part": "parts given one by one",
    "test_streaming_a_tensor_that_is_not_in_memory": "a stream names its part",
}


@pytest.mark.peers
def test_ztensor(tmp_path: Path) -> None:
    folder = os.environ.get("TENSORGLOT_SUITES")
    if folder is None:
        pytest.skip("TENSORGLOT_SUITES is not set")
    found = list(Path(folder).glob("ztensor-*/ztensor-py/tests/test_api.py"))
    if not found:
        missing(f"no source distribution of ztensor in {folder}")
    shutil.copy(found[0], tmp_path)
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "ztensor_shim", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "test_api.py"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.M)) == set(FAILING_OF_ZTENSOR), done.stdout[-3000:]
    assert "26 passed" in done.stdout
