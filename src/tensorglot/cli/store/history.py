"""Commits and refs: made, listed, shown, compared, written to files.

`log` shows what each commit holds, what it changed, and how many bytes it added to the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tensorglot.cli.complete import complete_refs
from tensorglot.cli.options import PATH, as_json, pairs, source_of, storage_options_for, writing_options
from tensorglot.cli.store.shared import open_store, print_commit, share_text, store_argument
from tensorglot.cli.terminal import (
    Column,
    escape_whole,
    message,
    print_fields,
    print_json,
    print_result,
    print_table,
    progress_bar,
)
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.store import Commit
    from tensorglot.store.stats import CommitCost


__all__ = ["checkout", "commit", "delete", "diff", "init", "log", "refs", "show", "tag"]

_SHORT = 12
"""Characters of a CID: the first seven are the same for all commits."""


@click.command
@store_argument
@as_json
def init(store: str, as_json: bool) -> None:
    """Make an empty store.

    \b
    Example:
      tensorglot store init run
    """
    from tensorglot.store import Store

    Store.create(store, storage_options_for(store))
    text = f"{escape_whole(store)} is a store; next: tensorglot store commit {escape_whole(store)} FILE"
    print_result({"store": store}, text, as_json=as_json)


@click.command
@store_argument
@click.argument("file", type=PATH)
@click.option(
    "--ref", default="main", show_default=True, help="The ref to move to the new commit.", shell_complete=complete_refs
)
@click.option("-m", "--message", "text", default="", help="A message.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata, instead of that of the file.")
@click.option("--parent", help="The parent, if it is not the present commit of the ref.", shell_complete=complete_refs)
@as_json
def commit(
    store: str, file: str, ref: str, text: str, metadata: Sequence[str], parent: str | None, as_json: bool
) -> None:
    """Store a file, or a directory of shards, as the next commit of a ref.

    \b
    Example:
      tensorglot store commit run model.safetensors -m 'step 100'
    """
    opened = open_store(store)
    given = pairs(metadata, "--metadata") or None
    with progress_bar("committing") as progress:
        made = opened.commit(
            ref,
            source_of(file),
            message=text,
            metadata=given,
            parent=parent,
            progress=progress,
            storage_options=storage_options_for(file),
        )
    print_commit(made, as_json)


@click.command
@store_argument
@click.argument("ref", required=False, shell_complete=complete_refs)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="List at most this many commits, the newest.")
@as_json
def log(store: str, ref: str | None, limit: int | None, as_json: bool) -> None:
    """List the commits of a ref, and the bytes that each added; without REF, of every ref.

    The newest commit comes first. "changed" counts tensors that no earlier commit has,
    "stored" is the bytes that the commit added, "share" their part of its size, and
    "refs" the names of the commit. Of a message the first line is listed; `store show`
    prints all of it. With --limit, only the commits listed and the one before them are
    read.

    \b
    Example:
      tensorglot store log run main
    """
    opened = open_store(store)
    refs = opened.refs()
    found: dict[str, list[CommitCost]] = {}
    for name in [ref] if ref is not None else refs:
        found[name] = opened.costs(name, limit)[::-1]
    if as_json:
        print_json({name: [_flat(cost) for cost in costs] for name, costs in found.items()})
        return
    # A commit of several refs is listed once.
    unique = {cost.commit.cid: cost for costs in found.values() for cost in costs}
    costs = sorted(unique.values(), key=lambda cost: cost.commit.time, reverse=True)
    if not costs:
        message("the store has no commits yet")
        return
    print_table(
        [
            Column("commit", [cost.commit.cid[:_SHORT] for cost in costs]),
            Column("time", [_when(cost.commit.time) for cost in costs]),
            Column("changed", [f"{cost.changed:,}/{cost.tensors:,}" for cost in costs], right=True),
            Column("stored", [human_nbytes(cost.stored_nbytes) for cost in costs], right=True),
            Column("share", [share_text(cost.stored_nbytes, cost.nbytes) for cost in costs], right=True),
            Column("refs", [_names(cost.commit, refs) for cost in costs], elastic=True, prose=True),
            Column("message", [_subject(cost.commit.message) for cost in costs], elastic=True, prose=True),
        ]
    )
    nbytes, stored = sum(cost.nbytes for cost in costs), sum(cost.stored_nbytes for cost in costs)
    print(f"{plural(len(costs), 'commit')}, {human_nbytes(nbytes)} stored in {human_nbytes(stored)}")


def _subject(message: str) -> str:
    """The first line of a message."""
    first, *others = message.strip().splitlines() or [""]
    return escape_whole(first) + (" …" if others else "")


def _when(time: datetime) -> str:
    """A short time: without the year if it is in this year, else without the hour."""
    local = time.astimezone()
    return f"{local:%m-%d %H:%M}" if local.year == datetime.now().astimezone().year else f"{local:%Y-%m-%d}"


def _names(commit: Commit, refs: Mapping[str, str]) -> str:
    return ", ".join(escape(name, longest=40) for name, cid in refs.items() if cid == commit.cid)


def _flat(cost: CommitCost) -> dict[str, Any]:
    numbers = {key: value for key, value in cost.to_dict().items() if key != "commit"}
    return {**cost.commit.to_dict(), **numbers}


@click.command
@store_argument
@click.argument("ref", shell_complete=complete_refs)
@as_json
def show(store: str, ref: str, as_json: bool) -> None:
    """Describe one commit. Its tensors: tensorglot ls store://STORE#REF.

    \b
    Example:
      tensorglot store show run main
    """
    found = open_store(store).show(ref)
    if as_json:
        print_json(found.to_dict())
        return
    fields = [
        ("commit", found.cid),
        ("parents", ", ".join(found.parents) or "none"),
        ("time", f"{found.time:%Y-%m-%d %H:%M:%S} UTC"),
        ("message", escape_whole(found.message)),
    ]
    fields += [(f"metadata {escape(key)}", escape_whole(str(value))) for key, value in (found.metadata or {}).items()]
    print_fields(fields)


@click.command
@store_argument
@click.argument("one", shell_complete=complete_refs)
@click.argument("two", shell_complete=complete_refs)
@as_json
def diff(store: str, one: str, two: str, as_json: bool) -> int:
    """Compare two commits of a store. Tensors that they share are not read.

    \b
    Example:
      tensorglot store diff run v1 main
    """
    from tensorglot.cli.diff import print_diff

    found = open_store(store).diff(one, two)
    return print_diff(found, one, two, as_json=as_json)


@click.command
@store_argument
@click.argument("ref", shell_complete=complete_refs)
@click.argument("file", type=PATH)
@writing_options
@as_json
def checkout(store: str, ref: str, file: str, as_json: bool, **writing: Any) -> None:
    """Write the tensors of a commit to a file, in any format.

    \b
    Example:
      tensorglot store checkout run main model.safetensors
    """
    import tensorglot as tg

    with open_store(store).checkout(ref) as archive, progress_bar("writing") as progress:
        report = tg.convert(archive, file, progress=progress, storage_options=storage_options_for(file), **writing)
    text = f"{escape_whole(file)}: {plural(report.tensors, 'tensor')}"
    print_result({"file": file, **report.to_dict()}, text, as_json=as_json)


@click.command
@store_argument
@click.argument("name")
@click.argument("ref", shell_complete=complete_refs)
@as_json
def tag(store: str, name: str, ref: str, as_json: bool) -> None:
    """Give a commit a name that stays.

    \b
    Example:
      tensorglot store tag run v1 main
    """
    opened = open_store(store)
    opened.tag(name, ref)
    cid = opened.refs()[name]
    print_result({"ref": name, "cid": cid}, f"{escape_whole(name)} is {cid}", as_json=as_json)


@click.command
@store_argument
@click.argument("ref", shell_complete=complete_refs)
@as_json
def delete(store: str, ref: str, as_json: bool) -> None:
    """Remove a ref or a tag. The next collect removes its commits, if no other ref leads to them.

    \b
    Example:
      tensorglot store delete run old
    """
    open_store(store).delete(ref)
    print_result({"deleted": ref}, f"{escape_whole(ref)} is deleted", as_json=as_json)


@click.command
@store_argument
@as_json
def refs(store: str, as_json: bool) -> None:
    """List branches and tags.

    A branch moves with each commit, a tag stays.

    \b
    Example:
      tensorglot store refs run
    """
    opened = open_store(store)
    found, tags = opened.refs(), opened.tags()
    kinds = ["tag" if name in tags else "branch" for name in found]
    if as_json:
        print_json({name: {"cid": cid, "kind": kind} for (name, cid), kind in zip(found.items(), kinds, strict=True)})
    elif found:
        names = [escape_whole(name) for name in found]
        columns = Column("ref", names, elastic=True), Column("kind", kinds), Column("commit", list(found.values()))
        print_table(list(columns))
