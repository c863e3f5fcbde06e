"""Commits from one store to another, directly or in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from tensorglot.cli.complete import complete_refs
from tensorglot.cli.options import PATH, as_json, storage_options_for
from tensorglot.cli.store.shared import open_store, print_commit, store_argument
from tensorglot.cli.terminal import escape_whole, print_result, progress_bar
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.store.transfer import Transferred


__all__ = ["bundle", "pull", "push", "unbundle"]

_other = click.argument("other", metavar="STORE2", type=PATH)
_refs = click.argument("refs", nargs=-1, shell_complete=complete_refs)


@click.command
@store_argument
@_other
@_refs
@as_json
def push(store: str, other: str, refs: Sequence[str], as_json: bool) -> None:
    """Copy refs, all or those named, to another store. Only blocks that it lacks are copied.

    \b
    Example:
      tensorglot store push run backup main
    """
    _transfer(open_store(store).push, "pushing", other, refs, as_json)


@click.command
@store_argument
@_other
@_refs
@as_json
def pull(store: str, other: str, refs: Sequence[str], as_json: bool) -> None:
    """Copy refs, all or those named, from another store. Only missing blocks are copied.

    \b
    Example:
      tensorglot store pull backup run
    """
    _transfer(open_store(store).pull, "pulling", other, refs, as_json)


def _transfer(run: Callable[..., Transferred], what: str, other: str, refs: Sequence[str], as_json: bool) -> None:
    """Runs `push` or `pull`, and prints what was copied."""
    with progress_bar(what) as progress:
        found = run(other, refs or None, progress=progress, storage_options=storage_options_for(other))
    names = ", ".join(escape(name) for name in found.refs) or ("no ref" if found.blocks else "nothing")
    text = f"{names} moved: {plural(found.blocks, 'block')}, {human_nbytes(found.nbytes)}"
    print_result(found.to_dict(), text, as_json=as_json)


@click.command
@store_argument
@click.argument("ref", shell_complete=complete_refs)
@click.argument("file", type=PATH)
@click.option(
    "--have",
    metavar="REF",
    help="A commit that the receiver has; its blocks are left out.",
    shell_complete=complete_refs,
)
@as_json
def bundle(store: str, ref: str, file: str, have: str | None, as_json: bool) -> None:
    """Write a commit and all commits before it to one file (CAR), for another store.

    REF is a ref, a tag or the CID of a commit, which arrives as a tag.

    \b
    Example:
      tensorglot store bundle run main run.car
    """
    with progress_bar("bundling") as progress:
        options = storage_options_for(file)
        found = open_store(store).bundle(file, ref, have=have, progress=progress, storage_options=options)
    text = f"{escape_whole(file)}: {plural(found.blocks, 'block')}, {human_nbytes(found.nbytes)}"
    print_result({"file": file, **found.to_dict()}, text, as_json=as_json)


@click.command
@store_argument
@click.argument("file", type=PATH)
@as_json
def unbundle(store: str, file: str, as_json: bool) -> None:
    """Add the commits of a bundle to a store, and move its ref.

    \b
    Example:
      tensorglot store unbundle backup run.car
    """
    with progress_bar("unbundling") as progress:
        made = open_store(store).unbundle(file, progress=progress, storage_options=storage_options_for(file))
    print_commit(made, as_json)
