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

from arrays import HAVE_BUFFERS
from peers import EXTERNAL, missing, needs
from terminals import environment

MESSAGE = "compares the whole message of an error; ours has the same class, and names tensor and rule"
PRIVATE = "tests a private function, which save_model and load_model of ours do not have"
FAILING = {
    "test_pt_comparison.py::TorchTestCase::test_bogus": MESSAGE,
    "test_pt_comparison.py::TorchTestCase::test_sparse": MESSAGE,
    "test_simple.py::ErrorsTestCase::test_file_not_found": MESSAGE,
    "test_simple.py::ReadmeTestCase::test_numpy_slice": "[:20] of ten rows and lists are as in NumPy, not errors",
    "test_pt_comparison.py::SliceTestCase::test_cannot_serialize_a_non_contiguous_tensor": "any stride is saved",
    "test_pt_model.py::TorchModelTestCase::test_end_ptr": PRIVATE,
    "test_pt_model.py::TorchModelTestCase::test_find_shared_tensors": PRIVATE,
    "test_pt_model.py::TorchModelTestCase::test_find_shared_non_shared_tensors": PRIVATE,
    "test_pt_model.py::TorchModelTestCase::test_is_complete": PRIVATE,
    "test_pt_model.py::TorchModelTestCase::test_remove_duplicate_names": PRIVATE,
    "test_simple.py::TestCase::test_pt_sf_save_model_overlapping_storage": PRIVATE,
}
"""Each is a decision; a test that starts to pass is noticed, too."""
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
    failed = set(re.findall(r"^FAILED tests/(\S+)", done.stdout, re.M))
    assert failed == set(FAILING), done.stdout[-3000:]
    assert "59 passed" in done.stdout


FAILING_OF_ZTENSOR = {
    "test_verify_covers_every_part": "a quantized tensor without zero_point, which its layout requires, is not written",
}
WITHOUT_BUFFERS = {
    "test_buffer_protocol_is_zero_copy": "Python 3.11 needs compiled kernels for the buffer protocol",
    "test_a_memoryview_outlives_the_handle": "Python 3.11 needs compiled kernels for the buffer protocol",
    "test_an_indexed_source_locates_but_does_not_map": "Python 3.11 needs compiled kernels for the buffer protocol",
}


@pytest.mark.peers
def test_ztensor(tmp_path: Path) -> None:
    folder = os.environ.get("TENSORGLOT_SUITES")
    if folder is None:
        pytest.skip("TENSORGLOT_SUITES is not set")
    found = list(Path(folder).glob("ztensor-*/ztensor-py/tests/test_api.py"))
    if not found:
        missing(f"no source distribution of ztensor in {folder}")
    corpus = EXTERNAL / "ztensor-2" / "valid" / "csr-data-valid.zt"
    if not corpus.exists():
        missing(f"the corpus of zTensor 2 is not in {EXTERNAL}")
    shutil.copy(found[0], tmp_path)
    (tmp_path / "conformance" / "corpus" / "valid").mkdir(parents=True)
    shutil.copy(corpus, tmp_path / "conformance" / "corpus" / "valid")
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "ztensor_shim", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "test_api.py"], cwd=tmp_path, env=variables, capture_output=True, text=True)
    expected = FAILING_OF_ZTENSOR if HAVE_BUFFERS else FAILING_OF_ZTENSOR | WITHOUT_BUFFERS
    assert set(re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.M)) == set(expected), done.stdout[-3000:]
    assert f"{38 - len(expected)} passed" in done.stdout
