"""One array that lies in a file as NumPy might have had it in memory, as a row of an index.

In C order, little-endian and a byte or more an element, that is a span. Otherwise the
span is encoded: by the order of its elements, by a byte for less than a byte, by
whatever the caller says besides.
"""

from __future__ import annotations

import math
from itertools import accumulate

from tensorglot.model.dtypes import DType
from tensorglot.model.payload import Codec
from tensorglot.model.rows import Rows
from tensorglot.model.strided import Strided
from tensorglot.model.subbyte import UnpackedSubByte

__all__ = ["add_array"]


def add_array(
    rows: Rows,
    name: str,
    dtype: DType | str,
    itemsize: int,
    shape: tuple[int, ...],
    span: tuple[int, int],
    *,
    fortran_order: bool,
    big_endian: bool,
    codec: Codec | None = None,
    checksum: str | None = None,
) -> None:
    """Adds the array; `codec` is what its bytes are compressed with, `checksum` that of the bytes without that."""
    count = math.prod(shape)
    outer = codec
    if isinstance(dtype, str):
        # Of elements that we do not know the order is not looked at: the bytes are carried as they lie.
        rows.add(name, dtype, shape, *span, codec=codec, nbytes=count * itemsize, checksum=checksum)
        return
    if fortran_order:
        strides = tuple(accumulate(shape[:-1], lambda a, b: a * b, initial=itemsize)) if shape else ()
        strided = Strided(shape, strides, itemsize, codec, count * itemsize)
        outer = codec if strided.in_order else strided
    if dtype.packed:
        outer = UnpackedSubByte(dtype, count, outer)
    rows.add(
        name,
        dtype,
        shape,
        *span,
        codec=outer,
        nbytes=dtype.nbytes(count),
        big_endian=big_endian,
        checksum=checksum,
    )
