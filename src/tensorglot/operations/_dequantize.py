"""The real values of quantized tensors: groups of integer codes, microscaling blocks, the blocks of GGML.

Which parts there are and their sizes were checked when the tensor was made or its file
was opened. Results are float32, or float64 if the scales are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.gguf import blocks
from tensorglot.errors import UnsupportedError, escape
from tensorglot.model.dtypes import BY_NAME, dtype_of
from tensorglot.model.layouts import MX, QUANT_GROUP
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._elements import elements

__all__ = ["Values", "can_dequantize", "dequantize", "numbers_of", "real_values", "values_by_part"]

Values: TypeAlias = Callable[[], Iterator[NDArray[Any]]]
"""Yields the values of a tensor in C order, piece by piece; may be called several times."""


def numbers_of(tensor: Tensor) -> tuple[str, Values]:
    """The name of the element type of a dense tensor, or the layout of a quantized one; and its real values."""
    if tensor.layout != "dense":
        return tensor.layout, partial(real_values, tensor)
    part = tensor.parts["data"]
    return dtype_of(part.numpy_dtype(tensor.name)).name, partial(elements, part, tensor.name)


def can_dequantize(layout: str) -> bool:
    """Whether the real values of a layout can be computed here."""
    return layout in (QUANT_GROUP, MX) or blocks.decodable(layout)


def real_values(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """The values in C order: GGML's blocks in pieces, others at once."""
    if tensor.layout.startswith("gguf."):
        tensor.verify()
        yield from blocks.pieces(tensor)
    else:
        yield dequantize(tensor).reshape(-1)


def values_by_part(tensor: Tensor, count: int) -> Iterator[tuple[str, Part, Iterator[NDArray[Any]]]]:
    """Each part with its elements, about `count` at a time. GGML's blocks count as one part: their real values."""
    for name, part in tensor.parts.items():
        if tensor.layout.startswith("gguf."):
            yield name, part._replace(dtype=BY_NAME["float32"], shape=tensor.shape), real_values(tensor)
        else:
            yield name, part, elements(part, tensor.name, count)


def dequantize(tensor: Tensor) -> NDArray[Any]:
    if tensor.layout.startswith("gguf."):
        tensor.verify()
        return blocks.dequantize(tensor)
    if tensor.layout not in (QUANT_GROUP, MX):
        raise UnsupportedError(
            f"a tensor of layout {escape(tensor.layout)} is not quantized", rule="dequantize.layout", tensor=tensor.name
        )
    tensor.verify()
    with np.errstate(all="ignore"):  # infinities and NaN are values
        return _groups(tensor) if tensor.layout == QUANT_GROUP else _blocks(tensor)


def _groups(tensor: Tensor) -> NDArray[Any]:
    """value = (code - zero) × scale."""
    attributes = tensor.attributes
    packing, zero = attributes["packing"], attributes["zero_point"]
    codes = _unpack(_part(tensor, "data"), attributes["bits"], packing["order"], math.prod(tensor.shape))
    scales = _part(tensor, "scales")
    kind: Any = np.float64 if scales.dtype == np.float64 else np.float32
    values: Any = codes.reshape(tensor.shape).astype(kind)
    if zero["form"] == "implied":
        values -= zero["value"]
    elif zero["form"] == "tensor":
        values -= _spread(_zeros(tensor, zero, scales.shape).astype(kind), tensor.shape)
    values *= _spread(scales.astype(kind), tensor.shape)
    real: NDArray[Any] = values
    return real


def _zeros(tensor: Tensor, zero: Mapping[str, Any], groups: tuple[int, ...]) -> NDArray[Any]:
    zeros = _part(tensor, "zeros")
    if zero["packing"] == "plain":
        return zeros
    attributes = tensor.attributes
    return _unpack(zeros, attributes["bits"], attributes["packing"]["order"], math.prod(groups)).reshape(groups)


def _unpack(words: NDArray[Any], bits: int, order: str, count: int) -> NDArray[Any]:
    """The codes packed in machine words, from the lowest bits or from the highest."""
    width = words.dtype.itemsize * 8
    if bits == width:
        return words.reshape(count)
    unsigned = words.reshape(-1, 1).view(f"u{words.dtype.itemsize}")
    shifts = np.arange(0, width, bits, dtype=unsigned.dtype)
    if order == "msb_first":
        shifts = shifts[::-1]
    codes: NDArray[Any] = (unsigned >> shifts) & unsigned.dtype.type((1 << bits) - 1)
    return codes.reshape(count)


def _blocks(tensor: Tensor) -> NDArray[Any]:
    """value = 2**(scale - 127) × element; a scale of 255 is NaN. int8 elements are multiples of 2**-6 (OCP MX v1.0)."""
    elements = _part(tensor, "data").astype(np.float32)
    if tensor.parts["data"].dtype is not None and tensor.parts["data"].dtype.name == "int8":
        elements *= np.float32(2.0**-6)
    exponents = _part(tensor, "scales").view(np.uint8).astype(np.int32)
    values: NDArray[Any] = np.ldexp(elements, _spread(exponents - 127, tensor.shape))
    values[_spread(exponents == 255, tensor.shape)] = np.nan
    return values


def _part(tensor: Tensor, name: str) -> NDArray[Any]:
    return tensor.parts[name].array(tensor.name)


def _spread(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """One value for each group, repeated along the axis that is grouped."""
    for axis, (have, want) in enumerate(zip(values.shape, shape, strict=True)):
        if have != want and have:
            values = np.repeat(values, want // have, axis)
    return values
