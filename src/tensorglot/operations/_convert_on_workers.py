"""Converting on an executor: workers make the bytes of disjoint spans of one file.

The layout of the file is known before a byte is read. It is cut, in the order of the file,
into jobs of some rows with what is between them. A worker opens the source, decodes and
casts these tensors, and writes the bytes to their place in the target's own temporary
file, or sends them as parts of a multipart upload to S3. A job has places and numbers of
parts of its own, so that workers need not know of each other; one that runs twice, after
its first worker died, writes the same bytes to the same place. The file replaces the
target, and the object appears, when the calling process completes it; after an error
nothing is there.

Where an index follows the rows and has their checksums (zTensor 0.1), workers return the
digests of their rows, and the calling process writes the index. A file whose bytes depend
on the values otherwise (compression) is written from a staging file here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import Format, RowsFirst, WriteOptions
from tensorglot.io.local import FileSource
from tensorglot.io.place import Place
from tensorglot.io.sink import AtomicFile, Writable, name_in_errors, write_at
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import as_bytes, buffers, location
from tensorglot.operations._conversion_plan import Plan
from tensorglot.operations._convert_archive import Account, accounts_of, make_archive, row_bytes
from tensorglot.operations._executor import JOB_NBYTES, TENSOR_COST, Reference, run_jobs
from tensorglot.operations._file_layout import RowPlace, file_layout, rows_layout
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._progress import count_off, start_progress
from tensorglot.operations._sidecar import SetAside
from tensorglot.operations.save import version_in_use, write_archive
from tensorglot.threads import Executor
from tensorglot.wire import checksums

if TYPE_CHECKING:
    from tensorglot.io.multipart import MultipartUpload

__all__ = ["WorkerConversion", "convert_on_workers"]

_PART_NBYTES = 8 << 20
"""Smallest part. S3 requires at least 5 MiB for every part but the last."""
_MOST_PARTS = 9_000
"""Most parts that are planned for; S3 accepts 10,000, and jobs round their number up."""


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


def convert_on_workers(conversion: WorkerConversion, target: Writable) -> list[Account]:
    """Writes the archive of a plan by workers. Returns an account of each tensor that was cast or quantized."""
    converted, durable = conversion.converted, conversion.plan.save.durable
    if isinstance(target, Place):
        read = version_in_use(converted, target)
        if target.remote:
            from tensorglot.io.multipart import multipart_upload

            upload = multipart_upload(target.text, target.options)
            layout = None if upload is None else _layout(conversion)
            if upload is not None and layout is not None:
                return _upload(conversion, layout, upload, read if isinstance(read, str) else None)
        elif (layout := _layout(conversion)) is not None:
            stamp, around = None if isinstance(read, str) else read, SetAside(target, durable=durable)
            with AtomicFile(target, durable=durable, expect=stamp, shared=True, around=around) as file:
                made, nbytes = _write(conversion, layout, file.path)
                file.skip(nbytes)
                file.write(map(as_bytes, buffers(layout.end(made.digests))))
                return made.accounts
    with _staging_file(target) as path:
        index = _decoded(converted)
        rows = (RowPlace.of(row, nbytes) for row, nbytes in enumerate(index.nbytes.tolist()))
        made, _ = _write(conversion, RowsFirst(rows), path, index.begins)
        with closing(FileSource(path)) as staged:
            save = conversion.plan.save._replace(progress=None)
            write_archive(target, Archive(index, staged), conversion.spec, conversion.settled, save)
    return made.accounts


def _layout(conversion: WorkerConversion) -> RowsFirst | None:
    """The layout of the new file; None if it depends on values."""
    converted, spec, settled = conversion.converted, conversion.spec, conversion.settled
    if spec.container.raw_rows:
        return RowsFirst(file_layout(converted, spec, settled))
    large = int(converted.index.nbytes.sum()) >= JOB_NBYTES
    return rows_layout(_decoded(converted), spec, settled) if large else None


def _decoded(converted: Archive) -> Index:
    """The index of the rows as workers make them: decoded, one after the other."""
    index, sizes = converted.index, converted.index.nbytes
    begins = np.cumsum(sizes) - sizes
    _share_rows(begins, converted)
    return replace(
        index,
        begins=begins,
        ends=begins + sizes,
        codecs={},
        decoded_nbytes={},
        payloads=None,
        sources={},
        big_endian=frozenset(),
        checksums=None,
        checksums_decoded=None,
    )


def _share_rows(begins: NDArray[np.int64], converted: Archive) -> None:
    """Gives rows that share their bytes in the source the same place, as a writer does that sees the source."""
    index = converted.index
    shared = index.find_shared_rows() if index.payloads is None else np.flatnonzero(index.nbytes)
    first: dict[tuple[object, ...], int] = {}
    for row in shared.tolist():
        dtype = index.dtypes[row] if row in index.big_endian else None  # bytes are swapped by the width of an element
        key = (*location(converted.payload(row, index.name_of(row))), dtype)
        begins[row] = begins[first.setdefault(key, row)]


@contextmanager
def _staging_file(target: Writable) -> Iterator[str]:
    """A temporary file beside the target, or in the temporary directory if the target is not a file."""
    folder = Path(os.path.realpath(target)).parent if isinstance(target, Place) and not target.remote else None
    from tempfile import mkstemp

    with nullcontext() if folder is None else name_in_errors(folder):
        fd, path = mkstemp(prefix=".tensorglot-", suffix=".tmp", dir=folder)
    os.close(fd)
    try:
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Adjacent bytes of the file: constant ones, those of a row, or a piece of a row that is copied unchecked."""

    at: int
    """Where they are in the file."""
    nbytes: int
    data: bytes = b""
    """Constant bytes."""
    tensor: int = -1
    part: int = 0
    """Number of the row in its tensor."""
    begin: int = 0
    """Offset in the row."""
    whole: bool = True
    algorithm: str | None = None
    """Algorithm of the checksum that the worker returns for the row."""
    ends: bool = True
    """Whether a job may end here: not between the rows of a tensor that is computed, of which there is one account."""


@dataclass(frozen=True, slots=True)
class _Span:
    """What one job makes: adjacent bytes of the file."""

    segments: tuple[_Segment, ...]
    least: int
    """The size of each part of an upload; the last one has the rest, too."""
    first_part: int

    @property
    def parts(self) -> int:
        return max(1, self.nbytes // self.least)

    @property
    def tensors(self) -> list[int]:
        """Tensors of which it has rows."""
        return list(dict.fromkeys(segment.tensor for segment in self.segments if segment.tensor >= 0))

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class _Made:
    """The result of jobs."""

    accounts: list[Account] = field(default_factory=list)
    etags: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """Digests of the rows; empty for a row without a checksum."""


def _write(
    conversion: WorkerConversion, layout: RowsFirst, path: str, begins: NDArray[np.int64] | None = None
) -> tuple[_Made, int]:
    """Writes a file; returns also its size up to the index. Rows are at `begins`, or one after the other."""
    segments = list(_segments(conversion, layout, JOB_NBYTES, begins))
    nbytes = max((segment.at + segment.nbytes for segment in segments), default=0)
    os.truncate(path, nbytes)
    return _run(conversion, _cut(segments, 0), path), nbytes


def _upload(
    conversion: WorkerConversion, layout: RowsFirst, upload: MultipartUpload, expect: str | None
) -> list[Account]:
    least = max(_PART_NBYTES, -(-int(conversion.converted.index.nbytes.sum()) // _MOST_PARTS))
    segments = _segments(conversion, layout, max(JOB_NBYTES, least))
    ended = bool(layout.algorithms)
    begun = upload.begin()
    try:
        made = _run(conversion, _cut(segments, least, last=not ended), begun)
        if ended:
            index = b"".join(map(as_bytes, buffers(layout.end(made.digests))))
            made.etags.append(begun.send(len(made.etags) + 1, index))
        begun.complete(made.etags, expect)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is what matters
            begun.abort()
        raise
    return made.accounts


def _segments(
    conversion: WorkerConversion, layout: RowsFirst, most: int, begins: NDArray[np.int64] | None = None
) -> Iterator[_Segment]:
    """The file in order. A large row that is copied, and has no checksum before or after, is cut into pieces."""
    index, steps, position = conversion.converted.index, conversion.plan.steps, 0
    known, offsets = index.checksums, index.row_offsets.tolist()
    tensors = np.repeat(np.arange(len(steps)), np.diff(index.row_offsets)).tolist()
    for chunk in layout.chunks:
        if not isinstance(chunk, RowPlace):
            if data := bytes(as_bytes(chunk)):
                yield _Segment(position, len(data), data)
                position += len(data)
            continue
        row, nbytes = chunk.row, chunk.nbytes
        at = position if begins is None else int(begins[row])
        position = at + nbytes
        tensor = tensors[row]
        part, copied = row - offsets[tensor], steps[tensor].action == "copy"
        algorithm = layout.algorithms[row] if layout.algorithms else None
        if copied and algorithm is None and (known is None or known[row] is None) and nbytes >= 2 * most:
            for begin in range(0, nbytes, most):
                size = min(most, nbytes - begin)
                yield _Segment(at + begin, size, b"", tensor, part, begin, whole=False)
        else:
            ends = copied or row + 1 == offsets[tensor + 1]
            yield _Segment(at, nbytes, b"", tensor, part, algorithm=algorithm, ends=ends)


def _cut(segments: Iterable[_Segment], least: int, *, last: bool = True) -> Iterator[_Span]:
    """Spans that are worth a job, of at least `least` bytes. Only the last one may be smaller.

    Without `last` the caller adds to the file, and a short rest belongs to the span before it.
    """
    spans: list[list[_Segment]] = []
    held: list[_Segment] = []
    nbytes = cost = 0
    for segment in segments:
        full = max(cost, segment.nbytes) >= JOB_NBYTES  # a large row has a job of its own
        if full and held and held[-1].ends and nbytes >= least:
            spans.append(held)
            held, nbytes, cost = [], 0, 0
        held.append(segment)
        nbytes += segment.nbytes
        cost += segment.nbytes + (TENSOR_COST if segment.tensor >= 0 else 0)
    if spans and not last and nbytes < least:
        spans[-1] += held
    elif held:
        spans.append(held)
    number = 1
    for some in spans:
        yield (span := _Span(tuple(some), max(1, least), number))
        number += span.parts


def _run(conversion: WorkerConversion, spans: Iterable[_Span], output: str | MultipartUpload) -> _Made:
    """Workers make all spans, with progress."""
    plan, spans = conversion.plan, list(spans)
    # What no worker needs is not sent, and a job has only some of the steps.
    sent = replace(plan, save=SaveOptions(durable=plan.save.durable), metadata=None, losses=())
    jobs = ((conversion.source, span, _own_steps(span, sent), conversion.strict, output) for span in spans)
    made = _Made()
    with start_progress(plan.save.progress, "converting") as report:
        found = run_jobs(conversion.executor, _make_span, jobs)
        for part in count_off(found, [span.nbytes for span in spans], report):
            made.accounts.extend(part.accounts)
            made.etags.extend(part.etags)
            made.digests.extend(part.digests)
    return made


def _own_steps(span: _Span, plan: Plan) -> Plan:
    """The steps of the tensors in a span. Not tied: the tensor that a step is tied to may be in another job."""
    return replace(plan, steps=tuple(replace(plan.steps[tensor], tied=None) for tensor in span.tensors))


def _make_span(archive: Archive, span: _Span, plan: Plan, strict: bool, output: str | MultipartUpload) -> _Made:
    """The job of a worker: makes the bytes of a span, and writes them to the file at a path, or sends them."""
    converted, codecs = make_archive(archive, plan, attributes=False, strict=strict, executor=None)
    made = _Made()
    data = _bytes_of(span, converted, made.digests)
    if isinstance(output, str):
        _write_bytes(output, data, plan.save.durable)
    else:
        _send_bytes(output, span, data, made.etags)
    made.accounts.extend(accounts_of(codecs))
    return made


def _bytes_of(span: _Span, converted: Archive, digests: list[bytes]) -> Iterator[tuple[int, bytes | memoryview]]:
    """The bytes of a span, each piece with its place in the file; adds the digest of each row to `digests`."""
    index = converted.index
    first_rows = dict(zip(span.tensors, index.row_offsets.tolist(), strict=False))
    for segment in span.segments:
        if segment.tensor < 0:
            yield segment.at, segment.data
            continue
        row = first_rows[segment.tensor] + segment.part
        if not segment.whole:
            yield segment.at, converted.payload(row, index.name_of(row)).read(segment.begin, segment.nbytes)
            if segment.begin == 0:
                digests.append(b"")
            continue
        running, at = None if segment.algorithm is None else checksums.hasher(segment.algorithm), segment.at
        for data in row_bytes(converted, row):
            if running is not None:
                running.update(data)
            yield at, data
            at += len(data)
        digests.append(b"" if running is None else running.digest())


def _write_bytes(path: str, pieces: Iterable[tuple[int, bytes | memoryview]], durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for at, data in pieces:
            write_at(fd, memoryview(data), at)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _send_bytes(
    upload: MultipartUpload, span: _Span, pieces: Iterable[tuple[int, bytes | memoryview]], etags: list[str]
) -> None:
    """Sends the parts of a span, each when its bytes are there."""
    held = bytearray()
    for _, data in pieces:
        held += data
        while len(etags) + 1 < span.parts and len(held) >= span.least:
            etags.append(upload.send(span.first_part + len(etags), held[: span.least]))
            del held[: span.least]
    etags.append(upload.send(span.first_part + len(etags), held))
