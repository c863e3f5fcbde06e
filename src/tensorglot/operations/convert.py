"""Converting: a plan, the caller's word on its losses, then one save of an archive that stands for the source.

That archive has the source's index, taken at the tensors wanted, under the target's
names. So raw tensors are copied by the OS (copy_file_range), encoded ones decoded piece
by piece, cast ones cast on the way, all by the path of every other save: atomic, in
bounded memory. Checksums of the source are compared in the pass that copies its bytes:
a broken tensor ends the conversion, and never gets a new checksum.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from tensorglot.arguments import as_path, check_choice
from tensorglot.containers.table import Format, for_target
from tensorglot.errors import Hint, InputError, LossWarning, UnsupportedError, counted
from tensorglot.io.sink import Writable
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index
from tensorglot.model.tensor import Part, Tensor, human_nbytes
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._cast import Cast, cast_part, dequantized_part
from tensorglot.operations._conversion_plan import ConvertOptions, Loss, Plan, make_plan
from tensorglot.operations._options import AUTO, Choice, SaveOptions
from tensorglot.operations._patterns import DTypes, Rename, Select
from tensorglot.operations._progress import Progress
from tensorglot.operations._sidecar import check_place, write_sidecar
from tensorglot.operations.open import Verify, open
from tensorglot.operations.save import check_expressible, write_archive
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
        losses = f", {counted(len(self.losses), 'loss', 'losses')}: {self.losses[0]}" if self.losses else ""
        tensors = counted(self.tensors, "tensor")
        return f"Conversion({self.format}, {tensors}, {human_nbytes(self.nbytes)} {verb}{losses})"


def convert(
    source: Given,
    target: Writable,
    *,
    format: str | None = None,
    select: Select | None = None,
    rename: Rename | None = None,
    dtype: DTypes | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: Choice = None,
    level: int | None = None,
    checksum: Choice = AUTO,
    sums: bool = False,
    on_loss: OnLoss = "error",
    dry_run: bool = False,
    source_format: str | None = None,
    verify: Verify = "auto",
    executor: Executor | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
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
    check_choice(on_loss, ("error", "warn", "drop"), "on_loss", "convert.on_loss")
    path = as_path(target) if isinstance(target, (str, os.PathLike)) else None
    if sums and path is None:
        raise InputError("sums needs a path as target", rule="sums.source")
    if sums and path is not None:
        check_place(path)
    options = ConvertOptions(
        select=select,
        rename=rename,
        dtype=dtype,
        metadata=metadata,
        sums=sums,
        save=SaveOptions(compression=compression, level=level, checksum=checksum, durable=durable, progress=progress),
    )
    begun = time.perf_counter()
    spec, version = for_target(target, format)
    with as_archive(source, format=source_format, verify=verify, limits=limits) as archive:
        plan = make_plan(archive, spec, version, options)
        refused = tuple(loss for loss in plan.losses if loss.refused) if on_loss == "error" else ()
        converted, accounts = _archive_of(archive, plan, spec, on_loss, executor)
        settled = plan.save.settle(spec, version, converted.index.names)
        check_expressible(converted, spec)
        if dry_run:
            return _report(plan, (), begun, refused)
        if refused:
            raise _refusal(refused)
        if on_loss == "warn":
            for loss in plan.losses:
                warnings.warn(str(loss), LossWarning, stacklevel=2)
        write_archive(target, converted, spec, settled, plan.save)
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
        f"{first.message}{others}",
        rule=f"convert.{first.kind}",
        tensor=first.tensor,
        hint=Hint("pass on_loss='drop' to convert the rest", "pass --on-loss drop to convert the rest"),
    )


def _archive_of(
    archive: Archive, plan: Plan, spec: Format, on_loss: OnLoss, executor: Executor | None
) -> tuple[Archive, list[Callable[[], Cast]]]:
    """The archive to be written, and what will know how its casts went.

    Its index is that of the source, taken at the tensors of the plan; what is cast has rows of its own.
    """
    index = archive.index
    order = np.array([index.positions[step.source] for step in plan.steps], np.int64)
    made, accounts = _cast_tensors(archive, plan, strict=on_loss == "error", executor=executor)
    if made:
        builder = IndexBuilder(archive.limits, "convert")
        for tensor in made.values():
            builder.add_tensor(tensor)
        index = Index.concat([index, builder.index(index.format)], format=index.format)
        for new, at in enumerate(made, len(archive.index.names)):
            order[at] = new
    kept = index.take(order)
    kept = replace(
        kept,
        names=[step.target for step in plan.steps],
        metadata=plan.metadata,
        attributes=kept.attributes if spec.attributes else {},
    )
    return archive.with_index(kept), accounts


def _cast_tensors(
    archive: Archive, plan: Plan, *, strict: bool, executor: Executor | None
) -> tuple[dict[int, Tensor], list[Callable[[], Cast]]]:
    """Tensors that are in another type in the target, by their steps. Tied ones share what is made."""
    made: dict[int, Tensor] = {}
    by_name: dict[str, tuple[Part, Callable[[], Cast]]] = {}
    accounts: list[Callable[[], Cast]] = []
    for at, step in enumerate(plan.steps):
        if step.action not in ("cast", "dequantize"):
            continue
        tensor = archive[step.source]
        # Attributes that say how a tensor is quantized say nothing of its real values.
        attributes = tensor.attributes if step.action == "cast" else {}
        new = BY_NAME[step.new]
        if step.tied is not None:
            part, account = by_name[step.tied]
        elif step.action == "cast":
            part, account = cast_part(tensor.parts["data"], new, step.source, strict=strict, executor=executor)
        else:
            part, account = dequantized_part(tensor, new, step.source, strict=strict, executor=executor)
        by_name[step.target] = part, account
        accounts.append(partial(_account_of, step.source, account))
        made[at] = Tensor(step.target, {"data": part}, attributes=attributes)
    return made, accounts


def _account_of(tensor: str, account: Callable[[], Cast]) -> Cast:
    """What became of a tensor; of a tied one, the same as of the one that it is tied to."""
    return replace(account(), tensor=tensor)
