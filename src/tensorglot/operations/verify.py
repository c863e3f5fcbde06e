"""Verifying: structure, checksums and values of a file, with all problems in one report.

A problem is a value, not an exception. Structure is checked by opening the file;
checksums, the format's own and those of a sidecar, by reading the bytes that they cover;
values, with `deep`, by reading the arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from tensorglot.arguments import check_choice, check_flags
from tensorglot.containers.table import ReadOptions, named
from tensorglot.errors import FormatError, InputError, TensorglotError, UnsupportedError, plural
from tensorglot.io.place import Place
from tensorglot.io.source import Backend
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Note
from tensorglot.model.layouts import check_values
from tensorglot.model.nonzero_bools import stored_payload
from tensorglot.model.payload import Encoded, as_bytes, buffers
from tensorglot.model.tensor import Part, check_spare_bits
from tensorglot.operations._checksums import Checked, check_archive
from tensorglot.operations._executor import batches, refer_to, run_jobs
from tensorglot.operations._jsonable import Record
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress, ProgressCounter, count_off, start_progress
from tensorglot.operations._shards import find_file
from tensorglot.operations._sidecar import check_sidecar, read_sidecar, write_sidecar
from tensorglot.operations.open import ArchiveLike, OpenOptions, open_source
from tensorglot.threads import Executor, for_each

__all__ = ["Problem", "Report", "verify"]


@dataclass(frozen=True, slots=True)
class Problem(Record):
    """One broken rule."""

    rule: str
    message: str
    tensor: str | None = None
    offset: int | None = None

    @classmethod
    def of(cls, error: TensorglotError) -> Problem:
        return cls(error.rule, error.message, error.tensor, error.offset)

    def __str__(self) -> str:
        return str(TensorglotError(self.message, rule=self.rule, offset=self.offset, tensor=self.tensor))


@dataclass(frozen=True, slots=True, repr=False)
class Report(Record):
    """The result of `verify`."""

    format: str | None
    tensors: int = 0
    nbytes: int = 0
    checksums: int = 0
    """Checksums that matched."""
    unverified: tuple[str, ...] = ()
    """Tensors with a part that has no checksum, or one of an unknown algorithm."""
    canonical: bool | None = None
    """Whether the file has the canonical form of its format; None without `deep`."""
    content_digest: str | None = None
    """The format's own identity of all tensors together, where it has one."""
    problems: tuple[Problem, ...] = field(default=())
    notes: tuple[Note, ...] = ()
    """Unusual, but valid."""

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **Record.to_dict(self)}

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else plural(len(self.problems), "problem")
        first = "" if self.ok else f": {self.problems[0]}"
        return f"Report({self.format or 'unknown format'}, {plural(self.tensors, 'tensor')}, {verdict}{first})"


def verify(
    source: ArchiveLike,
    *,
    format: str | None = None,
    backend: Backend = "auto",
    strict: bool = False,
    deep: bool = False,
    sums: Literal["check", "write"] = "check",
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Checks structure and checksums, and with `deep` every value. Problems are in the report.

    Checksums are the format's own and those of the sidecar `<name>.sums`, if there is
    one. `sums="write"` writes that sidecar instead, if there is no other problem. Only
    invalid arguments and I/O errors are raised. With an `executor` (anything with
    `submit`), workers read the tensors.
    """
    check_flags(deep=deep)
    check_choice(sums, ("check", "write"), "sums", "verify.sums")
    options = OpenOptions.of(format, backend, strict, "never", limits)
    source = locate(source, storage_options)
    place = find_file(source) if isinstance(source, Place) and not source.is_commit else None
    if sums == "write" and place is None:
        raise InputError("sums='write' needs a path as source", rule="verify.sums")
    opened: AbstractContextManager[Archive]
    try:
        if isinstance(source, Archive):
            opened = nullcontext(Archive(source.index, source.source, limits=source.limits))
        else:
            opened = archive = open_source(source, options)
            _ = archive.index  # a commit reads it now
    except FormatError as error:
        return Report(format, problems=(Problem.of(error),))
    with opened as archive, start_progress(progress, "verifying") as report:
        sidecar = place if sums == "check" else None
        if executor is None:
            counter = ProgressCounter(report)
            results = iter([_check_tensors(archive, range(len(archive)), sidecar, options.limits, deep, counter)])
        else:
            nbytes = archive.index.tensor_nbytes.tolist()
            parts = list(batches(nbytes)) or [range(0)]
            reference = refer_to(source, archive, options)
            jobs = [(reference, part, sidecar, options.limits, deep) for part in parts]
            sizes = [sum(nbytes[part.start : part.stop]) for part in parts]
            results = count_off(run_jobs(executor, _check_tensors, jobs), sizes, report)
        problems: list[Problem] = []
        checked: list[Checked] = []
        for wrong, found in results:
            problems += wrong
            checked += found
        problems += _missing_files(archive)
        container = named(archive.format)[0].container
        if deep:
            problems += map(Problem.of, container.inspect(archive))
        problems = list(dict.fromkeys(problems))  # several checks may find the same problem
        problems.sort(key=lambda problem: archive.index.positions.get(problem.tensor or "", len(archive)))
        if sums == "write" and place is not None and not problems:
            write_sidecar(archive, place)
        return Report(
            archive.format,
            tensors=len(archive),
            nbytes=int(archive.index.nbytes.sum()),
            checksums=sum(one.matched for one in checked),
            unverified=_unverified(archive, checked),
            canonical=_canonical(archive, options.limits) if deep else None,
            content_digest=container.content_digest(archive),
            problems=tuple(problems),
            notes=archive.notes,
        )


def _check_tensors(
    archive: Archive,
    tensors: range,
    sidecar: Place | None,
    limits: Limits,
    deep: bool,
    counter: ProgressCounter | None = None,
) -> tuple[list[Problem], list[Checked]]:
    """Checks the checksums of some tensors: the format's own and a sidecar's; with `deep` also the values.

    A job for an executor: its arguments and its result can be pickled, and workers report no progress.
    """
    counter = counter or ProgressCounter(None)
    some = archive.with_index(archive.index.take(np.arange(tensors.start, tensors.stop)))
    stored = int((some.index.ends - some.index.begins).sum())
    checked: list[Checked] = []
    if some.index.checksums is not None or some.index.codecs or some.index.cids is not None:
        counter.expect(stored)
        checked += check_archive(some, counter)
    problems: list[Problem] = []
    try:
        sums = None if sidecar is None else read_sidecar(sidecar, limits)
        if sums is not None:
            counter.expect(stored)
            checked += check_sidecar(archive, sums, counter, tensors)
    except FormatError as error:
        problems.append(Problem.of(error))
    problems += [Problem.of(one.error) for one in checked if one.error is not None]
    if deep:
        problems += _deep_problems(some, {problem.tensor for problem in problems}, counter)
    counter.finish()
    return problems, checked


def _missing_files(archive: Archive) -> Iterator[Problem]:
    """Other files of the archive that are missing or invalid."""
    for source in {id(source): source for source in archive.index.sources.values()}.values():
        try:
            source.view(0, 0)  # opens a file that is opened when it is first used
        except FormatError as error:
            yield Problem.of(error)


def _unverified(archive: Archive, checked: list[Checked]) -> tuple[str, ...]:
    """Tensors with a part whose checksum was not compared."""
    parts = Counter([one.tensor for one in checked if one.matched or one.error is not None])
    counts = np.diff(archive.index.row_offsets).tolist()
    return tuple(name for name, count in zip(archive.index.names, counts, strict=True) if parts[name] < count)


def _deep_problems(archive: Archive, known: set[str | None], counter: ProgressCounter) -> list[Problem]:
    """Values that break a rule, in tensors that have no problem yet."""
    found: dict[str, Problem] = {}
    counter.expect(int(archive.index.nbytes.sum()))

    def check_tensor(name: str) -> None:
        tensor = archive[name]
        checks = [partial(_check_bytes, part, name, counter) for part in tensor.parts.values()]
        try:
            for check in (*checks, partial(check_values, tensor)):
                with suppress(UnsupportedError):  # the other parts can still be checked
                    check()
        except FormatError as error:
            found[name] = Problem.of(error)

    for_each(check_tensor, [name for name in archive if name not in known])
    return [found[name] for name in archive if name in found]


def _check_bytes(part: Part, tensor: str, advance: Callable[[int], None]) -> None:
    """Raises if a part cannot be decoded to its size, or has an invalid value, in bounded memory.

    Invalid are bool bytes other than 0 and 1, and padding bits of packed types that are not 0.
    """
    is_bool = part.dtype is not None and part.dtype.name == "bool"
    is_packed = part.dtype is not None and part.dtype.packed
    if not (is_bool or is_packed or isinstance(part.payload, Encoded)):
        advance(part.nbytes)
        return
    last = b""
    for piece in map(as_bytes, buffers(stored_payload(part.payload).chunks())):
        if is_bool and len(piece) and int(np.frombuffer(piece, np.uint8).max()) > 1:
            raise FormatError("a bool byte must be 0 or 1", rule="values.bool", offset=part.offset, tensor=tensor)
        last = bytes(piece[-1:]) or last
        advance(len(piece))
    if is_packed and part.dtype is not None:
        check_spare_bits(np.frombuffer(last, np.uint8), part.shape, part.dtype, tensor, part.offset)


def _canonical(archive: Archive, limits: Limits) -> bool | None:
    """Whether a strict reader accepts the file. None for shards, and for formats that are only read here."""
    spec, version = named(archive.format)
    if archive.source is None or not spec.writes:
        return None
    try:
        spec.container.read(archive.source, ReadOptions(version, strict=True, limits=limits))
    except FormatError:
        return False
    return True
