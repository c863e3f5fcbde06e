"""The identity of tensors: a CID for each, and one for all of them together.

The latter is the CID of a checkpoint node with these tensors, no metadata and no
parents. It depends on names and values, not on the container, the order or the encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3

from tensorglot.dynd import array_node
from tensorglot.dynd.cbor import array_block_ends
from tensorglot.errors import FormatError, IntegrityError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import take_shapes
from tensorglot.model.types.algebra import dense
from tensorglot.model.types.text import text_of
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._executor import JOB_NBYTES, name_batches, refer_to, run_jobs
from tensorglot.operations._jsonable import Record, field_dict
from tensorglot.operations._patterns import Select, select_names
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress, count_off, start_progress
from tensorglot.operations._small_rows import is_small
from tensorglot.operations.open import OpenOptions
from tensorglot.operations.verify import Problem
from tensorglot.threads import Executor
from tensorglot.wire.cid import DAG_CBOR, NODE_HEAD, block_cid, checkpoint_block, cid_texts

__all__ = ["Identity", "identify"]

_BATCH_NBYTES = 4 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Identity(Record):
    """The result of `identify`."""

    cid: str | None
    """CID of all tensors and their names; None if one of them has no CID."""
    tensors: Mapping[str, str]
    """The CID of each tensor."""
    problems: tuple[Problem, ...] = field(default=())
    """Why tensors have no CID: they are corrupt, or cannot be decoded here."""
    unsupported: tuple[str, ...] = ()
    """Tensors that cannot be decoded here."""

    @property
    def ok(self) -> bool:
        """Whether every tensor has a CID."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return field_dict(self, "cid", "tensors", "problems")

    def __repr__(self) -> str:
        wrong = "" if self.ok else f", {plural(len(self.problems), 'problem')}: {self.problems[0]}"
        return f"Identity({self.cid}, {plural(len(self.tensors), 'tensor')}{wrong})"


def identify(
    source: TensorsLike,
    *,
    select: Select | None = None,
    format: str | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Identity:
    """The CID of each tensor, and one of all together: the same for the same values in every container.

    A tensor without a CID is in `problems`; the others have theirs. Tensors are hashed on
    the executor, if one is given.
    """
    found: dict[str, bytes] = {}
    problems: list[Problem] = []
    unsupported: list[str] = []
    source, options = locate(source, storage_options), OpenOptions.of(format, limits=limits)
    with (
        as_archive(source, options) as archive,
        start_progress(progress, "hashing") as report,
    ):
        index = archive.index
        names = select_names(index.names, select)
        sizes = index.tensor_nbytes[[index.positions[name] for name in names]].tolist()
        parts, sizes = name_batches(names, sizes, _BATCH_NBYTES if executor is None else JOB_NBYTES)
        if executor is None:
            results: Iterator[_Found] = (_identify(archive, part) for part in parts)
        else:
            reference = refer_to(source, archive, options)
            results = run_jobs(executor, _identify, [(reference, part) for part in parts])
        for cids, wrong, unknown in count_off(results, sizes, report):
            found |= cids
            problems += wrong
            unsupported += unknown
    cid = None if problems else str(block_cid(checkpoint_block(found), DAG_CBOR))
    texts = dict(zip(found, cid_texts(list(found.values())), strict=True))
    return Identity(cid, texts, tuple(problems), tuple(unsupported))


_Found: TypeAlias = tuple[dict[str, bytes], list[Problem], list[str]]
"""CIDs in binary form by name, problems, and the names of tensors that cannot be decoded."""


def _identify(archive: Archive, names: Sequence[str]) -> _Found:
    small = _identify_small(archive, names)
    found: dict[str, bytes] = {}
    problems: list[Problem] = []
    unsupported: list[str] = []
    for name in names:
        try:
            found[name] = small.get(name) or bytes(block_cid(array_node(archive[name]), DAG_CBOR))
        except (FormatError, UnsupportedError) as error:
            error.tensor = name
            problems.append(Problem.of(error))
            if isinstance(error, UnsupportedError):
                unsupported.append(name)
    return found, problems, unsupported


def _identify_small(archive: Archive, names: Sequence[str]) -> dict[str, bytes]:
    """The CIDs of small tensors, read together, without making a Tensor of each."""
    index = archive.index
    positions = np.array([index.positions[name] for name in names], np.int64)
    small = is_small(index, positions)
    rows = positions[small]
    try:
        pieces = archive.read_rows(rows) if len(rows) > 1 else None
    except IntegrityError:  # reading them one by one finds all that are damaged
        pieces = None
    if pieces is None:
        return {}
    dims, offsets = take_shapes(index.dims, index.dim_offsets, rows)
    sizes = dims.tolist()
    shapes = [tuple(sizes[begin:end]) for begin, end in pairwise(offsets.tolist())]
    kinds = zip(index.dtypes[rows].tolist(), shapes, strict=True)
    blocks: dict[tuple[int, tuple[int, ...]], tuple[bytes, bytes]] = {}
    found = {}
    for name, kind, piece in zip(compress(names, small.tolist()), kinds, pieces, strict=True):
        around = blocks.get(kind)
        if around is None:
            around = blocks[kind] = array_block_ends(text_of(dense(TABLE[kind[0]], kind[1])), len(piece))
        # Blocks of one kind differ in the digest only: 2 µs a tensor, where making CIDs and encoding them takes 10.
        found[name] = NODE_HEAD + blake3(around[0] + blake3(piece).digest() + around[1]).digest()
    return found
