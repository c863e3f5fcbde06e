"""A slice of a tensor as text, as JSON, or as a .npy file.

The index is text, parsed by a pattern and never evaluated. The selection is read and
formatted block by block, in C order and bounded memory.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.json import to_json
from tensorglot.dynd.schema import check_void
from tensorglot.errors import InputError, UnsupportedError, add_tensor_to_errors, escape
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.payload import PIECE_NBYTES, as_bytes
from tensorglot.model.slicing import select
from tensorglot.model.tensor import NESTED, Tensor
from tensorglot.operations._jsonable import jsonable
from tensorglot.wire import npy

__all__ = ["IndexText", "json_document", "npy_bytes", "parse_index", "text_lines"]

ALIGNED_COUNT = 4096
"""Values in the rows that are aligned with each other."""

IndexText: TypeAlias = "tuple[int | slice | EllipsisType | None, ...]"

_INTEGER = r"[+-]?[0-9]{1,19}"
_ITEM = re.compile(rf"(?P<int>{_INTEGER})|(?P<start>{_INTEGER})?:(?P<stop>{_INTEGER})?(?::(?P<step>{_INTEGER})?)?")
_CONSTANTS: dict[str, EllipsisType | None] = {"...": ..., "Ellipsis": ..., "None": None, "newaxis": None}


def parse_index(text: str) -> IndexText:
    """`[10:20, ::2]` or `10:20, ::2`: a basic NumPy index of integers, slices, `...` and `None`."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    items = [re.sub(r"\s", "", item) for item in inner.split(",")]
    if len(items) > 1 and not items[-1]:
        items.pop()
    return tuple(_parse_item(item, text) for item in items)


def _parse_item(item: str, text: str) -> int | slice | EllipsisType | None:
    if item in _CONSTANTS:
        return _CONSTANTS[item]
    match = _ITEM.fullmatch(item)
    if match is None:
        what = f"'{escape(item)}'" + ("" if item == text else f" in '{escape(text)}'")
        raise InputError(
            f"{what} is not an index; example: [3, 10:20, ::2, ...]",
            rule="index.text",
        )
    if match["int"] is not None:
        return int(match["int"])
    return slice(*(None if match[end] is None else int(match[end]) for end in ("start", "stop", "step")))


class _Region:
    """A basic index as one position or range for each axis, which can be cut further."""

    def __init__(self, axes: Sequence[int | range | None]) -> None:
        self.axes = axes

    @classmethod
    def of(cls, tensor: Tensor, index: IndexText) -> _Region:
        with add_tensor_to_errors(tensor.name):
            return cls(select(index, tensor.shape).positions)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(1 if axis is None else len(axis) for axis in self.axes if not isinstance(axis, int))

    @property
    def index(self) -> tuple[int | slice | None, ...]:
        return tuple(_as_slice(axis) if isinstance(axis, range) else axis for axis in self.axes)

    def cut(self, itemsize: int, *, whole_rows: bool) -> Iterator[_Region]:
        """Regions of about PIECE_NBYTES at most, in C order, cut along the outermost axes that can be."""
        shown = [i for i, axis in enumerate(self.axes) if not isinstance(axis, int)]
        nbytes = math.prod(self.shape) * itemsize
        for i in shown[:-1] if whole_rows else shown:
            axis = self.axes[i]
            if nbytes > PIECE_NBYTES and isinstance(axis, range) and len(axis) > 1:
                step = max(1, PIECE_NBYTES * len(axis) // nbytes)
                for start in range(0, len(axis), step):
                    inner = _Region([*self.axes[:i], axis[start : start + step], *self.axes[i + 1 :]])
                    yield from inner.cut(itemsize, whole_rows=whole_rows)
                return
        yield self


def _as_slice(axis: range) -> slice:
    stop = axis.start + len(axis) * axis.step
    return slice(axis.start, stop if stop >= 0 else None, axis.step)


def _dense_dtype(tensor: Tensor) -> np.dtype[Any]:
    if tensor.layout != "dense":
        raise UnsupportedError(
            f"a tensor of layout {escape(tensor.layout)} is not a dense array: `tensorglot stats` describes its parts,"
            " .scipy() or .dequantize() in Python has its values",
            rule="tensor.dense",
            tensor=tensor.name,
        )
    return tensor.parts["data"].numpy_dtype(tensor.name)


def _blocks(tensor: Tensor, index: IndexText, *, whole_rows: bool = False) -> Iterator[NDArray[Any]]:
    dtype = _dense_dtype(tensor)
    packed = tensor.parts["data"].nbytes < math.prod(tensor.shape) * dtype.itemsize
    values = tensor.numpy() if packed else tensor
    for region in _Region.of(tensor, index).cut(dtype.itemsize, whole_rows=whole_rows):
        yield np.asarray(values[region.index])


def _nested(tensor: Tensor, index: IndexText) -> Any:
    if index != (...,):
        raise UnsupportedError(
            "an index needs a dense tensor: a nested value can only be printed as a whole",
            rule="tensor.dense",
            tensor=tensor.name,
        )
    return to_json(tensor)


def text_lines(tensor: Tensor, index: IndexText) -> Iterator[bytes]:
    """A row of the last axis per line, an empty line between matrices; for one dimension, a value per line.

    A nested value is JSON, an element of its first dimension per line.
    """
    if tensor.layout == NESTED:
        values = _nested(tensor, index)
        for value in values if isinstance(values, list) else [values]:
            yield json.dumps(value).encode() + b"\n"
        return
    shape = _Region.of(tensor, index).shape
    check_void(shape, tensor.name)
    if len(shape) < 2:
        for block in _blocks(tensor, index):
            yield from (f"{value!s}\n".encode() for value in block.reshape(-1))
        return
    width, height, done = shape[-1], shape[-2], 0
    for block in _blocks(tensor, index, whole_rows=True):
        rows = block.reshape(math.prod(block.shape[:-1]), width)
        aligned = max(1, ALIGNED_COUNT // max(1, width))
        for start in range(0, len(rows), aligned):
            cells = [list(map(str, row)) for row in rows[start : start + aligned]]
            longest = max(map(len, itertools.chain.from_iterable(cells)), default=0)
            for row in cells:
                if done and done % height == 0:
                    yield b"\n"
                yield " ".join(cell.rjust(longest) for cell in row).encode() + b"\n"
                done += 1


def npy_bytes(tensor: Tensor, index: IndexText) -> Iterator[bytes | memoryview]:
    """A .npy file of `tensor[index]`, as `save` writes it: types that NumPy lacks keep their names."""
    dtype = dtype_of(_dense_dtype(tensor), tensor.name)
    yield npy.build(dtype.name, _Region.of(tensor, index).shape)
    for block in _blocks(tensor, index):
        yield as_bytes(np.ascontiguousarray(block))


def json_document(tensor: Tensor, index: IndexText) -> Iterator[bytes]:
    """Values as nested lists: a complex number is a pair, NaN and the infinities are text."""
    if tensor.layout == NESTED:
        nested = {"name": tensor.name, "type": str(tensor.type), "values": _nested(tensor, index)}
        yield json.dumps(nested).encode() + b"\n"
        return
    dtype = _dense_dtype(tensor)
    check_void(_Region.of(tensor, index).shape, tensor.name)
    values = np.asarray(tensor[index])
    document = {
        "name": tensor.name,
        "dtype": dtype.name,
        "shape": list(values.shape),
        "values": jsonable(values.tolist()),
    }
    yield json.dumps(document).encode() + b"\n"
