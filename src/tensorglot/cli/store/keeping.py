"""A store as a whole: checked, cleaned, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorglot.cli.options import as_json
from tensorglot.cli.store.shared import open_store, store_argument
from tensorglot.cli.terminal import escape_whole, print_fields, print_json, progress_bar
from tensorglot.errors import human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.store.collect import Collected

__all__ = ["check", "collect", "repack", "stats"]


@click.command
@store_argument
@click.option("--data", is_flag=True, help="Also decode and hash every block.")
@as_json
def check(store: str, data: bool, as_json: bool) -> int:
    """Check that a store has everything its refs lead to. Exits with 1 if not.

    \b
    Example:
      tensorglot store check run --data
    """
    with progress_bar("checking", unit="blocks") as progress:
        report = open_store(store).check(data=data, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        for problem in report.problems:
            print(escape_whole(str(problem)))
        what = f"{report.checksums:,} blocks hashed" if data else "structure; --data also hashes every block"
        state = "ok" if report.ok else plural(len(report.problems), "problem")
        print(f"{state}: {plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)} ({what})")
    return 0 if report.ok else 1


_grace = click.option(
    "--grace",
    type=click.FloatRange(min=0),
    help="Seconds that something must have been unreachable before it is removed. Default: a day.",
)


@click.command
@store_argument
@_grace
@as_json
def collect(store: str, grace: float | None, as_json: bool) -> None:
    """Remove what no ref leads to. Safe while other processes write.

    \b
    Example:
      tensorglot store collect run --grace 3600
    """
    opened = open_store(store)
    _print_collected(opened.collect() if grace is None else opened.collect(grace), as_json)


@click.command
@store_argument
@_grace
@as_json
def repack(store: str, grace: float | None, as_json: bool) -> None:
    """Join small packs, drop garbage from large ones, and collect.

    \b
    Example:
      tensorglot store repack run
    """
    opened = open_store(store)
    _print_collected(opened.repack() if grace is None else opened.repack(grace), as_json)


def _print_collected(found: Collected, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
        return
    print(f"removed {plural(found.packs, 'pack')}, {human_nbytes(found.nbytes)}")
    if found.waiting:
        later = f"{plural(found.waiting, 'pack')}, {human_nbytes(found.waiting_nbytes)}"
        print(f"{later} unneeded, to be removed after the grace period or when their writers are done")


@click.command
@store_argument
@as_json
def stats(store: str, as_json: bool) -> None:
    """Sizes: what a store holds, and what it takes on disk.

    \b
    Example:
      tensorglot store stats run
    """
    found = open_store(store).stats()
    if as_json:
        print_json(found.to_dict())
        return
    saved = f", {found.logical_nbytes / found.stored_nbytes:.1f} times less" if found.stored_nbytes else ""
    print_fields(
        [
            ("commits", f"{found.commits:,}"),
            ("tensors", f"{found.tensors:,} different"),
            ("as files", f"{human_nbytes(found.logical_nbytes)}, each commit in full"),
            ("distinct", f"{human_nbytes(found.unique_nbytes)}, equal chunks counted once"),
            ("stored", human_nbytes(found.stored_nbytes) + saved),
            ("packs", f"{found.packs:,} with {plural(found.blocks, 'block')}"),
        ]
    )
