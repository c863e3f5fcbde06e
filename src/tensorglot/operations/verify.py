"""Verifying: open strictly enough to name what is wrong, then look at every tensor.

A problem is a value, not an exception: a report has all of them that one pass can
find. Structure is checked by opening; checksums by reading the bytes that they cover;
values, with `deep`, by reading the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorglot.errors import FormatError, TensorglotError, UnsupportedError
from tensorglot.formats.table import ReadOptions, named
from tensorglot.io.memory import each
from tensorglot.io.source import Backend, Readable
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.archive import Archive
from tensorglot.model.index import Note
from tensorglot.model.layouts import check_values
from tensorglot.operations.check import check_part
from tensorglot.operations.open import open
from tensorglot.operations.values import check_bytes

__all__ = ["Problem", "Report", "verify"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule."""

    rule: str
    message: str
    tensor: str | None = None
    offset: int | None = None

    @classmethod
    def of(cls, error: TensorglotError) -> Problem:
        return cls(error.rule, error.message, error.tensor, error.offset)

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "message": self.message, "tensor": self.tensor, "offset": self.offset}

    def __str__(self) -> str:
        return str(TensorglotError(self.message, rule=self.rule, offset=self.offset, tensor=self.tensor))


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What `verify` found."""

    format: str | None
    tensors: int = 0
    nbytes: int = 0
    checksums: int = 0
    """Checksums that were there and matched."""
    unverified: tuple[str, ...] = ()
    """Tensors with a part that has no checksum, or one of a kind that we do not know."""
    canonical: bool | None = None
    """With `deep`: the file is the one byte string that a canonical writer makes."""
    content_digest: str | None = None
    """The format's own identity of all tensors together, where it has one."""
    problems: tuple[Problem, ...] = field(default=())
    notes: tuple[Note, ...] = ()
    """What is odd, and not wrong."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "format": self.format,
            "tensors": self.tensors,
            "nbytes": self.nbytes,
            "checksums": self.checksums,
            "unverified": list(self.unverified),
            "canonical": self.canonical,
            "content_digest": self.content_digest,
            "problems": [problem.to_dict() for problem in self.problems],
            "notes": [{"rule": note.rule, "message": note.message} for note in self.notes],
        }

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        first = "" if self.ok else f": {self.problems[0]}"
        return f"Report({self.format or 'unknown format'}, {self.tensors} tensors, {verdict}{first})"


def verify(
    source: Readable,
    *,
    format: str | None = None,
    backend: Backend = "auto",
    strict: bool = False,
    deep: bool = False,
    limits: Limits | None = None,
) -> Report:
    """Checks structure and checksums, and with `deep` every value. Problems are in the report.

    Only what is not the file's fault is raised: arguments that make no sense, and I/O errors.
    """
    try:
        archive = open(source, format=format, backend=backend, strict=strict, limits=limits)
    except FormatError as error:
        return Report(format, problems=(Problem.of(error),))
    with archive:
        found = {name: _Found() for name in archive}
        each(lambda name: _look(archive, name, found[name], deep=deep), list(found))
        problems = [problem for one in found.values() for problem in one.problems]
        module = named(archive.format)[0].module
        if deep:
            problems += [Problem.of(error) for error in getattr(module, "inspect", _nothing)(archive)]
        return Report(
            archive.format,
            tensors=len(archive),
            nbytes=int(archive.index.nbytes.sum()),
            checksums=sum(one.checksums for one in found.values()),
            unverified=tuple(name for name, one in found.items() if one.unverified),
            canonical=_canonical(archive, limits) if deep else None,
            content_digest=getattr(module, "content_digest", _nothing)(archive) or None,
            problems=tuple(problems),
            notes=archive.notes,
        )


@dataclass(slots=True)
class _Found:
    """What was found of one tensor."""

    checksums: int = 0
    unverified: bool = False
    problems: list[Problem] = field(default_factory=list)


def _nothing(archive: Archive) -> tuple[()]:
    return ()


def _look(archive: Archive, name: str, found: _Found, *, deep: bool) -> None:
    tensor = archive[name]
    for part in tensor.parts.values():
        try:
            known = check_part(part, name)
            found.checksums += known
            found.unverified |= not known
            if deep:
                check_bytes(part, name)
        except UnsupportedError:
            found.unverified = True
        except FormatError as error:
            found.problems.append(Problem.of(error))
    if deep and not found.problems:
        try:
            check_values(tensor)
        except UnsupportedError:
            return
        except FormatError as error:
            found.problems.append(Problem.of(error))


def _canonical(archive: Archive, limits: Limits | None) -> bool | None:
    """None for shards, each of which may be canonical."""
    if archive.source is None:
        return None
    row, version = named(archive.format)
    try:
        row.module.read(archive.source, ReadOptions(version, strict=True, limits=limits or DEFAULT))
    except FormatError:
        return False
    return True
