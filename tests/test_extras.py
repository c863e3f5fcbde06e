"""A library that is not installed: the refusal names the extra that brings it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.bridges import dask, pandas, polars
from tensorglot.bson import mongodb as pymongo
from tensorglot.extras import library

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DENSE = tg.dumps({"w": np.zeros(3, np.float32)}, format="bintensors")
CSR = {"values": np.ones(1), "indices": np.zeros(1, np.uint64), "indptr": np.array([0, 1], np.uint64)}

USES: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "Tensor.scipy": ("scipy.sparse", "scipy", tg.Tensor.of_parts("m", "zt.sparse_csr/1", (1, 1), CSR).scipy),
    "a URL": ("obstore", "remote", lambda: tg.open("http://127.0.0.1/model.bt")),
    "Tensor.awkward": ("awkward", "awkward", tg.dynd.array([[1], []]).awkward),
    "Tensor.arrow": ("pyarrow", "arrow", tg.dynd.array([[1], []]).arrow),
    "a Series of pandas": ("pandas", "pandas", lambda: pandas.to_tensor(None, None)),
    "a Series of polars": ("polars", "polars", lambda: polars.to_tensor(None, None)),
    "framework torch": ("torch", "torch", lambda: tg.loads(DENSE, framework="torch")),
    "a Dask array": ("dask.array", "dask", lambda: dask.open(DENSE)),
    "framework jax": ("jax", "jax", lambda: tg.loads(DENSE, framework="jax")),
    "load_model": ("torch", "torch", lambda: tg.torch.load_model(None, DENSE)),  # type: ignore[arg-type]
    "Vector.binary": ("bson.binary", "mongo", tg.bson.Vector([1.0]).binary),
    "Vector.binary_vector": ("bson.binary", "mongo", tg.bson.Vector([1.0]).binary_vector),
    "write_matrix": ("pymongo", "mongo", lambda: pymongo.write_matrix(None, np.ones((1, 2)), "v")),  # type: ignore[arg-type]
    "read_matrix": ("bson", "mongo", lambda: pymongo.read_matrix(None, "v")),  # type: ignore[call-overload]
    "migrate": ("pymongo", "mongo", lambda: tg.bson.migrate(None, "v")),  # type: ignore[arg-type]
    "read_embeddings": ("pymongo", "mongo", lambda: tg.bson.read_embeddings("mongodb://host/a.b")),
    "type_registry": ("bson.codec_options", "mongo", tg.bson.type_registry),
    "to_table": ("pyarrow", "arrow", lambda: tg.dynd.to_table([1])),
    "from_parquet": ("pyarrow", "arrow", lambda: tg.dynd.from_parquet("x.parquet")),
    "to_pandas": ("pandas", "pandas", lambda: tg.dynd.to_pandas([1])),
    "to_polars": ("polars", "polars", lambda: tg.dynd.to_polars([1])),
}


@pytest.fixture(scope="module")
def refusals() -> dict[str, list[str]]:
    """Rule and text of the error for each use, of a new process in which none of the libraries can be imported."""
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("use", USES)
def test_the_refusal_names_the_extra(use: str, refusals: dict[str, list[str]]) -> None:
    _, extra, _ = USES[use]
    rule, text = refusals[use]
    assert rule == f"extra.{extra}"
    assert f" is not installed: pip install tensorglot[{extra}]" in text
    assert extra in EXTRAS


def test_every_extra_for_users_has_a_use_here() -> None:
    assert {extra for _, extra, _ in USES.values()} == EXTRAS.keys() - {
        "test",
        "lint",
        "bench",
        "docs",
        "guided",
        "mutants",
        "oracles",
        "sanitizers",
        "wheels",
    }


def _refuse_all() -> dict[str, list[str]]:
    for module, _, _ in USES.values():
        sys.modules[module] = None  # type: ignore[assignment]
    found = {}
    for use, (_, _, call) in USES.items():
        try:
            call()
        except tg.UnsupportedError as error:
            found[use] = [error.rule, str(error)]
    return found


if __name__ == "__main__":
    print(json.dumps(_refuse_all()))


def test_the_error_names_the_package_and_not_its_module() -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^nothing is not installed: pip install tensorglot\[scipy\]"):
        library("nothing.sparse", "scipy")
