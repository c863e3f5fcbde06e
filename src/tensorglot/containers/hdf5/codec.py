"""The codec of datasets that h5py decodes: chunked, compressed, compact, or not yet written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorglot.containers.hdf5.library import HDF5File
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.payload import Buffer, Encoded, as_bytes, read_pieces

__all__ = ["DatasetCodec", "Filtered"]


@dataclass(frozen=True, slots=True)
class DatasetCodec:
    """Slices along the first axis are read by h5py, as many as cover the bytes that are wanted."""

    path: str
    shape: tuple[int, ...]
    itemsize: int
    name: str

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        file = payload.source
        assert isinstance(file, HDF5File)  # noqa: S101
        row = math.prod(self.shape[1:]) * self.itemsize
        if not out:
            return
        first, last = (offset // row, -(-(offset + len(out)) // row)) if self.shape else (0, 1)
        with file.errors(payload.tensor):
            dataset = file.root[self.path]
            values = dataset[first:last] if self.shape else dataset[()]
        raw = as_bytes(np.ascontiguousarray(values).reshape(-1))
        if len(raw) != (last - first) * row:
            raise FormatError("the dataset has changed", rule="hdf5.data.size", tensor=payload.tensor)
        begin = offset - first * row if self.shape else offset
        out[:] = raw[begin : begin + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        return read_pieces(payload)


@dataclass(frozen=True, slots=True)
class Filtered:
    """A dataset with a filter that is not part of the library: listed, never read."""

    name: str

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        raise UnsupportedError(f"unsupported HDF5 {self.name}", rule="hdf5.filter", tensor=payload.tensor)

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        self.decode_into(payload, 0, memoryview(b""))
        yield b""
