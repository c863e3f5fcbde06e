"""Converting: make a plan, decide about its losses, then save an archive that has the source's index.

That index is taken at the selected tensors, under their new names. So raw tensors are
copied by the OS (copy_file_range), encoded ones decoded piece by piece, cast ones cast
on the way, all by the path of every other save: atomic, in bounded memory. Checksums of
the source are compared in the pass that copies its bytes: a corrupt tensor ends the
conversion, and never gets a new checksum.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tensorglot.arguments import check_choice, check_flags
from tensorglot.containers.table import for_target
from tensorglot.errors import Hint, LossWarning, UnsupportedError, escape, human_nbytes, plural
from tensorglot.io.local import add_path_to_errors
from tensorglot.io.place import Place
from tensorglot.io.sink import Writable
from tensorglot.limits import Limits
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._cast import Cast
from tensorglot.operations._conversion_plan import ConvertOptions, Loss, Plan, make_plan
from tensorglot.operations._convert_archive import accounts_of, make_archive
from tensorglot.operations._convert_on_workers import WorkerConversion, convert_on_workers
from tensorglot.operations._executor import can_send, refer_to
from tensorglot.operations._jsonable import field_dict
from tensorglot.operations._options import AUTO, Choice, SaveOptions
from tensorglot.operations._patterns import DTypes, Rename, Schemes, Select
from tensorglot.operations._places import locate_each
from tensorglot.operations._progress import Progress
from tensorglot.operations._sidecar import check_target, write_sidecar
from tensorglot.operations.open import OpenOptions, Verify, open_source
from tensorglot.operations.quantize import Quantization
from tensorglot.operations.save import check_bools, prepare, write_archive
from tensorglot.operations.verify import Problem, Report
from tensorglot.threads import Executor

__all__ = ["Conversion", "OnLoss", "convert"]

OnLoss: TypeAlias = Literal["error", "warn", "drop"]


@dataclass(frozen=True, slots=True, repr=False)
class Conversion(Report):
    """What `convert` did, or with `dry_run` would do."""

    plan: Plan | None = None
    casts: tuple[Cast, ...] = field(default=())
    quantized: tuple[Quantization, ...] = field(default=())
    seconds: float = 0.0
    written: bool = False

    @property
    def losses(self) -> tuple[Loss, ...]:
        return () if self.plan is None else self.plan.losses

    def to_dict(self) -> dict[str, Any]:
        return field_dict(self, "ok", "written", "seconds", "problems", "casts", "quantized", "plan")

    def __repr__(self) -> str:
        verb = "converted" if self.written else "planned"
        losses = f", {plural(len(self.losses), 'loss', 'losses')}: {self.losses[0]}" if self.losses else ""
        tensors = plural(self.tensors, "tensor")
        return f"Conversion({self.format}, {tensors}, {human_nbytes(self.nbytes)} {verb}{losses})"


def convert(
    source: TensorsLike,
    target: Writable,
    *,
    format: str | None = None,
    select: Select | None = None,
    rename: Rename | None = None,
    dtype: DTypes | None = None,
    quantize: Schemes | None = None,
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
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Writes the tensors of one file to another, in the format of its suffix or of `format`.

    What the target cannot store is an error; with `on_loss="warn"` it is left out with a
    warning, with `"drop"` it is only in the report. Checksums are compared on the way; one
    that the target cannot store is never an error, and `sums` writes a sidecar of them.
    `dtype` casts: a type for all tensors of its kind, or a mapping from patterns to types.
    A real type also converts quantized tensors to their real values. A value too large for
    the new type is a loss, too. `quantize` rounds to small integers with scales, for zTensor
    (`"int8"`, `"int4"`, `"int4:128"`) or GGUF (`"q8_0"`, …): one scheme for every matrix that
    it fits, or a mapping from patterns to schemes; the report has the errors of each tensor.
    `dry_run` makes the plan and writes nothing. With an `executor` (anything with `submit`)
    workers open the source, and write tensors to their places in the new file; of a source
    in memory, only the casts run there. `storage_options` apply to source and target
    if they are URLs.
    """
    check_flags(sums=sums, dry_run=dry_run)
    check_choice(on_loss, ("error", "warn", "drop"), "on_loss", "convert.on_loss")
    source, target = locate_each(storage_options, source, target)
    sidecar_of = check_target(target) if sums else None
    options = ConvertOptions(
        select=select,
        rename=rename,
        dtype=dtype,
        quantize=quantize,
        metadata=metadata,
        sums=sums,
        save=SaveOptions.of(compression, level, checksum, durable, progress),
    )
    begun = time.perf_counter()
    of_source = add_path_to_errors(source if isinstance(source, Place) else None)
    of_target = add_path_to_errors(target if isinstance(target, Place) else None)
    with of_target:
        spec, version = for_target(target, format)
    opening = OpenOptions.of(source_format, verify=verify, limits=limits)
    with as_archive(source, opening) as archive, of_source:
        plan = make_plan(archive, spec, version, options)
        report = Conversion(plan.target, tensors=len(plan.steps), nbytes=plan.nbytes, plan=plan)
        refused = [loss for loss in plan.losses if loss.refused] if on_loss == "error" else []
        if refused and not dry_run:
            with of_target:
                raise _refusal(refused)
        strict = on_loss == "error"
        if plan.steps or not refused:  # else there is nothing to write, which some formats refuse
            converted, codecs = make_archive(
                archive, plan, attributes=spec.attributes, strict=strict, executor=executor
            )
            with of_target:
                settled = prepare(converted, spec, version, plan.save)
        if dry_run:
            problems = tuple(Problem(f"convert.{loss.kind}", loss.message, loss.tensor) for loss in refused)
            return replace(report, problems=problems, seconds=time.perf_counter() - begun)
        for text in _warnings(plan.losses, on_loss):
            warnings.warn(text, LossWarning, stacklevel=2)
        check_bools(converted)
        if executor is not None and can_send(source):
            reference = refer_to(source, archive, opening)
            conversion = WorkerConversion(executor, reference, converted, plan, spec, settled, strict)
            accounts = convert_on_workers(conversion, target)
        else:
            write_archive(target, converted, spec, settled, plan.save)
            accounts = accounts_of(codecs)
    if sidecar_of is not None:
        with open_source(sidecar_of, OpenOptions(plan.target, verify="never")) as written:
            write_sidecar(written, sidecar_of)
    casts = tuple(account for account in accounts if isinstance(account, Cast))
    quantized = tuple(account for account in accounts if isinstance(account, Quantization))
    if on_loss == "warn":
        for cast in casts:
            if cast.overflowed:
                text = f"{escape(cast.tensor)}: {plural(cast.overflowed, 'value')} overflowed"
                warnings.warn(text, LossWarning, stacklevel=2)
    return replace(report, casts=casts, quantized=quantized, seconds=time.perf_counter() - begun, written=True)


def _warnings(losses: Sequence[Loss], on_loss: OnLoss) -> Iterator[str]:
    """The texts of warnings: each loss with on_loss="warn"; by default only ties, of which `save` also warns."""
    if on_loss == "warn":
        yield from map(str, losses)
    ties = [loss for loss in losses if loss.kind == "ties"]
    if on_loss == "error" and ties:
        yield f"{ties[0]}" + (f", and {len(ties) - 1} more" if len(ties) > 1 else "")


def _refusal(losses: Sequence[Loss]) -> UnsupportedError:
    first = next((loss for loss in losses if loss.fatal), losses[0])  # a tensor says more than its metadata
    hint = Hint("pass on_loss='drop' to convert the rest", "pass --on-loss drop to convert the rest")
    if len(losses) > 1:
        listed = f"lists all {len(losses):,} losses"
        hint = Hint(f"{hint.python}; dry_run=True {listed}", f"{hint.command_line}; --dry-run {listed}")
    return replace(first, hint=hint).error
