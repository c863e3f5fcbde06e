"""Sizes of the values of types, from the rows of their texts: no object is made for a type inside.

Opening a file needs no more of a type than this; a plan (`schema`) is made when a value is
read or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.atoms import atom_of
from tensorglot.errors import FormatError, escape
from tensorglot.kernels import type_codes as codes
from tensorglot.kernels import type_sizes as kernel
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.types.algebra import FixedBytes, FixedString
from tensorglot.model.types.base import Type
from tensorglot.model.types.rows import LEAVES, WORDS, Rows
from tensorglot.model.types.temporal import DateTime, Decimal
from tensorglot.model.types.text import parse_each

__all__ = ["KERNEL_WORDS", "NO_LIMITS", "VARIABLE", "Sizes", "fixed_nbytes", "measure", "read_types"]

VARIABLE = kernel.VARIABLE
_BRACKETS = {
    "bytes[": FixedBytes(1), "fixed_string[": FixedString(1), "datetime[": DateTime("s"), "decimal[": Decimal(1, 0),
}  # fmt: skip
_FLAT = _BRACKETS | {word: type for word, type in LEAVES.items() if WORDS[word] <= codes.FLAT}
_ATOMS = [atom_of(_FLAT[word]) if word in _FLAT else None for word in WORDS]
KERNEL_WORDS = (
    np.array([atom.nbytes if atom else 0 for atom in _ATOMS], np.int64),
    np.array([atom is not None and atom.sentinel is not None for atom in _ATOMS], np.int64),
)
NO_LIMITS = Limits(type_nbytes=1 << 62, type_depth=1 << 62, rank=1 << 62)


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """Of the types in rows: the size of a value, or VARIABLE; the size of the smallest; what one is charged with."""

    columns: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    least: NDArray[np.int64]
    charge: NDArray[np.int64]


def measure(rows: Rows) -> Sizes:
    count = len(rows.code)
    columns = np.empty((kernel.COLUMNS, count), np.int64)
    kernel.measure(rows.columns.reshape(-1), count, KERNEL_WORDS, columns.reshape(-1))
    return Sizes(columns, *columns)


def read_types(texts: Sequence[str], limits: Limits = DEFAULT, offset: int | None = None) -> Rows:
    """Parses types of values that follow in a file, at an offset: canonical texts of types that are not symbolic."""
    try:
        rows = parse_each(texts, limits)
    except FormatError as error:
        error.offset = offset
        raise
    for number in np.flatnonzero(rows.symbolic[rows.roots])[:1].tolist():
        raise FormatError(
            f"{escape(texts[number], longest=60)} is symbolic: no value has this type",
            rule="dynd.symbolic",
            offset=offset,
        )
    return rows


def fixed_nbytes(type: Type) -> int | None:
    """The serialized size of a value, if all values of the type have the same."""
    nbytes = measure(read_types([str(type)], NO_LIMITS)).nbytes.item(0)
    return None if nbytes == VARIABLE else nbytes
