"""The archive that a conversion writes: the rows of the source that a plan keeps, and new rows for computed tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tensorglot.containers.table import named
from tensorglot.errors import TruncatedError
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index
from tensorglot.model.layouts import SPARSE, user_attributes
from tensorglot.model.payload import as_bytes, buffers
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import dense
from tensorglot.operations._cast import Cast, CastCodec, cast_tensor
from tensorglot.operations._conversion_plan import Plan, Step
from tensorglot.operations.quantize import Quantization, QuantizeCodec, quantize_tensor, scheme_of
from tensorglot.threads import Executor

__all__ = ["Account", "accounts_of", "make_archive", "row_bytes"]

Account: TypeAlias = Cast | Quantization
"""What was done to the values of a tensor."""


def make_archive(
    archive: Archive, plan: Plan, *, attributes: bool, strict: bool, executor: Executor | None
) -> tuple[Archive, dict[str, CastCodec | QuantizeCodec]]:
    """The archive to be written; and the codecs that cast or quantize, by the tensor's name in the source.

    Its index has the rows of the source that the plan keeps, and new rows for tensors that are cast or
    quantized. `attributes` says whether the target can store attributes.
    """
    index = archive.index
    order = np.array([index.positions[step.source] for step in plan.steps], np.int64)
    codecs: dict[str, CastCodec | QuantizeCodec] = {}
    made: dict[str, tuple[Tensor, CastCodec | QuantizeCodec]] = {}
    computed_rows: list[Tensor] = []
    for at, step in enumerate(plan.steps):
        if step.action not in ("cast", "dequantize", "quantize"):
            continue
        tensor = archive[step.source]
        if step.tied is None:
            made[step.target] = _compute(tensor, step, strict=strict, executor=executor)
        computed, codecs[step.source] = made[step.tied or step.target]
        order[at] = len(index.names) + len(codecs) - 1  # the computed tensors follow those of the source
        # Attributes that say how a tensor was quantized say nothing of its new values.
        own = {key: tensor.attributes[key] for key in user_attributes(index, index.positions[step.source])}
        computed_rows.append(replace(computed, name=step.target, attributes={**own, **computed.attributes}))
    if computed_rows:
        builder = IndexBuilder(archive.limits, "convert")
        for tensor in computed_rows:
            builder.add_tensor(tensor)
        index = Index.concat([index, builder.index(index.format)], format=index.format)
    kept = index.take(order)
    kept = replace(
        kept,
        names=[step.target for step in plan.steps],
        metadata=plan.metadata,
        attributes=kept.attributes if attributes else {},
    )
    if attributes and any(loss.kind == "attributes" for loss in plan.losses):
        kept = replace(kept, attributes=_storable_attributes(kept, plan.target))
    return archive.with_index(kept), codecs


def _storable_attributes(index: Index, target: str) -> dict[int, Mapping[str, Any]]:
    """The attributes that a format can store, by position."""
    spec, version = named(target)
    storable: dict[int, Mapping[str, Any]] = {}
    for position, attributes in index.attributes.items():
        dtype = None if position in index.layouts else index.dtype_name(index.rows(position)[0])
        faults = spec.container.attribute_faults(attributes, dtype, version or "")
        storable[position] = {key: value for key, value in attributes.items() if key not in faults}
    return storable


def accounts_of(codecs: Mapping[str, CastCodec | QuantizeCodec]) -> list[Account]:
    """What was done to the values of each tensor that was cast or quantized, once it has been written."""
    return [replace(codec.account, tensor=name) for name, codec in codecs.items()]


def row_bytes(converted: Archive, row: int) -> Iterator[memoryview]:
    """The bytes of a row as the target stores them; raises if their number is not the one that the layout assumes."""
    nbytes, expected = 0, int(converted.index.nbytes[row])
    for data in map(as_bytes, buffers(converted.chunks(np.array([row])))):
        nbytes += len(data)
        yield data
    if nbytes != expected:
        raise TruncatedError(
            f"the tensor was decoded to {nbytes} bytes, its type and shape need {expected}",
            rule="convert.size",
            tensor=converted.index.name_of(row),
        )


def _compute(
    tensor: Tensor, step: Step, *, strict: bool, executor: Executor | None
) -> tuple[Tensor, CastCodec | QuantizeCodec]:
    """The tensor in another type, or quantized."""
    if step.scheme is not None:
        return quantize_tensor(tensor, scheme_of(step.scheme), step.target)
    new = BY_NAME[step.new]
    if tensor.layout in SPARSE:
        values = Tensor(tensor.name, {"data": tensor.parts["values"]})
        part, codec = cast_tensor(values, new, strict=strict, executor=executor)
        parts = {**tensor.parts, "values": part}
        return Tensor(step.target, parts, tensor.layout, dense(new, tensor.shape)), codec
    part, codec = cast_tensor(tensor, new, strict=strict, executor=executor)
    return Tensor(step.target, {"data": part}), codec
