"""Lists the vector fields of documents, and the arrays of numbers that could be vectors.

Says why a field cannot be read as one matrix, and what a migration would save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorglot.bson.sources import runs
from tensorglot.operations._jsonable import Record
from tensorglot.wire.bson_arrays import ArrayField, ArrayScan
from tensorglot.wire.bson_fields import Fields, scan

__all__ = ["FieldReport", "inspect"]


@dataclass(frozen=True, slots=True)
class FieldReport(Record):
    """One field of vectors, of arrays of numbers, or of both while it is being migrated."""

    name: str
    """Its dotted path."""
    dtype: str | None
    """None if there are no vectors, or the first one is invalid."""
    count: int | None
    """Elements per vector, or of each array; None if arrays differ."""
    padding: int | None
    vectors: int
    vectors_nbytes: int
    """Bytes of the vectors, with the length and the head of each."""
    documents: int
    """All documents, including those without the field."""
    trouble: str | None
    """Why `decode_matrix` would refuse the field, or why its arrays would not be one matrix; None if neither."""
    arrays: int = 0
    """Arrays of numbers, which `migrate` would convert to float32 vectors."""
    types: tuple[str, ...] = ()
    """BSON types of the numbers in arrays."""
    arrays_nbytes: int = 0
    saved_nbytes: int = 0
    """Bytes that a migration of the arrays would save: a vector has smaller numbers, and no key for each of them."""


def inspect(source: Any) -> list[FieldReport]:
    """Lists the fields of raw BSON, a dump or a raw cursor that have vectors or arrays of numbers."""
    plain = ArrayScan()
    found = scan(plain.watch(runs(source)))
    arrays = {field.name: field for field in plain.fields()}
    reports = [_report(found, i, arrays.pop(name, None)) for i, name in enumerate(found.names)]
    return reports + [_array_report(field, found.documents) for field in arrays.values()]


def _report(found: Fields, field: int, arrays: ArrayField | None) -> FieldReport:
    row = found.row_of(field)
    return FieldReport(
        found.names[field],
        None if row is None else row.kind.name,
        None if row is None else row.count,
        None if row is None else row.padding,
        len(found.begins_of(field)),
        int(found.nbytes[field]),
        found.documents,
        found.troubles.get(field),
        *_sums(arrays),
    )


def _sums(arrays: ArrayField | None) -> tuple[Any, ...]:
    return () if arrays is None else (arrays.arrays, arrays.types, arrays.nbytes, arrays.saved_nbytes)


def _array_report(field: ArrayField, documents: int) -> FieldReport:
    same = field.shortest == field.longest
    trouble = None if same else f"arrays differ: {field.shortest} to {field.longest} numbers"
    count = field.shortest if same else None
    return FieldReport(field.name, None, count, None, 0, 0, documents, trouble, *_sums(field))
