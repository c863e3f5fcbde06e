"""Verbs on an executor: jobs go to workers, which open the source themselves and return small results.

An executor is anything with `submit`: a pool of threads or processes, a Dask client. A
worker gets a `Reference` to the source and which tensors to look at; arrays never travel.
The source must be one that a worker can open: a path, a URL, bytes, a list of these, or
an archive opened from one of them. A file that changed since it was referred to is an error.

When `run_jobs` fails, jobs that have not begun are cancelled, and those that have are
waited for: nothing is running when it returns.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorglot.errors import InputError
from tensorglot.io.local import Stamp, change_error, file_stamp
from tensorglot.io.place import Place
from tensorglot.model.archive import Archive
from tensorglot.operations._as_archive import TensorsLike
from tensorglot.operations.open import OpenOptions, open_source
from tensorglot.threads import Executor

__all__ = ["JOB_NBYTES", "TENSOR_COST", "Reference", "batches", "can_send", "name_batches", "refer_to", "run_jobs"]

JOB_NBYTES = 16 << 20
"""What a worker reads in one job: enough that the cost of sending the job does not matter."""
_IN_FLIGHT = 256
"""Jobs submitted and not yet collected."""
TENSOR_COST = 4 << 10
"""The cost of a tensor, in bytes that could be read in the same time."""

_SENT = (Place, bytes, bytearray, memoryview)
"""Sources that are sent to a worker; arrays never are."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reference:
    """A source for a worker to open."""

    source: Any
    options: OpenOptions
    stamp: Stamp | None = None
    """Stamp of the file when the reference was made."""

    def open(self) -> Archive:
        archive: Archive = self.source if isinstance(self.source, Archive) else open_source(self.source, self.options)
        if self.stamp is not None and file_stamp(archive.source) != self.stamp:
            archive.close()
            raise change_error(self.source)
        return archive

    @contextmanager
    def opened(self) -> Iterator[Archive]:
        """The archive for one job; one of the caller stays open."""
        archive = self.open()
        with nullcontext() if archive is self.source else archive:
            yield archive


def can_send(source: TensorsLike) -> bool:
    """Whether workers can open the source. They cannot open a stream, or values in memory."""
    if isinstance(source, (list, tuple)):
        return all(isinstance(each, _SENT) for each in source)
    return isinstance(source, (*_SENT, Archive))


def refer_to(source: TensorsLike, archive: Archive, options: OpenOptions) -> Reference:
    """A reference to a source that `locate` has returned; `archive` is the archive that the caller opened from it."""
    if not can_send(source):
        raise InputError(
            f"with an executor, workers open the source: pass a path, a URL or an archive, not {type(source).__name__}",
            rule="executor.source",
        )
    if isinstance(source, Archive):
        return Reference(source, options)
    sent = tuple(map(_as_sendable, source)) if isinstance(source, (list, tuple)) else _as_sendable(source)
    return Reference(sent, options, file_stamp(archive.source) if isinstance(sent, Place) else None)


def _as_sendable(source: Any) -> Place | bytes:
    return source if isinstance(source, Place) else bytes(source)


def batches(nbytes: Sequence[int], most: int = JOB_NBYTES) -> Iterator[range]:
    """Ranges of adjacent tensors, each enough for one job. A tensor of `most` bytes or more has a job of its own."""
    first, together = 0, 0
    for i, size in enumerate(nbytes):
        if size >= most and i > first:
            yield range(first, i)
            first, together = i, 0
        together += size + TENSOR_COST
        if together >= most:
            yield range(first, i + 1)
            first, together = i + 1, 0
    if first < len(nbytes):
        yield range(first, len(nbytes))


def name_batches(
    names: Sequence[str], nbytes: Sequence[int], most: int = JOB_NBYTES
) -> tuple[list[Sequence[str]], list[int]]:
    """The names of each batch of tensors, and the bytes of each."""
    ranges = list(batches(nbytes, most))
    return [names[part.start : part.stop] for part in ranges], [sum(nbytes[part.start : part.stop]) for part in ranges]


def run_jobs(executor: Executor, work: Callable[..., T], jobs: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """The results of `work(*job)`, in the order of the jobs. References become the archives that a worker opens."""
    if not callable(getattr(executor, "submit", None)):
        raise InputError(f"an executor needs a method submit: {type(executor).__name__} has none", rule="executor.kind")
    waiting: deque[Any] = deque()
    try:
        for job in jobs:
            # Jobs are submitted ahead, but not all at once: results that nobody has taken would fill the memory.
            waiting.append(executor.submit(_call, os.urandom(8), work, job))
            if len(waiting) >= _IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        for future in waiting:
            with suppress(Exception):
                future.result()


def _call(token: bytes, work: Callable[..., T], job: tuple[Any, ...]) -> T:
    """Runs one job. `token` is random, because Dask returns the kept result of an earlier call with equal arguments."""
    with ExitStack() as stack:
        return work(*[stack.enter_context(one.opened()) if isinstance(one, Reference) else one for one in job])
