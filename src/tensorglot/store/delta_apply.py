"""Applying a delta to tensors in memory, in place: all of it, or nothing.

In three passes over all tensors, each on all processors:

1. check: the arrays are hashed and compared with the base of the delta. Chunks that are
   in the delta in full are decoded and hashed, and so is what small arrays become, which
   is kept. Nothing is changed yet.
2. change: deltas are applied in place, and the result is hashed. If it is not what the
   delta promises, all of them are undone: XOR and differences lose nothing.
3. finish: chunks that are in the delta in full and small arrays are written, and copies
   are written back.
   Nothing in it can fail; if it is interrupted, it is done again.

One process applies one delta at a time: of two appliers, the second finds tensors that are
not its base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from blake3 import blake3

from tensorglot.arguments import check_mapping
from tensorglot.containers.delta.index import Body, DeltaIndex
from tensorglot.errors import Hint, InputError, add_tensor_to_errors, escape
from tensorglot.io.source import Readable
from tensorglot.operations._places import locate
from tensorglot.store import encodings
from tensorglot.store.delta_file import (
    DeltaFile,
    chunk_count,
    in_full,
    not_base,
    read_delta,
    root_digest,
    wrong_result,
)
from tensorglot.store.delta_targets import Target, targets_of
from tensorglot.threads import Lock, batches, for_each

__all__ = ["apply"]

_TOGETHER_NBYTES = 2 << 20
"""Chunks that one thread takes at a time."""
_TOGETHER_COUNT = 2048
_SMALL_NBYTES = 1024
"""What an array up to this size becomes is kept until all have been checked: the objects for its chunk need as much."""
_one_at_a_time = Lock()

Place = tuple[Target, int]
"""A chunk of a target."""


def apply(delta: Readable, tensors: Mapping[str, Any], *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Turns tensors in memory from the old version of a delta into the new one, in place.

    `tensors` maps names to arrays of NumPy or tensors of PyTorch; those of a model's
    `state_dict()` are the model's own. They are compared with the base of the delta before
    anything is changed, and the result with what the delta promises; after an error they
    are as they were. Tensors that the delta does not name are left alone. A delta that
    adds, removes or resizes tensors is refused: `patch` writes the new version of a file.
    `storage_options` are for a delta at a URL.
    """
    check_mapping(tensors, "tensors", "delta.tensors")
    file = read_delta(locate(delta, storage_options))
    _check_structure(file.index)
    with _one_at_a_time:
        work = _Work(file, targets_of(file.index, tensors))
        work.check()
        work.change()
        try:
            work.finish()
        except BaseException:
            work.finish()
            raise


def _check_structure(index: DeltaIndex) -> None:
    names, rows = index.names, index.rows
    changes = {
        "add": [names[row.tensor] for row in rows if row.base is None],
        "remove": index.removed,
        "resize": [names[row.tensor] for row in rows if row.base is not None and row.base.type != row.type],
    }
    for verb, found in changes.items():
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise InputError(
                f"the delta would {verb} '{escape(found[0])}'{more}, which cannot be done in place",
                rule="delta.structure",
                tensor=found[0],
                hint=Hint(
                    "write the new version with tg.store.patch(delta, source, target), and load that",
                    "write it with tensorglot store apply DELTA FILE -o OUT",
                ),
            )


class _Work:
    """The three passes."""

    def __init__(self, file: DeltaFile, targets: list[Target]) -> None:
        self._file = file
        self._small = [target for target in targets if len(target.data) <= _SMALL_NBYTES]
        self._large = [target for target in targets if len(target.data) > _SMALL_NBYTES]
        self._changed = [target for target in self._large if target.row.state == "changed"]
        self._made: list[tuple[Target, bytearray]] = []
        """What small targets become."""
        self._full: dict[tuple[int, int], bytes] = {}
        """The digests of chunks that the delta has in full, by target and position."""
        self._begun: list[tuple[Target, Body, bytes]] = []
        """Deltas that may have been applied, and the digest before."""

    def _bodies(self, target: Target) -> Sequence[Body]:
        """The bodies of a target: those of its row, or of the row that it is tied to."""
        row = target.row
        return (row if row.tied is None else self._file.index.rows[row.tied]).bodies

    def check(self) -> None:
        firsts = range(0, len(self._small), _TOGETHER_COUNT)
        for_each(self._make_small, [self._small[first : first + _TOGETHER_COUNT] for first in firsts])
        for target in self._large:
            target.digests = [b""] * chunk_count(len(target.data))
        places = ((target, at) for target in self._large for at in range(len(target.digests)))
        for_each(_hash, _batches(places))
        for target in self._large:
            _check_base(target, root_digest(target.digests, len(target.data)))
        self._for_each_body(self._hash_full, full=True)

    def _make_small(self, batch: Sequence[Target]) -> None:
        for target in batch:
            row = target.row
            _check_base(target, blake3(target.data).digest())
            if row.state == "changed":
                bodies, out = self._bodies(target), bytearray(row.nbytes)
                with add_tensor_to_errors(target.name):
                    self._file.make(bodies[0] if bodies else None, target.data, memoryview(out))
                if blake3(out).digest() != row.digest:
                    raise wrong_result(target.name, row)
                self._made.append((target, out))

    def _for_each_body(self, work: Callable[[Target, Body], None], *, full: bool) -> None:
        """Calls `work` for each chunk that changes: for those that the delta has in full, or for all others."""
        bodies = {
            (target, body.position): body
            for target in self._changed
            for body in self._bodies(target)
            if in_full(body) == full
        }

        def run(batch: list[Place]) -> None:
            for place in batch:
                work(place[0], bodies[place])

        for_each(run, _batches(bodies))

    def _hash_full(self, target: Target, body: Body) -> None:
        with add_tensor_to_errors(target.name):
            nbytes = len(target.chunk(body.position))
            self._full[id(target), body.position] = self._file.full_digest(body, nbytes)

    def change(self) -> None:
        try:
            self._for_each_body(self._apply, full=False)
            self._compare()
        except BaseException:
            for_each(self._undo, self._begun)
            raise

    def _compare(self) -> None:
        for target in self._changed:
            digests = [self._full.get((id(target), at), digest) for at, digest in enumerate(target.digests)]
            if root_digest(digests, len(target.data)) != target.row.digest:
                raise wrong_result(target.name, target.row)

    def _apply(self, target: Target, body: Body) -> None:
        chunk = target.chunk(body.position)
        self._begun.append((target, body, target.digests[body.position]))
        with add_tensor_to_errors(target.name):
            encodings.apply(body.encoding, self._file.body(body), chunk)
        target.digests[body.position] = blake3(chunk).digest()

    def _undo(self, item: tuple[Target, Body, bytes]) -> None:
        target, body, before = item
        chunk = target.chunk(body.position)
        if blake3(chunk).digest() != before:
            encodings.apply(body.encoding, self._file.body(body), chunk, undo=True)

    def finish(self) -> None:
        for target, made in self._made:
            target.data[:] = made
        self._for_each_body(self._fill, full=True)
        for target in (*self._changed, *(target for target, _ in self._made)):
            if target.write_back is not None:
                target.write_back()

    def _fill(self, target: Target, body: Body) -> None:
        encodings.decode(body.encoding, self._file.body(body), target.chunk(body.position))


def _check_base(target: Target, digest: bytes) -> None:
    base = target.row.base
    if base is None or digest != base.digest:
        raise not_base(target.name, "its values differ")


def _hash(batch: list[Place]) -> None:
    for target, position in batch:
        target.digests[position] = blake3(target.chunk(position)).digest()


def _batches(places: Iterable[Place]) -> Iterator[list[Place]]:
    return batches(places, lambda place: len(place[0].chunk(place[1])), _TOGETHER_NBYTES, _TOGETHER_COUNT)
