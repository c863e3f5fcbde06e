"""Lists the vector fields of documents, and why a field cannot be read as one matrix."""

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
    """None if the first vector is invalid."""
    count: int | None
    """Elements per vector."""
    padding: int | None
    vectors: int
    documents: int
    """All documents, including those without the field."""
    trouble: str | None
    """Why `decode_matrix` would refuse the field; None if it would not."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect(source: Any) -> list[FieldReport]:
    """Lists the vector fields of raw BSON, a dump or a raw cursor, without copying vectors."""
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
