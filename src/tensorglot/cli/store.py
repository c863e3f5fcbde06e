"""`tensorglot store`: the methods of `tg.store.Store`, a command each.

`log` and `stats` are for people: what each commit holds, what it added, and how little of
it had to be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorglot.cli.options import (
    as_json,
    pairs,
    source_of,
    storage_option,
    storage_options,
    storage_options_for,
    writing_options,
)
from tensorglot.cli.terminal import (
    Column,
    escape_whole,
    message,
    print_fields,
    print_json,
    print_table,
    progress_bar,
)
from tensorglot.errors import escape, human_nbytes, plural

if TYPE_CHECKING:
    from tensorglot.store import Commit, Store
    from tensorglot.store.collect import Collected
    from tensorglot.store.stats import CommitCost
    from tensorglot.store.transfer import Transferred

__all__ = ["command"]

_SHORT = 14
"""Characters of a CID: the first seven are the same for all commits."""

F = TypeVar("F", bound=Callable[..., Any])


@click.group
def command() -> None:
    """Keep every version of a checkpoint, for little more than one.

    STORE is a directory or a URL. A ref names the last of a line of commits and moves
    with each new one, a tag stays. A commit is named by a ref, a tag, its CID or the
    beginning of it; everywhere else it is store://STORE#REF. Each command has --json.

    \b
    Examples:
      tensorglot store init run
      tensorglot store commit run model.safetensors -m 'step 100'
      tensorglot store log run
      tensorglot diff store://run#main model.safetensors
      tensorglot store checkout run main restored.safetensors
    """


def _store(run: F) -> F:
    return click.argument("store", type=click.Path())(storage_option(run))


def _open(path: str) -> Store:
    from tensorglot.store import Store

    return Store(path, storage_options_for(path))


@command.command
@_store
@as_json
def init(store: str, as_json: bool) -> None:
    """Make an empty store.

    \b
    Example:
      tensorglot store init run
    """
    from tensorglot.store import Store

    Store.create(store, storage_options_for(store))
    if as_json:
        print_json({"store": store})
    else:
        print(f"{escape_whole(store)} is a store; next: tensorglot store commit {escape_whole(store)} FILE")


@command.command
@_store
@click.argument("file", type=click.Path())
@click.option("--ref", default="main", show_default=True, help="The ref to move to the new commit.")
@click.option("-m", "--message", "text", default="", help="A message.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata, instead of that of the file.")
@click.option("--parent", help="The parent, if it is not the present commit of the ref.")
@as_json
def commit(
    store: str, file: str, ref: str, text: str, metadata: Sequence[str], parent: str | None, as_json: bool
) -> None:
    """Store a file, or a directory of shards, as the next commit of a ref.

    \b
    Example:
      tensorglot store commit run model.safetensors -m 'step 100'
    """
    opened = _open(store)
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
    _print_commit(made, as_json)


@command.command
@_store
@click.argument("ref", required=False)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many commits, the last ones.")
@as_json
def log(store: str, ref: str | None, limit: int | None, as_json: bool) -> None:
    """List the commits of a ref, and what each has cost; without REF, of every ref.

    The last one is first, with the names of its refs in brackets. "changed" are tensors
    that no earlier commit has, "stored" the bytes that a commit added, "share" is their
    part of its size.

    \b
    Example:
      tensorglot store log run main
    """
    opened = _open(store)
    refs = opened.refs()
    found: dict[str, list[CommitCost]] = {}
    for name in [ref] if ref is not None else refs:
        found[name] = opened.costs(name)[::-1][:limit]
    if as_json:
        print_json({name: [_flat(cost) for cost in costs] for name, costs in found.items()})
        return
    # A commit of several refs is listed once: the one that came first has paid for it.
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
            Column("share", [_share(cost.stored_nbytes, cost.nbytes) for cost in costs], right=True),
            Column("message", [_titled(cost.commit, refs) for cost in costs], elastic=True),
        ]
    )
    nbytes, stored = sum(cost.nbytes for cost in costs), sum(cost.stored_nbytes for cost in costs)
    print(f"{plural(len(costs), 'commit')}, {human_nbytes(nbytes)} stored in {human_nbytes(stored)}")


def _when(time: datetime) -> str:
    """Short: of this year without the year, of others without the hour."""
    local = time.astimezone()
    return f"{local:%m-%d %H:%M}" if local.year == datetime.now().astimezone().year else f"{local:%Y-%m-%d}"


def _titled(commit: Commit, refs: Mapping[str, str]) -> str:
    names = ", ".join(escape(name, longest=40) for name, cid in refs.items() if cid == commit.cid)
    return " ".join(filter(None, (f"[{names}]" if names else "", escape(commit.message))))


def _flat(cost: CommitCost) -> dict[str, Any]:
    numbers = {key: value for key, value in cost.to_dict().items() if key != "commit"}
    return {**cost.commit.to_dict(), **numbers}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if 0 < whole >= part else "-"


@command.command
@_store
@click.argument("ref")
@as_json
def show(store: str, ref: str, as_json: bool) -> None:
    """Describe one commit. Its tensors: tensorglot ls store://STORE#REF.

    \b
    Example:
      tensorglot store show run main
    """
    found = _open(store).show(ref)
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


@command.command
@_store
@click.argument("one")
@click.argument("two")
@as_json
def diff(store: str, one: str, two: str, as_json: bool) -> int:
    """Compare two commits of a store. Tensors that they share are not read.

    \b
    Example:
      tensorglot store diff run v1 main
    """
    from tensorglot.cli.diff import print_diff

    found = _open(store).diff(one, two)
    return print_diff(found, one, two, as_json=as_json)


@command.command
@_store
@click.argument("ref")
@click.argument("file", type=click.Path())
@writing_options
@as_json
def checkout(
    store: str,
    ref: str,
    file: str,
    to: str | None,
    compression: str | None,
    level: int | None,
    checksum: str | None,
    as_json: bool,
) -> None:
    """Write the tensors of a commit to a file, in any format.

    \b
    Example:
      tensorglot store checkout run main model.safetensors
    """
    import tensorglot as tg

    options: dict[str, Any] = {"compression": compression, "level": level}
    if checksum is not None:
        options["checksum"] = checksum
    with _open(store).checkout(ref) as archive, progress_bar("writing") as progress:
        options["storage_options"] = storage_options_for(file)
        report = tg.convert(archive, file, format=to, progress=progress, **options)
    if as_json:
        print_json({"file": file, **report.to_dict()})
    else:
        print(f"{escape_whole(file)}: {plural(report.tensors, 'tensor')}")


@command.command
@_store
@click.argument("name")
@click.argument("ref")
@as_json
def tag(store: str, name: str, ref: str, as_json: bool) -> None:
    """Give a commit a name that stays.

    \b
    Example:
      tensorglot store tag run v1 main
    """
    opened = _open(store)
    opened.tag(name, ref)
    _print_ref(opened, name, as_json)


def _print_ref(store: Store, name: str, as_json: bool) -> None:
    cid = store.refs()[name]
    if as_json:
        print_json({"ref": name, "cid": cid})
    else:
        print(f"{escape_whole(name)} is {cid}")


@command.command
@_store
@click.argument("ref")
@as_json
def delete(store: str, ref: str, as_json: bool) -> None:
    """Remove a ref or a tag. Its commits go with the next collect, if nothing else leads to them.

    \b
    Example:
      tensorglot store delete run old
    """
    _open(store).delete(ref)
    if as_json:
        print_json({"deleted": ref})
    else:
        print(f"{escape_whole(ref)} is deleted")


@command.command
@_store
@as_json
def refs(store: str, as_json: bool) -> None:
    """List refs and tags.

    \b
    Example:
      tensorglot store refs run
    """
    found = _open(store).refs()
    if as_json:
        print_json(found)
    elif found:
        names = [escape_whole(name) for name in found]
        print_table([Column("ref", names, elastic=True), Column("commit", list(found.values()))])


@command.command
@_store
@click.option("--data", is_flag=True, help="Also decode and hash every block.")
@as_json
def check(store: str, data: bool, as_json: bool) -> int:
    """Check that all that refs lead to is there. Exits with 1 if something is damaged.

    \b
    Example:
      tensorglot store check run --data
    """
    with progress_bar("checking", unit="blocks") as progress:
        report = _open(store).check(data=data, progress=progress)
    if as_json:
        print_json(report.to_dict())
    else:
        for problem in report.problems:
            print(escape_whole(str(problem)))
        what = f"{report.checksums:,} blocks hashed" if data else "structure; --data also hashes every block"
        state = "ok" if report.ok else plural(len(report.problems), "problem")
        print(f"{state}: {plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)} ({what})")
    return 0 if report.ok else 1


def _grace(run: F) -> F:
    return click.option(
        "--grace",
        type=click.FloatRange(min=0),
        help="Seconds for which something must have been unneeded. Default: a day.",
    )(run)


@command.command
@_store
@_grace
@as_json
def collect(store: str, grace: float | None, as_json: bool) -> None:
    """Remove what no ref leads to. Safe beside running writers.

    \b
    Example:
      tensorglot store collect run --grace 3600
    """
    opened = _open(store)
    _print_collected(opened.collect() if grace is None else opened.collect(grace), as_json)


@command.command
@_store
@_grace
@as_json
def repack(store: str, grace: float | None, as_json: bool) -> None:
    """Join small packs, drop garbage from large ones, and collect.

    \b
    Example:
      tensorglot store repack run
    """
    opened = _open(store)
    _print_collected(opened.repack() if grace is None else opened.repack(grace), as_json)


def _print_collected(found: Collected, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
        return
    print(f"removed {plural(found.packs, 'pack')}, {human_nbytes(found.nbytes)}")
    if found.waiting:
        later = f"{plural(found.waiting, 'pack')}, {human_nbytes(found.waiting_nbytes)}"
        print(f"{later} unneeded, to be removed after the grace period or when their writers are done")


@command.command
@_store
@as_json
def stats(store: str, as_json: bool) -> None:
    """What a store holds, and how little it takes.

    \b
    Example:
      tensorglot store stats run
    """
    found = _open(store).stats()
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


def _transfer(run: F) -> F:
    for argument in (click.argument("refs", nargs=-1), click.argument("other", metavar="STORE2", type=click.Path())):
        run = argument(run)
    return run


@command.command
@_store
@_transfer
@as_json
def push(store: str, other: str, refs: Sequence[str], as_json: bool) -> None:
    """Copy refs to another store, all or those named: only what it lacks.

    \b
    Example:
      tensorglot store push run backup main
    """
    with progress_bar("pushing") as progress:
        options = storage_options_for(other)
        _print_transferred(_open(store).push(other, refs or None, progress=progress, storage_options=options), as_json)


@command.command
@_store
@_transfer
@as_json
def pull(store: str, other: str, refs: Sequence[str], as_json: bool) -> None:
    """Copy refs from another store, all or those named: only what is missing.

    \b
    Example:
      tensorglot store pull backup run
    """
    with progress_bar("pulling") as progress:
        options = storage_options_for(other)
        _print_transferred(_open(store).pull(other, refs or None, progress=progress, storage_options=options), as_json)


def _print_transferred(found: Transferred, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
    else:
        names = ", ".join(escape(name) for name in found.refs) or "nothing"
        print(f"{names} moved: {plural(found.blocks, 'block')}, {human_nbytes(found.nbytes)}")


@command.command
@click.argument("old", type=click.Path())
@click.argument("new", type=click.Path())
@click.argument("target", type=click.Path())
@storage_option
@as_json
def delta(old: str, new: str, target: str, as_json: bool) -> None:
    """Write what turns OLD into NEW to a small file, without a store.

    OLD and NEW are files, directories of shards or commits, as store://run#main. A delta
    is listed by ls and info and checked by verify.

    \b
    Example:
      tensorglot store delta step1.safetensors step2.safetensors step2.tgdelta
    """
    from tensorglot.store import delta

    with progress_bar("comparing") as progress:
        report = delta(source_of(old), source_of(new), target, progress=progress, storage_options=storage_options())
    if as_json:
        print_json({"file": target, **report.to_dict()})
        return
    counts = [f"{report.changed:,} of {plural(report.tensors, 'tensor')} changed"]
    counts += [
        f"{len(names):,} {what}" for what, names in (("added", report.added), ("removed", report.removed)) if names
    ]
    size = f"{human_nbytes(report.stored_nbytes)}, {_share(report.stored_nbytes, report.nbytes)} of the new version"
    print(f"{escape_whole(target)}: {', '.join(counts)}; {size}")


@command.command
@click.argument("delta", type=click.Path())
@click.argument("file", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="The file to write, in any format. Default: FILE is replaced.")
@storage_option
@as_json
def apply(delta: str, file: str, output: str | None, as_json: bool) -> None:
    """Turn the old version, FILE, into the new one of DELTA.

    FILE must be what the delta was made from. Both versions are verified before anything
    is written, and a file is replaced atomically.

    \b
    Examples:
      tensorglot store apply step2.tgdelta model.safetensors
      tensorglot store apply step2.tgdelta step1.safetensors -o step2.safetensors
    """
    from tensorglot.store import patch

    target = output or file
    with progress_bar("applying") as progress:
        report = patch(delta, source_of(file), target, progress=progress, storage_options=storage_options())
    if as_json:
        print_json({"file": target, **report.to_dict()})
    else:
        print(f"{escape_whole(target)}: {plural(report.tensors, 'tensor')}, {human_nbytes(report.nbytes)}, verified")


@command.command
@_store
@click.argument("ref")
@click.argument("file", type=click.Path())
@click.option("--have", metavar="REF", help="A commit that the receiver has: what it needs is left out.")
@as_json
def bundle(store: str, ref: str, file: str, have: str | None, as_json: bool) -> None:
    """Write a commit and all before it to one file (CAR), to be carried elsewhere.

    \b
    Example:
      tensorglot store bundle run main run.car
    """
    found = _open(store).bundle(file, ref, have=have, storage_options=storage_options_for(file))
    if as_json:
        print_json({"file": file, **found.to_dict()})
    else:
        print(f"{escape_whole(file)}: {plural(found.blocks, 'block')}, {human_nbytes(found.nbytes)}")


@command.command
@_store
@click.argument("file", type=click.Path())
@as_json
def unbundle(store: str, file: str, as_json: bool) -> None:
    """Store what a bundle has, and move its ref.

    \b
    Example:
      tensorglot store unbundle backup run.car
    """
    _print_commit(_open(store).unbundle(file, storage_options=storage_options_for(file)), as_json)


def _print_commit(made: Commit, as_json: bool) -> None:
    if as_json:
        print_json(made.to_dict())
    else:
        print(made.cid)
