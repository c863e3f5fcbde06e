"""Converting: a plan, the caller's word on its losses, then one save of an archive that stands for the source.

That archive has the source's payloads under the target's names. So raw tensors are
copied by the kernel, encoded ones decoded piece by piece, cast ones cast on the way,
all by the path of every other save: whole or absent, in bounded memory. Checksums of
the source are checked before its bytes go on: a broken tensor must not get a new one.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from tensorglot.containers.table import Format, PerTensor, WriteOptions, for_target
from tensorglot.errors import InputError, LossWarning, UnsupportedError
from tensorglot.io.sink import Writable
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.joined import taken
from tensorglot.model.tensor import Tensor, human_nbytes
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._cast import Cast, cast_part, dequantized_part
from tensorglot.operations._checksums import row_checks
from tensorglot.operations._conversion_plan import ConvertOptions, Loss, Plan, make_plan
from tensorglot.operations._patterns import DTypes, Rename, Select
from tensorglot.operations._sidecar import write_sidecar
from tensorglot.operations.collect import collect
from tensorglot.operations.open import Verify, open
from tensorglot.operations.save import Progress, check_expressible, save_archive
from tensorglot.operations.verify import Problem, Report

__all__ = ["Conversion", "OnLoss", "convert"]

OnLoss: TypeAlias = Literal["error", "warn", "drop"]


@dataclass(frozen=True, slots=True, repr=False)
class Conversion(Report):
    """What `convert` did, or with `dry_run` would do."""

    plan: Plan | None = None
    casts: tuple[Cast, ...] = field(default=())
    seconds: float = 0.0
    written: bool = False

    @property
    def losses(self) -> tuple[Loss, ...]:
        return () if self.plan is None else self.plan.losses

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "written": self.written,
            "seconds": self.seconds,
            "problems": [problem.to_dict() for problem in self.problems],
            "casts": [cast.to_dict() for cast in self.casts],
            "plan": None if self.plan is None else self.plan.to_dict(),
        }

    def __repr__(self) -> str:
        verb = "converted" if self.written else "planned"
        losses = f", {len(self.losses)} losses: {self.losses[0]}" if self.losses else ""
        return f"Report({self.format}, {self.tensors} tensors, {human_nbytes(self.nbytes)} {verb}{losses})"


def convert(
    source: Given,
    target: Writable,
    *,
    format: str | None = None,
    select: Select | None = None,
    rename: Rename | None = None,
    dtype: DTypes | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: str | None = None,
    level: int | None = None,
    checksum: str | None = None,
    sums: bool = False,
    on_loss: OnLoss = "error",
    dry_run: bool = False,
    source_format: str | None = None,
    verify: Verify = "auto",
    executor: Executor | None = None,
    durable: bool = True,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Conversion:
    """Writes the tensors of one file to another, in the format of its suffix or of `format`.

    What the target cannot hold is named and refused; with `on_loss="warn"` it is named
    by a warning and left out, with `"drop"` only in the report. Checksums are checked on
    the way, and never refused; `sums` keeps them beside the target. `dtype` casts: a type
    for all tensors of its kind, or a mapping from patterns to types. A real type also
    gives the values of quantized tensors. Values too large for the new type are a loss
    too. `dry_run` makes the plan and writes nothing. The casts run on `executor` if one
    is given.
    """
    if on_loss not in ("error", "warn", "drop"):
        raise InputError(f"on_loss is 'error', 'warn' or 'drop', not {on_loss!r}", rule="convert.on_loss")
    path = target if isinstance(target, (str, os.PathLike)) else None
    if sums and path is None:
        raise InputError("checksums go beside a file that has a name", rule="sums.source")
    begun = time.perf_counter()
    spec, version = for_target(target, format)
    with as_archive(source, format=source_format, verify=verify, limits=limits) as archive:
        plan = make_plan(
            archive, spec, version, ConvertOptions(select, rename, dtype, metadata, compression, checksum, sums)
        )
        refused = tuple(loss for loss in plan.losses if loss.refused) if on_loss == "error" else ()
        converted, accounts = _converted(archive, plan, spec, on_loss, executor)
        options = WriteOptions(version, PerTensor(compression), level, PerTensor(plan.checksum))
        check_expressible(converted, spec, options)
        if dry_run:
            return _report(plan, (), begun, refused)
        if refused:
            raise _refusal(refused)
        if on_loss == "warn":
            for loss in plan.losses:
                warnings.warn(str(loss), LossWarning, stacklevel=2)
        _verify(archive, plan)
        save_archive(target, converted, spec, options, durable=durable, progress=progress)
    if sums and path is not None:
        with open(path, format=plan.target, verify="never") as written:
            write_sidecar(written, path)
    casts = tuple(account() for account in accounts)
    if on_loss == "warn":
        for cast in casts:
            if cast.overflowed:
                warnings.warn(f"{cast.tensor}: {cast.overflowed} values overflowed", LossWarning, stacklevel=2)
    return _report(plan, casts, begun, (), written=True)


def _report(
    plan: Plan, casts: tuple[Cast, ...], begun: float, refused: tuple[Loss, ...], *, written: bool = False
) -> Conversion:
    return Conversion(
        plan.target,
        tensors=len(plan.steps),
        nbytes=plan.nbytes,
        problems=tuple(Problem(f"convert.{loss.kind}", loss.message, loss.tensor) for loss in refused),
        plan=plan,
        casts=casts,
        seconds=time.perf_counter() - begun,
        written=written,
    )


def _refusal(losses: tuple[Loss, ...]) -> UnsupportedError:
    first = losses[0]
    others = f", and {len(losses) - 1} more" if len(losses) > 1 else ""
    return UnsupportedError(
        f"{first.message}{others}; refused unless on-loss is warn or drop",
        rule=f"convert.{first.kind}",
        tensor=first.tensor,
    )


def _verify(archive: Archive, plan: Plan) -> None:
    if row_checks(archive) is not None:
        for step in plan.steps:
            archive[step.source].verify()


def _converted(
    archive: Archive, plan: Plan, spec: Format, on_loss: OnLoss, executor: Executor | None
) -> tuple[Archive, list[Callable[[], Cast]]]:
    """The archive to be written, and what will know how its casts went."""
    index = archive.index
    kept = taken(index, np.array([index.positions[step.source] for step in plan.steps], np.int64))
    kept = replace(kept, names=[step.target for step in plan.steps], metadata=plan.metadata)
    if not any(step.action in ("cast", "dequantize") for step in plan.steps):
        return archive.with_index(kept if spec.attributes else replace(kept, attributes={})), []
    archive = archive.with_index(kept)
    tensors: dict[str, Tensor] = {}
    accounts: list[Callable[[], Cast]] = []
    strict = on_loss == "error"
    for position, step in enumerate(plan.steps):
        tensor = archive.tensor_at(position)
        # Attributes that say how a tensor is quantized say nothing of its real values.
        attributes = tensor.attributes if spec.attributes and step.action != "dequantize" else {}
        if step.action not in ("cast", "dequantize"):
            tensors[step.target] = replace(tensor, attributes=attributes)
            continue
        if step.tied is not None:
            part = tensors[step.tied].parts["data"]
        else:
            new = BY_NAME[step.new]
            if step.action == "cast":
                part, account = cast_part(tensor.parts["data"], new, step.source, strict=strict, executor=executor)
            else:
                part, account = dequantized_part(tensor, new, step.source, strict=strict, executor=executor)
            accounts.append(account)
        tensors[step.target] = Tensor(step.target, {"data": part}, attributes=attributes)
    return collect(tensors, plan.metadata), accounts
