"""What verbs on local files import: a new process waits for every module, and for most of them in vain.

NumPy imports `numpy.ma` when its set functions are called, the packages of checksums
import more than they need, and requests to servers need SSL. None of that belongs to a
local file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.arrays import complement, distinct, has_masked, is_masked_array
from terminals import environment

NEVER = {
    "argparse", "configparser", "difflib", "email", "http.client", "importlib.metadata", "inspect", "logging.handlers",
    "multiprocessing", "numpy.ma", "random", "socket", "ssl", "subprocess", "tempfile", "urllib.request", "uuid",
    *(f"tensorglot.operations.{module}" for module in ("_mistaken", "_open_several")), "xml.sax", "zoneinfo",
}  # fmt: skip
"""No verb on local files imports these."""
NOT_FOR_ARRAYS = {"hashlib", "tensorglot.containers.gguf", "tensorglot.dynd", "tensorglot.model.types.algebra"}
"""Nor these, to read or to save arrays, in a format that stores nothing else and has no checksums."""
NOT_TO_LOAD = {"ipaddress", "ml_dtypes", "pathlib", "urllib.parse", "xxhash"}
"""Nor these, to read arrays of NumPy's own types in such a format; they would take a seventh of the time of NumPy."""
NOT_FOR_ONE_FILE = {
    "tensorglot.model.deferred", *(f"tensorglot.operations.{module}" for module in ("_patterns", "_shards"))
}  # fmt: skip
"""Nor these, to read or to save a file as it is."""
UNTIL_THREADS = {"concurrent.futures", "logging"}
"""Nor these, before it needs threads."""
VERBS = {
    "open": "tg.open(source).close()",
    "slice": "with tg.open(source) as archive: archive['large'][3:5]",
    "numpy": "with tg.open(source) as archive: archive['small.0'].numpy()",
    "load": "tensors = tg.load(source)",
    "load into arrays": "tg.load(source, out=tensors)",
    "save": "tg.save(target, tensors, durable=False)",
    "cid": "with tg.open(source) as archive: archive['small.0'].cid()",
    "convert": "tg.convert(source, target)",
    "verify": "tg.verify(source)",
    "diff": "tg.diff(source, target)",
    "stats": "tg.stats(source)",
    "identify": "tg.identify(source)",
}
"""In this order, in one process."""


@pytest.mark.parametrize("format", ["bintensors", "ztensor@0.1", "ztensor@2", "safetensors", "npz", "gguf", "dynd"])
def test_verbs_import_only_what_local_files_need(format: str, tmp_path: Path) -> None:
    spec = next(spec for spec in tg.formats() if spec.name == format.partition("@")[0])
    source, target = (tmp_path / f"{name}{spec.suffixes[0]}" for name in ("source", "target"))
    tensors = {f"small.{i}": np.full((4, 4), i, np.float32) for i in range(50)}
    tg.save(source, tensors | {"large": np.zeros((1 << 11, 1 << 10), np.float32)}, format=format)
    plain = format in ("bintensors", "safetensors")
    steps = [f"{call}\ncheck({name!r})" for name, call in VERBS.items()]
    program = "\n".join([
        "import sys, numpy",
        "before = set(sys.modules)",
        "import tensorglot as tg",
        f"source, target = {str(source)!r}, {str(target)!r}",
        "def check(verb):",
        f"    never = {NEVER} | ({UNTIL_THREADS} if verb in ('open', 'slice', 'numpy') else set())",
        f"    never |= {NOT_FOR_ARRAYS if plain else set()} if verb in {list(VERBS)[:6]} else set()",
        f"    never |= {NOT_FOR_ONE_FILE - ({'tensorglot.model.deferred'} if format == 'npz' else set())} "
        f"if verb in {list(VERBS)[:6]} else set()",
        f"    never |= {NOT_TO_LOAD if plain else set()} if verb in {list(VERBS)[:5]} else set()",
        "    assert not (never - before) & set(sys.modules), (verb, (never - before) & set(sys.modules))",
        *steps,
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment(), text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_masked_arrays_are_found_whoever_imported_them() -> None:
    program = """if True:
        import sys, numpy
        from tensorglot.arrays import has_masked, is_masked_array
        plain = numpy.zeros(2)
        assert not is_masked_array(plain) and not has_masked(plain) and "numpy.ma" not in sys.modules
        assert is_masked_array(numpy.ma.array(plain))
    """
    subprocess.run([sys.executable, "-c", program], check=True, env=environment())
    array = np.ma.array([1, 2], mask=[False, True])
    assert is_masked_array(array)
    assert has_masked(array)
    assert not has_masked(array[:1])
    assert not is_masked_array(array.data)


def test_set_functions_agree_with_those_of_numpy() -> None:
    for values in ([], [7], [3, 1, 3, 3, 0, 1], [[2, 1], [1, 2]]):
        array = np.array(values, np.int64)
        np.testing.assert_array_equal(distinct(array), np.unique(array))
    for positions in ([], [0], [4, 1], [0, 1, 2, 3, 4]):
        np.testing.assert_array_equal(complement(positions, 5), np.setdiff1d(np.arange(5), positions))
