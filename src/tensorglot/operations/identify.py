"""The identity of tensors: a CID for each, and one for all of them together.

The latter is the CID of a checkpoint node with these tensors, no metadata and no
parents. It depends on names and values, not on the container, the order or the encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensorglot.errors import FormatError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._executor import Reference, batches, refer_to, run_jobs
from tensorglot.operations._jsonable import Record, field_dict
from tensorglot.operations._patterns import Select, select_names
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations.verify import Problem
from tensorglot.threads import Executor
from tensorglot.wire.cid import CID, DAG_CBOR, block_cid, encode_node

__all__ = ["Identity", "identify"]


@dataclass(frozen=True, slots=True, repr=False)
class Identity(Record):
    """The result of `identify`."""

    cid: str | None
    """Of all tensors and their names; None if one of them has no CID."""
    tensors: Mapping[str, str]
    """The CID of each tensor."""
    problems: tuple[Problem, ...] = field(default=())
    """Why tensors have no CID: they are corrupt, or cannot be decoded here."""
    unsupported: tuple[str, ...] = ()
    """Tensors that cannot be decoded here."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return field_dict(self, "cid", "tensors", "problems")

    def __repr__(self) -> str:
        wrong = "" if self.ok else f", {plural(len(self.problems), 'problem')}: {self.problems[0]}"
        return f"Identity({self.cid}, {plural(len(self.tensors), 'tensor')}{wrong})"


def identify(
    source: Given,
    *,
    select: Select | None = None,
    format: str | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
) -> Identity:
    """The CID of each tensor, and one of all together: the same for the same values in every container.

    A tensor without a CID is in `problems`; the others have theirs. Tensors are hashed on
    the executor, if one is given.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    unsupported: list[str] = []
    with as_archive(source, format=format, limits=limits) as archive, start_progress(progress, "hashing") as report:
        names = select_names(archive.index.names, select)
        sizes = [archive[name].nbytes for name in names]
        if executor is None:
            parts = [range(i, i + 1) for i in range(len(names))]
            results: Iterator[_Found] = (_identify(archive, names[part.start : part.stop]) for part in parts)
        else:
            parts = list(batches(sizes))
            reference = refer_to(source, archive, format=format, limits=limits)
            jobs = [(reference, names[part.start : part.stop]) for part in parts]
            results = run_jobs(executor, _identify_elsewhere, jobs)
        total, done = sum(sizes), 0
        for part, (cids, wrong, unknown) in zip(parts, results, strict=True):
            found |= cids
            problems += wrong
            unsupported += unknown
            done += sum(sizes[part.start : part.stop])
            if report is not None:
                report(done, total)
    return Identity(None if problems else _together(found), found, tuple(problems), tuple(unsupported))


_Found: TypeAlias = tuple[dict[str, str], list[Problem], list[str]]
"""CIDs by name, problems, and the names of tensors that cannot be decoded."""


def _identify(archive: Archive, names: Sequence[str]) -> _Found:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    unsupported: list[str] = []
    for name in names:
        try:
            found[name] = archive[name].cid()
        except (FormatError, UnsupportedError) as error:
            error.tensor = name
            problems.append(Problem.of(error))
            if isinstance(error, UnsupportedError):
                unsupported.append(name)
    return found, problems, unsupported


def _identify_elsewhere(source: Reference, names: Sequence[str]) -> _Found:
    """The job of a worker."""
    archive = source.open()
    try:
        return _identify(archive, names)
    finally:
        source.close(archive)


def _together(cids: Mapping[str, str]) -> str:
    """The CID of tensors by their names and CIDs."""
    tensors = {name: CID.parse(cid) for name, cid in cids.items()}
    node = {"dynd": 1, "kind": "checkpoint", "meta": {}, "parents": [], "tensors": tensors}
    return str(block_cid(encode_node(node), DAG_CBOR))
