"""The identity of tensors: a CID for each, and one for all of them together.

The latter is the CID of a checkpoint node with these tensors, no metadata and no
parents. It depends on names and values, not on the container, the order or the encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorglot.errors import FormatError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._jsonable import Record, field_dict
from tensorglot.operations._patterns import Select, select_names
from tensorglot.operations._places import options_for
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations.verify import Problem
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
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Identity:
    """The CID of each tensor, and one of all together: the same for the same values in every container.

    A tensor without a CID is in `problems`; the others have theirs.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    unsupported: list[str] = []
    kept = options_for(source, storage_options)
    with (
        as_archive(source, format=format, limits=limits, storage_options=kept) as archive,
        start_progress(progress, "hashing") as report,
    ):
        tensors = [archive[name] for name in select_names(archive.index.names, select)]
        total, done = sum(tensor.nbytes for tensor in tensors), 0
        for tensor in tensors:
            try:
                found[tensor.name] = tensor.cid()
            except (FormatError, UnsupportedError) as error:
                error.tensor = tensor.name
                problems.append(Problem.of(error))
                if isinstance(error, UnsupportedError):
                    unsupported.append(tensor.name)
            done += tensor.nbytes
            if report is not None:
                report(done, total)
    return Identity(None if problems else _together(found), found, tuple(problems), tuple(unsupported))


def _together(cids: Mapping[str, str]) -> str:
    """The CID of tensors by their names and CIDs."""
    tensors = {name: CID.parse(cid) for name, cid in cids.items()}
    node = {"dynd": 1, "kind": "checkpoint", "meta": {}, "parents": [], "tensors": tensors}
    return str(block_cid(encode_node(node), DAG_CBOR))
