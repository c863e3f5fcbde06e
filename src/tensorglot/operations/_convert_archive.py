"""The archive that a conversion writes: the source's index, taken at the tensors of a plan, with what is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index
from tensorglot.model.tensor import Tensor
from tensorglot.operations._cast import Cast, CastCodec, cast_tensor
from tensorglot.operations._conversion_plan import Plan, Step
from tensorglot.operations.quantize import Quantization, QuantizeCodec, quantize_tensor, scheme_of
from tensorglot.threads import Executor

__all__ = ["Account", "make_archive"]

Account: TypeAlias = Cast | Quantization
"""What was done to the values of a tensor."""


def make_archive(
    archive: Archive, plan: Plan, *, attributes: bool, strict: bool, executor: Executor | None
) -> tuple[Archive, dict[str, CastCodec | QuantizeCodec]]:
    """The archive to be written, and the codecs of what is cast or quantized by the tensor's name in the source.

    Its index is that of the source, taken at the tensors of the plan; what is cast or quantized has
    new rows. `attributes` are kept if the target can store them.
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
        order[at] = len(index.names) + len(codecs) - 1
        # Attributes that say how a tensor is quantized say nothing of its real values.
        own = tensor.attributes if step.action == "cast" else computed.attributes
        computed_rows.append(replace(computed, name=step.target, attributes=own))
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
    return archive.with_index(kept), codecs


def _compute(
    tensor: Tensor, step: Step, *, strict: bool, executor: Executor | None
) -> tuple[Tensor, CastCodec | QuantizeCodec]:
    """The tensor in another type, or quantized."""
    if step.scheme is not None:
        return quantize_tensor(tensor, scheme_of(step.scheme), step.target)
    part, codec = cast_tensor(tensor, BY_NAME[step.new], strict=strict, executor=executor)
    return Tensor(step.target, {"data": part}), codec
