"""Converting on an executor to an object: workers upload the parts of one multipart upload.

The layout of the file is known before a byte is read. It is cut, in the order of the
file, into jobs of some rows with what is between them; a job has numbers of parts of its
own, so that workers need not know of each other. A job that runs twice sends the same
parts again. The object appears when the calling process completes the upload; after an
error it aborts it, and nothing is there.

Where an index follows the rows and has their checksums (zTensor 0.1), workers return the
digests of their rows, and the calling process uploads the index as the last part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tensorglot.containers.table import Format, RowsFirst, WriteOptions
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, as_bytes, buffers
from tensorglot.operations._conversion_plan import Plan, Step
from tensorglot.operations._convert_archive import Account, accounts_of, make_archive, row_bytes
from tensorglot.operations._executor import JOB_NBYTES, Reference, run_jobs
from tensorglot.operations._file_layout import RowPlace
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._progress import count_off, start_progress
from tensorglot.threads import Executor
from tensorglot.wire import checksums

if TYPE_CHECKING:
    from tensorglot.io.multipart import MultipartUpload

__all__ = ["WorkerConversion", "upload_converted"]

T = TypeVar("T")
_PART_NBYTES = 8 << 20
"""Smallest part. S3 requires at least 5 MiB for every part but the last."""
_MOST_PARTS = 9_000
"""Most parts that are planned for; S3 accepts 10,000, and jobs round their number up."""


@dataclass(frozen=True, slots=True)
class _RowSpan:
    """Bytes of one row: all of them, or a piece of a row that is copied without a checksum."""

    row: int
    begin: int
    end: int
    whole: bool = True
    algorithm: str | None = None
    """Algorithm of the checksum that the worker returns for the row."""


_Segment = _RowSpan | bytes


@dataclass(frozen=True, slots=True)
class _Span:
    """Adjacent bytes of the file for one job, and where its parts begin."""

    segments: tuple[_Segment, ...]
    sizes: tuple[int, ...]
    """Sizes of its parts."""
    first_part: int


@dataclass(frozen=True, slots=True)
class WorkerConversion:
    """A conversion whose rows are made by workers."""

    executor: Executor
    source: Reference
    converted: Archive
    plan: Plan
    spec: Format
    settled: WriteOptions
    strict: bool

    @property
    def sent_plan(self) -> Plan:
        """The plan without what no worker needs; a job has only some of its steps."""
        return replace(self.plan, save=SaveOptions(durable=self.plan.save.durable), metadata=None, losses=())

    def run(self, work: Callable[..., T], jobs: Iterable[tuple[Any, ...]], nbytes: Sequence[int]) -> Iterator[T]:
        """The results of `work(archive, *job)`, in order, with progress. `nbytes` has the bytes of each job."""
        found = run_jobs(self.executor, work, ((self.source, *job) for job in jobs))
        with start_progress(self.plan.save.progress, "converting") as report:
            yield from count_off(found, nbytes, report)


def upload_converted(
    conversion: WorkerConversion,
    upload: MultipartUpload,
    layout: Iterator[RowPlace | memoryview] | RowsFirst,
    expect: str | None,
) -> list[Account]:
    """Uploads the archive of a plan by workers. Returns an account of each tensor that was cast or quantized."""
    converted, plan = conversion.converted, conversion.plan
    least = max(_PART_NBYTES, -(-int(converted.index.nbytes.sum()) // _MOST_PARTS))
    ended = layout if isinstance(layout, RowsFirst) else None
    spans = list(_cut(_segments(converted, plan, layout, max(JOB_NBYTES, least)), least, last=ended is None))
    sent = conversion.sent_plan
    begun = upload.begin()
    try:
        jobs = ((*_own_steps(span, sent), conversion.strict, begun) for span in spans)
        accounts, etags, digests = [], [], []
        for sent_span in conversion.run(_upload_span, jobs, [sum(span.sizes) for span in spans]):
            accounts += sent_span.accounts
            etags += sent_span.etags
            digests += sent_span.digests
        if ended is not None:
            etags.append(begun.send(len(etags) + 1, b"".join(map(as_bytes, buffers(ended.end(digests))))))
        begun.complete(etags, expect)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is what matters
            begun.abort()
        raise
    return accounts


def _segments(
    converted: Archive, plan: Plan, layout: Iterator[RowPlace | memoryview] | RowsFirst, most: int
) -> Iterator[_Segment]:
    """The file in order. A large row that is copied, and has no checksum before or after, is cut into pieces."""
    known = converted.index.checksums
    chunks: Iterator[Chunk]
    chunks, algorithms = (layout.chunks, layout.algorithms) if isinstance(layout, RowsFirst) else (layout, None)
    for part in chunks:
        if not isinstance(part, RowPlace):
            yield bytes(as_bytes(part))
            continue
        algorithm = None if algorithms is None else algorithms[part.row]
        copied = plan.steps[part.row].action == "copy" and (known is None or known[part.row] is None)
        if not copied or algorithm is not None or part.nbytes < 2 * most:
            yield _RowSpan(part.row, 0, part.nbytes, algorithm=algorithm)
            continue
        for begin in range(0, part.nbytes, most):
            yield _RowSpan(part.row, begin, min(begin + most, part.nbytes), whole=False)


def _cut(segments: Iterator[_Segment], least: int, *, last: bool) -> Iterator[_Span]:
    """Spans of at least a job's bytes, cut into parts of at least `least` bytes.

    Only the last part of the object may be smaller. With `last` it is in these spans; without, the caller
    sends it, and a short rest is added to the span before it.
    """
    enough = max(JOB_NBYTES, least)
    held: list[_Segment] = []
    number = 1
    together: list[list[_Segment]] = []
    nbytes = 0
    for segment in segments:
        held.append(segment)
        nbytes += _nbytes(segment)
        if nbytes >= enough:
            together.append(held)
            held, nbytes = [], 0
    if together and not last:
        together[-1] += held
    elif held:
        together.append(held)
    # Parts are numbered in the order of the file; a span has as many as it has whole multiples of `least`, and the
    # last of them takes the rest.
    for some in together:
        nbytes = sum(map(_nbytes, some))
        count = max(1, nbytes // least)
        yield _Span(tuple(some), (*(least,) * (count - 1), nbytes - (count - 1) * least), number)
        number += count


def _nbytes(segment: _Segment) -> int:
    return len(segment) if isinstance(segment, bytes) else segment.end - segment.begin


def _own_steps(span: _Span, plan: Plan) -> tuple[_Span, Plan]:
    """The span with its rows numbered from 0, and the steps of the plan that make them."""
    rows = list(dict.fromkeys(segment.row for segment in span.segments if isinstance(segment, _RowSpan)))
    number = {row: i for i, row in enumerate(rows)}
    segments = tuple(
        segment if isinstance(segment, bytes) else replace(segment, row=number[segment.row])
        for segment in span.segments
    )
    steps: Sequence[Step] = [replace(plan.steps[row], tied=None) for row in rows]
    return replace(span, segments=segments), replace(plan, steps=tuple(steps))


@dataclass(frozen=True, slots=True)
class _Sent:
    """The result of a worker's job."""

    accounts: list[Account]
    etags: list[str]
    digests: list[bytes]
    """Digests of its rows; empty for a row without a checksum."""


def _upload_span(archive: Archive, span: _Span, plan: Plan, strict: bool, upload: MultipartUpload) -> _Sent:
    """The job of a worker: makes the bytes of a span and sends them, a part at a time."""
    converted, codecs = make_archive(archive, plan, attributes=False, strict=strict, executor=None)
    etags: list[str] = []
    digests: list[bytes] = []
    held = bytearray()
    for segment in span.segments:
        algorithm = None if isinstance(segment, bytes) else segment.algorithm
        running = None if algorithm is None else checksums.hasher(algorithm)
        for data in _bytes_of(segment, converted):
            if running is not None:
                running.update(memoryview(data))
            held += data
            while len(etags) + 1 < len(span.sizes) and len(held) >= span.sizes[len(etags)]:
                nbytes = span.sizes[len(etags)]
                etags.append(upload.send(span.first_part + len(etags), held[:nbytes]))
                del held[:nbytes]
        if isinstance(segment, _RowSpan) and segment.begin == 0:  # one digest per row, also if it is cut into pieces
            digests.append(b"" if running is None else running.digest())
    etags.append(upload.send(span.first_part + len(etags), held))
    return _Sent(accounts_of(codecs), etags, digests)


def _bytes_of(segment: _Segment, converted: Archive) -> Iterator[bytes | memoryview]:
    if isinstance(segment, bytes):
        yield segment
        return
    if not segment.whole:
        payload = converted.payload(segment.row, converted.index.names[segment.row])
        yield payload.read(segment.begin, segment.end - segment.begin)
        return
    yield from row_bytes(converted, segment.row)
