"""`Store`: commits of tensors, by name and by content.

A commit is written in three steps, each of which can be the last: blocks and the commit
node go into a pack, the pack becomes visible and durable, the ref is swapped from the
commit that was its value to the new one. If another writer was first, the commit node is
made again with the new parent; the tensors stay as they are.
"""

from __future__ import annotations

import base64
import os
import time as clock
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

from tensorglot.arguments import as_integer, as_names, as_path, check_flags, check_mapping
from tensorglot.dynd import array
from tensorglot.dynd.link_columns import may_link
from tensorglot.dynd.merkle import save_links
from tensorglot.errors import FormatError, InputError, escape, plural
from tensorglot.io.local import add_path_to_errors
from tensorglot.io.sink import Writable
from tensorglot.io.source import Readable, source_for
from tensorglot.io.storage_options import as_storage_options
from tensorglot.io.target import open_target
from tensorglot.limits import Limits, as_limits
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import Tensor
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._as_archive import collect as archive_of
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations.diff import Diff, diff
from tensorglot.operations.verify import Report
from tensorglot.providers import provided
from tensorglot.store.blocks import Blocks, NewBlocks
from tensorglot.store.bundle import incomplete, read_bundle, write_bundle
from tensorglot.store.check import check_store
from tensorglot.store.checkout import CommitArchive, array_tensor, check_tensors, read_node, value_chunks
from tensorglot.store.collect import GRACE, Collected, collect, repack
from tensorglot.store.distributed import is_distributed, join_boxes
from tensorglot.store.ingest import Value, ingest, ingest_value
from tensorglot.store.lineage import commits_from, previous_arrays
from tensorglot.store.location import create_store, open_store, split_url
from tensorglot.store.manifest import Entry, build
from tensorglot.store.objects import Commit, check_message, check_metadata, parse_array
from tensorglot.store.packs import Packs
from tensorglot.store.reach import first_missing
from tensorglot.store.refs import (
    Ref,
    check_ref_name,
    delete_ref,
    inspect_refs,
    list_refs,
    missing_ref,
    read_ref,
    swap_ref,
)
from tensorglot.store.session import Session, start_session
from tensorglot.store.stats import CommitCost, StoreStats, commit_costs, store_stats
from tensorglot.store.transfer import Receiver, Transferred, copy_missing, forward_ref, transfer
from tensorglot.wire.cid import CID, DAG_CBOR

__all__ = ["Store", "open_url"]

_ATTEMPTS = 1000
"""How often a commit is tried while others write to the same ref."""
_PREFIX_LENGTH = 12
"""Characters of a CID that are enough, if they are unique; the first seven are the same for all commits."""
_SHORT = 12
"""Characters of a CID in a name."""


class Store:
    """A content-addressed store of tensors, in a directory or at a URL. Threads and processes may share it."""

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        """Opens a store."""
        kept = None if storage_options is None else as_storage_options(storage_options)
        self._backend = open_store(url, kept)
        self._packs = Packs(self._backend)
        self._again = partial(Store, url if "://" in as_path(url) else self._backend.url, kept)

    @classmethod
    def create(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
        """Makes a store where there is none."""
        create_store(url, storage_options)
        return cls(url, storage_options)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files that are open. Archives that were checked out stay usable."""
        self._backend.close()

    def __repr__(self) -> str:
        return f"Store({escape(self._backend.url)})"

    def _repr_html_(self) -> str:
        """The refs of the store in a notebook."""
        refs = self.refs()
        title = f"{self!r}: {plural(len(refs), 'ref')}"
        return provided("report.table")(title, ("ref", "commit"), refs.items(), len(refs))  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    # Commits

    def commit(
        self,
        ref: str,
        tensors: TensorsLike,
        *,
        message: str = "",
        metadata: Mapping[str, Any] | None = None,
        parent: str | None = None,
        staged: Mapping[str, str] | None = None,
        progress: Progress | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Stores tensors as the new commit of a ref: atomic, and durable when it returns.

        `tensors` is what `save` takes, or a source: a path, an archive. The parent is the
        present commit of the ref, if it has one; tensors are stored as differences from
        those of the same name in it. With `parent`, a ref or a CID, the ref must not
        change meanwhile. `staged` are further tensors of the commit, which `stage` has
        stored, here or in other processes. `storage_options` are for a source at a URL.
        """
        check_ref_name(ref)
        check_message(message)
        if metadata is not None:
            check_mapping(metadata, "metadata", "save.metadata")
        old = self._branch(ref)
        with start_session(self._backend, self._packs) as session:
            given = None if parent is None else self._parent(session, parent)
            base = given or (None if old is None else old.cid)
            with (
                as_archive(locate(tensors, storage_options)) as source,
                start_progress(progress, "committing") as report,
            ):
                archive = archive_of(source, metadata)
                check_metadata(archive.metadata or {})
                entries = self._ingest(session, archive, base, report)
                kept = archive.metadata
            if staged is not None:
                entries = self._with_staged(session, entries, staged)
            manifest = build(entries, session.put)
            for _ in range(_ATTEMPTS):
                parents = () if base is None else (base,)
                block = Commit.encode(manifest, parents, message, kept, clock.time_ns() // 1000)
                cid = session.put(block)
                session.flush()
                if swap_ref(self._backend, ref, old, Ref.new(ref, cid, "branch", old)):
                    return Commit.parse(cid, block)
                if given is not None:
                    break
                old = self._branch(ref)
                base = None if old is None else old.cid
        raise InputError(
            f"'{escape(ref)}' was changed by another writer meanwhile; commit again", rule="store.ref.changed"
        )

    def stage(
        self,
        tensors: TensorsLike,
        *,
        ref: str | None = None,
        progress: Progress | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> dict[str, str]:
        """Stores tensors that `commit(…, staged=…)` makes part of a commit; returns the CID of each.

        So several processes can write one commit. What is not committed within the grace
        period of `collect` may be removed by it; the commit is then refused. With `ref`,
        tensors are stored as differences from those of the same name in its commit.
        """
        old = None if ref is None else self._branch(ref)
        with (
            start_session(self._backend, self._packs) as session,
            as_archive(locate(tensors, storage_options)) as source,
            start_progress(progress, "staging") as report,
        ):
            entries = self._ingest(session, archive_of(source), None if old is None else old.cid, report)
        return {name: str(link) for name, link in entries}

    def _with_staged(self, session: Session, entries: list[Entry], staged: Mapping[str, str]) -> list[Entry]:
        """The entries of a commit with those that were staged, which must be complete."""
        check_mapping(staged, "staged", "store.staged")
        for name in staged.keys() & dict(entries).keys():
            raise InputError("the tensor is both staged and given", rule="store.staged", tensor=name)
        added = [(name, CID.parse(text)) for name, text in staged.items()]
        self._packs.refresh()
        self._adopt(session, *(link for _, link in added))
        check_tensors(session.packs, added)
        return sorted([*entries, *added])

    def _parent(self, session: Session, parent: str) -> CID:
        """The commit of a name, which no collector can remove while the session runs."""
        cid = self._resolve(parent)
        if session.packs is not self._packs or str(cid) not in self.refs().values():
            self._adopt(session, cid)
        return cid

    def _adopt(self, session: Session, *cids: CID) -> None:
        """Copies what a collector is about to remove; refuses what is incomplete."""
        what = ", ".join(map(str, cids[:2]))
        try:
            copy_missing(self._packs, session, cids)
        except FileNotFoundError as error:
            raise InputError(f"{what} was collected meanwhile", rule="store.incomplete") from error
        except FormatError as error:
            raise InputError(f"{what} is incomplete: {error.message}", rule="store.incomplete") from error

    def _branch(self, name: str) -> Ref | None:
        ref = read_ref(self._backend, name)
        if ref is not None and ref.kind == "tag":
            raise InputError(f"'{escape(name)}' is a tag, which cannot be changed", rule="store.ref.tag")
        return ref

    def _ingest(self, session: Session, archive: Archive, base: CID | None, report: Progress | None) -> list[Entry]:
        total, done = int(archive.index.nbytes.sum()), 0

        def seen(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            if report is not None:
                report(min(done, total), total)

        before = None if base is None else self._previous(base)
        linking = [position for position, layout in archive.index.layouts.items() if may_link(layout.type)]
        for position in linking:
            save_links(archive.tensor_at(position), NewBlocks(session))
        entries = ingest(session, archive, before, seen)
        links = dict(entries) if linking else {}
        for position in linking:
            name = archive.index.names[position]
            self._check_links(session, links[name], name)
        return entries

    def _check_links(self, session: Session, cid: CID, name: str | None) -> None:
        """Refuses a value with links to what is not in the store: a commit is complete."""
        session.flush()  # only what is in a pack can be read
        missing = first_missing(session.packs, cid)
        if missing is not None:
            raise InputError(
                f"the value links to {missing}, which is not in the store; put it first",
                rule="store.link",
                tensor=name,
            )

    def _previous(self, base: CID) -> Any:
        """Looks up the values of the tensors of a commit."""
        find = previous_arrays(self._packs, self._read_commit(base))

        def value(name: str, part: str) -> Value | None:
            array = find(name, part)
            return None if array is None else Value(array.type, value_chunks(self._packs, array))

        return value

    def checkout(self, ref: str, *, limits: Limits | None = None) -> Archive:
        """The tensors of a commit, read when they are needed. `ref` is a ref, a tag, a CID or the beginning of one."""
        return self._checkout(self._resolve(ref), limits, joined=True)

    def _checkout(self, cid: CID, limits: Limits | None, *, joined: bool) -> Archive:
        """`joined` makes whole tensors of the boxes of a distributed checkpoint."""
        reopen = partial(_checkout_again, self._again, str(cid), limits, joined)
        commit = self._read_commit(cid)
        if joined and is_distributed(commit):
            return join_boxes(self._checkout(cid, limits, joined=False), reopen)
        return CommitArchive(self._packs, commit, as_limits(limits), reopen)

    def show(self, ref: str) -> Commit:
        """The commit of a ref, a tag, a CID or the beginning of one."""
        return self._read_commit(self._resolve(ref))

    def log(self, ref: str, limit: int | None = None) -> list[Commit]:
        """The commits from a ref to the first one, along the first parents; the last `limit` of them."""
        if limit is not None:
            limit = as_integer(limit, "limit", "store.limit", 1)
        return list(islice(self._history(self._resolve(ref)), limit))

    def _history(self, cid: CID) -> Iterator[Commit]:
        while True:
            commit = self._read_commit(cid)
            yield commit
            if not commit.parents:
                return
            cid = CID.parse(commit.parents[0])

    def _read_commit(self, cid: CID) -> Commit:
        return Commit.parse(cid, read_node(self._packs, cid))

    def diff(self, a: str, b: str) -> Diff:
        """The differences of two commits. Tensors that they share are not read."""
        with self.checkout(a) as old, self.checkout(b) as new:
            return diff(old, new)

    # Refs

    def refs(self) -> dict[str, str]:
        """The refs and tags, and the CID of each. One that is damaged is left out: `check` names it."""
        return {ref.name: str(ref.cid) for ref in inspect_refs(self._backend) if isinstance(ref, Ref)}

    def tags(self) -> dict[str, str]:
        """The tags by name: refs that do not move with commits."""
        found = inspect_refs(self._backend)
        return {ref.name: str(ref.cid) for ref in found if isinstance(ref, Ref) and ref.kind == "tag"}

    def tag(self, name: str, ref: str) -> None:
        """Gives a commit, or a value that was put, a name that does not move. A name that exists is refused."""
        check_ref_name(name)
        with start_session(self._backend, self._packs) as session:
            cid = self._resolve(ref, any_node=True)
            self._adopt(session, cid)
            if not swap_ref(self._backend, name, None, Ref.new(name, cid, "tag", None)):
                raise InputError(f"'{escape(name)}' exists: delete it first", rule="store.ref.exists")

    def delete(self, ref: str) -> None:
        """Removes a ref or a tag, also one that is damaged. What only it reached can be removed by `collect`."""
        found = delete_ref(self._backend, ref)
        if found is None:
            raise missing_ref(ref, self._backend)
        if not found:
            raise InputError(f"'{escape(ref)}' was changed by another writer meanwhile", rule="store.ref.changed")

    def _resolve(self, ref: str, *, any_node: bool = False) -> CID:
        """The commit of a name; with `any_node` any node that has this CID."""
        if not isinstance(ref, str):
            raise InputError(f"a ref must be a str, not {type(ref).__name__}", rule="store.ref.name")
        found = self._named(ref)
        cid = found.cid if found is not None else self._find_commit(ref, any_node=any_node)
        if cid is None:
            raise missing_ref(ref, self._backend)
        return cid

    def _named(self, name: str) -> Ref | None:
        """The ref of a name; None for what cannot be one, a CID for instance."""
        try:
            return read_ref(self._backend, name)
        except InputError:
            return None

    def _find_commit(self, text: str, *, any_node: bool) -> CID | None:
        """The commit whose CID begins with a text, if that is long enough and there is one."""
        if len(text) < _PREFIX_LENGTH or not text.isascii():
            return None
        candidates = [cid for cid in self._with_prefix(text) if any_node or self._is_commit(cid)]
        if len(candidates) > 1:
            raise InputError(
                f"'{escape(text)}' is the beginning of several CIDs: add characters", rule="store.ref.short"
            )
        return candidates[0] if candidates else None

    def _with_prefix(self, text: str) -> list[CID]:
        whole = text[1 : 1 + (len(text) - 1) // 8 * 8]
        try:
            known = base64.b32decode(whole.upper())[4:]
        except ValueError:
            return []
        self._packs.refresh()
        cids = [CID(digest, DAG_CBOR) for digest in self._packs.digests_with(known)]
        return [cid for cid in cids if str(cid).startswith(text)]

    def _is_commit(self, cid: CID) -> bool:
        try:
            self._read_commit(cid)
        except FormatError:
            return False
        return True

    # Keeping

    def check(self, data: bool = False, *, progress: Progress | bool | None = None) -> Report:
        """Whether all that refs lead to is there; with `data`, whether every block matches its CID."""
        check_flags(data=data)
        with start_progress(progress, "checking") as report:
            return check_store(self._backend, self._packs, data=data, progress=report)

    def collect(self, grace: float = GRACE) -> Collected:
        """Removes what no ref leads to, if it has been so for `grace` seconds. Safe beside running writers."""
        return collect(self._backend, self._packs, grace)

    def repack(self, grace: float = GRACE) -> Collected:
        """Rewrites small packs and those with much garbage, and collects."""
        return repack(self._backend, self._packs, grace)

    def stats(self) -> StoreStats:
        """What the store holds and what it costs."""
        return store_stats(self._packs, self._all_commits())

    def costs(self, ref: str, limit: int | None = None) -> list[CommitCost]:
        """What each commit of a log added to those before it, the oldest first.

        With `limit` only the last ones, compared with the commit before them: what was taken
        over from an older one counts as added.
        """
        commits = self.log(ref, limit)
        self._packs.refresh()
        before = () if limit is None else commits[-1].parents[:1]
        return list(commit_costs(self._packs, reversed(commits), [self.show(cid) for cid in before]))

    def _all_commits(self) -> Iterator[Commit]:
        refs = [ref.cid for ref in inspect_refs(self._backend) if isinstance(ref, Ref)]
        self._packs.refresh()  # after the refs were read: what they lead to is there
        return commits_from(self._packs, refs)

    # Moving

    def push(
        self,
        url: str | os.PathLike[str],
        refs: Iterable[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress | bool | None = None,
    ) -> Transferred:
        """Copies refs, or those named, to another store: only what it lacks. Its refs move forward, or not at all."""
        there = Store(url, storage_options)
        return self._send(Receiver(there._backend, there._packs, keep_ahead=False), refs, progress, "pushing")

    def pull(
        self,
        url: str | os.PathLike[str],
        refs: Iterable[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        progress: Progress | bool | None = None,
    ) -> Transferred:
        """Copies refs, or those named, from another store. Refs that have later commits here stay."""
        return Store(url, storage_options)._send(self._receiver, refs, progress, "pulling")

    def _send(
        self, target: Receiver, names: Iterable[str] | None, progress: Progress | bool | None, what: str
    ) -> Transferred:
        refs = (
            list(list_refs(self._backend))
            if names is None
            else [self._ref(name) for name in as_names(names, "refs", "store.refs")]
        )
        with start_progress(progress, what) as report:
            return transfer(self._packs, target, refs, report)

    @property
    def _receiver(self) -> Receiver:
        return Receiver(self._backend, self._packs, keep_ahead=True)

    def _ref(self, name: str) -> Ref:
        ref = read_ref(self._backend, name)
        if ref is None:
            raise missing_ref(name, self._backend)
        return ref

    def bundle(
        self,
        target: Writable,
        ref: str,
        have: str | None = None,
        *,
        progress: Progress | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Transferred:
        """Writes a commit and all that it leads to as a CAR file; without what a receiver of `have` has.

        A commit that is named by its CID arrives as a tag, `commit-` and the beginning of the CID.
        """
        known = () if have is None else (self._resolve(have),)
        cid = self._resolve(ref)
        self._read_commit(cid)  # a tag may name a value, which has no bundle
        named = self._named(ref) or Ref.new(f"commit-{str(cid)[:_SHORT]}", cid, "tag", None)
        counts = [0, 0]

        def pieces(report: Progress | None) -> Iterator[memoryview]:
            for piece in write_bundle(self._packs, named, known, report):
                counts[0] += 1
                counts[1] += len(piece)
                yield memoryview(piece)

        with (
            open_target(locate(target, storage_options)) as file,
            start_progress(progress, "bundling") as report,
        ):
            file.write(pieces(report))
        return Transferred((named.name,), counts[0] - 2, counts[1])

    def unbundle(
        self,
        source: Readable,
        *,
        progress: Progress | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Stores what is in a CAR file of `bundle`, each block checked, and moves its ref forward."""
        opened = source_for(locate(source, storage_options))
        with start_session(self._backend, self._packs) as session:
            with add_path_to_errors(opened.path), start_progress(progress, "unbundling") as report:
                bundle = read_bundle(opened, session, report)
            session.flush()
            self._packs.refresh()
            missing = first_missing(self._packs, bundle.commit)
            if missing is not None:
                raise incomplete(bundle, missing)
            self._adopt(session, bundle.commit)
            commit = self._read_commit(bundle.commit)
            ref = Ref.new(bundle.ref, bundle.commit, "tag" if bundle.tag else "branch", None)
            forward_ref(self._receiver, ref, self._packs)
        return commit

    # Values

    def put(self, value: Any) -> str:
        """Stores a value, with all that its links lead to; returns its CID. A tag keeps it from being collected."""
        with start_session(self._backend, self._packs) as session:
            tensor = array(value)
            save_links(tensor, NewBlocks(session))
            cid = ingest_value(session, tensor)
            if may_link(tensor.type):
                self._check_links(session, cid, None)
            return str(cid)

    def get(self, cid: str) -> Tensor:
        """The value with a CID, read when it is needed. Links in it load their values from the store."""
        return array_tensor(self._packs, parse_array(read_node(self._packs, CID.parse(cid))))

    @property
    def blocks(self) -> Mapping[CID, bytes]:
        """The blocks by their CIDs: what a `dynd.Link` loads from."""
        return Blocks(self._packs)


def _checkout_again(again: partial[Store], cid: str, limits: Limits | None, joined: bool) -> Archive:
    return again()._checkout(CID.parse(cid), limits, joined=joined)


def open_url(url: str, storage_options: Mapping[str, Any] | None = None, limits: Limits | None = None) -> Archive:
    """The archive of `store://path#ref`. A store with one ref needs no `#ref`."""
    where, ref = split_url(url)
    store = Store(where, storage_options)
    if ref is None:
        refs = store.refs()
        if len(refs) != 1:
            names = ", ".join(escape(name, longest=60) for name in list(refs)[:8])
            raise InputError(
                f"name a commit, as in {escape(url)}#main" + (f" (refs: {names})" if refs else " (it has none yet)"),
                rule="store.ref.name",
            )
        ref = next(iter(refs))
    return store.checkout(ref, limits=limits)
