"""Deltas: the difference between two versions as a file, without a store."""

from __future__ import annotations

import click

from tensorglot.cli.options import PATH, as_json, source_of, storage_option, verb_options
from tensorglot.cli.store.shared import share_text
from tensorglot.cli.terminal import escape_whole, print_json, print_result
from tensorglot.errors import human_nbytes, plural

__all__ = ["apply", "delta"]


@click.command
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@click.argument("target", type=PATH)
@storage_option
@as_json
def delta(old: str, new: str, target: str, as_json: bool) -> None:
    """Write the difference from OLD to NEW to a small file, without a store.

    OLD and NEW are files, directories of shards or commits, as store://run#main. A delta
    is listed by ls and info and checked by verify.

    \b
    Example:
      tensorglot store delta step1.safetensors step2.safetensors step2.tgdelta
    """
    from tensorglot.store import delta

    with verb_options("comparing") as options:
        report = delta(source_of(old), source_of(new), target, **options)
    if as_json:
        print_json({"file": target, **report.to_dict()})
        return
    counts = [f"{report.changed:,} of {plural(report.tensors, 'tensor')} changed"]
    counts += [
        f"{len(names):,} {what}" for what, names in (("added", report.added), ("removed", report.removed)) if names
    ]
    size = f"{human_nbytes(report.stored_nbytes)}, {share_text(report.stored_nbytes, report.nbytes)} of the new version"
    print(f"{escape_whole(target)}: {', '.join(counts)}; {size}")


@click.command
@click.argument("delta", type=PATH)
@click.argument("file", type=PATH)
@click.option("-o", "--output", type=PATH, help="The file to write, in any format. Default: FILE is replaced.")
@storage_option
@as_json
def apply(delta: str, file: str, output: str | None, as_json: bool) -> None:
    """Apply a delta: turn FILE, the old version, into the new one.

    FILE must have the tensors that the delta was made from. Both versions are verified
    before anything is written, and a file is replaced atomically.

    \b
    Examples:
      tensorglot store apply step2.tgdelta model.safetensors
      tensorglot store apply step2.tgdelta step1.safetensors -o step2.safetensors
    """
    from tensorglot.store import patch

    target = output or file
    with verb_options("applying") as options:
        report = patch(delta, source_of(file), target, **options)
    text = f"{escape_whole(target)}: {plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)}, verified"
    print_result({"file": target, **report.to_dict()}, text, as_json=as_json)
