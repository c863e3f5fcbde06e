"""Converting on an executor: workers write the bytes of tensors to disjoint spans of one file.

The sizes of all rows are known from the plan, so the place of each is computed before a
byte is read. A job has steps of the plan and a place for each; the worker opens the
source, decodes and casts these tensors, and writes them. It may run twice, on another
worker after the first one died: it writes the same bytes to the same place.

Where a format stores rows as they are (`Container.raw_rows`), the file is the target's own
temporary file: the calling process writes what is between the rows. An object of S3 is
uploaded by the workers (`_convert_parts`), also of a format whose index follows the rows
(`Container.rows_first`). A file whose bytes depend on the values otherwise (checksums,
compression) is written from a staging file here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import RowsFirst
from tensorglot.io.local import FileSource
from tensorglot.io.place import Place
from tensorglot.io.sink import AtomicFile, Writable, name_in_errors, write_at
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import location
from tensorglot.operations._conversion_plan import Plan, Step
from tensorglot.operations._convert_archive import Account, accounts_of, make_archive, row_bytes
from tensorglot.operations._convert_parts import WorkerConversion, upload_converted
from tensorglot.operations._executor import JOB_NBYTES, batches
from tensorglot.operations._file_layout import RowPlace, file_layout, rows_layout
from tensorglot.operations._sidecar import SetAside
from tensorglot.operations.save import version_in_use, write_archive

__all__ = ["convert_on_workers"]


def convert_on_workers(conversion: WorkerConversion, target: Writable) -> list[Account]:
    """Writes the archive of a plan by workers. Returns an account of each tensor that was cast or quantized."""
    converted, plan, spec, settled = conversion.converted, conversion.plan, conversion.spec, conversion.settled
    if isinstance(target, Place):
        read = version_in_use(converted, target)
        if target.remote:
            done = _upload(conversion, target, read if isinstance(read, str) else None)
            if done is not None:
                return done
        elif spec.container.raw_rows:
            stamp = None if isinstance(read, str) else read
            durable = plan.save.durable
            around = SetAside(target, durable=durable)
            with AtomicFile(target, durable=durable, expect=stamp, shared=True, around=around) as file:
                offsets = np.zeros(len(converted.index.dtypes), np.int64)
                for chunk in file_layout(converted, spec, settled):
                    if isinstance(chunk, RowPlace):
                        offsets[chunk.row] = file.skip(chunk.nbytes)
                    else:
                        file.write([chunk])
                return _fill(conversion, file.path, offsets)
    with _staging_file(target) as path:
        index = _decoded(converted)
        accounts = _fill(conversion, path, index.begins)
        with closing(FileSource(path)) as staged:
            write_archive(target, Archive(index, staged), spec, settled, plan.save._replace(progress=None))
    return accounts


def _upload(conversion: WorkerConversion, target: Place, expect: str | None) -> list[Account] | None:
    """Uploads by workers; None if the format or the server does not allow it."""
    from tensorglot.io.multipart import multipart_upload

    upload = multipart_upload(target.text, target.options)
    if upload is None:
        return None
    converted, spec, settled = conversion.converted, conversion.spec, conversion.settled
    if spec.container.raw_rows:
        layout: RowsFirst | Iterator[RowPlace | memoryview] | None = file_layout(converted, spec, settled)
    else:
        large = int(converted.index.nbytes.sum()) >= JOB_NBYTES
        layout = rows_layout(_decoded(converted), spec, settled) if large else None
    return None if layout is None else upload_converted(conversion, upload, layout, expect)


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


def _fill(conversion: WorkerConversion, path: str, offsets: NDArray[np.int64]) -> list[Account]:
    """Writes all rows to their offsets of a file. The steps of the plan are cut into jobs."""
    index, sent = conversion.converted.index, conversion.sent_plan
    steps, row_offsets, nbytes = sent.steps, index.row_offsets.tolist(), index.nbytes
    sizes = [int(nbytes[a:b].sum()) for a, b in pairwise(row_offsets)]
    os.truncate(path, int((offsets + nbytes).max(initial=Path(path).stat().st_size)))
    jobs, done = [], []
    for part in batches(sizes):
        rows = slice(row_offsets[part.start], row_offsets[part.stop])
        # Not tied: the tensor that a step is tied to may be in the job of another worker.
        plan = replace(sent, steps=tuple(replace(step, tied=None) for step in steps[part.start : part.stop]))
        whole = (plan, conversion.strict, path, offsets[rows].tolist())
        for piece in _pieces(index, plan.steps, rows, sizes[part.start]):
            jobs.append((*whole, piece))
            done.append(piece[1] - piece[0] if piece is not None else sum(sizes[part.start : part.stop]))
    return [account for found in conversion.run(_write_rows, jobs, done) for account in found]


def _pieces(index: Index, steps: Sequence[Step], rows: slice, nbytes: int) -> list[tuple[int, int] | None]:
    """The pieces of a large row that is copied without a checksum; else [None], for all rows of the job."""
    checked = index.checksums is not None and index.checksums[rows.start] is not None
    if rows.stop - rows.start > 1 or steps[0].action != "copy" or checked or nbytes < 2 * JOB_NBYTES:
        return [None]
    return [(begin, min(begin + JOB_NBYTES, nbytes)) for begin in range(0, nbytes, JOB_NBYTES)]


def _write_rows(
    archive: Archive, plan: Plan, strict: bool, path: str, offsets: list[int], piece: tuple[int, int] | None
) -> list[Account]:
    """The job of a worker: writes the rows of some tensors, or a piece of one row."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        converted, codecs = make_archive(archive, plan, attributes=False, strict=strict, executor=None)
        if piece is not None:
            begin, end = piece
            write_at(fd, converted.payload(0, converted.index.names[0]).read(begin, end - begin), offsets[0] + begin)
        else:
            for row, at in enumerate(offsets):
                for data in row_bytes(converted, row):
                    write_at(fd, data, at)
                    at += len(data)
        if plan.save.durable:
            os.fsync(fd)
        return accounts_of(codecs)
    finally:
        os.close(fd)
