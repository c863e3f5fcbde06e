"""Files that are small and valid, or nearly so, and claim much: empty shapes, aliases, tiny chunks, many boxes.

Tables of refused files never show what a verb does with a file that is accepted; these do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg
import test_dcp
import test_onnx

__all__ = ["HEAVY", "VOID_SHAPES", "void_file"]

VOID_SHAPES = [(1 << 40, 0), (1 << 31, 0), (0, 1 << 40), (0, 1 << 31, 1), (1 << 20, 1 << 20, 0)]
SUFFIXES = {"bintensors": ".bt", "ztensor": ".zt", "hdf5": ".h5", "dcp": ""}


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def void_file(format: str, shape: tuple[int, ...], folder: Path) -> Path:
    """A tensor of float32 without elements, named `a` where the format has names."""
    path = folder / f"void{SUFFIXES.get(format, '.' + format)}"
    if format == "hdf5":
        return _hdf5(path, lambda file: file.create_dataset("a", shape, "f4"))
    if format == "onnx":
        return _written(path, test_onnx.model(test_onnx.tensor("a", 1, shape)))
    if format == "dcp":
        path.mkdir()
        test_dcp.write_index(path, tensors={"a": {"dtype": "float32", "itemsize": 4, "shape": shape, "boxes": []}})
        return path
    name = "data" if format == "npy" else "a"
    tg.save(path, {name: np.zeros(shape, np.float32)}, format=format, durable=False)
    return path


def _hdf5(path: Path, fill: Callable[[Any], object]) -> Path:
    import h5py

    with h5py.File(path, "w", libver="latest") as file:
        fill(file)
    return path


HEAVY: dict[str, tuple[str, Callable[[Path], Path]]] = {
    f"{format} {shape}": (format, partial(void_file, format, shape))
    for format in ("bintensors", "ztensor", "npz", "gguf", "hdf5", "onnx", "dcp")
    for shape in VOID_SHAPES[:1] + VOID_SHAPES[2:3] + VOID_SHAPES[-1:]
}
"""By what is heavy: the format, and what writes the file into a folder."""
