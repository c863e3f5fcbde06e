"""The codec of chunked datasets: boxes of the array, stored separately, with deflate, shuffle and checksums.

The index of chunks is read when the file is opened, and every chunk is checked: inside the
file, on the grid, alone at its position, large enough to inflate to its size. A chunk that
does not exist has the fill value.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, IntegrityError, UnsupportedError
from tensorglot.model.payload import PIECE_NBYTES, Buffer, Encoded, Undecodable, as_bytes

__all__ = ["DEFLATE", "FLETCHER32", "SHUFFLE", "CheckedChunks", "Chunk", "Chunked", "Unreadable"]

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
_WORDS = 1 << 16
"""Words that are summed at a time, so that their weighted sum fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a chunk is stored in the source. If bit i of the mask is set, filter i was skipped."""

    begin: int
    nbytes: int
    mask: int


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """Assembles slices along the first axis from the chunks that they touch. Each dataset has its own codec."""

    shape: tuple[int, ...]
    grid: tuple[int, ...]
    """The shape of a chunk."""
    itemsize: int
    filters: tuple[int, ...]
    stored: Sequence[tuple[tuple[int, ...], Chunk]]
    """The chunks that exist, in the order of their positions in the grid."""
    fill: bytes

    @property
    def name(self) -> str:
        return "deflate" if DEFLATE in self.filters else "chunked"

    @property
    def _row_nbytes(self) -> int:
        return math.prod(self.shape[1:]) * self.itemsize

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        row = self._row_nbytes
        if not out or not row:
            return
        done = 0
        for first, end in self._strips(offset // row, -(-(offset + len(out)) // row)):
            raw = as_bytes(self._rows(payload, first, end))
            skip = max(0, offset - first * row)
            piece = raw[skip : skip + len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        """Every chunk is decoded once."""
        for first, end in self._strips(0, self.shape[0] if payload.nbytes else 0):
            yield as_bytes(self._rows(payload, first, end))

    def _strips(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Rows in strips of whole layers of chunks: one layer, or several small ones."""
        step = self.grid[0] * max(1, PIECE_NBYTES // max(1, self.grid[0] * self._row_nbytes))
        while first < last:
            end = min(last, (first // step + 1) * step)
            yield first, end
            first = end

    def _rows(self, payload: Encoded, first: int, end: int) -> NDArray[np.void]:
        """Rows `first` to `end`. Loops over the chunks that exist, because a grid may have far more positions."""
        carrier = np.dtype(f"V{self.itemsize}")
        rows = np.empty((end - first, *self.shape[1:]), carrier)
        layers = range(first // self.grid[0], -(-end // self.grid[0]))
        begin, stop = (bisect_left(self.stored, (layer,), key=itemgetter(0)) for layer in (layers.start, layers.stop))
        counts = [-(-size // step) for size, step in zip(self.shape[1:], self.grid[1:], strict=True)]
        if stop - begin < len(layers) * math.prod(counts):
            rows[...] = np.frombuffer(self.fill, carrier)[0]
        for place, chunk in self.stored[begin:stop]:
            box = np.frombuffer(self._decode(payload, chunk), carrier).reshape(self.grid)
            corner = [at * step for at, step in zip(place, self.grid, strict=True)]
            lows = [max(first, corner[0]), *corner[1:]]
            highs = [
                min(at + step, most) for at, step, most in zip(corner, self.grid, (end, *self.shape[1:]), strict=True)
            ]
            into = (slice(lows[0] - first, highs[0] - first), *map(slice, lows[1:], highs[1:]))
            rows[into] = box[
                tuple(slice(low - at, high - at) for low, high, at in zip(lows, highs, corner, strict=True))
            ]
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


class CheckedChunks(Chunked):
    """Chunks that each have a checksum (`FrameChecked`)."""

    __slots__ = ()
    frames_checked = True


def _inflate(data: bytes, most: int, payload: Encoded, chunk: Chunk) -> bytes:
    """Inflates a chunk to at most `most` bytes; more is an error."""
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
    """Converts byte planes back to elements; the bytes of an incomplete element stay at the end."""
    whole = len(data) - len(data) % itemsize
    planes = np.frombuffer(data, np.uint8, whole).reshape(itemsize, -1)
    return planes.T.tobytes() + data[whole:]


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable(Undecodable):
    """A dataset whose values cannot be read here: `name` says why."""

    name: str

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(f"HDF5: {self.name}", rule="hdf5.storage", tensor=payload.tensor)
