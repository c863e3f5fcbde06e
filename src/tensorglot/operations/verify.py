"""Verifying: open strictly enough to name what is wrong, then look at every tensor.

A problem is a value, not an exception: a report has all of them that one pass can
find. Structure is checked by opening; checksums by reading the bytes that they cover;
values, with `deep`, by reading the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorglot.errors import FormatError, TensorglotError, UnsupportedError
from tensorglot.io.source import Backend, Readable
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.operations.open import open

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
    """Tensors without a checksum."""
    problems: tuple[Problem, ...] = field(default=())

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
            "problems": [problem.to_dict() for problem in self.problems],
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
    """Checks structure, and with `deep` every value. Problems are in the report.

    Only what is not the file's fault is raised: arguments that make no sense, and I/O errors.
    """
    try:
        archive = open(source, format=format, backend=backend, strict=strict, limits=limits)
    except FormatError as error:
        return Report(format, problems=(Problem.of(error),))
    with archive:
        problems = _deep_problems(archive) if deep else []
        return Report(
            archive.format,
            tensors=len(archive),
            nbytes=int(archive.index.nbytes.sum()),
            unverified=tuple(archive),
            problems=tuple(problems),
        )


def _deep_problems(archive: Archive) -> list[Problem]:
    problems = []
    for name in archive:
        try:
            archive[name].numpy()
        except UnsupportedError:
            continue
        except FormatError as error:
            problems.append(Problem.of(error))
    return problems
