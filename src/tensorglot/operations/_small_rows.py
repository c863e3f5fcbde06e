"""Which tensors of an index are small and plain: their stored bytes are their canonical bytes.

For a tensor of a few bytes, making a Tensor costs a hundred times what its bytes do. Verbs
over many of them read runs of rows instead (`Archive.read_rows`), and look at the bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import UNKNOWN, Index
from tensorglot.model.payload import SMALL_NBYTES

__all__ = ["is_small"]

_BYTES_DECIDE = np.zeros(UNKNOWN + 1, np.bool_)
_BYTES_DECIDE[: len(TABLE)] = [row.numpy is not None and not row.packed and row.name != "bool" for row in TABLE]
"""Element types whose values are equal exactly if their bytes are. Not bool: several bytes may mean true."""


def is_small(index: Index, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each of some rows is a tensor of its own: small, dense, raw, little-endian, without attributes."""
    if index.first_rows is not None:
        return np.zeros(len(rows), np.bool_)
    found: NDArray[np.bool_] = (index.nbytes[rows] < SMALL_NBYTES) & _BYTES_DECIDE[index.dtypes[rows]]
    special = [column for column in (index.layouts, index.attributes, index.codecs, index.big_endian) if column]
    if special:
        found &= np.array([not any(row in column for column in special) for row in rows.tolist()], np.bool_)
    return found
