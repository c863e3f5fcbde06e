"""Valid and invalid files of other people's formats, for the conformance corpus.

Valid ones are written by the package of the format, byte for byte as it writes them, or
assembled by hand from its specification: each element type, and each way to store one. The
invalid ones are those of the test file of the format. HDF5 needs h5py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tensorglot as tg
import test_gguf
import test_hdf5
import test_numpy_files
import test_onnx
import test_pt
import test_safetensors
from gguf_builder import build, pair, tensor
from hdf5_seals import resealed
from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.containers.gguf.tensors import DTYPES as GGUF_DTYPES
from tensorglot.model.dtypes import BY_NAME

__all__ = ["INVALID", "VALID"]

_CORPUS = Path(__file__).parent / "corpus"
Named = Iterator[tuple[str, bytes]]


def _array(name: str) -> np.ndarray[Any, Any]:
    return np.arange(6).reshape(2, 3).astype(np.dtype(getattr(ml_dtypes, name, None) or name))


def _safetensors() -> Named:
    for name in test_safetensors.WHOLE:
        yield name, tg.dumps({"x": _array(name)}, format="safetensors")
    yield "metadata", tg.dumps({"x": _array("float32")}, format="safetensors", metadata={"k": "v", "é": ""})
    yield "a scalar and an empty tensor", tg.dumps({"s": np.int8(1), "e": np.zeros((2, 0))}, format="safetensors")
    for name, (data, _) in test_safetensors.ACCEPTED.items():
        yield name, data


def _npy() -> Named:
    for name in test_numpy_files.LETTERED:
        for order in "<>":
            array = _array(name)
            if order == "<" or array.dtype.itemsize > 1:
                yield f"{order}{name}", test_numpy_files.npy(array.astype(array.dtype.newbyteorder(order)))
    for shape in test_numpy_files.SHAPES:
        yield f"shape {shape}", test_numpy_files.npy(np.arange(np.prod(shape, dtype=int)).reshape(shape))
    yield "Fortran order", test_numpy_files.npy(np.asfortranarray(_array("float64")))
    for version in ((1, 0), (2, 0), (3, 0)):
        yield f"version {version[0]}", _npy_of_version(version)


def _npy_of_version(version: tuple[int, int]) -> bytes:
    import io

    file = io.BytesIO()
    np.lib.format.write_array(file, _array("int32"), version=version)
    return file.getvalue()


def _npz() -> Named:
    arrays = {"a": np.arange(40), "b": np.asfortranarray(np.zeros((2, 3), ">f4")), "é": np.float16(1)}
    yield "savez", test_numpy_files.npz(**arrays)
    yield "savez_compressed", test_numpy_files.npz(compressed=True, **arrays)
    yield "no arrays", test_numpy_files.npz()
    yield "text", test_numpy_files.npz(text=np.array(["x", "yz"]))
    for name in test_numpy_files.LETTERED:
        yield name, test_numpy_files.npz(x=_array(name))
    yield "metadata in the comment", tg.dumps({"a": _array("float32")}, format="npz", metadata={"k": ["v", 1]})


def _gguf() -> Named:
    yield "every kind of metadata", build(pairs=test_gguf.TestMetadata.PAIRS)
    for type, name in GGUF_DTYPES.items():
        for order in "<>":
            array = _array(name)
            width = array.dtype.itemsize
            raw = array.view(f"u{width}").astype(f"{order}u{width}").tobytes()
            yield f"{order}{name}", build([tensor("x", (3, 2), type, 0, order)], data=raw, order=order)
    for type, block in BLOCKS.items():
        raw = bytes(i % 251 for i in range(2 * block.nbytes))
        yield f"blocks of {block.name}", build([tensor("x", (block.elements, 2), type, 0)], data=raw)
    yield "a type of the future", build([tensor("x", (5,), 999, 0), tensor("y", (2,), 0, 32)], data=bytes(40))
    yield "version 2", build([tensor("x", (2,), 0, 0)], data=bytes(8), version=2)
    alignment = pair("general.alignment", 4, struct.pack("<I", 64))
    two = [tensor("x", (2,), 0, 0), tensor("y", (2,), 0, 64)]
    yield "alignment 64", build(two, [alignment], bytes(72), alignment=64)


def _onnx() -> Named:
    for type, name in test_onnx.NAMED.items():
        raw = bytes(-(-6 * BY_NAME[name].bits // 8))
        yield f"raw {name}", test_onnx.model(test_onnx.tensor(type=type, dims=(2, 3), raw=raw))
    yield "float_data", test_onnx.model(test_onnx.tensor(float=np.arange(2, dtype="<f4").tobytes()))
    yield "double_data", test_onnx.model(test_onnx.tensor(type=11, double=np.arange(2, dtype="<f8").tobytes()))
    yield "int32_data", test_onnx.model(test_onnx.tensor(type=6, dims=(3,), int32=b"\1\2\3"))
    yield "int64_data", test_onnx.model(test_onnx.tensor(type=7, int64=b"\1" + test_onnx.varint(-1)))
    yield "uint64_data", test_onnx.model(test_onnx.tensor(type=13, uint64=b"\1" + test_onnx.varint(2**64 - 1)))
    yield "a scalar", test_onnx.model(test_onnx.tensor(dims=(), raw=bytes(4)))
    sparse = test_onnx.SPARSE_VALUES + test_onnx.INDICES + test_onnx.field(3, 4)
    yield "sparse", test_onnx.model(more=test_onnx.field(15, sparse))
    yield "no tensors", test_onnx.model()


def _pt() -> Named:
    for path in sorted((_CORPUS / "pt").glob("*.pt")):
        yield path.name, path.read_bytes()


def _hdf5() -> Named:
    for path in sorted((_CORPUS / "hdf5").iterdir()):
        yield path.name, path.read_bytes()
    for libver in ("earliest", "latest"):
        for kind in test_hdf5.KINDS:
            array = np.arange(6).reshape(2, 3).astype(kind)
            yield f"{kind}, {libver}", _timeless(test_hdf5.written(_dataset(array), libver=libver))
        for name, options in test_hdf5.STORED.items():
            array = np.arange(140, dtype="<i4").reshape(20, 7)
            yield f"{name}, {libver}", _timeless(test_hdf5.written(_dataset(array, **options), libver=libver))
    for name, (shape, chunks, most, _) in test_hdf5.INDEXES.items():
        array = np.arange(np.prod(shape), dtype="<i4").reshape(shape)
        fill = _dataset(array, chunks=chunks, maxshape=most, fletcher32=True)
        yield f"index of chunks: {name}", _timeless(test_hdf5.written(fill, libver="latest"))


def _timeless(data: bytes) -> bytes:
    """The file with every time of an object header at 0, and its checksums made right again."""
    changed, at = bytearray(data), data.find(b"OHDR\2")
    while at >= 0:
        if data[at + 5] & 0x20:
            changed[at + 6 : at + 22] = bytes(16)
        at = data.find(b"OHDR\2", at + 1)
    return resealed(bytes(changed)) if changed != data else data


def _dataset(array: np.ndarray[Any, Any], **options: Any) -> Callable[[Any], None]:
    def fill(made: Any) -> None:
        made.create_dataset("group/x", data=array, **options)

    return fill


def _hostile_hdf5() -> dict[str, bytes]:
    latest = {f"latest: {name}": resealed(row[0]) for name, row in test_hdf5.hostile_latest().items()}
    references = {name: row[0] for name, row in test_hdf5.hostile_references().items()}
    every = {name: row[0] for name, row in test_hdf5.hostile().items()} | latest | references
    return {name: _timeless(data) for name, data in every.items()}


def _first(table: Mapping[str, tuple[Any, ...]]) -> Callable[[], dict[str, bytes]]:
    return lambda: {name: row[0] for name, row in table.items()}


VALID: dict[str, Callable[[], Named]] = {
    "safetensors": _safetensors,
    "npy": _npy,
    "npz": _npz,
    "gguf": _gguf,
    "onnx": _onnx,
    "pt": _pt,
    "hdf5": _hdf5,
}
INVALID: dict[str, Callable[[], dict[str, bytes]]] = {
    "safetensors": _first(test_safetensors.REFUSED),
    "npy": _first(test_numpy_files.NPY_REFUSED),
    "npz": _first(test_numpy_files.NPZ_REFUSED),
    "gguf": _first(test_gguf.REFUSED),
    "onnx": _first(test_onnx.REFUSED),
    "pt": _first(test_pt.REFUSED),
    "hdf5": _hostile_hdf5,
}
