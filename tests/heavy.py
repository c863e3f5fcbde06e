"""Small files, valid or nearly so, that claim large contents: empty shapes, aliases, tiny chunks, many boxes.

Tables of refused files never show what a verb does with a file that is accepted; these do.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gguf_builder
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


def _hdf5(path: Path, fill: Callable[[Any], object], libver: Any = "latest") -> Path:
    import h5py

    with h5py.File(path, "w", libver=libver) as file:
        fill(file)
    return path


def aliased_chunks(folder: Path) -> Path:
    """A thousand chunks of 1 MiB that are all the same kilobyte of the file."""
    good, places = zlib.compress(bytes(1 << 20), 9), []

    def fill(file: Any) -> None:
        held = file.create_dataset("a", (1000 << 20,), "u1", chunks=(1 << 20,), compression="gzip")
        held.id.write_direct_chunk((0,), good)
        for i in range(1, 1000):
            held.id.write_direct_chunk((i << 20,), bytes(1200))
        places.extend(held.id.get_chunk_info(i).byte_offset for i in range(1000))

    path = _hdf5(folder / "a.h5", fill, "earliest")
    data = path.read_bytes()
    for i in range(1, 1000):  # the key of a chunk: its size, no filters left out, its corner; then its address
        key = struct.pack("<IIQQ", 1200, 0, i << 20, 0)
        old = key + struct.pack("<Q", places[i])
        data = data.replace(old, struct.pack("<I", len(good)) + key[4:] + struct.pack("<Q", places[0]))
    return _written(path, data)


def fill_values(count: int, shape: tuple[int, ...], chunks: tuple[int, ...], folder: Path) -> Path:
    def fill(file: Any) -> None:
        for i in range(count):
            file.create_dataset("abcdefgh"[i % 8] * (1 + i // 8), shape, "u1", chunks=chunks)

    return _hdf5(folder / "a.h5", fill)


def many_names(folder: Path) -> Path:
    def fill(file: Any) -> None:
        file["a"] = np.zeros(1 << 14, np.float32)
        for i in range(500):
            file[f"a{i}"] = file["a"]

    return _hdf5(folder / "a.h5", fill)


def onnx_names(folder: Path) -> Path:
    (folder / "values").write_bytes(bytes(1 << 16))

    def one(name: str) -> bytes:
        return test_onnx.tensor(name, 1, (1 << 14,), location=1) + test_onnx.entry("location", "values")

    return _written(folder / "a.onnx", test_onnx.model(*map(one, ["a", *map(str, range(300))])))


def empty_tensors(folder: Path) -> Path:
    names = ["a", *map(str, range(4000))]
    return _written(folder / "a.onnx", test_onnx.model(*(test_onnx.tensor(name, 1, (0,)) for name in names)))


def empty_arrays(folder: Path) -> Path:
    """5,000 empty arrays in an array."""
    inner = struct.pack("<IQ", 4, 0)
    pair = gguf_builder.pair("k", 9, struct.pack("<IQ", 9, 5000) + 5000 * inner)
    return _written(folder / "a.gguf", gguf_builder.build([gguf_builder.tensor("a", (1,), 0, 0)], [pair], bytes(4)))


def many_boxes(size: int, folder: Path) -> Path:
    """Up to 1,000 boxes, with the file that contains them."""
    boxes = test_dcp.staircase(size)
    tensor = test_dcp.WHOLE | {"shape": [size, size], "boxes": boxes}
    test_dcp.write_index(folder, files=["a.safetensors"], tensors={"a": tensor})
    if size <= 1000:
        arrays = {name: np.zeros(counts, np.float32) for _, name, _, counts in boxes}
        tg.save(folder / "a.safetensors", arrays, durable=False)
    return folder


def zstd_names(folder: Path) -> Path:
    """Fifty names for a blob of 200 bytes, which is a megabyte."""
    zeros = np.zeros(1 << 20, np.uint8)
    tensors = dict.fromkeys(("a", *map(str, range(50))), zeros)
    tg.save(folder / "a.zt", tensors, compression="zstd", durable=False)
    return folder / "a.zt"


def deflated(folder: Path) -> Path:
    tg.save(folder / "a.npz", {"a": np.zeros(8 << 20, np.uint8)}, compression="deflate", durable=False)
    return folder / "a.npz"


HEAVY: dict[str, tuple[str, Callable[[Path], Path]]] = {
    **{
        f"{format} {shape}": (format, partial(void_file, format, shape))
        for format in ("bintensors", "ztensor", "npz", "gguf", "hdf5", "onnx", "dcp")
        for shape in VOID_SHAPES[:1] + VOID_SHAPES[2:3] + VOID_SHAPES[-1:]
    },
    "aliased chunks": ("hdf5", aliased_chunks),
    "tiny chunks": ("hdf5", partial(fill_values, 1, (1, 1 << 20), (1, 1))),
    "three of tiny chunks": ("hdf5", partial(fill_values, 3, (1, 1 << 20), (1, 1))),
    "fill values": ("hdf5", partial(fill_values, 20, (1 << 20,), (1 << 10,))),
    "names of a dataset": ("hdf5", many_names),
    "names of a span": ("onnx", onnx_names),
    "empty tensors": ("onnx", empty_tensors),
    "empty arrays": ("gguf", empty_arrays),
    "boxes": ("dcp", partial(many_boxes, 500)),
    "boxes of an absent file": ("dcp", partial(many_boxes, 6000)),
    "names of a frame": ("ztensor", zstd_names),
    "zeros": ("npz", deflated),
}
"""By what is heavy: the format, and what writes the file into a folder."""
