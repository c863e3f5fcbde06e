"""`tensorglot convert`: options become the arguments of `tg.convert`, its plan and report become text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.complete import complete_dtypes, complete_formats, complete_names, complete_schemes
from tensorglot.cli.options import (
    PATH,
    as_json,
    pairs,
    shape_text,
    source_of,
    storage_option,
    target_of,
    verb_options,
    writing_options,
)
from tensorglot.cli.terminal import WIDE, Column, informative, message, name_text, print_json, print_table
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.operations._cast import Cast
    from tensorglot.operations._conversion_plan import Plan
    from tensorglot.operations.convert import Conversion
    from tensorglot.operations.quantize import Quantization

__all__ = ["command"]

AMBIGUOUS = {
    "f8": "float64, float8_e4m3fn or float8_e5m2",
    "f4": "float32 or float4_e2m1fn",
    "i8": "int64 or int8",
    "i4": "int32 or int4",
    "u8": "uint64 or uint8",
    "u4": "uint32 or uint4",
    "float": "float32 or float64",
}
"""Types whose number is of bytes in NumPy and of bits elsewhere, and one that is not the same in NumPy and PyTorch."""
CASTS_SHOWN = 8
"""Tensors that were rounded are listed up to here."""


def _refuse_ambiguous(given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        name = text.rpartition("=")[2]
        if name in AMBIGUOUS:
            raise click.UsageError(f"--dtype {name} is ambiguous: pass {AMBIGUOUS[name]}.")
    return given


@click.command
@click.argument("source", type=PATH)
@click.argument("target", type=PATH)
@writing_options
@click.option(
    "--from",
    "from_",
    metavar="FORMAT",
    shell_complete=complete_formats,
    help="Format of the source; detected by default.",
)
@click.option(
    "--select",
    metavar="PATTERN",
    multiple=True,
    shell_complete=complete_names,
    help="Convert only tensors whose names match; may be repeated.",
)
@click.option("--rename", metavar="OLD=NEW", multiple=True, help="Rename tensors by name or pattern, e.g. 'model.*=*'.")
@click.option(
    "--dtype",
    metavar="[PATTERN=]TYPE",
    multiple=True,
    shell_complete=complete_dtypes,
    callback=lambda _context, _parameter, given: _refuse_ambiguous(given),
    help="Cast all tensors of the same kind, or those that match.",
)
@click.option(
    "--quantize",
    metavar="[PATTERN=]SCHEME",
    multiple=True,
    shell_complete=complete_schemes,
    help="Round matrices, or tensors that match, to int8, int4, int4:GROUP (.zt) or q8_0, q4_0, q4_1, q5_0, q5_1.",
)
@click.option("--metadata", metavar="KEY=VALUE", multiple=True, help="Write this metadata instead of the source's.")
@click.option("--sums", is_flag=True, help="Write checksums to TARGET.sums.")
@click.option(
    "--on-loss",
    type=click.Choice(["error", "warn", "drop"]),
    default="error",
    show_default=True,
    help="What to do if the target cannot store something.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan, write nothing.")
@storage_option
@as_json
def command(
    source: str,
    target: str,
    from_: str | None,
    select: tuple[str, ...],
    rename: tuple[str, ...],
    dtype: tuple[str, ...],
    quantize: tuple[str, ...],
    metadata: tuple[str, ...],
    sums: bool,
    on_loss: str,
    dry_run: bool,
    as_json: bool,
    **writing: Any,
) -> int:
    """Write the tensors of a file to another, in any format.

    The suffix of TARGET or --to gives the format. If the target cannot store
    something, that is an error: pass --on-loss drop to convert the rest. The target
    is replaced atomically. - is stdin or stdout.

    \b
    Examples:
      tensorglot convert model.safetensors model.bt --dry-run
      tensorglot convert model.bt half.bt --dtype bf16 --select 'layers.*'
      tensorglot convert model.bt model.gguf --quantize '*_proj.weight=q8_0'
      tensorglot convert old.bt - --to bintensors@1 | ssh host 'cat > new.bt'
    """
    import tensorglot as tg

    if target == "-" and sums:
        raise click.UsageError("--sums needs a file as TARGET.")
    with verb_options("converting") as options:
        report = tg.convert(
            source_of(source),
            target_of(target, writing["format"], as_json=as_json, dry_run=dry_run),
            source_format=from_,
            select=select or None,
            rename=pairs(rename, "--rename") or None,
            dtype=_one_or_pairs(dtype, "--dtype"),
            quantize=_one_or_pairs(quantize, "--quantize"),
            metadata=pairs(metadata, "--metadata") or None,
            sums=sums,
            on_loss="error" if on_loss == "error" else "drop",
            dry_run=dry_run,
            **writing,
            **options,
        )
    if as_json:
        print_json({"source": source, "target": target, **report.to_dict()})
    elif dry_run and report.plan is not None:
        _print_plan(report.plan)
    else:
        _print_done(target, report, on_loss)
    return 0 if report.ok else 4


def _one_or_pairs(given: Sequence[str], option: str) -> str | dict[str, str] | None:
    """One choice for all that it fits, or choices by pattern."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    return pairs(given, option) or None


def _print_done(target: str, report: Conversion, on_loss: str) -> None:
    from tensorglot.containers.table import named

    rate = f", {human_nbytes(report.nbytes / report.seconds)}/s" if report.seconds >= 1 else ""
    where = "" if target == "-" else f" to {target}"
    message(
        f"{plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)}{where}: {report.format}, "
        f"{report.seconds:.1f} s{rate}"
    )
    for text in (*_casts_text(report.casts), *_quantized_text(report.quantized)):
        message(text)
    for loss in report.losses:
        if on_loss == "warn" or loss.kind == "checksum":
            message(f"lost: {loss.error.describe(command_line=True)}")
    dropped = sum(loss.refused for loss in report.losses)
    if on_loss == "drop" and dropped:
        message(f"{plural(dropped, 'loss', 'losses')} dropped; --on-loss warn or --json lists each")
    spec, version = named(report.format or "")
    if version is not None and version in spec.notes:
        message(f"{spec.name}@{version}: {spec.notes[version]}")


def _casts_text(casts: Sequence[Cast]) -> Iterator[str]:
    """A line for each tensor with rounded or overflowed values; for many tensors, only overflows and a total."""
    lossy = [cast for cast in casts if cast.rounded or cast.overflowed]
    many = len(lossy) > CASTS_SHOWN
    for cast in lossy:
        if cast.overflowed or not many:
            yield f"{escape(cast.tensor)}: {cast.old} to {cast.new}, {_lost(cast.rounded, cast.overflowed, cast.count)}"
    if many:
        rounded, overflowed, count = (
            sum(getattr(c, name) for c in casts) for name in ("rounded", "overflowed", "count")
        )
        yield f"{plural(len(casts), 'tensor')} cast: {_lost(rounded, overflowed, count)}; --json has each"


def _quantized_text(quantized: Sequence[Quantization]) -> Iterator[str]:
    """A line for each tensor; if there are many, one for the worst of each scheme."""
    worst: dict[str, Quantization] = {}
    for one in quantized:
        worst[one.new] = max(worst.get(one.new, one), one, key=lambda q: q.rms_error)
    many = len(quantized) > CASTS_SHOWN
    for one in worst.values() if many else quantized:
        where = f"{plural(len(quantized), 'tensor')} quantized, the worst: " if many else ""
        yield (
            f"{where}{escape(one.tensor)}: {one.old} to {one.new}, error at most {one.max_error:.3g}, "
            f"RMS {one.rms_error:.3g}{'; --json has each' if many else ''}"
        )


def _lost(rounded: int, overflowed: int, count: int) -> str:
    what = [f"{number:,} {word}" for number, word in ((rounded, "rounded"), (overflowed, "overflowed")) if number]
    return f"{' and '.join(what)} of {count:,} values"


def _print_plan(plan: Plan) -> None:
    steps = plan.steps
    types = [step.old if step.new == step.old else f"{step.old} → {step.new}" for step in steps]
    columns = [
        Column("name", [name_text(step.source) for step in steps], elastic=True),
        Column("becomes", ["" if s.target == s.source else name_text(s.target) for s in steps], elastic=True),
        Column("action", [step.action for step in steps]),
        Column("type", types, elastic=max(map(len, types), default=0) > WIDE),
        Column("shape", [shape_text(step.shape) for step in steps], elastic=True),
        Column("size", [human_nbytes(step.nbytes) for step in steps], right=True),
        Column("tied to", ["" if step.tied is None else name_text(step.tied) for step in steps], elastic=True),
    ]
    print_table([column for column in columns if column.title == "name" or informative(column, "")])
    print(
        f"{plan.source} to {plan.target}: {plural(len(steps), 'tensor')}, "
        f"{human_nbytes(plan.stored_nbytes)} to read, {human_nbytes(plan.nbytes)} to write"
        + (f" before {plan.compression}" if plan.compression else "")
    )
    for loss in plan.losses:
        print(f"lost: {loss.error.describe(command_line=True)}")
