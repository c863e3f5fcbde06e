"""Converting on an executor to an object: workers upload the parts of one multipart upload.

The layout of the file is known before a byte is read. It is cut, in the order of the
file, into jobs of some rows with what is between them; a job has numbers of parts of its
own, so that workers need not know of each other. A job that runs twice sends the same
parts again. The object appears when the calling process completes the upload; after an
error it aborts it, and nothing is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tensorglot.containers.table import Format, WriteOptions
from tensorglot.errors import TruncatedError
from tensorglot.model.archive import Archive
from tensorglot.model.payload import as_bytes, buffers
from tensorglot.operations._conversion_plan import Plan, Step
from tensorglot.operations._convert_archive import Account, make_archive
from tensorglot.operations._executor import JOB_NBYTES, Reference, run_jobs
from tensorglot.operations._file_layout import RowPlace, file_layout
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._progress import start_progress
from tensorglot.threads import Executor

if TYPE_CHECKING:
    from tensorglot.io.multipart import MultipartUpload

__all__ = ["upload_converted"]

_PART_NBYTES = 8 << 20
"""The least that is sent as one part; S3 asks for 5 MiB, but for the last."""
_MOST_PARTS = 9_000
"""S3 takes 10,000."""


@dataclass(frozen=True, slots=True)
class _RowSpan:
    """Bytes of one row: all of them, or a piece of a row that is copied without a checksum."""

    row: int
    begin: int
    end: int
    whole: bool = True


_Segment = _RowSpan | bytes


@dataclass(frozen=True, slots=True)
class _Span:
    """Adjacent bytes of the file for one job, and where its parts begin."""

    segments: tuple[_Segment, ...]
    sizes: tuple[int, ...]
    """Sizes of its parts."""
    first_part: int


def upload_converted(
    executor: Executor,
    source: Reference,
    upload: MultipartUpload,
    converted: Archive,
    plan: Plan,
    spec: Format,
    settled: WriteOptions,
    *,
    strict: bool,
    expect: str | None,
) -> list[Account]:
    """Uploads the archive of a plan by workers. Returns what was done to values."""
    least = max(_PART_NBYTES, -(-int(converted.index.nbytes.sum()) // _MOST_PARTS))
    spans = list(_cut(_segments(converted, plan, spec, settled, max(JOB_NBYTES, least)), least))
    sent = replace(plan, save=SaveOptions(), metadata=None, losses=())
    begun = upload.begin()
    try:
        jobs = ((source, *_own_steps(span, sent), strict, begun) for span in spans)
        accounts, etags = [], []
        total, done = sum(sum(span.sizes) for span in spans), 0
        with start_progress(plan.save.progress, "converting") as report:
            for span, (found, tags) in zip(spans, run_jobs(executor, _upload_span, jobs), strict=True):
                accounts += found
                etags += tags
                done += sum(span.sizes)
                if report is not None:
                    report(done, total)
        begun.complete(etags, expect)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is what matters
            begun.abort()
        raise
    return accounts


def _segments(converted: Archive, plan: Plan, spec: Format, settled: WriteOptions, most: int) -> Iterator[_Segment]:
    """The file in order. A large row that is copied without a checksum is cut into pieces."""
    checksums = converted.index.checksums
    for part in file_layout(converted, spec, settled):
        if not isinstance(part, RowPlace):
            yield bytes(part)
            continue
        copied = plan.steps[part.row].action == "copy" and (checksums is None or checksums[part.row] is None)
        if not copied or part.nbytes < 2 * most:
            yield _RowSpan(part.row, 0, part.nbytes)
            continue
        for begin in range(0, part.nbytes, most):
            yield _RowSpan(part.row, begin, min(begin + most, part.nbytes), whole=False)


def _cut(segments: Iterator[_Segment], least: int) -> Iterator[_Span]:
    """Spans of at least a job's bytes. Parts have at least `least` bytes, but for the last of all."""
    held: list[_Segment] = []
    nbytes, number = 0, 1

    def span() -> _Span:
        count = max(1, nbytes // least)
        return _Span(tuple(held), (*(least,) * (count - 1), nbytes - (count - 1) * least), number)

    for segment in segments:
        held.append(segment)
        nbytes += _nbytes(segment)
        if nbytes >= max(JOB_NBYTES, least):
            yield (made := span())
            held, nbytes, number = [], 0, number + len(made.sizes)
    if nbytes:
        yield span()


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


def _upload_span(
    archive: Archive, span: _Span, plan: Plan, strict: bool, upload: MultipartUpload
) -> tuple[list[Account], list[str]]:
    """The job of a worker: makes the bytes of a span and sends them, a part at a time."""
    converted, codecs = make_archive(archive, plan, attributes=False, strict=strict, executor=None)
    etags: list[str] = []
    held = bytearray()
    for segment in span.segments:
        for data in _bytes_of(segment, converted):
            held += data
            while len(etags) + 1 < len(span.sizes) and len(held) >= span.sizes[len(etags)]:
                nbytes = span.sizes[len(etags)]
                etags.append(upload.send(span.first_part + len(etags), held[:nbytes]))
                del held[:nbytes]
    etags.append(upload.send(span.first_part + len(etags), held))
    return [replace(codec.account, tensor=name) for name, codec in codecs.items()], etags


def _bytes_of(segment: _Segment, converted: Archive) -> Iterator[bytes | memoryview]:
    if isinstance(segment, bytes):
        yield segment
        return
    if not segment.whole:
        payload = converted.payload(segment.row, converted.index.names[segment.row])
        yield payload.read(segment.begin, segment.end - segment.begin)
        return
    nbytes = 0
    for data in map(as_bytes, buffers(converted.chunks(np.array([segment.row])))):
        nbytes += len(data)
        yield data
    if nbytes != segment.end:
        name = converted.index.names[segment.row]
        raise TruncatedError(f"{nbytes} bytes decoded", rule="convert.size", tensor=name)
