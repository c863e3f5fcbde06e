"""The block types of GGML (elements and bytes per block), and decoders of the common ones.

Each decoder takes blocks as rows of bytes and gives rows of float32. The arithmetic is
that of the format in single precision: a scale, sometimes a minimum, and small integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, UnsupportedError, escape
from tensorglot.model.tensor import Tensor

__all__ = ["BLOCKS", "Block", "decodable", "dequantize", "pieces"]

Bytes = NDArray[np.uint8]
Values = NDArray[np.float32]

_PIECE_BLOCKS = 1 << 12


@dataclass(frozen=True, slots=True)
class Block:
    """One block type."""

    name: str
    elements: int
    nbytes: int
    decode: Callable[[Bytes], Values] | None = None


def decodable(layout: str) -> bool:
    """Whether a block type can be decoded."""
    block = _BY_LAYOUT.get(layout)
    return block is not None and block.decode is not None


def dequantize(tensor: Tensor) -> Values:
    """Decodes a tensor of a block type to float32."""
    values = np.empty(math.prod(tensor.shape), np.float32)
    done = 0
    for piece in pieces(tensor):
        values[done : done + len(piece)] = piece
        done += len(piece)
    return values.reshape(tensor.shape)


def pieces(tensor: Tensor) -> Iterator[Values]:
    """Yields the decoded values in C order, in pieces."""
    block = _BY_LAYOUT.get(tensor.layout)
    if block is None or block.decode is None:
        raise UnsupportedError(f"cannot dequantize {escape(tensor.layout)}", rule="gguf.dequantize", tensor=tensor.name)
    part = tensor.parts.get("data")
    count, rest = divmod(math.prod(tensor.shape), block.elements)
    if part is None or rest or part.nbytes != count * block.nbytes:
        raise FormatError(
            f"the data is not the {block.name} blocks that the shape needs",
            rule="gguf.shape.blocks",
            tensor=tensor.name,
        )
    for start in range(0, count, _PIECE_BLOCKS):
        end = min(start + _PIECE_BLOCKS, count)
        raw = np.frombuffer(part.payload.read(start * block.nbytes, (end - start) * block.nbytes), np.uint8)
        with np.errstate(all="ignore"):
            values = block.decode(raw.reshape(-1, block.nbytes))
        yield values.reshape(-1)


def _f16(blocks: Bytes, at: int) -> Values:
    """A column of half-precision numbers."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low nibbles of all bytes, then the high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The fifth bit of each of 32 numbers, shifted to its place; stored as four bytes at `at`."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> Values:
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Values:
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _f16(blocks, 2)


def _q5_0(blocks: Bytes) -> Values:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _f16(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Values:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _f16(blocks, 0) * codes.astype(np.float32) + _f16(blocks, 2)


def _q8_0(blocks: Bytes) -> Values:
    return _f16(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_k(blocks: Bytes) -> Values:
    """Eight groups of 32 codes of 4 bits. Each has a scale and a minimum of 6 bits, in units of two float16.

    Of the 12 bytes of scales and minima, the first four of each have their 6 bits in `low` and
    `high`; the last four have 4 bits in `mixed`, and 2 in the top bits of `low` and `high`.
    """
    low, high, mixed = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((low & 0x3F, mixed & 0x0F | low >> 6 << 4), axis=1)
    minima = np.concatenate((high & 0x3F, mixed >> 4 | high >> 6 << 4), axis=1)
    factor = _f16(blocks, 0) * scales.astype(np.float32)
    offset = _f16(blocks, 2) * minima.astype(np.float32)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    values: Values = factor[..., None] * codes.astype(np.float32) - offset[..., None]
    return values.reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Values:
    """Sixteen groups of 16 codes of 6 bits: 4 in the first 128 bytes, 2 in the next 64. A scale of 8 bits for each."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    four = np.concatenate((low & 0x0F, low >> 4), axis=2)
    shifts = np.array((0, 2, 4, 6), np.uint8)[:, None]
    two = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << 4
    codes = (four | two).reshape(-1, 16, 16).astype(np.float32) - 32
    factor = _f16(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    values: Values = factor[..., None] * codes
    return values.reshape(-1, 256)


BLOCKS: dict[int, Block] = {
    2: Block("Q4_0", 32, 18, _q4_0),
    3: Block("Q4_1", 32, 20, _q4_1),
    6: Block("Q5_0", 32, 22, _q5_0),
    7: Block("Q5_1", 32, 24, _q5_1),
    8: Block("Q8_0", 32, 34, _q8_0),
    9: Block("Q8_1", 32, 40),
    10: Block("Q2_K", 256, 84),
    11: Block("Q3_K", 256, 110),
    12: Block("Q4_K", 256, 144, _q4_k),
    13: Block("Q5_K", 256, 176),
    14: Block("Q6_K", 256, 210, _q6_k),
    15: Block("Q8_K", 256, 292),
    16: Block("IQ2_XXS", 256, 66),
    17: Block("IQ2_XS", 256, 74),
    18: Block("IQ3_XXS", 256, 98),
    19: Block("IQ1_S", 256, 50),
    20: Block("IQ4_NL", 32, 18),
    21: Block("IQ3_S", 256, 110),
    22: Block("IQ2_S", 256, 82),
    23: Block("IQ4_XS", 256, 136),
    29: Block("IQ1_M", 256, 56),
    34: Block("TQ1_0", 256, 54),
    35: Block("TQ2_0", 256, 66),
    39: Block("MXFP4", 32, 17),
    40: Block("NVFP4", 64, 36),
    41: Block("Q1_0", 128, 18),
}
"""The block types by GGML's number. Those without a decoder are listed and copied."""

_BY_LAYOUT: dict[Any, Block] = {f"gguf.{block.name}": block for block in BLOCKS.values()}
