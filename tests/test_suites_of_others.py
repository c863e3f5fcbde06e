"""The tests of safetensors, bintensors and ztensor, from their source distributions, on our modules.

TENSORGLOT_SUITES names the folder with the unpacked source distributions of safetensors
0.8.0, bintensors 0.2.0 and ztensor 2.1.2, which `.ci/peers` makes. What fails is listed here with the
reason, and nothing else does.
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

FAILING = {
    # The same class of error; the test compares the text, and ours names the file or tensor and the rule.
    "test_pt_comparison.py::TorchTestCase::test_bogus": "expected a torch.Tensor, not dict (tensor 'test', rule",
    "test_pt_comparison.py::TorchTestCase::test_sparse": "to_dense() or dequantize() (tensor 'test', rule",
    # Likewise; then lists and [:20] of ten rows must be refused, which are as in NumPy here.
    "test_simple.py::ReadmeTestCase::test_numpy_slice": "index -6 is out of range for axis 1 of size 5 (tensor 'a'",
    # Any stride is saved.
    "test_pt_comparison.py::SliceTestCase::test_cannot_serialize_a_non_contiguous_tensor": "ValueError not raised",
    # The only view of a larger storage is saved.
    "test_pt_model.py::TorchModelTestCase::test_remove_duplicate_names": "{} != []",
    # Memory that two storages share is found.
    "test_simple.py::TestCase::test_pt_sf_save_model_overlapping_storage": "!= [{'m'}, {'n'}]",
}
"""The text of each failure, so that it fails at this place only. A test that starts to pass is noticed, too."""
FRAMEWORKS_WE_LACK = ("tf", "paddle", "mlx")


def suite(pattern: str) -> Path:
    folder = os.environ.get("TENSORGLOT_SUITES")
    if folder is None:
        missing("TENSORGLOT_SUITES is not set")
    found = list(Path(folder).glob(pattern))
    if not found:
        missing(f"{pattern} is not in {folder}")
    return found[0]


def run(shim: str, *arguments: str, folder: Path) -> str:
    """What pytest prints, with a shim of this folder in place of the package."""
    variables = environment()
    variables["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    options = ["-q", "-rf", "--tb=short", "-p", shim, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True).stdout


@pytest.mark.frameworks
@pytest.mark.peers
def test_safetensors(tmp_path: Path) -> None:
    found = suite("safetensors-0.8.0/bindings/python/tests")
    for library in ("torch", "jax", "fsspec"):
        needs(library)
    shutil.copytree(found, tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "data").mkdir(exist_ok=True)
    ignored = [f"--ignore=tests/test_{name}_comparison.py" for name in FRAMEWORKS_WE_LACK]
    output = run("drop_in_shims", *ignored, "tests", folder=tmp_path)
    assert set(re.findall(r"^FAILED tests/(\S+)", output, re.M)) == set(FAILING), output[-3000:]
    assert "64 passed" in output
    _, *sections = re.split(r"^_+ (\w+\.\w+) _+$", output, flags=re.M)
    told = dict(zip(sections[::2], sections[1::2], strict=True))
    for test, text in FAILING.items():
        _, group, name = test.split("::")
        assert text in told[f"{group}.{name}"]


FAILING_OF_BINTENSORS = {"test_checksum_two_diffrent_models_jax": "NameError:"}  # in the test: it never defines its key


@pytest.mark.frameworks
@pytest.mark.peers
def test_bintensors(tmp_path: Path) -> None:
    """Without those that save 3 GB, or 1,000 times."""
    found = suite("bintensors-0.2.0/binding/python/tests")
    for library in ("torch", "jax"):
        needs(library)
    shutil.copytree(found, tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "test_mlx.py"))
    output = run("drop_in_shims", "-k", "not large_gpt2 and not two_same_models", "tests", folder=tmp_path)
    failed = dict(re.findall(r"^FAILED \S+::(\w+) - (\S+?:)", output, re.M))
    assert failed == FAILING_OF_BINTENSORS, output[-3000:]
    assert "29 passed" in output


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
    found = suite("ztensor-2.1.2/ztensor-py/tests/test_api.py")
    corpus = EXTERNAL / "ztensor-2" / "valid" / "csr-data-valid.zt"
    if not corpus.exists():
        missing(f"the corpus of zTensor 2 is not in {EXTERNAL}")
    shutil.copy(found, tmp_path)
    (tmp_path / "conformance" / "corpus" / "valid").mkdir(parents=True)
    shutil.copy(corpus, tmp_path / "conformance" / "corpus" / "valid")
    output = run("ztensor_shim", "test_api.py", folder=tmp_path)
    expected = FAILING_OF_ZTENSOR if HAVE_BUFFERS else FAILING_OF_ZTENSOR | WITHOUT_BUFFERS
    assert set(re.findall(r"^FAILED \S+::(\w+)", output, re.M)) == set(expected), output[-3000:]
    assert f"{38 - len(expected)} passed" in output
