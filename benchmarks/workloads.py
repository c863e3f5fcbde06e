"""The tensors of W1 to W4, the same on every machine, and whether a result has their bytes.

A workload is made once for each run and kept in the folder as one file of bytes beside a
list of names, types, shapes and digests: a process that saves it reads it back in a
fraction of the time that random numbers take, into an array of its own for each tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.case import FIRST_USE

__all__ = ["WORKLOADS", "Tensors", "digest", "expected", "prepare", "same", "tensors"]

Tensors = dict[str, NDArray[Any]]


def few_large() -> Tensors:
    """W1: 8 tensors of 64 MiB."""
    rng = np.random.default_rng(1)
    return {f"layer.{i}.weight": rng.standard_normal((4096, 4096), np.float32) for i in range(8)}


def language_model() -> Tensors:
    """W2: 1000 tensors named and shaped like a language model, 505 MB of bfloat16."""
    rng = np.random.default_rng(2)
    hidden, inner, vocabulary, layers = 384, 1024, 32_000, 111
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)),
            ("self_attn.k_proj", (hidden, hidden)),
            ("self_attn.v_proj", (hidden, hidden)),
            ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, 2 * inner)),
            ("input_layernorm", (hidden,)),
            ("post_attention_layernorm", (hidden,)),
        ):
            shapes[f"{layer}.{name}.weight"] = shape
    return {name: rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}


def many_small() -> Tensors:
    """W3: 10,000 tensors of 16 × 16."""
    rng = np.random.default_rng(3)
    return {f"block.{i}.scale": rng.standard_normal((16, 16), np.float32) for i in range(10_000)}


def very_many_tiny() -> Tensors:
    """W4: 100,000 tensors of shape (4,)."""
    rng = np.random.default_rng(4)
    return {f"block.{i}.bias": rng.standard_normal(4, np.float32) for i in range(100_000)}


WORKLOADS: dict[str, Callable[[], Tensors]] = {
    "W1": few_large,
    "W2": language_model,
    "W3": many_small,
    "W4": very_many_tiny,
}


def first_use_tensors(workload: str) -> Tensors:
    """Tensors of the type that the workload has, for a first use of a library: 10 MB, so that it starts its threads."""
    dtype = np.dtype(ml_dtypes.bfloat16 if workload == "W2" else np.float32)
    large = {f"large.{i}": np.ones((5, (1 << 20) // dtype.itemsize), dtype) for i in range(2)}
    return {"weight": np.ones((4, 4), dtype), **large}


def prepare(workload: str, folder: Path) -> None:
    """Makes the files that `tensors` and `expected` read, once; a small one where a first use is prepared."""
    listing = folder / f"{workload}.json"
    if listing.exists():
        return
    made = first_use_tensors(workload) if folder.name == FIRST_USE else WORKLOADS[workload]()
    rows = []
    with (folder / f"{workload}.raw").open("wb") as out:
        for name, array in made.items():
            out.write(array.view(np.uint8).data)
            rows.append((name, array.dtype.name, array.shape, digest(array)))
    listing.write_text(json.dumps(rows))


def tensors(workload: str, folder: Path) -> Tensors:
    """The arrays, each in memory of its own."""
    found, at = {}, 0
    with (folder / f"{workload}.raw").open("rb", buffering=1 << 20) as file:
        for name, dtype, shape, _ in json.loads((folder / f"{workload}.json").read_text()):
            array = found[name] = np.empty(shape, dtype)
            at += file.readinto(array.view(np.uint8).data)
    assert at == (folder / f"{workload}.raw").stat().st_size
    return found


def expected(workload: str, folder: Path) -> dict[str, str]:
    """The digest of each tensor by name, in the order of the workload."""
    return {name: value for name, _, _, value in json.loads((folder / f"{workload}.json").read_text())}


def digest(array: Any) -> str:
    """The digest of the bytes of an array of NumPy or PyTorch, whatever its element type."""
    from blake3 import blake3

    if not isinstance(array, np.ndarray):
        import torch

        array = array.detach().contiguous().view(torch.uint8).numpy()
    return blake3(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()


def same(workload: str, folder: Path, result: Mapping[str, Any] | Iterable[Any]) -> None:
    """Whether the result has every tensor of the workload and no other; by order if the library keeps no names."""
    wanted = expected(workload, folder)
    if isinstance(result, Mapping):
        assert {name: digest(array) for name, array in result.items()} == wanted
    else:
        assert [digest(array) for array in result] == list(wanted.values())
