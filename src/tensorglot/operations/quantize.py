"""Quantizing: real values rounded to groups of small integers with a scale each, or to the blocks of GGML.

A scheme turns runs of `group` values along the last axis into rows of the parts of its
layout. A quantized tensor is made of encoded payloads whose codec is the scheme: like a
cast it is computed piece by piece while the target is written, and nothing downstream
knows. Every part is computed in a pass of its own; that of `data` measures the error.
`quantize` is for one value in memory; files are quantized by `convert(quantize=…)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.containers.gguf.encode import ENCODERS
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.model.computed import ComputedCodec
from tensorglot.model.dtypes import BY_NAME, DType, dtype_of
from tensorglot.model.layouts import QUANT_GROUP
from tensorglot.model.payload import Buffer, Encoded, Memory, as_bytes
from tensorglot.model.tensor import Part, Tensor
from tensorglot.model.types.algebra import dense
from tensorglot.operations._dequantize import can_dequantize, numbers_of
from tensorglot.operations._jsonable import Record

__all__ = [
    "SCHEMES",
    "Quantization",
    "QuantizeCodec",
    "Scheme",
    "quantize",
    "quantize_tensor",
    "scheme_fault",
    "scheme_of",
]

Rows = NDArray[Any]
Values = NDArray[np.float32]

GROUP = 32
_GROUPED = re.compile(r"(int[48])(?::([1-9][0-9]{0,8}))?")
_PIECE_GROUPS = 1 << 9
"""Groups computed at a time."""


@dataclass(frozen=True, slots=True)
class Quantization(Record):
    """The rounding error of one tensor: the difference between the real values and the values read back."""

    tensor: str
    old: str
    new: str
    count: int = 0
    max_error: float = 0.0
    rms_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Scheme:
    """How groups of values are stored."""

    name: str
    layout: str
    group: int
    encode: Callable[[Values], Mapping[str, Rows]]
    """Rows of `group` values to a row for each part."""
    decode: Callable[[Mapping[str, Rows]], Values]
    attributes: Mapping[str, Any]

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The type and shape of each part of a tensor."""
        rows = self.encode(np.zeros((1, self.group), np.float32))
        groups = shape[-1] // self.group
        count = math.prod(shape[:-1]) * groups
        flat = {name: (dtype_of(row.dtype), row.size) for name, row in rows.items()}
        if self.layout == QUANT_GROUP:
            return {
                "data": (flat["data"][0], (count * flat["data"][1],)),
                "scales": (flat["scales"][0], (*shape[:-1], groups)),
            }
        return {name: (dtype, (*shape[:-1], groups * size)) for name, (dtype, size) in flat.items()}


def _encode_group(values: Values, bits: int) -> dict[str, Rows]:
    """Symmetric: zero stays zero, and the largest magnitude of a group becomes the largest code."""
    largest = (1 << bits - 1) - 1
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(largest)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales >= np.finfo(np.float32).tiny)
    scales[inverse == 0] = 0  # a group of values so small that the inverse of the scale would overflow
    codes = np.rint(values * inverse).clip(-largest, largest).astype(np.int8)
    if bits == 8:
        return {"data": codes, "scales": scales}
    nibbles = (codes + 8).astype(np.uint8)
    return {"data": nibbles[:, 0::2] | nibbles[:, 1::2] << 4, "scales": scales}


def _decode_group(rows: Mapping[str, Rows], bits: int) -> Values:
    data = rows["data"]
    if bits == 4:
        data = np.stack((data & 0x0F, data >> 4), axis=2).reshape(len(data), -1).astype(np.int8) - 8
    values: Values = data.astype(np.float32) * rows["scales"]
    return values


def _grouped(bits: int, group: int) -> Scheme:
    attributes = {
        "axis": 0,
        "bits": bits,
        "group_size": group,
        "packing": {"order": "lsb_first", "per_word": 8 // bits, "word": "u8"},
        "scale_form": "f32_factors",
        "zero_point": {"form": "none"} if bits == 8 else {"form": "implied", "value": 8},
    }
    name = f"int{bits}" if group == GROUP else f"int{bits}:{group}"
    return Scheme(
        name, QUANT_GROUP, group, partial(_encode_group, bits=bits), partial(_decode_group, bits=bits), attributes
    )


def _encode_blocks(values: Values, name: str) -> dict[str, Rows]:
    return {"data": ENCODERS[name](values)}


def _decode_blocks(rows: Mapping[str, Rows], decode: Callable[[Rows], Values]) -> Values:
    return decode(rows["data"])


_BLOCK_SCHEMES = {
    block.name.lower(): Scheme(
        block.name.lower(),
        f"gguf.{block.name}",
        block.elements,
        partial(_encode_blocks, name=block.name),
        partial(_decode_blocks, decode=block.decode),
        {},
    )
    for block in BLOCKS.values()
    if block.name in ENCODERS and block.decode is not None
}
SCHEMES = ("int8", "int4", *_BLOCK_SCHEMES)
"""Names of schemes; int8 and int4 may have the size of a group, as in int4:128."""


def scheme_of(text: str, tensor: str | None = None) -> Scheme:
    """The scheme of a name."""
    known = _BLOCK_SCHEMES.get(text.lower()) if isinstance(text, str) else None
    if known is not None:
        return known
    match = _GROUPED.fullmatch(text.lower()) if isinstance(text, str) else None
    if match is None:
        names = ", ".join(SCHEMES)
        raise InputError(
            f"unknown quantization {text!r} (known: {names}; int4:128 has groups of 128)",
            rule="quantize.scheme",
            tensor=tensor,
        )
    bits, group = int(match[1][3:]), int(match[2] or GROUP)
    if group * bits % 8:
        raise InputError(f"groups of {group} do not fill whole bytes", rule="quantize.scheme", tensor=tensor)
    return _grouped(bits, group)


def scheme_fault(scheme: Scheme, dtype: DType | None, layout: str, shape: tuple[int, ...]) -> str | None:
    """Why a tensor cannot be quantized; None if it can."""
    if layout == "dense" and (dtype is None or dtype.numpy is None or dtype.kind != "real"):
        return "only real values can be quantized"
    if layout != "dense" and not can_dequantize(layout):
        return "its real values cannot be computed"
    if not shape or shape[-1] % scheme.group:
        return f"the last dimension of shape {list(shape)} is not a multiple of {scheme.group}"
    return None


class QuantizeCodec(ComputedCodec):
    """Decoding is quantizing. `account` has the errors after a full pass."""

    name = "quantize"

    def __init__(self, values: Callable[[], Iterator[Rows]], scheme: Scheme, part: str, account: Quantization) -> None:
        self._values = values
        self._scheme = scheme
        self._part = part
        self.account = account

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        largest = squares = 0.0
        count = 0
        for values in self._groups():
            if not np.isfinite(values).all():
                raise UnsupportedError(
                    "infinities and NaN cannot be quantized", rule="quantize.finite", tensor=payload.tensor
                )
            with np.errstate(all="ignore"):  # the inverse of a tiny scale overflows; its half precision is 0
                rows = self._scheme.encode(values)
            if self._part == "data":
                with np.errstate(all="ignore"):  # scales of half precision may overflow
                    error = self._scheme.decode(rows).astype(np.float64) - values
                if not np.isfinite(error).all():
                    raise UnsupportedError(
                        f"values too large for the scales of {self._scheme.name}",
                        rule="quantize.range",
                        tensor=payload.tensor,
                    )
                largest = max(largest, float(np.abs(error).max(initial=0)))
                squares += float(np.square(error).sum())
                count += error.size
            yield as_bytes(np.ascontiguousarray(rows[self._part]))
        rms = math.sqrt(squares / count) if count else 0.0
        self.account = replace(self.account, count=count, max_error=largest, rms_error=rms)

    def _groups(self) -> Iterator[Values]:
        """The values as rows of a group each."""
        group, left = self._scheme.group, np.empty(0, np.float32)
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity, which is refused
            for piece in self._values():
                values = np.concatenate((left, piece.astype(np.float32)))
                whole = len(values) - len(values) % group
                for start in range(0, whole, _PIECE_GROUPS * group):
                    yield values[start : min(whole, start + _PIECE_GROUPS * group)].reshape(-1, group)
                left = values[whole:]


def quantize_tensor(tensor: Tensor, scheme: Scheme, new_name: str) -> tuple[Tensor, QuantizeCodec]:
    """The quantized tensor, and the codec that has its errors once it has been written."""
    old, values = numbers_of(tensor)
    account = Quantization(tensor.name, old, scheme.name)
    parts: dict[str, Part] = {}
    codecs: dict[str, QuantizeCodec] = {}
    for name, (dtype, shape) in scheme.shapes(tensor.shape).items():
        codecs[name] = QuantizeCodec(values, scheme, name, account)
        nbytes = dtype.nbytes(math.prod(shape))
        parts[name] = Part(dtype, shape, codecs[name].payload(nbytes, tensor.name))
    attributes = {**scheme.attributes, "axis": len(tensor.shape) - 1} if scheme.attributes else {}
    declared = dense(BY_NAME["float32"], tensor.shape)
    return Tensor(new_name, parts, scheme.layout, declared, attributes), codecs["data"]


def quantize(value: Any, to: str = "int8") -> tuple[Tensor, Quantization]:
    """A tensor of small integers with scales, and the errors: `max_error` and `rms_error`.

    `to` is `"int8"` or `"int4"`, with a scale for each 32 values along the last axis, or
    `"int4:128"` for each 128; or a block type of GGML: `"q8_0"`, `"q4_0"`, `"q4_1"`,
    `"q5_0"`, `"q5_1"`. `Tensor.dequantize()` gives the real values; `save` takes the tensor.
    """
    from tensorglot.dynd.coerce.anything import coerce  # here, because `convert` does not need it

    scheme = scheme_of(to)
    tensor = coerce(value, name="")
    fault = scheme_fault(
        scheme, tensor.parts["data"].dtype if tensor.layout == "dense" else None, tensor.layout, tensor.shape
    )
    if fault is not None:
        raise InputError(f"cannot quantize to {scheme.name}: {fault}", rule="quantize.value")
    quantized, codec = quantize_tensor(tensor, scheme, tensor.name)
    parts = {name: _in_memory(part) for name, part in quantized.parts.items()}
    return replace(quantized, parts=parts), codec.account


def _in_memory(part: Part) -> Part:
    raw = np.frombuffer(part.payload.read(0, part.nbytes), np.uint8)
    return part._replace(payload=Memory(raw.view(part.numpy_dtype()).reshape(part.shape)))
