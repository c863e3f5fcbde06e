"""The archive that a conversion writes: the source's index, taken at the tensors of a plan, with casts in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._cast import CastCodec, cast_tensor
from tensorglot.operations._conversion_plan import Plan
from tensorglot.threads import Executor

__all__ = ["make_archive"]


def make_archive(
    archive: Archive, plan: Plan, *, attributes: bool, strict: bool, executor: Executor | None
) -> tuple[Archive, dict[str, CastCodec]]:
    """The archive to be written, and the codecs of its casts by the tensor's name in the source.

    Its index is that of the source, taken at the tensors of the plan; cast tensors have new
    rows. `attributes` are kept if the target can store them.
    """
    index = archive.index
    order = np.array([index.positions[step.source] for step in plan.steps], np.int64)
    codecs: dict[str, CastCodec] = {}
    parts: dict[str, tuple[Part, CastCodec]] = {}
    builder = IndexBuilder(archive.limits, "convert")
    for at, step in enumerate(plan.steps):
        if step.action not in ("cast", "dequantize"):
            continue
        tensor = archive[step.source]
        if step.tied is None:
            parts[step.target] = cast_tensor(tensor, BY_NAME[step.new], strict=strict, executor=executor)
        part, codecs[step.source] = parts[step.tied or step.target]
        # Attributes that say how a tensor is quantized say nothing of its real values.
        kept_attributes = tensor.attributes if step.action == "cast" else {}
        order[at] = len(index.names) + len(codecs) - 1
        builder.add_tensor(Tensor(step.target, {"data": part}, attributes=kept_attributes))
    if codecs:
        index = Index.concat([index, builder.index(index.format)], format=index.format)
    kept = index.take(order)
    kept = replace(
        kept,
        names=[step.target for step in plan.steps],
        metadata=plan.metadata,
        attributes=kept.attributes if attributes else {},
    )
    return archive.with_index(kept), codecs
