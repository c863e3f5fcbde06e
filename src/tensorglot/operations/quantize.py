"""Quantizing one value in memory. Files are quantized by `convert(quantize=…)`, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._quantize import Quantization, quantize_tensor, scheme_of, why_not

__all__ = ["quantize"]


def quantize(value: Any, to: str = "int8") -> tuple[Tensor, Quantization]:
    """A tensor of small integers with scales, and the errors: `max_error` and `rms_error`.

    `to` is `"int8"` or `"int4"`, with a scale for each 32 values along the last axis, or
    `"int4:128"` for each 128; or a block type of GGML: `"q8_0"`, `"q4_0"`, `"q4_1"`,
    `"q5_0"`, `"q5_1"`. `Tensor.dequantize()` gives the real values; `save` takes the tensor.
    """
    scheme = scheme_of(to)
    tensor = coerce(value, name="")
    fault = why_not(
        scheme, tensor.parts["data"].dtype if tensor.layout == "dense" else None, tensor.layout, tensor.shape
    )
    if fault is not None:
        raise InputError(f"cannot quantize to {scheme.name}: {fault}", rule="quantize.value")
    quantized, codec = quantize_tensor(tensor, scheme, tensor.name)
    parts = {name: _in_memory(part) for name, part in quantized.parts.items()}
    return replace(quantized, parts=parts), codec.account


def _in_memory(part: Part) -> Part:
    raw = np.frombuffer(part.payload.read(0, part.nbytes), np.uint8)
    return replace(part, payload=Memory(raw.view(part.numpy_dtype()).reshape(part.shape)))
