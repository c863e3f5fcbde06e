"""What vectors there are: every field of some documents, with what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tensorglot.bson.sources import runs
from tensorglot.wire.bson_fields import Fields, scan

__all__ = ["FieldReport", "inspect"]


@dataclass(frozen=True, slots=True)
class FieldReport:
    """One vector field."""

    name: str
    """Its dotted path."""
    dtype: str | None
    """None where the first vector is not even valid."""
    count: int | None
    """Elements of a vector."""
    padding: int | None
    vectors: int
    documents: int
    """All documents, also those without the field."""
    trouble: str | None
    """Why `decode_matrix` would refuse the field as it is."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect(source: Any) -> list[FieldReport]:
    """The vector fields of raw BSON, of a dump or of a raw cursor. No vector is copied."""
    found = scan(runs(source))
    return [_report(found, field) for field in range(len(found.names))]


def _report(found: Fields, field: int) -> FieldReport:
    row = found.row_of(field)
    return FieldReport(
        found.names[field],
        None if row is None else row.kind.name,
        None if row is None else row.count,
        None if row is None else row.padding,
        len(found.begins_of(field)),
        found.documents,
        found.troubles.get(field),
    )
