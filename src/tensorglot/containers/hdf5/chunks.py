"""The codec of chunked datasets: boxes of the array, each stored alone, through deflate and shuffle.

The index of chunks is read when the file is opened, and every chunk checked: inside the
file, at a corner of the grid, no two at one corner, not larger than deflate can expand
it. A chunk that is absent has the fill value.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, IntegrityError, UnsupportedError
from tensorglot.model.payload import Buffer, Encoded, as_bytes, read_pieces

__all__ = ["DEFLATE", "FLETCHER32", "SHUFFLE", "CheckedChunks", "Chunk", "Chunked", "Unreadable"]

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
_WORDS = 1 << 16
"""Summed at a time: their weighted sum fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a chunk is stored in the source; bit i of the mask leaves out filter i."""

    begin: int
    nbytes: int
    mask: int


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """Slices along the first axis are assembled from the chunks that they touch. Each dataset has its own codec."""

    shape: tuple[int, ...]
    grid: tuple[int, ...]
    """The shape of a chunk."""
    itemsize: int
    filters: tuple[int, ...]
    chunks_at: Mapping[tuple[int, ...], Chunk]
    """By the position of the chunk in the grid."""
    fill: bytes

    @property
    def name(self) -> str:
        return "deflate" if DEFLATE in self.filters else "chunked"

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        row = math.prod(self.shape[1:]) * self.itemsize
        if not out or not row:
            return
        first, last = offset // row, -(-(offset + len(out)) // row)
        done = 0
        while first < last:  # one layer of chunks at a time
            end = min(last, (first // self.grid[0] + 1) * self.grid[0])
            raw = as_bytes(self._rows(payload, first, end))
            skip = max(0, offset - first * row)
            piece = raw[skip : skip + len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            first = end

    def _rows(self, payload: Encoded, first: int, end: int) -> NDArray[np.void]:
        carrier = np.dtype(f"V{self.itemsize}")
        rows = np.empty((end - first, *self.shape[1:]), carrier)
        layer = first // self.grid[0]
        counts = [-(-size // step) for size, step in zip(self.shape[1:], self.grid[1:], strict=True)]
        for place in itertools.product((layer,), *map(range, counts)):
            begins = [at * step for at, step in zip(place, self.grid, strict=True)]
            ends = [min(begin + step, size) for begin, step, size in zip(begins, self.grid, self.shape, strict=True)]
            into = tuple(itertools.starmap(slice, zip(begins[1:], ends[1:], strict=True)))
            chunk = self.chunks_at.get(place)
            if chunk is None:
                rows[(slice(None), *into)] = np.frombuffer(self.fill, carrier)[0]
                continue
            box = np.frombuffer(self._decode(payload, chunk), carrier).reshape(self.grid)
            taken = (
                slice(first - begins[0], end - begins[0]),
                *(slice(0, e - b) for b, e in zip(begins[1:], ends[1:], strict=True)),
            )
            rows[(slice(None), *into)] = box[taken]
        return rows

    def _decode(self, payload: Encoded, chunk: Chunk) -> bytes:
        nbytes = math.prod(self.grid) * self.itemsize
        data = payload.source.read_bytes(chunk.begin, chunk.nbytes)
        for i, kind in reversed([*enumerate(self.filters)]):
            if chunk.mask >> i & 1:
                continue
            if kind == FLETCHER32:
                if not _fletcher32_matches(data):
                    raise IntegrityError(
                        "checksum mismatch in a chunk",
                        rule="hdf5.chunk.checksum",
                        offset=chunk.begin,
                        tensor=payload.tensor,
                    )
                data = data[:-4]
            elif kind == SHUFFLE:
                data = _unshuffle(data, self.itemsize)
            else:
                data = _inflate(data, nbytes + 4, payload, chunk)
        if len(data) != nbytes:
            raise FormatError(
                f"a chunk has {len(data)} bytes, expected {nbytes}",
                rule="hdf5.chunk.size",
                offset=chunk.begin,
                tensor=payload.tensor,
            )
        return data

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        return read_pieces(payload)


class CheckedChunks(Chunked):
    """Chunks that have a checksum each."""

    __slots__ = ()
    frames_checked = True


def _inflate(data: bytes, most: int, payload: Encoded, chunk: Chunk) -> bytes:
    """At most `most` bytes."""
    decoder = zlib.decompressobj()
    try:
        found = decoder.decompress(data, most)
    except zlib.error as error:
        raise FormatError(
            f"invalid deflate data: {error}", rule="hdf5.chunk.deflate", offset=chunk.begin, tensor=payload.tensor
        ) from None
    if not decoder.eof:
        raise FormatError(
            "a chunk is cut short or expands beyond its size",
            rule="hdf5.chunk.deflate",
            offset=chunk.begin,
            tensor=payload.tensor,
        )
    return found


def _fletcher32_matches(data: bytes) -> bool:
    """Compares the last four bytes with the sums of the big-endian words before them, modulo 65535."""
    body, stored = data[:-4], int.from_bytes(data[-4:], "little")
    words = np.frombuffer(body + bytes(len(body) % 2), ">u2").astype(np.uint64)
    one = two = 0
    for start in range(0, len(words), _WORDS):
        part = words[start : start + _WORDS]
        weighted = int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        two = (two + one * len(part) + weighted) % 65535
        one = (one + int(part.sum())) % 65535
    return len(data) >= 4 and (stored & 0xFFFF) % 65535 == one and (stored >> 16) % 65535 == two


def _unshuffle(data: bytes, itemsize: int) -> bytes:
    """Byte planes back to elements; a remainder that is no whole element stays at the end."""
    whole = len(data) - len(data) % itemsize
    planes = np.frombuffer(data, np.uint8, whole).reshape(itemsize, -1)
    return planes.T.tobytes() + data[whole:]


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable:
    """A dataset whose values cannot be read here: `name` says why."""

    name: str

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(f"HDF5: {self.name}", rule="hdf5.storage", tensor=payload.tensor)

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        raise self.refuse(payload)

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        raise self.refuse(payload)
